/* attr.c - attributes, items and slices, by the rules of jinja2's ImmutableSandboxedEnvironment.
 *
 * x.name looks for an attribute first and an item second; x["name"] the other way round. Methods
 * that would change a list or dict, and names with double underscores, exist but are undefined:
 * using one is an error. */
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/render.h"

#include <ctype.h>

/* ---- methods of containers ---- */

/* keys(), values() and items() share this: they take no arguments and read the dict lazily. */
static struct jval make_view(struct render *r, struct jval self, const struct jargs *a,
                             enum jview_kind kind)
{
    struct jview *v = jv_alloc(r, sizeof *v);
    static const char *const none[] = { NULL };

    if (!v || !jargs_bind(r, a, "this method", none, 0, NULL)) return jv_none();
    *v = (struct jview){ kind, self.d };
    return (struct jval){ .kind = J_VIEW, .view = v };
}

static struct jval dict_items(struct render *r, struct jval self, const struct jargs *a)
{
    return make_view(r, self, a, VIEW_ITEMS);
}
static struct jval dict_keys(struct render *r, struct jval self, const struct jargs *a)
{
    return make_view(r, self, a, VIEW_KEYS);
}
static struct jval dict_values(struct render *r, struct jval self, const struct jargs *a)
{
    return make_view(r, self, a, VIEW_VALUES);
}

/* d.get(key, default=None). */
static struct jval dict_get(struct render *r, struct jval self, const struct jargs *a)
{
    const struct jval *v;

    if (a->n < 1 || a->n > 2 || a->n_kw)
        return jv_fail(r, "get expected 1 or 2 arguments, got %zu", a->n + a->n_kw);
    if (!jv_hashable(a->v[0])) return jv_fail(r, "unhashable type: '%s'", jv_type(a->v[0]));
    v = jdict_get(r, self.d, a->v[0]);
    return v ? *v : a->n == 2 ? a->v[1] : jv_none();
}

/* .copy() of a list or dict: values are immutable, so the value is its own copy. */
static struct jval copy_value(struct render *r, struct jval self, const struct jargs *a)
{
    (void)r, (void)a;
    return self;
}

/* Number of items that equal the argument. */
static struct jval list_count(struct render *r, struct jval self, const struct jargs *a)
{
    int64_t n = 0;

    if (a->n != 1) return jv_fail(r, "count() takes exactly one argument (%zu given)", a->n);
    for (size_t i = 0; i < self.l->n && jv_step(r, 1); i++) n += jv_equal(r, self.l->v[i], a->v[0]);
    return jv_int(n);
}

/* index(value, start, stop): the first index of an equal item; an error if there is none. */
static struct jval list_index(struct render *r, struct jval self, const struct jargs *a)
{
    int64_t from = 0, n = (int64_t)self.l->n, to = n;

    if (a->n < 1 || a->n > 3) return jv_fail(r, "index expected 1 to 3 arguments, got %zu", a->n);
    if (a->n > 1 && !jarg_int(r, a->v[1], 0, &from)) return jv_none();
    if (a->n > 2 && !jarg_int(r, a->v[2], n, &to)) return jv_none();
    /* Negative bounds count from the end. */
    if (from < 0 && (from += n) < 0) from = 0;
    if (to < 0) to += n;
    for (int64_t i = from; i < n && i < to && jv_step(r, 1); i++)
        if (jv_equal(r, self.l->v[i], a->v[0])) return jv_int(i);
    return jv_fail(r, "%.*s is not in list", STR_ARG(str_take(jv_repr(r, a->v[0]), 60)));
}

/* append() and pop(): only where the caller allows them (jinja_limits). */
static struct jval list_append(struct render *r, struct jval self, const struct jargs *a)
{
    if (a->n != 1 || a->n_kw)
        return jv_fail(r, "append() takes exactly one argument (%zu given)", a->n + a->n_kw);
    jlist_push(r, self.l, a->v[0]);
    return jv_none();
}

