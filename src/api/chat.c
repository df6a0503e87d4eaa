/* chat.c - POST /v1/chat/completions: messages become a prompt, and the parsing of the answer is
 * prepared.
 *
 *     body ─► messages, tools, variables ─► prompter ─► text and ids ─► submit
 *                                               └─► how to parse the answer, and its grammar
 *
 * pool/prompter.h makes the prompt, by the model's chat template or by a form guessed from its
 * special tokens. The template also decides the format in which the model writes tool calls and
 * reasoning (toolcall/toolfamily.h) and, where a call is required, the grammar that enforces it.
 * All of this runs on a request thread (prepare.c). */
#include "api/call.h"

#include "api/anytools.h"
#include "base/jsonr.h"
#include "base/log.h"
#include "engine/engine.h"
#include "net/http.h"
#include "pool/pool.h"
#include "pool/prompter.h"
#include "toolcall/toolforce.h"

/* ---- the variables of a template ---- */

/* What the template is rendered with beside the messages. Owned; a zeroed one is empty. */
struct template_json {
    json_t *tools, *vars;
    json_t *messages; /* with the tools written into them (anytools.h); NULL: as given */
};

static void release_json(struct template_json *j)
{
    json_decref(j->tools);
    json_decref(j->vars);
    json_decref(j->messages);
}

/* Firefunction's template takes the tools as a text. */
static bool set_firefunction(json_t *vars, const json_t *tools)
{
    struct buf text = { 0 };
    bool ok;

    jsonr_dump(&text, tools, JSON_INDENT(4));
    ok = !text.failed &&
         json_object_set_new(vars, "functions", json_stringn(text.p, text.n)) == 0 &&
         json_object_set_new(vars, "datetime", json_string("")) == 0;
    buf_release(&text);
    return ok;
}

/* Variables given by fields of the request; chat_template_kwargs override them. false: no memory. */
static bool make_variables(const struct call *c, const struct toolfamily *family,
                           struct template_json *out)
{
    json_t *vars = out->vars = json_object();
    struct str effort = c->p.reasoning_effort;

    if (!vars) return false;
    if (effort.p &&
        json_object_set_new(vars, "reasoning_effort", json_stringn(effort.p, effort.n)) != 0)
        return false;
    if (c->p.has_thinking &&
        json_object_set_new(vars, "enable_thinking", json_boolean(c->p.thinking)) != 0)
        return false;
    if (c->p.tools && family && !strcmp(family->name, "firefunction") &&
        !set_firefunction(vars, c->p.tools))
        return false;
    return !c->p.template_vars || json_object_update(vars, (json_t *)c->p.template_vars) == 0;
}

/* The tools of the request; with a named tool_choice only that one. false: no memory. */
static bool copy_tools(const struct call *c, struct template_json *out)
{
    json_t *tool;
    size_t i;

    if (!c->p.tools) return true;
    if (!(out->tools = json_array())) return false;
    json_array_foreach ((json_t *)c->p.tools, i, tool) {
        struct str name = body_str(json_object_get(json_object_get(tool, "function"), "name"));
        if (c->p.tool_choice == TOOL_NAMED && !str_eq(name, c->p.tool_name)) continue;
        if (json_array_append(out->tools, tool) != 0) return false;
    }
    return true;
}

/* ---- tool calls and reasoning in the answer ---- */

static bool is_forced(const struct call *c)
{
    return c->p.tools && (c->p.tool_choice == TOOL_REQUIRED || c->p.tool_choice == TOOL_NAMED);
}

/* Some tool asks for arguments that conform to its schema. */
static bool has_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(
                json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return true;
    return false;
}

/* A tool call that is required, or that must follow its schema if it comes (strict tools), is
 * enforced by a grammar. */
static int set_tool_grammar(struct call *c, struct str template, const json_t *tools, struct err *e)
{
    const struct parsing *g = &c->parsing;
    struct toolforce f = { .calls = g->calls,
                           .think = g->think,
                           .template = template,
                           .prompt = g->prompt_end,
                           .tools = tools,
                           .max = c->p.one_call || c->p.tool_choice == TOOL_NAMED,
                           .lazy = !is_forced(c) };
    struct buf text = { 0 };
    int rc;

    if (c->p.grammar_field) toolforce_add_lead(g->calls, g->think, g->prompt_end, &c->p.grammar);
    if (c->p.grammar_field || !g->calls || !tools) return OK;
    if (f.lazy && !has_strict(tools) && !c->any_tools) return OK;
    rc = toolforce_make_spec(&f, &text, &c->p.grammar, e);
    if (rc == OK) {
        c->p.grammar.text = arena_str(&c->arena, buf_str(&text));
        c->p.grammar_field = "tools";
        c->parsing.forced = !f.lazy;
        rc = arena_check(&c->arena, e);
    }
    buf_release(&text);
    return rc == E_UNSUPPORTED ? OK : rc; /* lazy calls of some families are not enforced */
}

