/* chattemplate.c - probing, adapting messages, rendering.
 *
 * The shapes that templates of public models expect, and how the probes tell them apart:
 *
 *     {{ message.content }}                          contents as strings
 *     {% for p in message.content %}{{ p.text }}     contents as parts only: strings render nothing
 *     {% if message.content is string %}...          both
 *     {{ call.function.arguments | tojson }}         arguments as objects: most templates
 *     {{ call.function.arguments }}                  as text: an object would print as Python
 *     {% if message.content is none %}...calls...    calls only beside a content that is null */
#include "jinja/chattemplate.h"

#include "base/arena.h"
#include "base/jsonr.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>

struct variant { /* one template, and the shape of messages it understands */
    struct jinja *t;
    struct str text;
    bool parts;         /* contents as lists of parts */
    bool only_parts;    /* and not as strings */
    bool text_args;     /* arguments of tool calls as JSON text, not as objects */
    bool null_content;  /* messages with tool calls are written only if their content is null */
    bool changes_lists; /* with append() or pop(), as some templates of Kimi K2 do */
};

struct chat_template {
    struct arena arena;          /* the texts of the variants */
    struct variant plain, tools; /* tools.t NULL: plain serves both */
    json_t *tokens;              /* an object: bos_token, eos_token, unk_token, pad_token */
};

/* The sandbox of transformers refuses append() and pop(), so that the template fails there. Here it
 * may have them, after an error. */
static int render_template(const struct variant *f, const json_t *vars,
                           const struct jinja_limits *limits, struct buf *out, struct err *e)
{
    struct jinja_limits more = limits ? *limits : (struct jinja_limits){ 0 };
    int rc = jinja_render(f->t, vars, limits, out, e);

    if (rc != E_FORMAT || !f->changes_lists) return rc;
    more.change_lists = true;
    return jinja_render(f->t, vars, &more, out, e);
}

/* ---- probing what a template understands ---- */

/* A word that no template contains. A probe conversation has it in one place; if the rendered text
 * has it too, the template understood that place. */
static const char needle[] = "needle3141";

/* Renders a probe; takes over `messages` (NULL: no memory). *found: the text contains `what` and
 * not `never` (empty: anything is allowed). A template that cannot render the probe has not found
 * it; only E_NOMEM is an error. */
static int probe_messages(const struct chat_template *c, const struct variant *f, json_t *messages,
                          struct str what, struct str never, bool *found, struct err *e)
{
    json_t *vars = json_deep_copy(c->tokens);
    struct buf out = { 0 };
    bool set = json_object_set_new(vars, "messages", messages) == 0;
    int rc = E_NOMEM;

    *found = false;
    if (set && json_object_set_new(vars, "add_generation_prompt", json_true()) == 0)
        rc = render_template(f, vars, NULL, &out, NULL);
    if (rc == OK)
        *found =
            str_find(buf_str(&out), what) >= 0 && (!never.n || str_find(buf_str(&out), never) < 0);
    buf_release(&out);
    json_decref(vars);
    return rc == E_NOMEM ? err_nomem(e, "probing a chat template") : OK;
}

static json_t *make_parts_probe(void)
{
    return json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type", "text", "text",
                     needle);
}

/* A template that prints the whole list, as a Python or as a JSON literal, does not understand it:
 * the key "type" gives that away. */
static int probe_contents(const struct chat_template *c, struct variant *f, struct err *e)
{
    json_t *text = json_pack("[{s:s, s:s}]", "role", "user", "content", needle);
    struct str what = str_c(needle);
    bool takes_text;
    int rc = probe_messages(c, f, text, what, STR(""), &takes_text, e);

    if (rc == OK) rc = probe_messages(c, f, make_parts_probe(), what, STR("'type'"), &f->parts, e);
    if (rc == OK && f->parts)
        rc = probe_messages(c, f, make_parts_probe(), what, STR("\"type\""), &f->parts, e);
    f->only_parts = f->parts && !takes_text;
    return rc;
}

