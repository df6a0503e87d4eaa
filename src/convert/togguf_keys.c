/* togguf_keys.c - key names and values follow the GGUF specification and what llama.cpp's
 * convert_hf_to_gguf.py writes, so that files run in both programs.
 *
 * A special token's id comes from the tokenizer; config.json is asked where the tokenizer has none. */
#include "convert/togguf_keys.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/mem.h"
#include "convert/hfkeys.h"
#include "token/tokenizer.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

/* A larger JSON file is not copied into the GGUF file. */
#define MAX_FILE_BYTES (64u << 20)

/* general.name is the last component of the folder's path. */
static void write_general(struct ggufw *w, const struct source *src, int file_type)
{
    const char *path = source_path(src);
    struct str name = str_c(path);

    while (name.n > 1 && name.p[name.n - 1] == '/') name.n--;
    for (size_t i = name.n; i > 0; i--)
        if (name.p[i - 1] == '/') {
            name = str_skip(name, i);
            break;
        }
    ggufw_str(w, "general.name", name);
    if (file_type < 0) return;
    ggufw_u32(w, "general.quantization_version", 2);
    ggufw_u32(w, "general.file_type", (uint32_t)file_type);
}

/* The sampling settings that generation_config.json recommends, unless it turns sampling off. */
static void write_sampling(struct ggufw *w, const struct source *src)
{
    bool sample = true;
    double f;
    int64_t i;

    source_bool(src, "generation_config:do_sample", &sample);
    if (!sample) return;
    if (source_f64(src, "generation_config:temperature", &f))
        ggufw_f32(w, "general.sampling.temp", (float)f);
    if (source_f64(src, "generation_config:top_p", &f))
        ggufw_f32(w, "general.sampling.top_p", (float)f);
    if (source_f64(src, "generation_config:min_p", &f))
        ggufw_f32(w, "general.sampling.min_p", (float)f);
    if (source_i64(src, "generation_config:top_k", &i))
        ggufw_i32(w, "general.sampling.top_k", (int32_t)i);
}

/* The end-of-turn token of chat models: the first id in a list of eos_token_ids that is not the EOS
 * token; -1: none. */
static int32_t find_eot(const struct source *src, int32_t eos)
{
    static const char *const lists[] = { "generation_config:eos_token_id", "eos_token_id" };
    struct value list, item;
    int64_t id;

    for (size_t k = 0; k < 2; k++)
        if (source_key(src, lists[k], &list) && list.kind == VALUE_LIST)
            for (size_t i = 0; i < list.n; i++)
                if (value_at(&list, i, &item) && value_i64(&item, &id) && id >= 0 && id != eos &&
                    id <= INT32_MAX)
                    return (int32_t)id;
    return -1;
}

/* Ids below 0 mean that the model has no such token; the key is left out then. */
static void write_id(struct ggufw *w, const char *key, int32_t id)
{
    if (id >= 0) ggufw_u32(w, key, (uint32_t)id);
}

/* Settings of tokenizers that normalize the text first: SentencePiece unigram ("t5"), byte-level
 * BPE ("gpt2") and WordPiece ("bert"). */
static void write_normalizer(struct ggufw *w, const struct token_export *x)
{
    if (str_is(str_c(x->model), "t5")) {
        ggufw_bool(w, "tokenizer.ggml.remove_extra_whitespaces", x->squeeze);
        if (x->charsmap.n)
            ggufw_u8s(w, "tokenizer.ggml.precompiled_charsmap", (const uint8_t *)x->charsmap.p,
                      x->charsmap.n);
    }
    if (str_is(str_c(x->model), "gpt2")) ggufw_bool(w, "tokenizer.ggml.normalizer.nfc", x->nfc);
    if (!str_is(str_c(x->model), "bert")) return;
    write_id(w, "tokenizer.ggml.cls_token_id", x->first);
    write_id(w, "tokenizer.ggml.seperator_token_id", x->last); /* GGUF spells it so */
    ggufw_bool(w, "tokenizer.ggml.normalizer.lowercase", x->lower);
    ggufw_bool(w, "tokenizer.ggml.normalizer.strip_accents", x->accents);
}

/* The id itself, or config.json's where the tokenizer has none (a list: its first); -1: neither has
 * one below n. */
