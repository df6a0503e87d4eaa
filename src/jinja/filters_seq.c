/* filters_seq.c - filters over sequences: ends, sorting, grouping, generators.
 *
 * map, select, reject, unique, batch, slice and items are generators, as in jinja2: an item is
 * computed when it is read, and errors in it occur then. Sorting is stable. */
#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/render.h"

/* A filter receives the value on its left and its arguments. */
#define FILTER(name) \
    static struct jval f_##name(struct render *r, struct jval v, const struct jargs *a)

/* For filters without parameters. */
static bool check_no_args(struct render *r, const struct jargs *a, const char *what)
{
    if (a->n + a->n_kw == 0) return true;
    jv_fail(r, "the filter %s takes no arguments", what);
    return false;
}

/* Sorting and comparing ignore the case of str unless case_sensitive is set. */
static struct jval fold_case(struct render *r, struct jval v)
{
    return v.kind == J_STR ? text_lower(r, v.s) : v;
}

/* A boolean argument that is off where it is not given. */
static bool is_set(struct render *r, struct jval v) { return jv_given(v) && jv_truth(r, v); }

/* ---- ends ---- */

/* The first item; undefined if there is none. */
FILTER(first)
{
    struct jiter it;
    struct jval item;

    if (!check_no_args(r, a, "first") || !jiter_begin(r, &it, v)) return v;
    return jiter_next(r, &it, &item) ? item : jv_undef(r, "No first item, sequence was empty.");
}

/* The last item; needs a reversible type, so not a generator. */
FILTER(last)
{
    struct jval none = jv_undef(r, "No last item, sequence was empty."), item;
    struct jiter it;
    bool can;

    if (!check_no_args(r, a, "last")) return v;
    if (jv_is_undef(v)) return none;
    if (v.kind == J_STR) return v.s.n ? attr_item(r, v, jv_int(-1)) : none;
    v = jv_reversed(r, v, &can);
    if (!can) return jv_fail(r, "'%s' object is not reversible", jv_type(v));
    jiter_begin(r, &it, v);
    return jiter_next(r, &it, &item) ? item : none;
}

/* A random item; the only result that is not the same on every rendering. */
FILTER(random)
{
    struct jval none = jv_undef(r, "No random item, sequence was empty.");
    size_t n;

    if (!check_no_args(r, a, "random") || !jv_len(r, v, &n)) return v;
    if (n == 0) return none;
    r->random_state = r->random_state * 6364136223846793005u + 1442695040888963407u;
    return attr_item(r, v, jv_int((int64_t)((r->random_state >> 33) % n)));
}

/* len(value), also count. */
FILTER(length)
{
    size_t n;
    return check_no_args(r, a, "length") && jv_len(r, v, &n) ? jv_int((int64_t)n) : v;
}

/* A list of all items; of a str its characters. */
FILTER(list) { return check_no_args(r, a, "list") ? jv_to_list(r, v) : v; }

/* A str is reversed to a str, other types to an iterator or a list. */
FILTER(reverse)
{
    struct jval list;
    bool can;

    if (!check_no_args(r, a, "reverse")) return v;
    if (v.kind == J_STR) return attr_slice(r, v, jv_none(), jv_none(), jv_int(-1));
    list = jv_reversed(r, v, &can);
    if (can) return list;
    list = jv_to_list(r, v);
    return attr_slice(r, list, jv_none(), jv_none(), jv_int(-1));
}

/* join(d='', attribute=None): str() of the items, or of an attribute of them. */
FILTER(join)
{
    static const char *const names[] = { "d", "attribute", NULL };
    struct jtext t = { .r = r };
    struct jval arg[2], item;
    struct jiter it;
    struct str between = STR("");

    if (!jargs_bind(r, a, "join", names, 0, arg) || !jiter_begin(r, &it, v)) return v;
    if (jv_given(arg[0])) between = jv_text(r, arg[0]);
    for (bool first = true; jiter_next(r, &it, &item); first = false) {
        if (!first) jtext_add(&t, between);
        jtext_put_value(&t, attr_path(r, item, arg[1], jv_none()));
    }
    return jtext_done(&t);
}

/* ---- sorting ---- */

/* An item with its sort key. */
struct keyed {
    struct jval key, value;
};

