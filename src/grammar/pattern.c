/* pattern.c - a recursive descent parser for regular expressions, and the removal of anchors.
 *
 *     alternatives  sequence ("|" sequence)*
 *     sequence      (part operator?)*
 *     part          character | escape | class | group | "." | "^" | "$"
 *
 * A grammar describes whole texts, but a pattern without anchors may match anywhere. So anchors are
 * first put into the tree, as EMPTY nodes with a mark. Then both ends are resolved: an alternative
 * with an anchor at an end stays as it is there, one without gets "any text". An anchor that is not
 * at an end is refused.
 *
 * Every character goes through pattern_make_char, which writes it as JSON does if the pattern is
 * for the inside of a JSON string. So lengths and alternatives of patterns need not know about
 * escapes.
 *
 * The first error is kept in `rc` and ends the parse. */
#include "grammar/pattern.h"

#include "base/utf8.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    MAX_DEPTH = 100,     /* of nested groups */
    MAX_REPEAT = 100000, /* in braces */
    MAX_BYTES = 8192     /* of a pattern */
};

/* `min` of an EMPTY node that is an anchor. Other EMPTY nodes have 0 there. */
enum { ANCHOR_BEGIN = -7, ANCHOR_END = -8 };

struct pattern_parser {
    struct rules *g;
    struct str text;
    size_t at; /* the next byte */
    enum pattern_as as;
    struct err *e;
    int depth; /* of groups */
    int rc;    /* the first error */
};

static struct rule_node *parse_alt(struct pattern_parser *p);

