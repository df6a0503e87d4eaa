#include "jinja/pprint.h"

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/unicode.h"

#define WIDTH 80

struct printer {
    struct render *r;
    struct jtext t;
};

static void put(struct printer *p, struct jval v, int64_t indent, int64_t allowance, int level);

/* Keys that have an order, in it; others stay as they are. */
static struct jval in_order(struct render *r, struct jval v)
{
    struct jargs none = { 0 };
    struct jval exact = jv_bool(true), pairs, out;

    for (size_t i = 1; i < v.d->n; i++)
        if (v.d->e[i].key.kind != v.d->e[0].key.kind) return v;
    if (v.d->n == 0 || (v.d->e[0].key.kind != J_STR && !jv_is_num(v.d->e[0].key))) return v;
    none.v = &exact;
    none.n = 1;
    pairs = filter_find(STR("dictsort"))->call(r, v, &none);
    out = jv_dict(r, v.d->n);
    for (size_t i = 0; pairs.kind == J_LIST && i < pairs.l->n; i++)
        jdict_append(r, out.d, pairs.l->v[i].l->v[0], pairs.l->v[i].l->v[1]);
    return out;
}

/* The same with every dict inside in order: what repr() is taken of. */
static struct jval ordered(struct render *r, struct jval v)
{
    struct jval out = v;

    if ((v.kind != J_LIST && v.kind != J_TUPLE && v.kind != J_DICT) || !jv_enter(r)) return v;
    if (v.kind == J_DICT) {
        out = in_order(r, v);
        if (out.d == v.d) {
            out = jv_dict(r, v.d->n);
            for (size_t i = 0; i < v.d->n; i++)
                jdict_append(r, out.d, v.d->e[i].key, v.d->e[i].value);
        }
        for (size_t i = 0; i < out.d->n; i++) out.d->e[i].value = ordered(r, out.d->e[i].value);
    } else {
        out = v.kind == J_LIST ? jv_list(r, v.l->n) : jv_tuple(r, v.l->n);
        for (size_t i = 0; i < v.l->n; i++) jlist_push(r, out.l, ordered(r, v.l->v[i]));
    }
    jv_leave(r);
    return out;
}

static void new_line(struct printer *p, int64_t indent)
{
    jtext_putc(&p->t, '\n');
    jtext_fill(&p->t, STR(" "), indent);
}

static void put_items(struct printer *p, const struct jlist *l, int64_t indent, int64_t allowance,
                      int level)
{
    for (size_t i = 0; i < l->n && jv_step(p->r, 1); i++) {
        if (i) jtext_putc(&p->t, ','), new_line(p, indent + 1);
        put(p, l->v[i], indent + 1, i + 1 == l->n ? allowance : 1, level);
    }
}

static void put_dict(struct printer *p, const struct jdict *d, int64_t indent, int64_t allowance,
                     int level)
{
    for (size_t i = 0; i < d->n && jv_step(p->r, 1); i++) {
        struct str key = jv_repr(p->r, d->e[i].key);
        if (i) jtext_putc(&p->t, ','), new_line(p, indent + 1);
        jtext_add(&p->t, key);
        jtext_puts(&p->t, ": ");
        put(p, d->e[i].value, indent + 1 + (int64_t)jstr_len(key) + 2,
            i + 1 == d->n ? allowance : 1, level);
    }
}

/* The next word and the white space behind it. */
static size_t word_end(struct str s)
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

static int64_t repr_len(struct render *r, struct str s)
{
    return (int64_t)jstr_len(jv_repr(r, jv_str(s)));
}

static void split_line(struct printer *p, struct jval chunks, struct str line, int64_t width,
                       int64_t allowance, bool last)
{
    size_t from = 0, at = 0;

    while (at < line.n && jv_step(p->r, 1 + line.n / 64)) {
        size_t n = word_end(str_skip(line, at));
        int64_t room = width - (last && at + n >= line.n ? allowance : 0);
        if (repr_len(p->r, str_of(line.p + from, at + n - from)) > room) {
            if (at > from) jlist_push(p->r, chunks.l, jv_str(str_of(line.p + from, at - from)));
            from = at;
        }
        at += n;
    }
    if (at > from) jlist_push(p->r, chunks.l, jv_str(str_of(line.p + from, at - from)));
}

static void put_str(struct printer *p, struct jval v, int64_t indent, int64_t allowance, int level)
{
    struct jval lines = text_splitlines(p->r, v.s, true), chunks = jv_list(p->r, 8);
    int64_t width;

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
        if (i) new_line(p, indent);
        jtext_put_repr(&p->t, chunks.l->v[i]);
    }
    if (level == 1 && chunks.l->n > 1) jtext_putc(&p->t, ')');
}

static void put(struct printer *p, struct jval v, int64_t indent, int64_t allowance, int level)
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
        put_dict(p, v.d, indent, allowance + 1, level);
        jtext_putc(&p->t, '}');
    } else if (v.kind == J_LIST) {
        jtext_putc(&p->t, '[');
        put_items(p, v.l, indent, allowance + 1, level);
        jtext_putc(&p->t, ']');
    } else if (v.kind == J_TUPLE) {
        jtext_putc(&p->t, '(');
        put_items(p, v.l, indent, allowance + (v.l->n == 1 ? 2 : 1), level);
        jtext_puts(&p->t, v.l->n == 1 ? ",)" : ")");
    } else if (v.kind == J_STR && v.s.n && !(v.flags & JV_MARKUP)) {
        put_str(p, v, indent, allowance, level);
    } else {
        jtext_add(&p->t, repr);
    }
    jv_leave(p->r);
}

struct jval pprint(struct render *r, struct jval v)
{
    struct printer p = { .r = r, .t = { .r = r } };

    put(&p, ordered(r, v), 0, 0, 0);
    return jtext_done(&p.t);
}
