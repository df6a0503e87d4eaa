/* prompter.c - the chat template of a model, or its form where there is none.
 *
 * Templates are code from the model's file. They run in src/jinja with limits on steps and memory;
 * an error in one refuses the request and nothing else. */
#include "pool/prompter.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "jinja/chattemplate.h"
#include "pool/promptborder.h"

#include <stdio.h>

struct prompter {
    const struct tokenizer *t;
    struct chat_template *tmpl; /* NULL: the form is used */
    enum chat_form form;
};

/* ---- opening ---- */

static struct str special_piece(const struct tokenizer *t, int32_t id)
{
    return id >= 0 ? tokenizer_piece(t, id) : (struct str){ 0 };
}

/* The file if one is given, else the model's own template; special tokens are its variables. */
static int open_template(struct prompter *p, const char *file, struct err *e)
{
    const struct tokenizer *t = p->t;
    struct chat_template_source src = { .text = tokenizer_chat_template(t),
                                        .tools = tokenizer_tool_template(t),
                                        .bos = special_piece(t, tokenizer_bos(t)),
                                        .eos = special_piece(t, tokenizer_eos(t)),
                                        .unk = special_piece(t, tokenizer_unk(t)),
                                        .pad = special_piece(t, tokenizer_pad(t)) };
    bool given = file && *file;
    struct buf text = { 0 };
    struct err why = { 0 };
    int rc = OK;

    if (given) {
        if ((rc = file_read(&text, file, JINJA_MAX_SOURCE, e)) != OK) goto out;
        src.text = buf_str(&text);
        src.tools = STR("");
        src.name = path_base(file);
    }
    if (!src.text.n && src.tools.n) src.text = src.tools;
    if (!src.text.n && !given) goto out;
    rc = chat_template_open(&p->tmpl, &src, &why);
    if (rc != OK && (given || rc == E_NOMEM)) {
        if (e) *e = why;
    } else if (rc != OK) {
        log_warn("the model's chat template cannot be used; taking the form %s: %s",
                 chatform_name(p->form), why.msg);
        rc = OK;
    }
out:
    buf_release(&text);
    return rc;
}

int prompter_open(struct prompter **out, const struct tokenizer *t, const char *file, struct err *e)
{
    struct prompter *p = mem_new(struct prompter);
    int rc;

    if (!p) return err_nomem(e, "the chat template");
    p->t = t;
    p->form = chatform_of(t);
    if ((rc = open_template(p, file, e)) == OK) *out = p;
    else prompter_close(p);
    return rc;
}

void prompter_close(struct prompter *p)
{
    if (!p) return;
    chat_template_close(p->tmpl);
    mem_free(p);
}

bool prompter_knows_chat(const struct prompter *p) { return p->tmpl || p->form != CHAT_NONE; }

struct str prompter_template(const struct prompter *p, bool tools)
{
    return p->tmpl ? chat_template_text(p->tmpl, tools) : STR("");
}

bool prompter_takes_tools(const struct prompter *p)
{
    return p->tmpl && chat_template_takes_tools(p->tmpl);
}

struct str prompter_stop(const struct prompter *p)
{
    return p->tmpl ? STR("") : chatform_stop(p->form);
}

const char *prompter_name(const struct prompter *p)
{
    return p->tmpl ? "template" : chatform_name(p->form);
}

/* ---- messages ---- */

static int refuse_field(struct prompt_output *out, const char *field, const char *what,
                        struct err *e)
{
    snprintf(out->field, sizeof out->field, "%s", field);
    return err_set(e, E_INVALID, "%s: %s", field, what);
}

static bool is_template_role(struct str role)
{
    return str_is(role, "system") || str_is(role, "user") || str_is(role, "assistant") ||
           str_is(role, "tool");
}

/* *out: the messages as a template takes them. */
static int make_messages(const struct prompt_input *in, json_t **out, struct err *e)
{
    json_t *list = json_array();

    if (!list) return err_nomem(e, "the messages");
    for (size_t i = 0; i < in->n_msgs; i++) {
        struct str role = in->msgs[i].role, text = in->msgs[i].content;
        json_t *msg;
        if (!is_template_role(role)) {
            json_decref(list);
            return err_set(e, E_INVALID,
                           "message %zu has the role '%.*s': it must be system, user, assistant "
                           "or tool",
                           i, STR_ARG(str_take(role, 40)));
        }
        msg = json_pack("{s:s%, s:s%}", "role", role.p, role.n, "content", text.p ? text.p : "",
                        text.n);
        if (msg && json_array_append_new(list, msg) == 0) continue;
        json_decref(list);
        return err_set(e, E_INVALID, "message %zu is not valid UTF-8", i);
    }
    *out = list;
    return OK;
}

