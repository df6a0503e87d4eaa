#include "grammar/pattern.h"

#include "base/utf8.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

enum { NESTED = 100, REPEAT_MAX = 100000, BYTES_MAX = 8192 };

/* Anchors in the tree, until they are taken out: nodes that nothing else makes. */
enum { ANCHOR_BEGIN = -7, ANCHOR_END = -8 };

struct pat {
    struct grules *g;
    struct str text;
    size_t at;
    enum pattern_as as;
    struct err *e;
    int depth, rc;
};

static struct gnode *parse_alt(struct pat *p);

static void fail_at(struct pat *p, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail_at(struct pat *p, size_t at, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    if (p->rc != OK) return;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    p->rc = err_set(p->e, E_INVALID, "column %zu of the pattern: %s", at + 1, what);
}

static int peek(const struct pat *p)
{
    return p->at < p->text.n ? (unsigned char)p->text.p[p->at] : -1;
}

static bool eat(struct pat *p, const char *s)
{
    if (!str_starts(str_skip(p->text, p->at), str_c(s))) return false;
    p->at += strlen(s);
    return true;
}

/* ---- characters ---- */

/* In a JSON string some characters are written by their escapes, each in one way. */
struct gnode *pattern_char(struct grules *g, struct cpset set, enum pattern_as as)
{
    static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    struct cpset plain = { 0 }, keep;
    struct gnode *alt;
    char esc[8];

    cpset_tidy(&set);
    if (as == PATTERN_TEXT) return gnode_class(g, set);
    cpset_add(&plain, &g->arena, ' ', '!');
    cpset_add(&plain, &g->arena, '#', '[');
    cpset_add(&plain, &g->arena, ']', '~');
    cpset_add(&plain, &g->arena, 0x80, CP_LAST);
    keep = cpset_and(&set, &plain, &g->arena);
    alt = gnode_add(g, gnode_new(g, GN_ALT), gnode_class(g, keep));
    for (int32_t c = 1; c < 0x80; c++) {
        const char *name;
        if (cpset_has(&plain, c) || !cpset_has(&set, c)) continue;
        for (name = names; *name && *name != c; name += 2) {}
        if (*name) snprintf(esc, sizeof esc, "\\%c", name[1]);
        else snprintf(esc, sizeof esc, "\\u%04x", (unsigned)c);
        gnode_add(g, alt, gnode_c(g, esc));
    }
    return alt->n_kids == 1 ? alt->kids[0] : alt;
}

static void add_digits(struct pat *p, struct cpset *s) { cpset_add(s, &p->g->arena, '0', '9'); }

static void add_word(struct pat *p, struct cpset *s)
{
    add_digits(p, s);
    cpset_add(s, &p->g->arena, 'a', 'z');
    cpset_add(s, &p->g->arena, 'A', 'Z');
    cpset_add(s, &p->g->arena, '_', '_');
}

static void add_space(struct pat *p, struct cpset *s)
{
    cpset_add(s, &p->g->arena, '\t', '\r');
    cpset_add(s, &p->g->arena, ' ', ' ');
}

/* \d \D \w \W \s \S; false: it is none. */
static bool add_named(struct pat *p, int c, struct cpset *s)
{
    struct cpset in = { 0 }, ascii = { 0 };

    switch (tolower(c)) {
    case 'd': add_digits(p, &in); break;
    case 'w': add_word(p, &in); break;
    case 's': add_space(p, &in); break;
    default: return false;
    }
    cpset_tidy(&in);
    if (isupper(c)) { /* what is a word elsewhere may be none here: ASCII only */
        cpset_add(&ascii, &p->g->arena, ' ', '~');
        in = cpset_not(&in, &p->g->arena);
        in = cpset_and(&in, &ascii, &p->g->arena);
    }
    cpset_add_all(s, &p->g->arena, &in);
    return true;
}

static int32_t parse_hex(struct pat *p, int n)
{
    int32_t v = 0;

    for (int i = 0; i < n; i++) {
        int c = peek(p);
        if (c < 0 || !isxdigit(c)) {
            fail_at(p, p->at, "an escape of %d hexadecimal digits is cut short", n);
            return 0;
        }
        v = v * 16 + (isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
        p->at++;
    }
    return v;
}

static int32_t parse_u(struct pat *p)
{
    size_t from = p->at;
    int32_t v = 0, low;

    if (eat(p, "{")) {
        while (peek(p) >= 0 && isxdigit(peek(p)) && v <= CP_LAST) v = v * 16 + parse_hex(p, 1);
        if (!eat(p, "}")) fail_at(p, from, "\\u{ is not closed");
    } else {
        v = parse_hex(p, 4);
        if (v >= 0xd800 && v < 0xdc00 && eat(p, "\\u")) {
            low = parse_hex(p, 4);
            v = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00)
                                              : -1;
        }
    }
    if (v < 0 || v > CP_LAST || (v >= 0xd800 && v < 0xe000))
        fail_at(p, from, "this is not a character");
    return v;
}

static int32_t parse_escape(struct pat *p, bool in_class)
{
    size_t from = p->at - 1;
    int c = peek(p);

    p->at++;
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'v': return '\v';
    case '0': return 0;
    case 'x': return parse_hex(p, 2);
    case 'u': return parse_u(p);
    case 'c':
        if (peek(p) >= 0 && isalpha(peek(p))) return p->text.p[p->at++] & 31;
        break;
    case 'b':
        if (in_class) return '\b';
        fail_at(p, from, "\\b (a border of words) is not supported");
        return 0;
    case 'B': fail_at(p, from, "\\B (a border of words) is not supported"); return 0;
    case 'p':
    case 'P': fail_at(p, from, "\\%c (Unicode properties) is not supported", c); return 0;
    case 'k': fail_at(p, from, "\\k (a reference back) is not supported"); return 0;
    default: break;
    }
    if (c >= '1' && c <= '9') fail_at(p, from, "\\%c (a reference back) is not supported", c);
    else if (c < ' ' || c > '~' || isalnum(c)) fail_at(p, from, "an escape that is not known");
    return c;
}

