/* value.c - constructors, truth, length, equality, order and membership of values, as in Python.
 *
 * Operations that take time in proportion to their operands charge steps (jv_step): the limit holds
 * for work in C as for loops of the template. Comparisons recurse into containers and are limited
 * by jv_enter: a namespace may contain itself. */
#include "jinja/value.h"

#include "jinja/iter.h"
#include "jinja/render.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Never fails: without memory the value has no message. */
struct jval jv_undef(struct render *r, const char *fmt, ...)
{
    struct jundef *u = jv_alloc(r, sizeof *u);
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (u) u->what = jv_copy_str(r, str_c(text));
    return (struct jval){ .kind = J_UNDEF, .u = u };
}

/* ---- lists and dicts ---- */

/* Room for cap items is allocated at once; a list that grows beyond it is copied. */
static struct jval make_list(struct render *r, enum jkind kind, size_t cap)
{
    struct jlist *l = jv_alloc(r, sizeof *l);

    if (!l) l = &r->spare_list;
    else if (cap && (l->v = jv_array(r, cap, sizeof *l->v))) l->cap = cap;
    return (struct jval){ .kind = (uint8_t)kind, .l = l };
}

struct jval jv_list(struct render *r, size_t cap) { return make_list(r, J_LIST, cap); }
struct jval jv_tuple(struct render *r, size_t cap) { return make_list(r, J_TUPLE, cap); }

struct jval jv_tuple2(struct render *r, struct jval a, struct jval b)
{
    struct jval t = jv_tuple(r, 2);

    if (jv_failed(r)) return t;
    jlist_push(r, t.l, a);
    jlist_push(r, t.l, b);
    return t;
}

/* Doubles the array when it is full; the old one stays in the arena. An item that finds no room is
 * dropped, and the rendering has failed. */
void jlist_push(struct render *r, struct jlist *l, struct jval v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        struct jval *to;
        if (r->failed || !(to = jv_array(r, cap, sizeof *to))) return;
        if (l->n) memcpy(to, l->v, l->n * sizeof *to);
        l->v = to;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct jval jv_dict(struct render *r, size_t cap)
{
    struct jdict *d = jv_alloc(r, sizeof *d);

    if (!d) d = &r->spare_dict;
    else if (cap && (d->e = jv_array(r, cap, sizeof *d->e))) d->cap = cap;
    return (struct jval){ .kind = J_DICT, .d = d };
}

struct jval jv_method(struct render *r, struct jval self, const struct jmethod_def *def)
{
    struct jmethod *m = jv_alloc(r, sizeof *m);

    if (!m) return jv_none();
    *m = (struct jmethod){ self, def };
    return (struct jval){ .kind = J_METHOD, .method = m };
}

void jdict_append(struct render *r, struct jdict *d, struct jval key, struct jval value)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 8;
        struct jpair *to;
        if (r->failed || !(to = jv_array(r, cap, sizeof *to))) return;
        if (d->n) memcpy(to, d->e, d->n * sizeof *to);
        d->e = to;
        d->cap = cap;
    }
    d->e[d->n++] = (struct jpair){ key, value };
}

const struct jval *jdict_get_str(const struct jdict *d, struct str key)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].key.kind == J_STR && str_eq(d->e[i].key.s, key)) return &d->e[i].value;
    return NULL;
}

/* Keys compare by value: 1, 1.0 and true are the same key. */
const struct jval *jdict_get(struct render *r, const struct jdict *d, struct jval key)
{
    /* The search is linear, so it is charged. */
    jv_step(r, d->n / 16);
    if (key.kind == J_STR) return jdict_get_str(d, key.s);
    for (size_t i = 0; i < d->n; i++)
        if (jv_equal(r, d->e[i].key, key)) return &d->e[i].value;
    return NULL;
}

void jdict_put(struct render *r, struct jdict *d, struct jval key, struct jval value)
{
    struct jval *at;

    if (!jv_hashable(key)) {
        jv_fail(r, "unhashable type: '%s'", jv_type(key));
        return;
    }
    /* The dict is being built, so its values may change. */
    at = (struct jval *)jdict_get(r, d, key);
    if (at) *at = value;
    else jdict_append(r, d, key, value);
}