/* E_INVALID with the column of byte `at`, unless there is an error already. */
static void fail_at(struct pattern_parser *p, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail_at(struct pattern_parser *p, size_t at, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    if (p->rc != OK) return;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    p->rc = err_set(p->e, E_INVALID, "column %zu of the pattern: %s", at + 1, what);
}

/* The next byte; -1 at the end. */
static int peek_byte(const struct pattern_parser *p)
{
    return p->at < p->text.n ? (unsigned char)p->text.p[p->at] : -1;
}

static bool eat_text(struct pattern_parser *p, const char *s)
{
    if (!str_starts(str_skip(p->text, p->at), str_c(s))) return false;
    p->at += strlen(s);
    return true;
}

/* ---- characters ---- */

struct charset pattern_get_unescaped(struct rules *g)
{
    struct charset s = { 0 };

    charset_add(&s, &g->arena, ' ', '!');
    charset_add(&s, &g->arena, '#', '[');
    charset_add(&s, &g->arena, ']', '~');
    charset_add(&s, &g->arena, 0x80, CHARSET_LAST);
    return s;
}

/* In a JSON string control characters, the quote and the backslash are escaped, each in one way
 * only: the parts of a pattern stay unambiguous. */
struct rule_node *pattern_make_char(struct rules *g, struct charset set, enum pattern_as as)
{
    static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    struct charset plain, unescaped;
    struct rule_node *alt;
    char esc[8];

    charset_normalize(&set);
    if (as == PATTERN_TEXT) return rules_class(g, set);
    plain = pattern_get_unescaped(g);
    unescaped = charset_intersect(&set, &plain, &g->arena);
    alt = rules_add_child(g, rules_node(g, NODE_ALT), rules_class(g, unescaped));
    for (int32_t c = 1; c < 0x80; c++) {
        const char *name;
        if (charset_has(&plain, c) || !charset_has(&set, c)) continue;
        for (name = names; *name && *name != c; name += 2) {}
        if (*name) snprintf(esc, sizeof esc, "\\%c", name[1]);
        else snprintf(esc, sizeof esc, "\\u%04x", (unsigned)c);
        rules_add_child(g, alt, rules_text(g, esc));
    }
    return alt->n_children == 1 ? alt->children[0] : alt;
}

static void add_digits(struct pattern_parser *p, struct charset *s)
{
    charset_add(s, &p->g->arena, '0', '9');
}

static void add_word_chars(struct pattern_parser *p, struct charset *s)
{
    add_digits(p, s);
    charset_add(s, &p->g->arena, 'a', 'z');
    charset_add(s, &p->g->arena, 'A', 'Z');
    charset_add(s, &p->g->arena, '_', '_');
}

static void add_space_chars(struct pattern_parser *p, struct charset *s)
{
    charset_add(s, &p->g->arena, '\t', '\r');
    charset_add(s, &p->g->arena, ' ', ' ');
}

/* Adds the set of \d \D \w \W \s \S; false: c names none of them. */
static bool add_named_class(struct pattern_parser *p, int c, struct charset *s)
{
    struct charset in = { 0 }, ascii = { 0 };

    switch (tolower(c)) {
    case 'd': add_digits(p, &in); break;
    case 'w': add_word_chars(p, &in); break;
    case 's': add_space_chars(p, &in); break;
    default: return false;
    }
    charset_normalize(&in);
    if (isupper(c)) { /* dialects disagree on other characters: ASCII only */
        charset_add(&ascii, &p->g->arena, ' ', '~');
        in = charset_complement(&in, &p->g->arena);
        in = charset_intersect(&in, &ascii, &p->g->arena);
    }
    charset_add_all(s, &p->g->arena, &in);
    return true;
}

/* n hexadecimal digits. */
static int32_t parse_hex(struct pattern_parser *p, int n)
{
    int32_t v = 0;

    for (int i = 0; i < n; i++) {
        int c = peek_byte(p);
        if (c < 0 || !isxdigit(c)) {
            fail_at(p, p->at, "the escape needs %d hexadecimal digits", n);
            return 0;
        }
        v = v * 16 + (isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
        p->at++;
    }
    return v;
}

/* The rest of \uHHHH (with a low surrogate after a high one) or \u{H...}. */
static int32_t parse_unicode_escape(struct pattern_parser *p)
{
    size_t from = p->at;
    int32_t v = 0, low;

    if (eat_text(p, "{")) {
        while (peek_byte(p) >= 0 && isxdigit(peek_byte(p)) && v <= CHARSET_LAST)
            v = v * 16 + parse_hex(p, 1);
        if (!eat_text(p, "}")) fail_at(p, from, "\\u{ is not closed");
    } else {
        v = parse_hex(p, 4);
        if (v >= 0xd800 && v < 0xdc00 && eat_text(p, "\\u")) {
            low = parse_hex(p, 4);
            v = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00)
                                              : -1;
        }
    }
    if (v < 0 || v > CHARSET_LAST || (v >= 0xd800 && v < 0xe000))
        fail_at(p, from, "the escape is not a character");
    return v;
}

/* The character of an escape, from behind the backslash. Everything that an escape may mean besides
 * a character is refused here by its name. */
static int32_t parse_escape(struct pattern_parser *p, bool in_class)
{
    size_t from = p->at - 1;
    int c = peek_byte(p);

    p->at++;
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'v': return '\v';
    case '0': return 0;
    case 'x': return parse_hex(p, 2);
    case 'u': return parse_unicode_escape(p);
    case 'c':
        if (peek_byte(p) >= 0 && isalpha(peek_byte(p))) return p->text.p[p->at++] & 31;
        break;
    case 'b':
        if (in_class) return '\b';
        fail_at(p, from, "\\b (a word boundary) is not supported");
        return 0;
    case 'B': fail_at(p, from, "\\B (a word boundary) is not supported"); return 0;
    case 'p':
    case 'P': fail_at(p, from, "\\%c (Unicode properties) is not supported", c); return 0;
    case 'k': fail_at(p, from, "\\k (a backreference) is not supported"); return 0;
    default: break;
    }
    if (c >= '1' && c <= '9') fail_at(p, from, "\\%c (a backreference) is not supported", c);
    else if (c < ' ' || c > '~' || isalnum(c)) fail_at(p, from, "unknown escape");
    return c;
}

static int32_t parse_char(struct pattern_parser *p)
{
    int32_t cp;
    int n = utf8_next(str_skip(p->text, p->at), &cp);

    if (cp < 0) fail_at(p, p->at, "these bytes are not UTF-8");
    p->at += (size_t)n;
    return cp;
}

