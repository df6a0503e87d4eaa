#include "token/regex.h"

#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SPACES \
    "\\t-\\r " \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORDS "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"
#define HEXES "0-9a-fA-F"

enum { MAX_DEPTH = 64 };

struct reader {
    struct str in;
    size_t i;
    int depth;
    struct err *e;
    int rc;
};

/* A set of characters on its way into a class: what can stand inside [...], and what can not. */
struct set {
    struct buf flat; /* items of a class */
    struct buf more; /* alternatives: "|[^...]|..." */
};

static int peek(const struct reader *r, size_t ahead)
{
    return r->i + ahead < r->in.n ? (unsigned char)r->in.p[r->i + ahead] : -1;
}

static int32_t take_char(struct reader *r)
{
    int32_t cp;
    r->i += (size_t)utf8_next(str_skip(r->in, r->i), &cp);
    return cp;
}

static void fail(struct reader *r, const char *why)
{
    if (r->rc == OK) r->rc = err_set(r->e, E_FORMAT, "pattern, at byte %zu: %s", r->i, why);
    r->i = r->in.n;
}

/* ---- properties ---- */

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

/* A name that alone would mean the script's extensions to PCRE2. */
static bool is_script(const char *name)
{
    char pattern[96];
    int code;
    PCRE2_SIZE at;

    snprintf(pattern, sizeof pattern, "\\p{sc:%s}", name);
    pcre2_code *c =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

static void put_property(struct buf *out, struct str name)
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
    else buf_printf(out, is_script(raw) ? "\\p{sc:%s}" : "\\p{%s}", raw);
}

static void add_items(struct set *s, const char *items, bool negative)
{
    if (negative) buf_printf(&s->more, "|[^%s]", items);
    else buf_puts(&s->flat, items);
}

/* Behind \p or \P: {Name}, {^Name} or one letter. */
static void read_property(struct reader *r, bool negative, struct set *s)
{
    struct buf items = { 0 };
    size_t from;

    if (peek(r, 0) != '{') {
        if (!isalpha(peek(r, 0))) {
            fail(r, "a property without a name");
            return;
        }
        put_property(&items, str_of(r->in.p + r->i++, 1));
    } else {
        r->i++;
        if (peek(r, 0) == '^') negative = !negative, r->i++;
        from = r->i;
        while (peek(r, 0) >= 0 && peek(r, 0) != '}') {
            if (!isalnum(peek(r, 0)) && !strchr(" _-&", peek(r, 0)))
                fail(r, "a strange name of a property");
            else r->i++;
        }
        if (peek(r, 0) != '}') {
            fail(r, "\\p{ without an end");
            return;
        }
        put_property(&items, str_of(r->in.p + from, r->i++ - from));
    }
    if (negative && items.n > 3 && items.p[1] == 'p' &&
        strchr(buf_cstr(&items), '}') == items.p + items.n - 1) {
        items.p[1] = 'P'; /* one property: its opposite fits into a class */
        negative = false;
    }
    add_items(s, buf_cstr(&items), negative);
    buf_release(&items);
}

/* ---- escapes ---- */

static int32_t read_hex(struct reader *r, int min, int max)
{
    int32_t v = 0;
    int n = 0;

    while (n < max && isxdigit(peek(r, 0))) {
        int c = tolower(peek(r, 0));
        v = v * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
        r->i++, n++;
    }
    if (n < min || v > 0x10ffff) fail(r, "a bad number of a character");
    return v;
}

/* Behind \x or \u. */
static int32_t read_code(struct reader *r, int digits)
{
    int32_t cp;

    if (peek(r, 0) != '{') return read_hex(r, digits == 4 ? 4 : 0, digits);
    r->i++;
    cp = read_hex(r, 1, 6);
    if (peek(r, 0) != '}') fail(r, "a character's number without an end");
    r->i++;
    return cp;
}

/* An escape that means a set of characters: true, and *s has it. The backslash is behind us. */
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

/* An escape that means one character, which is returned; -1: none of ours. */
static int32_t read_char_escape(struct reader *r)
{
    static const char names[] = "ntrfvae", codes[] = "\n\t\r\f\v\a\033";
    int c = peek(r, 0);
    const char *at = c > 0 ? strchr(names, c) : NULL;

    if (c < 0) {
        fail(r, "a backslash at the end");
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
    return isalnum(c) ? -1 : take_char(r);
}

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

static void set_release(struct set *s)
{
    buf_release(&s->flat);
    buf_release(&s->more);
}

/* One character of the set, as an expression. */
static void put_set(struct buf *out, struct set *s)
{
    if (!s->more.n && s->flat.n) buf_printf(out, "[%s]", buf_cstr(&s->flat));
    else if (s->flat.n) buf_printf(out, "(?:[%s]%s)", buf_cstr(&s->flat), buf_cstr(&s->more));
    else if (s->more.n) buf_printf(out, "(?:%s)", buf_cstr(&s->more) + 1);
    else buf_puts(out, "(?!)");
}

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
    put_property(&items, str_of(r->in.p + from, end - from));
    add_items(s, buf_cstr(&items), negative);
    buf_release(&items);
    r->i = end + 2;
    return true;
}

