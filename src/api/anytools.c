/* anytools.c - see anytools.h. */
#include "api/anytools.h"

#include "base/buf.h"
#include "base/jsonr.h"

static void put_json(struct buf *out, const json_t *v)
{
    jsonr_dump(out, v, JSON_COMPACT | JSON_ENCODE_ANY);
}

/* The text in which the model reads its tools. */
static void put_tools(struct buf *out, const json_t *tools)
{
    buf_puts(out,
             "You can call functions. These are the functions, each with its arguments as a JSON "
             "schema:\n\n<tools>\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        put_json(out, json_object_get(json_array_get(tools, i), "function"));
        buf_putc(out, '\n');
    }
    buf_puts(out, "</tools>\n\nTo call a function, write its name and its arguments like this, and "
                  "nothing after it:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n"
                  "</tool_call>\nYou get its result in the next message. Answer without a call if "
                  "none is needed.");
}

/* A content as text; parts are joined. */
static void put_content(struct buf *out, const json_t *content)
{
    if (json_is_string(content))
        buf_add(out, json_string_value(content), json_string_length(content));
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        buf_add(out, json_string_value(text), json_string_length(text));
    }
}

static void put_calls(struct buf *out, const json_t *calls)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *fn = json_object_get(json_array_get(calls, i), "function"),
                     *args = json_object_get(fn, "arguments");
        if (out->n) buf_putc(out, '\n');
        buf_puts(out, "<tool_call>\n{\"name\": ");
        put_json(out, json_object_get(fn, "name"));
        buf_puts(out, ", \"arguments\": ");
        if (json_is_string(args)) buf_add(out, json_string_value(args), json_string_length(args));
        else if (args) put_json(out, args);
        else buf_puts(out, "{}");
        buf_puts(out, "}\n</tool_call>");
    }
}

static bool is_role(const json_t *msg, const char *role)
{
    const char *is = json_string_value(json_object_get(msg, "role"));
    return is && !strcmp(is, role);
}

static bool add_message(json_t *out, const char *role, const struct buf *text)
{
    json_t *msg = json_object();
    bool ok =
        !text->failed && json_object_set_new(msg, "role", json_string(role)) == 0 &&
        json_object_set_new(msg, "content", json_stringn(text->p ? text->p : "", text->n)) == 0;

    if (ok) return json_array_append_new(out, msg) == 0;
    json_decref(msg);
    return false;
}

/* Results that follow each other are one message of the user. */
static bool add_results(json_t *out, const json_t *messages, size_t *i)
{
    struct buf text = { 0 };
    bool ok;

    for (; *i < json_array_size(messages) && is_role(json_array_get(messages, *i), "tool");
         (*i)++) {
        if (text.n) buf_putc(&text, '\n');
        buf_puts(&text, "<tool_response>\n");
        put_content(&text, json_object_get(json_array_get(messages, *i), "content"));
        buf_puts(&text, "\n</tool_response>");
    }
    ok = add_message(out, "user", &text);
    buf_release(&text);
    return ok;
}

static bool add_calls(json_t *out, const json_t *msg)
{
    struct buf text = { 0 };
    bool ok;

    put_content(&text, json_object_get(msg, "content"));
    put_calls(&text, json_object_get(msg, "tool_calls"));
    ok = add_message(out, "assistant", &text);
    buf_release(&text);
    return ok;
}

static bool add_system(json_t *out, const json_t *first, const json_t *tools)
{
    struct buf text = { 0 };
    bool ok;

    if (first) put_content(&text, json_object_get(first, "content"));
    if (text.n) buf_puts(&text, "\n\n");
    put_tools(&text, tools);
    ok = add_message(out, "system", &text);
    buf_release(&text);
    return ok;
}

int anytools_write(const json_t *messages, const json_t *tools, json_t **out, struct err *e)
{
    json_t *all = json_array();
    const json_t *first = json_array_get(messages, 0);
    bool has_system = is_role(first, "system") || is_role(first, "developer"), ok = all != NULL;
    size_t i = tools && has_system;

    if (ok && tools) ok = add_system(all, has_system ? first : NULL, tools);
    while (ok && i < json_array_size(messages)) {
        const json_t *msg = json_array_get(messages, i);
        if (is_role(msg, "tool")) {
            ok = add_results(all, messages, &i);
            continue;
        }
        if (json_array_size(json_object_get(msg, "tool_calls"))) ok = add_calls(all, msg);
        else ok = json_array_append(all, (json_t *)msg) == 0;
        i++;
    }
    if (ok) {
        *out = all;
        return OK;
    }
    json_decref(all);
    return err_nomem(e, "the messages of the request");
}