/* One member of a class. -1: it was a set of characters, which is added to s. */
static int32_t parse_member(struct pattern_parser *p, struct charset *s)
{
    if (!eat_text(p, "\\")) return parse_char(p);
    if (peek_byte(p) >= 0 && add_named_class(p, peek_byte(p), s)) {
        p->at++;
        return -1;
    }
    return parse_escape(p, true);
}

/* Negated classes contain no control characters but tab and newline. */
static struct charset remove_controls(struct pattern_parser *p, struct charset s)
{
    struct charset in = { 0 };

    charset_add(&in, &p->g->arena, '\t', '\n');
    charset_add(&in, &p->g->arena, ' ', '~');
    charset_add(&in, &p->g->arena, 0xa0, CHARSET_LAST);
    return charset_intersect(&s, &in, &p->g->arena);
}

/* A class, from behind its '['. Beside a named class a '-' is a character: [\\w-.] */
static struct rule_node *parse_class(struct pattern_parser *p)
{
    size_t from = p->at - 1;
    struct charset s = { 0 };
    bool not = eat_text(p, "^");

    while (p->rc == OK && !eat_text(p, "]")) {
        size_t at = p->at;
        int32_t lo, hi;
        if (peek_byte(p) < 0) {
            fail_at(p, from, "the class that begins here is not closed by ']'");
            break;
        }
        lo = hi = parse_member(p, &s);
        if (p->rc == OK && lo >= 0 && peek_byte(p) == '-' && p->at + 1 < p->text.n &&
            p->text.p[p->at + 1] != ']') {
            p->at++;
            hi = parse_member(p, &s);
            if (hi < 0) charset_add(&s, &p->g->arena, '-', '-'), hi = lo;
        }
        if (lo > hi) fail_at(p, at, "the range is reversed: the smaller character comes first");
        if (lo >= 0) charset_add(&s, &p->g->arena, lo, hi);
    }
    charset_normalize(&s);
    if (not ) s = remove_controls(p, charset_complement(&s, &p->g->arena));
    return pattern_make_char(p->g, s, p->as);
}

/* The dot: any character but control characters and the line separators U+2028 and U+2029. lines:
 * newlines and tabs too, for text around a match. */
static struct rule_node *make_any_char(struct pattern_parser *p, bool lines)
{
    struct charset s = { 0 };

    charset_add(&s, &p->g->arena, lines ? '\t' : ' ', lines ? '\n' : ' ');
    charset_add(&s, &p->g->arena, ' ', '~');
    charset_add(&s, &p->g->arena, 0xa0, 0x2027);
    charset_add(&s, &p->g->arena, 0x202a, CHARSET_LAST);
    return pattern_make_char(p->g, s, p->as);
}

/* ---- sequences ---- */

/* Marks the place of an anchor in the tree. */
static struct rule_node *make_anchor(struct pattern_parser *p, int which)
{
    struct rule_node *n = rules_node(p->g, NODE_EMPTY);

    n->min = which;
    return n;
}

/* A group, from behind its '('. Names of groups are skipped: nothing is captured. */
static struct rule_node *parse_group(struct pattern_parser *p)
{
    size_t from = p->at - 1;
    struct rule_node *n;

    if (++p->depth > MAX_DEPTH) fail_at(p, from, "groups are nested more than %d deep", MAX_DEPTH);
    if (eat_text(p, "?=") || eat_text(p, "?!"))
        fail_at(p, from, "lookahead, (?= or (?!, is not supported");
    else if (eat_text(p, "?<=") || eat_text(p, "?<!"))
        fail_at(p, from, "lookbehind, (?<= or (?<!, is not supported");
    else if (eat_text(p, "?<") || eat_text(p, "?P<")) {
        while (peek_byte(p) >= 0 && peek_byte(p) != '>') p->at++;
        if (!eat_text(p, ">")) fail_at(p, from, "the name of a group is not closed by '>'");
    } else if (eat_text(p, "?") && !eat_text(p, ":")) {
        fail_at(p, from, "this kind of group is not supported");
    }
    if (p->rc != OK) return rules_node(p->g, NODE_EMPTY);
    n = parse_alt(p);
    if (p->rc == OK && !eat_text(p, ")"))
        fail_at(p, from, "the group that begins here is not closed by ')'");
    p->depth--;
    return n;
}