/* Merges the sorted halves of v. Of equal keys the left one comes first, also with reverse: the
 * order is stable in both directions. */
static void merge_runs(struct render *r, struct keyed *v, struct keyed *tmp, size_t mid, size_t n,
                       bool reverse)
{
    size_t i = 0, j = mid;

    for (size_t k = 0; k < n; k++) {
        /* Takes the left item unless the right one must come first: this keeps equal items in
         * order. */
        bool right = i == mid;
        if (!right && j < n)
            right = reverse ? jv_less(r, v[i].key, v[j].key) : jv_less(r, v[j].key, v[i].key);
        tmp[k] = right ? v[j++] : v[i++];
    }
    memcpy(v, tmp, n * sizeof *v);
}

/* Merge sort of v, with tmp as scratch memory of the same size. */
static void merge_sort(struct render *r, struct keyed *v, struct keyed *tmp, size_t n, bool reverse)
{
    if (n < 2 || !jv_step(r, n / 8 + 1)) return;
    merge_sort(r, v, tmp, n / 2, reverse);
    merge_sort(r, v + n / 2, tmp, n - n / 2, reverse);
    merge_runs(r, v, tmp, n / 2, n, reverse);
}

/* A new list: the items of list in the order of their keys, one of which keys has for each. */
static struct jval sort_by_keys(struct render *r, struct jval list, struct jval keys, bool reverse)
{
    struct jval out = jv_list(r, list.l->n);
    size_t n = list.l->n;
    struct keyed *v;

    /* Items and scratch memory in one array. */
    if (jv_failed(r) || !(v = jv_array(r, 2 * n, sizeof *v))) return out;
    for (size_t i = 0; i < n; i++) v[i] = (struct keyed){ keys.l->v[i], list.l->v[i] };
    merge_sort(r, v, v + n, n, reverse);
    for (size_t i = 0; i < n; i++) jlist_push(r, out.l, v[i].value);
    return out;
}

/* The values of several attributes, "a,b.c", as a list. */
static struct jval make_sort_key(struct render *r, struct jval item, struct jval attr,
                                 bool case_sensitive)
{
    struct jval key = jv_list(r, 1), part = attr;
    struct str rest = attr.s;

    for (;;) {
        ptrdiff_t comma = attr.kind == J_STR ? str_find(rest, STR(",")) : -1;
        struct jval v;
        if (attr.kind == J_STR) part = jv_str(comma < 0 ? rest : str_take(rest, (size_t)comma));
        v = attr_path(r, item, part, jv_none());
        jlist_push(r, key.l, case_sensitive ? v : fold_case(r, v));
        if (comma < 0 || jv_failed(r)) return key;
        rest = str_skip(rest, (size_t)comma + 1);
    }
}

/* sort(reverse=false, case_sensitive=false, attribute=None): a new list. Items without an order
 * are an error. */
FILTER(sort)
{
    static const char *const names[] = { "reverse", "case_sensitive", "attribute", NULL };
    struct jval arg[3], list, keys;

    if (!jargs_bind(r, a, "sort", names, 0, arg)) return v;
    list = jv_to_list(r, v);
    keys = jv_list(r, list.l->n);
    if (!jv_given(arg[2])) arg[2] = jv_none();
    for (size_t i = 0; i < list.l->n; i++)
        jlist_push(r, keys.l, make_sort_key(r, list.l->v[i], arg[2], is_set(r, arg[1])));
    return sort_by_keys(r, list, keys, is_set(r, arg[0]));
}

