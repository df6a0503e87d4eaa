/* responses_body.c - the body of POST /v1/responses → the conversation.
 *
 *     instructions, history of previous_response_id, input ─► messages
 *     tools, tool_choice, text.format, reasoning, include  ─► members of a chat completion
 *
 * Members that a chat completion has under the same name are passed on and checked there. Tools that
 * the server would have to run itself (web_search, ...) are skipped: agents always send them. */
#include "api/responses_impl.h"

#include "api/respstore.h"
#include "base/jsonr.h"
#include "base/jsonw.h"

#include <limits.h>
#include <stdio.h>

struct reading {
    struct call *c;
    struct body_reader r;
    struct responses *s;
    struct convo convo;
    json_t *out;     /* the chat completion */
    json_t *tools;   /* of it */
    int depth;       /* of item references */
    json_t *stored;  /* the response that was referred to last; NULL: none */
    size_t referred; /* bytes that references have brought in */
};

static int nomem(struct reading *g) { return err_nomem(g->r.err, "the body of the request"); }

static int set_member(struct reading *g, const char *key, json_t *value)
{
    return convo_set(g->out, key, value) ? OK : nomem(g);
}

/* ---- input items ---- */

static bool is_text_part(struct str type)
{
    return str_is(type, "input_text") || str_is(type, "output_text") || str_is(type, "text") ||
           str_is(type, "summary_text") || str_is(type, "reasoning_text");
}