static struct rule_node *make_one_char(struct pattern_parser *p, int32_t cp)
{
    struct charset s = { 0 };

    charset_add(&s, &p->g->arena, cp, cp);
    return pattern_make_char(p->g, s, p->as);
}

/* One character, class, group or anchor. NULL: the sequence ends here. */
static struct rule_node *parse_part(struct pattern_parser *p)
{
    struct charset s = { 0 };
    int c = peek_byte(p);

    if (c < 0 || c == '|' || c == ')') return NULL;
    if (c == '*' || c == '+' || c == '?') {
        fail_at(p, p->at, "there is nothing to repeat before '%c'", c);
        return NULL;
    }
    if (eat_text(p, "^")) return make_anchor(p, ANCHOR_BEGIN);
    if (eat_text(p, "$")) return make_anchor(p, ANCHOR_END);
    if (eat_text(p, "(")) return parse_group(p);
    if (eat_text(p, "[")) return parse_class(p);
    if (eat_text(p, ".")) return make_any_char(p, false);
    if (!eat_text(p, "\\")) return make_one_char(p, parse_char(p));
    if (peek_byte(p) >= 0 && add_named_class(p, peek_byte(p), &s)) {
        p->at++;
        return pattern_make_char(p->g, s, p->as);
    }
    return make_one_char(p, parse_escape(p, false));
}

/* -1: no digits. */
static int parse_count(struct pattern_parser *p)
{
    size_t from = p->at;
    int64_t n = 0;

    while (peek_byte(p) >= 0 && isdigit(peek_byte(p)) && n <= MAX_REPEAT)
        n = n * 10 + (p->text.p[p->at++] - '0');
    if (n > MAX_REPEAT) fail_at(p, from, "more than %d repetitions", MAX_REPEAT);
    return p->at == from ? -1 : (int)n;
}

/* {m}, {m,} or {m,n}. false: there are none, or the braces are literal text. */
static bool parse_braces(struct pattern_parser *p, int *min, int *max)
{
    size_t from = p->at;

    if (!eat_text(p, "{")) return false;
    *min = *max = parse_count(p);
    if (*min >= 0 && eat_text(p, ",")) {
        *max = parse_count(p);
        if (*max < 0) *max = RULES_UNBOUNDED;
    }
    if (*min < 0 || !eat_text(p, "}")) {
        p->at = from;
        return false;
    }
    if (*max != RULES_UNBOUNDED && *max < *min)
        fail_at(p, from, "{%d,%d}: the maximum is below the minimum", *min, *max);
    return true;
}

/* false: no repetition operator comes here. */
static bool parse_repeat(struct pattern_parser *p, int *min, int *max)
{
    *min = 0;
    *max = RULES_UNBOUNDED;
    if (eat_text(p, "?")) *max = 1;
    else if (eat_text(p, "+")) *min = 1;
    else if (!eat_text(p, "*") && !parse_braces(p, min, max)) return false;
    if (eat_text(p, "+")) fail_at(p, p->at - 1, "a possessive repetition is not supported");
    eat_text(p, "?"); /* a lazy repetition matches the same texts */
    return true;
}

static bool is_anchor(const struct rule_node *n) { return n->kind == NODE_EMPTY && n->min < 0; }

/* Parts with their operators, up to a bar or a closing parenthesis. */
static struct rule_node *parse_seq(struct pattern_parser *p)
{
    struct rule_node *seq = rules_node(p->g, NODE_SEQ), *x;
    int min, max;

    while (p->rc == OK && !rules_failed(p->g) && (x = parse_part(p))) {
        size_t at = p->at;
        if (parse_repeat(p, &min, &max)) {
            if (is_anchor(x)) fail_at(p, at, "an anchor cannot be repeated");
            else if (p->rc == OK) x = rules_repeat(p->g, x, min, max);
        }
        rules_add_child(p->g, seq, x);
    }
    return seq;
}

static struct rule_node *parse_alt(struct pattern_parser *p)
{
    struct rule_node *alt = rules_node(p->g, NODE_ALT);

    do rules_add_child(p->g, alt, parse_seq(p));
    while (p->rc == OK && !rules_failed(p->g) && eat_text(p, "|"));
    return alt;
}

