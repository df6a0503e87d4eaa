/* toolcall_code.c - calls in the notation of Python, and in that of Gemma, which resembles it.
 *
 * Arguments are converted to JSON while they are read. Both readers move through a text and append
 * to a buf; a failed buf is noticed when the call is sent. */
#include "base/jsonw.h"
#include "base/utf8.h"
#include "toolcall/toolcall_impl.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_VALUE_DEPTH = 32 };

/* Sends a call whose arguments were converted. false: it is no call, or memory ran out. */
static bool send_converted(struct str name, const struct buf *args, struct toolcall_sink *sink)
{
    if (args->failed) sink->failed = true;
    return !sink->failed && toolcall_send(name, buf_str(args), STR(""), sink);
}

/* ---- Python: [name(k="v", ...), ...] ---- */

/* Literals are converted: quotes of both kinds, escapes, True, False, None, lists and dictionaries.
 * Expressions are not evaluated. Positional arguments are refused, because their names are unknown. */

/* n hexadecimal digits. Returns n, or 0: they are not there. */
static size_t read_hex(struct str s, size_t n, int32_t *out)
{
    char digits[9];

    if (s.n < n || n > 8) return 0;
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)s.p[i])) return 0;
    snprintf(digits, sizeof digits, "%.*s", (int)n, s.p);
    *out = (int32_t)strtol(digits, NULL, 16);
    return n;
}

/* Appends the character of an escape; s begins after the backslash. Returns the bytes it takes. Two
 * surrogates are one character. */