static int32_t parse_char(struct pat *p)
{
    int32_t cp;
    int n = utf8_next(str_skip(p->text, p->at), &cp);

    if (cp < 0) fail_at(p, p->at, "bytes that are not UTF-8");
    p->at += (size_t)n;
    return cp;
}

/* One member of a class: a character, or a set of them (then -1). */
static int32_t parse_member(struct pat *p, struct cpset *s)
{
    if (!eat(p, "\\")) return parse_char(p);
    if (peek(p) >= 0 && add_named(p, peek(p), s)) {
        p->at++;
        return -1;
    }
    return parse_escape(p, true);
}

static struct cpset without_controls(struct pat *p, struct cpset s)
{
    struct cpset in = { 0 };

    cpset_add(&in, &p->g->arena, '\t', '\n');
    cpset_add(&in, &p->g->arena, ' ', '~');
    cpset_add(&in, &p->g->arena, 0xa0, CP_LAST);
    return cpset_and(&s, &in, &p->g->arena);
}

static struct gnode *parse_class(struct pat *p)
{
    size_t from = p->at - 1;
    struct cpset s = { 0 };
    bool not = eat(p, "^");

    while (p->rc == OK && !eat(p, "]")) {
        size_t at = p->at;
        int32_t lo, hi;
        if (peek(p) < 0) {
            fail_at(p, from, "the bracket that opens here is not closed");
            break;
        }
        lo = hi = parse_member(p, &s);
        if (p->rc == OK && lo >= 0 && peek(p) == '-' && p->at + 1 < p->text.n &&
            p->text.p[p->at + 1] != ']') {
            p->at++;
            hi = parse_member(p, &s);
            if (hi < 0) cpset_add(&s, &p->g->arena, '-', '-'), hi = lo;
        }
        if (lo > hi) fail_at(p, at, "a range of characters that runs backwards");
        if (lo >= 0) cpset_add(&s, &p->g->arena, lo, hi);
    }
    cpset_tidy(&s);
    if (not ) s = without_controls(p, cpset_not(&s, &p->g->arena));
    return pattern_char(p->g, s, p->as);
}

static struct gnode *any_char(struct pat *p, bool lines)
{
    struct cpset s = { 0 };

    cpset_add(&s, &p->g->arena, lines ? '\t' : ' ', lines ? '\n' : ' ');
    cpset_add(&s, &p->g->arena, ' ', '~');
    cpset_add(&s, &p->g->arena, 0xa0, 0x2027);
    cpset_add(&s, &p->g->arena, 0x202a, CP_LAST);
    return pattern_char(p->g, s, p->as);
}

