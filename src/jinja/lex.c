#include "jinja/lex.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "jinja/jinja.h"
#include "jinja/render.h"
#include "jinja/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENS = 1 << 19 };

struct lexer {
    struct arena *a;
    struct str src;
    const char *name;
    struct err *e;
    size_t at;
    bool line_starting; /* what was read last ended a line */
    char closers[256];  /* of the brackets that are open */
    int n_open;
    struct token *v;
    size_t n, cap;
    int rc;
};

void jinja_place(struct str source, uint32_t at, int *line, int *column)
{
    size_t begin = 0;

    *line = 1;
    for (size_t i = 0; i < at && i < source.n; i++)
        if (source.p[i] == '\n') (*line)++, begin = i + 1;
    *column = (int)jstr_len(str_of(source.p + begin, (at < source.n ? at : source.n) - begin)) + 1;
}

int lex_error(struct str source, const char *name, uint32_t at, struct err *e, const char *fmt, ...)
{
    char text[400];
    int line, column;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    jinja_place(source, at, &line, &column);
    return err_set(e, E_FORMAT, "%s: line %d, column %d: %s", name, line, column, text);
}

#define FAIL(x, at, ...) \
    ((x)->rc = lex_error((x)->src, (x)->name, (uint32_t)(at), (x)->e, __VA_ARGS__))

struct str lex_source(struct arena *a, struct str raw)
{
    char *p = arena_alloc(a, raw.n + 1);
    size_t n = 0;

    for (size_t i = 0; i < raw.n; i++) {
        if (raw.p[i] == '\r') {
            p[n++] = '\n';
            if (i + 1 < raw.n && raw.p[i + 1] == '\n') i++;
        } else {
            p[n++] = raw.p[i];
        }
    }
    if (n && p[n - 1] == '\n') n--;
    return str_of(p, n);
}

static void push(struct lexer *x, enum token_type type, size_t at, struct str text)
{
    if (x->n == x->cap) {
        struct token *to;
        x->cap = x->cap ? 2 * x->cap : 256;
        if (x->cap > MAX_TOKENS) {
            FAIL(x, at, "the template has more than %d parts", MAX_TOKENS);
            x->cap = x->n;
            return;
        }
        to = arena_array(x->a, x->cap, sizeof *to);
        if (x->n) memcpy(to, x->v, x->n * sizeof *to);
        x->v = to;
    }
    x->v[x->n++] = (struct token){ .type = type, .at = (uint32_t)at, .text = text };
}

static struct str rest(const struct lexer *x, size_t at) { return str_skip(x->src, at); }
static bool starts(const struct lexer *x, size_t at, const char *what)
{
    return str_starts(rest(x, at), str_c(what));
}

/* Behind the white space at `at`. */
static size_t skip_space(const struct lexer *x, size_t at)
{
    while (at < x->src.n) {
        int32_t cp;
        int n = utf8_next(rest(x, at), &cp);
        if (!uni_space(cp)) break;
        at += (size_t)n;
    }
    return at;
}

/* Where the white space before `end` begins, not before `from`. */
static size_t back_space(const struct lexer *x, size_t from, size_t end)
{
    while (end > from) {
        size_t at = end - 1;
        int32_t cp;
        while (at > from && ((unsigned char)x->src.p[at] & 0xc0) == 0x80) at--;
        utf8_next(rest(x, at), &cp);
        if (!uni_space(cp)) break;
        end = at;
    }
    return end;
}

/* ---- text between tags ---- */

/* What stays of the text [from, end) before a tag with that sign. */
static size_t strip_before(const struct lexer *x, size_t from, size_t end, char sign, bool variable)
{
    size_t line = end;

    if (sign == '-') return back_space(x, from, end);
    if (sign == '+' || variable) return end;
    while (line > from && x->src.p[line - 1] != '\n') line--;
    if ((line > from || x->line_starting) && back_space(x, line, end) == line) return line;
    return end;
}

static void push_text(struct lexer *x, size_t from, size_t end)
{
    if (end > from) push(x, TOK_DATA, from, str_of(x->src.p + from, end - from));
}

static char sign_at(const struct lexer *x, size_t at)
{
    char c = at < x->src.n ? x->src.p[at] : 0;
    return c == '-' || c == '+' ? c : 0;
}

static void line_ended(struct lexer *x)
{
    x->line_starting = x->at > 0 && x->src.p[x->at - 1] == '\n';
}

/* The end of a tag at `at`: "%}" and the newline behind it, "-%}" and all white space, "+%}". 0:
 * none there. */
