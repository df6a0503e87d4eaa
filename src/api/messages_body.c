/* messages_body.c - the body of POST /v1/messages → the conversation.
 *
 * A user's message with tool results becomes a message of role tool for each, and one of the user for
 * the rest. cache_control is accepted everywhere: the prefix cache needs no marks. System blocks that
 * begin with "x-anthropic-" carry a billing line of Claude Code that differs in every request: they are
 * left out, since the cache could never use a prompt that begins with one. */
#include "api/messages_impl.h"

#include "api/convo.h"
#include "base/buf.h"
#include "base/jsonr.h"

#include <limits.h>
#include <stdio.h>

struct reading {
    struct call *c;
    struct body_reader r;
    struct messages *s;
    struct convo convo;
    json_t *out;
};

static int nomem(struct reading *g) { return err_nomem(g->r.err, "the body of the request"); }

static int set_member(struct reading *g, const char *key, json_t *value)
{
    return convo_set(g->out, key, value) ? OK : nomem(g);
}

static struct str type_of(const json_t *block)
{
    const json_t *type = json_object_get(block, "type");
    return json_is_string(type) ? body_str(type) : STR("");
}

/* ---- texts ---- */

/* A string, or a list of blocks with texts, joined into out with `between`. */
static int join_texts(struct reading *g, const char *param, const json_t *v, const char *between,
                      struct buf *out)
{
    char at[PARAM_MAX];
    int rc;

    if (json_is_string(v)) {
        buf_put_str(out, body_str(v));
        return OK;
    }
    if (!json_is_array(v))
        return body_refuse(&g->r, param, "must be a string or a list of blocks, but it is %s",
                           body_type(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *block = json_array_get(v, i), *text = json_object_get(block, "text");
        struct str type = type_of(block);
        if ((rc = call_note_item(g->c, g->r.err)) != OK) return rc;
        snprintf(at, sizeof at, "%.60s[%zu]", param, i);
        if (!str_is(type, "text"))
            return body_refuse(&g->r, at, "is of type \"%.*s\", but only text is supported",
                               STR_ARG(str_take(type, 40)));
        if (!json_is_string(text)) return body_refuse(&g->r, at, "must have a text");
        if (str_starts(body_str(text), STR("x-anthropic-"))) continue;
        if (out->n) buf_puts(out, between);
        buf_put_str(out, body_str(text));
    }
    return OK;
}

static int read_system(struct reading *g, const json_t *v)
{
    struct buf text = { 0 };
    int rc;

    if (!v || json_is_null(v)) return OK;
    rc = join_texts(g, "system", v, "\n\n", &text);
    if (rc == OK) rc = buf_check(&text, g->r.err);
    if (rc == OK && text.n) convo_add_text(&g->convo, STR("system"), buf_str(&text));
    buf_release(&text);
    return rc;
}

/* ---- content blocks ---- */

static int read_text(struct reading *g, const char *at, const json_t *block, const char *key,
                     struct str *out)
{
    const json_t *v = json_object_get(block, key);
    char param[PARAM_MAX];

    snprintf(param, sizeof param, "%.70s.%s", at, key);
    if (!json_is_string(v)) return body_refuse(&g->r, param, "must be a string");
    *out = body_str(v);
    return OK;
}

static int read_tool_use(struct reading *g, const char *at, const json_t *block)
{
    const json_t *input = json_object_get(block, "input");
    struct buf args = { 0 };
    struct str id, name;
    char param[PARAM_MAX];
    int rc;

    if ((rc = read_text(g, at, block, "id", &id)) != OK ||
        (rc = read_text(g, at, block, "name", &name)) != OK)
        return rc;
    snprintf(param, sizeof param, "%.70s.input", at);
    if (input && !json_is_object(input))
        return body_refuse(&g->r, param, "must be an object, but it is %s", body_type(input));
    if (input) jsonr_dump(&args, input, JSON_COMPACT);
    if ((rc = buf_check(&args, g->r.err)) == OK)
        convo_add_call(&g->convo, id, name, input ? buf_str(&args) : STR("{}"));
    buf_release(&args);
    return rc;
}

static int read_tool_result(struct reading *g, const char *at, const json_t *block)
{
    const json_t *content = json_object_get(block, "content");
    struct buf text = { 0 };
    char param[PARAM_MAX];
    struct str id;
    int rc = read_text(g, at, block, "tool_use_id", &id);

    snprintf(param, sizeof param, "%.70s.content", at);
    if (json_is_true(json_object_get(block, "is_error"))) buf_puts(&text, "Error: ");
    if (rc == OK && content && !json_is_null(content))
        rc = join_texts(g, param, content, "", &text);
    if (rc == OK) rc = buf_check(&text, g->r.err);
    if (rc == OK) convo_add_result(&g->convo, id, STR(""), buf_str(&text));
    buf_release(&text);
    return rc;
}

/* text: the texts of a user's message so far, which follow its tool results. */
static int read_block(struct reading *g, const char *at, const json_t *block, bool assistant,
                      struct buf *text)
{
    struct str type = type_of(block), s;
    int rc;