/* Puts a message to place *n and counts it: *n is at most the place where it is. */
static bool keep_message(json_t *all, size_t *n, json_t *msg)
{
    size_t to = (*n)++;
    return json_array_get(all, to) == msg || json_array_set(all, to, msg) == 0;
}

/* From the end, where removing moves nothing. */
static bool cut_messages(json_t *all, size_t n)
{
    bool ok = true;

    while (ok && json_array_size(all) > n)
        ok = json_array_remove(all, json_array_size(all) - 1) == 0;
    return ok;
}

/* Removes system messages without a text, and writes an assistant's content that is null as "": both
 * would come out of some templates as an empty turn, or as the word None. One message stays. */
static bool clean_messages(json_t *all)
{
    size_t n = 0, size = json_array_size(all);
    bool ok = true;

    for (size_t i = 0; i < size && ok; i++) {
        json_t *msg = json_array_get(all, i), *content = json_object_get(msg, "content");
        const char *role = json_string_value(json_object_get(msg, "role"));
        bool empty = !content || json_is_null(content) ||
                     (json_is_string(content) && !json_string_length(content));
        if (role && empty && !strcmp(role, "system") && (n || i + 1 < size)) continue;
        if (role && empty && !json_is_string(content))
            ok = json_object_set_new(msg, "content", json_string("")) == 0;
        ok = ok && keep_message(all, &n, msg);
    }
    return ok && cut_messages(all, n);
}

/* The API's messages; "developer" becomes "system" if the template does not know that role. */
static int copy_messages(const struct prompt_input *in, struct str tmpl, json_t **out,
                         struct err *e)
{
    bool knows_developer = str_find(tmpl, STR("developer")) >= 0;
    json_t *all = json_deep_copy(in->messages), *msg;
    size_t i;

    if (!all) return err_nomem(e, "the messages");
    json_array_foreach (all, i, msg) {
        const char *role = json_string_value(json_object_get(msg, "role"));
        if (knows_developer || !role || !str_is(str_c(role), "developer")) continue;
        if (json_object_set_new(msg, "role", json_string("system")) != 0) {
            json_decref(all);
            return err_nomem(e, "the messages");
        }
    }
    *out = all;
    return clean_messages(all) ? OK : err_nomem(e, "the messages");
}

/* ---- conversations that a template refuses ---- */

static const char *role_of(const json_t *msg)
{
    const char *role = json_string_value(json_object_get(msg, "role"));
    return role ? role : "";
}

static bool is_role(const json_t *msg, const char *role) { return !strcmp(role_of(msg), role); }

/* Both have a text and nothing else that would be lost. */
static bool can_join(const json_t *a, const json_t *b)
{
    return !json_object_get(a, "tool_calls") && !json_object_get(b, "tool_calls") &&
           json_is_string(json_object_get(a, "content")) &&
           json_is_string(json_object_get(b, "content"));
}

/* A message whose text grows: the texts are collected, and set at the end. */
struct joined {
    json_t *msg; /* borrowed; NULL: none */
    struct buf text;
};

static void join_text(struct joined *j, json_t *to, const json_t *msg)
{
    const json_t *old = json_object_get(to, "content"), *more = json_object_get(msg, "content");

    if (!j->msg) buf_add(&j->text, json_string_value(old), json_string_length(old));
    j->msg = to;
    if (j->text.n && json_string_length(more)) buf_puts(&j->text, "\n\n");
    buf_add(&j->text, json_string_value(more), json_string_length(more));
}

static bool end_join(struct joined *j)
{
    struct str all = buf_str(&j->text);
    bool ok = !j->text.failed &&
              (!j->msg || json_object_set_new(j->msg, "content",
                                              json_stringn(all.p ? all.p : "", all.n)) == 0);

    j->msg = NULL;
    buf_clear(&j->text);
    return ok;
}

/* Messages of the same role that follow each other become one: many templates demand that user and
 * assistant alternate. All system messages come first, as one. *changed: there were some. */
