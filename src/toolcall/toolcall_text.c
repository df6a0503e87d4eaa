/* toolcall_text.c - calls whose arguments stand behind a name, or are tags. */
#include "toolcall/toolcall_impl.h"
#include "base/jsonw.h"

#include <stdio.h>

/* ---- name, then arguments ---- */

/* Inside ```json ... ```, or as it is. */
static struct str unfenced(struct str s)
{
    ptrdiff_t end;

    s = str_trim(s);
    if (!str_starts(s, STR("```"))) return s;
    s = str_skip(s, 3);
    if (str_starts(s, STR("json"))) s = str_skip(s, 4);
    s = str_trim(s);
    if (s.n && s.p[0] == '{' && json_span(s)) return str_take(s, json_span(s));
    end = str_find(s, STR("```"));
    return str_trim(end < 0 ? s : str_take(s, (size_t)end));
}

static bool send_deepseek(struct str body, const char *sep, const struct tool_sink *sink)
{
    ptrdiff_t at = str_find(body, str_c(sep)), line;
    struct str left, right;

    if (at < 0) return false;
    left = str_take(body, (size_t)at);
    right = str_skip(body, (size_t)at + strlen(sep));
    if ((str_trim(right).n == 0 || str_trim(right).p[0] != '{') &&
        str_find(right, STR("```")) >= 0 && (line = str_find(right, STR("\n"))) >= 0)
        return toolcall_named(str_take(right, (size_t)line),
                              unfenced(str_skip(right, (size_t)line)), STR(""), sink);
    return toolcall_named(left, right, STR(""), sink);
}

static bool send_kimi(struct str body, const char *sep, const struct tool_sink *sink)
{
    ptrdiff_t at = str_find(body, str_c(sep));
    struct str id, name;

    if (at < 0) return false;
    name = id = str_trim(str_take(body, (size_t)at));
    if (str_starts(name, STR("functions."))) name = str_skip(name, 10);
    for (size_t i = name.n; i-- > 0;)
        if (name.p[i] == ':') {
            name.n = i;
            break;
        }
    return toolcall_named(name, str_skip(body, (size_t)at + strlen(sep)), id, sink);
}

/* id MARK name SEP {...} */
static bool send_solar(struct str body, const char *sep, const struct tool_sink *sink)
{
    static const char mark[] = "<|tool_call:name|>";
    ptrdiff_t at = str_find(body, str_c(mark)), args = str_find(body, str_c(sep));

    if (at < 0 || args < at) return false;
    return toolcall_named(
        str_of(body.p + at + sizeof mark - 1, (size_t)(args - at) - (sizeof mark - 1)),
        str_skip(body, (size_t)args + strlen(sep)), str_trim(str_take(body, (size_t)at)), sink);
}

bool toolcall_separated(const struct toolfamily *f, struct str body, const struct tool_sink *sink)
{
    if (f->payload == PAYLOAD_KIMI) return send_kimi(body, f->sep, sink);
    if (f->payload == PAYLOAD_SOLAR) return send_solar(body, f->sep, sink);
    return send_deepseek(body, f->sep, sink);
}

/* ---- arguments as tags ---- */

static const json_t *schema_of(const json_t *tools, struct str name, struct str key)
{
    json_t *tool;
    size_t i;

    json_array_foreach ((json_t *)tools, i, tool) {
        const json_t *fn = json_object_get(tool, "function");
        const char *is = json_string_value(json_object_get(fn, "name"));
        if (!is || !str_is(name, is)) continue;
        return json_object_getn(json_object_get(json_object_get(fn, "parameters"), "properties"),
                                key.p, key.n);
    }
    return NULL;
}

static bool wants_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");

    if (json_is_string(type)) return !strcmp(json_string_value(type), "string");
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *one = json_string_value(json_array_get(type, i));
        if (one && !strcmp(one, "string")) return true;
    }
    return false;
}

struct tagged { /* an object of arguments on its way */
    struct buf json;
    struct jsonw w;
    const json_t *tools;
    struct str name;
};

/* What the model itself says of a value, between its key and it. */
enum said { SAYS_NOTHING, SAYS_TEXT, SAYS_JSON };

static enum said said_of(struct str attributes)
{
    if (str_find(attributes, STR("string=\"true\"")) >= 0 ||
        str_find(attributes, STR("type=\"string\"")) >= 0)
        return SAYS_TEXT;
    if (str_find(attributes, STR("string=\"false\"")) >= 0 ||
        str_find(attributes, STR("type=\"")) >= 0)
        return SAYS_JSON;
    return SAYS_NOTHING;
}

/* A text where the model or the tool says so or it is nothing else; JSON where it is JSON. */
static void put_arg(struct tagged *t, struct str key, struct str value, enum said said)
{
    bool text = said == SAYS_TEXT ||
                (said == SAYS_NOTHING && wants_text(schema_of(t->tools, t->name, key)));
    struct str trimmed = str_trim(value);
    char name[256];

    snprintf(name, sizeof name, "%.*s", STR_ARG(str_take(key, sizeof name - 1)));
    jsonw_key(&t->w, name);
    if (!text && trimmed.n && json_valid(trimmed)) jsonw_raw(&t->w, trimmed);
    else jsonw_str(&t->w, value);
}