    if (!json_is_object(block))
        return body_refuse(&g->r, at, "must be an object, but it is %s", body_type(block));
    if (str_is(type, "text")) {
        if ((rc = read_text(g, at, block, "text", &s)) != OK) return rc;
        if (assistant) convo_add_text(&g->convo, STR("assistant"), s);
        else if (text->n) buf_puts(text, "\n\n"), buf_put_str(text, s);
        else buf_put_str(text, s);
        return OK;
    }
    if (assistant && str_is(type, "tool_use")) return read_tool_use(g, at, block);
    if (assistant && str_is(type, "thinking")) {
        if ((rc = read_text(g, at, block, "thinking", &s)) == OK && s.n)
            convo_add_reasoning(&g->convo, s);
        return rc;
    }
    if (assistant && str_is(type, "redacted_thinking")) return OK; /* nothing in it is readable */
    if (!assistant && str_is(type, "tool_result")) return read_tool_result(g, at, block);
    return body_refuse(&g->r, at, "is of type \"%.*s\", which is not supported in this message",
                       STR_ARG(str_take(type, 40)));
}

static int read_message(struct reading *g, size_t i, const json_t *msg)
{
    const json_t *role = json_object_get(msg, "role"), *content = json_object_get(msg, "content");
    struct str is = json_is_string(role) ? body_str(role) : STR("");
    bool assistant = str_is(is, "assistant"), system = str_is(is, "system");
    struct buf text = { 0 };
    char at[PARAM_MAX];
    int rc = OK;

    snprintf(at, sizeof at, "messages[%zu].role", i);
    if (!assistant && !system && !str_is(is, "user"))
        return body_refuse(&g->r, at, "must be user or assistant");
    snprintf(at, sizeof at, "messages[%zu].content", i);
    if (json_is_string(content)) {
        convo_add_text(&g->convo, is, body_str(content));
        return OK;
    }
    if (!json_is_array(content))
        return body_refuse(&g->r, at, "must be a string or a list of blocks, but it is %s",
                           body_type(content));
    if (assistant) convo_end_turn(&g->convo);
    for (size_t k = 0; k < json_array_size(content) && rc == OK; k++) {
        snprintf(at, sizeof at, "messages[%zu].content[%zu]", i, k);
        rc = call_note_item(g->c, g->r.err);
        if (rc == OK) rc = read_block(g, at, json_array_get(content, k), assistant, &text);
    }
    if (rc == OK) rc = buf_check(&text, g->r.err);
    if (rc == OK && text.n) convo_add_text(&g->convo, is, buf_str(&text));
    buf_release(&text);
    return rc;
}

static int read_messages(struct reading *g, const json_t *v)
{
    json_t *messages;
    int rc = OK;

    if (!json_is_array(v) || !json_array_size(v))
        return body_refuse(&g->r, "messages", "must be a list of at least one message");
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        rc = call_note_item(g->c, g->r.err);
        if (rc == OK) rc = read_message(g, i, json_array_get(v, i));
    }
    if (rc == OK) rc = convo_take(&g->convo, &messages, g->r.err);
    return rc == OK ? set_member(g, "messages", messages) : rc;
}