/* A string, or a list of parts with texts: all of them joined into out. */
static int join_texts(struct reading *g, const char *param, const json_t *v, struct buf *out)
{
    char at[PARAM_MAX];
    int rc;

    if (json_is_string(v)) {
        buf_put_str(out, body_str(v));
        return OK;
    }
    if (!json_is_array(v))
        return body_refuse(&g->r, param, "must be a string or a list of parts, but it is %s",
                           body_type(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *part = json_array_get(v, i), *type = json_object_get(part, "type");
        const json_t *text = json_object_get(part, "text");
        struct str is = json_is_string(type) ? body_str(type) : STR("");
        if ((rc = call_note_item(g->c, g->r.err)) != OK) return rc;
        snprintf(at, sizeof at, "%.60s[%zu]", param, i);
        if (str_is(is, "refusal")) text = json_object_get(part, "refusal");
        else if (!is_text_part(is))
            return body_refuse(&g->r, at, "is of type \"%.*s\", but only text is supported",
                               STR_ARG(str_take(is, 40)));
        if (!json_is_string(text)) return body_refuse(&g->r, at, "must have a text");
        buf_put_str(out, body_str(text));
    }
    return OK;
}

static int read_message_item(struct reading *g, const char *at, const json_t *item)
{
    const json_t *role = json_object_get(item, "role");
    struct str is = json_is_string(role) ? body_str(role) : STR("");
    struct buf text = { 0 };
    char param[PARAM_MAX];
    int rc;

    snprintf(param, sizeof param, "%.60s.role", at);
    if (!str_is(is, "user") && !str_is(is, "assistant") && !str_is(is, "system") &&
        !str_is(is, "developer"))
        return body_refuse(&g->r, param, "must be user, assistant, system or developer");
    snprintf(param, sizeof param, "%.60s.content", at);
    rc = join_texts(g, param, json_object_get(item, "content"), &text);
    if (rc == OK) rc = buf_check(&text, g->r.err);
    if (rc == OK) convo_add_text(&g->convo, is, buf_str(&text));
    buf_release(&text);
    return rc;
}

/* A string member that must be there. */
static int read_text(struct reading *g, const char *at, const json_t *item, const char *key,
                     struct str *out)
{
    const json_t *v = json_object_get(item, key);
    char param[PARAM_MAX];

    snprintf(param, sizeof param, "%.60s.%s", at, key);
    if (!json_is_string(v)) return body_refuse(&g->r, param, "must be a string");
    *out = body_str(v);
    return OK;
}

static int read_call_item(struct reading *g, const char *at, const json_t *item)
{
    struct str id, name, args;
    int rc;

    if ((rc = read_text(g, at, item, "call_id", &id)) != OK ||
        (rc = read_text(g, at, item, "name", &name)) != OK ||
        (rc = read_text(g, at, item, "arguments", &args)) != OK)
        return rc;
    convo_add_call(&g->convo, id, name, args);
    return OK;
}

/* id_key: of the call's id, where the item has no call_id. */
static int read_result_item(struct reading *g, const char *at, const json_t *item,
                            const char *id_key)
{
    struct buf text = { 0 };
    char param[PARAM_MAX];
    struct str id;
    const char *key = json_object_get(item, "call_id") ? "call_id" : id_key;
    int rc = read_text(g, at, item, key, &id);

    snprintf(param, sizeof param, "%.60s.output", at);
    if (rc == OK) rc = join_texts(g, param, json_object_get(item, "output"), &text);
    if (rc == OK) rc = buf_check(&text, g->r.err);
    if (rc == OK) convo_add_result(&g->convo, id, STR(""), buf_str(&text));
    buf_release(&text);
    return rc;
}

/* Calls of tools that are no functions, by a client that talked to another server before: the model reads
 * them as calls of a function with their input. */
static int add_foreign_call(struct reading *g, struct str id, struct str name, const char *key,
                            const json_t *input)
{
    json_t *args = key ? json_pack("{s:O}", key, input) : json_incref((json_t *)input);
    struct buf text = { 0 };
    int rc;

    if (!args) return nomem(g);
    jsonr_dump(&text, args, JSON_COMPACT);
    if ((rc = buf_check(&text, g->r.err)) == OK)
        convo_add_call(&g->convo, id, name, buf_str(&text));
    buf_release(&text);
    json_decref(args);
    return rc;
}

static int read_custom_call(struct reading *g, const char *at, const json_t *item)
{
    struct str id, name, input;
    int rc;

    if ((rc = read_text(g, at, item, "call_id", &id)) != OK ||
        (rc = read_text(g, at, item, "name", &name)) != OK ||
        (rc = read_text(g, at, item, "input", &input)) != OK)
        return rc;
    return add_foreign_call(g, id, name, "input", json_object_get(item, "input"));
}

static int read_shell_call(struct reading *g, const char *at, const json_t *item)
{
    const json_t *action = json_object_get(item, "action");
    char param[PARAM_MAX];
    struct str id;
    int rc = read_text(g, at, item, "call_id", &id);

    if (rc != OK) return rc;
    snprintf(param, sizeof param, "%.60s.action", at);
    if (!json_is_object(action))
        return body_refuse(&g->r, param, "must be an object, but it is %s", body_type(action));
    return add_foreign_call(g, id, STR("local_shell"), NULL, action);
}

/* The item's text, or its summary, or what encrypted_content has of one that this server made. */
static int read_reasoning_item(struct reading *g, const char *at, const json_t *item)
{
    const json_t *content = json_object_get(item, "content"),
                 *summary = json_object_get(item, "summary"),
                 *sealed = json_object_get(item, "encrypted_content");
    struct buf text = { 0 };
    char param[PARAM_MAX];
    int rc = OK;

    snprintf(param, sizeof param, "%.60s.content", at);
    if (json_array_size(content)) rc = join_texts(g, param, content, &text);
    else if (json_is_string(sealed) && str_starts(body_str(sealed), STR(RESPONSES_SEALED)))
        buf_put_str(&text, str_skip(body_str(sealed), sizeof RESPONSES_SEALED - 1));
    else if (json_array_size(summary)) rc = join_texts(g, param, summary, &text);
    if (rc == OK) rc = buf_check(&text, g->r.err);
    if (rc == OK && text.n) convo_add_reasoning(&g->convo, buf_str(&text));
    buf_release(&text);
    return rc;
}

static int read_item(struct reading *g, const char *at, const json_t *item);

/* *out: the item with this id; NULL: there is none. */
static void find_item(const json_t *response, struct str id, const json_t **out)
{
    const json_t *list = json_object_get(response, "output");

    *out = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i), *is = json_object_get(one, "id");
        if (json_is_string(is) && str_eq(body_str(is), id)) *out = one;
    }
}

/* References must not bring in more than a body could: a few bytes of a reference can stand for
 * megabytes, and again in the next one. */
