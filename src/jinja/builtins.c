/* builtins.c - binding of arguments, tests ("x is odd"), global functions.
 *
 * The tests are those of jinja2 3.1. The globals are jinja2's (without lipsum) and the two that
 * transformers adds: raise_exception and strftime_now. */
#include "jinja/builtins.h"

#include "jinja/iter.h"
#include "jinja/render.h"

#include <math.h>
#include <stdio.h>

/* ---- arguments ---- */

/* Stores one named argument at the parameter of its name. */
static bool bind_keyword(struct render *r, const struct jpair *kw, const char *what,
                         const char *const *names, struct jval *out)
{
    for (size_t i = 0; names[i]; i++) {
        if (!str_is(kw->key.s, names[i])) continue;
        if (jv_given(out[i]))
            return jv_fail(r, "%s got multiple values for argument '%s'", what, names[i]), false;
        out[i] = kw->value;
        return true;
    }
    jv_fail(r, "%s got an unexpected keyword argument '%.*s'", what,
            STR_ARG(str_take(kw->key.s, 60)));
    return false;
}

/* Positional arguments fill parameters in order; named ones may fill the rest, each parameter
 * once. */
bool jargs_bind(struct render *r, const struct jargs *a, const char *what, const char *const *names,
                size_t n_required, struct jval *out)
{
    size_t n = 0;

    /* Positional arguments first; the rest starts as missing. */
    for (; names[n]; n++) out[n] = n < a->n ? a->v[n] : jv_missing();
    if (a->n > n)
        return jv_fail(r, "%s takes at most %zu arguments (%zu given)", what, n, a->n), false;
    for (size_t i = 0; i < a->n_kw; i++)
        if (!bind_keyword(r, &a->kw[i], what, names, out)) return false;
    for (size_t i = 0; i < n_required; i++)
        if (!jv_given(out[i]))
            return jv_fail(r, "%s is missing the required argument '%s'", what, names[i]), false;
    return true;
}

const struct jval *jargs_keyword(const struct jargs *a, struct str name)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (str_eq(a->kw[i].key.s, name)) return &a->kw[i].value;
    return NULL;
}

/* bool is an integer in Python; float is not. */
bool jarg_int(struct render *r, struct jval v, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (!jv_given(v)) return true;
    if (jv_is_undef(v)) return jv_fail_undef(r, v), false;
    if (!jv_is_int(v))
        return jv_fail(r, "'%s' object cannot be interpreted as an integer", jv_type(v)), false;
    *out = jv_as_int(v);
    return true;
}

/* ---- tests ---- */

/* A test receives the value on its left and its arguments. */
#define TEST(name) \
    static struct jval test_##name(struct render *r, struct jval v, const struct jargs *a)
#define UNUSED (void)r, (void)v, (void)a

/* Comparisons and sameas take exactly one positional argument. */
static bool check_one_arg(struct render *r, const struct jargs *a, const char *what)
{
    if (a->n == 1 && !a->n_kw) return true;
    jv_fail(r, "the test %s takes one argument", what);
    return false;
}

/* Tests without arguments; arguments that are given are ignored. */
#define TEST_IF(name, condition)                                                           \
    static struct jval test_##name(struct render *r, struct jval v, const struct jargs *a) \
    {                                                                                      \
        UNUSED;                                                                            \
        return jv_bool(condition);                                                         \
    }
TEST_IF(defined, !jv_is_undef(v))
TEST_IF(undefined, jv_is_undef(v))
TEST_IF(none, v.kind == J_NONE)
TEST_IF(boolean, v.kind == J_BOOL)
TEST_IF(false, v.kind == J_BOOL && !v.b)
TEST_IF(is_true, v.kind == J_BOOL && v.b)
TEST_IF(integer, v.kind == J_INT)
TEST_IF(float, v.kind == J_FLOAT)
TEST_IF(number, jv_is_num(v))
TEST_IF(string, v.kind == J_STR)
TEST_IF(mapping, v.kind == J_DICT)
TEST_IF(iterable, jv_iterable(v))
TEST_IF(callable, jv_callable(v))
TEST_IF(escaped, v.kind == J_STR && v.flags & JV_MARKUP)
TEST_IF(filter, v.kind == J_STR && filter_find(v.s))
TEST_IF(test, v.kind == J_STR && test_find(v.s))

/* jinja2 tests for len() and __getitem__: true for str and dict too, and for an undefined value. */
TEST(sequence)
{
    UNUSED;
    return jv_bool(v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT ||
                   v.kind == J_RANGE || v.kind == J_UNDEF);
}

/* The tests lower and upper call a method of str. */
static struct jval test_by_method(struct render *r, struct jval v, const char *method)
{
    struct jargs none = { 0 };
    return value_call(r, attr_only(r, jv_str(jv_text(r, v)), str_c(method)), &none);
}

TEST(lower)
{
    UNUSED;
    return test_by_method(r, v, "islower");
}
TEST(upper)
{
    UNUSED;
    return test_by_method(r, v, "isupper");
}

static struct jval test_remainder(struct render *r, struct jval v, struct jval by, int64_t rest)
{
    return jv_bool(jv_equal(r, op_binary(r, "%", v, by), jv_int(rest)));
}