/* What stands between two marks; *rest goes on behind the second. */
static bool between(struct str *rest, const char *open, const char *close, struct str *out)
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

/* One newline off each end: they belong to the tags. */
static struct str without_newlines(struct str s)
{
    if (s.n && s.p[0] == '\n') s = str_skip(s, 1);
    if (s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* Arguments one after the other; of a tool that says which are texts. */
struct params_at {
    const struct toolfamily_tags *g;
    const json_t *tools;
    struct str name, rest, key, value;
    enum said said;
    bool cut; /* the value has no end */
};

/* Behind a value: where its closing mark stands. What must be JSON may hold that mark in its
 * strings. */
static ptrdiff_t value_end(const struct params_at *a)
{
    size_t at = spaces(a->rest, 0), n, end;
    bool text = a->said == SAYS_TEXT ||
                (a->said == SAYS_NOTHING && wants_text(schema_of(a->tools, a->name, a->key)));

    if (at < a->rest.n && strchr("{[\"", a->rest.p[at]) && !text) {
        n = json_value_span(str_skip(a->rest, at));
        end = spaces(a->rest, at + n);
        if (n && str_starts(str_skip(a->rest, end), str_c(a->g->end))) return (ptrdiff_t)end;
    }
    return str_find(a->rest, str_c(a->g->end));
}

/* <![CDATA[...]]> is what stands in it. */
static struct str without_cdata(struct str s)
{
    struct str open = STR("<![CDATA["), close = STR("]]>"), t = str_trim(s);

    if (!str_starts(t, open) || !str_ends(t, close) || t.n < open.n + close.n) return s;
    return str_of(t.p + open.n, t.n - open.n - close.n);
}

static bool next_param(struct params_at *a)
{
    const struct toolfamily_tags *g = a->g;
    ptrdiff_t at;

    if (!between(&a->rest, g->key, g->key_end, &a->key)) return false;
    a->key = str_trim(a->key);
    a->said = SAYS_NOTHING;
    if (g->value[0]) {
        if ((at = str_find(a->rest, str_c(g->value))) < 0) return false;
        a->said = said_of(str_take(a->rest, (size_t)at));
        a->rest = str_skip(a->rest, (size_t)at + strlen(g->value));
    }
    at = value_end(a);
    a->cut = at < 0;
    a->value = a->cut ? a->rest : str_take(a->rest, (size_t)at);
    a->rest = a->cut ? STR("") : str_skip(a->rest, (size_t)at + strlen(g->end));
    if (g->lines) a->value = without_newlines(a->value);
    a->value = without_cdata(a->value);
    return true;
}

/* The name, and what stands behind it; false: there is none. */
static bool split_tagged(const struct toolfamily_tags *g, struct str body, struct str *name,
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

bool toolcall_tagged(const struct toolfamily_tags *g, struct str body, const json_t *tools,
                     const struct tool_sink *sink)
{
    struct tagged t = { .tools = tools };
    struct params_at a = { .g = g, .tools = tools };
    bool sent;

    if (!split_tagged(g, body, &a.name, &a.rest)) return false;
    t.name = a.name;
    if (str_trim(a.rest).n && str_trim(a.rest).p[0] == '{')
        return toolcall_named(t.name, a.rest, STR(""), sink);
    t.w.out = &t.json;
    jsonw_obj(&t.w);
    while (next_param(&a))
        if (!a.cut || g->name_end) put_arg(&t, a.key, a.value, a.said);
    jsonw_end(&t.w);
    sent = toolcall_named(t.name, buf_str(&t.json), STR(""), sink);
    buf_release(&t.json);
    return sent;
}

/* Arguments that are JSON and not over. */
static bool inside_json(struct str s)
{
    s = str_trim(s);
    return s.n && s.p[0] == '{' && json_span(s) == 0;
}

/* A value may hold the mark that ends the call: then the call goes on. */
bool toolcall_inside_value(const struct toolfamily *f, struct str body, const json_t *tools)
{
    struct params_at a = { .g = f->tags, .tools = tools };
    ptrdiff_t at;

    if (f->payload == PAYLOAD_NAMED || f->payload == PAYLOAD_KIMI || f->payload == PAYLOAD_SOLAR) {
        if ((at = str_find(body, str_c(f->sep))) < 0) return false;
        body = str_skip(body, (size_t)at + strlen(f->sep));
        at = str_find(body, STR("{"));
        return at >= 0 && inside_json(str_skip(body, (size_t)at));
    }
    if (f->payload != PAYLOAD_TAGS || !split_tagged(f->tags, body, &a.name, &a.rest)) return false;
    if (inside_json(a.rest)) return true;
    while (next_param(&a)) {}
    return a.cut;
}