static int count_referred(struct reading *g, const char *at, size_t bytes)
{
    size_t most = g->c->api->opt.max_body_bytes;

    g->referred += bytes;
    if (g->referred <= most) return OK;
    return body_refuse(&g->r, at,
                       "brings the stored items that are referred to above %zu bytes, the most "
                       "that a request may have: refer to fewer",
                       most);
}

/* An item of a stored answer, by its id. What was loaded last is kept: the items of an answer usually
 * follow each other. */
static int read_reference(struct reading *g, const char *at, const json_t *item)
{
    struct buf text = { 0 };
    const json_t *found;
    struct str id;
    int rc = read_text(g, at, item, "id", &id);

    if (rc != OK) return rc;
    find_item(g->stored, id, &found);
    if (found) {
        jsonr_dump(&text, found, JSON_COMPACT);
        if ((rc = buf_check(&text, g->r.err)) == OK) rc = count_referred(g, at, text.n);
        buf_release(&text);
        return rc == OK ? read_item(g, at, found) : rc;
    }
    if (!respstore_get_by_item(g->c->api->responses, id, g->c->who.tenant, &text))
        rc = body_refuse(&g->r, at, "refers to the item '%.*s', which is not stored",
                         STR_ARG(str_take(id, 60)));
    if (rc == OK) rc = buf_check(&text, g->r.err);
    if (rc == OK) rc = count_referred(g, at, text.n);
    if (rc == OK) {
        json_decref(g->stored);
        if (!(g->stored = jsonr_load(buf_str(&text), 0, NULL))) rc = nomem(g);
    }
    if (rc == OK) {
        find_item(g->stored, id, &found);
        if (found) rc = read_item(g, at, found);
    }
    buf_release(&text);
    return rc;
}

/* Calls of tools that another server ran: the model sees the rest of the conversation. */
static bool is_foreign_item(struct str type)
{
    static const char *const types[] = { "web_search_call",       "file_search_call",
                                         "computer_call",         "image_generation_call",
                                         "code_interpreter_call", "mcp_call",
                                         "mcp_list_tools",        "mcp_approval_request" };

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (str_is(type, types[i])) return true;
    return false;
}

static int read_item(struct reading *g, const char *at, const json_t *item)
{
    const json_t *v = json_object_get(item, "type");
    struct str type = json_is_string(v) ? body_str(v) : STR("message");
    int rc;

    if (!json_is_object(item))
        return body_refuse(&g->r, at, "must be an object, but it is %s", body_type(item));
    if (str_is(type, "message")) return read_message_item(g, at, item);
    if (str_is(type, "function_call")) return read_call_item(g, at, item);
    if (str_is(type, "function_call_output") || str_is(type, "custom_tool_call_output"))
        return read_result_item(g, at, item, "call_id");
    if (str_is(type, "custom_tool_call")) return read_custom_call(g, at, item);
    if (str_is(type, "local_shell_call")) return read_shell_call(g, at, item);
    if (str_is(type, "local_shell_call_output")) return read_result_item(g, at, item, "id");
    if (str_is(type, "reasoning")) return read_reasoning_item(g, at, item);
    if (str_is(type, "item_reference") && g->depth == 0) {
        g->depth++;
        rc = read_reference(g, at, item);
        g->depth--;
        return rc;
    }
    if (is_foreign_item(type)) {
        call_note_skipped(g->c, type);
        return OK;
    }
    return body_refuse(&g->r, at, "is of type \"%.*s\", which is not supported",
                       STR_ARG(str_take(type, 40)));
}

/* A text is one user message. No input at all is an empty one: some clients probe a model that way. */
static int read_input(struct reading *g, const json_t *v)
{
    char at[PARAM_MAX];
    int rc = OK;

    if (json_is_string(v)) convo_add_text(&g->convo, STR("user"), body_str(v));
    else if (v && !json_is_null(v) && !json_is_array(v))
        return body_refuse(&g->r, "input", "must be a string or a list of items, but it is %s",
                           body_type(v));
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        snprintf(at, sizeof at, "input[%zu]", i);
        rc = call_note_item(g->c, g->r.err);
        if (rc == OK) rc = read_item(g, at, json_array_get(v, i));
    }
    if (rc == OK && convo_count(&g->convo) == 0) convo_add_text(&g->convo, STR("user"), STR(""));
    return rc;
}