/* pop(index): the last item without an index. */
static struct jval list_pop(struct render *r, struct jval self, const struct jargs *a)
{
    struct jlist *l = self.l;
    int64_t at = -1;
    struct jval v;

    if (a->n > 1 || a->n_kw)
        return jv_fail(r, "pop expected at most 1 argument, got %zu", a->n + a->n_kw);
    if (a->n && !jarg_int(r, a->v[0], -1, &at)) return jv_none();
    if (!l->n) return jv_fail(r, "pop from empty list");
    if (at < 0) at += (int64_t)l->n;
    if (at < 0 || at >= (int64_t)l->n) return jv_fail(r, "pop index out of range");
    if (!jv_step(r, l->n - (size_t)at)) return jv_none();
    v = l->v[at];
    memmove(&l->v[at], &l->v[at + 1], (l->n - (size_t)at - 1) * sizeof v);
    l->n--;
    return v;
}

/* True for integers; for floats whether the value is finite and has no fraction. */
static struct jval float_is_integer(struct render *r, struct jval self, const struct jargs *a)
{
    (void)r, (void)a;
    return jv_bool(self.kind != J_FLOAT ||
                   (self.f - self.f == 0 && self.f == (double)(int64_t)self.f));
}

/* The current item; then advances. */
static struct jval cycler_next(struct render *r, struct jval self, const struct jargs *a)
{
    struct jcycler *c = self.cycler;
    struct jval v = c->items->v[c->at];

    (void)r, (void)a;
    c->at = (c->at + 1) % c->items->n;
    return v;
}

static struct jval cycler_reset(struct render *r, struct jval self, const struct jargs *a)
{
    (void)r, (void)a;
    self.cycler->at = 0;
    return jv_none();
}

/* Methods that templates may call, by type. Those that Python has but the sandbox refuses are in
 * is_unsafe. */
static const struct jmethod_def dict_methods[] = { { "items", dict_items },   { "keys", dict_keys },
                                                   { "values", dict_values }, { "get", dict_get },
                                                   { "copy", copy_value },    { NULL, NULL } };
static const struct jmethod_def list_methods[] = {
    { "count", list_count }, { "index", list_index }, { "copy", copy_value }, { NULL, NULL }
};
static const struct jmethod_def tuple_methods[] = { { "count", list_count },
                                                    { "index", list_index },
                                                    { NULL, NULL } };
static const struct jmethod_def number_methods[] = { { "is_integer", float_is_integer },
                                                     { NULL, NULL } };
static const struct jmethod_def cycler_methods[] = { { "next", cycler_next },
                                                     { "reset", cycler_reset },
                                                     { NULL, NULL } };

/* Whether the sandbox refuses the attribute: it changes the value, or is a Python internal. */
static bool is_unsafe(struct jval of, struct str name)
{
    static const char *const dict[] = { "clear", "pop", "popitem", "setdefault", "update", NULL };
    static const char *const list[] = { "append", "clear",  "pop",    "reverse", "insert",
                                        "sort",   "extend", "remove", NULL };
    const char *const *names = of.kind == J_DICT ? dict : of.kind == J_LIST ? list : NULL;

    /* Namespaces hold attributes of the template itself, so their names are free. */
    if (name.n > 4 && str_starts(name, STR("__")) && str_ends(name, STR("__")) &&
        of.kind != J_NAMESPACE)
        return true;
    for (; names && *names; names++)
        if (str_is(name, *names)) return true;
    return false;
}

static const struct jmethod_def *find_method_in(const struct jmethod_def *t, struct str name)
{
    for (; t->name; t++)
        if (str_is(name, t->name)) return t;
    return NULL;
}