/* A conversation with a tool call; takes over `arguments`. content NULL: null. */
static json_t *make_call_probe(const char *content, json_t *arguments)
{
    return json_pack(
        "[{s:s, s:s}, {s:s, s:s?, s:[{s:s, s:s, s:{s:s, s:o}}]}, {s:s, s:s, s:s, s:s}]", "role",
        "user", "content", "hi", "role", "assistant", "content", content, "tool_calls", "id",
        "call00001", "type", "function", "function", "name", "f", "arguments", arguments, "role",
        "tool", "content", "x", "tool_call_id", "call00001", "name", "f");
}

/* *found: the template writes a call beside this content. Most templates take arguments as objects
 * and write them with tojson. Text is used only where the object comes out wrong (as a Python
 * literal) or not at all, and the text comes out right. */
static int probe_call(const struct chat_template *c, struct variant *f, const char *content,
                      bool *found, struct err *e)
{
    struct str python_literal = STR("{'needle3141'");
    json_t *object = make_call_probe(content, json_pack("{s:s}", needle, "v")), *call;
    char text[64];
    int rc = probe_messages(c, f, object, str_c(needle), python_literal, found, e);

    if (rc != OK || *found) return rc;
    snprintf(text, sizeof text, "{\"%s\": \"v\"}", needle);
    call = make_call_probe(content, json_string(text));
    rc = probe_messages(c, f, call, str_c(text), STR(""), &f->text_args, e);
    *found = f->text_args;
    return rc;
}

/* Templates of DeepSeek V3 and R1 write calls only where the content is null. */
static int probe_arguments(const struct chat_template *c, struct variant *f, struct err *e)
{
    bool found;
    int rc = probe_call(c, f, "", &found, e);

    if (rc != OK || found) return rc;
    return probe_call(c, f, NULL, &f->null_content, e);
}

/* ---- opening ---- */

/* Parses one template and probes it. */
static int open_variant(struct chat_template *c, struct variant *f, struct str text,
                        const char *name, struct err *e)
{
    int rc = jinja_open(&f->t, text, name, e);

    if (rc != OK) return rc;
    f->text = arena_str(&c->arena, text);
    if ((rc = arena_check(&c->arena, e)) != OK) return rc;
    f->changes_lists = str_find(text, STR(".append(")) >= 0 || str_find(text, STR(".pop(")) >= 0;
    if ((rc = probe_contents(c, f, e)) != OK) return rc;
    return probe_arguments(c, f, e);
}

/* A token that is not UTF-8 cannot be a JSON string: the template sees it as undefined. */
static bool add_token(json_t *tokens, const char *name, struct str piece)
{
    if (!piece.p || utf8_bad(piece) >= 0) return true;
    return json_object_set_new(tokens, name, json_stringn(piece.p, piece.n)) == 0;
}

/* The special tokens as variables; names are those of transformers. */
static int make_tokens(struct chat_template *c, const struct chat_template_source *src,
                       struct err *e)
{
    if ((c->tokens = json_object()) && add_token(c->tokens, "bos_token", src->bos) &&
        add_token(c->tokens, "eos_token", src->eos) &&
        add_token(c->tokens, "unk_token", src->unk) && add_token(c->tokens, "pad_token", src->pad))
        return OK;
    return err_nomem(e, "the special tokens of a chat template");
}

int chat_template_open(struct chat_template **out, const struct chat_template_source *src,
                       struct err *e)
{
    struct chat_template *c = mem_new(struct chat_template);
    const char *name = src->name ? src->name : "chat template";
    int rc;

