/* schema_array.c - arrays of a schema: lists, tuples, and arrays without equal items.
 *
 * No finite automaton can tell whether an item was there before. uniqueItems is enforced in three
 * cases: of a few possible values each is used once, with a rule for each set of used values;
 * strings of one array begin with different letters, in alphabetical order; and arrays of at most
 * one item need nothing. Other cases are refused. */
#include "grammar/schema_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

enum {
    MAX_UNIQUE = 9, /* different values, which take up to 2^9 rules */
    MAX_TUPLE = 200 /* items with a schema of their own */
};

struct array_shape {
    struct count_bounds n; /* items */
    int n_first;           /* items that have a schema of their own */
    bool unique;
};

/* The schemas of the first items: "prefixItems", or "items" as a list in older drafts. NULL: none. */
static const json_t *get_first_items(const json_t *s)
{
    const json_t *v = json_object_get(s, "prefixItems");

    if (!v) v = json_object_get(s, "items");
    return json_is_array(v) ? v : NULL;
}

/* The schema of the other items. */
static const json_t *get_rest_items(const json_t *s)
{
    const json_t *v = json_object_get(s, "items");
    return json_is_array(v) ? json_object_get(s, "additionalItems") : v;
}

/* The schemas of all parts for item i. closed: without one, the item may not be there. false: it
 * may not be there. */
static bool find_item_schemas(struct schema_build *x, const struct conjunction *p, int i,
                              bool closed, struct conjunction *out)
{
    bool found = false;
    char at[32];

    out->n = 0;
    for (int k = 0; k < p->n; k++) {
        const json_t *first = get_first_items(p->p[k].s), *rest = get_rest_items(p->p[k].s);
        snprintf(at, sizeof at, "prefixItems/%d", i);
        if (first && i < (int)json_array_size(first)) {
            conjunction_add(x, out, json_array_get(first, (size_t)i),
                            schema_extend_path(x, p->p[k].path, at));
            found = true;
        } else if (rest) {
            conjunction_add(x, out, rest, schema_extend_path(x, p->p[k].path, "items"));
            found = true;
        }
    }
    for (int k = 0; k < out->n; k++)
        if (json_is_false(out->p[k].s)) return false;
    return x->rc == OK && (found || !closed);
}

/* The keywords of all parts, merged. */
static struct array_shape read_shape(struct schema_build *x, const struct conjunction *p)
{
    struct array_shape a = { .n = schema_read_bounds(x, p, "minItems", "maxItems", 0) };

    for (int i = 0; i < p->n; i++) {
        const struct subschema *s = &p->p[i];
        const json_t *first = get_first_items(s->s), *unique = json_object_get(s->s, "uniqueItems");
        if (first && (int)json_array_size(first) > a.n_first)
            a.n_first = (int)json_array_size(first);
        if (unique && !json_is_boolean(unique))
            schema_fail(x, s->path, "'uniqueItems' must be true or false");
        a.unique |= json_is_true(unique);
        if (a.n_first > MAX_TUPLE)
            schema_fail(x, s->path, "more than %d items have a schema of their own", MAX_TUPLE);
    }
    return a;
}

/* The separator of items. */
static struct rule_node *make_comma(struct schema_build *x)
{
    return RULES_SEQ(x->g, rules_text(x->g, ","), schema_make_space(x));
}

/* min to max items with commas between. first: there is no item before them, so no comma either. */
static struct rule_node *make_items(struct schema_build *x, struct rule_node *item, int min,
                                    int max, bool first)
{
    struct rules *g = x->g;
    struct rule_node *more;

    if (max == 0) return rules_node(g, NODE_EMPTY);
    if (!first) return rules_repeat(g, RULES_SEQ(g, make_comma(x), item), min, max);
    more = rules_repeat(g, RULES_SEQ(g, make_comma(x), item), min > 0 ? min - 1 : 0,
                        max == RULES_UNBOUNDED ? max : max - 1);
    return rules_repeat(g, RULES_SEQ(g, item, more), min > 0, 1);
}

