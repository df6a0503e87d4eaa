/* lex.c - the lexer, with jinja2's white space control.
 *
 * trim_blocks and lstrip_blocks are always on, as transformers sets them: the newline behind a
 * block tag or comment is dropped, and so is white space between the beginning of a line and such a
 * tag.
 * "-" inside a tag strips all white space on that side; "+" switches stripping off:
 *
 *     {%   strips blanks between the beginning of the line and the tag
 *     {%-  strips all white space before the tag, newlines too      {%+  strips nothing
 *     %}   strips one newline behind the tag
 *     -%}  strips all white space behind the tag                    +%}  strips nothing
 *
 * {{ and }} strip nothing unless they have a "-"; comments are like block tags. String escapes
 * are Python's, except that a pair of surrogates becomes the character it encodes. */
#include "jinja/lex.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "jinja/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENS = 1 << 19 };

struct lexer {
    struct arena *a; /* unescaped strings */
    struct str src;
    const char *name; /* of the template, in error messages */
    struct err *e;
    size_t at;          /* offset of the next byte to read */
    bool line_starting; /* the last byte read was a newline, or nothing was read */
    char closers[256];  /* closing brackets of those that are open */
    int n_open;
    struct tokens out;
    struct token spare; /* returned when the array cannot grow */
    int rc;             /* the first failure; the lexer then stops */
};

void lex_place(struct str source, uint32_t at, int *line, int *column)
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
    lex_place(source, at, &line, &column);
    return err_set(e, E_FORMAT, "%s: line %d, column %d: %s", name, line, column, text);
}

#define LEX_FAIL(x, at, ...) \
    ((x)->rc = lex_error((x)->src, (x)->name, (uint32_t)(at), (x)->e, __VA_ARGS__))

struct str lex_source(struct arena *a, struct str raw)
{
    char *p = arena_alloc(a, raw.n + 1);
    size_t n = 0;

    if (!p) return (struct str){ 0 };
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

/* Adds a token and returns it, never NULL, so that the caller can set its value. */
static struct token *push_token(struct lexer *x, enum token_type type, size_t at, struct str text)
{
    struct tokens *v = &x->out;