static bool join_messages(json_t *all, bool *changed)
{
    size_t n = json_array_size(all) > 0, size = json_array_size(all);
    struct joined systems = { 0 }, run = { 0 };
    json_t *first = json_array_get(all, 0), *last = first;
    bool ok = true;

    for (size_t i = 1; i < size && ok; i++) {
        json_t *msg = json_array_get(all, i);
        if (is_role(msg, "system") && is_role(first, "system") && can_join(first, msg)) {
            join_text(&systems, first, msg);
            continue;
        }
        if (strcmp(role_of(msg), role_of(last)) == 0 && !is_role(msg, "tool") &&
            can_join(last, msg)) {
            join_text(&run, last, msg);
            continue;
        }
        ok = end_join(&run) && keep_message(all, &n, msg);
        last = msg;
    }
    ok = end_join(&run) && end_join(&systems) && ok;
    *changed |= n < size;
    buf_release(&run.text);
    buf_release(&systems.text);
    return ok && cut_messages(all, n);
}

/* "developer" becomes "system", and the system messages move to the front, as one. */
static bool lift_system(json_t *all, bool *changed)
{
    size_t i, at = 0;
    json_t *msg;
    bool ok = true;

    json_array_foreach (all, i, msg) {
        if (is_role(msg, "developer")) {
            *changed = true;
            ok = ok && json_object_set_new(msg, "role", json_string("system")) == 0;
        }
        if (!at && i && is_role(msg, "system")) at = i;
    }
    if (ok && at && !is_role(json_array_get(all, 0), "system")) {
        *changed = true;
        msg = json_incref(json_array_get(all, at));
        ok = json_array_remove(all, at) == 0 && json_array_insert_new(all, 0, msg) == 0;
    }
    return ok && (!*changed || join_messages(all, changed));
}

/* For templates without a system role: the text is put before that of the first user message. */
static bool move_system(json_t *all, bool *changed)
{
    json_t *system = json_array_get(all, 0), *next = json_array_get(all, 1);
    struct joined j = { 0 };
    bool ok;

    if (!is_role(system, "system") || !next || !is_role(next, "user") || !can_join(system, next))
        return true;
    *changed = true;
    join_text(&j, system, next);
    j.msg = next;
    ok = end_join(&j) && json_array_remove(all, 0) == 0;
    buf_release(&j.text);
    return ok;
}

/* ---- tools ---- */

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

/* ---- rendering ---- */

/* No other try will help. */
static bool is_final(int rc)
{
    return rc == OK || rc == E_NOMEM || rc == E_CANCELLED || rc == E_DEADLINE;
}

/* Some templates read members that a tool need not have. If rendering fails, it is tried again with
 * all of them, empty; if that fails too, the first error is the one reported. */
static int render_template(const struct prompter *p, struct chat_template_input *in,
                           struct buf *text, struct err *e)
{
    int rc = chat_template_render(p->tmpl, in, text, e), again_rc;
    struct err again = { 0 };
    json_t *complete = NULL;

    if (rc == OK) return buf_check(text, e);
    if (is_final(rc) || !in->tools) return rc;
    if ((again_rc = complete_tools(in->tools, &complete, &again)) == OK && complete) {
        in->tools = complete;
        again_rc = chat_template_render(p->tmpl, in, text, &again);
        if (again_rc == OK) again_rc = rc = buf_check(text, &again);
        json_decref(complete);
    }
    if (again_rc == OK || !is_final(again_rc)) return rc;
    if (e) *e = again;
    return again_rc;
}

/* After a template has refused the messages: in other forms that mean the same. If all are refused, the
 * first error is the one reported. */
static int render_changed(const struct prompter *p, struct chat_template_input *ask,
                          json_t *messages, struct buf *text, int first_rc, struct err *e)
{
    bool (*const changes[])(json_t * all, bool *changed) = { join_messages, lift_system,
                                                             move_system };
    struct err again = { 0 };
    int rc = first_rc;

    for (int i = 0; i < 3 && rc != OK; i++) {
        bool changed = false;
        if (!changes[i](messages, &changed)) return err_nomem(e, "the messages");
        if (!changed) continue;
        rc = render_template(p, ask, text, &again);
        if (rc != OK && is_final(rc)) {
            if (e) *e = again;
            return rc;
        }
    }
    return rc == OK ? OK : first_rc;
}

/* ---- borders ---- */

static void add_border(struct prompt_output *out, int at)
{
    promptborder_add(out->borders, &out->n_borders, PROMPT_BORDERS, at);
}

