/* schema_array.c - arrays of a schema: lists, tuples, and lists in which nothing comes twice. */
#include "grammar/schema_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

enum { UNIQUE = 9, TUPLE = 200 };

struct array {
    int min, max, n_first; /* n_first: items that have a schema of their own */
    bool unique;
};

static const json_t *first_items(const json_t *s)
{
    const json_t *v = json_object_get(s, "prefixItems");

    if (!v) v = json_object_get(s, "items");
    return json_is_array(v) ? v : NULL;
}

static const json_t *rest_items(const json_t *s)
{
    const json_t *v = json_object_get(s, "items");
    return json_is_array(v) ? json_object_get(s, "additionalItems") : v;
}

/* What all parts say of item i; behind those with a schema of their own: n_first. false: there is
 * none. */
static bool item_parts(struct schema *x, const struct parts *p, int i, bool closed,
                       struct parts *out)
{
    bool said = false;
    char at[32];

    out->n = 0;
    for (int k = 0; k < p->n; k++) {
        const json_t *first = first_items(p->p[k].s), *rest = rest_items(p->p[k].s);
        snprintf(at, sizeof at, "prefixItems/%d", i);
        if (first && i < (int)json_array_size(first)) {
            parts_add(x, out, json_array_get(first, (size_t)i), schema_path(x, p->p[k].path, at));
            said = true;
        } else if (rest) {
            parts_add(x, out, rest, schema_path(x, p->p[k].path, "items"));
            said = true;
        }
    }
    for (int k = 0; k < out->n; k++)
        if (json_is_false(out->p[k].s)) return false;
    return x->rc == OK && (said || !closed);
}

static struct array array_of(struct schema *x, const struct parts *p)
{
    struct array a = { .max = GNODE_MANY };

    for (int i = 0; i < p->n; i++) {
        const struct part *s = &p->p[i];
        const json_t *first = first_items(s->s), *unique = json_object_get(s->s, "uniqueItems");
        int min = schema_count(x, s, "minItems", 0),
            max = schema_count(x, s, "maxItems", GNODE_MANY);
        if (min > a.min) a.min = min;
        if (max != GNODE_MANY && (a.max == GNODE_MANY || max < a.max)) a.max = max;
        if (first && (int)json_array_size(first) > a.n_first)
            a.n_first = (int)json_array_size(first);
        if (unique && !json_is_boolean(unique))
            schema_bad(x, s->path, "'uniqueItems' must be true or false");
        a.unique |= json_is_true(unique);
        if (a.n_first > TUPLE)
            schema_bad(x, s->path, "more than %d items with schemas of their own", TUPLE);
    }
    return a;
}

static struct gnode *comma(struct schema *x)
{
    return GSEQ(x->g, gnode_c(x->g, ","), schema_space(x));
}

/* min to max of them, with commas between and, unless it is the first, before. */
static struct gnode *items_node(struct schema *x, struct gnode *item, int min, int max, bool first)
{
    struct grules *g = x->g;
    struct gnode *more;

    if (max == 0) return gnode_new(g, GN_EMPTY);
    if (!first) return gnode_rep(g, GSEQ(g, comma(x), item), min, max);
    more = gnode_rep(g, GSEQ(g, comma(x), item), min > 0 ? min - 1 : 0,
                     max == GNODE_MANY ? max : max - 1);
    return gnode_rep(g, GSEQ(g, item, more), min > 0, 1);
}

/* Items from i on: each only behind the one before it. */
static struct gnode *tuple_from(struct schema *x, const struct parts *p, const struct array *a,
                                int i)
{
    struct grules *g = x->g;
    struct parts item;
    struct gnode *n;

    if (a->max != GNODE_MANY && i >= a->max) return gnode_new(g, GN_EMPTY);
    if (!item_parts(x, p, i, i >= a->n_first && a->n_first > 0, &item))
        return gnode_new(g, i < a->min ? GN_NEVER : GN_EMPTY);
    n = schema_value(x, &item);
    if (i >= a->n_first)
        return items_node(x, n, a->min > i ? a->min - i : 0,
                          a->max == GNODE_MANY ? a->max : a->max - i, i == 0);
    n = GSEQ(g, i ? comma(x) : NULL, n, tuple_from(x, p, a, i + 1));
    return gnode_rep(g, n, i < a->min, 1);
}

/* Of a few values each at most once: what is left is a rule. */
static struct gnode *unique_from(struct schema *x, struct gnode *const *values, int n,
                                 const struct array *a, unsigned used, int *rules)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);
    int count = __builtin_popcount(used);

    if (rules[used] < 0) {
        rules[used] = grules_new(g);
        g->rules[rules[used]].name = STR("unique");
        if (count >= a->min) gnode_add(g, alt, gnode_new(g, GN_EMPTY));
        for (int i = 0; i < n && (a->max == GNODE_MANY || count < a->max); i++)
            if (!(used >> i & 1))
                gnode_add(g, alt,
                          GSEQ(g, count ? comma(x) : NULL, values[i],
                               unique_from(x, values, n, a, used | 1u << i, rules)));
        g->rules[rules[used]].body = alt;
    }
    return gnode_ref(g, rules[used]);
}

/* The values of an item where they are few: an enum, true and false, a short range. NULL: they are
 * not. */
