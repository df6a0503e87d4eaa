/* pprint.c - the layout algorithm of Python's pprint module (PrettyPrinter._format).
 *
 * A value whose repr fits on the rest of the line is printed as that. Otherwise containers print
 * one item a line, and long strings are split at white space into adjacent literals. indent is the
 * column where a value begins, allowance the width of the closing brackets behind it, both in code
 * points, and level the nesting. */
#include "jinja/pprint.h"

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/unicode.h"

#define WIDTH 80

struct printer {
    struct render *r;
    struct jtext t;
};

static void print_value(struct printer *p, struct jval v, int64_t indent, int64_t allowance,
                        int level);

/* A dict with sorted keys, if they are all strings or all numbers; otherwise v. */
static struct jval sort_keys(struct render *r, struct jval v)
{
    struct jargs none = { 0 };
    struct jval exact = jv_bool(true), pairs, out;

    /* Keys of different types have no order. */
    for (size_t i = 1; i < v.d->n; i++)
        if (v.d->e[i].key.kind != v.d->e[0].key.kind) return v;
    if (v.d->n == 0 || (v.d->e[0].key.kind != J_STR && !jv_is_num(v.d->e[0].key))) return v;
    none.v = &exact;
    none.n = 1;
    pairs = filter_find(STR("dictsort"))->call(r, v, &none);
    if (jv_failed(r)) return v;
    out = jv_dict(r, v.d->n);
    for (size_t i = 0; pairs.kind == J_LIST && i < pairs.l->n; i++)
        jdict_append(r, out.d, pairs.l->v[i].l->v[0], pairs.l->v[i].l->v[1]);
    return out;
}

/* A copy in which every dict has sorted keys: its repr() is what pprint measures. */
static struct jval sort_keys_deep(struct render *r, struct jval v)
{
    struct jval out = v;

    if ((v.kind != J_LIST && v.kind != J_TUPLE && v.kind != J_DICT) || !jv_enter(r)) return v;
    if (v.kind == J_DICT) {
        out = sort_keys(r, v);
        if (out.d == v.d) {
            out = jv_dict(r, v.d->n);
            for (size_t i = 0; i < v.d->n; i++)
                jdict_append(r, out.d, v.d->e[i].key, v.d->e[i].value);
        }
        for (size_t i = 0; i < out.d->n; i++)
            out.d->e[i].value = sort_keys_deep(r, out.d->e[i].value);
    } else {
        out = v.kind == J_LIST ? jv_list(r, v.l->n) : jv_tuple(r, v.l->n);
        for (size_t i = 0; i < v.l->n; i++) jlist_push(r, out.l, sort_keys_deep(r, v.l->v[i]));
    }
    jv_leave(r);
    return out;
}

static void print_newline(struct printer *p, int64_t indent)
{
    jtext_putc(&p->t, '\n');
    jtext_fill(&p->t, STR(" "), indent);
}

/* The items of a list or tuple, one a line. Only the last one has the closing bracket behind it. */
static void print_items(struct printer *p, const struct jlist *l, int64_t indent, int64_t allowance,
                        int level)
{
    for (size_t i = 0; i < l->n && jv_step(p->r, 1); i++) {
        if (i) jtext_putc(&p->t, ','), print_newline(p, indent + 1);
        print_value(p, l->v[i], indent + 1, i + 1 == l->n ? allowance : 1, level);
    }
}

/* Keys and values, one pair a line; a value begins behind its key. */
static void print_dict(struct printer *p, const struct jdict *d, int64_t indent, int64_t allowance,
                       int level)
{
    for (size_t i = 0; i < d->n && jv_step(p->r, 1); i++) {
        struct str key = jv_repr(p->r, d->e[i].key);
        if (i) jtext_putc(&p->t, ','), print_newline(p, indent + 1);
        jtext_add(&p->t, key);
        jtext_puts(&p->t, ": ");
        print_value(p, d->e[i].value, indent + 1 + (int64_t)jstr_len(key) + 2,
                    i + 1 == d->n ? allowance : 1, level);
    }
}