/* Renders other messages, without the opening of the assistant's turn: where that text parts from the
 * prompt is a border. false: the template refuses them, or there is no memory. */
static bool add_border_of(const struct prompter *p, struct chat_template_input ask,
                          const json_t *messages, struct prompt_output *out)
{
    struct str prompt = buf_str(&out->text);
    struct buf text = { 0 };
    bool ok;

    ask.messages = messages;
    ask.no_generation_prompt = true;
    ok = messages && render_template(p, &ask, &text, NULL) == OK;
    if (ok) {
        size_t at = promptborder_common(prompt, buf_str(&text));
        add_border(out, promptborder_tokens(p->t, prompt, &out->ids, at));
    }
    buf_release(&text);
    return ok;
}

/* The first n messages, not copied; NULL: no memory. */
static json_t *take_messages(const json_t *messages, size_t n)
{
    json_t *list = json_array();
    bool ok = list != NULL;

    for (size_t i = 0; i < n && ok; i++)
        ok = json_array_append(list, json_array_get(messages, i)) == 0;
    if (ok) return list;
    json_decref(list);
    return NULL;
}

/* Appends a message whose text begins otherwise than others. NULL, and list is gone: no memory. */
static json_t *append_probe(json_t *list, const char *role)
{
    json_t *msg = json_pack("{s:s, s:s}", "role", role, "content", "\x7f");

    if (json_array_append_new(list, msg) == 0) return list; /* takes msg over in any case */
    json_decref(list);
    return NULL;
}

/* The messages of the system, and one of a user. */
static json_t *take_system(const json_t *messages)
{
    size_t n = 0;

    while (is_role(json_array_get(messages, n), "system") ||
           is_role(json_array_get(messages, n), "developer"))
        n++;
    return append_probe(take_messages(messages, n), "user");
}

/* The conversation with its next turn: templates leave the reasoning out of an answer that a user's
 * message follows. A result of a tool is followed by an answer that has it still. */
static json_t *take_next(const json_t *messages)
{
    size_t n = json_array_size(messages);
    json_t *list = append_probe(take_messages(messages, n), "assistant");

    return is_role(json_array_get(messages, n - 1), "tool") ? list : append_probe(list, "user");
}

/* Borders that cannot be found are left out. */
static void find_borders(const struct prompter *p, const struct chat_template_input *ask,
                         struct prompt_output *out)
{
    size_t n = json_array_size(ask->messages);
    json_t *system = take_system(ask->messages), *next = take_next(ask->messages), *before = NULL;

    if (n > 1) before = take_messages(ask->messages, n - 1);
    if (ask->no_generation_prompt || ask->continue_final) add_border(out, (int)out->ids.n);
    else if (!add_border_of(p, *ask, next, out)) add_border_of(p, *ask, ask->messages, out);
    add_border_of(p, *ask, before, out);
    add_border_of(p, *ask, system, out);
    json_decref(system);
    json_decref(next);
    json_decref(before);
}

/* Forms write the opening of the assistant's turn always, and always in the same way. */
static void find_form_borders(const struct prompter *p, const struct prompt_input *in,
                              struct prompt_output *out)
{
    struct ids before = { 0 };

    add_border(out, (int)out->ids.n);
    if (in->n_msgs > 1 &&
        chatform_write(p->form, p->t, in->msgs, in->n_msgs - 1, NULL, &before, NULL) == OK &&
        !before.failed)
        add_border(out, promptborder_same(&out->ids, &before));
    ids_release(&before);
}

/* ---- the prompt ---- */

static int make_by_template(const struct prompter *p, const struct prompt_input *in,
                            struct prompt_output *out, struct err *e)
{
    struct jinja_limits limits = { .stop = in->stop, .deadline_ns = in->deadline_ns };
    struct chat_template_input ask = { .limits = &limits,
                                       .tools = in->tools,
                                       .documents = in->documents,
                                       .kwargs = in->vars,
                                       .no_generation_prompt = in->no_generation_prompt,
                                       .continue_final = in->continue_final };
    json_t *messages = NULL;
    int rc;

