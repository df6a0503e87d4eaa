/* schema_ref.c - references within a schema; whether a schema accepts a value; whether two schemas
 * are disjoint.
 *
 * The last two are needed for enum and const beside other keywords, and for oneOf. Both answer "no"
 * where they are not certain, which refuses the schema or leaves a value out, and never lets a
 * wrong one in. */
#include "grammar/schema_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- $ref ---- */

enum {
    MAX_DEPTH = 32,         /* of schemas that are followed for a value */
    MAX_DISJOINT_DEPTH = 8, /* of schemas that are compared */
    MAX_REFS = 16           /* in a row */
};

/* One part of a JSON pointer, with ~0, ~1 and %XX decoded. */
static void decode_pointer_part(const char *s, size_t n, char *out, size_t cap)
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

/* The value at a JSON pointer (RFC 6901) below `at`; NULL: there is none. */
static const json_t *follow_pointer(const json_t *at, const char *s)
{
    char key[256];

    while (at && *s == '/') {
        size_t n = strcspn(++s, "/");
        decode_pointer_part(s, n, key, sizeof key);
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        s += n;
    }
    return *s ? NULL : at;
}

/* References may repeat the "$id" of the root schema. */
const json_t *schema_resolve(struct schema_build *x, const struct subschema *p)
{
    const json_t *v = json_object_get(p->s, "$ref"), *id = json_object_get(x->root, "$id"),
                 *target = NULL;
    const char *ref = json_is_string(v) ? json_string_value(v) : NULL;

    if (!schema_step(x, 1 + json_string_length(v) / 8)) return NULL;
    if (ref && json_is_string(id) && json_string_length(id) &&
        !strncmp(ref, json_string_value(id), json_string_length(id)))
        ref += json_string_length(id);
    if (ref && ref[0] == '#') target = follow_pointer(x->root, ref + 1);
    else if (ref && !ref[0]) target = x->root;
    if (target) return target;
    if (!ref) schema_fail(x, p->path, "'$ref' must be a string");
    else if (ref[0] == '#') schema_fail(x, p->path, "'$ref': there is nothing at '%.100s'", ref);
    else
        schema_fail(x, p->path,
                    "'$ref' to '%.100s': only references within the schema (#/…) are supported",
                    ref);
    return NULL;
}

/* ---- a value against a schema ---- */

/* A small validator for values of enum and const. It knows the keywords that are enforced, and no
 * others. */

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return TYPE_OBJECT;
    case JSON_ARRAY: return TYPE_ARRAY;
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER: return TYPE_INTEGER | TYPE_NUMBER;
    case JSON_REAL:
        return json_real_value(v) == nearbyint(json_real_value(v)) ? TYPE_INTEGER | TYPE_NUMBER
                                                                   : TYPE_NUMBER;
    case JSON_NULL: return TYPE_NULL;
    default: return TYPE_BOOL;
    }
}

/* 1 and 1.0 are equal. */
static bool equal_values(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) != 0;
}

/* Is v one of the values of the list? */
static bool is_listed(struct schema_build *x, const json_t *list, const json_t *v)
{
    size_t i;
    json_t *item;

    if (!schema_step(x, 4 * json_array_size(list))) return false;
    json_array_foreach (list, i, item)
        if (equal_values(item, v)) return true;
    return false;
}

/* exclusiveMinimum and exclusiveMaximum are numbers, or booleans that belong to minimum and maximum
 * in older drafts. */
static bool accepts_number(const json_t *s, double v)
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

