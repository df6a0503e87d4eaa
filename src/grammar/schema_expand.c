/* schema_expand.c - $ref, allOf, anyOf, oneOf and dependentRequired, expanded into alternatives of
 * conjunctions that contain none of them (disjunctive normal form).
 *
 * A schema with a choice is expanded once for each alternative of the choice, with what was found
 * so far. oneOf is accepted where no value can be accepted by two of its schemas, which must be
 * certain; then it is the same as anyOf. */
#include "grammar/schema_impl.h"

#include <stdio.h>

enum {
    MAX_ALTERNATIVES = 400, /* of one value; of a whole schema 50 times that */
    MAX_PENDING = 48,       /* schemas and choices of one value that wait */
    MAX_CHOICES = 64,       /* anyOf and oneOf inside of each other */
    MADE_BYTES = 512        /* of a derived schema, about, without its names */
};

enum keyword_kind {
    KEY_ASSERTION,  /* constrains the value */
    KEY_APPLICATOR, /* brings in other schemas; expanded here */
    KEY_ANNOTATION, /* constrains nothing */
    KEY_UNKNOWN
};

/* clang-format off */
static const char *const assertions[] = {
    "type", "enum", "const",
    "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
    "minProperties", "maxProperties",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
    "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "nullable", NULL
};
static const char *const applicators[] = {
    "$ref", "allOf", "anyOf", "oneOf", "dependentRequired", NULL
};
static const char *const annotations[] = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "$schema", "$id", "id", "$comment", "$defs", "definitions", "$anchor", "$vocabulary",
    "contentMediaType", "contentEncoding", "contentSchema",
    "discriminator", "xml", "externalDocs", NULL /* the last three are OpenAPI's */
};
/* clang-format on */

static bool is_in(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(*list, key)) return true;
    return false;
}

/* Names that begin with "x-" are extensions of OpenAPI. */
bool schema_is_annotation(const char *key)
{
    return is_in(key, annotations) || (key[0] == 'x' && key[1] == '-');
}

/* Unknown keywords are refused rather than ignored: they may constrain. */
static enum keyword_kind kind_of_keyword(const char *key)
{
    if (is_in(key, assertions)) return KEY_ASSERTION;
    if (is_in(key, applicators)) return KEY_APPLICATOR;
    return schema_is_annotation(key) ? KEY_ANNOTATION : KEY_UNKNOWN;
}

/* Schemas and choices between schemas that are not expanded yet; a stack. */
struct pending {
    struct {
        struct subschema part;
        bool choice, one; /* part is a list of alternatives; one: exactly one of them may accept */
    } p[MAX_PENDING];
    int n;
};

/* choice and one: see struct pending. */
static void push_pending(struct schema_build *x, struct pending *q, struct subschema part,
                         bool choice, bool one)
{
    if (q->n == MAX_PENDING) {
        schema_fail(x, part.path, "more than %d schemas are combined", MAX_PENDING);
        return;
    }
    q->p[q->n].part = part;
    q->p[q->n].choice = choice;
    q->p[q->n++].one = one;
}

/* The list of schemas under a keyword; NULL: the keyword is absent, or x has the error. */
static const json_t *read_list(struct schema_build *x, const struct subschema *p, const char *key)
{
    const json_t *v = json_object_get(p->s, key);

    if (v && (!json_is_array(v) || json_array_size(v) == 0)) {
        schema_fail(x, p->path, "'%s' must be a list of at least one schema", key);
        return NULL;
    }
    return v;
}

bool schema_is_only_ref(const json_t *s)
{
    const char *key;
    json_t *v;

    if (!json_object_get(s, "$ref")) return false;
    json_object_foreach ((json_t *)s, key, v)
        if (strcmp(key, "$ref") && !schema_is_annotation(key)) return false;
    return true;
}

/* ---- derived schemas ---- */

/* Gives a new schema to x->made, which owns it until the end. */
static const json_t *keep_made(struct schema_build *x, json_t *s)
{
    if (s && !budget_take(x->g->budget, MADE_BYTES)) {
        json_decref(s);
        s = NULL;
    }
    if (s && !x->made) x->made = json_array();
    if (s && json_array_append_new(x->made, s) == 0) return s; /* takes s over in any case */
    schema_nomem(x);
    return NULL;
}

/* A schema of objects without this property. */
static const json_t *make_without(struct schema_build *x, const char *name)
{
    return keep_made(x, json_pack("{s:{s:b}}", "properties", name, 0));
}

/* [{without the property}, {required: the list and the property}]: the two ways to satisfy a member
 * of dependentRequired. */
