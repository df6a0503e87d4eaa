#include "token/tokfile.h"

#include "base/map.h"
#include "base/mem.h"
#include "token/pretok.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- places and fields ---- */

struct place place_in(const struct place *p, const char *key)
{
    struct place q = { .file = p->file };

    snprintf(q.path, sizeof q.path, "%.100s%s%.50s", p->path, *p->path ? "." : "", key);
    return q;
}

struct place place_at(const struct place *p, size_t i)
{
    struct place q = { .file = p->file };

    snprintf(q.path, sizeof q.path, "%.130s[%zu]", p->path, i);
    return q;
}

int place_fail(const struct place *p, struct err *e, const char *fmt, ...)
{
    char msg[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(e, E_FORMAT, "%s: %s%s%s", p->file, p->path, *p->path ? ": " : "", msg);
}

struct str json_text(json_t *s) { return str_of(json_string_value(s), json_string_length(s)); }

int field_bool(json_t *o, const char *key, bool def, bool *out, const struct place *p,
               struct err *e)
{
    json_t *v = json_object_get(o, key);

    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_boolean(v)) return place_fail(p, e, "'%s' is not true or false", key);
    *out = json_is_true(v);
    return OK;
}

int field_int(json_t *o, const char *key, int64_t def, int64_t *out, const struct place *p,
              struct err *e)
{
    json_t *v = json_object_get(o, key);

    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_integer(v)) return place_fail(p, e, "'%s' is not a whole number", key);
    *out = json_integer_value(v);
    return OK;
}

int field_str(json_t *o, const char *key, const char *def, struct str *out, const struct place *p,
              struct err *e)
{
    json_t *v = json_object_get(o, key);

    *out = str_c(def);
    if (!v || json_is_null(v)) return OK;
    if (!json_is_string(v)) return place_fail(p, e, "'%s' is not a string", key);
    *out = json_text(v);
    return OK;
}

/* ---- added tokens ---- */

/* What was added so far. */
struct adding {
    struct map ids; /* content → id */
    int32_t next;   /* behind all */
};

/* As the library gives them: the model's id, or the next one behind all. */
static int32_t added_id(const struct tokenizer *t, struct adding *a, struct str content)
{
    int32_t id = vocab_find(&t->vocab, content);

    if (id < 0) id = a->next;
    if (id >= a->next) a->next = id + 1;
    map_put(&a->ids, content, (uint64_t)id);
    return id;
}

static int read_added(struct tokenizer *t, json_t *o, struct adding *so_far, const struct place *p,
                      struct err *e)
{
    struct added_token a = { 0 };
    int64_t id;
    int rc;

    if (!json_is_object(o)) return place_fail(p, e, "not an object");
    if ((rc = field_str(o, "content", NULL, &a.content, p, e)) != OK) return rc;
    if (!json_is_string(json_object_get(o, "content")))
        return place_fail(p, e, "'content' is missing");
    if ((rc = field_int(o, "id", -1, &id, p, e)) != OK) return rc;
    if (id < 0 || id >= VOCAB_MAX_ID)
        return place_fail(p, e, "id %lld, expected 0 to %d", (long long)id, VOCAB_MAX_ID - 1);
    if ((rc = field_bool(o, "special", false, &a.special, p, e)) != OK ||
        (rc = field_bool(o, "lstrip", false, &a.lstrip, p, e)) != OK ||
        (rc = field_bool(o, "rstrip", false, &a.rstrip, p, e)) != OK ||
        (rc = field_bool(o, "single_word", false, &a.single_word, p, e)) != OK ||
        (rc = field_bool(o, "normalized", !a.special, &a.normalized, p, e)) != OK)
        return rc;
    if (!a.content.n || map_get(&so_far->ids, a.content, NULL)) return OK;
    a.content = arena_str(&t->arena, a.content);
    a.id = added_id(t, so_far, a.content);
    t->added[t->n_added++] = a;
    return OK;
}

static int read_all_added(struct tokenizer *t, json_t *list, const struct place *p, struct err *e)
{
    struct adding so_far = { .next = t->vocab.n_pieces };
    size_t n = json_array_size(list);
    int rc = OK;

    if (list && !json_is_null(list) && !json_is_array(list)) return place_fail(p, e, "not a list");
    if (n > 1 << 16) return place_fail(p, e, "%zu tokens, at most %d are supported", n, 1 << 16);
    t->added = mem_array(n + 1, sizeof *t->added);
    for (size_t i = 0; i < n && rc == OK; i++) {
        struct place q = place_at(p, i);
        rc = read_added(t, json_array_get(list, i), &so_far, &q, e);
    }
    map_release(&so_far.ids);
    return rc;
}

/* ---- tokenizer_config.json ---- */

static int32_t config_token(const struct tokenizer *t, json_t *config, const char *key)
{
    json_t *v = json_object_get(config, key);

    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? tokenizer_find(t, json_text(v)) : -1;
}

static int32_t first_known(const struct tokenizer *t, const char *const *names)
{
    int32_t id = -1;

    for (; *names && id < 0; names++) id = tokenizer_find(t, str_c(*names));
    return id;
}

