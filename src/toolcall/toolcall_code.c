/* toolcall_code.c - calls as Python writes them, and Gemma's way, which looks like it. */
#include "toolcall/toolcall_impl.h"
#include "base/jsonw.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- [name(k="v")] ---- */

static size_t hex_digits(struct str s, size_t n, int32_t *out)
{
    char digits[9];

    if (s.n < n || n > 8) return 0;
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)s.p[i])) return 0;
    snprintf(digits, sizeof digits, "%.*s", (int)n, s.p);
    *out = (int32_t)strtol(digits, NULL, 16);
    return n;
}

/* What stands behind a backslash, and how much of it; pairs of halves become one character. */
static size_t python_escape(struct str s, struct buf *out)
{
    static const char letters[] = "ntrbfva0", means[] = "\n\t\r\b\f\v\a";
    const char *found = s.p[0] ? strchr(letters, s.p[0]) : NULL;
    int32_t cp = -1, low;
    size_t n = 0;

    if (s.p[0] == 'x') n = hex_digits(str_skip(s, 1), 2, &cp);
    if (s.p[0] == 'u') n = hex_digits(str_skip(s, 1), 4, &cp);
    if (s.p[0] == 'U') n = hex_digits(str_skip(s, 1), 8, &cp);
    if (n == 4 && cp >= 0xd800 && cp < 0xdc00 && str_starts(str_skip(s, 5), STR("\\u")) &&
        hex_digits(str_skip(s, 7), 4, &low) && low >= 0xdc00 && low < 0xe000) {
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        n = 10;
    }
    if (n && cp >= 0 && cp <= 0x10ffff) {
        char bytes[4];
        buf_add(out, bytes, (size_t)utf8_put(bytes, cp));
        return 1 + n;
    }
    buf_putc(out, found ? means[found - letters] : s.p[0]);
    return 1;
}

static size_t python_text(struct str s, struct buf *out)
{
    struct buf text = { 0 };
    struct jsonw w = { .out = out };
    size_t at = 1;

    while (at < s.n && s.p[at] != s.p[0]) {
        if (s.p[at] == '\\' && at + 1 < s.n) at += 1 + python_escape(str_skip(s, at + 1), &text);
        else buf_putc(&text, s.p[at++]);
    }
    if (at < s.n) jsonw_str(&w, buf_str(&text));
    buf_release(&text);
    return at < s.n ? at + 1 : 0;
}

/* One Python literal as JSON; how much of s it takes, 0: it is none. */
static size_t python_value(struct str s, struct buf *out, int depth)
{
    static const struct {
        const char *from, *to;
    } words[] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
    size_t at;

    if (!s.n || depth > 32) return 0;
    if (s.p[0] == '"' || s.p[0] == '\'') return python_text(s, out);
    for (size_t i = 0; i < 3; i++)
        if (str_starts(s, str_c(words[i].from)))
            return buf_puts(out, words[i].to), strlen(words[i].from);
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
    at = spaces(s, at);
    if (at < s.n && s.p[at] == '{') { /* all of them as one object */
        value = json_span(str_skip(s, at));
        key = spaces(s, at + value);
        if (!value || key >= s.n || s.p[key] != ')') return 0;
        return toolcall_named(str_take(s, n), str_of(s.p + at, value), STR(""), sink) ? key + 1 : 0;
    }
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
    if (body.n > 1 && body.p[0] == '[' && body.p[body.n - 1] == ']')
        body = str_of(body.p + 1, body.n - 2);
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

static bool gemma_text(struct gemma *g) /* behind the opening quote */
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

static bool gemma_string(struct gemma *g) /* JSON's own */
{
    struct str rest = str_skip(g->s, g->at);
    size_t n = rest.n && rest.p[0] == '"' ? json_string_span(rest) : 0;

    if (!n || !json_valid(str_take(rest, n))) return false;
    buf_put_str(g->out, str_take(rest, n));
    g->at += n;
    return true;
}

static bool gemma_key(struct gemma *g)
{
    struct jsonw w = { .out = g->out };
    size_t from = g->at;

    if (gemma_quoted(g)) return gemma_text(g);
    if (gemma_string(g)) return true;
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
    if (gemma_string(g)) return true;
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
        struct str rest = str_skip(g.s, (size_t)brace + 1);
        size_t span = rest.n && rest.p[0] == '{' ? json_span(rest) : 0;
        if (span && str_is(str_trim(str_skip(rest, span)), "}")) /* all of them as one object */
            return toolcall_named(str_take(g.s, (size_t)brace), str_take(rest, span), STR(""),
                                  sink);
        g.at = (size_t)brace + 1;
        if (gemma_items(&g, '}'))
            sent = toolcall_named(str_take(g.s, (size_t)brace), buf_str(&json), STR(""), sink);
    }
    buf_release(&json);
    return sent;
}
