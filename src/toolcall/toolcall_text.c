/* toolcall_text.c - calls that are a name and a JSON object, or a name and arguments between tags. */
#include "toolcall/toolcall_impl.h"
#include "base/jsonw.h"

#include <stdio.h>

enum { MAX_NESTED = 32 }; /* tags inside of tags; deeper ones are text */

/* ---- name, then arguments ---- */

/* The content of ```json ... ```, or the text itself. */
static struct str strip_fence(struct str s)
{
    ptrdiff_t end;

    s = str_trim(s);
    if (!str_starts(s, STR("```"))) return s;
    s = str_skip(s, 3);
    if (str_starts(s, STR("json"))) s = str_skip(s, 4);
    s = str_trim(s);
    if (s.n && s.p[0] == '{' && toolcall_json_span(s)) return str_take(s, toolcall_json_span(s));
    end = str_find(s, STR("```"));
    return str_trim(end < 0 ? s : str_take(s, (size_t)end));
}

/* Two notations, of which the second is that of R1:
 *     get_weather<｜tool▁sep｜>{"city": "Rome"}
 *     function<｜tool▁sep｜>get_weather\n```json\n{"city": "Rome"}\n``` */
static bool send_deepseek(struct str body, const char *sep, struct toolcall_sink *sink)
{
    ptrdiff_t at = str_find(body, str_c(sep)), line;
    struct str left, right;

    if (at < 0) return false;
    left = str_take(body, (size_t)at);
    right = str_skip(body, (size_t)at + strlen(sep));
    if ((str_trim(right).n == 0 || str_trim(right).p[0] != '{') &&
        str_find(right, STR("```")) >= 0 && (line = str_find(right, STR("\n"))) >= 0)
        return toolcall_send(str_take(right, (size_t)line),
                             strip_fence(str_skip(right, (size_t)line)), STR(""), sink);
    return toolcall_send(left, right, STR(""), sink);
}

struct str toolcall_kimi_name(struct str id)
{
    struct str name = str_starts(id, STR("functions.")) ? str_skip(id, 10) : id;

    for (size_t i = name.n; i-- > 0;)
        if (name.p[i] == ':') return str_take(name, i);
    return name;
}

/* functions.get_weather:0<|tool_call_argument_begin|>{"city": "Rome"}: the text before the
 * separator is the id of the call, and contains the name. */
static bool send_kimi(struct str body, const char *sep, struct toolcall_sink *sink)
{
    ptrdiff_t at = str_find(body, str_c(sep));
    struct str id;

    if (at < 0) return false;
    id = str_trim(str_take(body, (size_t)at));
    return toolcall_send(toolcall_kimi_name(id), str_skip(body, (size_t)at + strlen(sep)), id,
                         sink);
}

/* x7f<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Rome"} */
static bool send_solar(struct str body, const char *sep, struct toolcall_sink *sink)
{
    const struct str mark = STR(TOOLCALL_SOLAR_NAME);
    ptrdiff_t at = str_find(body, mark), args = str_find(body, str_c(sep));

    if (at < 0 || args < at) return false;
    return toolcall_send(str_of(body.p + at + mark.n, (size_t)(args - at) - mark.n),
                         str_skip(body, (size_t)args + strlen(sep)),
                         str_trim(str_take(body, (size_t)at)), sink);
}

bool toolcall_send_separated(const struct toolfamily *f, struct str body,
                             struct toolcall_sink *sink)
{
    if (f->payload == PAYLOAD_KIMI) return send_kimi(body, f->sep, sink);
    if (f->payload == PAYLOAD_SOLAR) return send_solar(body, f->sep, sink);
    return send_deepseek(body, f->sep, sink);
}

/* ---- arguments between tags ---- */

/* An example, of Qwen3-Coder:
 *
 *     get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n
 *
 * A value has no quotes, so its type must come from elsewhere: from an attribute that the model
 * writes, from the schema of the tool, or else from whether the value is JSON. */

/* The type of a value that the model declares between key and value. */
enum declared_type { DECLARED_NONE, DECLARED_STRING, DECLARED_JSON };

static enum declared_type read_declared_type(struct str attributes)
{
    if (str_find(attributes, STR("string=\"true\"")) >= 0 ||
        str_find(attributes, STR("type=\"string\"")) >= 0)
        return DECLARED_STRING;
    if (str_find(attributes, STR("string=\"false\"")) >= 0 ||
        str_find(attributes, STR("type=\"")) >= 0)
        return DECLARED_JSON;
    return DECLARED_NONE;
}

/* An iterator over the arguments between tags. */
struct tag_iter {
    const struct toolfamily_tags *g;
    const json_t *params; /* the schema of all arguments; NULL: there is none */
    struct str name;      /* of the tool */
    struct str rest;      /* the text after the current argument */
    struct str key, value;
    enum declared_type type;
    bool cut; /* the value has no closing tag */
};

