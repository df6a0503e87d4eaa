/* native_body.c - the bodies of llama-server's /completion and /infill → that of a text completion. */
#include "api/native_impl.h"

#include "api/convo.h"
#include "base/buf.h"

#include <limits.h>
#include <stdio.h>

struct reading {
    struct call *c;
    struct body_reader r;
    struct native *s;
    json_t *out;
};

static int nomem(struct reading *g) { return err_nomem(g->r.err, "the body of the request"); }

/* Members of /v1/completions under another name. Negative numbers of tokens: no limit. */
static int rename_members(struct reading *g, json_t *root)
{
    static const char *const names[][2] = { { "n_predict", "max_tokens" },
                                            { "n_probs", "logprobs" } };
    /* Members about slots, caches and the sampler's order, that change no answer here; and those that
     * are read elsewhere. Others go on, and are reported if they have no effect. */
    static const char *const dropped[] = { "cache_prompt",   "id_slot",       "samplers",
                                           "slot_id",        "n_keep",        "n_indent",
                                           "n_discard",      "return_tokens", "t_max_predict_ms",
                                           "input_prefix",   "input_suffix",  "input_extra",
                                           "response_fields" };
    const char *key;
    json_t *v;

    json_object_foreach (root, key, v) {
        const char *to = key;
        bool drop = false;
        for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
            drop |= !strcmp(key, dropped[i]);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strcmp(key, names[i][0])) to = names[i][1];
        if (!strcmp(key, "n_predict") && json_is_integer(v) && json_integer_value(v) == 0)
            v = json_integer(1);
        else json_incref(v);
        drop |= json_is_array(v) && !json_array_size(v) && !strcmp(key, "lora");
        drop |= to != key && json_is_number(v) && json_number_value(v) <= 0;
        if (drop) json_decref(v);
        else if (!convo_set(g->out, to, v)) return nomem(g);
    }
    return OK;
}

/* The time that the answer may take after its first token, once it has a whole line. */
static int read_time(struct reading *g, const json_t *v)
{
    int64_t ms = 0;
    int rc;

    if (!v || json_is_null(v)) return OK;
    rc = body_read_int(&g->r, "t_max_predict_ms", v, INT_MIN, INT_MAX, &ms);
    if (rc == OK && ms > 0) g->c->p.predict_ms = ms;
    return rc;
}

/* Copies: the answer names the one that ended it. What is wrong with them is said by params.c. */
static void copy_stops(struct reading *g, const json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    for (size_t i = 0; i < n && g->s->n_stops < STOPS_MAX; i++) {
        const json_t *stop = json_is_array(v) ? json_array_get(v, i) : v;
        if (json_is_string(stop))
            g->s->stops[g->s->n_stops++] = arena_str(&g->c->arena, body_str(stop));
    }
}

static int read_fields(struct reading *g, const json_t *v)
{
    if (!v || json_is_null(v)) return OK;
    if (!json_is_array(v))
        return body_refuse(&g->r, "response_fields", "must be a list, but it is %s", body_type(v));
    if (json_array_size(v) > NATIVE_FIELDS_MAX)
        return body_refuse(&g->r, "response_fields", "has %zu entries, but at most %d are allowed",
                           json_array_size(v), NATIVE_FIELDS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *field = json_array_get(v, i);
        if (!json_is_string(field))
            return body_refuse(&g->r, "response_fields", "must be a list of strings");
        g->s->fields[g->s->n_fields++] = arena_str(&g->c->arena, body_str(field));
    }
    return OK;
}

/* Members of both paths. */
static int read_common(struct reading *g, json_t *root)
{
    const json_t *tokens = json_object_get(root, "return_tokens");
    int rc;

    if (tokens && !json_is_null(tokens) &&
        (rc = body_read_bool(&g->r, "return_tokens", tokens, &g->s->return_tokens)) != OK)
        return rc;
    if ((rc = read_time(g, json_object_get(root, "t_max_predict_ms"))) != OK) return rc;
    if ((rc = read_fields(g, json_object_get(root, "response_fields"))) != OK) return rc;
    copy_stops(g, json_object_get(root, "stop"));
    if ((rc = arena_check(&g->c->arena, g->r.err)) != OK) return rc;
    return rename_members(g, root);
}

static int open_reading(struct reading *g, struct call *c, struct err *e)
{
    *g = (struct reading){ .c = c,
                           .r = { .arena = &c->arena, .err = e, .param = c->p.param },
                           .s = arena_new(&c->arena, struct native),
                           .out = json_object() };
    c->state = g->s;
    return g->s && g->out ? OK : nomem(g);
}

int native_translate_completion(struct call *c, json_t **out, struct err *e)
{
    struct reading g;
    int rc = open_reading(&g, c, e);

    if (rc == OK) rc = read_common(&g, c->source);
    if (rc == OK) *out = g.out;
    else json_decref(g.out);
    return rc;
}

/* [{"filename":…,"text":…}]: other files, before the prefix. */
static int read_extra(struct call *c, struct reading *g, const json_t *extra)
{
    size_t n = json_array_size(extra);
    int rc;

    if (!extra || json_is_null(extra)) return OK;
    if (!json_is_array(extra))
        return body_refuse(&g->r, "input_extra", "must be a list, but it is %s", body_type(extra));
    if (n && !(c->p.files = arena_array(&c->arena, n, sizeof *c->p.files))) return nomem(g);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(extra, i), *name = json_object_get(x, "filename"),
                     *t = json_object_get(x, "text");
        struct infill_file *f = &c->p.files[c->p.n_files++];
        if ((rc = call_note_item(c, g->r.err)) != OK) return rc;
        if (!json_is_string(t))
            return body_refuse(&g->r, "input_extra", "must be a list of objects with a text");
        f->text = arena_str(&c->arena, body_str(t));
        f->name = json_is_string(name) ? arena_str(&c->arena, body_str(name)) : (struct str){ 0 };
    }
    return arena_check(&c->arena, g->r.err);
}

/* prompt: text that the middle begins with; it follows the prefix. */
int native_translate_infill(struct call *c, json_t **out, struct err *e)
{
    struct reading g;
    const json_t *prefix = json_object_get(c->source, "input_prefix"),
                 *suffix = json_object_get(c->source, "input_suffix"),
                 *prompt = json_object_get(c->source, "prompt");
    struct buf text = { 0 };
    int rc = open_reading(&g, c, e);

    if (rc == OK && prefix && !json_is_string(prefix))
        rc = body_refuse(&g.r, "input_prefix", "must be a string, but it is %s", body_type(prefix));
    if (rc == OK && suffix && !json_is_string(suffix))
        rc = body_refuse(&g.r, "input_suffix", "must be a string, but it is %s", body_type(suffix));
    if (rc == OK) rc = read_common(&g, c->source);
    if (rc == OK) rc = read_extra(c, &g, json_object_get(c->source, "input_extra"));
    buf_put_str(&text, body_str(prefix));
    if (json_is_string(prompt)) buf_put_str(&text, body_str(prompt));
    if (rc == OK && (text.failed || !convo_set(g.out, "prompt", convo_string(buf_str(&text))) ||
                     !convo_set(g.out, "suffix", convo_string(body_str(suffix)))))
        rc = nomem(&g);
    buf_release(&text);
    c->p.field = "input_prefix";
    if (rc == OK) *out = g.out;
    else json_decref(g.out);
    return rc;
}
