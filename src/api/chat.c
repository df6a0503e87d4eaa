/* chat.c - POST /v1/chat/completions: messages become a prompt, by the model's chat template or,
 * for models without one, by a form guessed from their special tokens. */
#include "api/call.h"

#include "engine/engine.h"
#include "net/http.h"
#include "pool/pool.h"
#include "toolcall/toolforce.h"

#include <stdlib.h>

static int refuse_field(struct call *c, struct err *e, const char *param, const char *what)
{
    call_blame(c, "%s", param);
    return err_set(e, E_INVALID, "%s: %s", param, what);
}

/* ---- models without a template ---- */

/* These forms have no system turn: the text is written into the first user message. */
static bool wants_system_first(enum chat_form f)
{
    return f == CHAT_LLAMA2 || f == CHAT_MISTRAL || f == CHAT_GEMMA;
}

static int check_guessed_form(struct call *c, struct err *e)
{
    char at[PARAM_MAX];

    if (c->p.tools)
        return refuse_field(c, e, "tools",
                            "the model has no chat template, so it cannot use tools");
    if (c->p.continue_final)
        return refuse_field(c, e, "continue_final_message", "needs a model with a chat template");
    for (int i = 0; i < c->p.n_msgs; i++) {
        struct str role = c->p.msgs[i].role;
        snprintf(at, sizeof at, "messages[%d].role", i);
        if (str_is(role, "tool") || str_is(role, "function"))
            return refuse_field(c, e, at,
                                "is tool, but the model has no chat template, so it cannot use "
                                "tools");
        if (i > 0 && wants_system_first(c->model->form) && str_is(role, "system"))
            return refuse_field(
                c, e, at, "is system, but this model accepts a system message only as the first");
    }
    return OK;
}

/* ---- the variables of a template ---- */

/* What the template is rendered with. Owned; a zeroed one is empty. */
struct template_json {
    json_t *messages, *tools, *vars;
};

static void release_json(struct template_json *j)
{
    json_decref(j->messages);
    json_decref(j->tools);
    json_decref(j->vars);
}

/* The messages as given. Templates that do not know the role "developer" get "system". false: no
 * memory. */
static bool copy_messages(const struct call *c, struct str template, struct template_json *out)
{
    bool known = str_find(template, STR("developer")) >= 0;
    json_t *msg;
    size_t i;

    if (!(out->messages = json_deep_copy(c->p.messages))) return false;
    json_array_foreach (out->messages, i, msg) {
        const json_t *role = json_object_get(msg, "role");
        if (known || !str_is(body_str(role), "developer")) continue;
        if (json_object_set_new(msg, "role", json_string("system")) != 0) return false;
    }
    return true;
}

/* Firefunction's template takes the tools as a text. */
static bool set_firefunction(json_t *vars, const json_t *tools)
{
    char *text = json_dumps(tools, JSON_INDENT(4));
    bool ok = text && json_object_set_new(vars, "functions", json_string(text)) == 0 &&
              json_object_set_new(vars, "datetime", json_string("")) == 0;

    free(text);
    return ok;
}

/* Variables given by fields of the request; chat_template_kwargs override them. false: no memory.
 */
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

/* ---- rendering ---- */

/* Adds an empty description where there is none. false: no memory; *changed: one was added. */
static bool add_description(json_t *to, bool *changed)
{
    if (!json_is_object(to) || json_object_get(to, "description")) return true;
    *changed = true;
    return json_object_set_new(to, "description", json_string("")) == 0;
}

static bool complete_function(json_t *fn, bool *changed)
{
    const char *name;
    json_t *prop;
    bool ok = add_description(fn, changed);

    if (!json_is_object(json_object_get(fn, "parameters"))) {
        *changed = true;
        ok &= json_object_set_new(fn, "parameters",
                                  json_pack("{s:s, s:{}}", "type", "object", "properties")) == 0;
    }
    json_object_foreach (json_object_get(json_object_get(fn, "parameters"), "properties"), name,
                         prop)
        ok &= add_description(prop, changed);
    return ok;
}

/* A copy of the tools with every optional member. NULL and OK: nothing was missing. */
static int complete_tools(const json_t *tools, json_t **out, struct err *e)
{
    json_t *all = json_deep_copy(tools);
    bool changed = false, ok = all != NULL;

    for (size_t i = 0; i < json_array_size(all); i++)
        ok &= complete_function(json_object_get(json_array_get(all, i), "function"), &changed);
    *out = NULL;
    if (ok && changed) *out = all;
    else json_decref(all);
    return ok ? OK : err_nomem(e, "the tools of the request");
}

/* Some templates read members that a tool need not have. If rendering fails, it is tried again with
 * all of them, empty; if that fails too, the first error is the one reported. */
static int render_prompt(const struct call *c, struct chat_template_input *in, struct buf *text,
                         struct err *e)
{
    int rc = chat_template_render(c->model->chat, in, text, e), again_rc;
    struct err again = { 0 };
    json_t *complete = NULL;

