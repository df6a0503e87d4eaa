/* POST /v1/chat/completions */
#include "api/call.h"
#include "toolcall/toolforce.h"
#include "pool/template.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- models without a template: a form that is guessed ---- */

/* These forms have no turn for it: it is written into a question. */
static bool wants_system_first(enum chat_form f)
{
    return f == CHAT_LLAMA2 || f == CHAT_MISTRAL || f == CHAT_GEMMA;
}

static int refuse(struct call *c, struct err *e, const char *param, const char *what)
{
    snprintf(c->p.param, sizeof c->p.param, "%s", param);
    return err_set(e, E_INVALID, "%s: %s", param, what);
}

static int check_guessed(struct call *c, struct err *e)
{
    char at[PARAM_MAX];

    if (c->p.tools)
        return refuse(c, e, "tools",
                      "the model has no chat template, so there is no place for them");
    if (c->p.go_on)
        return refuse(c, e, "continue_final_message", "needs a model with a chat template");
    for (int i = 0; i < c->p.n_msgs; i++) {
        struct str role = c->p.msgs[i].role;
        snprintf(at, sizeof at, "messages[%d].role", i);
        if (str_is(role, "tool") || str_is(role, "function"))
            return refuse(
                c, e, at,
                "is tool, but the model has no chat template, so there is no place for it");
        if (i > 0 && wants_system_first(c->model->form) && str_is(role, "system"))
            return refuse(c, e, at,
                          "is system, but this model takes a system message only as the first");
    }
    return OK;
}

/* ---- models with one ---- */

/* Messages as they came; "developer" is "system" to those that do not know it. */
static json_t *messages_for(const struct call *c, struct str template)
{
    json_t *all = json_deep_copy(c->p.messages), *msg;
    bool known = str_find(template, STR("developer")) >= 0;
    size_t i;

    json_array_foreach (all, i, msg) {
        const json_t *role = json_object_get(msg, "role");
        if (!known && str_is(body_str(role), "developer"))
            json_object_set_new(msg, "role", json_string("system"));
    }
    return all;
}

static json_t *variables_for(const struct call *c, const struct tool_family *family)
{
    json_t *vars = json_object();

    if (c->p.reasoning_effort.p)
        json_object_set_new(vars, "reasoning_effort",
                            json_stringn(c->p.reasoning_effort.p, c->p.reasoning_effort.n));
    if (c->p.has_thinking)
        json_object_set_new(vars, "enable_thinking", json_boolean(c->p.thinking));
    if (c->p.tools && family && !strcmp(family->name, "firefunction")) { /* takes them as a text */
        char *text = json_dumps(c->p.tools, JSON_INDENT(4));
        json_object_set_new(vars, "functions", json_string(text ? text : "[]"));
        json_object_set_new(vars, "datetime", json_string(""));
        free(text);
    }
    if (c->p.template_vars) json_object_update(vars, (json_t *)c->p.template_vars);
    return vars;
}

/* A call of one tool is asked for: the others are not shown. */
static json_t *tools_for(const struct call *c)
{
    json_t *some, *tool;
    size_t i;

    if (!c->p.tools) return NULL;
    some = json_array();
    json_array_foreach ((json_t *)c->p.tools, i, tool) {
        struct str name = body_str(json_object_get(json_object_get(tool, "function"), "name"));
        if (c->p.tool_choice != TOOL_NAMED || str_eq(name, c->p.tool_name))
            json_array_append(some, tool);
    }
    return some;
}

static bool describe(json_t *of)
{
    return json_is_object(of) && !json_object_get(of, "description") &&
           json_object_set_new(of, "description", json_string("")) == 0;
}

/* Tools with all that they may leave out; NULL: they leave out nothing. */
static json_t *filled_tools(const json_t *tools)
{
    json_t *all = json_deep_copy(tools), *fn, *prop;
    const char *name;
    bool some = false;

    for (size_t i = 0; i < json_array_size(all); i++) {
        fn = json_object_get(json_array_get(all, i), "function");
        some |= describe(fn);
        if (!json_is_object(json_object_get(fn, "parameters"))) {
            json_object_set_new(fn, "parameters",
                                json_pack("{s:s, s:{}}", "type", "object", "properties"));
            some = true;
        }
        json_object_foreach (json_object_get(json_object_get(fn, "parameters"), "properties"), name,
                             prop)
            some |= describe(prop);
    }
    if (some) return all;
    json_decref(all);
    return NULL;
}

/* Some templates ask for what a tool need not have: then they get it, empty. */
static int render(const struct call *c, struct chat_template_input *ask, struct buf *text,
                  struct err *e)
{
    int rc = chat_template_render(c->model->chat, ask, text, e);
    json_t *filled = rc != OK && ask->tools ? filled_tools(ask->tools) : NULL;
    struct err again = { 0 };