static size_t tag_end(const struct lexer *x, size_t at, const char *close, bool trim, bool plus)
{
    char sign = sign_at(x, at);

    if (sign == '-' && starts(x, at + 1, close)) return skip_space(x, at + 3);
    if (sign == '+' && plus && starts(x, at + 1, close)) return at + 3;
    if (!starts(x, at, close)) return 0;
    at += 2;
    return trim && at < x->src.n && x->src.p[at] == '\n' ? at + 1 : at;
}

static void lex_comment(struct lexer *x, size_t begin)
{
    if (x->at >= x->src.n) return; /* as jinja2: nothing is left to be missed */
    for (size_t at = x->at, end; at < x->src.n; at++) {
        if (!(end = tag_end(x, at, "#}", true, true))) continue;
        x->at = end;
        line_ended(x);
        return;
    }
    FAIL(x, begin, "the comment has no end, expected '#}'");
}

/* Behind "{%" and its sign: is it "raw %}"? Gives where its text begins, or 0. */
static size_t raw_begin(const struct lexer *x, size_t at)
{
    at = skip_space(x, at);
    if (!starts(x, at, "raw")) return 0;
    at = skip_space(x, at + 3);
    return tag_end(x, at, "%}", false, false);
}

static void lex_raw(struct lexer *x, size_t begin)
{
    size_t from = x->at;

    if (from >= x->src.n) return;
    for (size_t at = from; at < x->src.n; at++) {
        size_t word, end;
        char sign;
        if (!starts(x, at, "{%")) continue;
        sign = sign_at(x, at + 2);
        word = skip_space(x, at + 2 + (sign != 0));
        if (!starts(x, word, "endraw")) continue;
        if (!(end = tag_end(x, skip_space(x, word + 6), "%}", true, true))) continue;
        push_text(x, from, strip_before(x, from, at, sign, false));
        x->at = end;
        line_ended(x);
        return;
    }
    FAIL(x, begin, "raw has no end, expected '{%% endraw %%}'");
}

/* ---- tokens inside tags ---- */

static bool digit_run(const struct lexer *x, size_t *at, int base)
{
    size_t i = *at;
    bool any = false;

    for (; i < x->src.n; i++) {
        int c = tolower((unsigned char)x->src.p[i]);
        int v = isdigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (c == '_' && any && i + 1 < x->src.n && x->src.p[i - 1] != '_') continue;
        if (v >= base) break;
        any = true;
    }
    if (any && x->src.p[i - 1] == '_') i--;
    if (any) *at = i;
    return any;
}

static size_t strip_underscores(const struct lexer *x, size_t from, size_t end, char *out,
                                size_t cap)
{
    size_t n = 0;

    for (size_t i = from; i < end && n + 1 < cap; i++)
        if (x->src.p[i] != '_') out[n++] = x->src.p[i];
    out[n] = 0;
    return n;
}

/* The end of a real number at x->at, or 0: it is none. */
static size_t float_end(const struct lexer *x)
{
    size_t at = x->at, exp;
    bool fraction = false;

    if (at > 0 && x->src.p[at - 1] == '.') return 0;
    digit_run(x, &at, 10);
    if (at + 1 < x->src.n && x->src.p[at] == '.' && isdigit((unsigned char)x->src.p[at + 1])) {
        at++;
        fraction = digit_run(x, &at, 10);
    }
    exp = at;
    if (exp < x->src.n && tolower((unsigned char)x->src.p[exp]) == 'e') {
        exp++;
        if (exp < x->src.n && (x->src.p[exp] == '+' || x->src.p[exp] == '-')) exp++;
        if (exp < x->src.n && isdigit((unsigned char)x->src.p[exp]) && digit_run(x, &exp, 10))
            return exp;
    }
    return fraction ? at : 0;
}

static void lex_int(struct lexer *x)
{
    size_t begin = x->at, at = begin + 2;
    int c = begin + 1 < x->src.n && x->src.p[begin] == '0'
                ? tolower((unsigned char)x->src.p[begin + 1])
                : 0;
    int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    char text[80];
    long long v;

    if (base != 10 && at < x->src.n && x->src.p[at] == '_') at++;
    if (base == 10 || !digit_run(x, &at, base)) {
        base = 10, at = begin;
        digit_run(x, &at, x->src.p[begin] == '0' ? 1 : 10);
    }
    strip_underscores(x, begin + (base == 10 ? 0 : 2), at, text, sizeof text);
    errno = 0;
    v = strtoll(text, NULL, base);
    if (errno || at - begin > 70) {
        FAIL(x, begin, "the number %.*s is larger than 64 bits",
             (int)(at - begin > 40 ? 40 : at - begin), x->src.p + begin);
        return;
    }
    push(x, TOK_INT, begin, str_of(x->src.p + begin, at - begin));
    x->v[x->n - 1].value = jv_int(v);
    x->at = at;
}

