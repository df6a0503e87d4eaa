/* ollama_body.c - the bodies of /api/chat, /api/generate and /api/embed → the conversation.
 *
 * `options` has the sampling parameters under llama.cpp's names. Options about memory and threads
 * (num_ctx, num_gpu, num_thread, …) are accepted without effect: the server decides these when a model is
 * loaded, and clients send them always. Members without effect are reported (params.ignored). */
#include "api/ollama_impl.h"

#include "api/convo.h"
#include "base/buf.h"
#include "base/jsonr.h"

#include <limits.h>
#include <stdio.h>

struct reading {
    struct call *c;
    struct body_reader r;
    struct ollama *s;
    struct convo convo;
    json_t *out;
    int n_calls, n_results; /* tool calls and results so far: Ollama's have no ids */
};

static int nomem(struct reading *g) { return err_nomem(g->r.err, "the body of the request"); }

static int set_member(struct reading *g, const char *key, json_t *value)
{
    return convo_set(g->out, key, value) ? OK : nomem(g);
}

static const json_t *given(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v) ? v : NULL;
}

/* ---- messages ---- */

static struct str call_id(char id[24], int n)
{
    snprintf(id, 24, "call_%d", n);
    return str_c(id);
}

/* [{"function":{"name":…,"arguments":{…}}}] */
static int read_calls(struct reading *g, const char *at, const json_t *calls)
{
    char param[PARAM_MAX], id[24];
    int rc;

    snprintf(param, sizeof param, "%.60s.tool_calls", at);
    if (!json_is_array(calls))
        return body_refuse(&g->r, param, "must be a list, but it is %s", body_type(calls));
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *fn = json_object_get(json_array_get(calls, k), "function"),
                     *name = json_object_get(fn, "name"), *args = json_object_get(fn, "arguments");
        struct buf text = { 0 };
        if ((rc = call_note_item(g->c, g->r.err)) != OK) return rc;
        snprintf(param, sizeof param, "%.50s.tool_calls[%zu].function.name", at, k);
        if (!json_is_string(name)) return body_refuse(&g->r, param, "must be a string");
        if (json_is_string(args)) buf_put_str(&text, body_str(args));
        else if (json_is_object(args)) jsonr_dump(&text, args, JSON_COMPACT);
        else buf_puts(&text, "{}");
        if (!text.failed)
            convo_add_call(&g->convo, call_id(id, g->n_calls++), body_str(name), buf_str(&text));
        g->convo.failed |= text.failed;
        buf_release(&text);
    }
    return OK;
}

static int refuse_images(struct reading *g, const char *param, const json_t *obj)
{
    const json_t *images = given(obj, "images");

    if (!images || (json_is_array(images) && !json_array_size(images))) return OK;
    return body_refuse(&g->r, param, "is not supported by this server: only text is");
}

static int read_message(struct reading *g, size_t i, const json_t *msg)
{
    const json_t *role = json_object_get(msg, "role"), *content = given(msg, "content"),
                 *thinking = given(msg, "thinking"), *calls = given(msg, "tool_calls"),
                 *tool = given(msg, "tool_name"), *of = given(msg, "tool_call_id");
    struct str is = json_is_string(role) ? body_str(role) : STR(""), text;
    char at[48], param[PARAM_MAX], id[24];
    int rc;

    snprintf(at, sizeof at, "messages[%zu]", i);
    snprintf(param, sizeof param, "%s.images", at);
    if ((rc = refuse_images(g, param, msg)) != OK) return rc;
    snprintf(param, sizeof param, "%s.content", at);
    if (content && !json_is_string(content))
        return body_refuse(&g->r, param, "must be a string, but it is %s", body_type(content));
    text = content ? body_str(content) : STR("");
    if (str_is(is, "tool")) {
        convo_add_result(&g->convo, json_is_string(of) ? body_str(of) : call_id(id, g->n_results),
                         json_is_string(tool) ? body_str(tool) : STR(""), text);
        g->n_results++;
        return OK;
    }
    snprintf(param, sizeof param, "%s.role", at);
    if (!str_is(is, "system") && !str_is(is, "user") && !str_is(is, "assistant"))
        return body_refuse(&g->r, param, "must be system, user, assistant or tool");
    if (str_is(is, "assistant")) convo_end_turn(&g->convo);
    if (json_is_string(thinking) && json_string_length(thinking))
        convo_add_reasoning(&g->convo, body_str(thinking));
    if (text.n || !calls) convo_add_text(&g->convo, is, text);
    return calls ? read_calls(g, at, calls) : OK;
}