    if (!c) return err_nomem(e, "a chat template");
    if ((rc = make_tokens(c, src, e)) != OK) goto out;
    if (!src->text.n) {
        rc = err_set(e, E_NOTFOUND, "the model has no chat template");
        goto out;
    }
    if ((rc = open_variant(c, &c->plain, src->text, name, e)) != OK) goto out;
    if (src->tools.n && (rc = open_variant(c, &c->tools, src->tools, name, e)) != OK) goto out;
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

/* Requests with tools use the tool template if the model has one. */
static const struct variant *select_variant(const struct chat_template *c, bool tools)
{
    return tools && c->tools.t ? &c->tools : &c->plain;
}

struct str chat_template_text(const struct chat_template *c, bool tools)
{
    return select_variant(c, tools)->text;
}

bool chat_template_takes_tools(const struct chat_template *c)
{
    return jinja_mentions(select_variant(c, true)->t, "tools");
}

/* ---- messages in the shape the template understands ---- */

/* Replaces obj[key] by value, which it takes over; NULL: no memory. */
static bool replace_value(json_t *obj, const char *key, json_t *value)
{
    return json_object_set_new(obj, key, value) == 0;
}

/* Whether all parts have a text, so that they can be joined to one string. */
static bool is_all_text(const json_t *parts)
{
    for (size_t i = 0; i < json_array_size(parts); i++)
        if (!json_is_string(json_object_get(json_array_get(parts, i), "text"))) return false;
    return true;
}

/* The texts of all parts as one string; NULL: no memory. */
static json_t *join_parts(const json_t *parts)
{
    struct buf all = { 0 };
    json_t *out = NULL;

    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        buf_add(&all, json_string_value(text), json_string_length(text));
    }
    if (!all.failed) out = json_stringn(all.p ? all.p : "", all.n);
    buf_release(&all);
    return out;
}

/* Lists of parts become a string where the template does not understand lists, and strings become
 * a list of one part where it understands nothing else. Parts without a text, such as images, are
 * left alone. */
static bool adapt_content(const struct variant *f, json_t *msg)
{
    json_t *content = json_object_get(msg, "content");

    if (f->null_content && json_is_string(content) && !json_string_length(content) &&
        json_array_size(json_object_get(msg, "tool_calls")))
        return replace_value(msg, "content", json_null());
    if (json_is_array(content) && !f->parts && is_all_text(content))
        return replace_value(msg, "content", join_parts(content));
    if (json_is_string(content) && f->only_parts)
        return replace_value(msg, "content",
                             json_pack("[{s:s, s:O}]", "type", "text", "text", content));
    return true;
}

/* Arguments that are not valid JSON stay text: the template may print them. */
static bool adapt_arguments(const struct variant *f, json_t *call)
{
    json_t *fn = json_object_get(call, "function"), *args = json_object_get(fn, "arguments");
    json_error_t why;
    json_t *parsed;
    struct buf text = { 0 };
    bool ok;

    if (json_is_string(args) && !f->text_args) {
        parsed = jsonr_load(str_of(json_string_value(args), json_string_length(args)),
                            JSON_ALLOW_NUL, &why);
        if (!parsed) return json_error_code(&why) != json_error_out_of_memory;
        return replace_value(fn, "arguments", parsed);
    }
    /* Arguments are in the right shape already. */
    if (!json_is_object(args) || !f->text_args) return true;
    jsonr_dump(&text, args, 0);
    ok = !text.failed && replace_value(fn, "arguments", json_stringn(text.p, text.n));
    buf_release(&text);
    return ok;
}

/* A deep copy of the messages in the shape that the template understands; NULL: no memory. */
static json_t *adapt_messages(const struct variant *f, const json_t *messages)
{
    json_t *all = json_deep_copy(messages), *msg, *call;
    bool ok = all != NULL;
    size_t i, k;

    json_array_foreach (all, i, msg) {
        ok = ok && adapt_content(f, msg);
        json_array_foreach (json_object_get(msg, "tool_calls"), k, call)
            ok = ok && adapt_arguments(f, call);
    }
    if (ok) return all;
    json_decref(all);
    return NULL;
}