    if (in->messages) rc = copy_messages(in, prompter_template(p, in->tools != NULL), &messages, e);
    else rc = make_messages(in, &messages, e);
    if (rc != OK) return rc;
    ask.messages = messages;
    rc = render_template(p, &ask, &out->text, e);
    if (!is_final(rc) && in->messages) rc = render_changed(p, &ask, messages, &out->text, rc, e);
    if (!is_final(rc)) {
        snprintf(out->field, sizeof out->field, "messages");
        out->by_template = !e || !str_starts(str_c(e->msg), STR("continue_final_message:"));
        err_wrap(e, "the model's chat template refuses these messages");
    }
    /* The template has written the special tokens: they are matched, none is added. */
    if (rc == OK) rc = tokenizer_encode(p->t, buf_str(&out->text), 0, &out->ids, e);
    ask.tools = in->tools; /* rendering may have completed them */
    if (rc == OK && in->find_borders) find_borders(p, &ask, out);
    json_decref(messages);
    return rc;
}

/* Forms know roles and texts only: tools, results and continued messages need a template. */
static int check_form(const struct prompter *p, const struct prompt_input *in,
                      struct prompt_output *out, struct err *e)
{
    char at[48];

    if (in->tools)
        return refuse_field(out, "tools", "the model has no chat template, so it cannot use tools",
                            e);
    if (in->continue_final)
        return refuse_field(out, "continue_final_message", "needs a model with a chat template", e);
    for (size_t i = 0; i < in->n_msgs; i++) {
        struct str role = in->msgs[i].role;
        snprintf(at, sizeof at, "messages[%zu].role", i);
        if (str_is(role, "tool") || str_is(role, "function"))
            return refuse_field(
                out, at, "is tool, but the model has no chat template, so it cannot use tools", e);
        if (i > 0 && chatform_system_first(p->form) && str_is(role, "system"))
            return refuse_field(
                out, at, "is system, but this model accepts a system message only as the first", e);
    }
    return OK;
}

/* Both ways give the text and its ids; the text is used to find opened reasoning tags. */
int prompter_make(const struct prompter *p, const struct prompt_input *in,
                  struct prompt_output *out, struct err *e)
{
    int rc;

    if (p->tmpl) rc = make_by_template(p, in, out, e);
    else if ((rc = check_form(p, in, out, e)) == OK)
        rc = chatform_write(p->form, p->t, in->msgs, in->n_msgs, &out->text, &out->ids, e);
    if (rc == OK && !p->tmpl && in->find_borders) find_form_borders(p, in, out);
    return rc == OK ? ids_check(&out->ids, e) : rc;
}

void prompt_output_release(struct prompt_output *o)
{
    buf_release(&o->text);
    ids_release(&o->ids);
}

/* ---- tern template ---- */

static int add_special(json_t *vars, const struct tokenizer *t, const char *name, int32_t id,
                       struct err *e)
{
    struct str piece = special_piece(t, id);

    if (!piece.p || json_object_get(vars, name)) return OK;
    if (json_object_set_new(vars, name, json_stringn(piece.p, piece.n)) == 0) return OK;
    return err_nomem(e, "the variables of the template");
}

/* Variables that the caller gave win. */
static int add_specials(json_t *vars, const struct tokenizer *t, struct err *e)
{
    int rc = add_special(vars, t, "bos_token", tokenizer_bos(t), e);

    if (rc == OK) rc = add_special(vars, t, "eos_token", tokenizer_eos(t), e);
    if (rc == OK) rc = add_special(vars, t, "unk_token", tokenizer_unk(t), e);
    if (rc == OK) rc = add_special(vars, t, "pad_token", tokenizer_pad(t), e);
    return rc;
}

int prompter_render_vars(const struct tokenizer *t, const char *file, json_t *vars, struct buf *out,
                         struct err *e)
{
    struct str source = { 0 };
    struct jinja *tmpl = NULL;
    struct buf text = { 0 };
    int rc = OK;

    if (file) {
        if ((rc = file_read(&text, file, JINJA_MAX_SOURCE, e)) != OK) goto out;
        source = buf_str(&text);
    } else {
        source = tokenizer_tool_template(t);
        if (!source.n || !json_array_size(json_object_get(vars, "tools")))
            source = tokenizer_chat_template(t);
        if (!source.n) {
            rc = err_set(e, E_NOTFOUND, "the model has no chat template");
            goto out;
        }
        if ((rc = add_specials(vars, t, e)) != OK) goto out;
    }
    if ((rc = jinja_open(&tmpl, source, file ? path_base(file) : "chat_template", e)) != OK)
        goto out;
    rc = jinja_render(tmpl, vars, NULL, out, e);
    if (rc == OK) rc = buf_check(out, e);
out:
    jinja_close(tmpl);
    buf_release(&text);
    return rc;
}