static void lex_number(struct lexer *x)
{
    size_t end = float_end(x);
    char text[400];

    if (!end) {
        lex_int(x);
        return;
    }
    strip_underscores(x, x->at, end, text, sizeof text);
    push(x, TOK_FLOAT, x->at, str_of(x->src.p + x->at, end - x->at));
    x->v[x->n - 1].value = jv_float(strtod(text, NULL));
    x->at = end;
}

static bool name_char(int32_t cp)
{
    return cp == '_' || (cp < 0x80 ? isalnum(cp < 0 ? 0 : cp)
                                   : uni_word(cp) || (uni_printable(cp) && uni_case_ignorable(cp)));
}

static void lex_name(struct lexer *x)
{
    size_t begin = x->at;

    while (x->at < x->src.n) {
        int32_t cp;
        int n = utf8_next(rest(x, x->at), &cp);
        if (!name_char(cp)) break;
        x->at += (size_t)n;
    }
    push(x, TOK_NAME, begin, str_of(x->src.p + begin, x->at - begin));
}

/* ---- strings ---- */

static int hex_digits(struct str s, size_t n)
{
    int v = 0;

    if (s.n < n) return -1;
    for (size_t i = 0; i < n; i++) {
        int c = tolower((unsigned char)s.p[i]);
        if (!isxdigit(c)) return -1;
        v = v * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return v;
}

static int put_cp(char *out, int cp)
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) cp = 0xfffd;
    return utf8_put(out, cp);
}

/* "\xhh", "\uhhhh", "\Uhhhhhhhh": s is behind the backslash. Gives how much was read, 0: wrong. */
static size_t unescape_hex(struct str s, char *out, size_t *n)
{
    size_t digits = s.p[0] == 'x' ? 2 : s.p[0] == 'u' ? 4 : 8;
    int cp = hex_digits(str_skip(s, 1), digits), low;

    if (cp < 0) return 0;
    if (digits == 4 && cp >= 0xd800 && cp < 0xdc00 && s.n >= 11 && s.p[5] == '\\' &&
        s.p[6] == 'u' && (low = hex_digits(str_skip(s, 7), 4)) >= 0xdc00 && low < 0xe000) {
        *n += (size_t)put_cp(out + *n, 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00));
        return 11;
    }
    *n += (size_t)put_cp(out + *n, cp);
    return 1 + digits;
}