/* ---- removing anchors ---- */

/* Does any alternative have an anchor at this end? */
static bool is_anchored(const struct rule_node *n, bool begin)
{
    bool anchored = is_anchor(n) && n->min == (begin ? ANCHOR_BEGIN : ANCHOR_END);

    if (n->kind == NODE_SEQ && n->n_children)
        return is_anchored(n->children[begin ? 0 : n->n_children - 1], begin);
    for (int i = 0; n->kind == NODE_ALT && i < n->n_children; i++)
        anchored |= is_anchored(n->children[i], begin);
    return anchored;
}

/* Removes the anchors of an end, and puts any text before (or after) the alternatives without one.
 * These are put together first, so that "any text" is there once for all of them. */
static struct rule_node *add_any_text(struct pattern_parser *p, struct rule_node *n, bool begin)
{
    struct rule_node *any, *out, *loose;
    int at;

    if (!is_anchored(n, begin)) {
        any = rules_repeat(p->g, make_any_char(p, true), 0, RULES_UNBOUNDED);
        return begin ? RULES_SEQ(p->g, any, n) : RULES_SEQ(p->g, n, any);
    }
    if (is_anchor(n)) return rules_node(p->g, NODE_EMPTY);
    out = rules_node(p->g, n->kind);
    loose = rules_node(p->g, NODE_ALT);
    at = begin ? 0 : n->n_children - 1;
    for (int i = 0; i < n->n_children; i++) {
        struct rule_node *child = n->children[i];
        if (n->kind == NODE_ALT && !is_anchored(child, begin)) rules_add_child(p->g, loose, child);
        else
            rules_add_child(p->g, out,
                            n->kind == NODE_ALT || i == at ? add_any_text(p, child, begin) : child);
    }
    if (loose->n_children) rules_add_child(p->g, out, add_any_text(p, loose, begin));
    return out;
}

/* Is there an anchor anywhere in the tree? */
static bool has_anchor(const struct rule_node *n)
{
    if (is_anchor(n)) return true;
    for (int i = 0; i < n->n_children; i++)
        if (has_anchor(n->children[i])) return true;
    return false;
}

/* Removes the anchors of an end of a pattern that describes the whole text anyway. */
static struct rule_node *drop_anchor(struct pattern_parser *p, struct rule_node *n, bool begin)
{
    struct rule_node *out;
    int at;

    if (is_anchor(n) && n->min == (begin ? ANCHOR_BEGIN : ANCHOR_END))
        return rules_node(p->g, NODE_EMPTY);
    if ((n->kind != NODE_ALT && n->kind != NODE_SEQ) || n->n_children == 0) return n;
    at = begin ? 0 : n->n_children - 1;
    out = rules_node(p->g, n->kind);
    for (int i = 0; i < n->n_children; i++)
        rules_add_child(p->g, out,
                        n->kind == NODE_ALT || i == at ? drop_anchor(p, n->children[i], begin)
                                                       : n->children[i]);
    return out;
}

int pattern_parse(struct rule_node **out, struct rules *g, struct str pattern, enum pattern_as as,
                  bool whole, struct err *e)
{
    struct pattern_parser p = { .g = g, .text = pattern, .as = as, .e = e };
    struct rule_node *n;

    if (pattern.n > MAX_BYTES)
        return err_set(e, E_INVALID, "the pattern has %zu bytes; at most %d are allowed", pattern.n,
                       MAX_BYTES);
    n = parse_alt(&p);
    if (p.rc == OK && rules_failed(g)) p.rc = rules_check(g, e);
    if (p.rc == OK && p.at < pattern.n) fail_at(&p, p.at, "this ')' closes no group");
    if (p.rc != OK) return p.rc;
    n = whole ? drop_anchor(&p, n, true) : add_any_text(&p, n, true);
    n = whole ? drop_anchor(&p, n, false) : add_any_text(&p, n, false);
    if (has_anchor(n)) fail_at(&p, 0, "an anchor (^ or $) in the middle is not supported");
    if (p.rc == OK && rules_failed(g)) p.rc = rules_check(g, e);
    *out = n;
    return p.rc;
}