static void read_template(struct tokenizer *t, json_t *v)
{
    json_t *pick = NULL;

    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *x = json_array_get(v, i), *name = json_object_get(x, "name");
        if (!pick || (json_is_string(name) && str_is(json_text(name), "default"))) pick = x;
        if (json_is_string(name) && str_is(json_text(name), "tool_use") &&
            json_is_string(json_object_get(x, "template")))
            t->tool_template = arena_str(&t->arena, json_text(json_object_get(x, "template")));
    }
    if (pick) v = json_object_get(pick, "template");
    if (json_is_string(v)) t->chat_template = arena_str(&t->arena, json_text(v));
}

static void read_config(struct tokenizer *t, json_t *config)
{
    static const char *const ends[] = { "<|end_of_text|>", "</s>",       "<|endoftext|>",
                                        "<eos>",           "<|im_end|>", NULL };

    t->bos = config_token(t, config, "bos_token");
    t->eos = config_token(t, config, "eos_token");
    t->pad = config_token(t, config, "pad_token");
    if (t->unk < 0) t->unk = config_token(t, config, "unk_token");
    if (t->bos < 0 && !config && t->n_before) t->bos = t->before[0];
    if (t->eos < 0) t->eos = first_known(t, ends);
    /* Its own library makes the template anew by these: what it says no to goes. */
    if (json_is_false(json_object_get(config, "add_bos_token")) && t->n_before &&
        t->before[0] == t->bos)
        memmove(t->before, t->before + 1, (size_t)--t->n_before * sizeof *t->before);
    if (json_is_false(json_object_get(config, "add_eos_token"))) t->n_after = 0;
    if (t->bos >= 0 && t->n_before == 0 && json_is_true(json_object_get(config, "add_bos_token")))
        t->before[t->n_before++] = t->bos;
    if (t->eos >= 0 && t->n_after == 0 && json_is_true(json_object_get(config, "add_eos_token")))
        t->after[t->n_after++] = t->eos;
    read_template(t, json_object_get(config, "chat_template"));
}

/* ---- the whole ---- */

static int load(json_t **out, struct str text, size_t flags, const char *name, struct err *e)
{
    json_error_t bad;

    *out = json_loadb(text.p ? text.p : "", text.n, JSON_ALLOW_NUL | flags, &bad);
    if (!*out)
        return err_set(e, E_FORMAT, "%s: line %d, column %d: %s", name, bad.line, bad.column,
                       bad.text);
    if (!json_is_object(*out)) return err_set(e, E_FORMAT, "%s: not an object", name);
    return OK;
}

static int read_part(struct tokenizer *t, json_t *root, const char *key,
                     int (*read)(struct tokenizer *, json_t *, const struct place *, int,
                                 struct err *),
                     const struct place *p, struct err *e)
{
    json_t *o = json_object_get(root, key);
    struct place q = place_in(p, key);

    return o && !json_is_null(o) ? read(t, o, &q, 0, e) : OK;
}

static int read_root(struct tokenizer *t, json_t *root, const struct tokbig *big,
                     const struct place *top, struct err *e)
{
    struct place model = place_in(top, "model"), added = place_in(top, "added_tokens");
    int rc;

    if ((rc = tokjson_model(t, json_object_get(root, "model"), big, &model, e)) != OK ||
        (rc = read_part(t, root, "normalizer", tokjson_normalizer, top, e)) != OK ||
        (rc = read_part(t, root, "pre_tokenizer", tokjson_splitter, top, e)) != OK ||
        (rc = read_all_added(t, json_object_get(root, "added_tokens"), &added, e)) != OK ||
        (rc = read_part(t, root, "post_processor", tokjson_post, top, e)) != OK ||
        (rc = read_part(t, root, "decoder", tokjson_decoder, top, e)) != OK)
        return rc;
    if (!t->decode.n_steps) decode_add(&t->decode, (struct decode_step){ .kind = DECODE_JOIN });
    if ((rc = tokenizer_finish(t, e)) != OK) return err_wrap(e, "%s", top->file);
    t->pre = pretok_name(&t->split, t->bpe.ignore_merges);
    for (int i = 0; t->pre && strcmp(t->pre, "smollm") == 0 && i < t->normal.n_steps; i++)
        if (t->normal.steps[i].kind == NORMAL_NFC) t->pre = "command-r"; /* splits the same */
    return OK;
}

int tokjson_build(struct tokenizer *t, struct str json, struct str config, const char *name,
                  struct err *e)
{
    struct place top = { .file = name };
    json_t *root = NULL, *conf = NULL;
    struct buf rest = { 0 };
    struct tokbig big;
    int rc;

    tokbig_cut(json, &big, &rest);
    if ((rc = load(&root, buf_str(&rest), 0, name, e)) != OK) goto out;
    /* its model_max_length may be beyond all integers */
    if (config.n &&
        (rc = load(&conf, config, JSON_DECODE_INT_AS_REAL, "tokenizer_config.json", e)) != OK)
        goto out;
    if ((rc = read_root(t, root, &big, &top, e)) != OK) goto out;
    read_config(t, conf);
out:
    json_decref(root);
    json_decref(conf);
    buf_release(&rest);
    return rc;
}
