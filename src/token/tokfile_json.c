/* tokfile_json.c - reads tokenizer.json, and tokenizer_config.json beside it.
 *
 * Vocabulary and merges are cut out of the text first and read without a JSON tree (they are most
 * of the file); jansson parses the rest. Every error names the file and the path of the value. */
#include "token/tokfile.h"

#include "base/map.h"
#include "base/mem.h"
#include "format/jsonload.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_ADDED = 1 << 16 }; /* added tokens */

/* ---- locations and members ---- */

struct location location_member(const struct location *at, const char *key)
{
    struct location q = { .file = at->file };

    snprintf(q.path, sizeof q.path, "%.100s%s%.50s", at->path, *at->path ? "." : "", key);
    return q;
}

struct location location_item(const struct location *at, size_t i)
{
    struct location q = { .file = at->file };

    snprintf(q.path, sizeof q.path, "%.130s[%zu]", at->path, i);
    return q;
}

int location_fail(const struct location *at, struct err *e, const char *fmt, ...)
{
    char msg[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(e, E_FORMAT, "%s: %s%s%s", at->file, at->path, *at->path ? ": " : "", msg);
}

struct str json_text(json_t *s) { return str_of(json_string_value(s), json_string_length(s)); }

struct str json_type_name(json_t *o)
{
    json_t *type = json_object_get(o, "type");
    return json_is_string(type) ? json_text(type) : STR("");
}

int field_bool(json_t *o, const char *key, bool def, bool *out, const struct location *at,
               struct err *e)
{
    json_t *v = json_object_get(o, key);

    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_boolean(v)) return location_fail(at, e, "'%s' is not true or false", key);
    *out = json_is_true(v);
    return OK;
}

int field_int(json_t *o, const char *key, int64_t def, int64_t *out, const struct location *at,
              struct err *e)
{
    json_t *v = json_object_get(o, key);

    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_integer(v)) return location_fail(at, e, "'%s' is not an integer", key);
    *out = json_integer_value(v);
    return OK;
}

int field_str(json_t *o, const char *key, const char *def, struct str *out,
              const struct location *at, struct err *e)
{
    json_t *v = json_object_get(o, key);

    *out = str_c(def);
    if (!v || json_is_null(v)) return OK;
    if (!json_is_string(v)) return location_fail(at, e, "'%s' is not a string", key);
    *out = json_text(v);
    return OK;
}

/* ---- added tokens ---- */

/* The added tokens that were read so far. */
struct adding {
    struct map seen; /* by content */
    int32_t next;    /* the first id after all ids in use */
};

/* Ids are assigned as Hugging Face's library does, whatever the file says: the id of the piece in
 * the vocabulary, or the next free one. */
static int32_t assign_id(const struct tokenizer *t, struct adding *a, struct str content)
{
    int32_t id = vocab_find(&t->vocab, content);

    if (id < 0) id = a->next;
    if (id >= a->next) a->next = id + 1;
    return id;
}

/* {"id": 0, "content": "<s>", "special": true, "lstrip": false, "rstrip": false, "single_word":
 * false, "normalized": false}. The id must be valid, but is not used, see assign_id. A content that
 * is empty or was seen before is left out. */
static int read_added(struct tokenizer *t, json_t *o, struct adding *so_far,
                      const struct location *at, struct err *e)
{
    struct added_token a = { 0 };
    int64_t id;
    int rc;

    if (!json_is_object(o)) return location_fail(at, e, "not an object");
    if ((rc = field_str(o, "content", NULL, &a.content, at, e)) != OK) return rc;
    if (!json_is_string(json_object_get(o, "content")))
        return location_fail(at, e, "'content' is missing");
    if ((rc = field_int(o, "id", -1, &id, at, e)) != OK) return rc;
    if (id < 0 || id >= VOCAB_MAX_ID)
        return location_fail(at, e, "id %lld, expected 0 to %d", (long long)id, VOCAB_MAX_ID - 1);
    if ((rc = field_bool(o, "special", false, &a.special, at, e)) != OK ||
        (rc = field_bool(o, "lstrip", false, &a.lstrip, at, e)) != OK ||
        (rc = field_bool(o, "rstrip", false, &a.rstrip, at, e)) != OK ||
        (rc = field_bool(o, "single_word", false, &a.single_word, at, e)) != OK ||
        (rc = field_bool(o, "normalized", !a.special, &a.normalized, at, e)) != OK)
        return rc;
    if (!a.content.n || map_get(&so_far->seen, a.content, NULL)) return OK;
    a.content = arena_str(&t->arena, a.content);
    if (!a.content.p || map_put(&so_far->seen, a.content, 0) < 0)
        return err_nomem(e, "the added tokens");
    a.id = assign_id(t, so_far, a.content);
    t->added[t->n_added++] = a;
    return OK;
}

