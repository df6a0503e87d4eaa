/* regex_onig.c - translates a pattern from Oniguruma's dialect (Ruby syntax) to PCRE2's.
 *
 * A recursive-descent reader over the bytes of the pattern that writes PCRE2 syntax as it goes. The
 * meaning of every construct is Oniguruma's: where the same text means something else in PCRE2, or
 * nothing, the translation spells the meaning out. The output is only ever compiled, never shown.
 *
 * A class is collected in a struct set first. Oniguruma allows classes inside classes, their
 * complements and intersections (&&); PCRE2 10.42 does not. What fits between [ and ] stays there,
 * the rest becomes alternatives and lookaheads around it.
 *
 * The reader keeps its first error and then reads nothing more, so callers need no checks. */
#include "token/regex.h"

#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Items of a class: \s, \w and \h as Oniguruma defines them for Unicode. */
#define SPACES \
    "\\t-\\r " \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORDS "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"
#define HEXES "0-9a-fA-F"

enum { MAX_DEPTH = 64 }; /* of groups, and of classes */

struct reader {
    struct str in; /* the pattern */
    size_t i;      /* the next byte of it */
    int depth;     /* of classes */
    struct err *e;
    int rc; /* the first error; then i is at the end */
};

/* A set of characters, being collected: the union of both parts. */
struct set {
    struct buf flat; /* items that can stand in one class: "a-z\p{L}" */
    struct buf more; /* alternatives that can not: "|[^...]|..." */
};

/* The byte `ahead` of the next one; -1: past the end. */
static int peek(const struct reader *r, size_t ahead)
{
    return r->i + ahead < r->in.n ? (unsigned char)r->in.p[r->i + ahead] : -1;
}

static int32_t read_char(struct reader *r)
{
    int32_t cp;
    r->i += (size_t)utf8_next(str_skip(r->in, r->i), &cp);
    return cp;
}

static void fail_at(struct reader *r, const char *why)
{
    if (r->rc == OK) r->rc = err_set(r->e, E_FORMAT, "pattern, at byte %zu: %s", r->i, why);
    r->i = r->in.n;
}

static void fail_nomem(struct reader *r)
{
    if (r->rc == OK) r->rc = err_nomem(r->e, "a pattern");
    r->i = r->in.n;
}

/* Releases a temporary text whose bytes were added to another one. */
static void release_temp(struct reader *r, struct buf *b)
{
    if (b->failed) fail_nomem(r);
    buf_release(b);
}

/* ---- properties ---- */

/* Names of properties as Oniguruma knows them (lower case, without spaces, '_' and '-') and the
 * items of a PCRE2 class with the same members. Other names are general categories or scripts. */
static const struct {
    const char *name, *items;
} properties[] = {
    { "letter", "\\p{L}" },
    { "uppercaseletter", "\\p{Lu}" },
    { "lowercaseletter", "\\p{Ll}" },
    { "titlecaseletter", "\\p{Lt}" },
    { "casedletter", "\\p{L&}" },
    { "modifierletter", "\\p{Lm}" },
    { "otherletter", "\\p{Lo}" },
    { "mark", "\\p{M}" },
    { "combiningmark", "\\p{M}" },
    { "nonspacingmark", "\\p{Mn}" },
    { "spacingmark", "\\p{Mc}" },
    { "enclosingmark", "\\p{Me}" },
    { "number", "\\p{N}" },
    { "decimalnumber", "\\p{Nd}" },
    { "letternumber", "\\p{Nl}" },
    { "othernumber", "\\p{No}" },
    { "punctuation", "\\p{P}" },
    { "connectorpunctuation", "\\p{Pc}" },
    { "dashpunctuation", "\\p{Pd}" },
    { "openpunctuation", "\\p{Ps}" },
    { "closepunctuation", "\\p{Pe}" },
    { "initialpunctuation", "\\p{Pi}" },
    { "finalpunctuation", "\\p{Pf}" },
    { "otherpunctuation", "\\p{Po}" },
    { "symbol", "\\p{S}" },
    { "mathsymbol", "\\p{Sm}" },
    { "currencysymbol", "\\p{Sc}" },
    { "modifiersymbol", "\\p{Sk}" },
    { "othersymbol", "\\p{So}" },
    { "separator", "\\p{Z}" },
    { "spaceseparator", "\\p{Zs}" },
    { "lineseparator", "\\p{Zl}" },
    { "paragraphseparator", "\\p{Zp}" },
    { "other", "\\p{C}" },
    { "control", "\\p{Cc}" },
    { "format", "\\p{Cf}" },
    { "surrogate", "\\p{Cs}" },
    { "privateuse", "\\p{Co}" },
    { "unassigned", "\\p{Cn}" },
    { "any", "\\p{Any}" },
    { "ascii", "\\x00-\\x7f" },
    { "assigned", "\\P{Cn}" },
    { "alpha", "\\p{Alphabetic}" },
    { "digit", "\\p{Nd}" },
    { "space", SPACES },
    { "whitespace", SPACES },
    { "upper", "\\p{Uppercase}" },
    { "lower", "\\p{Lowercase}" },
    { "cntrl", "\\p{Cc}" },
    { "punct", "\\p{P}$+<=>^`|~" },
    { "alnum", "\\p{Alphabetic}\\p{Nd}" },
    { "word", WORDS },
    { "blank", "\\p{Zs}\\t" },
    { "xdigit", HEXES },
    { "graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}" },
    { "print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}" },
};

