#include "jinja/chattemplate.h"

#include "base/arena.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

struct form { /* one template, and what it takes */
    struct jinja *t;
    struct str text;
    bool parts;      /* contents as lists of parts */
    bool only_parts; /* and no other way */
    bool text_args;  /* arguments of tool calls as texts */
};

struct chat_template {
    struct arena arena;
    struct form plain, tools; /* tools.t NULL: the plain one is for both */
    json_t *tokens;           /* bos_token and its like */
};

/* ---- trying a template out ---- */

static const char needle[] = "needle3141";

static bool finds(const struct chat_template *c, const struct form *f, json_t *messages,
                  struct str what, struct str never)
{
    json_t *vars = json_deep_copy(c->tokens);
    struct buf out = { 0 };
    bool found;

    json_object_set_new(vars, "messages", messages);
    json_object_set_new(vars, "add_generation_prompt", json_true());
    found = jinja_render(f->t, vars, NULL, &out, NULL) == OK &&
            str_find(buf_str(&out), what) >= 0 && (!never.n || str_find(buf_str(&out), never) < 0);
    buf_release(&out);
    json_decref(vars);
    return found;
}

static void try_contents(const struct chat_template *c, struct form *f)
{
    bool text = finds(c, f, json_pack("[{s:s, s:s}]", "role", "user", "content", needle),
                      str_c(needle), STR(""));

    f->parts = finds(c, f,
                     json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type", "text",
                               "text", needle),
                     str_c(needle), STR("'type'"));
    if (f->parts) /* written out as JSON is not understood either */
        f->parts = finds(c, f,
                         json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type",
                                   "text", "text", needle),
                         str_c(needle), STR("\"type\""));
    f->only_parts = f->parts && !text;
}

static json_t *call_talk(json_t *arguments)
{
    return json_pack("[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:o}}]}, {s:s, s:s, s:s, s:s}]",
                     "role", "user", "content", "hi", "role", "assistant", "content", "",
                     "tool_calls", "id", "call00001", "type", "function", "function", "name", "f",
                     "arguments", arguments, "role", "tool", "content", "x", "tool_call_id",
                     "call00001", "name", "f");
}

/* As objects, which most take, unless it is only right as text. */
static void try_arguments(const struct chat_template *c, struct form *f)
{
    struct str quoted = STR("{'needle3141'");
    char text[64];

    if (finds(c, f, call_talk(json_pack("{s:s}", needle, "v")), str_c(needle), quoted)) return;
    snprintf(text, sizeof text, "{\"%s\": \"v\"}", needle);
    f->text_args = finds(c, f, call_talk(json_string(text)), str_c(text), STR(""));
}

/* ---- opening ---- */

static int open_form(struct chat_template *c, struct form *f, struct str text, const char *name,
                     struct err *e)
{
    int rc = jinja_open(&f->t, text, name, e);

    if (rc != OK) return rc;
    f->text = arena_str(&c->arena, text);
    try_contents(c, f);
    try_arguments(c, f);
    return OK;
}

static void put_token(json_t *to, const char *name, struct str piece)
{
    if (piece.p) json_object_set_new(to, name, json_stringn(piece.p, piece.n));
}

int chat_template_open(struct chat_template **out, const struct chat_template_source *src,
                       struct err *e)
{
    struct chat_template *c = mem_new(struct chat_template);
    const char *name = src->name ? src->name : "chat template";
    int rc;

    c->tokens = json_object();
    put_token(c->tokens, "bos_token", src->bos);
    put_token(c->tokens, "eos_token", src->eos);
    put_token(c->tokens, "unk_token", src->unk);
    put_token(c->tokens, "pad_token", src->pad);
    if (!src->text.n) {
        rc = err_set(e, E_NOTFOUND, "the model has no chat template");
        goto out;
    }
    if ((rc = open_form(c, &c->plain, src->text, name, e)) != OK) goto out;
    if (src->tools.n && (rc = open_form(c, &c->tools, src->tools, name, e)) != OK) goto out;
    *out = c;
    c = NULL;
out:
    chat_template_close(c);
    return rc;
}

void chat_template_close(struct chat_template *c)
{
    if (!c) return;
    jinja_close(c->plain.t);
    jinja_close(c->tools.t);
    json_decref(c->tokens);
    arena_release(&c->arena);
    mem_free(c);
}

static const struct form *form_for(const struct chat_template *c, bool tools)
{
    return tools && c->tools.t ? &c->tools : &c->plain;
}

struct str chat_template_text(const struct chat_template *c, bool tools)
{
    return form_for(c, tools)->text;
}
bool chat_template_takes_tools(const struct chat_template *c)
{
    return jinja_mentions(form_for(c, true)->t, "tools");
}

/* ---- messages as the template takes them ---- */