/* The method of a value; NULL: its type has none of that name. */
static const struct jmethod_def *find_method(struct jval of, struct str name)
{
    const struct jmethod_def *m = NULL;

    switch (of.kind) {
    case J_STR:
        m = find_method_in(str_methods, name);
        if (!m) m = find_method_in(str_case_methods, name);
        if (!m) m = find_method_in(str_split_methods, name);
        return m;
    case J_DICT: return find_method_in(dict_methods, name);
    case J_LIST: return find_method_in(list_methods, name);
    case J_TUPLE: return find_method_in(tuple_methods, name);
    case J_FLOAT: return find_method_in(number_methods, name);
    case J_CYCLER: return find_method_in(cycler_methods, name);
    default: return NULL;
    }
}

/* ---- attributes ---- */

/* macro.arguments: the names of its parameters. */
static struct jval macro_arguments(struct render *r, const struct jmacro *m)
{
    struct jval t = jv_tuple(r, 4);

    for (const struct node *p = jmacro_node(m)->list2; p; p = p->next)
        jlist_push(r, t.l, jv_str(p->name));
    return t;
}

/* Attributes of jinja2's Macro object; false: no such attribute. */
static bool macro_attr(struct render *r, const struct jmacro *m, struct str name, struct jval *out)
{
    const struct node *n = jmacro_node(m);

    if (str_is(name, "name")) *out = n->name.p ? jv_str(n->name) : jv_none();
    else if (str_is(name, "arguments")) *out = macro_arguments(r, m);
    else if (str_is(name, "catch_kwargs")) *out = jv_bool(n->kwargs.slot >= 0);
    else if (str_is(name, "catch_varargs")) *out = jv_bool(n->varargs.slot >= 0);
    else if (str_is(name, "caller")) *out = jv_bool(n->caller.slot >= 0);
    else return false;
    return true;
}

static const struct jmethod_def changing_methods[] = { { "append", list_append },
                                                       { "pop", list_pop },
                                                       { NULL, NULL } };

/* Python's getattr(); false: there is no such attribute. An unsafe one exists and is undefined. */
static bool find_attr(struct render *r, struct jval of, struct str name, struct jval *out)
{
    const struct jmethod_def *def = find_method(of, name);
    const struct jval *v;

    if (r->change_lists && of.kind == J_LIST && !def) def = find_method_in(changing_methods, name);
    if (def) return *out = jv_method(r, of, def), true;
    if (is_unsafe(of, name)) {
        *out = jv_undef(r, "access to attribute '%.*s' of '%s' object is unsafe", STR_ARG(name),
                        jv_type(of));
        return true;
    }
    switch (of.kind) {
    case J_NAMESPACE:
        v = jdict_get_str(of.d, name);
        if (v) *out = *v;
        return v != NULL;
    case J_LOOP: return jloop_attr(r, of.loop, name, out);
    case J_MACRO: return macro_attr(r, of.macro, name, out);
    case J_TUPLE:
        /* Only tuples of groupby have named items. */
        if (!(of.flags & JV_GROUP) || of.l->n < 2) return false;
        if (str_is(name, "grouper")) return *out = of.l->v[0], true;
        if (str_is(name, "list")) return *out = of.l->v[1], true;
        return false;
    case J_CYCLER:
        if (!str_is(name, "current")) return false;
        return *out = of.cycler->items->v[of.cycler->at], true;
    case J_RANGE:
        if (str_is(name, "start")) return *out = jv_int(of.range->start), true;
        if (str_is(name, "stop")) return *out = jv_int(of.range->stop), true;
        if (str_is(name, "step")) return *out = jv_int(of.range->step), true;
        return false;
    default: return false;
    }
}

/* The undefined value that a missing attribute gives. Using it is the error, not asking for it. */
static struct jval make_no_attr(struct render *r, struct jval of, struct str name)
{
    return jv_undef(r, "'%s object' has no attribute '%.*s'", jv_type(of),
                    STR_ARG(str_take(name, 60)));
}

struct jval attr_only(struct render *r, struct jval of, struct str name)
{
    struct jval v;

    if (jv_is_undef(of)) return jv_fail_undef(r, of);
    return find_attr(r, of, name, &v) ? v : make_no_attr(r, of, name);
}