/* The messages of a stored answer come first. */
static int read_previous(struct reading *g, const json_t *v)
{
    struct buf text = { 0 };
    json_t *list = NULL;
    int rc = OK;

    if (!v || json_is_null(v)) return OK;
    if (!json_is_string(v)) return body_refuse(&g->r, "previous_response_id", "must be a string");
    if (!respstore_get(g->c->api->responses, body_str(v), g->c->who.tenant, RESPSTORE_HISTORY,
                       &text))
        return body_refuse(&g->r, "previous_response_id",
                           "'%.60s' is not stored: send the whole conversation as input",
                           json_string_value(v));
    if ((rc = buf_check(&text, g->r.err)) == OK && !(list = jsonr_load(buf_str(&text), 0, NULL)))
        rc = nomem(g);
    if (rc == OK) convo_add_messages(&g->convo, list);
    json_decref(list);
    buf_release(&text);
    return rc;
}

/* ---- tools ---- */

/* allowed: the names of tool_choice "allowed_tools"; NULL: all. */
static bool is_allowed(const json_t *allowed, struct str name)
{
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        const json_t *is = json_object_get(json_array_get(allowed, i), "name");
        if (json_is_string(is) && str_eq(body_str(is), name)) return true;
    }
    return !allowed;
}

static int read_tool(struct reading *g, size_t i, const json_t *tool, const json_t *allowed)
{
    const json_t *type = json_object_get(tool, "type"), *name = json_object_get(tool, "name"),
                 *params = json_object_get(tool, "parameters");
    json_t *made;
    char at[PARAM_MAX];

    snprintf(at, sizeof at, "tools[%zu]", i);
    if (!json_is_object(tool))
        return body_refuse(&g->r, at, "must be an object, but it is %s", body_type(tool));
    if (!json_is_string(type)) {
        snprintf(at, sizeof at, "tools[%zu].type", i);
        return body_refuse(&g->r, at, "must be a string");
    }
    if (!str_is(body_str(type), "function")) {
        call_note_skipped(g->c, body_str(type));
        return OK;
    }
    snprintf(at, sizeof at, "tools[%zu].name", i);
    if (!json_is_string(name) || !json_string_length(name))
        return body_refuse(&g->r, at, "must be a non-empty string");
    snprintf(at, sizeof at, "tools[%zu].parameters", i);
    if (params && !json_is_null(params) && !json_is_object(params))
        return body_refuse(&g->r, at, "must be a JSON schema, but it is %s", body_type(params));
    if (!is_allowed(allowed, body_str(name))) return OK;
    made = convo_tool(body_str(name), json_object_get(tool, "description"),
                      json_is_object(params) ? params : NULL, json_object_get(tool, "strict"));
    return json_array_append_new(g->tools, made) == 0 ? OK : nomem(g);
}

static int read_tools(struct reading *g, const json_t *v, const json_t *allowed)
{
    int rc = OK;

    if (!v || json_is_null(v)) return OK;
    if (!json_is_array(v))
        return body_refuse(&g->r, "tools", "must be a list, but it is %s", body_type(v));
    if (json_array_size(v) > TOOLS_MAX)
        return body_refuse(&g->r, "tools", "contains %zu tools, but at most %d are allowed",
                           json_array_size(v), TOOLS_MAX);
    if (!(g->tools = json_array())) return nomem(g);
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++)
        rc = read_tool(g, i, json_array_get(v, i), allowed);
    return rc == OK ? set_member(g, "tools", json_incref(g->tools)) : rc;
}

/* "auto", "none", "required", {"type":"function","name":…}, or {"type":"allowed_tools",…}. *allowed: the
 * tools that the latter leaves. */
