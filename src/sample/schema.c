#include "sample/schema_impl.h"

#include "base/jsonw.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

enum { ALTERNATIVES = 400, WORK = 4000, PENDING = 48, LITERAL_DEPTH = 30 };

/* ---- errors, paths, parts ---- */

int schema_bad(struct schema *x, const char *path, const char *fmt, ...)
{
    char what[320];
    va_list ap;

    if (x->rc != OK) return x->rc;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return x->rc = err_set(x->e, E_INVALID, "%.150s: %s", path, what);
}

const char *schema_path(struct schema *x, const char *path, const char *key)
{
    return arena_printf(&x->g->arena, "%.400s/%.80s", path, key);
}

bool parts_add(struct schema *x, struct parts *p, const json_t *s, const char *path)
{
    if (json_is_true(s)) return true;
    for (int i = 0; i < p->n; i++)
        if (p->p[i].s == s) return true;
    if (p->n == PARTS_MAX) {
        schema_bad(x, path, "more than %d schemas have to hold at once", PARTS_MAX);
        return false;
    }
    p->p[p->n++] = (struct part){ s, path };
    return true;
}

int schema_count(struct schema *x, const struct part *p, const char *key, int none)
{
    const json_t *v = json_object_get(p->s, key);
    double d;

    if (!v) return none;
    d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || (double)(int64_t)d != d)
        schema_bad(x, p->path, "'%s' must be a whole number, 0 or more", key);
    return d > 1e6 ? 1000000 : (int)d;
}

bool schema_fsm(struct schema *x, const struct gnode *n, const char *path, struct fsm *out)
{
    struct err e = { 0 };

    if (x->rc != OK) return false;
    if (fsm_make(out, n, &x->env, &e) == OK) return true;
    schema_bad(x, path, "%s", e.msg);
    return false;
}

/* ---- what every schema shares ---- */

struct gnode *schema_space(struct schema *x)
{
    return gnode_rep(x->g, gnode_c(x->g, " "), 0, 1);
}

static struct gnode *hex(struct schema *x, const char *ranges)
{
    struct cpset s = { 0 };

    for (; *ranges; ranges += 2) cpset_add(&s, &x->g->arena, ranges[0], ranges[1]);
    return gnode_class(x->g, s);
}

/* \uHHHH but for the halves of pairs, which are no characters, and for NUL, which few can read. */
static struct gnode *unicode_escape(struct schema *x)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT), *h = hex(x, "09afAF"), *h1 = hex(x, "19afAF"), *zero = gnode_c(g, "0");

    gnode_add(g, alt, GSEQ(g, hex(x, "19acAC"), h, h, h));
    gnode_add(g, alt, GSEQ(g, hex(x, "efEF"), h, h, h));
    gnode_add(g, alt, GSEQ(g, hex(x, "ddDD"), hex(x, "07"), h, h));
    gnode_add(g, alt, GSEQ(g, zero, h1, h, h));
    gnode_add(g, alt, GSEQ(g, zero, zero, h1, h));
    gnode_add(g, alt, GSEQ(g, zero, zero, zero, h1));
    return GSEQ(g, gnode_c(g, "u"), alt);
}

struct gnode *schema_chars(struct schema *x)
{
    struct grules *g = x->g;
    struct gnode *alt, *esc;
    struct cpset plain = { 0 };

    cpset_add(&plain, &g->arena, ' ', '!');
    cpset_add(&plain, &g->arena, '#', '[');
    cpset_add(&plain, &g->arena, ']', '~');
    cpset_add(&plain, &g->arena, 0x80, CP_LAST);
    alt = gnode_add(g, gnode_new(g, GN_ALT), gnode_class(g, plain));
    esc = gnode_add(g, gnode_new(g, GN_ALT), hex(x, "\"\"\\\\//bbffnnrrtt"));
    gnode_add(g, esc, unicode_escape(x));
    return gnode_add(g, alt, GSEQ(g, gnode_c(g, "\\"), esc));
}

static int shared_rule(struct schema *x, const char *name, struct gnode *body)
{
    int r = grules_new(x->g);

    x->g->rules[r].name = str_c(name);
    x->g->rules[r].body = body;
    x->g->rules[r].keep = true;
    return r;
}

struct gnode *schema_any_string(struct schema *x)
{
    struct grules *g = x->g;