/* An assistant's message at the end is a beginning that the model continues. */
static int continue_last(struct reading *g)
{
    const json_t *all = json_object_get(g->out, "messages"),
                 *last = json_array_get(all, json_array_size(all) - 1),
                 *role = json_object_get(last, "role");

    if (!json_is_string(role) || !str_is(body_str(role), "assistant") ||
        json_object_get(last, "tool_calls") ||
        !json_string_length(json_object_get(last, "content")))
        return OK;
    return set_member(g, "continue_final_message", json_true());
}

/* ---- tools ---- */

/* Tools with another type than "custom" are run by Anthropic: they are skipped. */
static int read_tools(struct reading *g, const json_t *v)
{
    json_t *tools;
    char at[PARAM_MAX];

    if (!v || json_is_null(v)) return OK;
    if (!json_is_array(v))
        return body_refuse(&g->r, "tools", "must be a list, but it is %s", body_type(v));
    if (!(tools = json_array()) || set_member(g, "tools", tools) != OK) return nomem(g);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *tool = json_array_get(v, i), *name = json_object_get(tool, "name"),
                     *schema = json_object_get(tool, "input_schema");
        struct str type = type_of(tool);
        if (type.n && !str_is(type, "custom")) {
            call_note_skipped(g->c, type);
            continue;
        }
        snprintf(at, sizeof at, "tools[%zu].name", i);
        if (!json_is_string(name) || !json_string_length(name))
            return body_refuse(&g->r, at, "must be a non-empty string");
        snprintf(at, sizeof at, "tools[%zu].input_schema", i);
        if (schema && !json_is_object(schema))
            return body_refuse(&g->r, at, "must be a JSON schema, but it is %s", body_type(schema));
        if (json_array_append_new(tools,
                                  convo_tool(body_str(name), json_object_get(tool, "description"),
                                             schema, json_object_get(tool, "strict"))) != 0)
            return nomem(g);
    }
    return OK;
}

static int read_tool_choice(struct reading *g, const json_t *v)
{
    const json_t *name = json_object_get(v, "name");
    struct str type = type_of(v);
    bool one = json_is_true(json_object_get(v, "disable_parallel_tool_use"));

    if (!v || json_is_null(v)) return OK;
    if (one && set_member(g, "parallel_tool_calls", json_false()) != OK) return nomem(g);
    if (str_is(type, "auto") || str_is(type, "none"))
        return set_member(g, "tool_choice", convo_string(type));
    if (str_is(type, "any")) return set_member(g, "tool_choice", json_string("required"));
    if (!str_is(type, "tool"))
        return body_refuse(&g->r, "tool_choice.type", "must be auto, any, tool or none");
    if (!json_is_string(name)) return body_refuse(&g->r, "tool_choice.name", "must be a string");
    return set_member(g, "tool_choice",
                      json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
}

/* ---- other members ---- */

static int read_stops(struct reading *g, const json_t *v)
{
    if (!v || json_is_null(v)) return OK;
    if (!json_is_array(v))
        return body_refuse(&g->r, "stop_sequences", "must be a list, but it is %s", body_type(v));
    if (json_array_size(v) > STOPS_MAX)
        return body_refuse(&g->r, "stop_sequences", "has %zu entries, but at most %d are allowed",
                           json_array_size(v), STOPS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *s = json_array_get(v, i);
        if (!json_is_string(s) || !json_string_length(s) || json_string_length(s) > STOP_BYTES_MAX)
            return body_refuse(&g->r, "stop_sequences",
                               "must be non-empty strings of at most %d bytes", STOP_BYTES_MAX);
        g->s->stops[g->s->n_stops++] = arena_str(&g->c->arena, body_str(s));
    }
    if (!json_array_size(v)) return OK;
    return set_member(g, "stop", json_incref((json_t *)v));
}

/* {"type":"enabled"|"disabled"|"adaptive"}: the template decides whether it can. */
static int read_thinking(struct reading *g, const json_t *v)
{
    struct str type = type_of(v);

    if (!v || json_is_null(v) || str_is(type, "adaptive")) return OK;
    if (!str_is(type, "enabled") && !str_is(type, "disabled"))
        return body_refuse(&g->r, "thinking.type", "must be enabled, disabled or adaptive");
    if (json_object_get(v, "budget_tokens"))
        params_note_ignored(&g->c->p, "thinking.budget_tokens");
    return set_member(g, "enable_thinking", json_boolean(str_is(type, "enabled")));
}

/* output_format, or output_config.format: {"type":"json_schema","schema":…} */
static int read_format(struct reading *g, const json_t *root)
{
    const json_t *config = json_object_get(root, "output_config"),
                 *f = json_object_get(root, "output_format"), *schema,
                 *effort = json_object_get(config, "effort");

    if (json_is_string(effort) &&
        set_member(g, "reasoning_effort", json_incref((json_t *)effort)) != OK)
        return nomem(g);
    if (!json_is_object(f)) f = json_object_get(config, "format");
    if (!f || json_is_null(f)) return OK;
    schema = json_object_get(f, "schema");
    if (!str_is(type_of(f), "json_schema"))
        return body_refuse(&g->r, "output_format.type", "must be \"json_schema\"");
    if (!json_is_object(schema))
        return body_refuse(&g->r, "output_format.schema", "must be a JSON schema");
    return set_member(
        g, "response_format",
        json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema));
}