static int read_tool_choice(struct reading *g, const json_t *v, const json_t **allowed)
{
    const json_t *type = json_object_get(v, "type");
    struct str is = json_is_string(type) ? body_str(type) : STR("");

    if (!json_is_object(v)) return v ? set_member(g, "tool_choice", json_incref((json_t *)v)) : OK;
    if (str_is(is, "function"))
        return set_member(g, "tool_choice",
                          json_pack("{s:s, s:{s:O*}}", "type", "function", "function", "name",
                                    json_object_get(v, "name")));
    if (!str_is(is, "allowed_tools"))
        return body_refuse(&g->r, "tool_choice",
                           "is of type \"%.*s\", but must be none, auto, required, a function or "
                           "allowed_tools",
                           STR_ARG(str_take(is, 40)));
    *allowed = json_object_get(v, "tools");
    if (!json_is_array(*allowed)) return body_refuse(&g->r, "tool_choice.tools", "must be a list");
    if (json_array_size(*allowed) > TOOLS_MAX)
        return body_refuse(&g->r, "tool_choice.tools",
                           "contains %zu tools, but at most %d are allowed",
                           json_array_size(*allowed), TOOLS_MAX);
    v = json_object_get(v, "mode");
    return v ? set_member(g, "tool_choice", json_incref((json_t *)v)) : OK;
}

/* ---- text, reasoning, include ---- */

/* text.format has the members of response_format's json_schema one level higher. */
static int read_format(struct reading *g, const json_t *text)
{
    const json_t *f = json_object_get(text, "format"), *type = json_object_get(f, "type"),
                 *schema = json_object_get(f, "schema");

    if (text && !json_is_null(text) && !json_is_object(text))
        return body_refuse(&g->r, "text", "must be an object, but it is %s", body_type(text));
    if (!f || json_is_null(f)) return OK;
    if (!json_is_object(f) || !json_is_string(type))
        return body_refuse(&g->r, "text.format.type", "must be a string");
    if (!str_is(body_str(type), "json_schema"))
        return set_member(g, "response_format", json_pack("{s:O}", "type", type));
    if (!schema) return body_refuse(&g->r, "text.format.schema", "is required");
    return set_member(
        g, "response_format",
        json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema));
}

/* effort "none" also turns the reasoning off, where the template can. */
static int read_reasoning(struct reading *g, const json_t *v)
{
    const json_t *effort = json_object_get(v, "effort"), *summary = json_object_get(v, "summary");

    if (!v || json_is_null(v)) return OK;
    if (!json_is_object(v))
        return body_refuse(&g->r, "reasoning", "must be an object, but it is %s", body_type(v));
    if (!json_is_string(summary)) summary = json_object_get(v, "generate_summary");
    g->s->summary = json_is_string(summary) && !str_is(body_str(summary), "none");
    if (!effort || json_is_null(effort)) return OK;
    if (!json_is_string(effort)) return body_refuse(&g->r, "reasoning.effort", "must be a string");
    if (str_is(body_str(effort), "none") && set_member(g, "enable_thinking", json_false()) != OK)
        return nomem(g);
    return set_member(g, "reasoning_effort", json_incref((json_t *)effort));
}

static int read_include(struct reading *g, const json_t *v)
{
    int rc = OK;

    if (!v || json_is_null(v)) return OK;
    if (!json_is_array(v))
        return body_refuse(&g->r, "include", "must be a list, but it is %s", body_type(v));
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_string(x)) return body_refuse(&g->r, "include", "must be a list of strings");
        if (str_is(body_str(x), "reasoning.encrypted_content")) g->s->encrypted = true;
        else if (str_is(body_str(x), "message.output_text.logprobs"))
            rc = set_member(g, "logprobs", json_true());
        else params_note_ignored(&g->c->p, "include");
    }
    return rc;
}

static int read_limit(struct reading *g, const json_t *v)
{
    int64_t n;
    int rc;

    if (!v || json_is_null(v)) return OK;
    if ((rc = body_read_int(&g->r, "max_output_tokens", v, 1, INT_MAX, &n)) != OK) return rc;
    return set_member(g, "max_completion_tokens", json_integer(n));
}

static int read_store(struct reading *g, const json_t *v)
{
    g->s->store = true;
    if (!v || json_is_null(v)) return OK;
    return body_read_bool(&g->r, "store", v, &g->s->store);
}

/* Members that would change the answer and that this server cannot honour. */
static int refuse_members(struct reading *g, const json_t *root)
{
    static const char *const names[] = { "background", "conversation", "prompt",
                                         "context_management" };
    const json_t *v = json_object_get(root, "truncation");

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *x = json_object_get(root, names[i]);
        if (x && !json_is_null(x) && !json_is_false(x) &&
            !(json_is_array(x) && !json_array_size(x)))
            return body_refuse(&g->r, names[i], "is not supported by this server: leave it out");
    }
    if (json_is_string(v) && !str_is(body_str(v), "disabled"))
        return body_refuse(&g->r, "truncation",
                           "must be \"disabled\": this server never drops parts of a prompt");
    return OK;
}