/* Characters of a string: bytes that do not continue one in UTF-8. */
static size_t count_chars(const json_t *v)
{
    size_t n = 0;

    for (const char *s = json_string_value(v); *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* Patterns and formats are compared through the automaton that generates them. */
static bool accepts_string(struct schema_build *x, const struct subschema *p, const json_t *v)
{
    struct conjunction one = { .p = { *p }, .n = 1 };
    struct rule_node *lit;
    struct dfa f;
    bool ok = false;

    if (!schema_step(x, json_string_length(v) / 8)) return false;
    if (count_chars(v) < (size_t)schema_read_count(x, p, "minLength", 0)) return false;
    if (json_object_get(p->s, "maxLength") &&
        count_chars(v) > (size_t)schema_read_count(x, p, "maxLength", 0))
        return false;
    if (!json_object_get(p->s, "pattern") && !json_object_get(p->s, "format")) return true;
    if (!schema_build_string_dfa(x, &one, &f)) return x->rc == OK;
    lit = schema_make_literal(x, v);
    if (lit->lit.n >= 2) ok = dfa_accepts(&f, str_of(lit->lit.p + 1, lit->lit.n - 2));
    else schema_nomem(x); /* a literal string has its quotes */
    dfa_release(&f);
    return ok;
}

static bool accepts_value(struct schema_build *x, const json_t *s, const json_t *v, int depth);

/* Keys are not compared with patterns: where there are any, only the empty object is certain. */
static bool accepts_object(struct schema_build *x, const struct subschema *p, const json_t *v,
                           int depth)
{
    const json_t *props = json_object_get(p->s, "properties"),
                 *more = json_object_get(p->s, "additionalProperties");
    const json_t *name;
    size_t i, n = json_object_size(v);
    const char *key;
    json_t *item;

    if (json_object_get(p->s, "patternProperties") || json_object_get(p->s, "propertyNames"))
        return n == 0;
    if (n < (size_t)schema_read_count(x, p, "minProperties", 0)) return false;
    if (json_object_get(p->s, "maxProperties") &&
        n > (size_t)schema_read_count(x, p, "maxProperties", 0))
        return false;
    json_array_foreach (json_object_get(p->s, "required"), i, name)
        if (json_is_string(name) && !json_object_get(v, json_string_value(name))) return false;
    json_object_foreach ((json_t *)v, key, item) {
        const json_t *s = json_object_get(props, key);
        if (!s) s = more;
        if (s && !accepts_value(x, s, item, depth + 1)) return false;
    }
    return true;
}

/* The same for arrays; uniqueItems compares all pairs. */
static bool accepts_array(struct schema_build *x, const struct subschema *p, const json_t *v,
                          int depth)
{
    const json_t *first = json_object_get(p->s, "prefixItems"),
                 *rest = json_object_get(p->s, "items"), *item;
    size_t i, n = json_array_size(v);

    if (json_is_array(rest)) first = rest, rest = json_object_get(p->s, "additionalItems");
    if (n < (size_t)schema_read_count(x, p, "minItems", 0)) return false;
    if (json_object_get(p->s, "maxItems") && n > (size_t)schema_read_count(x, p, "maxItems", 0))
        return false;
    json_array_foreach (v, i, item) {
        const json_t *s = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (s && !accepts_value(x, s, item, depth + 1)) return false;
        if (!schema_step(x, 4 * i)) return false;
        for (size_t k = 0; json_is_true(json_object_get(p->s, "uniqueItems")) && k < i; k++)
            if (equal_values(json_array_get(v, k), item)) return false;
    }
    return true;
}

/* All keywords of the schema itself but enum and const. */
static bool accepts_plain(struct schema_build *x, const struct subschema *p, const json_t *v,
                          int depth)
{
    if (!schema_step(x, 16)) return false;
    if (json_is_boolean(p->s)) return json_is_true(p->s);
    if (!(schema_read_types(x, p) & type_of_value(v))) return false;
    if (json_is_number(v)) return accepts_number(p->s, json_number_value(v));
    if (json_is_object(v)) return accepts_object(x, p, v, depth);
    if (json_is_array(v)) return accepts_array(x, p, v, depth);
    return !json_is_string(v) || accepts_string(x, p, v);
}

/* All keywords of the schema itself. */
static bool accepts_keywords(struct schema_build *x, const struct subschema *p, const json_t *v,
                             int depth)
{
    const json_t *list = json_object_get(p->s, "enum"), *one = json_object_get(p->s, "const");

    return !(list && !is_listed(x, list, v)) && !(one && !equal_values(one, v)) &&
           accepts_plain(x, p, v, depth);
}

bool schema_accepts(struct schema_build *x, const struct subschema *p, const json_t *v)
{
    return accepts_keywords(x, p, v, 0);
}

bool schema_accepts_listed(struct schema_build *x, const struct subschema *p, const json_t *v)
{
    const json_t *list = json_object_get(p->s, "enum"), *one = json_object_get(p->s, "const");

    return !(one && list && !is_listed(x, list, v)) && accepts_plain(x, p, v, 0);
}

/* How many schemas of a list accept the value. */
static size_t count_accepting(struct schema_build *x, const json_t *list, const json_t *v,
                              int depth)
{
    size_t i, n = 0;
    json_t *s;

    json_array_foreach (list, i, s) n += accepts_value(x, s, v, depth + 1);
    return n;
}

/* The whole schema, with $ref, allOf, anyOf and oneOf. */
static bool accepts_value(struct schema_build *x, const json_t *s, const json_t *v, int depth)
{
    struct subschema p = { s, "#" };
    const json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf"), *to;
    const json_t *one = json_object_get(s, "oneOf");

    if (depth > MAX_DEPTH || !schema_step(x, 16)) return false;
    if (!accepts_keywords(x, &p, v, depth)) return false;
    if (json_object_get(s, "$ref") &&
        (!(to = schema_resolve(x, &p)) || !accepts_value(x, to, v, depth + 1)))
        return false;
    if (all && count_accepting(x, all, v, depth) < json_array_size(all)) return false;
    if (any && count_accepting(x, any, v, depth) == 0) return false;
    return !one || count_accepting(x, one, v, depth) == 1;
}

/* ---- two schemas ---- */

/* "Disjoint" compares the values that are generated for a with the values that b accepts. That is
 * less than what a accepts: objects with named properties are generated without others, for
 * example. This is what lets most uses of oneOf pass: variants that differ in a constant or in
 * their required properties. */

const json_t *schema_follow_refs(struct schema_build *x, const json_t *s)
{
    for (int i = 0; i < MAX_REFS && schema_is_only_ref(s); i++) {
        struct subschema p = { s, "#" };
        const json_t *to = schema_resolve(x, &p);
        if (!to) return s;
        s = to;
    }
    return s;
}

static bool is_required(struct schema_build *x, const json_t *s, const char *name)
{
    size_t i;
    json_t *v;

    if (!schema_step(x, json_array_size(json_object_get(s, "required")))) return false;
    json_array_foreach (json_object_get(s, "required"), i, v)
        if (json_is_string(v) && !strcmp(json_string_value(v), name)) return true;
    return false;
}

/* Does b refuse every value of the enum or const of a? */
static bool values_disjoint(struct schema_build *x, const json_t *a, const json_t *b)
{
    const json_t *list = json_object_get(a, "enum"), *one = json_object_get(a, "const");
    struct subschema p = { b, "#" };
    size_t i;
    json_t *v;

    if (one) return !schema_accepts(x, &p, one);
    if (!json_is_array(list)) return false;
    json_array_foreach (list, i, v)
        if (schema_accepts(x, &p, v)) return false;
    return true;
}

/* Do the objects that are generated for a lack a property that b requires, or have one whose value
 * b refuses? */
static bool objects_disjoint(struct schema_build *x, const json_t *a, const json_t *b, int depth)
{
    const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    const json_t *more = json_object_get(a, "additionalProperties");
    bool closed = pa && (!more || json_is_false(more)) && !json_object_get(a, "patternProperties");
    const char *key;
    size_t i;
    json_t *v;

    json_array_foreach (json_object_get(b, "required"), i, v)
        if (closed && json_is_string(v) && !json_object_get(pa, json_string_value(v)) &&
            !is_required(x, a, json_string_value(v)))
            return true;
    json_object_foreach ((json_t *)pa, key, v) {
        if (!is_required(x, a, key)) continue;
        if (json_object_get(pb, key) &&
            schema_are_disjoint(x, v, json_object_get(pb, key), depth + 1))
            return true;
        if (!json_object_get(pb, key) &&
            json_is_false(json_object_get(b, "additionalProperties")) &&
            !json_object_get(b, "patternProperties"))
            return true;
    }
    return false;
}

/* The bound `key` or the exclusive bound `open`. false: there is none. */
static bool read_bound(const json_t *s, const char *key, const char *open, double *out,
                       bool *is_open)
{
    const json_t *v = json_object_get(s, key);

    if ((*is_open = !json_is_number(v))) v = json_object_get(s, open);
    *out = json_number_value(v);
    return json_is_number(v);
}

/* Are all numbers of a below all numbers of b? */
static bool is_below(const json_t *a, const json_t *b)
{
    double lo, hi;
    bool x, y;

    if (!read_bound(a, "maximum", "exclusiveMaximum", &hi, &x) ||
        !read_bound(b, "minimum", "exclusiveMinimum", &lo, &y))
        return false;
    return hi < lo || (!(hi > lo) && (x || y));
}

static bool ranges_disjoint(const json_t *a, const json_t *b)
{
    return is_below(a, b) || is_below(b, a);
}

/* Do the keywords for the minimum and the maximum of a count exclude each other? */
static bool counts_disjoint(const json_t *a, const json_t *b, const char *min, const char *max)
{
    const json_t *ha = json_object_get(a, max), *hb = json_object_get(b, max);

    if (json_is_number(ha) && json_number_value(ha) < json_number_value(json_object_get(b, min)))
        return true;
    return json_is_number(hb) && json_number_value(hb) < json_number_value(json_object_get(a, min));
}

/* The DFA of a pattern. false: the pattern is not supported, or x has an error. */
static bool build_pattern_dfa(struct schema_build *x, const json_t *pattern, struct dfa *out)
{
    struct rule_node *n;
    struct err e = { 0 };

    *out = (struct dfa){ 0 };
    if (pattern_parse(&n, x->g, str_c(json_string_value(pattern)), PATTERN_JSON, false, &e) == OK)
        return schema_build_dfa(x, n, "#", out);
    if (e.code == E_NOMEM) schema_nomem(x);
    return false;
}

/* By their lengths, or because no string matches both patterns. Formats are not compared. */
static bool strings_disjoint(struct schema_build *x, const json_t *a, const json_t *b)
{
    const json_t *pa = json_object_get(a, "pattern"), *pb = json_object_get(b, "pattern");
    struct dfa fa = { 0 }, fb = { 0 }, both = { 0 };
    struct err e = { 0 };
    bool disjoint = false;

    if (counts_disjoint(a, b, "minLength", "maxLength")) return true;
    if (!json_is_string(pa) || !json_is_string(pb)) return false;
    if (build_pattern_dfa(x, pa, &fa) && build_pattern_dfa(x, pb, &fb)) {
        if (dfa_product(&both, &fa, &fb, DFA_INTERSECT, &x->env, &e) == OK)
            disjoint = !dfa_trim(&both);
        else if (e.code == E_NOMEM) schema_nomem(x);
    }
    dfa_release(&both);
    dfa_release(&fa);
    dfa_release(&fb);
    return disjoint;
}

static bool arrays_disjoint(struct schema_build *x, const json_t *a, const json_t *b, int depth)
{
    const json_t *ia = json_object_get(a, "items"), *ib = json_object_get(b, "items");

    if (counts_disjoint(a, b, "minItems", "maxItems")) return true;
    if (json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems") || !ia || !ib)
        return false;
    return json_number_value(json_object_get(a, "minItems")) >= 1 &&
           schema_are_disjoint(x, ia, ib, depth + 1);
}

/* The types of the values that are generated for s. */
static unsigned find_generated_types(struct schema_build *x, const json_t *s)
{
    struct subschema p = { s, "#" };
    unsigned t = schema_read_types(x, &p);

    if (json_object_get(s, "type")) return t;
    if (json_object_get(s, "properties") || json_object_get(s, "required")) return TYPE_OBJECT;
    return t;
}

/* The list of anyOf or oneOf; NULL: s has neither. */
static const json_t *get_alternatives(const json_t *s)
{
    const json_t *v = json_object_get(s, "anyOf");
    return v ? v : json_object_get(s, "oneOf");
}

/* Alternatives must all be disjoint; then the types that both allow are compared one by one. */
bool schema_are_disjoint(struct schema_build *x, const json_t *a, const json_t *b, int depth)
{
    unsigned both;
    const json_t *list;
    size_t i;
    json_t *v;

    if (depth > MAX_DISJOINT_DEPTH || !schema_step(x, 64)) return false;
    a = schema_follow_refs(x, a);
    b = schema_follow_refs(x, b);
    if (json_is_false(a) || json_is_false(b)) return true;
    if (!json_is_object(a) || !json_is_object(b) || a == b) return false;
    if (values_disjoint(x, a, b) || values_disjoint(x, b, a)) return true;
    if ((list = get_alternatives(a))) {
        json_array_foreach (list, i, v)
            if (!schema_are_disjoint(x, v, b, depth + 1)) return false;
        return true;
    }
    if ((list = get_alternatives(b))) {
        json_array_foreach (list, i, v)
            if (!schema_are_disjoint(x, a, v, depth + 1)) return false;
        return true;
    }
    both = find_generated_types(x, a) & schema_read_types(x, &(struct subschema){ b, "#" });
    if (both == 0) return true;
    if (both & (TYPE_NULL | TYPE_BOOL)) return false;
    if (both & TYPE_STRING && !strings_disjoint(x, a, b)) return false;
    if (both & TYPE_ARRAY && !arrays_disjoint(x, a, b, depth)) return false;
    if (both & (TYPE_INTEGER | TYPE_NUMBER) && !ranges_disjoint(a, b)) return false;
    return !(both & TYPE_OBJECT) || objects_disjoint(x, a, b, depth);
}