    if (x->string < 0)
        x->string = shared_rule(x, "string", GSEQ(g, gnode_c(g, "\""),
                                                  gnode_rep(g, schema_chars(x), 0, GNODE_MANY), gnode_c(g, "\"")));
    return gnode_ref(g, x->string);
}

static struct gnode *list_of(struct schema *x, const char *open, struct gnode *item, const char *close)
{
    struct grules *g = x->g;
    struct gnode *more = gnode_rep(g, GSEQ(g, gnode_c(g, ","), schema_space(x), item), 0, GNODE_MANY);

    return GSEQ(g, gnode_c(g, open), schema_space(x), gnode_rep(g, GSEQ(g, item, more, schema_space(x)), 0, 1),
                gnode_c(g, close));
}

static struct gnode *any_object(struct schema *x, struct gnode *value)
{
    struct grules *g = x->g;

    return list_of(x, "{", GSEQ(g, schema_any_string(x), gnode_c(g, ":"), schema_space(x), value), "}");
}

static int any_value(struct schema *x)
{
    struct grules *g = x->g;
    struct gnode *alt, *self;
    struct parts none = { .n = 0 };
    int object, array;

    if (x->any >= 0) return x->any;
    x->any = shared_rule(x, "value", NULL);
    self = gnode_ref(g, x->any);
    object = shared_rule(x, "object", any_object(x, self));
    array = shared_rule(x, "array", list_of(x, "[", self, "]"));
    alt = gnode_add(g, gnode_new(g, GN_ALT), gnode_ref(g, object));
    gnode_add(g, alt, gnode_ref(g, array));
    gnode_add(g, alt, schema_any_string(x));
    gnode_add(g, alt, schema_number(x, &none, false));
    gnode_add(g, alt, gnode_c(g, "true"));
    gnode_add(g, alt, gnode_c(g, "false"));
    gnode_add(g, alt, gnode_c(g, "null"));
    g->rules[x->any].body = alt;
    return x->any;
}

/* ---- literals ---- */

static bool write_value(struct jsonw *w, const json_t *v, int depth)
{
    const char *key;
    json_t *item;
    size_t i;

    if (depth > LITERAL_DEPTH) return false;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        jsonw_obj(w);
        json_object_foreach((json_t *)v, key, item) {
            jsonw_key(w, key);
            if (!write_value(w, item, depth + 1)) return false;
        }
        jsonw_end(w);
        break;
    case JSON_ARRAY:
        jsonw_arr(w);
        json_array_foreach(v, i, item)
            if (!write_value(w, item, depth + 1)) return false;
        jsonw_end(w);
        break;
    case JSON_STRING: jsonw_str(w, str_of(json_string_value(v), json_string_length(v))); break;
    case JSON_INTEGER: jsonw_int(w, json_integer_value(v)); break;
    case JSON_REAL: jsonw_num(w, json_real_value(v)); break;
    case JSON_NULL: jsonw_null(w); break;
    default: jsonw_bool(w, json_is_true(v));
    }
    return true;
}

struct gnode *schema_literal(struct schema *x, const json_t *v)
{
    struct buf text = { 0 };
    struct jsonw w = { .out = &text };
    struct gnode *n = write_value(&w, v, 0) ? gnode_lit(x->g, buf_str(&text)) : NULL;

    buf_release(&text);
    return n;
}

/* ---- types ---- */

static unsigned type_named(struct str name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {
        { "null", T_NULL }, { "boolean", T_BOOL }, { "object", T_OBJECT }, { "array", T_ARRAY },
        { "string", T_STRING }, { "integer", T_INTEGER }, { "number", T_NUMBER | T_INTEGER },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(name, names[i].name)) return names[i].bits;
    return 0;
}

static unsigned type_of(struct schema *x, const struct part *p, const json_t *v)
{
    unsigned t = json_is_string(v) ? type_named(str_c(json_string_value(v))) : 0;

    if (!t) schema_bad(x, p->path, "'type' must be null, boolean, object, array, string, integer, number, or a list "
                                   "of these");
    return t;
}

unsigned schema_types(struct schema *x, const struct part *p)
{
    const json_t *v = json_object_get(p->s, "type"), *item;
    unsigned t = 0;
    size_t i;

    if (!v) return T_ALL;
    if (json_is_array(v)) json_array_foreach(v, i, item) t |= type_of(x, p, item);
    else t = type_of(x, p, v);
    if (json_is_true(json_object_get(p->s, "nullable"))) t |= T_NULL;
    return t;
}