/* Members that are read here and have no effect are reported. */
static void note_ignored(struct reading *g, const json_t *root)
{
    static const char *const names[] = { "max_tool_calls", "moderation" };
    const json_t *v;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((v = json_object_get(root, names[i])) && !json_is_null(v))
            params_note_ignored(&g->c->p, names[i]);
    v = json_object_get(json_object_get(root, "text"), "verbosity");
    if (v && !json_is_null(v)) params_note_ignored(&g->c->p, "text.verbosity");
    v = json_object_get(root, "top_logprobs");
    if (v && !json_is_null(v) && !json_is_true(json_object_get(g->out, "logprobs")))
        params_note_ignored(&g->c->p, "top_logprobs");
}

/* Members of the same name and meaning, unknown ones included: those are reported as ignored. */
static int copy_members(struct reading *g, json_t *root)
{
    static const char *const read[] = {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "include",
        "max_output_tokens",
        "store",
        "background",
        "prompt",
        "conversation",
        "truncation",
        "max_tool_calls",
        "top_logprobs",
        "previous_response_id",
        "context_management",
        "client_metadata",
        "prompt_cache_retention",
        "stream_options",
        "messages",
        "response_format",
        "moderation",
    };
    const char *key;
    json_t *v;

    json_object_foreach (root, key, v) {
        bool known = false;
        for (size_t i = 0; i < sizeof read / sizeof *read; i++) known |= !strcmp(key, read[i]);
        if (!known && json_object_set(g->out, key, v) != 0) return nomem(g);
    }
    v = json_object_get(root, "top_logprobs");
    if (v && !json_is_null(v) && json_is_true(json_object_get(g->out, "logprobs")))
        return set_member(g, "top_logprobs", json_incref(v));
    return OK;
}

/* ---- members of the answer that repeat the request ---- */

static void write_given(struct jsonw *w, const json_t *root, const char *key, const char *dflt)
{
    const json_t *v = json_object_get(root, key);

    jsonw_key(w, key);
    if (v && !json_is_null(v)) {
        struct buf text = { 0 };
        jsonr_dump(&text, v, JSON_COMPACT | JSON_ENCODE_ANY);
        w->out->failed |= text.failed;
        jsonw_raw(w, buf_str(&text));
        buf_release(&text);
    } else {
        jsonw_raw(w, str_c(dflt));
    }
}

static void write_text_format(struct jsonw *w, const json_t *root)
{
    const json_t *text = json_object_get(root, "text");

    jsonw_key(w, "text"), jsonw_obj(w);
    write_given(w, text, "format", "{\"type\":\"text\"}");
    write_given(w, text, "verbosity", "\"medium\"");
    jsonw_end(w);
}

static void write_reasoning(struct jsonw *w, const json_t *root)
{
    const json_t *v = json_object_get(root, "reasoning");

    jsonw_key(w, "reasoning"), jsonw_obj(w);
    write_given(w, v, "effort", "null");
    write_given(w, v, "summary", "null");
    jsonw_end(w);
}

/* Without braces: a part of the response object. */
static struct str make_given(struct reading *g, const json_t *root)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    struct str text;

    jsonw_obj(&w);
    write_given(&w, root, "instructions", "null");
    write_given(&w, root, "max_output_tokens", "null");
    write_given(&w, root, "max_tool_calls", "null");
    write_given(&w, root, "metadata", "{}");
    write_given(&w, root, "parallel_tool_calls", "true");
    write_given(&w, root, "previous_response_id", "null");
    write_given(&w, root, "prompt_cache_key", "null");
    write_reasoning(&w, root);
    write_given(&w, root, "safety_identifier", "null");
    jsonw_key(&w, "service_tier"), jsonw_str(&w, STR("default"));
    jsonw_key(&w, "store"), jsonw_bool(&w, g->s->store);
    write_given(&w, root, "temperature", "1.0");
    write_text_format(&w, root);
    write_given(&w, root, "tool_choice", "\"auto\"");
    write_given(&w, root, "tools", "[]");
    write_given(&w, root, "top_logprobs", "0");
    write_given(&w, root, "top_p", "1.0");
    jsonw_key(&w, "truncation"), jsonw_str(&w, STR("disabled"));
    write_given(&w, root, "user", "null");
    jsonw_end(&w);
    text = out.failed ? STR("") : str_of(out.p + 1, out.n - 2);
    text = arena_str(&g->c->arena, text);
    if (out.failed) g->c->arena.failed = true;
    buf_release(&out);
    return text;
}

