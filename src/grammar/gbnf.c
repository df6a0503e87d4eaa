/* gbnf.c - a recursive descent parser for GBNF. It has one function for each level of the notation:
 *
 *     grammar       rule*
 *     rule          name "::=" alternatives  end of line
 *     alternatives  sequence ("|" sequence)*
 *     sequence      (part operator*)*
 *     part          literal | class | group | token | name | "."
 *     operator      "*" | "+" | "?" | "{" counts "}"
 *
 * A name may be used before its rule is defined: the rule is then added without a body, with the
 * place of the use, and check_references reports rules that have none at the end.
 *
 * The first error is kept in `rc` and ends the parse. After it functions return some node, which
 * nobody looks at. */
#include "grammar/gbnf.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    MAX_DEPTH = 100,     /* of nested groups */
    MAX_OPERATORS = 8,   /* of repetition, in a row */
    MAX_BYTES = 1 << 20, /* of a grammar */
    NAME_SHOWN = 60      /* bytes of a name in messages */
};

struct gbnf {
    struct rules *g;
    struct str text;
    size_t at; /* the next byte */
    gbnf_token_fn *token;
    void *arg; /* of token */
    struct err *e;
    int depth; /* of groups */
    int rc;    /* the first error */
    /* the last position that was asked for; finding a later one begins here */
    struct gbnf_position {
        size_t at;
        int line, column; /* both from 1 */
    } last;
};

static struct rule_node *parse_alternatives(struct gbnf *p, bool nested);

/* ---- errors and positions ---- */

/* Positions are asked for in rising order but for errors, so that all of them together take one
 * pass over the text. */
static struct gbnf_position find_position(struct gbnf *p, size_t at)
{
    size_t from;

    if (at < p->last.at || p->last.line == 0) p->last = (struct gbnf_position){ 0, 1, 1 };
    from = p->last.at;
    for (; p->last.at < at && p->last.at < p->text.n; p->last.at++) {
        p->last.column++;
        if (p->text.p[p->last.at] == '\n') p->last.line++, p->last.column = 1;
    }
    budget_step(p->g->budget, (uint64_t)(p->last.at - from));
    return p->last;
}