static json_t *few_values(struct schema *x, const struct parts *item)
{
    unsigned types = T_ALL;
    double lo = -1e9, hi = 1e9, v;
    json_t *list = NULL;

    for (int i = 0; i < item->n; i++) {
        const json_t *s = item->p[i].s, *values = json_object_get(s, "enum");
        if (json_is_array(values)) return json_incref((json_t *)values);
        types &= schema_types(x, &item->p[i]);
        if ((v = json_number_value(json_object_get(s, "minimum"))) > lo &&
            json_object_get(s, "minimum"))
            lo = v;
        if ((v = json_number_value(json_object_get(s, "maximum"))) < hi &&
            json_object_get(s, "maximum"))
            hi = v;
    }
    if (types == T_BOOL) return json_pack("[b,b]", 0, 1);
    if (types != T_INTEGER || hi - lo >= UNIQUE) return NULL;
    list = json_array();
    for (int k = (int)ceil(lo); k <= (int)floor(hi); k++)
        json_array_append_new(list, json_integer(k));
    return list;
}

/* Strings of a unique list begin with different letters, and come in the order of these. */
static struct gnode *unique_strings(struct schema *x, const struct parts *item,
                                    const struct array *a)
{
    static const char firsts[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    struct grules *g = x->g;
    struct gnode *list = gnode_new(g, GN_LIST), *chars = schema_chars(x);
    struct glist *info = arena_new(&g->arena, struct glist);
    int min = 1, max = GNODE_MANY, n = (int)sizeof firsts - 1, rest = grules_new(g);

    for (int i = 0; i < item->n; i++) {
        int lo = schema_count(x, &item->p[i], "minLength", 0),
            hi = schema_count(x, &item->p[i], "maxLength", GNODE_MANY);
        if (json_object_get(item->p[i].s, "pattern") || json_object_get(item->p[i].s, "format"))
            return NULL;
        if (schema_types(x, &item->p[i]) != T_STRING) return NULL;
        if (lo > min) min = lo;
        if (hi != GNODE_MANY && (max == GNODE_MANY || hi < max)) max = hi;
    }
    if (item->n == 0 || a->min > n || (max != GNODE_MANY && max < min)) return NULL;
    g->rules[rest].name = STR("rest of a string");
    g->rules[rest].keep = true;
    g->rules[rest].body =
        GSEQ(g, gnode_rep(g, chars, min - 1, max == GNODE_MANY ? max : max - 1), gnode_c(g, "\""));
    for (int i = 0; i < n; i++) {
        struct cpset first = { 0 };
        cpset_add(&first, &g->arena, firsts[i], firsts[i]);
        cpset_add(&first, &g->arena, toupper(firsts[i]), toupper(firsts[i]));
        gnode_add(g, list, GSEQ(g, gnode_c(g, "\""), gnode_class(g, first), gnode_ref(g, rest)));
    }
    info->needed = arena_array(&g->arena, (size_t)n, sizeof *info->needed);
    info->sep = comma(x);
    info->min = a->min;
    info->max = a->max != GNODE_MANY && a->max < n ? a->max : GNODE_MANY;
    list->list = info;
    return list;
}

static struct gnode *unique_values(struct schema *x, const struct parts *p,
                                   const struct parts *item, const json_t *list,
                                   const struct array *a)
{
    struct gnode *values[UNIQUE], *n;
    int count = 0, rules[1 << UNIQUE];
    const json_t *v;
    size_t i;

    json_array_foreach (list, i, v) {
        bool fits = true, known = false;
        for (int k = 0; k < item->n; k++) fits &= schema_admits(x, &item->p[k], v);
        for (size_t k = 0; k < i; k++) known |= json_equal(json_array_get(list, k), v) != 0;
        if (!fits || known) continue;
        if (count == UNIQUE) break; /* of more than that, the first ones */
        if ((n = schema_literal(x, v))) values[count++] = n;
    }
    if (a->min > count) {
        if (json_array_size(list) > UNIQUE)
            schema_bad(
                x, p->p[0].path,
                "'uniqueItems' with 'minItems' %d is not supported: %d values are told apart",
                a->min, UNIQUE);
        return gnode_new(x->g, GN_NEVER);
    }
    for (int k = 0; k < 1 << UNIQUE; k++) rules[k] = -1;
    return unique_from(x, values, count, a, 0, rules);
}

static struct gnode *unique_items(struct schema *x, const struct parts *p, const struct array *a)
{
    struct gnode *n = NULL;
    struct parts item = { .n = 0 };
    json_t *list = NULL;

    if (a->n_first == 0 && item_parts(x, p, 0, false, &item)) {
        for (int i = 0; i < item.n; i++) item.p[i].s = schema_see_through(x, item.p[i].s);
        if ((list = few_values(x, &item))) n = unique_values(x, p, &item, list, a);
        else n = unique_strings(x, &item, a);
    }
    json_decref(list);
    if (n) return n;
    schema_bad(
        x, p->p[0].path,
        "'uniqueItems' is only supported for strings without a pattern or format, for items with "
        "an 'enum' or a short range, and for at most one item");
    return gnode_new(x->g, GN_NEVER);
}

struct gnode *schema_array(struct schema *x, const struct parts *p)
{
    struct grules *g = x->g;
    struct array a = array_of(x, p);
    struct gnode *items;

    if (x->rc != OK || (a.max != GNODE_MANY && a.max < a.min)) return gnode_new(g, GN_NEVER);
    if (a.unique && !(a.max != GNODE_MANY && a.max <= 1)) items = unique_items(x, p, &a);
    else items = tuple_from(x, p, &a, 0);
    return GSEQ(g, gnode_c(g, "["), schema_space(x), items, schema_space(x), gnode_c(g, "]"));
}