/* Special tokens are not part of an answer's text. Those that a mark of the parser is made of must
 * be. */
static void show_specials(struct parsing *g, const struct tokenizer *t, struct str mark)
{
    for (size_t i = 0; i < mark.n; i++) {
        size_t n = mark.p[i] == '<' || mark.p[i] == '[' || mark.p[i] == ']' ? mark.n - i : 0;
        for (; n > 2; n--) {
            int32_t id = tokenizer_find(t, str_of(mark.p + i, n));
            if (id < 0 || !tokenizer_is_special(t, id)) continue;
            if (g->n_shown < SHOWN_MAX) g->shown[g->n_shown++] = id;
            i += n - 1;
            break;
        }
    }
}

/* Reasoning is always looked for, tool calls only where the request has tools. Harmony's channels
 * carry the whole answer, so they are always parsed. */
static int set_parsing(struct call *c, struct str template, struct str prompt, struct err *e)
{
    enum { END = 64 }; /* bytes of the prompt that can hold an opened reasoning */
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct parsing *g = &c->parsing;
    const char *marks[TOOLFAMILY_MARKS];

    g->calls = toolfamily_find(c->any_tools ? STR(ANYTOOLS_SIGNS) : template);
    g->think = toolfamily_find_reasoning(template);
    if (!g->calls && is_forced(c)) g->calls = toolforce_plain();
    if (g->calls && !c->p.tools && g->calls->payload != PAYLOAD_HARMONY) g->calls = NULL;
    g->on = g->calls || g->think;
    g->prompt_end =
        arena_str(&c->arena, prompt.n > END ? str_skip(prompt, prompt.n - END) : prompt);
    toolfamily_list_marks(g->calls, g->think, marks);
    for (int i = 0; marks[i]; i++) show_specials(g, t, str_c(marks[i]));
    return arena_check(&c->arena, e);
}

/* ---- the prompt ---- */

/* Roles and texts of the messages with tools, for models without a template. */
static int read_rewritten(struct call *c, const json_t *messages, struct prompt_input *in,
                          struct err *e)
{
    size_t n = json_array_size(messages);
    struct chat_msg *msgs = arena_array(&c->arena, n + 1, sizeof *msgs);

    if (!msgs) return err_nomem(e, "the messages of the request");
    for (size_t i = 0; i < n; i++) {
        const json_t *msg = json_array_get(messages, i), *text = json_object_get(msg, "content");
        struct str role = body_str(json_object_get(msg, "role"));
        msgs[i].role = str_is(role, "developer") ? STR("system") : role;
        msgs[i].content = json_is_string(text) ? body_str(text) : STR("");
    }
    in->msgs = msgs;
    in->n_msgs = n;
    in->messages = messages;
    in->tools = NULL;
    return OK;
}

/* A template is the model's own code: its words and lines are for the log, and the client reads what it can
 * change. */
static int refuse_by_template(const struct call *c, struct err *e)
{
    log_info("request %s to %s: %s", c->who.correlation, c->model->id, e->msg);
    return err_set(e, E_INVALID,
                   "the model's chat template cannot write these messages: let user and assistant "
                   "take turns, beginning with user, with at most one system message before them%s",
                   c->p.tools ? ", or leave out the tools" : "");
}

/* Renders and encodes the prompt. */
static int make_prompt(struct call *c, const struct template_json *j, struct prompt_output *out,
                       struct err *e)
{
    struct prompt_input in = { .msgs = c->p.msgs,
                               .n_msgs = (size_t)c->p.n_msgs,
                               .messages = c->p.messages,
                               .tools = j->tools,
                               .documents = c->p.documents,
                               .vars = j->vars,
                               .no_generation_prompt = !c->p.add_prompt,
                               .continue_final = c->p.continue_final,
                               .stop = &c->work.stop,
                               .deadline_ns = c->deadline_ns,
                               .find_borders = engine_keeps_state(c->model->engine) };
    struct str template = prompter_template(c->model->prompter, c->p.tools != NULL);
    int rc = j->messages ? read_rewritten(c, j->messages, &in, e) : OK;

