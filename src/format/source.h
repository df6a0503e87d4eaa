/* source.h - a model on disk, as tensors by name and values by key.
 *
 * A source is a GGUF file (any part of a split set), a .safetensors file, a Hugging Face folder, or
 * an ONNX file. Everything it hands out is borrowed from the mapped files and lives as long as the
 * source. All sizes, offsets, shapes and overlaps are checked by source_open: every byte of a
 * tensor that is listed can be read. A source is read-only once open; any thread may use it. */
#ifndef TERN_FORMAT_SOURCE_H
#define TERN_FORMAT_SOURCE_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"

enum source_kind { SOURCE_GGUF, SOURCE_HF };

#define SOURCE_MAX_DIMS 4

struct source_tensor {
    struct str name;
    enum dtype type;
    int n_dims;
    /* slowest dimension first, as PyTorch prints them: [out, in]; unused ones are 1 */
    int64_t dims[SOURCE_MAX_DIMS];
    const void *data; /* aligned for its type */
    size_t bytes;
    /* A layer of a quantized folder, of type DT_GROUPED: it is made of several tensors, whose bytes
     * are counted here, and read by format/hfquant.h. NULL: data is the tensor. */
    const struct hfquant_tensor *quant;
};

enum value_kind {
    VALUE_NONE, /* an object, whose members have keys of their own */
    VALUE_BOOL,
    VALUE_INT,
    VALUE_UINT,
    VALUE_FLOAT,
    VALUE_STR,
    VALUE_LIST
};

struct value {
    enum value_kind kind;
    union {
        bool b;
        int64_t i;
        uint64_t u;
        double f;
        struct str s;
    };
    /* VALUE_LIST; items are read with value_at */
    size_t n;
    int elem;         /* the element type, of the format */
    const void *impl; /* of the format */
    bool (*at)(const struct value *list, size_t i, struct value *out);
};

struct source;
struct gguf;
struct hfquant;

/* path: also hf: and file: names, see modelref.h. E_FORMAT: the file is none of these formats. */
int source_open(struct source **out, const char *path, struct err *e);
/* The same, but tensors of encrypted files (base/sealed.h) are listed and not decrypted: they read as
 * zeros until source_fill. For who may not need them, or has no memory for them yet. */
int source_open_head(struct source **out, const char *path, struct err *e);
/* Decrypts all tensors, before other threads use the source. done of total bytes are decrypted;
 * progress may be NULL. OK at once where no file is encrypted. */
typedef void source_progress_fn(void *arg, uint64_t done, uint64_t total);
int source_fill(struct source *s, source_progress_fn *progress, void *arg, struct err *e);
bool source_is_sealed(
    const struct source *s);         /* are its tensors in decrypted memory, not mapped? */
void source_close(struct source *s); /* NULL is allowed */

/* Has the model been damaged since it was opened? A file was truncated or written to, a page could
 * not be read, or someone said so (source_set_damaged). true: *e is E_DAMAGED and says what; it
 * stays so, and everything computed from the model since is worth nothing. Cheap: to be asked after
 * every step; files are looked at once a second. Any thread. */
bool source_is_damaged(const struct source *s, struct err *e);
/* From any thread; the first reason counts. */
void source_set_damaged(const struct source *s, const char *reason);
/* Also asks check(arg) whether files are damaged that the source itself has not mapped; before
 * other threads use the source. check NULL: no more. */
typedef int source_check_fn(const void *arg, bool look, struct err *e);
void source_watch(struct source *s, source_check_fn *check, const void *arg);

enum source_kind source_kind(const struct source *s);
const char *source_path(const struct source *s);
const struct gguf *source_gguf(const struct source *s); /* NULL: not a GGUF file */
/* The .onnx file that is the model; its tensors are not listed here. NULL: not an ONNX model. */
const char *source_onnx(const struct source *s);

size_t source_n_tensors(const struct source *s);
const struct source_tensor *source_tensor(const struct source *s, size_t i);
/* Also finds the layers of quantized folders (X.weight), which are not listed above; or NULL. */
const struct source_tensor *source_find(const struct source *s, const char *name);
/* The quantized layers; NULL: there are none. */
const struct hfquant *source_quant(const struct source *s);
/* The quantization that the folder names; false: none. */
bool source_quant_method(const struct source *s, struct str *out);
uint64_t source_bytes(const struct source *s); /* of all tensors, or of the ONNX file */

/* Keys of a GGUF file are its own ("llama.block_count"). In a folder a key is a dotted path into
 * config.json ("rope_scaling.factor"; the index of a list item is a part, too). A prefix selects
 * another file: "generation_config:", "tokenizer_config:", "pooling:" (1_Pooling/config.json),
 * "modules:" (modules.json), "logit_score:" (1_LogitScore/config.json), "tern:" (tern.json), and
 * "metadata:" the header of the safetensors file. A JSON null counts as missing. */
bool source_key(const struct source *s, const char *key, struct value *out);
size_t source_n_keys(const struct source *s); /* top-level keys, for listing */
const char *source_key_name(const struct source *s, size_t i);

/* The value as one kind: false if it is missing or of another kind. Numbers convert where the
 * conversion is exact. */
bool source_u64(const struct source *s, const char *key, uint64_t *out);
bool source_i64(const struct source *s, const char *key, int64_t *out);
bool source_f64(const struct source *s, const char *key, double *out);
bool source_bool(const struct source *s, const char *key, bool *out);
bool source_str(const struct source *s, const char *key, struct str *out);

bool value_u64(const struct value *v, uint64_t *out);
bool value_i64(const struct value *v, int64_t *out);
bool value_f64(const struct value *v, double *out);
static inline bool value_at(const struct value *list, size_t i, struct value *out)
{
    return list->kind == VALUE_LIST && i < list->n && list->at(list, i, out);
}

/* The path of another file of the folder ("tokenizer.json"), freed with mem_free. NULL: it does not
 * exist, or there is no memory, or the source is not a folder (nor a file with config.json beside
 * it). */
char *source_file(const struct source *s, const char *name);
#endif