/* One escape, s behind the backslash; gives how much was read, 0: wrong. */
static size_t unescape(struct str s, char *out, size_t *n)
{
    static const char names[] = "\\'\"abfnrtv", codes[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = s.p[0] ? strchr(names, s.p[0]) : NULL;
    size_t read = 0;
    int v = 0;

    if (at) return out[(*n)++] = codes[at - names], 1;
    if (s.p[0] == '\n') return 1;
    if (s.p[0] == 'x' || s.p[0] == 'u' || s.p[0] == 'U') return unescape_hex(s, out, n);
    for (; read < 3 && read < s.n && s.p[read] >= '0' && s.p[read] <= '7'; read++)
        v = v * 8 + s.p[read] - '0';
    if (read) return *n += (size_t)put_cp(out + *n, v), read;
    if (s.p[0] == 'N') return 0;
    out[(*n)++] = '\\';
    if ((unsigned char)s.p[0] >= 0x80) { /* as Python's detour over ASCII has it */
        int32_t cp;
        read = (size_t)utf8_next(s, &cp);
        *n += (size_t)snprintf(out + *n, 12,
                               cp < 0x100     ? "x%02x"
                               : cp < 0x10000 ? "u%04x"
                                              : "U%08x",
                               (unsigned)cp);
    }
    return read ? read : (out[(*n)++] = s.p[0], 1);
}

static void lex_string(struct lexer *x)
{
    size_t begin = x->at, end = begin + 1, n = 0;
    char quote = x->src.p[begin], *out;

    while (end < x->src.n && x->src.p[end] != quote) end += x->src.p[end] == '\\' ? 2 : 1;
    if (end >= x->src.n) {
        FAIL(x, begin, "the string has no end, expected %c", quote);
        return;
    }
    out = arena_alloc(x->a, 3 * (end - begin) + 16);
    for (size_t i = begin + 1; i < end;) {
        size_t read;
        if (x->src.p[i] != '\\') {
            out[n++] = x->src.p[i++];
            continue;
        }
        read = unescape(str_of(x->src.p + i + 1, end - i - 1), out, &n);
        if (!read) {
            FAIL(x, i, "the escape \\%c is cut short or not known", x->src.p[i + 1]);
            return;
        }
        i += 1 + read;
    }
    push(x, TOK_STRING, begin, str_of(x->src.p + begin, end + 1 - begin));
    x->v[x->n - 1].value = jv_str(str_of(out, n));
    x->at = end + 1;
}

/* ---- operators ---- */

static void balance(struct lexer *x, char c)
{
    char want = c == '(' ? ')' : c == '[' ? ']' : '}';

    if (strchr("([{", c)) {
        if (x->n_open == (int)sizeof x->closers)
            FAIL(x, x->at, "brackets are nested more than %d deep", x->n_open);
        else x->closers[x->n_open++] = want;
        return;
    }
    if (x->n_open == 0) FAIL(x, x->at, "unexpected '%c'", c);
    else if (x->closers[--x->n_open] != c)
        FAIL(x, x->at, "unexpected '%c', expected '%c'", c, x->closers[x->n_open]);
}

static void lex_operator(struct lexer *x)
{
    static const char *const two[] = { "//", "**", "==", "!=", ">=", "<=" };
    static const char one[] = "+-/*%~[](){}><=.:|,;";
    char c = x->src.p[x->at];
    size_t n = 0;

    for (size_t i = 0; i < sizeof two / sizeof *two && !n; i++)
        if (starts(x, x->at, two[i])) n = 2;
    if (!n && c && strchr(one, c)) n = 1;
    if (!n) {
        struct str raw = rest(x, x->at);
        int32_t cp;
        FAIL(x, x->at, "unexpected character '%.*s'", utf8_next(raw, &cp), raw.p);
        return;
    }
    if (n == 1 && strchr("()[]{}", c)) balance(x, c);
    push(x, TOK_OP, x->at, str_of(x->src.p + x->at, n));
    x->at += n;
}

static void lex_token(struct lexer *x)
{
    unsigned char c = (unsigned char)x->src.p[x->at];
    int32_t cp;

    utf8_next(rest(x, x->at), &cp);
    if (c >= '0' && c <= '9') lex_number(x);
    else if (c == '\'' || c == '"') lex_string(x);
    else if (name_char(cp)) lex_name(x);
    else lex_operator(x);
}

/* From behind "{{" or "{%" and its sign to behind the end. */
static void lex_tag(struct lexer *x, size_t begin, bool variable)
{
    x->n_open = 0;
    for (;;) {
        size_t end;
        if (x->rc != OK) return;
        x->at = skip_space(x, x->at);
        if (x->at >= x->src.n) {
            FAIL(x, begin, "the tag has no end, expected '%s'", variable ? "}}" : "%}");
            return;
        }
        end = x->n_open  ? 0
              : variable ? tag_end(x, x->at, "}}", false, false)
                         : tag_end(x, x->at, "%}", true, true);
        if (!end) {
            lex_token(x);
            continue;
        }
        push(x, variable ? TOK_VAR_END : TOK_BLOCK_END, x->at, str_of(x->src.p + x->at, 2));
        x->at = end;
        line_ended(x);
        return;
    }
}

/* The text up to the next tag, and the tag. */
static void lex_part(struct lexer *x)
{
    size_t from = x->at, at = from, raw;
    bool variable;
    char sign;

    while (at + 1 < x->src.n &&
           !(x->src.p[at] == '{' && strchr("{%#", x->src.p[at + 1]) && x->src.p[at + 1]))
        at++;
    if (at + 1 >= x->src.n) {
        push_text(x, from, x->src.n);
        x->at = x->src.n;
        return;
    }
    variable = x->src.p[at + 1] == '{';
    sign = sign_at(x, at + 2);
    push_text(x, from, strip_before(x, from, at, sign, variable));
    x->at = at + 2 + (sign != 0);
    if (x->src.p[at + 1] == '#') {
        lex_comment(x, at);
    } else if (!variable && (raw = raw_begin(x, x->at))) {
        x->at = raw;
        line_ended(x);
        lex_raw(x, at);
    } else {
        push(x, variable ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN, at, str_of(x->src.p + at, 2));
        lex_tag(x, at, variable);
    }
}

int lex(struct arena *a, struct str source, const char *name, struct tokens *out, struct err *e)
{
    struct lexer x = { .a = a, .src = source, .name = name, .e = e, .line_starting = true };

    while (x.at < source.n && x.rc == OK) lex_part(&x);
    if (x.rc == OK) push(&x, TOK_EOF, source.n, STR(""));
    *out = (struct tokens){ x.v, x.n };
    return x.rc;
}