/* A missing attribute is tried as a key: message.role reads message["role"]. */
struct jval attr_get(struct render *r, struct jval of, struct str name)
{
    const struct jval *item;
    struct jval v;

    if (jv_is_undef(of)) return jv_fail_undef(r, of);
    if (find_attr(r, of, name, &v)) return v;
    /* Attributes win over keys: {"items": 1}.items is the method. */
    item = of.kind == J_DICT ? jdict_get(r, of.d, jv_str(name)) : NULL;
    return item ? *item : make_no_attr(r, of, name);
}

/* ---- items ---- */

size_t text_offset(struct str s, size_t n)
{
    size_t i = 0;

    for (; i < s.n && n > 0; n--) {
        int32_t cp;
        i += (size_t)utf8_next(str_skip(s, i), &cp);
    }
    return i;
}

/* The i-th character of a str. Linear in the length, which is charged as steps. */
static struct jval char_at(struct render *r, struct jval of, int64_t i)
{
    struct str rest = str_skip(of.s, text_offset(of.s, (size_t)i));
    struct jval v = jv_str(str_take(rest, text_offset(rest, 1)));

    jv_step(r, of.s.n / 64);
    v.flags = of.flags & JV_MARKUP;
    return v;
}

/* of[i] of a sequence; false: there is no such item. */
static bool item_at(struct render *r, struct jval of, int64_t i, struct jval *out)
{
    size_t n;

    if (of.kind != J_STR && of.kind != J_LIST && of.kind != J_TUPLE && of.kind != J_RANGE)
        return false;
    jv_len(r, of, &n);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n) return false;
    if (of.kind == J_STR) *out = char_at(r, of, i);
    else if (of.kind == J_RANGE) *out = jv_int(of.range->start + i * of.range->step);
    else *out = of.l->v[i];
    return true;
}

/* Keys that are unhashable or out of range give an undefined value, as in jinja2, not an error. */
struct jval attr_item(struct render *r, struct jval of, struct jval key)
{
    const struct jval *item;
    struct jval v;

    if (jv_is_undef(of)) return jv_fail_undef(r, of);
    /* Items win over attributes: {"items": 1}["items"] is 1. */
    if (of.kind == J_DICT && jv_hashable(key) && (item = jdict_get(r, of.d, key))) return *item;
    /* A bool is an integer here too: list[true] is list[1]. */
    if (jv_is_int(key) && item_at(r, of, jv_as_int(key), &v)) return v;
    if (key.kind == J_STR) return find_attr(r, of, key.s, &v) ? v : make_no_attr(r, of, key.s);
    return jv_undef(r, "'%s object' has no element %.*s", jv_type(of),
                    STR_ARG(str_take(jv_repr(r, key), 60)));
}

static bool is_all_digits(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!isdigit((unsigned char)s.p[i])) return false;
    return s.n > 0 && s.n < 19;
}

/* Parts that are decimal digits are integer indexes. */
struct jval attr_path(struct render *r, struct jval of, struct jval path, struct jval fallback)
{
    struct str rest = path.s;

    if (!jv_some(path)) return of;
    if (path.kind != J_STR) {
        of = attr_item(r, of, path);
        return jv_is_undef(of) && jv_some(fallback) ? fallback : of;
    }
    for (;;) {
        ptrdiff_t dot = str_find(rest, STR("."));
        struct str part = dot < 0 ? rest : str_take(rest, (size_t)dot);
        int64_t i;
        of = attr_item(r, of,
                       is_all_digits(part) && str_to_i64(part, &i) ? jv_int(i) : jv_str(part));
        if (jv_is_undef(of) && jv_some(fallback)) of = fallback;
        if (dot < 0 || jv_failed(r)) return of;
        rest = str_skip(rest, (size_t)dot + 1);
    }
}

/* ---- slices ---- */