/* ---- rendering ---- */

static json_t *share_or_null(const json_t *v) { return v ? json_incref((json_t *)v) : json_null(); }

/* The variables of apply_chat_template; NULL: no memory. */
static json_t *make_variables(const struct chat_template *c, const struct variant *f,
                              const struct chat_template_input *in)
{
    json_t *vars = json_deep_copy(c->tokens);
    bool opens = !in->no_generation_prompt && !in->continue_final;

    if (replace_value(vars, "messages", adapt_messages(f, in->messages)) &&
        replace_value(vars, "tools", share_or_null(in->tools)) &&
        replace_value(vars, "documents", share_or_null(in->documents)) &&
        replace_value(vars, "add_generation_prompt", json_boolean(opens)) &&
        (!in->kwargs || json_object_update(vars, (json_t *)in->kwargs) == 0))
        return vars;
    json_decref(vars);
    return NULL;
}

/* The text of the last message: its content, or the last part of that with a text. */
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

/* Cuts the prompt, out from byte `from` on, behind the text of the last message. Templates may trim
 * messages, so the last occurrence of the trimmed text counts; white space around it stays if the
 * template kept it. */
static int cut_after_last_message(const json_t *messages, struct buf *out, size_t from,
                                  struct err *e)
{
    struct str text = last_text(messages), trimmed = str_trim(text),
               prompt = str_skip(buf_str(out), from);
    size_t at, lead = (size_t)(trimmed.p - text.p);

    if (!trimmed.n)
        return err_set(e, E_INVALID,
                       "continue_final_message: the last message is empty and cannot be continued");
    for (at = prompt.n - (prompt.n < trimmed.n ? prompt.n : trimmed.n);; at--) {
        if (str_starts(str_skip(prompt, at), trimmed)) break;
        if (at == 0)
            return err_set(e, E_INVALID,
                           "continue_final_message: the chat template changes the text of the last "
                           "message, so it cannot be continued");
    }
    out->n = from + at + trimmed.n;
    if (str_starts(str_skip(prompt, at), str_skip(text, lead))) out->n = from + at + text.n - lead;
    return OK;
}

/* By no fault of the template or the messages. */
static bool is_ended(int rc) { return rc == E_NOMEM || rc == E_CANCELLED || rc == E_DEADLINE; }

/* transformers defines absent tools and documents as None. Some templates fail on None and work
 * when the variable is undefined: after an error of that kind they get a second chance. */
static int render_vars(const struct variant *f, const struct chat_template_input *in, json_t *vars,
                       struct buf *out, struct err *e)
{
    int rc = render_template(f, vars, in->limits, out, e), again;

    if (rc == OK || rc == E_INVALID || is_ended(rc) || (in->tools && in->documents)) return rc;
    if (!in->tools) json_object_del(vars, "tools");
    if (!in->documents) json_object_del(vars, "documents");
    again = render_template(f, vars, in->limits, out, NULL);
    if (again == E_NOMEM) return err_nomem(e, "rendering a chat template");
    return again == OK ? OK : rc;
}

int chat_template_render(const struct chat_template *c, const struct chat_template_input *in,
                         struct buf *out, struct err *e)
{
    const struct variant *f = select_variant(c, in->tools != NULL);
    json_t *vars = make_variables(c, f, in);
    size_t from = out->n;
    int rc;

    if (!vars) return err_nomem(e, "the variables of a chat template");
    rc = render_vars(f, in, vars, out, e);
    if (rc == OK && in->continue_final) rc = cut_after_last_message(in->messages, out, from, e);
    if (rc != OK && !is_ended(rc)) { /* for the caller all other errors are one */
        if (e) e->code = E_INVALID;
        rc = E_INVALID;
    }
    /* What was rendered before the failure is dropped. */
    if (rc != OK) out->n = from;
    json_decref(vars);
    return rc;
}