/* The length of the next word with the white space behind it. */
static size_t find_word_end(struct str s)
{
    size_t at = 0;
    bool space = false;

    while (at < s.n) {
        int32_t cp;
        size_t n = (size_t)utf8_next(str_skip(s, at), &cp);
        if (space && !uni_space(cp)) break;
        space |= uni_space(cp);
        at += n;
    }
    return at;
}

/* In code points. */
static int64_t repr_len(struct render *r, struct str s)
{
    return (int64_t)jstr_len(jv_repr(r, jv_str(s)));
}

/* Splits a line that is too long at white space, each piece as long as fits. */
static void split_line(struct printer *p, struct jval chunks, struct str line, int64_t width,
                       int64_t allowance, bool last)
{
    size_t from = 0, at = 0;

    while (at < line.n && jv_step(p->r, 1 + line.n / 64)) {
        size_t n = find_word_end(str_skip(line, at));
        int64_t room = width - (last && at + n >= line.n ? allowance : 0);
        if (repr_len(p->r, str_of(line.p + from, at + n - from)) > room) {
            if (at > from) jlist_push(p->r, chunks.l, jv_str(str_of(line.p + from, at - from)));
            from = at;
        }
        at += n;
    }
    if (at > from) jlist_push(p->r, chunks.l, jv_str(str_of(line.p + from, at - from)));
}

/* A string over several lines: literals beside each other, in brackets at the top level. */
static void print_str(struct printer *p, struct jval v, int64_t indent, int64_t allowance,
                      int level)
{
    struct jval lines = text_splitlines(p->r, v.s, true), chunks = jv_list(p->r, 8);
    int64_t width;

    /* At the top level the literals stand in brackets, which take a column on each side. */
    if (level == 1) indent++, allowance++;
    width = WIDTH - indent;
    for (size_t i = 0; i < lines.l->n; i++) {
        struct str line = lines.l->v[i].s;
        bool last = i + 1 == lines.l->n;
        if (repr_len(p->r, line) <= width - (last ? allowance : 0))
            jlist_push(p->r, chunks.l, jv_str(line));
        else split_line(p, chunks, line, width, allowance, last);
    }
    if (level == 1 && chunks.l->n > 1) jtext_putc(&p->t, '(');
    for (size_t i = 0; i < chunks.l->n; i++) {
        if (i) print_newline(p, indent);
        jtext_put_repr(&p->t, chunks.l->v[i]);
    }
    if (level == 1 && chunks.l->n > 1) jtext_putc(&p->t, ')');
}

/* repr() if it fits into the line, else broken up by type. */
static void print_value(struct printer *p, struct jval v, int64_t indent, int64_t allowance,
                        int level)
{
    struct str repr = jv_repr(p->r, v);
    bool fits = (int64_t)jstr_len(repr) <= WIDTH - indent - allowance;

    if (fits || !jv_enter(p->r)) {
        jtext_add(&p->t, repr);
        return;
    }
    level++;
    if (v.kind == J_DICT) {
        jtext_putc(&p->t, '{');
        print_dict(p, v.d, indent, allowance + 1, level);
        jtext_putc(&p->t, '}');
    } else if (v.kind == J_LIST) {
        jtext_putc(&p->t, '[');
        print_items(p, v.l, indent, allowance + 1, level);
        jtext_putc(&p->t, ']');
    } else if (v.kind == J_TUPLE) {
        jtext_putc(&p->t, '(');
        print_items(p, v.l, indent, allowance + (v.l->n == 1 ? 2 : 1), level);
        jtext_puts(&p->t, v.l->n == 1 ? ",)" : ")");
    } else if (v.kind == J_STR && v.s.n && !(v.flags & JV_MARKUP)) {
        print_str(p, v, indent, allowance, level);
    } else {
        jtext_add(&p->t, repr);
    }
    jv_leave(p->r);
}

struct jval pprint_value(struct render *r, struct jval v)
{
    struct printer p = { .r = r, .t = { .r = r } };

    print_value(&p, sort_keys_deep(r, v), 0, 0, 0);
    return jtext_done(&p.t);
}
