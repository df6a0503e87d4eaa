/* toolcall_text.c - calls whose arguments are written in other ways than JSON, or behind a name. */
#include "api/toolcall_impl.h"
#include "base/jsonw.h"

#include <ctype.h>
#include <stdio.h>

static size_t spaces(struct str s, size_t at)
{
    while (at < s.n && isspace((unsigned char)s.p[at])) at++;
    return at;
}

/* ---- name, then arguments ---- */

/* Inside ```json ... ```, or as it is. */
static struct str unfenced(struct str s)
{
    ptrdiff_t end;

    s = str_trim(s);
    if (!str_starts(s, STR("```"))) return s;
    s = str_skip(s, 3);
    if (str_starts(s, STR("json"))) s = str_skip(s, 4);
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
    if (str_find(right, STR("```")) >= 0 && (line = str_find(right, STR("\n"))) >= 0)
        return toolcall_named(str_take(right, (size_t)line), unfenced(str_skip(right, (size_t)line)), STR(""),
                              sink);
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
    return toolcall_named(str_of(body.p + at + sizeof mark - 1, (size_t)(args - at) - (sizeof mark - 1)),
                          str_skip(body, (size_t)args + strlen(sep)), str_trim(str_take(body, (size_t)at)),
                          sink);
}

bool toolcall_separated(const struct tool_family *f, struct str body, const struct tool_sink *sink)
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

    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *fn = json_object_get(tool, "function");
        const char *is = json_string_value(json_object_get(fn, "name"));
        if (!is || !str_is(name, is)) continue;
        return json_object_getn(json_object_get(json_object_get(fn, "parameters"), "properties"), key.p,
                                key.n);
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

struct tagged {                  /* an object of arguments on its way */
    struct buf json;
    struct jsonw w;
    const json_t *tools;
    struct str name;
};