/* Items from number i on. Each is nested in the optional part after the one before it. */
static struct rule_node *make_tuple_from(struct schema_build *x, const struct conjunction *p,
                                         const struct array_shape *a, int i)
{
    struct rules *g = x->g;
    struct conjunction item;
    struct rule_node *n;

    if (a->n.max != RULES_UNBOUNDED && i >= a->n.max) return rules_node(g, NODE_EMPTY);
    if (!find_item_schemas(x, p, i, i >= a->n_first && a->n_first > 0, &item))
        return rules_node(g, i < a->n.min ? NODE_NEVER : NODE_EMPTY);
    n = schema_make_ref(x, &item);
    if (i >= a->n_first)
        return make_items(x, n, a->n.min > i ? a->n.min - i : 0,
                          a->n.max == RULES_UNBOUNDED ? a->n.max : a->n.max - i, i == 0);
    n = RULES_SEQ(g, i ? make_comma(x) : NULL, n, make_tuple_from(x, p, a, i + 1));
    return rules_repeat(g, n, i < a->n.min, 1);
}

/* The items that can follow when the values in the bit set `used` are there: a rule for each set. */
static struct rule_node *make_unique_from(struct schema_build *x, struct rule_node *const *values,
                                          int n, const struct array_shape *a, unsigned used,
                                          int *rules)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);
    int count = __builtin_popcount(used);

    if (rules_failed(g)) return alt; /* no rule remembers the sets that were visited */
    if (rules[used] < 0) {
        rules[used] = rules_add(g, STR("unique"), NULL);
        if (count >= a->n.min) rules_add_child(g, alt, rules_node(g, NODE_EMPTY));
        for (int i = 0; i < n && (a->n.max == RULES_UNBOUNDED || count < a->n.max); i++)
            if (!(used >> i & 1))
                rules_add_child(
                    g, alt,
                    RULES_SEQ(g, count ? make_comma(x) : NULL, values[i],
                              make_unique_from(x, values, n, a, used | 1u << i, rules)));
        rules_get(g, rules[used])->body = alt;
    }
    return rules_ref(g, rules[used]);
}

/* The integers from lo to hi. NULL: out of memory. */
static json_t *list_integers(struct schema_build *x, int lo, int hi)
{
    json_t *list = json_array();

    for (int k = lo; k <= hi; k++)
        if (json_array_append_new(list, json_integer(k)) != 0) {
            json_decref(list);
            list = NULL;
            break;
        }
    if (!list) schema_nomem(x);
    return list;
}

/* The values of an item where they are few: an enum, true and false, or a short range of integers.
 * The caller owns the list. NULL: they are not few, or x has an error. */
static json_t *list_few_values(struct schema_build *x, const struct conjunction *item)
{
    unsigned types = TYPE_ALL;
    double lo = -1e9, hi = 1e9, v;
    json_t *list;

    for (int i = 0; i < item->n; i++) {
        const json_t *s = item->p[i].s, *values = json_object_get(s, "enum");
        if (json_is_array(values)) return json_incref((json_t *)values);
        types &= schema_read_types(x, &item->p[i]);
        if ((v = json_number_value(json_object_get(s, "minimum"))) > lo &&
            json_object_get(s, "minimum"))
            lo = v;
        if ((v = json_number_value(json_object_get(s, "maximum"))) < hi &&
            json_object_get(s, "maximum"))
            hi = v;
    }
    if (types == TYPE_BOOL) {
        if (!(list = json_pack("[b,b]", 0, 1))) schema_nomem(x);
        return list;
    }
    if (types != TYPE_INTEGER || hi - lo >= MAX_UNIQUE) return NULL;
    if (hi < lo) return list_integers(x, 1, 0); /* none; lo and hi may be too large for an int */
    return list_integers(x, (int)ceil(lo), (int)floor(hi));
}

/* Are the items strings that are constrained in nothing but their lengths? */
static bool are_plain_strings(struct schema_build *x, const struct conjunction *item)
{
    for (int i = 0; i < item->n; i++) {
        if (json_object_get(item->p[i].s, "pattern") || json_object_get(item->p[i].s, "format"))
            return false;
        if (schema_read_types(x, &item->p[i]) != TYPE_STRING) return false;
    }
    return item->n > 0;
}