/* ---- types ---- */

const char *jv_type(struct jval v)
{
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    static const char *const names[] = { [J_MISSING] = "missing",
                                         [J_UNDEF] = "Undefined",
                                         [J_NONE] = "NoneType",
                                         [J_BOOL] = "bool",
                                         [J_INT] = "int",
                                         [J_FLOAT] = "float",
                                         [J_STR] = "str",
                                         [J_LIST] = "list",
                                         [J_TUPLE] = "tuple",
                                         [J_DICT] = "dict",
                                         [J_RANGE] = "range",
                                         [J_ITER] = "generator",
                                         [J_NAMESPACE] = "Namespace",
                                         [J_MACRO] = "Macro",
                                         [J_LOOP] = "LoopContext",
                                         [J_METHOD] = "builtin_function_or_method",
                                         [J_FUNC] = "function",
                                         [J_CYCLER] = "Cycler",
                                         [J_JOINER] = "Joiner" };

    /* Types that depend on more than the kind. */
    if (v.kind == J_VIEW) return views[v.view->kind];
    if (v.kind == J_STR && v.flags & JV_MARKUP) return "Markup";
    return names[v.kind];
}

/* Python's bool(v). */
bool jv_truth(struct render *r, struct jval v)
{
    (void)r;
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE: return false;
    case J_BOOL: return v.b;
    case J_INT: return v.i != 0;
    case J_FLOAT: return v.f < 0 || v.f > 0 || isnan(v.f);
    case J_STR: return v.s.n > 0;
    case J_LIST:
    case J_TUPLE: return v.l->n > 0;
    case J_DICT: return v.d->n > 0;
    case J_RANGE: return v.range->n > 0;
    case J_VIEW: return v.view->d->n > 0;
    case J_LOOP: return jloop_length(r, v.loop) > 0;
    default: return true;
    }
}

/* Lists, dicts and views cannot be keys; a tuple can if its items can. */
bool jv_hashable(struct jval v)
{
    if (v.kind == J_LIST || v.kind == J_DICT || v.kind == J_VIEW) return false;
    if (v.kind != J_TUPLE) return true;
    for (size_t i = 0; i < v.l->n; i++)
        if (!jv_hashable(v.l->v[i])) return false;
    return true;
}

bool jv_callable(struct jval v)
{
    return v.kind == J_MACRO || v.kind == J_FUNC || v.kind == J_METHOD || v.kind == J_JOINER ||
           v.kind == J_LOOP || v.kind == J_UNDEF;
}

bool jv_has_len(struct jval v)
{
    switch (v.kind) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_RANGE:
    case J_VIEW:
    case J_LOOP: return true;
    default: return false;
    }
}

/* An undefined value has length 0, as in jinja2. */
bool jv_len(struct render *r, struct jval v, size_t *n)
{
    *n = 0;
    switch (v.kind) {
    case J_UNDEF: return true;
    case J_STR:
        *n = jstr_len(v.s);
        jv_step(r, v.s.n / 64);
        return true;
    case J_LIST:
    case J_TUPLE: *n = v.l->n; return true;
    case J_DICT: *n = v.d->n; return true;
    case J_RANGE: *n = v.range->n; return true;
    case J_VIEW: *n = v.view->d->n; return true;
    case J_LOOP: *n = jloop_length(r, v.loop); return true;
    default: jv_fail(r, "object of type '%s' has no len()", jv_type(v)); return false;
    }
}

/* ---- equality ---- */

static bool equal_lists(struct render *r, const struct jlist *a, const struct jlist *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jv_equal(r, a->v[i], b->v[i])) return false;
    return true;
}

/* The order of insertion does not matter. */
static bool equal_dicts(struct render *r, const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct jval *v = jdict_get(r, b, a->e[i].key);
        if (!v || !jv_equal(r, a->e[i].value, *v)) return false;
    }
    return true;
}

bool jv_same(struct jval a, struct jval b)
{
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case J_MISSING:
    case J_NONE: return true;
    case J_UNDEF: return a.u == b.u;
    case J_BOOL: return a.b == b.b;
    case J_INT:
        return a.i == b.i && a.i >= -5 && a.i <= 256; /* CPython has one object for each of these */
    case J_FLOAT: return false;
    case J_STR: return str_eq(a.s, b.s); /* CPython interns most strings that templates compare */
    default: return a.l == b.l;
    }
}