static size_t convert_escape(struct str s, struct buf *out)
{
    static const char letters[] = "ntrbfva0", means[] = "\n\t\r\b\f\v\a";
    const char *found = s.p[0] ? strchr(letters, s.p[0]) : NULL;
    int32_t cp = -1, low;
    size_t n = 0;

    if (s.p[0] == 'x') n = read_hex(str_skip(s, 1), 2, &cp);
    if (s.p[0] == 'u') n = read_hex(str_skip(s, 1), 4, &cp);
    if (s.p[0] == 'U') n = read_hex(str_skip(s, 1), 8, &cp);
    if (n == 4 && cp >= 0xd800 && cp < 0xdc00 && str_starts(str_skip(s, 5), STR("\\u")) &&
        read_hex(str_skip(s, 7), 4, &low) && low >= 0xdc00 && low < 0xe000) {
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

/* Returns the bytes of the string that s begins with; 0: it is not closed. */
static size_t convert_string(struct str s, struct buf *out)
{
    struct buf text = { 0 };
    struct jsonw w = { .out = out };
    size_t at = 1;

    while (at < s.n && s.p[at] != s.p[0]) {
        if (s.p[at] == '\\' && at + 1 < s.n) at += 1 + convert_escape(str_skip(s, at + 1), &text);
        else buf_putc(&text, s.p[at++]);
    }
    if (at < s.n) jsonw_str(&w, buf_str(&text));
    if (text.failed) out->failed = true;
    buf_release(&text);
    return at < s.n ? at + 1 : 0;
}

static size_t convert_python(struct str s, struct buf *out, int depth);

/* A list or dictionary. Commas and colons are copied; toolcall_send checks the result. */
static size_t convert_container(struct str s, struct buf *out, int depth)
{
    char close = s.p[0] == '[' ? ']' : '}';
    size_t at, n;

    buf_putc(out, s.p[0]);
    for (at = skip_spaces(s, 1); at < s.n && s.p[at] != close; at = skip_spaces(s, at)) {
        if (s.p[at] == ',' || s.p[at] == ':') {
            buf_putc(out, s.p[at++]);
            continue;
        }
        if (!(n = convert_python(str_skip(s, at), out, depth + 1))) return 0;
        at += n;
    }
    buf_putc(out, close);
    return at < s.n ? at + 1 : 0;
}

/* Converts the Python literal that s begins with. Returns its bytes; 0: it is none. */
static size_t convert_python(struct str s, struct buf *out, int depth)
{
    static const struct {
        const char *from, *to;
    } words[] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
    bool failed = false;
    size_t at;

    if (!s.n || depth > MAX_VALUE_DEPTH) return 0;
    if (s.p[0] == '"' || s.p[0] == '\'') return convert_string(s, out);
    for (size_t i = 0; i < 3; i++)
        if (str_starts(s, str_c(words[i].from)))
            return buf_puts(out, words[i].to), strlen(words[i].from);
    if (s.p[0] == '[' || s.p[0] == '{') return convert_container(s, out, depth);
    at = toolcall_value_span(s);
    while (at > 0 && s.p[at - 1] == ')') at--;
    if (!at || !toolcall_is_json(str_take(s, at), &failed)) {
        if (failed) out->failed = true;
        return 0;
    }
    buf_put_str(out, str_take(s, at));
    return at;
}

bool toolcall_convert_literal(struct str s, struct buf *out, bool *failed)
{
    size_t n = convert_python(s, out, 0);

    if (out->failed) *failed = true;
    return n && n == s.n && toolcall_is_json(buf_str(out), failed);
}

/* The length of a name; 0: none begins here. */
static size_t name_span(struct str s)
{
    size_t n = 0;

    while (n < s.n && (isalnum((unsigned char)s.p[n]) || (s.p[n] && strchr("_-.", s.p[n])))) n++;
    return n;
}

/* Converts k=v, ... up to the closing parenthesis, from `at` on. Returns its position; 0: these are
 * no keyword arguments. */
static size_t convert_keywords(struct str s, size_t at, struct buf *json)
{
    struct jsonw w = { .out = json };
    size_t key, value;

    buf_putc(json, '{');
    for (at = skip_spaces(s, at); at < s.n && s.p[at] != ')'; at = skip_spaces(s, at)) {
        if (s.p[at] == ',') {
            at++;
            continue;
        }
        key = name_span(str_skip(s, at));
        if (!key || at + key >= s.n || s.p[at + key] != '=') return 0;
        if (json->n > 1) buf_putc(json, ',');
        w.comma = false;
        jsonw_str(&w, str_of(s.p + at, key));
        buf_putc(json, ':');
        at = skip_spaces(s, at + key + 1);
        if (!(value = convert_python(str_skip(s, at), json, 0))) return 0;
        at += value;
    }
    buf_putc(json, '}');
    return at < s.n ? at : 0;
}

/* Sends the call that s begins with. Returns its bytes; 0: it is none. */
static size_t send_python_call(struct str s, struct toolcall_sink *sink)
{
    struct buf json = { 0 };
    size_t n = name_span(s), at, span;
    bool sent;

    if (!n || n >= s.n || s.p[n] != '(') return 0;
    at = skip_spaces(s, n + 1);
    if (at < s.n && s.p[at] == '{') { /* all arguments in one object */
        span = toolcall_json_span(str_skip(s, at));
        n = skip_spaces(s, at + span);
        if (!span || n >= s.n || s.p[n] != ')') return 0;
        return toolcall_send(str_take(s, name_span(s)), str_of(s.p + at, span), STR(""), sink)
                   ? n + 1
                   : 0;
    }
    at = convert_keywords(s, at, &json);
    if (json.failed) sink->failed = true;
    sent = at && send_converted(str_take(s, n), &json, sink);
    buf_release(&json);
    return sent ? at + 1 : 0;
}

/* Calls separated by commas or by white space, with or without brackets around all of them, also in
 * a ```python block. */
bool toolcall_send_python(struct str body, struct toolcall_sink *sink)
{
    struct str fence = STR("```python"), close = STR("```");
    bool any = false;

    body = str_trim(body);
    if (str_starts(body, fence)) body = str_trim(str_skip(body, fence.n));
    if (str_ends(body, close)) body = str_trim(str_take(body, body.n - close.n));
    if (body.n > 1 && body.p[0] == '[' && body.p[body.n - 1] == ']')
        body = str_of(body.p + 1, body.n - 2);
    while ((body = str_trim(body)).n) {
        size_t n;
        if (body.p[0] == ',') {
            body = str_skip(body, 1);
            continue;
        }
        if (!(n = send_python_call(body, sink))) return any;
        any = true;
        body = str_skip(body, n);
    }
    return any;
}

/* ---- Gemma: call:name{key:value, ...} ---- */

/* Keys have no quotes, and strings are between two marks of the family (<|"|> or <escape>), so that
 * they need no escapes. Numbers, true, false and null are as in JSON. */

/* Strings are between two marks of the family, and not escaped. */
struct gemma_reader {
    struct str s;
    size_t at;
    struct str quote;
    struct buf *out;
    int depth;
    const json_t *params; /* the schema of all arguments; NULL: there is none */
    const json_t *schema; /* of the current argument, if its text is no string */
};

/* The rest of a string, after its opening quote. FunctionGemma writes every argument as one: the
 * schema says which of them are not. */
static bool gemma_convert_text(struct gemma_reader *g)
{
    struct str rest = str_skip(g->s, g->at);
    ptrdiff_t end = str_find(rest, g->quote);
    struct jsonw w = { .out = g->out };

    if (end < 0) return false;
    rest = str_take(rest, (size_t)end);
    if (g->schema && g->depth == 0)
        toolcall_write_typed(rest, g->schema, g->params, g->out, &g->out->failed);
    else jsonw_str(&w, rest);
    g->at += (size_t)end + g->quote.n;
    return true;
}

/* The opening quote of a string. */
static bool gemma_eat_quote(struct gemma_reader *g)
{
    if (!str_starts(str_skip(g->s, g->at), g->quote)) return false;
    g->at += g->quote.n;
    return true;
}

/* Copies the first n bytes of the rest if they are JSON. */
static bool gemma_copy_json(struct gemma_reader *g, struct str json, size_t n)
{
    bool failed = false, is = toolcall_is_json(json, &failed);

    if (failed) g->out->failed = true;
    if (!is) return false;
    buf_put_str(g->out, json);
    g->at += n;
    return true;
}

/* A string in the notation of JSON. */
static bool gemma_copy_string(struct gemma_reader *g)
{
    struct str rest = str_skip(g->s, g->at);
    size_t n = rest.n && rest.p[0] == '"' ? toolcall_string_span(rest) : 0;

    return n && gemma_copy_json(g, str_take(rest, n), n);
}

/* A key may be quoted in either way, or plain. */
static bool gemma_convert_key(struct gemma_reader *g)
{
    struct jsonw w = { .out = g->out };
    size_t from = g->at;

    if (gemma_eat_quote(g)) return gemma_convert_text(g);
    if (gemma_copy_string(g)) return true;
    while (g->at < g->s.n && !strchr(":,}", g->s.p[g->at])) g->at++;
    jsonw_str(&w, str_trim(str_of(g->s.p + from, g->at - from)));
    return g->at > from;
}

/* Sets the schema of the argument whose key is at `from` in out, if it excludes strings. */
static void gemma_find_schema(struct gemma_reader *g, size_t from)
{
    struct str key = str_skip(buf_str(g->out), from);

    g->schema = NULL;
    if (g->depth || key.n < 2 || g->out->failed) return;
    g->schema = json_object_getn(json_object_get(g->params, "properties"), key.p + 1, key.n - 2);
    if (!toolcall_excludes_text(g->schema, g->params)) g->schema = NULL;
}

static bool gemma_convert_value(struct gemma_reader *g);

/* The rest of "{...}" or "[...]", after the bracket. */
static bool gemma_convert_items(struct gemma_reader *g, char close)
{
    bool first = true;

    buf_putc(g->out, close == '}' ? '{' : '[');
    for (;;) {
        g->at = skip_spaces(g->s, g->at);
        if (g->at >= g->s.n) return false;
        if (g->s.p[g->at] == close) break;
        if (!first && g->s.p[g->at++] != ',') return false;
        if (!first) buf_putc(g->out, ',');
        g->at = skip_spaces(g->s, g->at);
        if (close == '}') {
            size_t key = g->out->n;
            if (g->depth == 0) g->schema = NULL;
            if (!gemma_convert_key(g) || g->at >= g->s.n || g->s.p[g->at++] != ':') return false;
            gemma_find_schema(g, key);
            buf_putc(g->out, ':');
        }
        if (!gemma_convert_value(g)) return false;
        first = false;
    }
    g->at++;
    buf_putc(g->out, close);
    return true;
}

static bool gemma_convert_value(struct gemma_reader *g)
{
    size_t from = g->at = skip_spaces(g->s, g->at), end;
    char c = g->at < g->s.n ? g->s.p[g->at] : 0;
    struct str word;
    bool is;

    if (gemma_eat_quote(g)) return gemma_convert_text(g);
    if (gemma_copy_string(g)) return true;
    if (c == '{' || c == '[') {
        if (++g->depth > MAX_VALUE_DEPTH) return false;
        g->at++;
        is = gemma_convert_items(g, c == '{' ? '}' : ']');
        g->depth--;
        return is;
    }
    for (end = from; end < g->s.n && !strchr(",}]", g->s.p[end]);) end++;
    word = str_trim(str_of(g->s.p + from, end - from));
    /* a template that prints null as Python does teaches the model to do so */
    return gemma_copy_json(g, str_is(word, "None") ? STR("null") : word, end - from);
}

bool toolcall_send_gemma(struct str body, const char *quote, const json_t *tools,
                         struct toolcall_sink *sink)
{
    struct buf json = { 0 };
    struct gemma_reader g = { .s = str_trim(body), .quote = str_c(quote), .out = &json };
    struct str name, rest;
    ptrdiff_t brace;
    size_t span;
    bool sent = false;

    if (str_starts(g.s, STR("call:"))) g.s = str_skip(g.s, 5);
    if ((brace = str_find(g.s, STR("{"))) <= 0) return false;
    name = str_take(g.s, (size_t)brace);
    rest = str_skip(g.s, (size_t)brace + 1);
    span = rest.n && rest.p[0] == '{' ? toolcall_json_span(rest) : 0;
    if (span && str_is(str_trim(str_skip(rest, span)), "}")) /* all arguments in one object */
        return toolcall_send(name, str_take(rest, span), STR(""), sink);
    g.at = (size_t)brace + 1;
    g.params = toolcall_find_schema(tools, str_trim(name));
    if (gemma_convert_items(&g, '}')) sent = send_converted(name, &json, sink);
    if (json.failed) sink->failed = true;
    buf_release(&json);
    return sent;
}