static int32_t id_or_config(int32_t id, const struct source *src, const char *key, int n)
{
    struct value v, first;
    int64_t i;

    if (id >= 0 || !source_key(src, key, &v)) return id;
    if (v.kind == VALUE_LIST && value_at(&v, 0, &first)) v = first;
    return value_i64(&v, &i) && i >= 0 && i < n ? (int32_t)i : -1;
}

/* Pieces, scores and merges; which of them exist depends on the kind of tokenizer. */
static void write_tokens(struct ggufw *w, const struct token_export *x)
{
    ggufw_str(w, "tokenizer.ggml.model", str_c(x->model));
    if (x->pre) ggufw_str(w, "tokenizer.ggml.pre", str_c(x->pre));
    ggufw_strs(w, "tokenizer.ggml.tokens", x->pieces, (size_t)x->n);
    if (x->scores) ggufw_f32s(w, "tokenizer.ggml.scores", x->scores, (size_t)x->n);
    if (x->types) ggufw_i32s(w, "tokenizer.ggml.token_type", x->types, (size_t)x->n);
    if (x->merges) ggufw_strs(w, "tokenizer.ggml.merges", x->merges, (size_t)x->n_merges);
}

/* ModernBERT has [CLS] and [SEP] around a text, and neither BOS nor EOS: in GGUF they are these, as
 * llama.cpp writes them. */
static bool has_cls(const struct token_export *x, const struct source *src)
{
    struct str type;

    return x->first >= 0 && x->last >= 0 && source_str(src, "model_type", &type) &&
           str_is(type, "modernbert");
}

/* Special tokens and whether the tokenizer adds them by itself. */
static void write_special_ids(struct ggufw *w, const struct token_export *x,
                              const struct source *src)
{
    bool cls = has_cls(x, src);
    int32_t bos = cls ? x->first : id_or_config(x->bos, src, "bos_token_id", x->n),
            eos = cls ? x->last : id_or_config(x->eos, src, "eos_token_id", x->n);

    write_id(w, "tokenizer.ggml.bos_token_id", bos);
    write_id(w, "tokenizer.ggml.eos_token_id", eos);
    write_id(w, "tokenizer.ggml.eot_token_id", find_eot(src, eos));
    write_id(w, "tokenizer.ggml.unknown_token_id", x->unk);
    write_id(w, "tokenizer.ggml.padding_token_id", id_or_config(x->pad, src, "pad_token_id", x->n));
    ggufw_bool(w, "tokenizer.ggml.add_bos_token", x->add_bos || cls);
    ggufw_bool(w, "tokenizer.ggml.add_eos_token", x->add_eos || cls);
    ggufw_bool(w, "tokenizer.ggml.add_space_prefix", x->add_space_prefix);
}

/* The chat templates are part of the tokenizer's files in a folder, and separate keys in GGUF. */
static int write_tokenizer(struct ggufw *w, const struct source *src, struct err *e)
{
    struct tokenizer *t = NULL;
    struct token_export x = { 0 };
    struct str chat;
    int rc = tokenizer_from_source(&t, src, e);

    if (rc == OK) rc = tokenizer_export(t, &x, e);
    if (rc == OK) {
        write_tokens(w, &x);
        write_special_ids(w, &x, src);
        write_normalizer(w, &x);
        chat = tokenizer_chat_template(t);
        if (chat.n) ggufw_str(w, "tokenizer.chat_template", chat);
        chat = tokenizer_tool_template(t);
        if (chat.n) ggufw_str(w, "tokenizer.chat_template.tool_use", chat);
        chat = tokenizer_rank_template(t);
        if (chat.n) ggufw_str(w, "tokenizer.chat_template.rerank", chat);
    }
    tokenizer_close(t);
    return rc;
}

/* ---- copies of the folder's files, see hfkeys.h ---- */

/* Fills *out with the path of a file of the folder, from mem_alloc; NULL: the folder has none.
 * source_file returns NULL also without memory; leaving a file out for that reason would make a
 * GGUF file that silently lacks its tokenizer, so the existence is checked once more. */