/* Two values of one kind, which is not a scalar. */
static bool equal_deep(struct render *r, struct jval a, struct jval b)
{
    switch (a.kind) {
    case J_LIST:
    case J_TUPLE: return equal_lists(r, a.l, b.l);
    case J_DICT: return equal_dicts(r, a.d, b.d);
    case J_RANGE:
        return a.range->n == b.range->n &&
               (a.range->n == 0 || (a.range->start == b.range->start &&
                                    (a.range->n == 1 || a.range->step == b.range->step)));
    default: return a.l == b.l;
    }
}

/* Numbers compare across types; other types are equal only to their own. Undefined values are
 * equal to each other. */
bool jv_equal(struct render *r, struct jval a, struct jval b)
{
    bool same;

    if (jv_is_num(a) && jv_is_num(b)) {
        double x, y;
        if (jv_is_int(a) && jv_is_int(b)) return jv_as_int(a) == jv_as_int(b);
        x = jv_as_float(a), y = jv_as_float(b);
        return !(x < y) && !(x > y) && !isnan(x) && !isnan(y);
    }
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE: return true;
    case J_STR: return str_eq(a.s, b.s);
    default: break;
    }
    /* Containers recurse. */
    if (!jv_step(r, 1) || !jv_enter(r)) return false;
    same = equal_deep(r, a, b);
    jv_leave(r);
    return same;
}

/* ---- order ---- */

/* The byte order of UTF-8 is the order of code points, which is Python's. */
static int compare_str(struct str a, struct str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;

    return c ? c : (a.n > b.n) - (a.n < b.n);
}

/* Lexicographic, as in Python. */
static int compare_lists(struct render *r, const struct jlist *a, const struct jlist *b,
                         const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        if (jv_failed(r)) return 0;
        if (!jv_equal(r, a->v[i], b->v[i])) return jv_compare(r, a->v[i], b->v[i], op);
    }
    return (a->n > b->n) - (a->n < b->n);
}

/* Numbers, strings, lists and tuples have an order, each among themselves. */
int jv_compare(struct render *r, struct jval a, struct jval b, const char *op)
{
    int c;

    if (jv_is_undef(a)) return jv_fail_undef(r, a), 0;
    if (jv_is_undef(b)) return jv_fail_undef(r, b), 0;
    if (jv_is_int(a) && jv_is_int(b))
        return (jv_as_int(a) > jv_as_int(b)) - (jv_as_int(a) < jv_as_int(b));
    if (jv_is_num(a) && jv_is_num(b))
        return (jv_as_float(a) > jv_as_float(b)) - (jv_as_float(a) < jv_as_float(b));
    if (a.kind == b.kind && a.kind == J_STR) return compare_str(a.s, b.s);
    if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE) && jv_step(r, 1) &&
        jv_enter(r)) {
        c = compare_lists(r, a.l, b.l, op);
        jv_leave(r);
        return c;
    }
    jv_fail(r, "'%s' not supported between instances of '%s' and '%s'", op, jv_type(a), jv_type(b));
    return 0;
}

bool jv_less(struct render *r, struct jval a, struct jval b)
{
    return jv_compare(r, a, b, "<") < 0;
}

/* ---- membership ---- */

/* Substrings, keys of dicts, else items by iteration. */
bool jv_contains(struct render *r, struct jval in, struct jval what)
{
    struct jiter it;
    struct jval v;

    switch (in.kind) {
    case J_STR:
        jv_step(r, in.s.n / 64);
        if (what.kind != J_STR)
            return jv_fail(r, "'in <string>' requires string as left operand, not %s",
                           jv_type(what)),
                   false;
        return str_find(in.s, what.s) >= 0;
    case J_DICT:
        if (!jv_hashable(what)) return jv_fail(r, "unhashable type: '%s'", jv_type(what)), false;
        return jdict_get(r, in.d, what) != NULL;
    default:
        if (!jiter_begin(r, &it, in)) return false;
        while (jiter_next(r, &it, &v))
            if (jv_equal(r, v, what)) return true;
        return false;
    }
}