static const json_t *find_schema(const struct tag_iter *a)
{
    return json_object_getn(json_object_get(a->params, "properties"), a->key.p, a->key.n);
}

/* Is the value a string whatever it looks like, because the model declares it or the schema allows
 * it? */
static bool is_string_value(const struct tag_iter *a)
{
    return a->type == DECLARED_STRING ||
           (a->type == DECLARED_NONE && toolcall_is_text_schema(find_schema(a)));
}

/* The text between two marks. *rest moves behind the second. */
static bool take_between(struct str *rest, const char *open, const char *close, struct str *out)
{
    ptrdiff_t from = str_find(*rest, str_c(open)), to;
    struct str inside;

    if (from < 0) return false;
    inside = str_skip(*rest, (size_t)from + strlen(open));
    if ((to = str_find(inside, str_c(close))) < 0) return false;
    *out = str_take(inside, (size_t)to);
    *rest = str_skip(inside, (size_t)to + strlen(close));
    return true;
}

/* Without one newline at each end. */
static struct str strip_newlines(struct str s)
{
    if (s.n && s.p[0] == '\n') s = str_skip(s, 1);
    if (s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* The content of <![CDATA[...]]>, or the text itself. */
static struct str strip_cdata(struct str s)
{
    struct str open = STR("<![CDATA["), close = STR("]]>"), t = str_trim(s);

    if (!str_starts(t, open) || !str_ends(t, close) || t.n < open.n + close.n) return s;
    return str_of(t.p + open.n, t.n - open.n - close.n);
}

/* Where the closing tag of the value is. Tags inside of it are closed before it. */
static ptrdiff_t find_nested_end(const struct tag_iter *a)
{
    const struct str open = str_c(a->g->key);
    size_t at = 0;
    int depth = 0;
    ptrdiff_t here;

    while ((here = str_find(str_skip(a->rest, at), open)) >= 0) {
        at += (size_t)here;
        if (at + open.n >= a->rest.n) return -1;
        if (a->rest.p[at + open.n] != '/') depth++;
        else if (depth-- == 0) return (ptrdiff_t)at;
        at += open.n;
    }
    return -1;
}

/* Where the closing tag of the value is. The strings of a JSON value may contain the tag. */
static ptrdiff_t find_value_end(const struct tag_iter *a)
{
    size_t at = skip_spaces(a->rest, 0), n, end;

    if (a->g->nested) return find_nested_end(a);
    if (at < a->rest.n && strchr("{[\"", a->rest.p[at]) && !is_string_value(a)) {
        n = toolcall_value_span(str_skip(a->rest, at));
        end = skip_spaces(a->rest, at + n);
        if (n && str_starts(str_skip(a->rest, end), str_c(a->g->end))) return (ptrdiff_t)end;
    }
    return str_find(a->rest, str_c(a->g->end));
}

/* Moves to the next argument; false: there is none. */
static bool next_argument(struct tag_iter *a)
{
    const struct toolfamily_tags *g = a->g;
    ptrdiff_t at;

    if (!take_between(&a->rest, g->key, g->key_end, &a->key)) return false;
    a->key = str_trim(a->key);
    a->type = DECLARED_NONE;
    if (g->value[0]) {
        if ((at = str_find(a->rest, str_c(g->value))) < 0) return false;
        a->type = read_declared_type(str_take(a->rest, (size_t)at));
        a->rest = str_skip(a->rest, (size_t)at + strlen(g->value));
    }
    at = find_value_end(a);
    a->cut = at < 0;
    a->value = a->cut ? a->rest : str_take(a->rest, (size_t)at);
    a->rest = a->cut ? STR("") : str_skip(a->rest, (size_t)at + strlen(g->end));
    if (g->nested && !a->cut) { /* the closing tag repeats the key */
        at = str_find(a->rest, str_c(g->key_end));
        a->rest = at < 0 ? STR("") : str_skip(a->rest, (size_t)at + strlen(g->key_end));
    }
    if (g->trim_lines) a->value = strip_newlines(a->value);
    a->value = strip_cdata(a->value);
    return true;
}

/* The name and the text after it; false: there is none. */
static bool split_name(const struct toolfamily_tags *g, struct str body, struct str *name,
                       struct str *rest)
{
    ptrdiff_t at;
    size_t n = 0;

    if (!g->name_end) {
        body = str_trim(body);
        while (n < body.n && !strchr("<{\n", body.p[n])) n++;
        *rest = str_skip(body, n);
    } else {
        if ((at = str_find(body, str_c(g->name_end))) < 0) return false;
        n = (size_t)at;
        *rest = str_skip(body, n + strlen(g->name_end));
        if (g->name_skip) {
            if ((at = str_find(*rest, str_c(g->name_skip))) < 0) return false;
            *rest = str_skip(*rest, (size_t)at + strlen(g->name_skip));
        }
    }
    *name = str_trim(str_take(body, n));
    return name->n && str_find(*name, STR("\n")) < 0;
}

static void write_nested(const struct tag_iter *a, const json_t *schema, struct buf *out, int depth,
                         bool *failed);

/* The value of one argument as JSON. schema: its own, or NULL. */
static void write_value(const struct tag_iter *a, const json_t *schema, struct buf *out, int depth,
                        bool *failed)
{
    struct str trimmed = str_trim(a->value);
    struct jsonw w = { .out = out };

    if (a->g->nested && depth < MAX_NESTED && str_starts(trimmed, str_c(a->g->key)))
        write_nested(a, schema, out, depth, failed);
    else if (a->type == DECLARED_STRING) jsonw_str(&w, a->value);
    else toolcall_write_typed(a->value, schema, a->params, out, failed);
}

/* Tags inside of a value: a list if all of them are called item, else an object. The schema
 * decides where it says something. */
static void write_nested(const struct tag_iter *a, const json_t *schema, struct buf *out, int depth,
                         bool *failed)
{
    struct tag_iter in = { .g = a->g, .params = schema, .rest = a->value };
    struct tag_iter look = in;
    bool list = true, first = true;
    struct jsonw w = { .out = out };

    schema = toolcall_resolve_schema(schema, a->params);
    in.params = look.params = schema;
    while (next_argument(&look)) list = list && str_is(look.key, "item");
    if (json_object_get(schema, "properties")) list = false;
    buf_putc(out, list ? '[' : '{');
    while (next_argument(&in)) {
        const json_t *sub = list ? json_object_get(schema, "items") : find_schema(&in);
        if (!first) buf_putc(out, ',');
        first = false;
        w.comma = false;
        if (!list) jsonw_str(&w, in.key), buf_putc(out, ':');
        in.params = a->params; /* references are resolved in the schema of the tool */
        write_value(&in, sub, out, depth + 1, failed);
        in.params = schema;
    }
    buf_putc(out, list ? ']' : '}');
}

/* A value that is no string is written as it is, if it is JSON. */
static void write_argument(const struct tag_iter *a, struct jsonw *w, bool *failed)
{
    struct buf json = { 0 };
    char key[256];

    snprintf(key, sizeof key, "%.*s", STR_ARG(str_take(a->key, sizeof key - 1)));
    jsonw_key(w, key);
    write_value(a, find_schema(a), &json, 0, failed);
    if (json.failed) *failed = true;
    jsonw_raw(w, buf_str(&json));
    buf_release(&json);
}

/* An argument that is cut is taken as it is, if the notation shows where the name ends. */
bool toolcall_send_tagged(const struct toolfamily_tags *g, struct str body, const json_t *tools,
                          struct toolcall_sink *sink)
{
    struct tag_iter a = { .g = g };
    struct buf json = { 0 };
    struct jsonw w = { .out = &json };
    bool sent;

    if (!split_name(g, body, &a.name, &a.rest)) return false;
    a.params = toolcall_find_schema(tools, a.name);
    if (str_trim(a.rest).n && str_trim(a.rest).p[0] == '{')
        return toolcall_send(a.name, a.rest, STR(""), sink);
    jsonw_obj(&w);
    while (next_argument(&a))
        if (!a.cut || g->name_end) write_argument(&a, &w, &sink->failed);
    jsonw_end(&w);
    if (json.failed) sink->failed = true;
    sent = !sink->failed && toolcall_send(a.name, buf_str(&json), STR(""), sink);
    buf_release(&json);
    return sent;
}

/* Is it a JSON object that is not complete? */
static bool is_open_object(struct str s)
{
    s = str_trim(s);
    return s.n && s.p[0] == '{' && toolcall_json_span(s) == 0;
}

/* Reads the arguments up to the end of the text: the last one has no closing tag, or the JSON is
 * open. */
bool toolcall_ends_inside_value(const struct toolfamily *f, struct str body, const json_t *tools)
{
    struct tag_iter a = { .g = f->tags };
    ptrdiff_t at;

    if (f->payload == PAYLOAD_NAMED || f->payload == PAYLOAD_KIMI || f->payload == PAYLOAD_SOLAR) {
        if ((at = str_find(body, str_c(f->sep))) < 0) return false;
        body = str_skip(body, (size_t)at + strlen(f->sep));
        at = str_find(body, STR("{"));
        return at >= 0 && is_open_object(str_skip(body, (size_t)at));
    }
    if (f->payload != PAYLOAD_TAGS || !split_name(f->tags, body, &a.name, &a.rest)) return false;
    a.params = toolcall_find_schema(tools, a.name);
    if (is_open_object(a.rest)) return true;
    while (next_argument(&a)) {}
    return a.cut;
}