/* A single character of a class or a range that begins with it; false: it was a set. */
static bool read_single(struct reader *r, struct set *s, int32_t *cp)
{
    if (peek(r, 0) != '\\') {
        *cp = take_char(r);
        return true;
    }
    r->i++;
    if (read_set_escape(r, s)) return false;
    if (peek(r, 0) == 'b') *cp = 8, r->i++;
    else if ((*cp = read_char_escape(r)) < 0) *cp = r->i < r->in.n ? take_char(r) : 0;
    return true;
}

static void read_item(struct reader *r, struct set *s)
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
    if (peek(r, 0) == '[' || !read_single(r, s, &b)) { /* "a-\w": a minus sign and a set */
        buf_puts(&s->flat, "\\x{2d}");
        return;
    }
    buf_putc(&s->flat, '-');
    put_literal(&s->flat, b);
}

/* A whole class. Into an enclosing one where there is one, else to out as an expression. */
static void read_class(struct reader *r, struct buf *out, struct set *into)
{
    struct set s = { 0 };
    struct buf first = { 0 }, expr = { 0 }; /* lookaheads of operands before && */
    bool negative, start = true;

    r->i++;
    negative = peek(r, 0) == '^';
    r->i += negative;
    if (++r->depth > MAX_DEPTH) fail(r, "classes nested too deeply");
    while (peek(r, 0) >= 0 && (start || peek(r, 0) != ']')) {
        if (peek(r, 0) == '&' && peek(r, 1) == '&') {
            r->i += 2;
            buf_puts(&first, "(?=");
            put_set(&first, &s);
            buf_putc(&first, ')');
            set_release(&s);
        } else {
            read_item(r, &s);
        }
        start = false;
    }
    if (peek(r, 0) != ']') fail(r, "a class without an end");
    r->i++;
    r->depth--;

    bool plain = !first.n && !s.more.n && s.flat.n;
    if (into && plain && !negative) buf_put_str(&into->flat, buf_str(&s.flat));
    else {
        if (plain && negative) buf_printf(&expr, "[^%s]", buf_cstr(&s.flat));
        else {
            if (negative) buf_puts(&expr, "(?:(?!");
            if (first.n) buf_puts(&expr, "(?:");
            buf_put_str(&expr, buf_str(&first));
            put_set(&expr, &s);
            if (first.n) buf_putc(&expr, ')');
            if (negative) buf_puts(&expr, ")(?s:.))");
        }
        if (into) buf_putc(&into->more, '|');
        buf_put_str(into ? &into->more : out, buf_str(&expr));
    }
    set_release(&s);
    buf_release(&first);
    buf_release(&expr);
}

/* ---- everything outside classes ---- */

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
    set_release(&s);
}

/* "{2,3}" and its kin: the length, and the bounds as written; 0 if it is plain text. */
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

/* A bounded repeat of the atom that begins at out[atom]. */
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
        buf_puts(out, "   ");
        memmove(out->p + atom + 3, out->p + atom, out->n - 3 - atom);
        memcpy(out->p + atom, "(?:", 3);
    }
    if (max < 0) buf_printf(out, "{%d,}", min);
    else buf_printf(out, "{%d,%d}", min, max);
    if (again) buf_putc(out, ')');
}

/* The beginning of a group, up to where its contents start. */
static void read_open(struct reader *r, struct buf *out)
{
    buf_putc(out, '(');
    r->i++;
    if (peek(r, 0) != '?') return;
    buf_putc(out, '?');
    r->i++;
    if (peek(r, 0) == '~') {
        fail(r, "the absent operator is not supported");
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

int onig_translate(struct buf *out, struct str pattern, struct err *e)
{
    struct reader r = { .in = pattern, .e = e };
    size_t groups[MAX_DEPTH], atom = out->n;
    int depth = 0;

    if (utf8_bad(pattern) >= 0) return err_set(e, E_FORMAT, "a pattern that is not UTF-8");
    while (r.i < r.in.n) {
        int c = peek(&r, 0);
        if (c == '{') {
            read_repeat(&r, out, atom);
        } else if (strchr("*+?|^$.", c) && c) {
            if (c == '.') atom = out->n;
            buf_putc(out, (char)c);
            r.i++;
        } else if (c == '(') {
            if (depth == MAX_DEPTH) fail(&r, "groups nested too deeply");
            else groups[depth++] = out->n, read_open(&r, out);
        } else if (c == ')') {
            if (depth == 0) fail(&r, "a ')' too many");
            else atom = groups[--depth], buf_putc(out, ')'), r.i++;
        } else {
            atom = out->n;
            if (c == '[') read_class(&r, out, NULL);
            else if (c == '\\') read_escape(&r, out);
            else if (c > ' ' && c < 0x80) buf_putc(out, (char)c), r.i++;
            else put_literal(out, take_char(&r));
        }
    }
    return r.rc;
}