    if (v->n == MAX_TOKENS) {
        LEX_FAIL(x, at, "the template has more than %d tokens", MAX_TOKENS);
        return &x->spare;
    }
    if (!mem_ensure(v->v, v->cap, v->n + 1)) {
        x->rc = err_nomem(x->e, "the tokens of a template");
        return &x->spare;
    }
    v->v[v->n] = (struct token){ .type = type, .at = (uint32_t)at, .text = text };
    return &v->v[v->n++];
}

/* The rest of the source from an offset on. */
static struct str source_from(const struct lexer *x, size_t at) { return str_skip(x->src, at); }
static bool starts_at(const struct lexer *x, size_t at, const char *what)
{
    return str_starts(source_from(x, at), str_c(what));
}

/* The offset of the first byte behind white space that begins at `at`. */
static size_t skip_space(const struct lexer *x, size_t at)
{
    while (at < x->src.n) {
        int32_t cp;
        int n = utf8_next(source_from(x, at), &cp);
        if (!uni_space(cp)) break;
        at += (size_t)n;
    }
    return at;
}

/* The offset where white space that ends at `end` begins; at least `from`. */
static size_t skip_space_back(const struct lexer *x, size_t from, size_t end)
{
    while (end > from) {
        size_t at = end - 1;
        int32_t cp;
        while (at > from && ((unsigned char)x->src.p[at] & 0xc0) == 0x80) at--;
        utf8_next(source_from(x, at), &cp);
        if (!uni_space(cp)) break;
        end = at;
    }
    return end;
}

/* ---- text outside of tags ---- */

/* The new end of the text [from, end) that stands before a tag with the sign '-', '+' or 0. */
static size_t strip_before(const struct lexer *x, size_t from, size_t end, char sign, bool variable)
{
    size_t line = end;

    if (sign == '-') return skip_space_back(x, from, end);
    if (sign == '+' || variable) return end;
    while (line > from && x->src.p[line - 1] != '\n') line--;
    /* Only white space between the line start and the tag: lstrip_blocks drops it. */
    if ((line > from || x->line_starting) && skip_space_back(x, line, end) == line) return line;
    return end;
}

/* Text outside of tags; nothing if it is empty. */
static void push_data(struct lexer *x, size_t from, size_t end)
{
    if (end > from) push_token(x, TOK_DATA, from, str_of(x->src.p + from, end - from));
}

/* The white space control sign at an offset; 0: none. */
static char sign_at(const struct lexer *x, size_t at)
{
    char c = at < x->src.n ? x->src.p[at] : 0;
    return c == '-' || c == '+' ? c : 0;
}

/* lstrip_blocks needs to know whether the text behind a tag begins a line. */
static void note_line_start(struct lexer *x)
{
    x->line_starting = x->at > 0 && x->src.p[x->at - 1] == '\n';
}

/* If a tag ends at `at`, the offset behind its end, else 0. The end is "%}" with the newline behind
 * it (trim), "-%}" with all white space behind it, or "+%}" (plus: allowed here). */
static size_t tag_end(const struct lexer *x, size_t at, const char *close, bool trim, bool plus)
{
    char sign = sign_at(x, at);

    if (sign == '-' && starts_at(x, at + 1, close)) return skip_space(x, at + 3);
    if (sign == '+' && plus && starts_at(x, at + 1, close)) return at + 3;
    if (!starts_at(x, at, close)) return 0;
    at += 2;
    return trim && at < x->src.n && x->src.p[at] == '\n' ? at + 1 : at;
}

/* Comments do not nest and leave no token. */
static void lex_comment(struct lexer *x, size_t begin)
{
    if (x->at >= x->src.n) return; /* as in jinja2: no error when "{#" ends the source */
    for (size_t at = x->at, end; at < x->src.n; at++) {
        if (!(end = tag_end(x, at, "#}", true, true))) continue;
        x->at = end;
        note_line_start(x);
        return;
    }
    LEX_FAIL(x, begin, "the comment has no end, expected '#}'");
}

/* If "raw %}" follows at `at`, behind "{%" and its sign, the offset where its text begins, else 0. */
static size_t raw_begin(const struct lexer *x, size_t at)
{
    at = skip_space(x, at);
    if (!starts_at(x, at, "raw")) return 0;
    at = skip_space(x, at + 3);
    return tag_end(x, at, "%}", false, false);
}

/* {% raw %}: the text up to {% endraw %} is data, with white space control at both ends. */
static void lex_raw(struct lexer *x, size_t begin)
{
    size_t from = x->at;

    if (from >= x->src.n) return;
    for (size_t at = from; at < x->src.n; at++) {
        size_t word, end;
        char sign;
        if (!starts_at(x, at, "{%")) continue;
        sign = sign_at(x, at + 2);
        word = skip_space(x, at + 2 + (sign != 0));
        if (!starts_at(x, word, "endraw")) continue;
        if (!(end = tag_end(x, skip_space(x, word + 6), "%}", true, true))) continue;
        push_data(x, from, strip_before(x, from, at, sign, false));
        x->at = end;
        note_line_start(x);
        return;
    }
    LEX_FAIL(x, begin, "raw has no end, expected '{%% endraw %%}'");
}

/* ---- tokens inside tags ---- */

/* Skips digits of a base, with single underscores between them; false: there is none. */
static bool skip_digits(const struct lexer *x, size_t *at, int base)
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

/* A number without its underscores, NUL-terminated. */
static size_t copy_digits(const struct lexer *x, size_t from, size_t end, char *out, size_t cap)
{
    size_t n = 0;

    for (size_t i = from; i < end && n + 1 < cap; i++)
        if (x->src.p[i] != '_') out[n++] = x->src.p[i];
    out[n] = 0;
    return n;
}

/* The offset behind the real number at x->at, or 0: it is an integer. */
static size_t float_end(const struct lexer *x)
{
    size_t at = x->at, exp;
    bool fraction = false;

    if (at > 0 && x->src.p[at - 1] == '.') return 0;
    skip_digits(x, &at, 10);
    if (at + 1 < x->src.n && x->src.p[at] == '.' && isdigit((unsigned char)x->src.p[at + 1])) {
        at++;
        fraction = skip_digits(x, &at, 10);
    }
    exp = at;
    if (exp < x->src.n && tolower((unsigned char)x->src.p[exp]) == 'e') {
        exp++;
        if (exp < x->src.n && (x->src.p[exp] == '+' || x->src.p[exp] == '-')) exp++;
        if (exp < x->src.n && isdigit((unsigned char)x->src.p[exp]) && skip_digits(x, &exp, 10))
            return exp;
    }
    return fraction ? at : 0;
}

/* Decimal, 0x, 0o or 0b. As in Python, a decimal number does not begin with 0 unless it is all
 * zeros. */
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
    if (base == 10 || !skip_digits(x, &at, base)) {
        base = 10, at = begin;
        skip_digits(x, &at, x->src.p[begin] == '0' ? 1 : 10);
    }
    copy_digits(x, begin + (base == 10 ? 0 : 2), at, text, sizeof text);
    errno = 0;
    v = strtoll(text, NULL, base);
    if (errno || at - begin > 70) {
        LEX_FAIL(x, begin, "the integer %.*s does not fit into 64 bits",
                 (int)(at - begin > 40 ? 40 : at - begin), x->src.p + begin);
        return;
    }
    push_token(x, TOK_INT, begin, str_of(x->src.p + begin, at - begin))->value = jv_int(v);
    x->at = at;
}