static int read_messages(struct reading *g, const json_t *v)
{
    json_t *messages;
    int rc = OK;

    if (v && !json_is_array(v))
        return body_refuse(&g->r, "messages", "must be a list, but it is %s", body_type(v));
    g->s->only_load = json_array_size(v) == 0;
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        rc = call_note_item(g->c, g->r.err);
        if (rc == OK) rc = read_message(g, i, json_array_get(v, i));
    }
    if (g->s->only_load) convo_add_text(&g->convo, STR("user"), STR(""));
    if (rc == OK) rc = convo_take(&g->convo, &messages, g->r.err);
    return rc == OK ? set_member(g, "messages", messages) : rc;
}

/* ---- options ---- */

/* -1 and -2: as long as the context allows. */
static int read_num_predict(struct reading *g, const json_t *v)
{
    int64_t n;
    int rc = body_read_int(&g->r, "options.num_predict", v, INT_MIN, INT_MAX, &n);

    if (rc != OK || n < 0) return rc;
    return set_member(g, "max_tokens", json_integer(n ? n : 1));
}

static bool is_among(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* Members of obj that are not among the names, which are read, have no effect and are reported. before:
 * of their names in the report. */
static void note_others(struct reading *g, const json_t *obj, const char *before,
                        const char *const *names, size_t n)
{
    char name[64];
    const char *key;
    json_t *v;

    json_object_foreach ((json_t *)obj, key, v) {
        if (json_is_null(v) || (json_is_array(v) && !json_array_size(v))) continue;
        if (is_among(key, names, n)) continue;
        snprintf(name, sizeof name, "%s%.40s", before, key);
        params_note_ignored(&g->c->p, name);
    }
}

static int read_options(struct reading *g, const json_t *options)
{
    static const char *const same[] = { "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "typical_p",
                                        "repeat_penalty",
                                        "repeat_last_n",
                                        "seed",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "stop",
                                        "mirostat",
                                        "num_predict" };
    const json_t *v;
    int rc;

    if (!options) return OK;
    if (!json_is_object(options))
        return body_refuse(&g->r, "options", "must be an object, but it is %s", body_type(options));
    note_others(g, options, "options.", same, sizeof same / sizeof *same);
    for (size_t i = 0; i + 1 < sizeof same / sizeof *same; i++) {
        if (!(v = given(options, same[i]))) continue;
        if (json_is_array(v) && !json_array_size(v)) continue;
        if ((rc = set_member(g, same[i], json_incref((json_t *)v))) != OK) return rc;
    }
    v = given(options, "num_predict");
    return v ? read_num_predict(g, v) : OK;
}

/* "json", a schema, or nothing. */
static int read_format(struct reading *g, const json_t *v)
{
    if (!v || (json_is_string(v) && !json_string_length(v))) return OK;
    if (json_is_string(v) && str_is(body_str(v), "json"))
        return set_member(g, "response_format", json_pack("{s:s}", "type", "json_object"));
    if (!json_is_object(v))
        return body_refuse(&g->r, "format", "must be \"json\" or a JSON schema");
    return set_member(
        g, "response_format",
        json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", v));
}

/* true, false, or how much: "low", "medium", "high". */
static int read_think(struct reading *g, const json_t *v)
{
    if (!v) return OK;
    if (json_is_boolean(v)) return set_member(g, "enable_thinking", json_incref((json_t *)v));
    if (!json_is_string(v)) return body_refuse(&g->r, "think", "must be true, false or a string");
    if (set_member(g, "enable_thinking", json_true()) != OK) return nomem(g);
    return set_member(g, "reasoning_effort", json_incref((json_t *)v));
}

/* Members that all of the bodies have. A stream is the default. */
static int read_common(struct reading *g, const json_t *root)
{
    static const char *const same[] = { "model", "keep_alive", "tools" };
    const json_t *v = given(root, "stream");
    bool stream = true;
    int rc;

    if (v && (rc = body_read_bool(&g->r, "stream", v, &stream)) != OK) return rc;
    if ((rc = set_member(g, "stream", json_boolean(stream))) != OK) return rc;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if ((v = given(root, same[i])) &&
            (rc = set_member(g, same[i], json_incref((json_t *)v))) != OK)
            return rc;
    if ((rc = read_options(g, given(root, "options"))) != OK) return rc;
    if ((rc = read_format(g, given(root, "format"))) != OK) return rc;
    return read_think(g, given(root, "think"));
}

static int read_chat(struct reading *g, const json_t *root)
{
    static const char *const names[] = { "model", "messages",   "tools",   "format",     "stream",
                                         "think", "keep_alive", "options", "tern_resume" };
    int rc = read_common(g, root);

    note_others(g, root, "", names, sizeof names / sizeof *names);
    return rc == OK ? read_messages(g, given(root, "messages")) : rc;
}

/* raw, or with a suffix: a text completion; else one turn of a chat. */
static int read_generate(struct reading *g, const json_t *root)
{
    static const char *const names[] = { "model", "prompt",     "system",  "suffix",     "images",
                                         "raw",   "format",     "stream",  "think",      "template",
                                         "tools", "keep_alive", "options", "tern_resume" };
    const json_t *prompt = given(root, "prompt"), *system = given(root, "system"),
                 *suffix = given(root, "suffix");
    struct str text = json_is_string(prompt) ? body_str(prompt) : STR("");
    bool fim = json_is_string(suffix) && json_string_length(suffix);
    json_t *messages;
    int rc;

    if ((rc = refuse_images(g, "images", root)) != OK) return rc;
    if (prompt && !json_is_string(prompt))
        return body_refuse(&g->r, "prompt", "must be a string, but it is %s", body_type(prompt));
    if (system && !json_is_string(system))
        return body_refuse(&g->r, "system", "must be a string, but it is %s", body_type(system));
    if (given(root, "template") && json_string_length(json_object_get(root, "template")))
        return body_refuse(&g->r, "template", "is not supported: the model's own is used");
    if ((rc = read_common(g, root)) != OK) return rc;
    note_others(g, root, "", names, sizeof names / sizeof *names);
    g->s->only_load = !text.n && !fim;
    if (fim && (rc = set_member(g, "suffix", json_incref((json_t *)suffix))) != OK) return rc;
    if (fim || (json_is_true(json_object_get(root, "raw")) && text.n))
        return set_member(g, "prompt", convo_string(text));
    if (json_string_length(system)) convo_add_text(&g->convo, STR("system"), body_str(system));
    convo_add_text(&g->convo, STR("user"), text);
    rc = convo_take(&g->convo, &messages, g->r.err);
    return rc == OK ? set_member(g, "messages", messages) : rc;
}

/* `input`, or `prompt` of the older /api/embeddings. A text that is too long is refused. */
static int read_embed(struct reading *g, const json_t *root)
{
    static const char *const same[] = { "model", "input", "dimensions", "keep_alive", "prompt" };
    const json_t *v;
    int rc;

    note_others(g, root, "", same, sizeof same / sizeof *same);
    for (size_t i = 0; i + 1 < sizeof same / sizeof *same; i++)
        if ((v = given(root, same[i])) &&
            (rc = set_member(g, same[i], json_incref((json_t *)v))) != OK)
            return rc;
    if (!(v = given(root, "prompt")) || given(root, "input")) return OK;
    return set_member(g, "input", json_incref((json_t *)v));
}

static int translate(struct call *c, int (*read)(struct reading *g, const json_t *root), bool chat,
                     json_t **out, struct err *e)
{
    struct reading g = { .c = c,
                         .r = { .arena = &c->arena, .err = e, .param = c->p.param },
                         .s = arena_new(&c->arena, struct ollama),
                         .out = json_object() };
    int rc = g.s && g.out ? OK : nomem(&g);

    c->state = g.s;
    if (rc == OK) {
        g.s->chat = chat;
        rc = read(&g, c->source);
    }
    if (rc == OK) rc = arena_check(&c->arena, e);
    convo_release(&g.convo);
    if (rc == OK) *out = g.out;
    else json_decref(g.out);
    return rc;
}

int ollama_translate_chat(struct call *c, json_t **out, struct err *e)
{
    return translate(c, read_chat, true, out, e);
}

int ollama_translate_generate(struct call *c, json_t **out, struct err *e)
{
    return translate(c, read_generate, false, out, e);
}

int ollama_translate_embed(struct call *c, json_t **out, struct err *e)
{
    return translate(c, read_embed, false, out, e);
}

/* ---- /api/pull ---- */

/* "insecure" and credentials of Ollama's registry have no meaning here. */
int api_read_pull(const json_t *body, struct str *name, bool *stream, struct err *e)
{
    const json_t *v = json_object_get(body, "model"), *s = json_object_get(body, "stream");

    if (!v) v = json_object_get(body, "name");
    if (!json_is_string(v) || !json_string_length(v))
        return err_set(e, E_INVALID, "model is required: hf.co/ORG/NAME[:FILE]");
    if (s && !json_is_boolean(s) && !json_is_null(s))
        return err_set(e, E_INVALID, "stream must be true or false");
    *name = body_str(v);
    *stream = !json_is_false(s);
    return OK;
}
