/* schema_expand.c - what a schema brings along: references, anyOf, oneOf, allOf, into lists of
 * schemas that all have to hold. */
#include "grammar/schema_impl.h"

#include <stdio.h>

enum { ALTERNATIVES = 400, PENDING = 48 };

enum keyword_kind { KEY_SAYS, KEY_JOINS, KEY_NOTES, KEY_UNKNOWN };

static enum keyword_kind keyword(const char *key)
{
    static const char *const says[] = { "type",
                                        "enum",
                                        "const",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "patternProperties",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "items",
                                        "prefixItems",
                                        "additionalItems",
                                        "minItems",
                                        "maxItems",
                                        "uniqueItems",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf",
                                        "nullable",
                                        NULL };
    static const char *const joins[] = { "$ref", "allOf", "anyOf", "oneOf", "dependentRequired",
                                         NULL };
    static const char *const notes[] = { "title",
                                         "description",
                                         "default",
                                         "examples",
                                         "example",
                                         "$schema",
                                         "$id",
                                         "id",
                                         "$comment",
                                         "$defs",
                                         "definitions",
                                         "$anchor",
                                         "$vocabulary",
                                         "deprecated",
                                         "readOnly",
                                         "writeOnly",
                                         "contentMediaType",
                                         "contentEncoding",
                                         "contentSchema",
                                         "discriminator",
                                         "xml",
                                         "externalDocs",
                                         NULL };

    for (int i = 0; says[i]; i++)
        if (!strcmp(says[i], key)) return KEY_SAYS;
    for (int i = 0; joins[i]; i++)
        if (!strcmp(joins[i], key)) return KEY_JOINS;
    for (int i = 0; notes[i]; i++)
        if (!strcmp(notes[i], key)) return KEY_NOTES;
    return key[0] == 'x' && key[1] == '-' ? KEY_NOTES : KEY_UNKNOWN;
}

/* Schemas and lists of alternatives that are not looked at yet. */
struct pending {
    struct {
        struct part part;
        bool choice, one; /* a list: any of it, or exactly one */
    } p[PENDING];
    int n;
};

static bool pend(struct schema *x, struct pending *q, struct part part, bool choice, bool one)
{
    if (q->n == PENDING) {
        schema_bad(x, part.path, "more than %d schemas are put together", PENDING);
        return false;
    }
    q->p[q->n].part = part;
    q->p[q->n].choice = choice;
    q->p[q->n++].one = one;
    return true;
}

static const json_t *list_at(struct schema *x, const struct part *p, const char *key)
{
    const json_t *v = json_object_get(p->s, key);

    if (v && (!json_is_array(v) || json_array_size(v) == 0)) {
        schema_bad(x, p->path, "'%s' must be a list of schemas, and not empty", key);
        return NULL;
    }
    return v;
}

/* Is there nothing in it but a reference? */
bool schema_is_only_ref(const json_t *s)
{
    const char *key;
    json_t *v;

    if (!json_object_get(s, "$ref")) return false;
    json_object_foreach ((json_t *)s, key, v)
        if (strcmp(key, "$ref") && keyword(key) != KEY_NOTES) return false;
    return true;
}

/* ---- schemas that follow from others ---- */

static const json_t *keep(struct schema *x, json_t *s)
{
    if (!x->made) x->made = json_array();
    json_array_append_new(x->made, s);
    return s;
}

/* An object without that property. */
static const json_t *without(struct schema *x, const char *name)
{
    return keep(x, json_pack("{s:{s:b}}", "properties", name, 0));
}

/* Who has this property has those too: it is not there, or they are. */
static void take_dependent(struct schema *x, const struct part *p, struct pending *q)
{
    const json_t *v = json_object_get(p->s, "dependentRequired");
    const char *name, *path = schema_path(x, p->path, "dependentRequired");
    json_t *list, *all;

    if (v && !json_is_object(v)) schema_bad(x, p->path, "'dependentRequired' must be an object");
    json_object_foreach ((json_t *)v, name, list) {
        if (!json_is_array(list)) schema_bad(x, path, "must be lists of names");
        if (x->rc != OK) return;
        all = json_copy(list);
        json_array_append_new(all, json_string(name));
        pend(x, q,
             (struct part){ keep(x, json_pack("[O,{s:o}]", without(x, name), "required", all)),
                            path },
             true, false);
    }
}

/* Is there nothing in it but a list of required names? */
static const json_t *only_required(const json_t *s)
{
    const json_t *list = json_object_get(s, "required");
    const char *key;
    json_t *v;

    json_object_foreach ((json_t *)s, key, v)
        if (strcmp(key, "required") && strcmp(key, "type") && keyword(key) != KEY_NOTES)
            return NULL;
    return json_array_size(list) ? list : NULL;
}

static bool names_it(const json_t *list, const json_t *name)
{
    size_t i;
    json_t *v;

    json_array_foreach (list, i, v)
        if (json_equal(v, name)) return true;
    return false;
}

/* Exactly one of some lists of required names: then of every other list one name is left out.
 * false: it is not that. */
