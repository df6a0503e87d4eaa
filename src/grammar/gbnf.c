#include "grammar/gbnf.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

enum { NESTED = 100, REPEATED = 8, TEXT_BYTES = 1 << 20 };

struct gbnf {
    struct grules *g;
    struct str text;
    size_t at;
    gbnf_token_fn *token;
    void *arg;
    struct err *e;
    int depth, rc;
};

static struct gnode *parse_alternatives(struct gbnf *p, bool nested);

/* ---- where we are ---- */

static void place(const struct gbnf *p, size_t at, int *line, int *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < at && i < p->text.n; i++) {
        (*column)++;
        if (p->text.p[i] == '\n') (*line)++, *column = 1;
    }
}

static void fail_at(struct gbnf *p, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail_at(struct gbnf *p, size_t at, const char *fmt, ...)
{
    char what[256];
    int line, column;
    va_list ap;

    if (p->rc != OK) return;
    place(p, at, &line, &column);
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    p->rc = err_set(p->e, E_INVALID, "line %d, column %d: %s", line, column, what);
}

static int peek(const struct gbnf *p)
{
    return p->at < p->text.n ? (unsigned char)p->text.p[p->at] : -1;
}

static bool eat(struct gbnf *p, char c)
{
    if (peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

/* Blanks and comments; the ends of lines too, if they do not end the rule. */
static void skip_space(struct gbnf *p, bool lines)
{
    for (int c; (c = peek(p)) >= 0; p->at++) {
        if (c == '#') {
            while (peek(p) >= 0 && peek(p) != '\n') p->at++;
            p->at--;
            continue;
        }
        if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) return;
    }
}

/* What stands here, to be shown. */
static const char *here(const struct gbnf *p, char out[24])
{
    int c = peek(p);

    if (c < 0) return "the end";
    if (c == '\n' || c == '\r') return "the end of the line";
    if (c < ' ' || c > '~') snprintf(out, 24, "the byte 0x%02x", c);
    else snprintf(out, 24, "'%c'", c);
    return out;
}

static bool is_word(int c) { return c >= 0 && (isalnum(c) || c == '-' || c == '_'); }

static struct str parse_name(struct gbnf *p)
{
    size_t from = p->at;

    while (is_word(peek(p))) p->at++;
    return str_of(p->text.p + from, p->at - from);
}

/* ---- characters ---- */

static int32_t parse_hex(struct gbnf *p, int n)
{
    size_t from = p->at;
    int64_t v = 0;

    for (int i = 0; i < n; i++) {
        int c = peek(p);
        if (c < 0 || !isxdigit(c)) {
            fail_at(p, from, "an escape of %d hexadecimal digits is cut short", n);
            return 0;
        }
        v = v * 16 + (isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
        p->at++;
    }
    if (v > CP_LAST || (v >= 0xd800 && v <= 0xdfff))
        fail_at(p, from, "%llX is not a character", (long long)v);
    return (int32_t)v;
}

static int32_t parse_escape(struct gbnf *p)
{
    size_t from = p->at - 1;
    int c = peek(p);

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
        fail_at(
            p, from,
            "an escape that is not known: after a backslash comes one of n r t x u U, or a sign");
    return c;
}

static int32_t parse_char(struct gbnf *p)
{
    int32_t cp;
    int n;

    if (eat(p, '\\')) return parse_escape(p);
    n = utf8_next(str_skip(p->text, p->at), &cp);
    if (cp < 0) fail_at(p, p->at, "bytes that are not UTF-8");
    p->at += (size_t)n;
    return cp;
}

static struct gnode *parse_literal(struct gbnf *p)
{
    size_t from = p->at - 1;
    struct buf lit = { 0 };
    struct gnode *n;
    char bytes[4];

    while (p->rc == OK && !eat(p, '"')) {
        if (peek(p) < 0 || peek(p) == '\n')
            fail_at(p, from, "the quote that begins here is not closed");
        else {
            int32_t cp = parse_char(p);
            if (p->rc == OK) buf_add(&lit, bytes, (size_t)utf8_put(bytes, cp));
        }
    }
    n = gnode_lit(p->g, buf_str(&lit));
    buf_release(&lit);
    return n;
}

static struct gnode *parse_class(struct gbnf *p)
{
    size_t from = p->at - 1;
    struct cpset set = { 0 };
    bool not = eat(p, '^');

    while (p->rc == OK && !eat(p, ']')) {
        size_t at = p->at;
        int32_t lo, hi;
        if (peek(p) < 0 || peek(p) == '\n') {
            fail_at(p, from, "the bracket that opens here is not closed");
            break;
        }
        lo = hi = parse_char(p);
        if (p->rc == OK && peek(p) == '-' && p->at + 1 < p->text.n && p->text.p[p->at + 1] != ']') {
            p->at++;
            hi = parse_char(p);
        }
        if (lo > hi) fail_at(p, at, "a range of characters that runs backwards");
        cpset_add(&set, &p->g->arena, lo, hi);
    }
    cpset_tidy(&set);
    if (not ) set = cpset_not(&set, &p->g->arena);
    return gnode_class(p->g, set);
}

/* <name>, <[id]> */
static struct gnode *parse_token(struct gbnf *p)
{
    size_t from = p->at - 1, start = p->at;
    struct str name;
    int64_t id = -1;

    while (peek(p) >= 0 && peek(p) != '>' && peek(p) != '\n') p->at++;
    name = str_of(p->text.p + start, p->at - start);
    if (!eat(p, '>')) {
        fail_at(p, from, "the token that begins here is not closed by '>'");
    } else if (name.n > 2 && name.p[0] == '[' && name.p[name.n - 1] == ']') {
        if (!str_to_i64(str_of(name.p + 1, name.n - 2), &id) || id < 0 || id >= 1 << 24)
            fail_at(p, from, "'%.*s' is not the id of a token", STR_ARG(str_take(name, 40)));
    } else {
        if (p->token) id = p->token(p->arg, str_of(p->text.p + from, p->at - from));
        if (id < 0)
            fail_at(p, from, "the vocabulary has no token <%.*s>", STR_ARG(str_take(name, 40)));
    }
    return gnode_token(p->g, (int32_t)(id < 0 ? 0 : id));
}

/* ---- what they make up ---- */

static struct gnode *parse_ref(struct gbnf *p)
{
    size_t from = p->at;
    int rule = grules_name(p->g, parse_name(p));
    struct grule *r = &p->g->rules[rule];

    if (!r->body && r->line == 0) place(p, from, &r->line, &r->column);
    return gnode_ref(p->g, rule);
}

static struct gnode *parse_group(struct gbnf *p)
{
    size_t from = p->at - 1;
    struct gnode *n;
    char what[24];

    if (++p->depth > NESTED) {
        fail_at(p, from, "groups are nested more than %d deep", NESTED);
        return gnode_new(p->g, GN_EMPTY);
    }
    skip_space(p, true);
    n = parse_alternatives(p, true);
    p->depth--;
    if (p->rc == OK && !eat(p, ')'))
        fail_at(p, p->at, "expected ')' for the group that was opened, but there is %s",
                here(p, what));
    return n;
}

/* NULL: nothing that could begin a part stands here. */
static struct gnode *parse_part(struct gbnf *p)
{
    int c = peek(p);

    if (c == '"') return p->at++, parse_literal(p);
    if (c == '[') return p->at++, parse_class(p);
    if (c == '(') return p->at++, parse_group(p);
    if (c == '<') return p->at++, parse_token(p);
    if (c == '.') return p->at++, gnode_range(p->g, 0, CP_LAST);
    if (is_word(c)) return parse_ref(p);
    if (c == '!') fail_at(p, p->at, "'!' before a token is not supported");
    return NULL;
}

static int parse_count(struct gbnf *p)
{
    size_t from = p->at;
    int64_t n = 0;

    while (peek(p) >= 0 && isdigit(peek(p)) && n <= GBNF_REPEAT_MAX)
        n = n * 10 + (p->text.p[p->at++] - '0');
    if (p->at == from) return -1;
    if (n > GBNF_REPEAT_MAX) fail_at(p, from, "more than %d repetitions", GBNF_REPEAT_MAX);
    return (int)n;
}

static struct gnode *parse_braces(struct gbnf *p, struct gnode *x)
{
    size_t from = p->at - 1;
    int min, max;
    char what[24];

    skip_space(p, false);
    min = max = parse_count(p);
    skip_space(p, false);
    if (eat(p, ',')) {
        skip_space(p, false);
        max = parse_count(p);
        if (max < 0) max = GNODE_MANY;
        if (max == GNODE_MANY && min < 0)
            fail_at(p, from, "{,} says nothing: write {m}, {m,} or {m,n}");
        if (min < 0) min = 0;
        skip_space(p, false);
    }
    if (min < 0) fail_at(p, p->at, "expected a number behind '{', but there is %s", here(p, what));
    if (max != GNODE_MANY && max < min)
        fail_at(p, from, "{%d,%d}: the larger number comes second", min, max);
    if (p->rc == OK && !eat(p, '}'))
        fail_at(p, p->at, "expected '}', but there is %s", here(p, what));
    return p->rc == OK ? gnode_rep(p->g, x, min, max) : x;
}

static struct gnode *parse_sequence(struct gbnf *p, bool nested)
{
    struct gnode *seq = gnode_new(p->g, GN_SEQ);

    while (p->rc == OK) {
        struct gnode *x = parse_part(p);
        int n_times = 0;
        if (!x) break;
        while (p->rc == OK) {
            skip_space(p, nested);
            if (eat(p, '*')) x = gnode_rep(p->g, x, 0, GNODE_MANY);
            else if (eat(p, '+')) x = gnode_rep(p->g, x, 1, GNODE_MANY);
            else if (eat(p, '?')) x = gnode_rep(p->g, x, 0, 1);
            else if (eat(p, '{')) x = parse_braces(p, x);
            else break;
            if (++n_times > REPEATED)
                fail_at(p, p->at, "more than %d signs of repetition in a row", REPEATED);
        }
        gnode_add(p->g, seq, x);
        if (p->g->full)
            fail_at(p, p->at, "the grammar is too large: it has more than %d parts", GRULES_NODES);
    }
    return seq->n_kids == 1 ? seq->kids[0] : seq;
}

/* An alternative may begin on the next line. */
static bool bar_ahead(struct gbnf *p, bool nested)
{
    size_t was = p->at;

    skip_space(p, true);
    if (eat(p, '|')) return true;
    if (!nested) p->at = was;
    return false;
}

static struct gnode *parse_alternatives(struct gbnf *p, bool nested)
{
    struct gnode *alt = gnode_new(p->g, GN_ALT);

    do {
        skip_space(p, true);
        gnode_add(p->g, alt, parse_sequence(p, nested));
    } while (p->rc == OK && bar_ahead(p, nested));
    return alt->n_kids == 1 ? alt->kids[0] : alt;
}

static void parse_rule(struct gbnf *p)
{
    size_t from = p->at;
    struct str name = parse_name(p);
    struct gnode *body;
    struct grule *r;
    int rule, line, column;
    char what[24];

    if (name.n == 0) {
        fail_at(p, p->at, "expected the name of a rule, but there is %s", here(p, what));
        return;
    }
    skip_space(p, false);
    if (!str_starts(str_skip(p->text, p->at), STR("::="))) {
        fail_at(p, p->at, "expected ::= behind '%.*s', but there is %s",
                STR_ARG(str_take(name, 60)), here(p, what));
        return;
    }
    p->at += 3;
    rule = grules_name(p->g, name);
    if (p->g->rules[rule].body) {
        fail_at(p, from, "the rule '%.*s' is there already", STR_ARG(str_take(name, 60)));
        return;
    }
    body = parse_alternatives(p, false);
    place(p, from, &line, &column);
    r = &p->g->rules[rule];
    r->body = body;
    r->line = line;
    r->column = column;
    if (p->rc == OK && peek(p) >= 0 && peek(p) != '\n' && peek(p) != '\r')
        fail_at(p, p->at, "expected the end of the rule, but there is %s", here(p, what));
}

static void check_names(struct gbnf *p)
{
    uint64_t root;

    for (int i = 0; i < p->g->n && p->rc == OK; i++) {
        const struct grule *r = &p->g->rules[i];
        if (!r->body)
            p->rc = err_set(p->e, E_INVALID, "line %d, column %d: there is no rule '%.*s'", r->line,
                            r->column, STR_ARG(str_take(r->name, 60)));
    }
    if (p->rc != OK) return;
    if (map_get(&p->g->names, STR("root"), &root)) p->g->root = (int)root;
    else p->rc = err_set(p->e, E_INVALID, "line 1, column 1: there is no rule 'root'");
}

int gbnf_parse(struct grules *g, struct str text, gbnf_token_fn *token, void *arg, struct err *e)
{
    struct gbnf p = { .g = g, .text = text, .token = token, .arg = arg, .e = e };

    if (text.n > TEXT_BYTES)
        return err_set(e, E_INVALID, "the grammar has %zu bytes, but %d is the most", text.n,
                       TEXT_BYTES);
    skip_space(&p, true);
    while (p.rc == OK && peek(&p) >= 0) {
        parse_rule(&p);
        skip_space(&p, true);
    }
    if (p.rc == OK) check_names(&p);
    return p.rc;
}