static const json_t *make_dependent(struct schema_build *x, const char *name, const json_t *list)
{
    const json_t *without = make_without(x, name);
    bool may = schema_step(x, json_array_size(list)) &&
               budget_take(x->g->budget, json_array_size(list) * sizeof list);
    json_t *all = may ? json_copy((json_t *)list) : NULL;

    if (!without || !all || json_array_append_new(all, json_string(name)) != 0) {
        json_decref(all);
        schema_nomem(x);
        return NULL;
    }
    return keep_made(x, json_pack("[O,{s:o}]", without, "required", all));
}

static void expand_dependent(struct schema_build *x, const struct subschema *p, struct pending *q)
{
    const json_t *v = json_object_get(p->s, "dependentRequired"), *choice;
    const char *name, *path;
    json_t *list;

    if (!v) return;
    path = schema_extend_path(x, p->path, "dependentRequired");
    if (!json_is_object(v)) schema_fail(x, p->path, "'dependentRequired' must be an object");
    json_object_foreach ((json_t *)v, name, list) {
        if (!json_is_array(list)) schema_fail(x, path, "must be lists of names");
        if (x->rc != OK || !(choice = make_dependent(x, name, list))) return;
        push_pending(x, q, (struct subschema){ choice, path }, true, false);
    }
}

/* The list of required names of a schema that has no other assertion; else NULL. */
static const json_t *find_only_required(struct schema_build *x, const json_t *s)
{
    const json_t *list = json_object_get(s, "required");
    const char *key;
    json_t *v;

    if (!schema_step(x, 8 + 4 * json_object_size(s))) return NULL;
    json_object_foreach ((json_t *)s, key, v)
        if (strcmp(key, "required") && strcmp(key, "type") && !schema_is_annotation(key))
            return NULL;
    return json_array_size(list) ? list : NULL;
}

/* Is the name in the list? */
static bool contains_name(struct schema_build *x, const json_t *list, const json_t *name)
{
    size_t i;
    json_t *v;

    if (!schema_step(x, 4 * json_array_size(list))) return false;
    json_array_foreach (list, i, v)
        if (json_equal(v, name)) return true;
    return false;
}

/* oneOf over schemas that only require names: alternative i excludes each other alternative by
 * leaving out a name that the other requires. q NULL: only checks. false: the list is not such. */
static bool push_exclusions(struct schema_build *x, const struct subschema *list, size_t i,
                            struct pending *q)
{
    const json_t *own = find_only_required(x, json_array_get(list->s, i)), *other, *name;

    for (size_t k = 0; own && k < json_array_size(list->s); k++) {
        size_t n = 0;
        if (k == i) continue;
        if (!(other = find_only_required(x, json_array_get(list->s, k)))) return false;
        while ((name = json_array_get(other, n)) && contains_name(x, own, name)) n++;
        if (!json_is_string(name)) return false;
        if (q)
            push_pending(x, q,
                         (struct subschema){ make_without(x, json_string_value(name)), list->path },
                         false, false);
    }
    return own != NULL;
}

/* Can push_exclusions make the alternatives disjoint? */
static bool is_of_required(struct schema_build *x, const struct subschema *list)
{
    for (size_t i = 0; i < json_array_size(list->s); i++)
        if (!push_exclusions(x, list, i, NULL)) return false;
    return true;
}

/* ---- expansion ---- */

/* Adds the assertions of a schema to acc, and the schemas it brings in to q. */
static void split_schema(struct schema_build *x, struct subschema p, struct pending *q,
                         struct conjunction *acc)
{
    const json_t *list, *target;
    bool asserts = false;
    const char *key;
    json_t *v;
    size_t i;
    char at[32];

    if (json_is_boolean(p.s)) {
        conjunction_add(x, acc, p.s, p.path);
        return;
    }
    if (!json_is_object(p.s)) {
        schema_fail(x, p.path, "a schema must be an object, true or false");
        return;
    }
    if (!schema_step(x, 32 + 16 * json_object_size(p.s))) return;
    json_object_foreach ((json_t *)p.s, key, v) {
        enum keyword_kind k = kind_of_keyword(key);
        if (k == KEY_UNKNOWN) schema_fail(x, p.path, "the keyword '%.60s' is not supported", key);
        asserts |= k == KEY_ASSERTION;
    }
    if (asserts) conjunction_add(x, acc, p.s, p.path);
    if (json_object_get(p.s, "$ref") && (target = schema_resolve(x, &p)))
        push_pending(x, q,
                     (struct subschema){ target, json_string_value(json_object_get(p.s, "$ref")) },
                     false, false);
    if ((list = read_list(x, &p, "allOf")))
        json_array_foreach (list, i, v) {
            snprintf(at, sizeof at, "allOf/%zu", i);
            push_pending(x, q, (struct subschema){ v, schema_extend_path(x, p.path, at) }, false,
                         false);
        }
    expand_dependent(x, &p, q);
    if ((list = read_list(x, &p, "anyOf")))
        push_pending(x, q, (struct subschema){ list, schema_extend_path(x, p.path, "anyOf") }, true,
                     false);
    if ((list = read_list(x, &p, "oneOf")))
        push_pending(x, q, (struct subschema){ list, schema_extend_path(x, p.path, "oneOf") }, true,
                     true);
}