/* Kinds of values that keywords speak of, where no type is named. */
static unsigned implied_types(const struct parts *p)
{
    static const struct {
        const char *key;
        unsigned bits;
    } keys[] = {
        { "properties", T_OBJECT }, { "required", T_OBJECT }, { "additionalProperties", T_OBJECT },
        { "patternProperties", T_OBJECT }, { "minProperties", T_OBJECT }, { "maxProperties", T_OBJECT },
        { "propertyNames", T_OBJECT }, { "items", T_ARRAY }, { "prefixItems", T_ARRAY }, { "minItems", T_ARRAY },
        { "maxItems", T_ARRAY }, { "uniqueItems", T_ARRAY }, { "minLength", T_STRING }, { "maxLength", T_STRING },
        { "pattern", T_STRING }, { "format", T_STRING }, { "minimum", T_NUMBER }, { "maximum", T_NUMBER },
        { "exclusiveMinimum", T_NUMBER }, { "exclusiveMaximum", T_NUMBER }, { "multipleOf", T_NUMBER },
    };
    unsigned t = 0;

    for (int i = 0; i < p->n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (json_object_get(p->p[i].s, keys[k].key)) t |= keys[k].bits;
    return t & T_NUMBER ? t | T_INTEGER : t;
}

/* ---- one conjunction ---- */

/* A list of values that one of the parts names, and all others admit. */
static struct gnode *values_node(struct schema *x, const struct parts *p, const json_t *list, int from)
{
    struct gnode *alt = gnode_new(x->g, GN_ALT);
    size_t i;
    json_t *v;

    json_array_foreach(list, i, v) {
        bool fits = true;
        struct gnode *lit;
        for (int k = 0; k < p->n && fits; k++)
            fits = (k == from ? schema_admits_own : schema_admits)(x, &p->p[k], v);
        if (!fits) continue;
        if (!(lit = schema_literal(x, v))) {
            schema_bad(x, p->p[from].path, "a value is nested more than %d deep", LITERAL_DEPTH);
            break;
        }
        gnode_add(x->g, alt, lit);
    }
    return alt;
}

static struct gnode *enum_node(struct schema *x, const struct parts *p)
{
    struct gnode *n;
    json_t *one;

    for (int i = 0; i < p->n; i++) {
        const json_t *v = json_object_get(p->p[i].s, "const");
        if (!v) continue;
        one = json_pack("[O]", v);
        n = values_node(x, p, one, i);
        json_decref(one);
        return n;
    }
    for (int i = 0; i < p->n; i++) {
        const json_t *v = json_object_get(p->p[i].s, "enum");
        if (v && !json_is_array(v)) schema_bad(x, p->p[i].path, "'enum' must be a list");
        if (v) return values_node(x, p, v, i);
    }
    return NULL;
}

static struct gnode *conjunction(struct schema *x, const struct parts *p)
{
    struct grules *g = x->g;
    struct gnode *alt, *values;
    unsigned types = T_ALL, implied;
    bool named = false;

    for (int i = 0; i < p->n; i++) {
        if (json_is_false(p->p[i].s)) return gnode_new(g, GN_NEVER);
        types &= schema_types(x, &p->p[i]);
        named |= json_object_get(p->p[i].s, "type") != NULL;
    }
    if (x->rc != OK) return gnode_new(g, GN_NEVER);
    if ((values = enum_node(x, p))) return values;
    implied = implied_types(p);
    if (!named && implied) types = implied;
    if (types == T_ALL && !implied) return gnode_ref(g, any_value(x));
    alt = gnode_new(g, GN_ALT);
    if (types & T_OBJECT) gnode_add(g, alt, schema_object(x, p));
    if (types & T_ARRAY) gnode_add(g, alt, schema_array(x, p));
    if (types & T_STRING) gnode_add(g, alt, schema_string(x, p));
    if (types & (T_NUMBER | T_INTEGER)) gnode_add(g, alt, schema_number(x, p, !(types & T_NUMBER)));
    if (types & T_BOOL) gnode_add(g, gnode_add(g, alt, gnode_c(g, "true")), gnode_c(g, "false"));
    if (types & T_NULL) gnode_add(g, alt, gnode_c(g, "null"));
    return alt->n_kids == 1 ? alt->kids[0] : alt;
}

/* ---- alternatives ---- */

enum keyword_kind { KEY_SAYS, KEY_JOINS, KEY_NOTES, KEY_UNKNOWN };

static enum keyword_kind keyword(const char *key)
{
    static const char *const says[] = {
        "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties",
        "propertyNames", "minProperties", "maxProperties", "items", "prefixItems", "additionalItems", "minItems",
        "maxItems", "uniqueItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "nullable", NULL
    };
    static const char *const joins[] = { "$ref", "allOf", "anyOf", "oneOf", "dependentRequired", NULL };
    static const char *const notes[] = {
        "title", "description", "default", "examples", "example", "$schema", "$id", "id", "$comment", "$defs",
        "definitions", "$anchor", "$vocabulary", "deprecated", "readOnly", "writeOnly", "contentMediaType",
        "contentEncoding", "contentSchema", "discriminator", "xml", "externalDocs", NULL
    };

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
        bool choice, one;        /* a list: any of it, or exactly one */
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
static bool is_only_ref(const json_t *s)
{
    const char *key;
    json_t *v;

    if (!json_object_get(s, "$ref")) return false;
    json_object_foreach((json_t *)s, key, v) if (strcmp(key, "$ref") && keyword(key) != KEY_NOTES) return false;
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
    json_object_foreach((json_t *)v, name, list) {
        if (!json_is_array(list)) schema_bad(x, path, "must be lists of names");
        if (x->rc != OK) return;
        all = json_copy(list);
        json_array_append_new(all, json_string(name));
        pend(x, q, (struct part){ keep(x, json_pack("[O,{s:o}]", without(x, name), "required", all)), path }, true, false);
    }
}

/* Is there nothing in it but a list of required names? */
static const json_t *only_required(const json_t *s)
{
    const json_t *list = json_object_get(s, "required");
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)s, key, v)
        if (strcmp(key, "required") && strcmp(key, "type") && keyword(key) != KEY_NOTES) return NULL;
    return json_array_size(list) ? list : NULL;
}