/* dictsort(case_sensitive=false, by='key', reverse=false): a list of (key, value) tuples. */
FILTER(dictsort)
{
    static const char *const names[] = { "case_sensitive", "by", "reverse", NULL };
    struct jval arg[3], list, keys;
    bool by_value;

    if (!jargs_bind(r, a, "dictsort", names, 0, arg)) return v;
    by_value = jv_given(arg[1]) && arg[1].kind == J_STR && str_is(arg[1].s, "value");
    if (jv_given(arg[1]) && !by_value && !(arg[1].kind == J_STR && str_is(arg[1].s, "key")))
        return jv_fail(r, "You can only sort by either \"key\" or \"value\"");
    if (jv_is_undef(v)) return jv_fail_undef(r, v);
    if (v.kind != J_DICT) return jv_fail(r, "'%s' object has no attribute 'items'", jv_type(v));
    list = jv_list(r, v.d->n);
    keys = jv_list(r, v.d->n);
    for (size_t i = 0; i < v.d->n; i++) {
        struct jval key = by_value ? v.d->e[i].value : v.d->e[i].key;
        jlist_push(r, list.l, jv_tuple2(r, v.d->e[i].key, v.d->e[i].value));
        jlist_push(r, keys.l, is_set(r, arg[0]) ? key : fold_case(r, key));
    }
    return sort_by_keys(r, list, keys, is_set(r, arg[2]));
}

/* groupby(attribute, default=None, case_sensitive=false): sorts by the attribute, then a list of
 * (grouper, list) tuples. */
FILTER(groupby)
{
    static const char *const names[] = { "attribute", "default", "case_sensitive", NULL };
    struct jval arg[3], list, keys, sorted_keys, out, group = jv_none(), pair;
    bool exact;

    if (!jargs_bind(r, a, "groupby", names, 1, arg)) return v;
    exact = is_set(r, arg[2]);
    list = jv_to_list(r, v);
    keys = jv_list(r, list.l->n);
    for (size_t i = 0; i < list.l->n; i++) {
        struct jval key = attr_path(r, list.l->v[i], arg[0], arg[1]);
        jlist_push(r, keys.l, exact ? key : fold_case(r, key));
    }
    list = sort_by_keys(r, list, keys, false);
    sorted_keys = sort_by_keys(r, keys, keys, false);
    out = jv_list(r, 8);
    for (size_t i = 0; i < list.l->n && !jv_failed(r); i++) {
        if (i == 0 || !jv_equal(r, sorted_keys.l->v[i], sorted_keys.l->v[i - 1])) {
            group = jv_list(r, 4); /* filled after it is in the pair: they share it */
            pair = exact ? sorted_keys.l->v[i] : attr_path(r, list.l->v[i], arg[0], arg[1]);
            pair = jv_tuple2(r, pair, group);
            pair.flags = JV_GROUP;
            jlist_push(r, out.l, pair);
        }
        jlist_push(r, group.l, list.l->v[i]);
    }
    return out;
}

/* min and max: (case_sensitive=false, attribute=None). The first of equal items; undefined if
 * there is none. */
static struct jval find_extreme(struct render *r, struct jval v, const struct jargs *a, bool max)
{
    static const char *const names[] = { "case_sensitive", "attribute", NULL };
    struct jval arg[2], item, best = jv_missing(), best_key = best;
    struct jiter it;

    if (!jargs_bind(r, a, max ? "max" : "min", names, 0, arg) || !jiter_begin(r, &it, v)) return v;
    while (jiter_next(r, &it, &item)) {
        struct jval key = attr_path(r, item, arg[1], jv_none());
        if (!is_set(r, arg[0])) key = fold_case(r, key);
        if (best.kind != J_MISSING &&
            !(max ? jv_compare(r, key, best_key, ">") > 0 : jv_compare(r, key, best_key, "<") < 0))
            continue;
        best = item;
        best_key = key;
    }
    return best.kind == J_MISSING ? jv_undef(r, "No aggregated item, sequence was empty.") : best;
}

FILTER(min) { return find_extreme(r, v, a, false); }
FILTER(max) { return find_extreme(r, v, a, true); }

/* sum(attribute=None, start=0) */
FILTER(sum)
{
    static const char *const names[] = { "attribute", "start", NULL };
    struct jval arg[2], item, sum;
    struct jiter it;

    if (!jargs_bind(r, a, "sum", names, 0, arg) || !jiter_begin(r, &it, v)) return v;
    sum = jv_given(arg[1]) ? arg[1] : jv_int(0);
    if (sum.kind == J_STR) return jv_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    while (jiter_next(r, &it, &item)) sum = op_add(r, sum, attr_path(r, item, arg[0], jv_none()));
    return sum;
}

/* ---- generators ---- */

/* The arguments from the positional index `from` on. */
static struct jargs args_from(const struct jargs *a, size_t from)
{
    struct jargs rest = *a;

