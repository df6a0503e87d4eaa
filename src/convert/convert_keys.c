#include "convert/convert_keys.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/mem.h"
#include "convert/tohf.h"
#include "token/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void general_keys(struct ggufw *w, const struct source *src, int file_type)
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

/* The settings the makers recommend, where they sample at all. */
static void sampling_keys(struct ggufw *w, const struct source *src)
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

/* Models end a turn with another token than a text: the second of the list, where there is one. */
static int32_t end_of_turn(const struct source *src, int32_t eos)
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

static void id_key(struct ggufw *w, const char *key, int32_t id)
{
    if (id >= 0) ggufw_u32(w, key, (uint32_t)id);
}

/* Of kinds that change the text before they look at it. */
static void normalizer_keys(struct ggufw *w, const struct token_export *x)
{
    if (str_is(str_c(x->model), "t5")) {
        ggufw_bool(w, "tokenizer.ggml.remove_extra_whitespaces", x->squeeze);
        if (x->charsmap.n)
            ggufw_u8s(w, "tokenizer.ggml.precompiled_charsmap", (const uint8_t *)x->charsmap.p,
                      x->charsmap.n);
    }
    if (str_is(str_c(x->model), "gpt2")) ggufw_bool(w, "tokenizer.ggml.normalizer.nfc", x->nfc);
    if (!str_is(str_c(x->model), "bert")) return;
    id_key(w, "tokenizer.ggml.cls_token_id", x->first);
    id_key(w, "tokenizer.ggml.seperator_token_id", x->last); /* so spelled */
    ggufw_bool(w, "tokenizer.ggml.normalizer.lowercase", x->lower);
    ggufw_bool(w, "tokenizer.ggml.normalizer.strip_accents", x->accents);
}

/* config.json's id where the tokenizer says none. */
static int32_t id_or(int32_t id, const struct source *src, const char *key, int n)
{
    struct value v, first;
    int64_t i;

    if (id >= 0 || !source_key(src, key, &v)) return id;
    if (v.kind == VALUE_LIST && value_at(&v, 0, &first)) v = first;
    return value_i64(&v, &i) && i >= 0 && i < n ? (int32_t)i : -1;
}

static int tokenizer_keys(struct ggufw *w, const struct source *src, struct err *e)
{
    struct tokenizer *t = NULL;
    struct token_export x = { 0 };
    struct str chat;
    int rc = tokenizer_from_source(&t, src, e);

    if (rc == OK) rc = tokenizer_export(t, &x, e);
    if (rc == OK) {
        x.bos = id_or(x.bos, src, "bos_token_id", x.n);
        x.eos = id_or(x.eos, src, "eos_token_id", x.n);
        x.pad = id_or(x.pad, src, "pad_token_id", x.n);
        ggufw_str(w, "tokenizer.ggml.model", str_c(x.model));
        if (x.pre) ggufw_str(w, "tokenizer.ggml.pre", str_c(x.pre));
        ggufw_strs(w, "tokenizer.ggml.tokens", x.pieces, (size_t)x.n);
        if (x.scores) ggufw_f32s(w, "tokenizer.ggml.scores", x.scores, (size_t)x.n);
        if (x.types) ggufw_i32s(w, "tokenizer.ggml.token_type", x.types, (size_t)x.n);
        if (x.merges) ggufw_strs(w, "tokenizer.ggml.merges", x.merges, (size_t)x.n_merges);
        id_key(w, "tokenizer.ggml.bos_token_id", x.bos);
        id_key(w, "tokenizer.ggml.eos_token_id", x.eos);
        id_key(w, "tokenizer.ggml.eot_token_id", end_of_turn(src, x.eos));
        id_key(w, "tokenizer.ggml.unknown_token_id", x.unk);
        id_key(w, "tokenizer.ggml.padding_token_id", x.pad);
        ggufw_bool(w, "tokenizer.ggml.add_bos_token", x.add_bos);
        ggufw_bool(w, "tokenizer.ggml.add_eos_token", x.add_eos);
        ggufw_bool(w, "tokenizer.ggml.add_space_prefix", x.add_space_prefix);
        normalizer_keys(w, &x);
        chat = tokenizer_chat_template(t);
        if (chat.n) ggufw_str(w, "tokenizer.chat_template", chat);
        chat = tokenizer_tool_template(t);
        if (chat.n) ggufw_str(w, "tokenizer.chat_template.tool_use", chat);
    }
    tokenizer_close(t);
    return rc;
}

/* The folder's own words, so that tohf can give them back as they were. Those of a file that is too
 * large, or no text that GGUF can hold, are left out. */
static void keep_file(struct ggufw *w, const struct source *src, const char *name, const char *key)
{
    char *path = source_file(src, name);
    struct buf text = { 0 };

    if (path && file_read(&text, path, 64u << 20, NULL) == OK && text.n)
        ggufw_str(w, key, buf_str(&text));
    buf_release(&text);
    mem_free(path);
}

static void keep_folder(struct ggufw *w, const struct source *src)
{
    size_t n = source_n_tensors(src);
    struct str *names = mem_array(n + 1, sizeof *names), *types = mem_array(n + 1, sizeof *types);
    struct arena a = { 0 };

    for (size_t i = 0; i < n; i++) {
        const struct source_tensor *t = source_tensor(src, i);
        struct buf type = { 0 };
        buf_puts(&type, dtype_name((int)t->type));
        for (int d = 0; d < t->n_dims; d++)
            buf_printf(&type, "%c%lld", d ? ',' : ' ', (long long)t->dims[d]);
        names[i] = t->name;
        types[i] = arena_str(&a, buf_str(&type));
        buf_release(&type);
    }
    keep_file(w, src, "config.json", TOHF_CONFIG);
    keep_file(w, src, "generation_config.json", TOHF_GENERATION);
    keep_file(w, src, "tokenizer_config.json", TOHF_TOKENIZER_CONFIG);
    keep_file(w, src, "tokenizer.json", TOHF_TOKENIZER);
    ggufw_strs(w, TOHF_NAMES, names, n);
    ggufw_strs(w, TOHF_TYPES, types, n);
    mem_free(names);
    mem_free(types);
    arena_release(&a);
}

void convert_keep_exact(struct ggufw *w, const struct source_tensor *t, float add)
{
    char key[300];
    size_t n = t->bytes / sizeof(float);
    float *x = mem_dup(t->data, t->bytes);
    bool exact = true;

    for (size_t i = 0; i < n && exact; i++) {
        volatile float moved =
            add != 0 ? x[i] + add : -expf(x[i]); /* as F32, whatever the compiler has */
        exact = (add != 0 ? moved - add : logf(-moved)) == x[i];
    }
    snprintf(key, sizeof key, TOHF_EXACT "%.*s", STR_ARG(str_take(t->name, 200)));
    if (!exact) ggufw_f32s(w, key, x, n);
    mem_free(x);
}

int convert_keys(struct ggufw *w, const struct source *src, int file_type, bool bare, struct err *e)
{
    char *file = source_file(src, "tokenizer.json");
    int rc = OK;

    general_keys(w, src, file_type);
    sampling_keys(w, src);
    if (file) rc = tokenizer_keys(w, src, e);
    if (rc == OK && !bare) keep_folder(w, src);
    mem_free(file);
    return rc;
}