static bool names_it(const json_t *list, const json_t *name)
{
    size_t i;
    json_t *v;

    json_array_foreach(list, i, v) if (json_equal(v, name)) return true;
    return false;
}

/* Exactly one of some lists of required names: then of every other list one name is left out. false: it is not
 * that. */
static bool pend_others(struct schema *x, const struct part *list, size_t i, struct pending *q)
{
    const json_t *own = only_required(json_array_get(list->s, i)), *other, *name;

    for (size_t k = 0; own && k < json_array_size(list->s); k++) {
        size_t n = 0;
        if (k == i) continue;
        if (!(other = only_required(json_array_get(list->s, k)))) return false;
        while ((name = json_array_get(other, n)) && names_it(own, name)) n++;
        if (!json_is_string(name)) return false;
        if (q) pend(x, q, (struct part){ without(x, json_string_value(name)), list->path }, false, false);
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
    json_object_foreach((json_t *)p.s, key, v) {
        enum keyword_kind k = keyword(key);
        if (k == KEY_UNKNOWN) schema_bad(x, p.path, "the keyword '%.60s' is not supported", key);
        says |= k == KEY_SAYS;
    }
    if (says) parts_add(x, acc, p.s, p.path);
    if (json_object_get(p.s, "$ref") && (target = schema_resolve(x, &p)))
        pend(x, q, (struct part){ target, json_string_value(json_object_get(p.s, "$ref")) }, false, false);
    if ((list = list_at(x, &p, "allOf")))
        json_array_foreach(list, i, v) {
            snprintf(at, sizeof at, "allOf/%zu", i);
            pend(x, q, (struct part){ v, schema_path(x, p.path, at) }, false, false);
        }
    take_dependent(x, &p, q);
    if ((list = list_at(x, &p, "anyOf"))) pend(x, q, (struct part){ list, schema_path(x, p.path, "anyOf") }, true, false);
    if ((list = list_at(x, &p, "oneOf"))) pend(x, q, (struct part){ list, schema_path(x, p.path, "oneOf") }, true, true);
}

static void check_one_of(struct schema *x, const struct part *list)
{
    size_t n = json_array_size(list->s);

    if (is_of_required(x, list)) return;
    for (size_t i = 0; i < n && x->rc == OK; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k && !schema_apart(x, json_array_get(list->s, i), json_array_get(list->s, k), 0)) {
                schema_bad(x, list->path,
                           "the schemas %zu and %zu of 'oneOf' may accept the same value, which is not supported: "
                           "use 'anyOf', or tell them apart by type, const or required", i < k ? i : k,
                           i < k ? k : i);
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

    json_array_foreach(list->s, i, v) {
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
        if (q.n == 0 && acc.n == 0 && is_only_ref(p.s) && (target = schema_resolve(x, &p))) {
            struct parts alone = { .n = 0 };
            parts_add(x, &alone, target, json_string_value(json_object_get(p.s, "$ref")));
            gnode_add(x->g, alt, schema_value(x, &alone));
            return;
        }
        take_schema(x, p, &q, &acc);
    }
    if (x->rc != OK) return;
    if (++x->n_alternatives > ALTERNATIVES * 50 || alt->n_kids > ALTERNATIVES)
        schema_bad(x, acc.n ? acc.p[0].path : "#", "anyOf, oneOf and allOf make more than %d combinations", ALTERNATIVES);
    else gnode_add(x->g, alt, conjunction(x, &acc));
}

static struct gnode *body_of(struct schema *x, const struct parts *p)
{
    struct gnode *alt = gnode_new(x->g, GN_ALT);
    struct pending q = { .n = 0 };

    for (int i = p->n - 1; i >= 0; i--) pend(x, &q, p->p[i], false, false);
    expand(x, q, (struct parts){ .n = 0 }, alt);
    return alt->n_kids == 1 ? alt->kids[0] : alt;
}

/* ---- rules ---- */

struct gnode *schema_value(struct schema *x, const struct parts *p)
{
    const json_t *key[PARTS_MAX];
    uint64_t known;
    struct str k;
    int rule;

    if (p->n == 0) return gnode_ref(x->g, any_value(x));
    for (int i = 0; i < p->n; i++) key[i] = p->p[i].s;
    k = str_of((const char *)key, (size_t)p->n * sizeof *key);
    if (map_get(&x->rules, k, &known)) return gnode_ref(x->g, (int)known);
    rule = grules_new(x->g);
    if (x->n_work == WORK) schema_bad(x, p->p[0].path, "the schema has more than %d parts", WORK);
    if (x->rc != OK) return gnode_new(x->g, GN_NEVER);
    x->g->rules[rule].name = arena_str(&x->g->arena, str_c(p->p[0].path));
    map_put(&x->rules, arena_str(&x->g->arena, k), (uint64_t)rule);
    if (x->n_work == x->cap_work) {
        x->cap_work = x->cap_work ? 2 * x->cap_work : 16;
        x->work = mem_grow(x->work, (size_t)x->cap_work * sizeof *x->work);
    }
    x->work[x->n_work++] = (struct schema_work){ *p, rule };
    return gnode_ref(x->g, rule);
}

static void schema_init(struct schema *x, struct grules *g, const json_t *root, struct err *e)
{
    *x = (struct schema){ .g = g, .root = root, .e = e, .any = -1, .string = -1, .chars = -1, .number = -1,
                          .integer = -1, .space = -1 };
    x->env = (struct fsm_env){ .g = g, .work = FSM_WORK };
}

static void schema_release(struct schema *x)
{
    map_release(&x->rules);
    map_release(&x->strings);
    json_decref(x->made);
    mem_free(x->work);
}

int schema_add(struct grules *g, const json_t *schema, int *rule, struct err *e)
{
    struct parts all = { .n = 0 };
    struct gnode *top;
    struct schema x;

    schema_init(&x, g, schema, e);
    parts_add(&x, &all, schema, "#");
    top = schema_value(&x, &all);
    *rule = top->rule;
    for (int i = 0; i < x.n_work && x.rc == OK; i++) {
        struct parts p = x.work[i].parts;
        struct gnode *body = body_of(&x, &p);
        g->rules[x.work[i].rule].body = body;
        if (g->full) schema_bad(&x, p.p[0].path, "the schema is too large");
    }
    schema_release(&x);
    return x.rc;
}

int schema_any_object(struct grules *g)
{
    struct schema x;
    int rule;

    schema_init(&x, g, NULL, NULL);
    rule = shared_rule(&x, "root", any_object(&x, gnode_ref(g, any_value(&x))));
    schema_release(&x);
    return rule;
}
