/* params_tools.c - fields for tools and for the chat template.
 *
 * Tools are only checked for their form; they stay JSON, since the template, the parser of the
 * answer and the grammar read them. */
#include "api/params_impl.h"

#include <stdio.h>

/* ---- tools ---- */

/* {"type":"function","function":{"name":…,"parameters":{…}}} */
static int check_tool(struct body_reader *r, size_t i, const json_t *tool)
{
    const json_t *type = json_object_get(tool, "type"), *fn = json_object_get(tool, "function"),
                 *name, *params;
    char at[PARAM_MAX];

    snprintf(at, sizeof at, "tools[%zu]", i);
    if (!json_is_object(tool))
        return body_refuse(r, at, "must be an object, but it is %s", body_type(tool));
    if (!json_is_string(type) || !str_is(body_str(type), "function")) {
        snprintf(at, sizeof at, "tools[%zu].type", i);
        return body_refuse(r, at, "must be \"function\"");
    }
    snprintf(at, sizeof at, "tools[%zu].function", i);
    if (!json_is_object(fn)) return body_refuse(r, at, "must be an object");
    name = json_object_get(fn, "name");
    params = json_object_get(fn, "parameters");
    snprintf(at, sizeof at, "tools[%zu].function.name", i);
    if (!json_is_string(name) || !json_string_length(name))
        return body_refuse(r, at, "must be a non-empty string");
    snprintf(at, sizeof at, "tools[%zu].function.parameters", i);
    if (params && !json_is_null(params) && !json_is_object(params))
        return body_refuse(r, at, "must be a JSON schema, but it is %s", body_type(params));
    return OK;
}

int params_read_tools(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    int rc = OK;

    if (!json_is_array(v))
        return body_refuse(r, param, "must be a list, but it is %s", body_type(v));
    if (json_array_size(v) > TOOLS_MAX)
        return body_refuse(r, param, "contains %zu tools, but at most %d are allowed",
                           json_array_size(v), TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++)
        rc = check_tool(r, i, json_array_get(v, i));
    if (json_array_size(v)) p->tools = v;
    return rc;
}

/* A string, or an object that names a function. */
int params_read_tool_choice(struct params *p, struct body_reader *r, const char *param,
                            const json_t *v)
{
    const json_t *name = json_object_get(json_object_get(v, "function"), "name");

    if (json_is_object(v)) {
        if (!json_is_string(name))
            return body_refuse(r, "tool_choice.function.name", "must be a string");
        p->tool_choice = TOOL_NAMED;
        p->tool_name = body_str(name);
        return OK;
    }
    if (!json_is_string(v))
        return body_refuse(r, param, "must be a string or an object, but it is %s", body_type(v));
    if (str_is(body_str(v), "none")) p->tool_choice = TOOL_NONE;
    else if (str_is(body_str(v), "required")) p->tool_choice = TOOL_REQUIRED;
    else if (!str_is(body_str(v), "auto"))
        return body_refuse(r, param, "is \"%.40s\", but must be none, auto, required or a function",
                           json_string_value(v));
    return OK;
}

int params_read_parallel(struct params *p, struct body_reader *r, const char *param,
                         const json_t *v)
{
    bool parallel = true;
    int rc = body_read_bool(r, param, v, &parallel);

    p->one_call = !parallel;
    return rc;
}

/* tools may be NULL. */
static bool has_tool(const json_t *tools, struct str name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *is =
            json_object_get(json_object_get(json_array_get(tools, i), "function"), "name");
        if (json_is_string(is) && str_eq(body_str(is), name)) return true;
    }
    return false;
}

int params_apply_tool_choice(struct params *p, struct body_reader *r)
{
    if ((p->tool_choice == TOOL_REQUIRED || p->tool_choice == TOOL_NAMED) && !p->tools)
        return body_refuse(r, "tool_choice", "requires a tool call, but the request has no tools");
    if (p->tool_choice == TOOL_NAMED && !has_tool(p->tools, p->tool_name))
        return body_refuse(r, "tool_choice",
                           "names the function \"%.*s\", which is not among the tools",
                           STR_ARG(str_take(p->tool_name, 60)));
    if ((p->tool_choice == TOOL_REQUIRED || p->tool_choice == TOOL_NAMED) && p->grammar_field)
        return body_refuse(
            r, "tool_choice",
            "requires a tool call, but %.60s constrains the answer: give only one of them",
            p->grammar_field);
    if (p->tool_choice == TOOL_NONE) p->tools = NULL;
    return OK;
}

/* ---- tool calls in messages ---- */

int params_check_past_calls(struct body_reader *r, size_t i, const json_t *calls)
{
    char at[PARAM_MAX];

    snprintf(at, sizeof at, "messages[%zu].tool_calls", i);
    if (!json_is_array(calls))
        return body_refuse(r, at, "must be a list, but it is %s", body_type(calls));
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *fn = json_object_get(json_array_get(calls, k), "function"),
                     *args = json_object_get(fn, "arguments");
        snprintf(at, sizeof at, "messages[%zu].tool_calls[%zu].function.name", i, k);
        if (!json_is_string(json_object_get(fn, "name")))
            return body_refuse(r, at, "must be a string");
        snprintf(at, sizeof at, "messages[%zu].tool_calls[%zu].function.arguments", i, k);
        if (args && !json_is_string(args) && !json_is_object(args) && !json_is_null(args))
            return body_refuse(r, at, "must be a string of JSON, but it is %s", body_type(args));
    }
    return OK;
}

/* ---- variables of the chat template ---- */

/* Variables that the server sets itself are refused. */
int params_read_template_vars(struct params *p, struct body_reader *r, const char *param,
                              const json_t *v)
{
    static const char *const reserved[] = { "messages", "tools", "chat_template", "tokenize" };
    char at[PARAM_MAX];

    if (!json_is_object(v))
        return body_refuse(r, param, "must be an object, but it is %s", body_type(v));
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (json_object_get(v, reserved[i])) {
            snprintf(at, sizeof at, "%.60s.%s", param, reserved[i]);
            return body_refuse(r, at, "cannot be set here: use the field of the request");
        }
    p->template_vars = v;
    return OK;
}

int params_read_documents(struct params *p, struct body_reader *r, const char *param,
                          const json_t *v)
{
    if (!json_is_array(v))
        return body_refuse(r, param, "must be a list, but it is %s", body_type(v));
    p->documents = v;
    return OK;
}

int params_read_thinking(struct params *p, struct body_reader *r, const char *param,
                         const json_t *v)
{
    p->has_thinking = true;
    return body_read_bool(r, param, v, &p->thinking);
}