/* Is it a script? \p{Han} alone means Script_Extensions to PCRE2, and the script to Oniguruma. */
static bool is_script(struct reader *r, const char *name)
{
    char pattern[96];
    int code;
    PCRE2_SIZE at;

    snprintf(pattern, sizeof pattern, "\\p{sc:%s}", name);
    pcre2_code *c =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(c);
    if (!c && code == PCRE2_ERROR_HEAP_FAILED) fail_nomem(r);
    return c != NULL;
}

/* Appends the items of a property: by the table, as a category of one or two letters, or as a
 * script or another name that PCRE2 knows. */
static void put_property(struct reader *r, struct buf *out, struct str name)
{
    char key[64], raw[64];
    size_t n = 0, m = 0;

    for (size_t i = 0; i < name.n && n + 1 < sizeof key; i++) {
        raw[m++] = name.p[i];
        if (!strchr(" _-", name.p[i])) key[n++] = (char)tolower((unsigned char)name.p[i]);
    }
    key[n] = raw[m] = 0;
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        if (strcmp(key, properties[i].name) == 0) {
            buf_puts(out, properties[i].items);
            return;
        }
    if (n <= 2) buf_printf(out, "\\p{%c%s}", toupper((unsigned char)key[0]), n > 1 ? key + 1 : "");
    else buf_printf(out, is_script(r, raw) ? "\\p{sc:%s}" : "\\p{%s}", raw);
}

/* Adds the items of a class, or all characters but those. */
static void add_items(struct set *s, const char *items, bool negative)
{
    if (negative) buf_printf(&s->more, "|[^%s]", items);
    else buf_puts(&s->flat, items);
}

/* What follows \p or \P: {Name}, {^Name} or one letter. */
static void read_property(struct reader *r, bool negative, struct set *s)
{
    struct buf items = { 0 };
    size_t from;

    if (peek(r, 0) != '{') {
        if (!isalpha(peek(r, 0))) {
            fail_at(r, "\\p needs the name of a property");
            return;
        }
        put_property(r, &items, str_of(r->in.p + r->i++, 1));
    } else {
        r->i++;
        if (peek(r, 0) == '^') negative = !negative, r->i++;
        from = r->i;
        while (peek(r, 0) >= 0 && peek(r, 0) != '}') {
            if (!isalnum(peek(r, 0)) && !strchr(" _-&", peek(r, 0)))
                fail_at(r, "the name of a property has a character that is not allowed");
            else r->i++;
        }
        if (peek(r, 0) != '}') {
            fail_at(r, "\\p{ has no closing '}'");
            return;
        }
        put_property(r, &items, str_of(r->in.p + from, r->i++ - from));
    }
    if (negative && items.n > 3 && items.p[1] == 'p' &&
        strchr(buf_cstr(&items), '}') == items.p + items.n - 1) {
        items.p[1] = 'P'; /* one property: its complement fits into a class */
        negative = false;
    }
    add_items(s, buf_cstr(&items), negative);
    release_temp(r, &items);
}

/* ---- escapes ---- */