    if (rc == OK) rc = prompter_make(c->model->prompter, &in, out, e);
    if (rc == E_INVALID && out->by_template) rc = refuse_by_template(c, e);
    if (rc == E_INVALID && out->field[0])
        call_blame(c, "%s",
                   c->p.field && str_starts(str_c(out->field), STR("messages")) ? c->p.field
                                                                                : out->field);
    if (rc == OK && c->keeps_prompt) c->prompt_text = arena_str(&c->arena, buf_str(&out->text));
    if (rc != OK || (!template.n && !c->any_tools)) return rc;
    if ((rc = set_parsing(c, template, buf_str(&out->text), e)) != OK) return rc;
    return set_tool_grammar(c, c->any_tools ? STR(ANYTOOLS_SIGNS) : template, j->tools, e);
}

/* The conversation has tool calls or results. */
static bool has_past_calls(const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *msg = json_array_get(messages, i), *role = json_object_get(msg, "role");
        if (json_array_size(json_object_get(msg, "tool_calls"))) return true;
        if (json_is_string(role) && str_is(body_str(role), "tool")) return true;
    }
    return false;
}

/* A template without a place for tools, or none at all: they are written into the messages. */
static int write_any_tools(struct call *c, struct template_json *j, const struct toolfamily *family,
                           struct err *e)
{
    const struct prompter *p = c->model->prompter;

    if ((!j->tools && !has_past_calls(c->p.messages)) || prompter_takes_tools(p) || family)
        return OK;
    c->any_tools = j->tools != NULL;
    return anytools_write(c->p.messages, j->tools, &j->messages, e);
}

static int encode_prompt(struct call *c, struct prompt_output *out, struct err *e)
{
    const struct prompter *p = c->model->prompter;
    struct str template = prompter_template(p, c->p.tools != NULL);
    const struct toolfamily *family = toolfamily_find(template);
    struct template_json j = { 0 };
    int rc;

    if (!copy_tools(c, &j) || !make_variables(c, family, &j))
        rc = err_nomem(e, "the messages of the request");
    else if ((rc = write_any_tools(c, &j, family, e)) == OK) rc = make_prompt(c, &j, out, e);
    release_json(&j);
    return rc;
}

static void keep_borders(struct call *c, const struct prompt_output *out)
{
    while (c->n_borders < out->n_borders && c->n_borders < REQUEST_BORDERS) {
        c->borders[c->n_borders] = out->borders[c->n_borders];
        c->n_borders++;
    }
}

/* Before the template runs: rendering a huge message is slow, too. */
static int check_messages_length(struct call *c, struct err *e)
{
    struct str *texts = arena_array(&c->arena, (size_t)c->p.n_msgs, sizeof *texts);

    if (!texts) return err_nomem(e, "the messages of the request");
    for (int i = 0; i < c->p.n_msgs; i++) texts[i] = c->p.msgs[i].content;
    return call_check_length(c, texts, c->p.n_msgs, c->p.field ? c->p.field : "messages", e);
}

int call_prepare_chat(struct call *c, struct err *e)
{
    struct prompt_output out = { 0 };
    int rc;

    if (!c->model->prompter) {
        call_blame(c, "messages");
        return err_set(e, E_INVALID,
                       "the model %s has no tokenizer: send token ids to /v1/completions",
                       c->model->id);
    }
    if ((rc = check_messages_length(c, e)) != OK) return rc;
    rc = encode_prompt(c, &out, e);
    keep_borders(c, &out);
    if (rc == OK) rc = call_check_stop(c, e);
    if (rc == OK) rc = call_make_requests(c, &out.ids, 1, prompter_stop(c->model->prompter), e);
    prompt_output_release(&out);
    return rc;
}

/* ---- handlers ---- */

static int prepare_chat(struct call *c, struct err *e)
{
    int rc = call_read_body(c, BODY_CHAT, e);
    return rc == OK ? call_prepare_chat(c, e) : rc;
}

void api_chat(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_chat, call_submit };

    call_begin(a, q, who, "/v1/chat/completions", &job);
}

static int prepare_execute(struct call *c, struct err *e)
{
    int rc = call_read_body(c, BODY_EXECUTE, e);

    if (rc != OK) return rc;
    return c->p.kind == BODY_CHAT ? call_prepare_chat(c, e) : call_prepare_text(c, e);
}

void api_execute(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_execute, call_submit };

    call_begin(a, q, who, str_is(http_path(q), "/execute") ? "/execute" : "/v2/execute", &job);
}