/* Strings that begin with different letters, in the order of the letters. NULL: not possible. */
static struct rule_node *make_unique_strings(struct schema_build *x, const struct conjunction *item,
                                             const struct array_shape *a)
{
    static const char firsts[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    struct rules *g = x->g;
    struct rule_node *list = rules_node(g, NODE_LIST), *chars;
    struct rule_list *info = arena_new(&g->arena, struct rule_list);
    struct count_bounds len = schema_read_bounds(x, item, "minLength", "maxLength", 1);
    int n = (int)sizeof firsts - 1, rest;

    if (!are_plain_strings(x, item) || schema_bounds_empty(&len) || a->n.min > n) return NULL;
    chars = rules_repeat(g, schema_make_char(x), len.min - 1,
                         len.max == RULES_UNBOUNDED ? len.max : len.max - 1);
    rest = rules_add_shared(g, STR("rest of a string"), RULES_SEQ(g, chars, rules_text(g, "\"")));
    for (int i = 0; i < n; i++) {
        struct charset first = { 0 };
        charset_add(&first, &g->arena, firsts[i], firsts[i]);
        charset_add(&first, &g->arena, toupper(firsts[i]), toupper(firsts[i]));
        rules_add_child(
            g, list, RULES_SEQ(g, rules_text(g, "\""), rules_class(g, first), rules_ref(g, rest)));
    }
    if (!info) return list; /* the arena has failed */
    info->needed = arena_array(&g->arena, (size_t)n, sizeof *info->needed);
    info->sep = make_comma(x);
    info->min = a->n.min;
    info->max = a->n.max != RULES_UNBOUNDED && a->n.max < n ? a->n.max : RULES_UNBOUNDED;
    list->list = info;
    return list;
}

/* list: the possible values. Of many, only the first ones are used. */
static struct rule_node *make_unique_values(struct schema_build *x, const struct conjunction *p,
                                            const struct conjunction *item, const json_t *list,
                                            const struct array_shape *a)
{
    struct rule_node *values[MAX_UNIQUE], *n;
    int count = 0, rules[1 << MAX_UNIQUE];
    const json_t *v;
    size_t i;

    json_array_foreach (list, i, v) {
        bool fits = true, known = false;
        for (int k = 0; k < item->n; k++) fits &= schema_accepts(x, &item->p[k], v);
        if (!schema_step(x, 1 + i)) break;
        for (size_t k = 0; k < i; k++) known |= json_equal(json_array_get(list, k), v) != 0;
        if (!fits || known) continue;
        if (count == MAX_UNIQUE) break;
        if ((n = schema_make_literal(x, v))) values[count++] = n;
    }
    if (a->n.min > count) {
        if (json_array_size(list) > MAX_UNIQUE)
            schema_fail(
                x, p->p[0].path,
                "'uniqueItems' with 'minItems' %d is not supported: at most %d different values "
                "can be required",
                a->n.min, MAX_UNIQUE);
        return rules_node(x->g, NODE_NEVER);
    }
    for (int k = 0; k < 1 << MAX_UNIQUE; k++) rules[k] = -1;
    return make_unique_from(x, values, count, a, 0, rules);
}

/* One of the ways to enforce uniqueItems; E_INVALID if none applies. A reference to the item schema
 * is followed first: its values are what counts. */
static struct rule_node *make_unique_items(struct schema_build *x, const struct conjunction *p,
                                           const struct array_shape *a)
{
    struct rule_node *n = NULL;
    struct conjunction item = { .n = 0 };
    json_t *list = NULL;

    if (a->n_first == 0 && find_item_schemas(x, p, 0, false, &item)) {
        for (int i = 0; i < item.n; i++) item.p[i].s = schema_follow_refs(x, item.p[i].s);
        if ((list = list_few_values(x, &item))) n = make_unique_values(x, p, &item, list, a);
        else n = make_unique_strings(x, &item, a);
    }
    json_decref(list);
    if (n) return n;
    schema_fail(
        x, p->p[0].path,
        "'uniqueItems' is only supported for strings without a pattern or format, for items with "
        "an 'enum' or a short range, and for at most one item");
    return rules_node(x->g, NODE_NEVER);
}

/* At most one item is unique anyway. */
struct rule_node *schema_make_array(struct schema_build *x, const struct conjunction *p)
{
    struct rules *g = x->g;
    struct array_shape a = read_shape(x, p);
    struct rule_node *items;

    if (x->rc != OK || schema_bounds_empty(&a.n)) return rules_node(g, NODE_NEVER);
    if (a.unique && !(a.n.max != RULES_UNBOUNDED && a.n.max <= 1))
        items = make_unique_items(x, p, &a);
    else items = make_tuple_from(x, p, &a, 0);
    return RULES_SEQ(g, rules_text(g, "["), schema_make_space(x), items, schema_make_space(x),
                     rules_text(g, "]"));
}