/* Between min and max hexadecimal digits. */
static int32_t read_hex(struct reader *r, int min, int max)
{
    int32_t v = 0;
    int n = 0;

    while (n < max && isxdigit(peek(r, 0))) {
        int c = tolower(peek(r, 0));
        v = v * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
        r->i++, n++;
    }
    if (n < min || v > 0x10ffff) fail_at(r, "not the hexadecimal number of a character");
    return v;
}

/* What follows \x or \u. */
static int32_t read_code(struct reader *r, int digits)
{
    int32_t cp;

    if (peek(r, 0) != '{') return read_hex(r, digits == 4 ? 4 : 0, digits);
    r->i++;
    cp = read_hex(r, 1, 6);
    if (peek(r, 0) != '}') fail_at(r, "\\x{ has no closing '}'");
    r->i++;
    return cp;
}

/* An escape that means a set of characters, after its backslash: adds it to s. false: another. */
static bool read_set_escape(struct reader *r, struct set *s)
{
    int c = peek(r, 0);
    bool negative = c >= 'A' && c <= 'Z';

    if (c < 0 || !strchr("sSdDwWhHpP", c)) return false;
    r->i++;
    switch (tolower(c)) {
    case 's':
        if (negative) buf_puts(&s->flat, "\\P{White_Space}");
        else buf_puts(&s->flat, SPACES);
        break;
    case 'd': buf_puts(&s->flat, negative ? "\\P{Nd}" : "\\p{Nd}"); break;
    case 'w': add_items(s, WORDS, negative); break;
    case 'h': add_items(s, HEXES, negative); break;
    default: read_property(r, negative, s);
    }
    return true;
}

/* An escape that means one character, after its backslash. -1: another one, nothing is read. */
static int32_t read_char_escape(struct reader *r)
{
    static const char names[] = "ntrfvae", codes[] = "\n\t\r\f\v\a\033";
    int c = peek(r, 0);
    const char *at = c > 0 ? strchr(names, c) : NULL;

    if (c < 0) {
        fail_at(r, "the pattern ends with a backslash");
        return -1;
    }
    if (at) {
        r->i++;
        return codes[at - names];
    }
    if (c == 'x' || c == 'u') {
        r->i++;
        return read_code(r, c == 'x' ? 2 : 4);
    }
    return isalnum(c) ? -1 : read_char(r);
}

/* Appends cp as itself, or by its number where it could mean something else. */
static void put_literal(struct buf *out, int32_t cp)
{
    if (cp < 0x80 && !isalnum(cp)) buf_printf(out, "\\x{%x}", (unsigned)cp);
    else {
        char c[4];
        buf_add(out, c, (size_t)utf8_put(c, cp < 0 ? 0xfffd : cp));
    }
}

/* ---- classes ---- */

static void read_class(struct reader *r, struct buf *out, struct set *into);

static void release_set(struct reader *r, struct set *s)
{
    release_temp(r, &s->flat);
    release_temp(r, &s->more);
}

/* Appends an expression that matches one character of the set. */
static void put_set(struct buf *out, struct set *s)
{
    if (!s->more.n && s->flat.n) buf_printf(out, "[%s]", buf_cstr(&s->flat));
    else if (s->flat.n) buf_printf(out, "(?:[%s]%s)", buf_cstr(&s->flat), buf_cstr(&s->more));
    else if (s->more.n) buf_printf(out, "(?:%s)", buf_cstr(&s->more) + 1);
    else buf_puts(out, "(?!)");
}

/* [:alpha:] or [:^alpha:] inside a class; false: something else, nothing is read. */
static bool read_posix(struct reader *r, struct set *s)
{
    size_t from = r->i + 2, end = from;
    bool negative;
    struct buf items = { 0 };

    if (peek(r, 0) != '[' || peek(r, 1) != ':') return false;
    negative = peek(r, 2) == '^';
    from += negative;
    for (end = from; end < r->in.n && isalpha((unsigned char)r->in.p[end]); end++) {}
    if (end == from || !str_starts(str_skip(r->in, end), STR(":]"))) return false;
    put_property(r, &items, str_of(r->in.p + from, end - from));
    add_items(s, buf_cstr(&items), negative);
    release_temp(r, &items);
    r->i = end + 2;
    return true;
}