    if (from >= rest.n) return rest.n = 0, rest;
    rest.v += from;
    rest.n -= from;
    return rest;
}

/* map(filter, *args) applies a filter, map(attribute=path, default=None) reads an attribute. An
 * empty input is not iterated, as in jinja2. */
static bool next_map(struct render *r, struct jiter *it, struct jval *out)
{
    const struct jval *attr = it->args->n ? NULL : jargs_keyword(it->args, STR("attribute")),
                      *fallback = jargs_keyword(it->args, STR("default"));
    struct jargs rest = args_from(it->args, 1);
    const struct jfilter *f;
    struct jval name;

    if (!it->begun && !jv_truth(r, it->src0)) return false;
    it->begun = true;
    if (attr && it->args->n_kw > (fallback ? 2u : 1u))
        return jv_fail(r, "map got an unexpected keyword argument"), false;
    if (!attr && !it->args->n) return jv_fail(r, "map requires a filter argument"), false;
    if (!jiter_source(r, it, out)) return false;
    if (attr) {
        *out = attr_path(r, *out, *attr, fallback ? *fallback : jv_none());
        return true;
    }
    name = it->args->v[0];
    f = name.kind == J_STR ? filter_find(name.s) : NULL;
    if (!f)
        return jv_fail(r, "No filter named %.*s", STR_ARG(str_take(jv_repr(r, name), 60))), false;
    *out = f->call(r, *out, &rest);
    return true;
}

/* Whether select, reject and their variants by attribute keep the item. */
static bool is_selected(struct render *r, struct jiter *it, struct jval item)
{
    struct jargs rest = args_from(it->args, it->by_attr ? 2 : 1);
    const struct jfilter *test;
    struct jval name;

    if (it->by_attr) item = attr_path(r, item, it->args->v[0], jv_none());
    if (it->args->n <= it->by_attr) return jv_truth(r, item) != it->negated;
    name = it->args->v[it->by_attr];
    test = name.kind == J_STR ? test_find(name.s) : NULL;
    if (!test)
        return jv_fail(r, "No test named %.*s", STR_ARG(str_take(jv_repr(r, name), 60))), false;
    return test_true(r, test, item, &rest) != it->negated;
}

/* The next item that the test keeps. */
static bool next_select(struct render *r, struct jiter *it, struct jval *out)
{
    if (!it->begun && !jv_truth(r, it->src0)) return false;
    it->begun = true;
    if (it->by_attr && !it->args->n)
        return jv_fail(r, "Missing parameter for attribute name"), false;
    while (jiter_source(r, it, out)) {
        if (is_selected(r, it, *out)) return true;
        if (jv_failed(r)) return false;
    }
    return false;
}

/* select, reject: (test, *args); selectattr, rejectattr: (attribute, test, *args). Without a test
 * the truth of the value decides. */
static struct jval make_select(struct render *r, struct jval v, const struct jargs *a, bool negated,
                               bool by_attr)
{
    struct jval g = jiter_new(r, next_select, v, a);

    if (g.kind != J_ITER) return g;
    g.iter->negated = negated;
    g.iter->by_attr = by_attr;
    return g;
}

FILTER(map) { return jiter_new(r, next_map, v, a); }
FILTER(select) { return make_select(r, v, a, false, false); }
FILTER(reject) { return make_select(r, v, a, true, false); }
FILTER(selectattr) { return make_select(r, v, a, false, true); }
FILTER(rejectattr) { return make_select(r, v, a, true, true); }

/* unique(case_sensitive=false, attribute=None): the first item of each key, in order. */
static bool next_unique(struct render *r, struct jiter *it, struct jval *out)
{
    static const char *const names[] = { "case_sensitive", "attribute", NULL };
    struct jval arg[2], key;

    if (!jargs_bind(r, it->args, "unique", names, 0, arg)) return false;
    if (!it->begun) it->src = jv_list(r, 8); /* the keys so far */
    it->begun = true;
    while (jiter_source(r, it, out)) {
        key = attr_path(r, *out, arg[1], jv_none());
        if (!is_set(r, arg[0])) key = fold_case(r, key);
        if (!jv_hashable(key)) return jv_fail(r, "unhashable type: '%s'", jv_type(key)), false;
        jv_step(r, it->src.l->n / 4);
        if (jv_contains(r, it->src, key)) continue;
        jlist_push(r, it->src.l, key);
        return true;
    }
    return false;
}