/* A list of parts of text as one text; NULL: something else is in it. */
static json_t *joined(const json_t *parts)
{
    struct buf all = { 0 };
    json_t *part, *out = NULL;
    size_t i;

    json_array_foreach ((json_t *)parts, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text)) goto out;
        buf_add(&all, json_string_value(text), json_string_length(text));
    }
    out = json_stringn(all.p ? all.p : "", all.n);
out:
    buf_release(&all);
    return out;
}

static void fit_content(const struct form *f, json_t *msg)
{
    json_t *content = json_object_get(msg, "content"), *other = NULL;

    if (json_is_array(content) && !f->parts) other = joined(content);
    if (json_is_string(content) && f->only_parts)
        other = json_pack("[{s:s, s:O}]", "type", "text", "text", content);
    if (other) json_object_set_new(msg, "content", other);
}

static void fit_arguments(const struct form *f, json_t *call)
{
    json_t *fn = json_object_get(call, "function"), *args = json_object_get(fn, "arguments"),
           *other = NULL;
    char *text;

    if (json_is_string(args) && !f->text_args) {
        other = json_loadb(json_string_value(args), json_string_length(args), JSON_ALLOW_NUL, NULL);
    } else if (json_is_object(args) && f->text_args && (text = json_dumps(args, 0))) {
        other = json_string(text);
        free(text);
    }
    if (other) json_object_set_new(fn, "arguments", other);
}

static json_t *fitted(const struct form *f, const json_t *messages)
{
    json_t *all = json_deep_copy(messages), *msg, *call;
    size_t i, k;

    json_array_foreach (all, i, msg) {
        fit_content(f, msg);
        json_array_foreach (json_object_get(msg, "tool_calls"), k, call) fit_arguments(f, call);
    }
    return all;
}

/* ---- rendering ---- */

static json_t *variables(const struct chat_template *c, const struct form *f,
                         const struct chat_template_input *ask)
{
    json_t *vars = json_deep_copy(c->tokens);

    json_object_set_new(vars, "messages", fitted(f, ask->messages));
    json_object_set_new(vars, "tools",
                        ask->tools ? json_incref((json_t *)ask->tools) : json_null());
    json_object_set_new(vars, "documents",
                        ask->documents ? json_incref((json_t *)ask->documents) : json_null());
    json_object_set_new(vars, "add_generation_prompt",
                        json_boolean(!ask->no_generation_prompt && !ask->continue_final));
    if (ask->kwargs) json_object_update(vars, (json_t *)ask->kwargs);
    return vars;
}

static struct str last_text(const json_t *messages)
{
    const json_t *v =
        json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");

    for (size_t i = json_array_size(v); json_is_array(v) && i-- > 0;) {
        const json_t *text = json_object_get(json_array_get(v, i), "text");
        if (json_is_string(text)) v = text;
    }
    return json_is_string(v) ? str_of(json_string_value(v), json_string_length(v)) : STR("");
}

/* Leaves off what the template wrote behind the last message. */
static int cut_end(const json_t *messages, struct buf *out, size_t from, struct err *e)
{
    struct str text = last_text(messages), trimmed = str_trim(text),
               seen = str_skip(buf_str(out), from);
    size_t at = seen.n, lead = (size_t)(trimmed.p - text.p);

    if (!trimmed.n)
        return err_set(e, E_INVALID, "the last message is empty, so it cannot be gone on with");
    for (at = seen.n - (seen.n < trimmed.n ? seen.n : trimmed.n);; at--) {
        if (str_starts(str_skip(seen, at), trimmed)) break;
        if (at == 0)
            return err_set(
                e, E_INVALID,
                "the chat template changes the last message, so it cannot be gone on with");
    }
    out->n = from + at + trimmed.n;
    if (str_starts(str_skip(seen, at), str_skip(text, lead))) out->n = from + at + text.n - lead;
    return OK;
}

/* As transformers has it, what is not given is None; a template that only works where it is not
 * there at all is helped. */
static int render_vars(const struct form *f, const struct chat_template_input *ask, json_t *vars,
                       struct buf *out, struct err *e)
{
    int rc = jinja_render(f->t, vars, NULL, out, e);

    if (rc == OK || rc == E_INVALID || (ask->tools && ask->documents)) return rc;
    if (!ask->tools) json_object_del(vars, "tools");
    if (!ask->documents) json_object_del(vars, "documents");
    return jinja_render(f->t, vars, NULL, out, NULL) == OK ? OK : rc;
}

int chat_template_render(const struct chat_template *c, const struct chat_template_input *ask,
                         struct buf *out, struct err *e)
{
    const struct form *f = form_for(c, ask->tools != NULL);
    json_t *vars = variables(c, f, ask);
    size_t from = out->n;
    int rc = render_vars(f, ask, vars, out, e);

    if (rc == OK && ask->continue_final) rc = cut_end(ask->messages, out, from, e);
    if (rc != OK && rc != E_INVALID) {
        if (e) e->code = E_INVALID;
        rc = E_INVALID;
    }
    if (rc != OK) out->n = from;
    json_decref(vars);
    return rc;
}