/* A character of a class, perhaps the first of a range. false: it was a set, which s now has. */
static bool read_single(struct reader *r, struct set *s, int32_t *cp)
{
    if (peek(r, 0) != '\\') {
        *cp = read_char(r);
        return true;
    }
    r->i++;
    if (read_set_escape(r, s)) return false;
    if (peek(r, 0) == 'b') *cp = 8, r->i++;
    else if ((*cp = read_char_escape(r)) < 0) *cp = r->i < r->in.n ? read_char(r) : 0;
    return true;
}

/* One item between [ and ]: [:name:], a class, a character or a range. */
static void read_class_item(struct reader *r, struct set *s)
{
    int32_t a, b;

    if (read_posix(r, s)) return;
    if (peek(r, 0) == '[') {
        read_class(r, NULL, s);
        return;
    }
    if (!read_single(r, s, &a)) return;
    put_literal(&s->flat, a);
    if (peek(r, 0) != '-' || peek(r, 1) == ']' || peek(r, 1) < 0) return;
    r->i++;
    if (peek(r, 0) == '[' || !read_single(r, s, &b)) { /* "a-\w": a hyphen and a set */
        buf_puts(&s->flat, "\\x{2d}");
        return;
    }
    buf_putc(&s->flat, '-');
    put_literal(&s->flat, b);
}

/* What the class that was read matches, as an expression. ahead: the lookaheads of operands of &&. */
static void put_class(struct buf *expr, struct set *s, const struct buf *ahead, bool negative)
{
    if (negative && !ahead->n && !s->more.n && s->flat.n) {
        buf_printf(expr, "[^%s]", buf_cstr(&s->flat));
        return;
    }
    if (negative) buf_puts(expr, "(?:(?!");
    if (ahead->n) buf_puts(expr, "(?:");
    buf_put_str(expr, buf_str(ahead));
    put_set(expr, s);
    if (ahead->n) buf_putc(expr, ')');
    if (negative) buf_puts(expr, ")(?s:.))");
}

/* A whole class, from its '['. It goes into the enclosing class where there is one (`into`), or to
 * out as an expression. A&&B becomes (?=A)B: both match one character. */
static void read_class(struct reader *r, struct buf *out, struct set *into)
{
    struct set s = { 0 };
    struct buf ahead = { 0 }, expr = { 0 };
    bool negative, start = true;

    r->i++;
    negative = peek(r, 0) == '^';
    r->i += negative;
    if (++r->depth > MAX_DEPTH) fail_at(r, "classes are nested more than 64 deep");
    while (peek(r, 0) >= 0 && (start || peek(r, 0) != ']')) {
        if (peek(r, 0) == '&' && peek(r, 1) == '&') {
            r->i += 2;
            buf_puts(&ahead, "(?=");
            put_set(&ahead, &s);
            buf_putc(&ahead, ')');
            release_set(r, &s);
        } else {
            read_class_item(r, &s);
        }
        start = false;
    }
    if (peek(r, 0) != ']') fail_at(r, "a class has no closing ']'");
    r->i++;
    r->depth--;

    if (into && !negative && !ahead.n && !s.more.n && s.flat.n) {
        buf_put_str(&into->flat, buf_str(&s.flat));
    } else {
        put_class(&expr, &s, &ahead, negative);
        if (into) buf_putc(&into->more, '|');
        buf_put_str(into ? &into->more : out, buf_str(&expr));
    }
    release_set(r, &s);
    release_temp(r, &ahead);
    release_temp(r, &expr);
}

/* ---- everything outside classes ---- */

/* A backslash outside of classes. Anchors and references mean the same to both dialects and are
 * copied; sets, \N (not a line feed) and \O (any character) are spelled out. */
static void read_escape(struct reader *r, struct buf *out)
{
    struct set s = { 0 };
    int32_t cp;
    int c;

    r->i++;
    if (peek(r, 0) == 'S') {
        r->i++;
        buf_puts(out, "[^" SPACES "]");
    } else if (read_set_escape(r, &s)) {
        put_set(out, &s);
    } else if ((cp = read_char_escape(r)) >= 0) {
        put_literal(out, cp);
    } else if ((c = peek(r, 0)) > 0) {
        r->i++;
        if (c == 'O') buf_puts(out, "(?s:.)");
        else if (c == 'N') buf_puts(out, "[^\\n]");
        else if (isdigit(c) || strchr("AzZbBGKRXkg", c)) buf_printf(out, "\\%c", c);
        else put_literal(out, c);
    }
    release_set(r, &s);
}

