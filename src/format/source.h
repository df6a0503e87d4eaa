/* source.h - any model on disk, seen as names → tensors and keys → values.
 *
 * A source is a GGUF file (or the first of a split set), a .safetensors file, a Hugging Face
 * folder, or an ONNX file in one. Everything it hands out is borrowed from the mapped files and
 * lives as long as the source. All sizes, offsets, shapes and overlaps were checked by source_open:
 * a tensor that can be seen can be read whole. */
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
    int64_t dims[SOURCE_MAX_DIMS]; /* slowest first, as PyTorch prints them: [out, in]; then 1s */
    const void *data;
    size_t bytes;
};

enum value_kind {
    VALUE_NONE,
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
    /* a list: */
    size_t n;
    int elem;         /* the format's own element type */
    const void *impl; /* the format's own; use value_at */
    bool (*at)(const struct value *list, size_t i, struct value *out);
};

struct source;
struct gguf;

/* path: also hf: and file: names, see modelref.h. */
int source_open(struct source **out, const char *path, struct err *e);
void source_close(struct source *s); /* NULL is fine */

enum source_kind source_kind(const struct source *s);
const char *source_path(const struct source *s);
const struct gguf *source_gguf(const struct source *s); /* NULL: not a GGUF file */
/* The .onnx file whose graph is the model; its tensors are not listed here. NULL: it is none. */
const char *source_onnx(const struct source *s);

size_t source_n_tensors(const struct source *s);
const struct source_tensor *source_tensor(const struct source *s, size_t i);
const struct source_tensor *source_find(const struct source *s, const char *name); /* or NULL */
uint64_t source_bytes(const struct source *s); /* of all tensors */

/* Keys: GGUF's own ("llama.block_count"); in a folder the dotted path into config.json
 * ("rope_scaling.factor"; a list index is a path part too), or, behind "generation_config:"
 * or "tokenizer_config:", into that file, behind "pooling:" into 1_Pooling/config.json,
 * behind "modules:" and "tern:" into modules.json and tern.json; behind "metadata:" a text of the
 * safetensors header. A JSON null counts as missing; an object is there, as VALUE_NONE, for its
 * parts to be asked for. */
bool source_key(const struct source *s, const char *key, struct value *out);
size_t source_n_keys(const struct source *s); /* top-level keys, for listing */
const char *source_key_name(const struct source *s, size_t i);

/* The same with a kind in mind: false if missing or of another kind (numbers convert when exact).
 */
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

/* Path of a companion file in the folder ("tokenizer.json"), or NULL if it is not there or the
 * source is not a folder (or a .safetensors file with config.json beside it). Free with mem_free.
 */
char *source_file(const struct source *s, const char *name);
#endif