TEST(odd)
{
    UNUSED;
    return test_remainder(r, v, jv_int(2), 1);
}
TEST(even)
{
    UNUSED;
    return test_remainder(r, v, jv_int(2), 0);
}
/* x is divisibleby 3 */
TEST(divisibleby)
{
    static const char *const names[] = { "num", NULL };
    struct jval by;
    return jargs_bind(r, a, "divisibleby", names, 1, &by) ? test_remainder(r, v, by, 0) : v;
}

/* Tests that are an operator under another name: x is gt 3. */
#define COMPARING(name, op) \
    TEST(name) { return check_one_arg(r, a, op) ? jv_bool(op_compare(r, op, v, a->v[0])) : v; }
COMPARING(eq, "==")
COMPARING(ne, "!=")
COMPARING(gt, ">")
COMPARING(ge, ">=")
COMPARING(lt, "<")
COMPARING(le, "<=")
TEST(in) { return check_one_arg(r, a, "in") ? jv_bool(jv_contains(r, a->v[0], v)) : v; }
TEST(sameas) { return check_one_arg(r, a, "sameas") ? jv_bool(jv_same(v, a->v[0])) : v; }

/* Names and aliases of jinja2. */
static const struct jfilter tests[] = { { "odd", test_odd },
                                        { "even", test_even },
                                        { "divisibleby", test_divisibleby },
                                        { "defined", test_defined },
                                        { "undefined", test_undefined },
                                        { "filter", test_filter },
                                        { "test", test_test },
                                        { "none", test_none },
                                        { "boolean", test_boolean },
                                        { "false", test_false },
                                        { "true", test_is_true },
                                        { "integer", test_integer },
                                        { "float", test_float },
                                        { "lower", test_lower },
                                        { "upper", test_upper },
                                        { "string", test_string },
                                        { "mapping", test_mapping },
                                        { "number", test_number },
                                        { "sequence", test_sequence },
                                        { "iterable", test_iterable },
                                        { "callable", test_callable },
                                        { "sameas", test_sameas },
                                        { "escaped", test_escaped },
                                        { "in", test_in },
                                        { "==", test_eq },
                                        { "eq", test_eq },
                                        { "equalto", test_eq },
                                        { "!=", test_ne },
                                        { "ne", test_ne },
                                        { ">", test_gt },
                                        { "gt", test_gt },
                                        { "greaterthan", test_gt },
                                        { "ge", test_ge },
                                        { ">=", test_ge },
                                        { "<", test_lt },
                                        { "lt", test_lt },
                                        { "lessthan", test_lt },
                                        { "<=", test_le },
                                        { "le", test_le },
                                        { NULL, NULL } };

static const struct jfilter *find_filter_in(const struct jfilter *t, struct str name)
{
    for (; t->name; t++)
        if (str_is(name, t->name)) return t;
    return NULL;
}

const struct jfilter *test_find(struct str name) { return find_filter_in(tests, name); }

/* Searched while parsing, so a linear search does not matter; map and select also search while
 * rendering. */
const struct jfilter *filter_find(struct str name)
{
    const struct jfilter *f = find_filter_in(filters_misc, name);

    if (!f) f = find_filter_in(filters_seq, name);
    return f ? f : find_filter_in(filters_text, name);
}

bool test_true(struct render *r, const struct jfilter *test, struct jval v, const struct jargs *a)
{
    return jv_truth(r, test->call(r, v, a));
}

/* ---- functions ---- */

/* range(stop), range(start, stop[, step]). The sandbox limits the number of items. */
static struct jval call_range(struct render *r, const struct jargs *a)
{
    enum { MAX_RANGE = 100000 }; /* jinja2's sandbox: MAX_RANGE */
    struct jrange *g = jv_alloc(r, sizeof *g);
    int64_t v[3] = { 0, 0, 1 };

    if (a->n < 1 || a->n > 3 || a->n_kw)
        return jv_fail(r, "range expected 1 to 3 arguments, got %zu", a->n);
    for (size_t i = 0; i < a->n; i++)
        if (!jarg_int(r, a->v[i], 0, &v[i])) return jv_none();
    /* range(stop) */
    if (a->n == 1) v[1] = v[0], v[0] = 0;
    if (v[2] == 0) return jv_fail(r, "range() arg 3 must not be zero");
    if (!g) return jv_none();
    *g = (struct jrange){ v[0], v[1], v[2], 0 };
    /* 128 bits: the distance of two 64-bit integers does not overflow. */
    if (v[2] > 0 && v[0] < v[1])
        g->n =
            (size_t)(((unsigned __int128)v[1] - (unsigned __int128)v[0] - 1) / (uint64_t)v[2]) + 1;
    if (v[2] < 0 && v[0] > v[1])
        g->n = (size_t)(((unsigned __int128)v[0] - (unsigned __int128)v[1] - 1) /
                        (0 - (uint64_t)v[2])) +
               1;
    if (g->n > MAX_RANGE)
        return jv_fail(r, "Range too big. The sandbox blocks ranges larger than %d", MAX_RANGE);
    return (struct jval){ .kind = J_RANGE, .range = g };
}

