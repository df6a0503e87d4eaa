/* schema_ref.c - what schemas say of each other and of values: references, are two of them apart,
 * is a value fit. */
#include "grammar/schema_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- $ref ---- */

/* One part of a pointer: ~0 ~1 and %XX undone. */
static void unescape(const char *s, size_t n, char *out, size_t cap)
{
    size_t at = 0;

    for (size_t i = 0; i < n && at + 1 < cap; i++) {
        char hex[3] = { 0 };
        if (s[i] == '~' && i + 1 < n && (s[i + 1] == '0' || s[i + 1] == '1'))
            out[at++] = s[++i] == '0' ? '~' : '/';
        else if (s[i] == '%' && i + 2 < n && isxdigit((unsigned char)s[i + 1]) &&
                 isxdigit((unsigned char)s[i + 2])) {
            hex[0] = s[i + 1], hex[1] = s[i + 2];
            out[at++] = (char)strtol(hex, NULL, 16);
            i += 2;
        } else out[at++] = s[i];
    }
    out[at] = 0;
}

static const json_t *follow_pointer(const json_t *at, const char *s)
{
    char key[256];

    while (at && *s == '/') {
        size_t n = strcspn(++s, "/");
        unescape(s, n, key, sizeof key);
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        s += n;
    }
    return *s ? NULL : at;
}

const json_t *schema_resolve(struct schema *x, const struct part *p)
{
    const json_t *v = json_object_get(p->s, "$ref"), *id = json_object_get(x->root, "$id"),
                 *target = NULL;
    const char *ref = json_is_string(v) ? json_string_value(v) : NULL;

    if (ref && json_is_string(id) && json_string_length(id) &&
        !strncmp(ref, json_string_value(id), json_string_length(id)))
        ref += json_string_length(id);
    if (ref && ref[0] == '#') target = follow_pointer(x->root, ref + 1);
    else if (ref && !ref[0]) target = x->root;
    if (target) return target;
    if (!ref) schema_bad(x, p->path, "'$ref' must be a string");
    else if (ref[0] == '#') schema_bad(x, p->path, "'$ref': there is nothing at '%.100s'", ref);
    else
        schema_bad(x, p->path,
                   "'$ref' to '%.100s': only references within the schema (#/…) are supported",
                   ref);
    return NULL;
}

/* ---- a value against a schema ---- */

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return T_OBJECT;
    case JSON_ARRAY: return T_ARRAY;
    case JSON_STRING: return T_STRING;
    case JSON_INTEGER: return T_INTEGER | T_NUMBER;
    case JSON_REAL:
        return json_real_value(v) == nearbyint(json_real_value(v)) ? T_INTEGER | T_NUMBER
                                                                   : T_NUMBER;
    case JSON_NULL: return T_NULL;
    default: return T_BOOL;
    }
}

static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) != 0;
}

static bool is_listed(const json_t *list, const json_t *v)
{
    size_t i;
    json_t *item;

    json_array_foreach (list, i, item)
        if (same(item, v)) return true;
    return false;
}

static bool admits_number(const json_t *s, double v)
{
    const json_t *min = json_object_get(s, "minimum"), *max = json_object_get(s, "maximum");
    const json_t *above = json_object_get(s, "exclusiveMinimum"),
                 *below = json_object_get(s, "exclusiveMaximum");
    const json_t *of = json_object_get(s, "multipleOf");
    double m = json_number_value(of);

    if (json_is_number(min) &&
        (v < json_number_value(min) || (json_is_true(above) && v <= json_number_value(min))))
        return false;
    if (json_is_number(max) &&
        (v > json_number_value(max) || (json_is_true(below) && v >= json_number_value(max))))
        return false;
    if (json_is_number(above) && v <= json_number_value(above)) return false;
    if (json_is_number(below) && v >= json_number_value(below)) return false;
    return !(m > 0) || v / m == nearbyint(v / m);
}