/* A text where the tool says so or it is nothing else; JSON where it is JSON. */
static void put_arg(struct tagged *t, struct str key, struct str value)
{
    const json_t *schema = schema_of(t->tools, t->name, key);
    struct str trimmed = str_trim(value);
    char name[256];

    snprintf(name, sizeof name, "%.*s", STR_ARG(str_take(key, sizeof name - 1)));
    jsonw_key(&t->w, name);
    if (!wants_text(schema) && trimmed.n && json_valid(trimmed)) {
        buf_put_str(&t->json, trimmed);
        t->w.comma = true;
        t->w.key = false;
    } else {
        jsonw_str(&t->w, value);
    }
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

static void put_parameters(struct tagged *t, enum payload kind, struct str rest)
{
    struct str key, value;

    if (kind == PAYLOAD_GLM) {
        while (between(&rest, "<arg_key>", "</arg_key>", &key) &&
               between(&rest, "<arg_value>", "</arg_value>", &value))
            put_arg(t, str_trim(key), value);
        return;
    }
    while (between(&rest, kind == PAYLOAD_INVOKE ? "<parameter name=\"" : "<parameter=",
                   kind == PAYLOAD_INVOKE ? "\">" : ">", &key)) {
        ptrdiff_t end = str_find(rest, STR("</parameter>"));
        value = end < 0 ? rest : str_take(rest, (size_t)end);
        put_arg(t, str_trim(key), without_newlines(value));
        rest = end < 0 ? STR("") : str_skip(rest, (size_t)end + 12);
    }
}

bool toolcall_tagged(enum payload kind, struct str body, const json_t *tools, const struct tool_sink *sink)
{
    struct tagged t = { .tools = tools };
    const char *name_end = kind == PAYLOAD_GLM ? "<arg_key>" : kind == PAYLOAD_INVOKE ? "\">" : ">";
    ptrdiff_t at = str_find(body, str_c(name_end));
    struct str rest;
    bool sent;

    if (at < 0 && kind != PAYLOAD_GLM) return false;
    t.name = str_trim(at < 0 ? body : str_take(body, (size_t)at));
    rest = at < 0 ? STR("") : str_skip(body, (size_t)at + (kind == PAYLOAD_GLM ? 0 : strlen(name_end)));
    if (!t.name.n || str_find(t.name, STR("\n")) >= 0) return false;
    if (str_trim(rest).n && str_trim(rest).p[0] == '{') return toolcall_named(t.name, rest, STR(""), sink);
    t.w.out = &t.json;
    jsonw_obj(&t.w);
    put_parameters(&t, kind, rest);
    jsonw_end(&t.w);
    sent = toolcall_named(t.name, buf_str(&t.json), STR(""), sink);
    buf_release(&t.json);
    return sent;
}

/* A value may hold the mark that ends the call: then the call goes on. */
bool toolcall_inside_value(enum payload kind, struct str body)
{
    const char *open = kind == PAYLOAD_GLM ? "<arg_value>" : "<parameter",
               *close = kind == PAYLOAD_GLM ? "</arg_value>" : "</parameter>";
    ptrdiff_t from;

    if (kind != PAYLOAD_GLM && kind != PAYLOAD_FUNCTION && kind != PAYLOAD_INVOKE) return false;
    while ((from = str_find(body, str_c(open))) >= 0) {
        ptrdiff_t to = str_find(str_skip(body, (size_t)from), str_c(close));
        if (to < 0) return true;
        body = str_skip(body, (size_t)(from + to));
        body = str_skip(body, strlen(close));
    }
    return false;
}

/* ---- [name(k="v")] ---- */

/* One Python literal as JSON; how much of s it takes, 0: it is none. */
static size_t python_value(struct str s, struct buf *out, int depth)
{
    static const struct {
        const char *from, *to;
    } words[] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
    struct jsonw w = { .out = out };
    size_t at;

    if (!s.n || depth > 32) return 0;
    if (s.p[0] == '"' || s.p[0] == '\'') {
        struct buf text = { 0 };
        for (at = 1; at < s.n && s.p[at] != s.p[0]; at++) {
            if (s.p[at] != '\\' || at + 1 == s.n) buf_putc(&text, s.p[at]);
            else
                at++, buf_putc(&text, s.p[at] == 'n'   ? '\n'
                                      : s.p[at] == 't' ? '\t'
                                      : s.p[at] == 'r' ? '\r'
                                                       : s.p[at]);
        }
        if (at < s.n) jsonw_str(&w, buf_str(&text));
        buf_release(&text);
        return at < s.n ? at + 1 : 0;
    }
    for (size_t i = 0; i < 3; i++)
        if (str_starts(s, str_c(words[i].from))) return buf_puts(out, words[i].to), strlen(words[i].from);
    if (s.p[0] == '[' || s.p[0] == '{') {
        char close = s.p[0] == '[' ? ']' : '}';
        buf_putc(out, s.p[0]);
        for (at = spaces(s, 1); at < s.n && s.p[at] != close; at = spaces(s, at)) {
            size_t n;
            if (s.p[at] == ',' || s.p[at] == ':') {
                buf_putc(out, s.p[at++]);
                continue;
            }
            if (!(n = python_value(str_skip(s, at), out, depth + 1))) return 0;
            at += n;
        }
        buf_putc(out, close);
        return at < s.n ? at + 1 : 0;
    }
    at = json_value_span(str_of(s.p, s.n));
    while (at > 0 && s.p[at - 1] == ')') at--;
    if (!at || !json_valid(str_take(s, at))) return 0;
    buf_put_str(out, str_take(s, at));
    return at;
}

static size_t name_span(struct str s)
{
    size_t n = 0;

    while (n < s.n && (isalnum((unsigned char)s.p[n]) || (s.p[n] && strchr("_-.", s.p[n])))) n++;
    return n;
}

static size_t send_python_one(struct str s, const struct tool_sink *sink)
{
    struct buf json = { 0 };
    struct jsonw w = { .out = &json };
    size_t n = name_span(s), at = n + 1, value, key;
    bool sent = false;

    if (!n || n >= s.n || s.p[n] != '(') return 0;
    buf_putc(&json, '{');
    for (at = spaces(s, at); at < s.n && s.p[at] != ')'; at = spaces(s, at)) {
        if (s.p[at] == ',') {
            at++;
            continue;
        }
        key = name_span(str_skip(s, at));
        if (!key || at + key >= s.n || s.p[at + key] != '=') goto out;
        if (json.n > 1) buf_putc(&json, ',');
        w.comma = false;
        jsonw_str(&w, str_of(s.p + at, key));
        buf_putc(&json, ':');
        at = spaces(s, at + key + 1);
        if (!(value = python_value(str_skip(s, at), &json, 0))) goto out;
        at += value;
    }
    buf_putc(&json, '}');
    if (at < s.n) sent = toolcall_named(str_take(s, n), buf_str(&json), STR(""), sink);
out:
    buf_release(&json);
    return sent ? at + 1 : 0;
}

bool toolcall_python(struct str body, const struct tool_sink *sink)
{
    bool any = false;

    body = str_trim(body);
    if (body.n > 1 && body.p[0] == '[' && body.p[body.n - 1] == ']') body = str_of(body.p + 1, body.n - 2);
    while ((body = str_trim(body)).n) {
        size_t n;
        if (body.p[0] == ',') {
            body = str_skip(body, 1);
            continue;
        }
        if (!(n = send_python_one(body, sink))) return any;
        any = true;
        body = str_skip(body, n);
    }
    return any;
}

/* ---- call:name{key:value, ...}, texts between quote marks of their own ---- */

struct gemma {
    struct str s;
    size_t at;
    struct str quote;
    struct buf *out;
    int depth;
};

static bool gemma_text(struct gemma *g)                  /* behind the opening quote */
{
    struct str rest = str_skip(g->s, g->at);
    ptrdiff_t end = str_find(rest, g->quote);
    struct jsonw w = { .out = g->out };

    if (end < 0) return false;
    jsonw_str(&w, str_take(rest, (size_t)end));
    g->at += (size_t)end + g->quote.n;
    return true;
}

static bool gemma_quoted(struct gemma *g)
{
    if (!str_starts(str_skip(g->s, g->at), g->quote)) return false;
    g->at += g->quote.n;
    return true;
}

static bool gemma_key(struct gemma *g)
{
    struct jsonw w = { .out = g->out };
    size_t from = g->at;

    if (gemma_quoted(g)) return gemma_text(g);
    while (g->at < g->s.n && !strchr(":,}", g->s.p[g->at])) g->at++;
    jsonw_str(&w, str_trim(str_of(g->s.p + from, g->at - from)));
    return g->at > from;
}

static bool gemma_value(struct gemma *g);

/* "{...}" or "[...]", from behind the bracket. */
static bool gemma_items(struct gemma *g, char close)
{
    bool first = true;

    buf_putc(g->out, close == '}' ? '{' : '[');
    for (;;) {
        g->at = spaces(g->s, g->at);
        if (g->at >= g->s.n) return false;
        if (g->s.p[g->at] == close) break;
        if (!first && g->s.p[g->at++] != ',') return false;
        if (!first) buf_putc(g->out, ',');
        g->at = spaces(g->s, g->at);
        if (close == '}') {
            if (!gemma_key(g) || g->at >= g->s.n || g->s.p[g->at++] != ':') return false;
            buf_putc(g->out, ':');
        }
        if (!gemma_value(g)) return false;
        first = false;
    }
    g->at++;
    buf_putc(g->out, close);
    return true;
}

static bool gemma_value(struct gemma *g)
{
    size_t from = g->at = spaces(g->s, g->at);
    char c = g->at < g->s.n ? g->s.p[g->at] : 0;
    bool is;

    if (gemma_quoted(g)) return gemma_text(g);
    if (c == '{' || c == '[') {
        if (++g->depth > 32) return false;
        g->at++;
        is = gemma_items(g, c == '{' ? '}' : ']');
        g->depth--;
        return is;
    }
    while (g->at < g->s.n && !strchr(",}]", g->s.p[g->at])) g->at++;
    if (!json_valid(str_trim(str_of(g->s.p + from, g->at - from)))) return false;
    buf_put_str(g->out, str_trim(str_of(g->s.p + from, g->at - from)));
    return true;
}

bool toolcall_gemma(struct str body, const char *quote, const struct tool_sink *sink)
{
    struct buf json = { 0 };
    struct gemma g = { .s = str_trim(body), .quote = str_c(quote), .out = &json };
    ptrdiff_t brace;
    bool sent = false;

    if (str_starts(g.s, STR("call:"))) g.s = str_skip(g.s, 5);
    brace = str_find(g.s, STR("{"));
    if (brace > 0) {
        g.at = (size_t)brace + 1;
        if (gemma_items(&g, '}'))
            sent = toolcall_named(str_take(g.s, (size_t)brace), buf_str(&json), STR(""), sink);
    }
    buf_release(&json);
    return sent;
}