static struct str dump_to_arena(struct call *c, const json_t *v)
{
    struct buf text = { 0 };
    struct str copy;

    jsonr_dump(&text, v, JSON_COMPACT | JSON_ENCODE_ANY);
    c->arena.failed |= text.failed;
    copy = arena_str(&c->arena, buf_str(&text));
    buf_release(&text);
    return copy;
}

/* The input as items, for GET …/input_items: a text is a message. */
static struct str make_items(struct call *c, const json_t *input)
{
    json_t *list = NULL;
    struct str text;

    if (json_is_array(input)) return dump_to_arena(c, input);
    list =
        json_pack("[{s:s, s:s, s:[{s:s, s:s%}]}]", "type", "message", "role", "user", "content",
                  "type", "input_text", "text",
                  json_is_string(input) ? json_string_value(input) : "", json_string_length(input));
    if (!list) c->arena.failed = true;
    text = list ? dump_to_arena(c, list) : STR("[]");
    json_decref(list);
    return text;
}

/* ---- the whole body ---- */

static int read_messages(struct reading *g, const json_t *root)
{
    const json_t *instructions = json_object_get(root, "instructions");
    json_t *messages, *system;
    int rc;

    if (instructions && !json_is_null(instructions) && !json_is_string(instructions))
        return body_refuse(&g->r, "instructions", "must be a string");
    if ((rc = read_previous(g, json_object_get(root, "previous_response_id"))) != OK ||
        (rc = read_input(g, json_object_get(root, "input"))) != OK ||
        (rc = convo_take(&g->convo, &messages, g->r.err)) != OK)
        return rc;
    if (g->s->store) g->s->messages = dump_to_arena(g->c, messages);
    if (json_string_length(instructions)) {
        system = json_pack("{s:s, s:O}", "role", "system", "content", instructions);
        if (json_array_insert_new(messages, 0, system) != 0) {
            json_decref(messages);
            return nomem(g);
        }
    }
    return set_member(g, "messages", messages);
}

static int read_all(struct reading *g, json_t *root)
{
    const json_t *allowed = NULL;
    int rc;

    if ((rc = refuse_members(g, root)) != OK) return rc;
    if ((rc = read_store(g, json_object_get(root, "store"))) != OK) return rc;
    if ((rc = read_messages(g, root)) != OK) return rc;
    if ((rc = read_tool_choice(g, json_object_get(root, "tool_choice"), &allowed)) != OK) return rc;
    if ((rc = read_tools(g, json_object_get(root, "tools"), allowed)) != OK) return rc;
    if ((rc = read_format(g, json_object_get(root, "text"))) != OK) return rc;
    if ((rc = read_reasoning(g, json_object_get(root, "reasoning"))) != OK) return rc;
    if ((rc = read_include(g, json_object_get(root, "include"))) != OK) return rc;
    if ((rc = read_limit(g, json_object_get(root, "max_output_tokens"))) != OK) return rc;
    if ((rc = copy_members(g, root)) != OK) return rc;
    note_ignored(g, root);
    g->s->given = make_given(g, root);
    if (g->s->store) g->s->items = make_items(g->c, json_object_get(root, "input"));
    return arena_check(&g->c->arena, g->r.err);
}

int responses_translate(struct call *c, json_t **out, struct err *e)
{
    struct reading g = { .c = c,
                         .r = { .arena = &c->arena, .err = e, .param = c->p.param },
                         .s = arena_new(&c->arena, struct responses),
                         .out = json_object() };
    int rc = g.s && g.out ? read_all(&g, c->source) : nomem(&g);

    c->state = g.s;
    c->p.field = "input";
    json_decref(g.tools);
    json_decref(g.stored);
    convo_release(&g.convo);
    if (rc == OK) *out = g.out;
    else json_decref(g.out);
    return rc;
}