/* A bound of a slice as an index of a sequence of n items; `fallback`: where it is left out. */
static bool clamp_bound(struct render *r, struct jval v, int64_t n, int64_t step, int64_t fallback,
                        int64_t *out)
{
    *out = fallback;
    if (!jv_some(v)) return true;
    if (jv_is_undef(v)) return jv_fail_undef(r, v), false;
    if (!jv_is_int(v)) return jv_fail(r, "slice indices must be integers or None"), false;
    *out = jv_as_int(v);
    if (*out < 0 && (*out += n) < 0) *out = step < 0 ? -1 : 0;
    if (*out >= n) *out = step < 0 ? n - 1 : n;
    return true;
}

/* A step of 1 shares the bytes of the text; other steps copy characters. */
static struct jval slice_str(struct render *r, struct jval of, int64_t from, int64_t step,
                             size_t count)
{
    struct jtext t = { .r = r };
    struct jval chars, out;

    /* The common case shares the bytes. */
    if (step == 1) {
        struct str rest = str_skip(of.s, text_offset(of.s, (size_t)from));
        out = jv_str(str_take(rest, text_offset(rest, count)));
    } else {
        chars = jv_to_list(r, of);
        for (size_t i = 0; i < count && !jv_failed(r); i++)
            jtext_add(&t, chars.l->v[from + (int64_t)i * step].s);
        out = jtext_done(&t);
    }
    jv_step(r, of.s.n / 64);
    out.flags = of.flags & JV_MARKUP;
    return out;
}

/* A slice of a range is a range. */
static struct jval slice_range(struct render *r, const struct jrange *of, int64_t from, int64_t to,
                               int64_t step, size_t count)
{
    struct jrange *g = jv_alloc(r, sizeof *g);

    if (!g) return jv_none();
    g->start = of->start + from * of->step;
    g->step = of->step * step;
    g->stop = of->start + to * of->step;
    g->n = count;
    return (struct jval){ .kind = J_RANGE, .range = g };
}

/* of[from:to:step] of a str, list, tuple or range. Bounds are clamped, as in Python. */
struct jval attr_slice(struct render *r, struct jval of, struct jval from, struct jval to,
                       struct jval step)
{
    int64_t by = 1, begin, end, n;
    struct jval out;
    size_t len, count = 0;

    if (jv_is_undef(of)) return jv_fail_undef(r, of);
    if (of.kind == J_DICT) return jv_fail(r, "unhashable type: 'slice'");
    if (of.kind != J_STR && of.kind != J_LIST && of.kind != J_TUPLE && of.kind != J_RANGE)
        return jv_fail(r, "'%s' object is not subscriptable", jv_type(of));
    jv_len(r, of, &len);
    n = (int64_t)len;
    if (jv_some(step) && !jarg_int(r, step, 1, &by)) return of;
    if (by == 0) return jv_fail(r, "slice step cannot be zero");
    /* No sequence is so long that a larger step would differ; negating and adding cannot overflow. */
    if (by < -(INT64_C(1) << 60)) by = -(INT64_C(1) << 60);
    if (by > INT64_C(1) << 60) by = INT64_C(1) << 60;
    if (!clamp_bound(r, from, n, by, by < 0 ? n - 1 : 0, &begin) ||
        !clamp_bound(r, to, n, by, by < 0 ? -1 : n, &end))
        return of;
    if (by > 0 && begin < end) count = (size_t)((end - begin - 1) / by + 1);
    if (by < 0 && begin > end) count = (size_t)((begin - end - 1) / -by + 1);
    if (of.kind == J_STR) return slice_str(r, of, begin, by, count);
    if (of.kind == J_RANGE) return slice_range(r, of.range, begin, end, by, count);
    out = of.kind == J_LIST ? jv_list(r, count) : jv_tuple(r, count);
    for (size_t i = 0; i < count; i++) jlist_push(r, out.l, of.l->v[begin + (int64_t)i * by]);
    jv_step(r, count / 8);
    return out;
}