static size_t n_chars(const json_t *v)
{
    size_t n = 0;

    for (const char *s = json_string_value(v); *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool admits_string(struct schema *x, const struct part *p, const json_t *v)
{
    struct parts one = { .p = { *p }, .n = 1 };
    struct gnode *lit;
    struct fsm f;
    bool ok;

    if (n_chars(v) < (size_t)schema_count(x, p, "minLength", 0)) return false;
    if (json_object_get(p->s, "maxLength") &&
        n_chars(v) > (size_t)schema_count(x, p, "maxLength", 0))
        return false;
    if (!json_object_get(p->s, "pattern") && !json_object_get(p->s, "format")) return true;
    if (!schema_string_fsm(x, &one, &f)) return x->rc == OK;
    lit = schema_literal(x, v);
    ok = fsm_accepts(&f, str_of(lit->lit.p + 1, lit->lit.n - 2));
    fsm_release(&f);
    return ok;
}

static bool fits(struct schema *x, const json_t *s, const json_t *v, int depth);

/* Keys under patterns are not looked into: where there are any, no value is certain. */
static bool admits_object(struct schema *x, const struct part *p, const json_t *v, int depth)
{
    const json_t *props = json_object_get(p->s, "properties"),
                 *more = json_object_get(p->s, "additionalProperties");
    const json_t *name;
    size_t i, n = json_object_size(v);
    const char *key;
    json_t *item;

    if (json_object_get(p->s, "patternProperties") || json_object_get(p->s, "propertyNames"))
        return n == 0;
    if (n < (size_t)schema_count(x, p, "minProperties", 0)) return false;
    if (json_object_get(p->s, "maxProperties") &&
        n > (size_t)schema_count(x, p, "maxProperties", 0))
        return false;
    json_array_foreach (json_object_get(p->s, "required"), i, name)
        if (json_is_string(name) && !json_object_get(v, json_string_value(name))) return false;
    json_object_foreach ((json_t *)v, key, item) {
        const json_t *s = json_object_get(props, key);
        if (!s) s = more;
        if (s && !fits(x, s, item, depth + 1)) return false;
    }
    return true;
}

static bool admits_array(struct schema *x, const struct part *p, const json_t *v, int depth)
{
    const json_t *first = json_object_get(p->s, "prefixItems"),
                 *rest = json_object_get(p->s, "items"), *item;
    size_t i, n = json_array_size(v);

    if (json_is_array(rest)) first = rest, rest = json_object_get(p->s, "additionalItems");
    if (n < (size_t)schema_count(x, p, "minItems", 0)) return false;
    if (json_object_get(p->s, "maxItems") && n > (size_t)schema_count(x, p, "maxItems", 0))
        return false;
    json_array_foreach (v, i, item) {
        const json_t *s = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (s && !fits(x, s, item, depth + 1)) return false;
        for (size_t k = 0; json_is_true(json_object_get(p->s, "uniqueItems")) && k < i; k++)
            if (same(json_array_get(v, k), item)) return false;
    }
    return true;
}

/* All but the list of values. */
static bool admits_own(struct schema *x, const struct part *p, const json_t *v, int depth)
{
    if (json_is_boolean(p->s)) return json_is_true(p->s);
    if (!(schema_types(x, p) & type_of_value(v))) return false;
    if (json_is_number(v)) return admits_number(p->s, json_number_value(v));
    if (json_is_object(v)) return admits_object(x, p, v, depth);
    if (json_is_array(v)) return admits_array(x, p, v, depth);
    return !json_is_string(v) || admits_string(x, p, v);
}

static bool admits(struct schema *x, const struct part *p, const json_t *v, int depth)
{
    const json_t *list = json_object_get(p->s, "enum"), *one = json_object_get(p->s, "const");

    return !(list && !is_listed(list, v)) && !(one && !same(one, v)) && admits_own(x, p, v, depth);
}

bool schema_admits(struct schema *x, const struct part *p, const json_t *v)
{
    return admits(x, p, v, 0);
}

bool schema_admits_own(struct schema *x, const struct part *p, const json_t *v)
{
    const json_t *list = json_object_get(p->s, "enum"), *one = json_object_get(p->s, "const");

    return !(one && list && !is_listed(list, v)) && admits_own(x, p, v, 0);
}

/* How many of a list of schemas the value keeps to. */
static size_t n_fit(struct schema *x, const json_t *list, const json_t *v, int depth)
{
    size_t i, n = 0;
    json_t *s;

    json_array_foreach (list, i, s) n += fits(x, s, v, depth + 1);
    return n;
}

/* The whole schema, with what it refers to. */
static bool fits(struct schema *x, const json_t *s, const json_t *v, int depth)
{
    struct part p = { s, "#" };
    const json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf"), *to;
    const json_t *one = json_object_get(s, "oneOf");

    if (depth > 32 || x->rc != OK) return false;
    if (!admits(x, &p, v, depth)) return false;
    if (json_object_get(s, "$ref") && (!(to = schema_resolve(x, &p)) || !fits(x, to, v, depth + 1)))
        return false;
    if (all && n_fit(x, all, v, depth) < json_array_size(all)) return false;
    if (any && n_fit(x, any, v, depth) == 0) return false;
    return !one || n_fit(x, one, v, depth) == 1;
}

/* ---- two schemas ---- */

const json_t *schema_see_through(struct schema *x, const json_t *s)
{
    for (int i = 0; i < 16 && schema_is_only_ref(s); i++) {
        struct part p = { s, "#" };
        const json_t *to = schema_resolve(x, &p);
        if (!to) return s;
        s = to;
    }
    return s;
}

static bool is_required(const json_t *s, const char *name)
{
    size_t i;
    json_t *v;

    json_array_foreach (json_object_get(s, "required"), i, v)
        if (json_is_string(v) && !strcmp(json_string_value(v), name)) return true;
    return false;
}

/* No value of a's list keeps to b. */
static bool values_apart(struct schema *x, const json_t *a, const json_t *b)
{
    const json_t *list = json_object_get(a, "enum"), *one = json_object_get(a, "const");
    struct part p = { b, "#" };
    size_t i;
    json_t *v;

    if (one) return !schema_admits(x, &p, one);
    if (!json_is_array(list)) return false;
    json_array_foreach (list, i, v)
        if (schema_admits(x, &p, v)) return false;
    return true;
}

/* Objects made for a lack something b requires, or hold something b refuses. */
static bool objects_apart(struct schema *x, const json_t *a, const json_t *b, int depth)
{
    const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    const json_t *more = json_object_get(a, "additionalProperties");
    bool closed = pa && (!more || json_is_false(more)) && !json_object_get(a, "patternProperties");
    const char *key;
    size_t i;
    json_t *v;

    json_array_foreach (json_object_get(b, "required"), i, v)
        if (closed && json_is_string(v) && !json_object_get(pa, json_string_value(v)) &&
            !is_required(a, json_string_value(v)))
            return true;
    json_object_foreach ((json_t *)pa, key, v) {
        if (!is_required(a, key)) continue;
        if (json_object_get(pb, key) && schema_apart(x, v, json_object_get(pb, key), depth + 1))
            return true;
        if (!json_object_get(pb, key) &&
            json_is_false(json_object_get(b, "additionalProperties")) &&
            !json_object_get(b, "patternProperties"))
            return true;
    }
    return false;
}

static bool bound(const json_t *s, const char *key, const char *open, double *out, bool *is_open)
{
    const json_t *v = json_object_get(s, key);

    if ((*is_open = !json_is_number(v))) v = json_object_get(s, open);
    *out = json_number_value(v);
    return json_is_number(v);
}

/* All of a is below all of b. */
static bool is_below(const json_t *a, const json_t *b)
{
    double lo, hi;
    bool x, y;

    if (!bound(a, "maximum", "exclusiveMaximum", &hi, &x) ||
        !bound(b, "minimum", "exclusiveMinimum", &lo, &y))
        return false;
    return hi < lo || (!(hi > lo) && (x || y));
}

static bool ranges_apart(const json_t *a, const json_t *b)
{
    return is_below(a, b) || is_below(b, a);
}

/* No count of x can be one of y: by the keywords for least and most. */
static bool counts_apart(const json_t *a, const json_t *b, const char *least, const char *most)
{
    const json_t *ha = json_object_get(a, most), *hb = json_object_get(b, most);

    if (json_is_number(ha) && json_number_value(ha) < json_number_value(json_object_get(b, least)))
        return true;
    return json_is_number(hb) &&
           json_number_value(hb) < json_number_value(json_object_get(a, least));
}

/* By their lengths, or because no string matches both patterns. Formats are not held against
 * others. */
static bool strings_apart(struct schema *x, const json_t *a, const json_t *b)
{
    const json_t *p[2] = { json_object_get(a, "pattern"), json_object_get(b, "pattern") };
    struct fsm f[2] = { 0 }, both = { 0 };
    bool apart = false;

    if (counts_apart(a, b, "minLength", "maxLength")) return true;
    if (!json_is_string(p[0]) || !json_is_string(p[1])) return false;
    for (int i = 0; i < 2; i++) {
        struct gnode *n;
        if (pattern_parse(&n, x->g, str_c(json_string_value(p[i])), PATTERN_JSON, false, NULL) !=
                OK ||
            !schema_fsm(x, n, "#", &f[i]))
            goto out;
    }
    apart = fsm_product(&both, &f[0], &f[1], FSM_AND, &x->env, NULL) == OK && !fsm_trim(&both);
out:
    fsm_release(&both);
    fsm_release(&f[0]);
    fsm_release(&f[1]);
    return apart;
}

static bool arrays_apart(struct schema *x, const json_t *a, const json_t *b, int depth)
{
    const json_t *ia = json_object_get(a, "items"), *ib = json_object_get(b, "items");

    if (counts_apart(a, b, "minItems", "maxItems")) return true;
    if (json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems") || !ia || !ib)
        return false;
    return json_number_value(json_object_get(a, "minItems")) >= 1 &&
           schema_apart(x, ia, ib, depth + 1);
}

/* The kinds of values made for s. */
static unsigned made_types(struct schema *x, const json_t *s)
{
    struct part p = { s, "#" };
    unsigned t = schema_types(x, &p);

    if (json_object_get(s, "type")) return t;
    if (json_object_get(s, "properties") || json_object_get(s, "required")) return T_OBJECT;
    return t;
}

/* One of the lists of s that say "one of these", if that is all there is to it. */
static const json_t *alternatives(const json_t *s)
{
    const json_t *v = json_object_get(s, "anyOf");
    return v ? v : json_object_get(s, "oneOf");
}

bool schema_apart(struct schema *x, const json_t *a, const json_t *b, int depth)
{
    unsigned both;
    const json_t *list;
    size_t i;
    json_t *v;

    if (depth > 8 || x->rc != OK) return false;
    a = schema_see_through(x, a);
    b = schema_see_through(x, b);
    if (json_is_false(a) || json_is_false(b)) return true;
    if (!json_is_object(a) || !json_is_object(b) || a == b) return false;
    if (values_apart(x, a, b) || values_apart(x, b, a)) return true;
    if ((list = alternatives(a))) {
        json_array_foreach (list, i, v)
            if (!schema_apart(x, v, b, depth + 1)) return false;
        return true;
    }
    if ((list = alternatives(b))) {
        json_array_foreach (list, i, v)
            if (!schema_apart(x, a, v, depth + 1)) return false;
        return true;
    }
    both = made_types(x, a) & schema_types(x, &(struct part){ b, "#" });
    if (both == 0) return true;
    if (both & (T_NULL | T_BOOL)) return false;
    if (both & T_STRING && !strings_apart(x, a, b)) return false;
    if (both & T_ARRAY && !arrays_apart(x, a, b, depth)) return false;
    if (both & (T_INTEGER | T_NUMBER) && !ranges_apart(a, b)) return false;
    return !(both & T_OBJECT) || objects_apart(x, a, b, depth);
}