/* A number is a float if it has a fraction or an exponent. */
static void lex_number(struct lexer *x)
{
    size_t end = float_end(x);
    char text[400];

    if (!end) {
        lex_int(x);
        return;
    }
    copy_digits(x, x->at, end, text, sizeof text);
    push_token(x, TOK_FLOAT, x->at, str_of(x->src.p + x->at, end - x->at))->value =
        jv_float(strtod(text, NULL));
    x->at = end;
}

/* Python's identifier characters, approximated by \w. */
static bool is_name_char(int32_t cp)
{
    return cp == '_' || (cp < 0x80 ? isalnum(cp < 0 ? 0 : cp)
                                   : uni_word(cp) || (uni_printable(cp) && uni_case_ignorable(cp)));
}

/* Keywords are names too; the parser tells them apart. */
static void lex_name(struct lexer *x)
{
    size_t begin = x->at;

    while (x->at < x->src.n) {
        int32_t cp;
        int n = utf8_next(source_from(x, x->at), &cp);
        if (!is_name_char(cp)) break;
        x->at += (size_t)n;
    }
    push_token(x, TOK_NAME, begin, str_of(x->src.p + begin, x->at - begin));
}

/* ---- strings ---- */

/* The value of n hexadecimal digits; -1: s begins with something else. */
static int parse_hex(struct str s, size_t n)
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

/* UTF-8; surrogates and values out of range become U+FFFD. */
static int put_code_point(char *out, int cp)
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) cp = 0xfffd;
    return utf8_put(out, cp);
}

/* "\xhh", "\uhhhh" or "\Uhhhhhhhh", s without the backslash. Returns the bytes read, 0: invalid. */
static size_t unescape_hex(struct str s, char *out, size_t *n)
{
    size_t digits = s.p[0] == 'x' ? 2 : s.p[0] == 'u' ? 4 : 8;
    int cp = parse_hex(str_skip(s, 1), digits), low;

    if (cp < 0) return 0;
    if (digits == 4 && cp >= 0xd800 && cp < 0xdc00 && s.n >= 11 && s.p[5] == '\\' &&
        s.p[6] == 'u' && (low = parse_hex(str_skip(s, 7), 4)) >= 0xdc00 && low < 0xe000) {
        *n += (size_t)put_code_point(out + *n, 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00));
        return 11;
    }
    *n += (size_t)put_code_point(out + *n, cp);
    return 1 + digits;
}

/* One escape sequence, s without the backslash. Returns the bytes read, 0: invalid. An unknown
 * escape keeps its backslash. */