FILTER(unique) { return jiter_new(r, next_unique, v, a); }

/* batch(linecount, fill_with=None): lists of linecount items; fill_with completes the last one. */
static bool next_batch(struct render *r, struct jiter *it, struct jval *out)
{
    static const char *const names[] = { "linecount", "fill_with", NULL };
    struct jval arg[2], item;
    int64_t n;

    if (!jargs_bind(r, it->args, "batch", names, 1, arg) || !jarg_int(r, arg[0], 1, &n))
        return false;
    *out = jv_list(r, 8);
    if (it->begun) jlist_push(r, out->l, it->src); /* the item that ended the last batch */
    it->begun = false;
    while (jiter_source(r, it, &item)) {
        if ((int64_t)out->l->n == n) {
            /* One item too many was read: it begins the next batch. */
            it->src = item;
            it->begun = true;
            return true;
        }
        jlist_push(r, out->l, item);
    }
    if (out->l->n == 0) return false;
    while (jv_some(arg[1]) && (int64_t)out->l->n < n && jv_step(r, 1))
        jlist_push(r, out->l, arg[1]);
    return true;
}

FILTER(batch) { return jiter_new(r, next_batch, v, a); }

/* slice(slices, fill_with=None): the given number of lists; the first ones get the remainder,
 * fill_with evens out the others. */
static bool next_slice(struct render *r, struct jiter *it, struct jval *out)
{
    static const char *const names[] = { "slices", "fill_with", NULL };
    struct jval arg[2];
    int64_t slices, n, k = (int64_t)it->at, extra, from, to;

    if (!jargs_bind(r, it->args, "slice", names, 1, arg) || !jarg_int(r, arg[0], 1, &slices))
        return false;
    if (!it->begun) it->src = jv_to_list(r, it->src0);
    it->begun = true;
    n = (int64_t)it->src.l->n;
    if (slices == 0) return jv_fail(r, "integer division or modulo by zero"), false;
    if (k >= slices) return false;
    /* The first `extra` slices have one item more. */
    extra = n % slices;
    from = k * (n / slices) + (k < extra ? k : extra);
    to = from + n / slices + (k < extra);
    *out = attr_slice(r, it->src, jv_int(from), jv_int(to), jv_none());
    if (jv_some(arg[1]) && k >= extra) jlist_push(r, out->l, arg[1]);
    it->at++;
    return true;
}

FILTER(slice) { return jiter_new(r, next_slice, v, a); }

/* items: (key, value) tuples of a mapping; nothing of an undefined value. */
static bool next_pair(struct render *r, struct jiter *it, struct jval *out)
{
    if (jv_is_undef(it->src0)) return false;
    if (it->src0.kind != J_DICT)
        return jv_fail(r, "Can only get item pairs from a mapping."), false;
    if (it->at >= it->src0.d->n) return false;
    *out = jv_tuple2(r, it->src0.d->e[it->at].key, it->src0.d->e[it->at].value);
    it->at++;
    return true;
}

FILTER(items) { return check_no_args(r, a, "items") ? jiter_new(r, next_pair, v, a) : v; }

/* Names and aliases of jinja2. */
const struct jfilter filters_seq[] = { { "first", f_first },
                                       { "last", f_last },
                                       { "random", f_random },
                                       { "length", f_length },
                                       { "count", f_length },
                                       { "list", f_list },
                                       { "reverse", f_reverse },
                                       { "join", f_join },
                                       { "sort", f_sort },
                                       { "dictsort", f_dictsort },
                                       { "groupby", f_groupby },
                                       { "min", f_min },
                                       { "max", f_max },
                                       { "sum", f_sum },
                                       { "map", f_map },
                                       { "select", f_select },
                                       { "reject", f_reject },
                                       { "selectattr", f_selectattr },
                                       { "rejectattr", f_rejectattr },
                                       { "unique", f_unique },
                                       { "batch", f_batch },
                                       { "slice", f_slice },
                                       { "items", f_items },
                                       { NULL, NULL } };