/* "{2}", "{2,}", "{2,3}" or "{,3}": its length, and its bounds (*max -1: none). 0: plain text. */
static size_t read_bounds(const struct reader *r, int *min, int *max)
{
    size_t k = 1;
    int n_digits = 0;

    *min = 0, *max = -1;
    for (; isdigit(peek(r, k)) && k < 8; k++, n_digits++) *min = *min * 10 + peek(r, k) - '0';
    if (peek(r, k) == '}') {
        *max = *min;
        return n_digits ? k + 1 : 0;
    }
    if (peek(r, k++) != ',') return 0;
    if (isdigit(peek(r, k)))
        for (*max = 0; isdigit(peek(r, k)) && k < 16; k++, n_digits++)
            *max = *max * 10 + peek(r, k) - '0';
    return peek(r, k) == '}' && n_digits ? k + 1 : 0;
}

/* A bounded repetition of the expression at out[atom]. What is a possessive or lazy repetition to
 * PCRE2 and a repetition of a repetition to Oniguruma gets a group around it. */
static void read_repeat(struct reader *r, struct buf *out, size_t atom)
{
    int min, max;
    size_t n = read_bounds(r, &min, &max);

    if (!n) {
        put_literal(out, '{');
        r->i++;
        return;
    }
    r->i += n;
    bool again = peek(r, 0) == '+' || (peek(r, 0) == '?' && min == max);
    if (again) {
        buf_puts(out, "   "); /* room for "(?:" */
        if (out->failed) return;
        memmove(out->p + atom + 3, out->p + atom, out->n - 3 - atom);
        memcpy(out->p + atom, "(?:", 3);
    }
    if (max < 0) buf_printf(out, "{%d,}", min);
    else buf_printf(out, "{%d,%d}", min, max);
    if (again) buf_putc(out, ')');
}

/* The start of a group, up to its contents. Oniguruma's option m is PCRE2's s. */
static void read_group_start(struct reader *r, struct buf *out)
{
    buf_putc(out, '(');
    r->i++;
    if (peek(r, 0) != '?') return;
    buf_putc(out, '?');
    r->i++;
    if (peek(r, 0) == '~') {
        fail_at(r, "the absent operator is not supported");
        return;
    }
    if (peek(r, 0) == '#') {
        while (peek(r, 0) >= 0 && peek(r, 0) != ')') r->i++;
        buf_putc(out, ':');
        return;
    }
    while (peek(r, 0) > 0 && strchr("imx-", peek(r, 0))) {
        buf_putc(out, peek(r, 0) == 'm' ? 's' : (char)peek(r, 0));
        r->i++;
    }
}

/* Repetitions apply to the last expression, so its start in the output is kept: `atom`. Bytes that
 * mean nothing special are copied, white space by its number, as (?x) must not drop it. */
int onig_translate(struct buf *out, struct str pattern, struct err *e)
{
    struct reader r = { .in = pattern, .e = e };
    size_t groups[MAX_DEPTH], atom = out->n; /* where open groups, the last expression begin */
    int depth = 0;

    if (utf8_bad(pattern) >= 0) return err_set(e, E_FORMAT, "the pattern is not UTF-8");
    while (r.i < r.in.n) {
        int c = peek(&r, 0);
        if (c == '{') {
            read_repeat(&r, out, atom);
        } else if (strchr("*+?|^$.", c) && c) {
            if (c == '.') atom = out->n;
            buf_putc(out, (char)c);
            r.i++;
        } else if (c == '(') {
            if (depth == MAX_DEPTH) fail_at(&r, "groups are nested more than 64 deep");
            else groups[depth++] = out->n, read_group_start(&r, out);
        } else if (c == ')') {
            if (depth == 0) fail_at(&r, "')' without '('");
            else atom = groups[--depth], buf_putc(out, ')'), r.i++;
        } else {
            atom = out->n;
            if (c == '[') read_class(&r, out, NULL);
            else if (c == '\\') read_escape(&r, out);
            else if (c > ' ' && c < 0x80) buf_putc(out, (char)c), r.i++;
            else put_literal(out, read_char(&r));
        }
    }
    return r.rc == OK ? buf_check(out, e) : r.rc;
}