static int read_all_added(struct tokenizer *t, json_t *list, const struct location *at,
                          struct err *e)
{
    struct adding so_far = { .next = t->vocab.n_pieces };
    size_t n = json_array_size(list);
    int rc = OK;

    if (list && !json_is_null(list) && !json_is_array(list))
        return location_fail(at, e, "not a list");
    if (n > MAX_ADDED)
        return location_fail(at, e, "%zu tokens; at most %d are supported", n, MAX_ADDED);
    if (!(t->added = mem_array(n + 1, sizeof *t->added))) return err_nomem(e, "the added tokens");
    for (size_t i = 0; i < n && rc == OK; i++) {
        struct location q = location_item(at, i);
        rc = read_added(t, json_array_get(list, i), &so_far, &q, e);
    }
    map_release(&so_far.seen);
    return rc;
}

/* ---- tokenizer_config.json ---- */

/* The id of the token that a member names, as a string or as an object; -1: none. */
static int32_t find_config_token(const struct tokenizer *t, json_t *config, const char *key)
{
    json_t *v = json_object_get(config, key);

    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? tokenizer_find(t, json_text(v)) : -1;
}

static int32_t find_first_known(const struct tokenizer *t, const char *const *names)
{
    int32_t id = -1;

    for (; *names && id < 0; names++) id = tokenizer_find(t, str_c(*names));
    return id;
}

/* A string, or a list of named templates: "default" (or the first), "tool_use" and "rerank". */
static void read_templates(struct tokenizer *t, json_t *v)
{
    json_t *chosen = NULL;

    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *x = json_array_get(v, i), *text = json_object_get(x, "template");
        const char *name = json_string_value(json_object_get(x, "name"));
        bool ranks = name && strcmp(name, "rerank") == 0;
        if (!ranks && (!chosen || (name && strcmp(name, "default") == 0))) chosen = x;
        if (!name || !json_is_string(text)) continue;
        if (ranks) t->rank_template = arena_str(&t->arena, json_text(text));
        if (strcmp(name, "tool_use") == 0) t->tool_template = arena_str(&t->arena, json_text(text));
    }
    if (chosen) v = json_object_get(chosen, "template");
    if (json_is_string(v)) t->chat_template = arena_str(&t->arena, json_text(v));
}

/* The special tokens that tokenizer_config.json names (config NULL: there is no such file), whether
 * BOS and EOS are added, and the chat template. */
static void read_config(struct tokenizer *t, json_t *config)
{
    static const char *const ends[] = { "<|end_of_text|>", "</s>",       "<|endoftext|>",
                                        "<eos>",           "<|im_end|>", NULL };

    t->bos = find_config_token(t, config, "bos_token");
    t->eos = find_config_token(t, config, "eos_token");
    t->pad = find_config_token(t, config, "pad_token");
    if (t->unk < 0) t->unk = find_config_token(t, config, "unk_token");
    if (t->bos < 0 && !config && t->n_before) t->bos = t->before[0];
    if (t->eos < 0) t->eos = find_first_known(t, ends);
    /* The model's own library rebuilds the post-processor by these two, over tokenizer.json. */
    if (json_is_false(json_object_get(config, "add_bos_token")) && t->n_before &&
        t->before[0] == t->bos)
        memmove(t->before, t->before + 1, (size_t)--t->n_before * sizeof *t->before);
    if (json_is_false(json_object_get(config, "add_eos_token"))) t->n_after = 0;
    if (t->bos >= 0 && t->n_before == 0 && json_is_true(json_object_get(config, "add_bos_token")))
        t->before[t->n_before++] = t->bos;
    if (t->eos >= 0 && t->n_after == 0 && json_is_true(json_object_get(config, "add_eos_token")))
        t->after[t->n_after++] = t->eos;
    read_templates(t, json_object_get(config, "chat_template"));
}