/* dict(from): from a mapping, or from an iterable of pairs. */
static void put_pairs(struct render *r, struct jdict *d, struct jval from)
{
    struct jiter it;
    struct jval pair;

    /* Pairs of a mapping. */
    if (from.kind == J_DICT) {
        for (size_t i = 0; i < from.d->n; i++)
            jdict_put(r, d, from.d->e[i].key, from.d->e[i].value);
        return;
    }
    if (!jiter_begin(r, &it, from)) return;
    while (jiter_next(r, &it, &pair)) {
        struct jval two = jv_to_list(r, pair);
        if (jv_failed(r)) return;
        if (two.l->n != 2)
            jv_fail(r, "a dict is built from pairs, but an element has %zu items", two.l->n);
        else jdict_put(r, d, two.l->v[0], two.l->v[1]);
    }
}

/* dict(mapping_or_pairs, **kwargs) */
static struct jval call_dict(struct render *r, const struct jargs *a)
{
    struct jval d = jv_dict(r, 0);

    if (a->n > 1) return jv_fail(r, "dict expected at most 1 argument, got %zu", a->n);
    if (a->n && jv_is_undef(a->v[0])) return jv_fail_undef(r, a->v[0]);
    if (a->n) put_pairs(r, d.d, a->v[0]);
    for (size_t i = 0; i < a->n_kw; i++) jdict_put(r, d.d, a->kw[i].key, a->kw[i].value);
    return d;
}

/* namespace(...): a dict whose attributes can be set. It is the only way to carry a value out of a
 * loop's scope. */
static struct jval call_namespace(struct render *r, const struct jargs *a)
{
    struct jval v = call_dict(r, a);

    /* Shares the dict: a namespace is a dict that can change. */
    v.kind = v.kind == J_DICT ? J_NAMESPACE : v.kind;
    return v;
}

/* cycler(a, b, ...): next() returns the items in turn. */
static struct jval call_cycler(struct render *r, const struct jargs *a)
{
    struct jcycler *c = jv_alloc(r, sizeof *c);
    struct jval items = jv_tuple(r, a->n);

    if (a->n == 0) return jv_fail(r, "at least one item has to be provided");
    for (size_t i = 0; i < a->n; i++) jlist_push(r, items.l, a->v[i]);
    if (jv_failed(r)) return jv_none();
    c->items = items.l;
    return (struct jval){ .kind = J_CYCLER, .cycler = c };
}

/* joiner(sep): the first call returns "", every later one the separator. */
static struct jval call_joiner(struct render *r, const struct jargs *a)
{
    static const char *const names[] = { "sep", NULL };
    struct jcycler *c = jv_alloc(r, sizeof *c);
    struct jval items = jv_tuple(r, 1), sep;

    if (!jargs_bind(r, a, "joiner", names, 0, &sep)) return jv_none();
    jlist_push(r, items.l, jv_given(sep) ? sep : jv_str(STR(", ")));
    if (jv_failed(r)) return jv_none();
    c->items = items.l;
    return (struct jval){ .kind = J_JOINER, .cycler = c };
}

/* raise_exception(message) of transformers: the template refuses the conversation. The error code
 * tells callers apart from a fault of the template. */
static struct jval call_raise(struct render *r, const struct jargs *a)
{
    static const char *const names[] = { "message", NULL };
    struct jval message;

    if (!jargs_bind(r, a, "raise_exception", names, 1, &message)) return jv_none();
    /* The message is cut so that file, line and column fit into struct err too. */
    jv_fail(r, "%.*s", STR_ARG(str_take(jv_text(r, message), 380)));
    if (r->e->code == E_FORMAT)
        r->e->code = E_INVALID; /* the template refuses its input; it is not faulty */
    return jv_none();
}

/* strftime_now(format) of transformers. Results longer than 1023 bytes are empty, as strftime
 * defines. */
static struct jval call_strftime(struct render *r, const struct jargs *a)
{
    static const char *const names[] = { "format", NULL };
    char text[1024], *fmt;
    struct jval v;
    size_t n;

    if (!jargs_bind(r, a, "strftime_now", names, 1, &v)) return v;
    if (v.kind != J_STR) return jv_fail(r, "strftime_now() takes a str, not %s", jv_type(v));
    if (!(fmt = jv_alloc(r, v.s.n + 1))) return jv_none();
    memcpy(fmt, v.s.p, v.s.n);
    n = v.s.n ? strftime(text, sizeof text, fmt, &r->now) : 0;
    return jv_str(jv_copy_str(r, str_of(text, n)));
}

/* Globals are looked up when a scope is entered; variables of the caller hide them. */
const struct jfunc *global_find(struct str name)
{
    static const struct jfunc functions[] = {
        { "range", call_range },           { "dict", call_dict },
        { "namespace", call_namespace },   { "cycler", call_cycler },
        { "joiner", call_joiner },         { "raise_exception", call_raise },
        { "strftime_now", call_strftime },
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (str_is(name, functions[i].name)) return &functions[i];
    return NULL;
}