    if (rc == OK) return buf_check(text, e);
    if (rc == E_NOMEM || !in->tools) return rc;
    if ((again_rc = complete_tools(in->tools, &complete, &again)) == OK && complete) {
        buf_clear(text);
        in->tools = complete;
        again_rc = chat_template_render(c->model->chat, in, text, &again);
        if (again_rc == OK) again_rc = rc = buf_check(text, &again);
        json_decref(complete);
    }
    if (again_rc != E_NOMEM) return rc;
    *e = again;
    return again_rc;
}

/* ---- tool calls and reasoning in the answer ---- */

static bool is_forced(const struct call *c)
{
    return c->p.tools && (c->p.tool_choice == TOOL_REQUIRED || c->p.tool_choice == TOOL_NAMED);
}

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
    if (c->p.grammar_field || !g->calls || !tools || (f.lazy && !has_strict(tools))) return OK;
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

    g->calls = toolfamily_find(template);
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

static int encode_rendered(struct call *c, struct str template, const struct template_json *j,
                           struct ids *ids, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct chat_template_input in = { .messages = j->messages,
                                      .tools = j->tools,
                                      .documents = c->p.documents,
                                      .kwargs = j->vars,
                                      .no_generation_prompt = !c->p.add_prompt,
                                      .continue_final = c->p.continue_final };
    struct buf text = { 0 };
    int rc = render_prompt(c, &in, &text, e);

    if (rc != OK && rc != E_NOMEM) {
        call_blame(c, "messages");
        err_wrap(e, "the model's chat template refuses these messages");
    }
    if (rc == OK) rc = tokenizer_encode(t, buf_str(&text), 0, ids, e);
    if (rc == OK) rc = set_parsing(c, template, buf_str(&text), e);
    if (rc == OK) rc = set_tool_grammar(c, template, j->tools, e);
    buf_release(&text);
    return rc;
}

static int encode_by_template(struct call *c, struct ids *ids, struct err *e)
{
    const struct chat_template *chat = c->model->chat;
    struct str template = chat_template_text(chat, c->p.tools != NULL);
    const struct toolfamily *family = toolfamily_find(template);
    struct template_json j = { 0 };
    int rc;

    if (!copy_messages(c, template, &j) || !copy_tools(c, &j) || !make_variables(c, family, &j))
        rc = err_nomem(e, "the messages of the request");
    else if (j.tools && !chat_template_takes_tools(chat) && !family)
        rc = refuse_field(c, e, "tools", "the chat template of this model does not support tools");
    else rc = encode_rendered(c, template, &j, ids, e);
    release_json(&j);
    return rc;
}

static int check_messages_length(struct call *c, struct err *e)
{
    struct str *texts = arena_array(&c->arena, (size_t)c->p.n_msgs, sizeof *texts);

    if (!texts) return err_nomem(e, "the messages of the request");
    for (int i = 0; i < c->p.n_msgs; i++) texts[i] = c->p.msgs[i].content;
    return call_check_length(c, texts, c->p.n_msgs, "messages", e);
}

static int start_chat(struct call *c, struct err *e)
{
    const struct tokenizer *t;
    struct ids ids = { 0 };
    struct str stop = STR("");
    int rc;

    if ((rc = call_read_body(c, BODY_CHAT, e)) != OK) return rc;
    if (!(t = engine_tokenizer(c->model->engine))) {
        call_blame(c, "messages");
        return err_set(e, E_INVALID,
                       "the model %s has no tokenizer: send token ids to /v1/completions",
                       c->model->id);
    }
    if ((rc = check_messages_length(c, e)) != OK) return rc;
    if (c->model->chat) {
        rc = encode_by_template(c, &ids, e);
    } else if ((rc = check_guessed_form(c, e)) == OK) {
        rc = chatform_encode(c->model->form, t, c->p.msgs, (size_t)c->p.n_msgs, &ids, e);
        stop = chatform_stop(c->model->form);
    }
    if (rc == OK) rc = ids_check(&ids, e);
    if (rc == OK) rc = call_submit_prompts(c, &ids, 1, stop, e);
    ids_release(&ids);
    return rc;
}

void api_chat(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/chat/completions");
    struct err e = { 0 };

    if (!c) return;
    if (start_chat(c, &e) != OK) call_fail(c, &e, c->p.param);
    call_end_handler(c);
}

/* A body that is not JSON goes to completions, which reports what is wrong with it. */
void api_execute(struct api *a, struct http_req *q, const struct api_who *who)
{
    json_t *root = NULL;
    struct err e = { 0 };
    struct call *c;
    int rc = body_parse(&root, http_body(q), &e);
    bool chat = rc == OK && json_object_get(root, "messages");

    json_decref(root);
    if (rc == E_NOMEM) {
        if (!(c = call_open(a, q, who, "/v1/completions"))) return;
        call_fail(c, &e, NULL);
        call_end_handler(c);
    } else if (chat) {
        api_chat(a, q, who);
    } else {
        api_completions(a, q, who);
    }
}