/* ---- what they make up ---- */

static struct gnode *anchor(struct pat *p, int which)
{
    struct gnode *n = gnode_new(p->g, GN_EMPTY);

    n->min = which;
    return n;
}

static struct gnode *parse_group(struct pat *p)
{
    size_t from = p->at - 1;
    struct gnode *n;

    if (++p->depth > NESTED) fail_at(p, from, "groups are nested more than %d deep", NESTED);
    if (eat(p, "?=") || eat(p, "?!"))
        fail_at(p, from, "looking ahead, (?= or (?!, is not supported");
    else if (eat(p, "?<=") || eat(p, "?<!"))
        fail_at(p, from, "looking behind, (?<= or (?<!, is not supported");
    else if (eat(p, "?<") || eat(p, "?P<")) {
        while (peek(p) >= 0 && peek(p) != '>') p->at++;
        if (!eat(p, ">")) fail_at(p, from, "the name of a group is not closed by '>'");
    } else if (eat(p, "?") && !eat(p, ":")) {
        fail_at(p, from, "a kind of group that is not supported");
    }
    if (p->rc != OK) return gnode_new(p->g, GN_EMPTY);
    n = parse_alt(p);
    if (p->rc == OK && !eat(p, ")")) fail_at(p, from, "the group that opens here is not closed");
    p->depth--;
    return n;
}

static struct gnode *one_char(struct pat *p, int32_t cp)
{
    struct cpset s = { 0 };

    cpset_add(&s, &p->g->arena, cp, cp);
    return pattern_char(p->g, s, p->as);
}

/* NULL: the sequence ends here. */
static struct gnode *parse_part(struct pat *p)
{
    struct cpset s = { 0 };
    int c = peek(p);

    if (c < 0 || c == '|' || c == ')') return NULL;
    if (c == '*' || c == '+' || c == '?') {
        fail_at(p, p->at, "there is nothing to repeat before '%c'", c);
        return NULL;
    }
    if (eat(p, "^")) return anchor(p, ANCHOR_BEGIN);
    if (eat(p, "$")) return anchor(p, ANCHOR_END);
    if (eat(p, "(")) return parse_group(p);
    if (eat(p, "[")) return parse_class(p);
    if (eat(p, ".")) return any_char(p, false);
    if (!eat(p, "\\")) return one_char(p, parse_char(p));
    if (peek(p) >= 0 && add_named(p, peek(p), &s)) {
        p->at++;
        return pattern_char(p->g, s, p->as);
    }
    return one_char(p, parse_escape(p, false));
}

static int parse_count(struct pat *p)
{
    size_t from = p->at;
    int64_t n = 0;

    while (peek(p) >= 0 && isdigit(peek(p)) && n <= REPEAT_MAX)
        n = n * 10 + (p->text.p[p->at++] - '0');
    if (n > REPEAT_MAX) fail_at(p, from, "more than %d repetitions", REPEAT_MAX);
    return p->at == from ? -1 : (int)n;
}

/* {m}, {m,}, {m,n}; false: braces that are text. */
static bool parse_braces(struct pat *p, int *min, int *max)
{
    size_t from = p->at;

    if (!eat(p, "{")) return false;
    *min = *max = parse_count(p);
    if (*min >= 0 && eat(p, ",")) {
        *max = parse_count(p);
        if (*max < 0) *max = GNODE_MANY;
    }
    if (*min < 0 || !eat(p, "}")) {
        p->at = from;
        return false;
    }
    if (*max != GNODE_MANY && *max < *min)
        fail_at(p, from, "{%d,%d}: the larger number comes second", *min, *max);
    return true;
}

static bool parse_repeat(struct pat *p, int *min, int *max)
{
    *min = 0;
    *max = GNODE_MANY;
    if (eat(p, "?")) *max = 1;
    else if (eat(p, "+")) *min = 1;
    else if (!eat(p, "*") && !parse_braces(p, min, max)) return false;
    if (eat(p, "+")) fail_at(p, p->at - 1, "a possessive repetition is not supported");
    eat(p, "?"); /* lazy: the same texts */
    return true;
}

static bool is_anchor(const struct gnode *n) { return n->kind == GN_EMPTY && n->min < 0; }

static struct gnode *parse_seq(struct pat *p)
{
    struct gnode *seq = gnode_new(p->g, GN_SEQ), *x;
    int min, max;