/* Both directions: that b refuses all values generated for a does not imply the reverse. */
static void check_one_of(struct schema_build *x, const struct subschema *list)
{
    size_t n = json_array_size(list->s);

    if (is_of_required(x, list)) return;
    for (size_t i = 0; i < n && x->rc == OK; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k && !schema_are_disjoint(x, json_array_get(list->s, i),
                                               json_array_get(list->s, k), 0)) {
                schema_fail(
                    x, list->path,
                    "the schemas %zu and %zu of 'oneOf' may accept the same value, which is not "
                    "supported: use 'anyOf', or make them disjoint by type, const or required",
                    i < k ? i : k, i < k ? k : i);
                break;
            }
}

static void expand_pending(struct schema_build *x, struct pending q, struct conjunction acc,
                           struct rule_node *alt);

/* q is what remains after the choice. */
static void expand_choice(struct schema_build *x, struct pending *q, const struct subschema *list,
                          bool one, const struct conjunction *acc, struct rule_node *alt)
{
    bool exclude = one && is_of_required(x, list);
    const json_t *v;
    size_t i;
    char at[24];

    if (++x->n_choices > MAX_CHOICES)
        schema_fail(x, list->path,
                    "anyOf and oneOf are nested more than %d deep, or refer to "
                    "themselves",
                    MAX_CHOICES);
    json_array_foreach (list->s, i, v) {
        struct pending next = *q;
        if (!schema_step(x, 8)) break;
        snprintf(at, sizeof at, "%zu", i);
        if (exclude) push_exclusions(x, list, i, &next);
        push_pending(x, &next, (struct subschema){ v, schema_extend_path(x, list->path, at) },
                     false, false);
        expand_pending(x, next, *acc, alt);
    }
    x->n_choices--;
}

/* Adds the alternatives to alt. q and acc are copies: each alternative of a choice has its own. */
static void expand_pending(struct schema_build *x, struct pending q, struct conjunction acc,
                           struct rule_node *alt)
{
    const json_t *target;

    while (q.n > 0 && x->rc == OK) {
        struct subschema p = q.p[q.n - 1].part;
        bool choice = q.p[q.n - 1].choice, one = q.p[--q.n].one;
        if (choice) {
            if (one) check_one_of(x, &p);
            expand_choice(x, &q, &p, one, &acc, alt);
            return;
        }
        if (q.n == 0 && acc.n == 0 && schema_is_only_ref(p.s) && (target = schema_resolve(x, &p))) {
            struct conjunction alone = { .n = 0 };
            conjunction_add(x, &alone, target, json_string_value(json_object_get(p.s, "$ref")));
            rules_add_child(x->g, alt, schema_make_ref(x, &alone));
            return;
        }
        split_schema(x, p, &q, &acc);
    }
    if (x->rc != OK) return;
    if (++x->n_alternatives > MAX_ALTERNATIVES * 50 || alt->n_children > MAX_ALTERNATIVES)
        schema_fail(x, acc.n ? acc.p[0].path : "#",
                    "anyOf, oneOf and allOf make more than %d combinations", MAX_ALTERNATIVES);
    else rules_add_child(x->g, alt, schema_make_conjunction(x, &acc));
}

/* The parts are pushed in reverse, so that the first one is expanded first. */
struct rule_node *schema_make_body(struct schema_build *x, const struct conjunction *p)
{
    struct rule_node *alt = rules_node(x->g, NODE_ALT);
    struct pending q = { .n = 0 };

    for (int i = p->n - 1; i >= 0; i--) push_pending(x, &q, p->p[i], false, false);
    expand_pending(x, q, (struct conjunction){ .n = 0 }, alt);
    return alt->n_children == 1 ? alt->children[0] : alt;
}