static bool pend_others(struct schema *x, const struct part *list, size_t i, struct pending *q)
{
    const json_t *own = only_required(json_array_get(list->s, i)), *other, *name;

    for (size_t k = 0; own && k < json_array_size(list->s); k++) {
        size_t n = 0;
        if (k == i) continue;
        if (!(other = only_required(json_array_get(list->s, k)))) return false;
        while ((name = json_array_get(other, n)) && names_it(own, name)) n++;
        if (!json_is_string(name)) return false;
        if (q)
            pend(x, q, (struct part){ without(x, json_string_value(name)), list->path }, false,
                 false);
    }
    return own != NULL;
}

static bool is_of_required(struct schema *x, const struct part *list)
{
    for (size_t i = 0; i < json_array_size(list->s); i++)
        if (!pend_others(x, list, i, NULL)) return false;
    return true;
}

/* ---- taking schemas apart ---- */

/* Puts what a schema says into acc, and what it brings along into q. */
static void take_schema(struct schema *x, struct part p, struct pending *q, struct parts *acc)
{
    const json_t *list, *target;
    bool says = false;
    const char *key;
    json_t *v;
    size_t i;
    char at[32];

    if (json_is_boolean(p.s)) {
        parts_add(x, acc, p.s, p.path);
        return;
    }
    if (!json_is_object(p.s)) {
        schema_bad(x, p.path, "a schema must be an object, true or false");
        return;
    }
    json_object_foreach ((json_t *)p.s, key, v) {
        enum keyword_kind k = keyword(key);
        if (k == KEY_UNKNOWN) schema_bad(x, p.path, "the keyword '%.60s' is not supported", key);
        says |= k == KEY_SAYS;
    }
    if (says) parts_add(x, acc, p.s, p.path);
    if (json_object_get(p.s, "$ref") && (target = schema_resolve(x, &p)))
        pend(x, q, (struct part){ target, json_string_value(json_object_get(p.s, "$ref")) }, false,
             false);
    if ((list = list_at(x, &p, "allOf")))
        json_array_foreach (list, i, v) {
            snprintf(at, sizeof at, "allOf/%zu", i);
            pend(x, q, (struct part){ v, schema_path(x, p.path, at) }, false, false);
        }
    take_dependent(x, &p, q);
    if ((list = list_at(x, &p, "anyOf")))
        pend(x, q, (struct part){ list, schema_path(x, p.path, "anyOf") }, true, false);
    if ((list = list_at(x, &p, "oneOf")))
        pend(x, q, (struct part){ list, schema_path(x, p.path, "oneOf") }, true, true);
}

static void check_one_of(struct schema *x, const struct part *list)
{
    size_t n = json_array_size(list->s);

    if (is_of_required(x, list)) return;
    for (size_t i = 0; i < n && x->rc == OK; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k &&
                !schema_apart(x, json_array_get(list->s, i), json_array_get(list->s, k), 0)) {
                schema_bad(
                    x, list->path,
                    "the schemas %zu and %zu of 'oneOf' may accept the same value, which is not "
                    "supported: use 'anyOf', or tell them apart by type, const or required",
                    i < k ? i : k, i < k ? k : i);
                break;
            }
}

static void expand(struct schema *x, struct pending q, struct parts acc, struct gnode *alt);

static void expand_choice(struct schema *x, struct pending *q, const struct part *list, bool one,
                          const struct parts *acc, struct gnode *alt)
{
    const json_t *v;
    size_t i;
    char at[24];

    json_array_foreach (list->s, i, v) {
        struct pending next = *q;
        if (x->rc != OK) return;
        snprintf(at, sizeof at, "%zu", i);
        if (one && is_of_required(x, list)) pend_others(x, list, i, &next);
        pend(x, &next, (struct part){ v, schema_path(x, list->path, at) }, false, false);
        expand(x, next, *acc, alt);
    }
}

static void expand(struct schema *x, struct pending q, struct parts acc, struct gnode *alt)
{
    const json_t *target;

    while (q.n > 0 && x->rc == OK) {
        struct part p = q.p[q.n - 1].part;
        bool choice = q.p[q.n - 1].choice, one = q.p[--q.n].one;
        if (choice) {
            if (one) check_one_of(x, &p);
            expand_choice(x, &q, &p, one, &acc, alt);
            return;
        }
        if (q.n == 0 && acc.n == 0 && schema_is_only_ref(p.s) && (target = schema_resolve(x, &p))) {
            struct parts alone = { .n = 0 };
            parts_add(x, &alone, target, json_string_value(json_object_get(p.s, "$ref")));
            gnode_add(x->g, alt, schema_value(x, &alone));
            return;
        }
        take_schema(x, p, &q, &acc);
    }
    if (x->rc != OK) return;
    if (++x->n_alternatives > ALTERNATIVES * 50 || alt->n_kids > ALTERNATIVES)
        schema_bad(x, acc.n ? acc.p[0].path : "#",
                   "anyOf, oneOf and allOf make more than %d combinations", ALTERNATIVES);
    else gnode_add(x->g, alt, schema_conjunction(x, &acc));
}

struct gnode *schema_body(struct schema *x, const struct parts *p)
{
    struct gnode *alt = gnode_new(x->g, GN_ALT);
    struct pending q = { .n = 0 };

    for (int i = p->n - 1; i >= 0; i--) pend(x, &q, p->p[i], false, false);
    expand(x, q, (struct parts){ .n = 0 }, alt);
    return alt->n_kids == 1 ? alt->kids[0] : alt;
}