static int read_limit(struct reading *g, const json_t *v)
{
    int64_t n;
    int rc;

    if (!v || json_is_null(v)) return OK;
    if ((rc = body_read_int(&g->r, "max_tokens", v, 1, INT_MAX, &n)) != OK) return rc;
    return set_member(g, "max_tokens", json_integer(n));
}

/* Members that the server cannot honour, and those that have no effect on it. */
static int copy_members(struct reading *g, json_t *root)
{
    static const char *const read[] = {
        "system",
        "messages",
        "tools",
        "tool_choice",
        "stop_sequences",
        "thinking",
        "metadata",
        "output_config",
        "output_format",
        "max_tokens",
        "service_tier",
        "betas",
        "mcp_servers",
        "container",
        "context_management",
        "anthropic_version",
        "cache_control",
        "speed",
        "inference_geo",
        "diagnostics",
    };
    static const char *const refused[] = { "mcp_servers", "container" };
    static const char *const ignored[] = { "service_tier", "speed", "inference_geo",
                                           "context_management" };
    const char *key;
    json_t *v;

    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        if ((v = json_object_get(root, ignored[i])) && !json_is_null(v))
            params_note_ignored(&g->c->p, ignored[i]);

    for (size_t i = 0; i < 2; i++) {
        v = json_object_get(root, refused[i]);
        if (v && !json_is_null(v) && !(json_is_array(v) && !json_array_size(v)))
            return body_refuse(&g->r, refused[i], "is not supported by this server: leave it out");
    }
    json_object_foreach (root, key, v) {
        bool known = false;
        for (size_t i = 0; i < sizeof read / sizeof *read; i++) known |= !strcmp(key, read[i]);
        if (!known && json_object_set(g->out, key, v) != 0) return nomem(g);
    }
    return OK;
}

static int read_all(struct reading *g, json_t *root)
{
    int rc;

    if ((rc = read_system(g, json_object_get(root, "system"))) != OK) return rc;
    if ((rc = read_messages(g, json_object_get(root, "messages"))) != OK) return rc;
    if ((rc = continue_last(g)) != OK) return rc;
    if ((rc = read_tools(g, json_object_get(root, "tools"))) != OK) return rc;
    if ((rc = read_tool_choice(g, json_object_get(root, "tool_choice"))) != OK) return rc;
    if ((rc = read_stops(g, json_object_get(root, "stop_sequences"))) != OK) return rc;
    if ((rc = read_thinking(g, json_object_get(root, "thinking"))) != OK) return rc;
    if ((rc = read_format(g, root)) != OK) return rc;
    if ((rc = read_limit(g, json_object_get(root, "max_tokens"))) != OK) return rc;
    if ((rc = copy_members(g, root)) != OK) return rc;
    return arena_check(&g->c->arena, g->r.err);
}

int messages_translate(struct call *c, json_t **out, struct err *e)
{
    struct reading g = { .c = c,
                         .r = { .arena = &c->arena, .err = e, .param = c->p.param },
                         .s = arena_new(&c->arena, struct messages),
                         .out = json_object() };
    int rc = g.s && g.out ? read_all(&g, c->source) : nomem(&g);

    c->state = g.s;
    convo_release(&g.convo);
    if (rc == OK) *out = g.out;
    else json_decref(g.out);
    return rc;
}