static size_t unescape_one(struct str s, char *out, size_t *n)
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
    if (read) return *n += (size_t)put_code_point(out + *n, v), read;
    if (s.p[0] == 'N') return 0;
    out[(*n)++] = '\\';
    if ((unsigned char)s.p[0] >=
        0x80) { /* jinja2 encodes with backslashreplace before unescaping */
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

/* A quoted string without the quotes and with escapes resolved. */
static void lex_string(struct lexer *x)
{
    size_t begin = x->at, end = begin + 1, n = 0;
    char quote = x->src.p[begin], *out;

    /* A backslash protects the next byte, also a quote. */
    while (end < x->src.n && x->src.p[end] != quote) end += x->src.p[end] == '\\' ? 2 : 1;
    if (end >= x->src.n) {
        LEX_FAIL(x, begin, "the string has no end, expected %c", quote);
        return;
    }
    /* Enough for the worst escape: a backslash and 4 bytes of UTF-8 become "\\U0001f600". */
    if (!(out = arena_alloc(x->a, 3 * (end - begin) + 16))) {
        x->rc = err_nomem(x->e, "a string of a template");
        return;
    }
    for (size_t i = begin + 1; i < end;) {
        size_t read;
        if (x->src.p[i] != '\\') {
            out[n++] = x->src.p[i++];
            continue;
        }
        read = unescape_one(str_of(x->src.p + i + 1, end - i - 1), out, &n);
        if (!read) {
            LEX_FAIL(x, i, "the escape sequence \\%c is invalid", x->src.p[i + 1]);
            return;
        }
        i += 1 + read;
    }
    push_token(x, TOK_STRING, begin, str_of(x->src.p + begin, end + 1 - begin))->value =
        jv_str(str_of(out, n));
    x->at = end + 1;
}

/* ---- operators ---- */

/* Opening brackets are remembered, closing ones must match the last. */
static void track_bracket(struct lexer *x, char c)
{
    char want = c == '(' ? ')' : c == '[' ? ']' : '}';

    if (strchr("([{", c)) {
        if (x->n_open == (int)sizeof x->closers)
            LEX_FAIL(x, x->at, "brackets are nested more than %d deep", x->n_open);
        else x->closers[x->n_open++] = want;
        return;
    }
    if (x->n_open == 0) LEX_FAIL(x, x->at, "unexpected '%c'", c);
    else if (x->closers[--x->n_open] != c)
        LEX_FAIL(x, x->at, "unexpected '%c', expected '%c'", c, x->closers[x->n_open]);
}

/* The longest operator wins: "**" before "*". */
static void lex_operator(struct lexer *x)
{
    static const char *const two[] = { "//", "**", "==", "!=", ">=", "<=" };
    static const char one[] = "+-/*%~[](){}><=.:|,;";
    char c = x->src.p[x->at];
    size_t n = 0;

    for (size_t i = 0; i < sizeof two / sizeof *two && !n; i++)
        if (starts_at(x, x->at, two[i])) n = 2;
    if (!n && c && strchr(one, c)) n = 1;
    if (!n) {
        struct str raw = source_from(x, x->at);
        int32_t cp;
        LEX_FAIL(x, x->at, "unexpected character '%.*s'", utf8_next(raw, &cp), raw.p);
        return;
    }
    if (n == 1 && strchr("()[]{}", c)) track_bracket(x, c);
    push_token(x, TOK_OP, x->at, str_of(x->src.p + x->at, n));
    x->at += n;
}

/* One token inside a tag. */
static void lex_token(struct lexer *x)
{
    unsigned char c = (unsigned char)x->src.p[x->at];
    int32_t cp;

    utf8_next(source_from(x, x->at), &cp);
    if (c >= '0' && c <= '9') lex_number(x);
    else if (c == '\'' || c == '"') lex_string(x);
    else if (is_name_char(cp)) lex_name(x);
    else lex_operator(x);
}

/* The tokens of a tag, from behind "{{" or "{%" and its sign to behind its end. Inside brackets
 * "}}" is two closing brackets. */
static void lex_tag(struct lexer *x, size_t begin, bool variable)
{
    /* Brackets must be balanced within a tag. */
    x->n_open = 0;
    for (;;) {
        size_t end;
        if (x->rc != OK) return;
        x->at = skip_space(x, x->at);
        if (x->at >= x->src.n) {
            LEX_FAIL(x, begin, "the tag has no end, expected '%s'", variable ? "}}" : "%}");
            return;
        }
        end = x->n_open  ? 0
              : variable ? tag_end(x, x->at, "}}", false, false)
                         : tag_end(x, x->at, "%}", true, true);
        if (!end) {
            lex_token(x);
            continue;
        }
        push_token(x, variable ? TOK_VAR_END : TOK_BLOCK_END, x->at, str_of(x->src.p + x->at, 2));
        x->at = end;
        note_line_start(x);
        return;
    }
}

/* The text up to the next tag, comment or raw block, and that. */
static void lex_part(struct lexer *x)
{
    size_t from = x->at, at = from, raw;
    bool variable;
    char sign;

    while (at + 1 < x->src.n &&
           !(x->src.p[at] == '{' && strchr("{%#", x->src.p[at + 1]) && x->src.p[at + 1]))
        at++;
    if (at + 1 >= x->src.n) {
        push_data(x, from, x->src.n);
        x->at = x->src.n;
        return;
    }
    variable = x->src.p[at + 1] == '{';
    sign = sign_at(x, at + 2);
    push_data(x, from, strip_before(x, from, at, sign, variable));
    x->at = at + 2 + (sign != 0);
    if (x->src.p[at + 1] == '#') {
        lex_comment(x, at);
    } else if (!variable && (raw = raw_begin(x, x->at))) {
        x->at = raw;
        note_line_start(x);
        lex_raw(x, at);
    } else {
        push_token(x, variable ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN, at, str_of(x->src.p + at, 2));
        lex_tag(x, at, variable);
    }
}

/* Parts are lexed one after the other until the source ends or one fails. */
int lex_tokens(struct arena *a, struct str source, const char *name, struct tokens *out,
               struct err *e)
{
    struct lexer x = { .a = a, .src = source, .name = name, .e = e, .line_starting = true };

    while (x.at < source.n && x.rc == OK) lex_part(&x);
    if (x.rc == OK) push_token(&x, TOK_EOF, source.n, STR(""));
    *out = x.out;
    return x.rc;
}