    while (p->rc == OK && (x = parse_part(p))) {
        size_t at = p->at;
        if (parse_repeat(p, &min, &max)) {
            if (is_anchor(x)) fail_at(p, at, "an anchor cannot be repeated");
            else if (p->rc == OK) x = gnode_rep(p->g, x, min, max);
        }
        gnode_add(p->g, seq, x);
    }
    return seq;
}

static struct gnode *parse_alt(struct pat *p)
{
    struct gnode *alt = gnode_new(p->g, GN_ALT);

    do gnode_add(p->g, alt, parse_seq(p));
    while (p->rc == OK && eat(p, "|"));
    return alt;
}

/* ---- anchors out ---- */

/* Is there an anchor on that end, on any way through? */
static bool is_held(const struct gnode *n, bool begin)
{
    bool held = is_anchor(n) && n->min == (begin ? ANCHOR_BEGIN : ANCHOR_END);

    if (n->kind == GN_SEQ && n->n_kids) return is_held(n->kids[begin ? 0 : n->n_kids - 1], begin);
    for (int i = 0; n->kind == GN_ALT && i < n->n_kids; i++) held |= is_held(n->kids[i], begin);
    return held;
}

/* What may stand before (or behind) ways without an anchor: any text, once for all of them. */
static struct gnode *open_end(struct pat *p, struct gnode *n, bool begin)
{
    struct gnode *any, *out, *loose;
    int at;

    if (!is_held(n, begin)) {
        any = gnode_rep(p->g, any_char(p, true), 0, GNODE_MANY);
        return begin ? GSEQ(p->g, any, n) : GSEQ(p->g, n, any);
    }
    if (is_anchor(n)) return gnode_new(p->g, GN_EMPTY);
    out = gnode_new(p->g, n->kind);
    loose = gnode_new(p->g, GN_ALT);
    at = begin ? 0 : n->n_kids - 1;
    for (int i = 0; i < n->n_kids; i++) {
        struct gnode *kid = n->kids[i];
        if (n->kind == GN_ALT && !is_held(kid, begin)) gnode_add(p->g, loose, kid);
        else gnode_add(p->g, out, n->kind == GN_ALT || i == at ? open_end(p, kid, begin) : kid);
    }
    if (loose->n_kids) gnode_add(p->g, out, open_end(p, loose, begin));
    return out;
}

static bool has_anchor(const struct gnode *n)
{
    if (is_anchor(n)) return true;
    for (int i = 0; i < n->n_kids; i++)
        if (has_anchor(n->kids[i])) return true;
    return false;
}

/* Takes anchors off an end where they say what is so anyway. */
static struct gnode *drop_anchor(struct pat *p, struct gnode *n, bool begin)
{
    struct gnode *out;
    int at;

    if (is_anchor(n) && n->min == (begin ? ANCHOR_BEGIN : ANCHOR_END))
        return gnode_new(p->g, GN_EMPTY);
    if ((n->kind != GN_ALT && n->kind != GN_SEQ) || n->n_kids == 0) return n;
    at = begin ? 0 : n->n_kids - 1;
    out = gnode_new(p->g, n->kind);
    for (int i = 0; i < n->n_kids; i++)
        gnode_add(p->g, out,
                  n->kind == GN_ALT || i == at ? drop_anchor(p, n->kids[i], begin) : n->kids[i]);
    return out;
}

int pattern_parse(struct gnode **out, struct grules *g, struct str pattern, enum pattern_as as,
                  bool whole, struct err *e)
{
    struct pat p = { .g = g, .text = pattern, .as = as, .e = e };
    struct gnode *n;

    if (pattern.n > BYTES_MAX)
        return err_set(e, E_INVALID, "the pattern has %zu bytes, but %d is the most", pattern.n,
                       BYTES_MAX);
    n = parse_alt(&p);
    if (p.rc == OK && p.at < pattern.n) fail_at(&p, p.at, "a ')' that closes nothing");
    if (p.rc != OK) return p.rc;
    n = whole ? drop_anchor(&p, n, true) : open_end(&p, n, true);
    n = whole ? drop_anchor(&p, n, false) : open_end(&p, n, false);
    if (has_anchor(n)) fail_at(&p, 0, "an anchor (^ or $) in the middle is not supported");
    *out = n;
    return p.rc;
}