/* E_INVALID with the position of byte `at`, unless there is an error already. */
static void fail_at(struct gbnf *p, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail_at(struct gbnf *p, size_t at, const char *fmt, ...)
{
    struct gbnf_position place;
    char what[256];
    va_list ap;

    if (p->rc != OK) return;
    place = find_position(p, at);
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    p->rc = err_set(p->e, E_INVALID, "line %d, column %d: %s", place.line, place.column, what);
}

/* The next byte; -1 at the end. */
static int peek_byte(const struct gbnf *p)
{
    return p->at < p->text.n ? (unsigned char)p->text.p[p->at] : -1;
}

static bool eat_byte(struct gbnf *p, char c)
{
    if (peek_byte(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

/* Skips blanks and comments, and with `lines` the ends of lines too: outside of groups these end a
 * rule. */
static void skip_space(struct gbnf *p, bool lines)
{
    for (int c; (c = peek_byte(p)) >= 0; p->at++) {
        if (c == '#') {
            while (peek_byte(p) >= 0 && peek_byte(p) != '\n') p->at++;
            p->at--;
            continue;
        }
        if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) return;
    }
}

/* The next byte in words, for messages. */
static const char *describe_next(const struct gbnf *p, char out[24])
{
    int c = peek_byte(p);

    if (c < 0) return "the end";
    if (c == '\n' || c == '\r') return "the end of the line";
    if (c < ' ' || c > '~') snprintf(out, 24, "the byte 0x%02x", c);
    else snprintf(out, 24, "'%c'", c);
    return out;
}

static bool is_name_byte(int c) { return c >= 0 && (isalnum(c) || c == '-' || c == '_'); }

/* Empty: no name begins here. */
static struct str parse_name(struct gbnf *p)
{
    size_t from = p->at;

    while (is_name_byte(peek_byte(p))) p->at++;
    return str_of(p->text.p + from, p->at - from);
}

/* ---- characters ---- */

/* Surrogates are refused: they have no UTF-8. */
static int32_t parse_hex(struct gbnf *p, int n)
{
    size_t from = p->at;
    int64_t v = 0;

    for (int i = 0; i < n; i++) {
        int c = peek_byte(p);
        if (c < 0 || !isxdigit(c)) {
            fail_at(p, from, "the escape needs %d hexadecimal digits", n);
            return 0;
        }
        v = v * 16 + (isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
        p->at++;
    }
    if (v > CHARSET_LAST || (v >= 0xd800 && v <= 0xdfff))
        fail_at(p, from, "U+%llX is not a character", (long long)v);
    return (int32_t)v;
}

/* The character of an escape, from behind the backslash. Punctuation stands for itself. */
static int32_t parse_escape(struct gbnf *p)
{
    size_t from = p->at - 1;
    int c = peek_byte(p);

    p->at++;
    switch (c) {
    case 'x': return parse_hex(p, 2);
    case 'u': return parse_hex(p, 4);
    case 'U': return parse_hex(p, 8);
    case 't': return '\t';
    case 'r': return '\r';
    case 'n': return '\n';
    default: break;
    }
    if (c < 0 || c > '~' || c <= ' ' || isalnum(c))
        fail_at(p, from,
                "unknown escape: a backslash is followed by n, r, t, x, u, U or punctuation");
    return c;
}

/* One character of a literal or a class. */
static int32_t parse_char(struct gbnf *p)
{
    int32_t cp;
    int n;

    if (eat_byte(p, '\\')) return parse_escape(p);
    n = utf8_next(str_skip(p->text, p->at), &cp);
    if (cp < 0) fail_at(p, p->at, "these bytes are not UTF-8");
    p->at += (size_t)n;
    return cp;
}

/* A literal, from behind its quote. It ends on its line. */
static struct rule_node *parse_literal(struct gbnf *p)
{
    size_t from = p->at - 1;
    struct buf lit = { 0 };
    struct rule_node *n;
    char bytes[4];

    while (p->rc == OK && !eat_byte(p, '"')) {
        if (peek_byte(p) < 0 || peek_byte(p) == '\n')
            fail_at(p, from, "the literal that begins here is not closed by a quote");
        else {
            int32_t cp = parse_char(p);
            if (p->rc == OK) buf_add(&lit, bytes, (size_t)utf8_put(bytes, cp));
        }
    }
    if (p->rc == OK) p->rc = buf_check(&lit, p->e);
    n = rules_literal(p->g, buf_str(&lit));
    buf_release(&lit);
    return n;
}

/* A class, from behind its '['. A '-' at either end is a character. */
static struct rule_node *parse_class(struct gbnf *p)
{
    size_t from = p->at - 1;
    struct charset set = { 0 };
    bool not = eat_byte(p, '^');

    while (p->rc == OK && !eat_byte(p, ']')) {
        size_t at = p->at;
        int32_t lo, hi;
        if (peek_byte(p) < 0 || peek_byte(p) == '\n') {
            fail_at(p, from, "the class that begins here is not closed by ']'");
            break;
        }
        lo = hi = parse_char(p);
        if (p->rc == OK && peek_byte(p) == '-' && p->at + 1 < p->text.n &&
            p->text.p[p->at + 1] != ']') {
            p->at++;
            hi = parse_char(p);
        }
        if (lo > hi) fail_at(p, at, "the range is reversed: the smaller character comes first");
        charset_add(&set, &p->g->arena, lo, hi);
    }
    charset_normalize(&set);
    if (not ) set = charset_complement(&set, &p->g->arena);
    return rules_class(p->g, set);
}

/* <name> or <[id]>, from behind the '<'. */
static struct rule_node *parse_token(struct gbnf *p)
{
    size_t from = p->at - 1, start = p->at;
    struct str name;
    int64_t id = -1;

    while (peek_byte(p) >= 0 && peek_byte(p) != '>' && peek_byte(p) != '\n') p->at++;
    name = str_of(p->text.p + start, p->at - start);
    if (!eat_byte(p, '>')) {
        fail_at(p, from, "the token that begins here is not closed by '>'");
    } else if (name.n > 2 && name.p[0] == '[' && name.p[name.n - 1] == ']') {
        if (!str_to_i64(str_of(name.p + 1, name.n - 2), &id) || id < 0 || id >= 1 << 24)
            fail_at(p, from, "'%.*s' is not the id of a token", STR_ARG(str_take(name, 40)));
    } else {
        if (p->token) id = p->token(p->arg, str_of(p->text.p + from, p->at - from));
        if (id < 0)
            fail_at(p, from, "the vocabulary has no token <%.*s>", STR_ARG(str_take(name, 40)));
    }
    return rules_token(p->g, (int32_t)(id < 0 ? 0 : id));
}

/* ---- sequences and rules ---- */

/* A reference to a rule, which may be defined later. */
static struct rule_node *parse_ref(struct gbnf *p)
{
    size_t from = p->at;
    int rule = rules_find_or_add(p->g, parse_name(p));
    struct rule *r = rules_get(p->g, rule);

    if (!r->body && r->line == 0) {
        struct gbnf_position place = find_position(p, from);
        r->line = place.line;
        r->column = place.column;
    }
    return rules_ref(p->g, rule);
}

/* A group, from behind its '('. Lines end no rule inside of it. */
static struct rule_node *parse_group(struct gbnf *p)
{
    size_t from = p->at - 1;
    struct rule_node *n;
    char what[24];

    if (++p->depth > MAX_DEPTH) {
        fail_at(p, from, "groups are nested more than %d deep", MAX_DEPTH);
        return rules_node(p->g, NODE_EMPTY);
    }
    skip_space(p, true);
    n = parse_alternatives(p, true);
    p->depth--;
    if (p->rc == OK && !eat_byte(p, ')'))
        fail_at(p, p->at, "expected ')' at the end of the group, found %s", describe_next(p, what));
    return n;
}

/* One literal, class, group, token or reference. NULL: none of these begins here. */
static struct rule_node *parse_part(struct gbnf *p)
{
    int c = peek_byte(p);

    if (c == '"') return p->at++, parse_literal(p);
    if (c == '[') return p->at++, parse_class(p);
    if (c == '(') return p->at++, parse_group(p);
    if (c == '<') return p->at++, parse_token(p);
    if (c == '.') return p->at++, rules_range(p->g, 0, CHARSET_LAST);
    if (is_name_byte(c)) return parse_ref(p);
    if (c == '!') fail_at(p, p->at, "'!' before a token is not supported");
    return NULL;
}

/* -1: no digits. */
static int parse_count(struct gbnf *p)
{
    size_t from = p->at;
    int64_t n = 0;

    while (peek_byte(p) >= 0 && isdigit(peek_byte(p)) && n <= GBNF_REPEAT_MAX)
        n = n * 10 + (p->text.p[p->at++] - '0');
    if (p->at == from) return -1;
    if (n > GBNF_REPEAT_MAX) fail_at(p, from, "more than %d repetitions", GBNF_REPEAT_MAX);
    return (int)n;
}

/* {m}, {m,}, {,n} or {m,n} after x, from behind the '{'. */
static struct rule_node *parse_braces(struct gbnf *p, struct rule_node *x)
{
    size_t from = p->at - 1;
    int min, max;
    char what[24];

    skip_space(p, false);
    min = max = parse_count(p);
    skip_space(p, false);
    if (eat_byte(p, ',')) {
        skip_space(p, false);
        max = parse_count(p);
        if (max < 0) max = RULES_UNBOUNDED;
        if (max == RULES_UNBOUNDED && min < 0)
            fail_at(p, from, "{,} has no bound: write {m}, {m,} or {m,n}");
        if (min < 0) min = 0;
        skip_space(p, false);
    }
    if (min < 0) fail_at(p, p->at, "expected a number after '{', found %s", describe_next(p, what));
    if (max != RULES_UNBOUNDED && max < min)
        fail_at(p, from, "{%d,%d}: the maximum is below the minimum", min, max);
    if (p->rc == OK && !eat_byte(p, '}'))
        fail_at(p, p->at, "expected '}', found %s", describe_next(p, what));
    return p->rc == OK ? rules_repeat(p->g, x, min, max) : x;
}

/* Parts with their operators, up to a bar, a closing parenthesis or the end of the rule. nested: it
 * is inside of a group. */
static struct rule_node *parse_sequence(struct gbnf *p, bool nested)
{
    struct rule_node *seq = rules_node(p->g, NODE_SEQ);

    while (p->rc == OK) {
        struct rule_node *x = parse_part(p);
        int n_operators = 0;
        if (!x) break;
        while (p->rc == OK) {
            skip_space(p, nested);
            if (eat_byte(p, '*')) x = rules_repeat(p->g, x, 0, RULES_UNBOUNDED);
            else if (eat_byte(p, '+')) x = rules_repeat(p->g, x, 1, RULES_UNBOUNDED);
            else if (eat_byte(p, '?')) x = rules_repeat(p->g, x, 0, 1);
            else if (eat_byte(p, '{')) x = parse_braces(p, x);
            else break;
            if (++n_operators > MAX_OPERATORS)
                fail_at(p, p->at, "more than %d repetition operators in a row", MAX_OPERATORS);
        }
        rules_add_child(p->g, seq, x);
        if (p->rc == OK && rules_failed(p->g)) p->rc = rules_check(p->g, p->e);
        if (p->g->full)
            fail_at(p, p->at, "the grammar is too large: it has more than %d parts",
                    RULES_MAX_NODES);
    }
    return seq->n_children == 1 ? seq->children[0] : seq;
}

/* Eats the bar before another alternative, which may be on the next line. */
static bool eat_bar(struct gbnf *p, bool nested)
{
    size_t was = p->at;

    skip_space(p, true);
    if (eat_byte(p, '|')) return true;
    if (!nested) p->at = was;
    return false;
}

static struct rule_node *parse_alternatives(struct gbnf *p, bool nested)
{
    struct rule_node *alt = rules_node(p->g, NODE_ALT);

    do {
        skip_space(p, true);
        rules_add_child(p->g, alt, parse_sequence(p, nested));
    } while (p->rc == OK && eat_bar(p, nested));
    return alt->n_children == 1 ? alt->children[0] : alt;
}

/* One rule, from its name to the end of its line. */
static void parse_rule(struct gbnf *p)
{
    size_t from = p->at;
    struct str name = parse_name(p);
    struct rule_node *body;
    struct gbnf_position place = find_position(p, from);
    struct rule *r;
    int rule;
    char what[24];

    if (name.n == 0) {
        fail_at(p, p->at, "expected the name of a rule, found %s", describe_next(p, what));
        return;
    }
    skip_space(p, false);
    if (!str_starts(str_skip(p->text, p->at), STR("::="))) {
        fail_at(p, p->at, "expected ::= after '%.*s', found %s",
                STR_ARG(str_take(name, NAME_SHOWN)), describe_next(p, what));
        return;
    }
    p->at += 3;
    rule = rules_find_or_add(p->g, name);
    if ((p->rc = rules_check(p->g, p->e)) != OK) return;
    if (p->g->rules[rule].body) {
        fail_at(p, from, "the rule '%.*s' is defined twice", STR_ARG(str_take(name, NAME_SHOWN)));
        return;
    }
    body = parse_alternatives(p, false);
    r = rules_get(p->g, rule);
    r->body = body;
    r->line = place.line;
    r->column = place.column;
    if (p->rc == OK && peek_byte(p) >= 0 && peek_byte(p) != '\n' && peek_byte(p) != '\r')
        fail_at(p, p->at, "expected the end of the rule, found %s", describe_next(p, what));
}

/* Every rule that is used must be defined, and there must be a root. */
static void check_references(struct gbnf *p)
{
    uint64_t root;

    for (int i = 0; i < p->g->n && p->rc == OK; i++) {
        const struct rule *r = &p->g->rules[i];
        if (!r->body)
            p->rc = err_set(p->e, E_INVALID, "line %d, column %d: there is no rule '%.*s'", r->line,
                            r->column, STR_ARG(str_take(r->name, NAME_SHOWN)));
    }
    if (p->rc != OK) return;
    if (map_get(&p->g->names, STR("root"), &root)) p->g->root = (int)root;
    else p->rc = err_set(p->e, E_INVALID, "line 1, column 1: there is no rule 'root'");
}

int gbnf_parse(struct rules *g, struct str text, gbnf_token_fn *token, void *arg, struct err *e)
{
    struct gbnf p = { .g = g, .text = text, .token = token, .arg = arg, .e = e };

    if (text.n > MAX_BYTES)
        return err_set(e, E_INVALID, "the grammar has %zu bytes; at most %d are allowed", text.n,
                       MAX_BYTES);
    skip_space(&p, true);
    while (p.rc == OK && peek_byte(&p) >= 0) {
        parse_rule(&p);
        skip_space(&p, true);
    }
    if (p.rc == OK) p.rc = rules_check(g, e);
    if (p.rc == OK) check_references(&p);
    return p.rc;
}
