/* convo.c - see convo.h. */
#include "api/convo.h"

bool convo_set(json_t *obj, const char *key, json_t *value)
{
    return json_object_set_new(obj, key, value) == 0;
}

json_t *convo_string(struct str s) { return json_stringn(s.p ? s.p : "", s.n); }

/* A new message at the end; NULL: no memory. */
static json_t *add_message(struct convo *v, struct str role)
{
    json_t *msg = json_object();

    if (!v->messages) v->messages = json_array();
    if (!convo_set(msg, "role", convo_string(role)) ||
        json_array_append_new(v->messages, json_incref(msg)) != 0) {
        json_decref(msg);
        v->failed = true;
        return NULL;
    }
    json_decref(msg); /* the array has it */
    return msg;
}

/* The texts of the open message become its members: once, since each setting copies all of it. */
static void set_texts(struct convo *v)
{
    v->failed |= v->text.failed || v->thought.failed;
    if (v->open && v->text.n)
        v->failed |= !convo_set(v->open, "content", convo_string(buf_str(&v->text)));
    if (v->open && v->thought.n)
        v->failed |= !convo_set(v->open, "reasoning_content", convo_string(buf_str(&v->thought)));
    buf_clear(&v->text);
    buf_clear(&v->thought);
}

void convo_end_turn(struct convo *v)
{
    set_texts(v);
    v->open = NULL;
}

/* The assistant's message that is open, or a new one. */
static json_t *open_assistant(struct convo *v)
{
    if (!v->open && (v->open = add_message(v, STR("assistant"))))
        v->failed |= !convo_set(v->open, "content", convo_string(STR("")));
    return v->open;
}

/* Text after tool calls begins a message of its own: a template writes the text first. */
static json_t *open_before_calls(struct convo *v)
{
    if (v->open && json_object_get(v->open, "tool_calls")) convo_end_turn(v);
    return open_assistant(v);
}

/* Separated by a blank line from what is there. */
static void append_text(struct buf *all, struct str text)
{
    if (all->n) buf_puts(all, "\n\n");
    buf_put_str(all, text);
}

void convo_add_text(struct convo *v, struct str role, struct str text)
{
    json_t *msg;

    if (str_is(role, "assistant")) {
        if (open_before_calls(v)) append_text(&v->text, text);
        return;
    }
    convo_end_turn(v);
    if ((msg = add_message(v, role))) v->failed |= !convo_set(msg, "content", convo_string(text));
}

void convo_add_reasoning(struct convo *v, struct str text)
{
    if (open_before_calls(v)) append_text(&v->thought, text);
}

/* The latest call with an id is the one that a result belongs to. */
static void index_call(struct convo *v, const json_t *call)
{
    const json_t *id = json_object_get(call, "id"), *fn = json_object_get(call, "function");

    if (json_is_string(id))
        v->failed |= map_put(&v->calls, body_str(id), (uint64_t)(uintptr_t)fn) < 0;
}

void convo_add_call(struct convo *v, struct str id, struct str name, struct str args)
{
    json_t *msg = open_assistant(v), *call = json_object(), *fn = json_object(), *list;

    if (!msg) goto out;
    set_texts(v);
    if (!(list = json_object_get(msg, "tool_calls"))) {
        v->failed |= !convo_set(msg, "tool_calls", json_array());
        list = json_object_get(msg, "tool_calls");
    }
    v->failed |= !convo_set(fn, "name", convo_string(name)) ||
                 !convo_set(fn, "arguments", convo_string(args)) ||
                 !convo_set(call, "id", convo_string(id)) ||
                 !convo_set(call, "type", json_string("function")) ||
                 !convo_set(call, "function", json_incref(fn)) ||
                 json_array_append_new(list, json_incref(call)) != 0;
    if (!v->failed) index_call(v, call);
out:
    v->failed |= !call || !fn;
    json_decref(call);
    json_decref(fn);
}

/* The name of the call with this id; empty: there is none. */
static struct str find_call_name(const struct convo *v, struct str id)
{
    const json_t *name;
    uint64_t fn;

    if (!map_get(&v->calls, id, &fn)) return STR("");
    name = json_object_get((const json_t *)(uintptr_t)fn, "name");
    return json_is_string(name) ? body_str(name) : STR("");
}

void convo_add_result(struct convo *v, struct str id, struct str name, struct str text)
{
    json_t *msg;

    convo_end_turn(v);
    if (!name.n) name = find_call_name(v, id);
    if (!(msg = add_message(v, STR("tool")))) return;
    v->failed |= !convo_set(msg, "tool_call_id", convo_string(id)) ||
                 (name.n && !convo_set(msg, "name", convo_string(name))) ||
                 !convo_set(msg, "content", convo_string(text));
}

void convo_add_messages(struct convo *v, const json_t *messages)
{
    convo_end_turn(v);
    if (!v->messages) v->messages = json_array();
    v->failed |= !v->messages || json_array_extend(v->messages, (json_t *)messages) != 0;
    for (size_t i = 0; i < json_array_size(messages) && !v->failed; i++) {
        const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) index_call(v, json_array_get(calls, k));
    }
}

size_t convo_count(const struct convo *v) { return json_array_size(v->messages); }

int convo_take(struct convo *v, json_t **out, struct err *e)
{
    convo_end_turn(v);
    if (!v->messages) v->messages = json_array();
    if (v->failed || !v->messages) {
        convo_release(v);
        return err_nomem(e, "the messages of the request");
    }
    *out = v->messages;
    v->messages = NULL;
    convo_release(v);
    return OK;
}

void convo_release(struct convo *v)
{
    json_decref(v->messages);
    map_release(&v->calls);
    buf_release(&v->text);
    buf_release(&v->thought);
    *v = (struct convo){ 0 };
}

json_t *convo_tool(struct str name, const json_t *description, const json_t *parameters,
                   const json_t *strict)
{
    json_t *tool = json_object(), *fn = json_object();

    if (convo_set(fn, "name", convo_string(name)) &&
        (!description || json_object_set(fn, "description", (json_t *)description) == 0) &&
        (!parameters || json_object_set(fn, "parameters", (json_t *)parameters) == 0) &&
        (!strict || json_object_set(fn, "strict", (json_t *)strict) == 0) &&
        convo_set(tool, "type", json_string("function")) &&
        convo_set(tool, "function", json_incref(fn))) {
        json_decref(fn);
        return tool;
    }
    json_decref(fn);
    json_decref(tool);
    return NULL;
}