    if (!filled) return rc;
    buf_clear(text);
    ask->tools = filled;
    if (chat_template_render(c->model->chat, ask, text, &again) == OK) rc = OK;
    json_decref(filled);
    return rc;
}

static bool is_forced(const struct call *c)
{
    return c->p.tools && (c->p.tool_choice == TOOL_REQUIRED || c->p.tool_choice == TOOL_NAMED);
}

static bool any_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(
                json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return true;
    return false;
}

/* A call that must come, or that must keep to its schema if it does, is a matter of grammar. */
static void set_grammar(struct call *c, struct str template, const json_t *tools)
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

    if (c->p.grammar_field) toolforce_lead(g->calls, g->think, g->prompt_end, &c->p.grammar);
    if (c->p.grammar_field || !g->calls || !tools || (f.lazy && !any_strict(tools))) return;
    if (toolforce_put(&f, &text, &c->p.grammar)) {
        c->p.grammar.text = arena_str(&c->arena, buf_str(&text));
        c->p.grammar_field = "tools";
        c->parsing.forced = !f.lazy;
    }
    buf_release(&text);
}

/* The special tokens a mark is made of must be seen. */
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

/* Reasoning is always looked for, calls where there are tools; channels are how some models write
 * everything. */
static void set_parsing(struct call *c, struct str template, struct str prompt)
{
    enum { END = 64 };
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct parsing *g = &c->parsing;
    const char *marks[TOOLS_MARKS];

    g->calls = tools_family(template);
    g->think = tools_think(template);
    if (!g->calls && is_forced(c)) g->calls = toolforce_plain();
    if (g->calls && !c->p.tools && g->calls->payload != PAYLOAD_HARMONY) g->calls = NULL;
    g->on = g->calls || g->think;
    g->prompt_end =
        arena_str(&c->arena, prompt.n > END ? str_skip(prompt, prompt.n - END) : prompt);
    tools_marks(g->calls, g->think, marks);
    for (int i = 0; marks[i]; i++) show_specials(g, t, str_c(marks[i]));
}

static int encode_by_template(struct call *c, struct ids *ids, struct err *e)
{
    const struct chat_template *chat = c->model->chat;
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct str template = chat_template_text(chat, c->p.tools != NULL);
    json_t *messages = messages_for(c, template), *tools = tools_for(c),
           *vars = variables_for(c, tools_family(template));
    struct chat_template_input ask = { .messages = messages,
                                       .tools = tools,
                                       .documents = c->p.documents,
                                       .kwargs = vars,
                                       .no_generation_prompt = !c->p.add_prompt,
                                       .continue_final = c->p.go_on };
    struct buf text = { 0 };
    int rc;

    if (tools && !chat_template_takes_tools(chat) && !tools_family(template)) {
        rc = refuse(c, e, "tools", "the chat template of this model has no place for them");
    } else if ((rc = render(c, &ask, &text, e)) != OK) {
        snprintf(c->p.param, sizeof c->p.param, "messages");
        err_wrap(e, "the model's chat template does not take these messages");
    } else if ((rc = tokenizer_encode(t, buf_str(&text), 0, ids, e)) == OK) {
        set_parsing(c, template, buf_str(&text));
        set_grammar(c, template, tools);
    }
    buf_release(&text);
    json_decref(messages);
    json_decref(tools);
    json_decref(vars);
    return rc;
}

/* ---- both ---- */

static int check_length(struct call *c, struct err *e)
{
    struct str *texts = arena_array(&c->arena, (size_t)c->p.n_msgs, sizeof *texts);

    for (int i = 0; i < c->p.n_msgs; i++) texts[i] = c->p.msgs[i].content;
    return call_check_size(c, texts, c->p.n_msgs, "messages", e);
}

static int run(struct call *c, struct err *e)
{
    const struct tokenizer *t;
    struct ids ids = { 0 };
    int rc;

    if ((rc = call_read(c, BODY_CHAT, e)) != OK) goto out;
    if (!(t = engine_tokenizer(c->model->engine))) {
        snprintf(c->p.param, sizeof c->p.param, "messages");
        rc = err_set(e, E_INVALID,
                     "the model %s has no tokenizer: it takes token ids only, at /v1/completions",
                     c->model->id);
        goto out;
    }
    if ((rc = check_length(c, e)) != OK) goto out;
    if (c->model->chat) {
        if ((rc = encode_by_template(c, &ids, e)) == OK) rc = call_submit(c, &ids, 1, STR(""), e);
        goto out;
    }
    if ((rc = check_guessed(c, e)) != OK) goto out;
    rc = chatform_encode(c->model->form, t, c->p.msgs, (size_t)c->p.n_msgs, &ids, e);
    if (rc == OK) rc = call_submit(c, &ids, 1, chatform_stop(c->model->form), e);
out:
    ids_release(&ids);
    return rc;
}

void api_chat(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/chat/completions");
    struct err e = { 0 };

    if (run(c, &e) != OK) call_fail(c, &e, c->p.param);
    call_release(c);
}