static int find_file(char **out, const struct source *src, const char *name, struct err *e)
{
    const char *folder = source_path(src);
    int n = file_is_dir(folder) ? (int)strlen(folder) : (int)(path_base(folder) - folder);
    char path[PATH_MAX];

    if ((*out = source_file(src, name))) return OK;
    n = snprintf(path, sizeof path, "%.*s/%s", n, folder, name);
    return n < (int)sizeof path && file_exists(path) ? err_nomem(e, "the path of a file") : OK;
}

/* A file that is missing, empty or larger than MAX_FILE_BYTES is left out. */
static int write_file_copy(struct ggufw *w, const struct source *src, const char *name,
                           const char *key, struct err *e)
{
    char *path = NULL;
    struct buf text = { 0 };
    int rc = find_file(&path, src, name, e);

    if (rc == OK && path) rc = file_read(&text, path, MAX_FILE_BYTES, e);
    if (rc == OK && text.n) ggufw_str(w, key, buf_str(&text));
    if (rc == E_FORMAT) rc = OK;
    buf_release(&text);
    mem_free(path);
    return rc;
}

/* "BF16 64,128" in a's memory. */
static struct str describe_tensor(struct arena *a, const struct source_tensor *t)
{
    char text[128];
    int n = snprintf(text, sizeof text, "%s", dtype_name((int)t->type));

    for (int d = 0; d < t->n_dims; d++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%c%lld", d ? ',' : ' ',
                      (long long)t->dims[d]);
    return arena_str(a, str_c(text));
}

/* Names and types of all tensors as the folder has them: tohf restores names that depend on the
 * version of the library, and types that --type changed. */
static int write_tensor_list(struct ggufw *w, const struct source *src, struct err *e)
{
    size_t n = source_n_tensors(src);
    struct arena a = { 0 };
    struct str *names = arena_array(&a, n + 1, sizeof *names),
               *types = arena_array(&a, n + 1, sizeof *types);
    int rc;

    for (size_t i = 0; i < n && !a.failed; i++) {
        names[i] = source_tensor(src, i)->name;
        types[i] = describe_tensor(&a, source_tensor(src, i));
    }
    if ((rc = arena_check(&a, e)) == OK) {
        ggufw_strs(w, HFKEY_NAMES, names, n);
        ggufw_strs(w, HFKEY_TYPES, types, n);
    }
    arena_release(&a);
    return rc;
}

/* What tohf needs to restore the folder exactly. */
static int write_folder_copy(struct ggufw *w, const struct source *src, struct err *e)
{
    static const char *const files[][2] = {
        { "config.json", HFKEY_CONFIG },
        { "generation_config.json", HFKEY_GENERATION },
        { "tokenizer_config.json", HFKEY_TOKENIZER_CONFIG },
        { "tokenizer.json", HFKEY_TOKENIZER },
    };
    int rc = OK;

    for (size_t i = 0; i < sizeof files / sizeof *files && rc == OK; i++)
        rc = write_file_copy(w, src, files[i][0], files[i][1], e);
    return rc == OK ? write_tensor_list(w, src, e) : rc;
}

int togguf_write_exact(struct ggufw *w, const struct source_tensor *t, float add, struct err *e)
{
    char key[300];
    size_t n = t->bytes / sizeof(float);
    float *x = mem_dup(t->data, t->bytes); /* t->data may be unaligned */
    bool exact = true;

    if (!x) return err_nomem(e, "a copy of a tensor's exact values");
    for (size_t i = 0; i < n && exact; i++) {
        /* volatile: rounded to F32 as in the file, not kept in a wider register */
        volatile float changed = add != 0 ? x[i] + add : -expf(x[i]);
        exact = (add != 0 ? changed - add : logf(-changed)) == x[i];
    }
    snprintf(key, sizeof key, HFKEY_EXACT "%.*s", STR_ARG(str_take(t->name, 200)));
    if (!exact) ggufw_f32s(w, key, x, n);
    mem_free(x);
    return OK;
}

int togguf_write_keys(struct ggufw *w, const struct source *src, int file_type, bool bare,
                      struct err *e)
{
    char *file = NULL;
    int rc = find_file(&file, src, "tokenizer.json", e);

    write_general(w, src, file_type);
    write_sampling(w, src);
    if (rc == OK && file) rc = write_tokenizer(w, src, e);
    if (rc == OK && !bare) rc = write_folder_copy(w, src, e);
    mem_free(file);
    return rc;
}