/* ---- the file ---- */

static int load_object(json_t **out, struct str text, size_t flags, const char *name, struct err *e)
{
    int rc = jsonload(out, text, JSON_ALLOW_NUL | flags, name, e);

    if (rc == OK && !json_is_object(*out)) rc = err_set(e, E_FORMAT, "%s: not an object", name);
    return rc;
}

static int read_part(struct tokenizer *t, json_t *root, const char *key, json_part_reader *read,
                     const struct location *at, struct err *e)
{
    json_t *o = json_object_get(root, key);
    struct location q = location_member(at, key);

    return o && !json_is_null(o) ? read(t, o, &q, 0, e) : OK;
}

/* The name that GGUF files have for the pre-tokenizer, for tokenizer_export. */
static const char *find_style_name(const struct tokenizer *t)
{
    const char *pre = pretok_find_style(&t->pretok, t->bpe.ignore_merges);

    for (int i = 0; pre && strcmp(pre, "smollm") == 0 && i < t->normalizer.n_steps; i++)
        if (t->normalizer.steps[i].kind == NORMAL_NFC) pre = "command-r"; /* the same, after NFC */
    return pre;
}

/* The order matters: added tokens need the vocabulary, and the added tokens in normalized text need
 * the normalizer. */
static int read_root(struct tokenizer *t, json_t *root, const struct json_tables *tables,
                     const struct location *top, struct err *e)
{
    struct location model = location_member(top, "model"),
                    added = location_member(top, "added_tokens");
    int rc;

    if ((rc = tokfile_read_model(t, json_object_get(root, "model"), tables, &model, e)) != OK ||
        (rc = read_part(t, root, "normalizer", tokfile_read_normalizer, top, e)) != OK ||
        (rc = read_part(t, root, "pre_tokenizer", tokfile_read_pretok, top, e)) != OK ||
        (rc = read_all_added(t, json_object_get(root, "added_tokens"), &added, e)) != OK ||
        (rc = read_part(t, root, "post_processor", tokfile_read_post, top, e)) != OK ||
        (rc = read_part(t, root, "decoder", tokfile_read_decoder, top, e)) != OK)
        return rc;
    if (!t->decoder.n_steps &&
        (rc = decoder_add_step(&t->decoder, (struct decode_step){ .kind = DECODE_JOIN }, e)) != OK)
        return rc;
    if ((rc = tokenizer_finish(t, e)) != OK) {
        err_wrap(e, "%s", top->file);
        return rc;
    }
    t->pre = find_style_name(t);
    return OK;
}

int tokfile_read_json(struct tokenizer *t, struct str json, struct str config, const char *name,
                      struct err *e)
{
    struct location top = { .file = name };
    json_t *root = NULL, *conf = NULL;
    struct buf rest = { 0 };
    struct json_tables tables;
    int rc;

    tokfile_cut_tables(json, &tables, &rest);
    if ((rc = buf_check(&rest, e)) != OK) goto out;
    if ((rc = load_object(&root, buf_str(&rest), 0, name, e)) != OK) goto out;
    /* as reals: model_max_length may be 1e30 written as an integer */
    if (config.n && (rc = load_object(&conf, config, JSON_DECODE_INT_AS_REAL,
                                      "tokenizer_config.json", e)) != OK)
        goto out;
    if ((rc = read_root(t, root, &tables, &top, e)) != OK) goto out;
    read_config(t, conf);
    rc = arena_check(&t->arena, e);
out:
    json_decref(root);
    json_decref(conf);
    buf_release(&rest);
    return rc;
}
