/* schema_object.c - objects of a schema: named properties, patternProperties, propertyNames,
 * additionalProperties, and the number of properties.
 *
 * An object is a LIST node: the named members in their order, required or not, then members with
 * other keys if they are allowed. The keys of those are a DFA: all keys that propertyNames accepts,
 * intersected with the patterns that match and without the patterns that do not, and without the
 * named keys. There is one alternative for each set of patterns, because a value must satisfy the
 * schemas of all patterns that match its key. */
#include "grammar/schema_impl.h"

#include "base/jsonw.h"
#include "base/mem.h"

enum {
    MAX_COUNTED = 64,  /* properties that minProperties and maxProperties count */
    MAX_PATTERNS = 5,  /* patternProperties: 2^5 sets */
    MAX_MEMBERS = 4000 /* named properties */
};

/* ---- named properties ---- */

struct property {
    const char *name; /* borrowed from the schema */
    bool required;
};

struct property_list {
    struct property *p;
    int n, cap;
    struct map at; /* name → index */
};

static void add_property(struct schema_build *x, struct property_list *l, const char *name,
                         bool required)
{
    uint64_t i;

    if (!schema_step(x, 1)) return;
    if (map_get(&l->at, str_c(name), &i)) {
        l->p[i].required |= required;
        return;
    }
    if (l->n == MAX_MEMBERS)
        schema_fail(x, "#", "an object has more than %d properties", MAX_MEMBERS);
    if (x->rc != OK) return;
    if (!budget_ensure(x->g->budget, l->p, l->cap, l->n + 1) ||
        budget_map_put(x->g->budget, &l->at, str_c(name), (uint64_t)l->n) == E_NOMEM) {
        schema_nomem(x);
        return;
    }
    l->p[l->n++] = (struct property){ name, required };
}

static void property_list_release(struct property_list *l, struct budget *b)
{
    budget_free(b, l->p, l->cap);
    budget_map_release(b, &l->at);
}

/* Adds the required names of a part; a name may be required without being a property. */
static void list_required(struct schema_build *x, const struct subschema *s,
                          struct property_list *l)
{
    const json_t *required = json_object_get(s->s, "required"), *v;
    size_t k;

    /* a boolean is what draft 3 writes into the property itself */
    if (required && !json_is_array(required) && !json_is_boolean(required))
        schema_fail(x, s->path, "'required' must be a list of names");
    if (!json_is_array(required)) return;
    json_array_foreach (required, k, v) {
        if (json_is_string(v)) add_property(x, l, json_string_value(v), true);
        else schema_fail(x, s->path, "'required' must be a list of names");
    }
}

/* Properties in the order of the schema, then names that are only required. */
static void list_properties(struct schema_build *x, const struct conjunction *p,
                            struct property_list *l)
{
    for (int i = 0; i < p->n; i++) {
        const json_t *props = json_object_get(p->p[i].s, "properties");
        const char *key;
        json_t *v;
        if (props && !json_is_object(props))
            schema_fail(x, p->p[i].path, "'properties' must be an object");
        else if (props)
            json_object_foreach ((json_t *)props, key, v) add_property(x, l, key, false);
    }
    for (int i = 0; i < p->n; i++) list_required(x, &p->p[i], l);
}

/* ---- pattern properties ---- */

/* The patternProperties of all parts. A set of them is a bit set of indexes. */
struct key_patterns {
    struct key_pattern {
        struct dfa dfa; /* over the key as it is written in JSON, without quotes */
        const json_t *schema;
        const char *path;
        int part; /* the part it belongs to */
    } p[MAX_PATTERNS];
    int n;
};

static void key_patterns_release(struct key_patterns *k)
{
    for (int i = 0; i < k->n; i++) dfa_release(&k->p[i].dfa);
}

static void add_key_pattern(struct schema_build *x, const struct subschema *s, int part,
                            const char *pattern, const json_t *schema, struct key_patterns *k)
{
    struct rule_node *n;
    struct dfa f;
    struct err e = { 0 };

    if (k->n == MAX_PATTERNS)
        schema_fail(x, s->path, "more than %d 'patternProperties' are not supported", MAX_PATTERNS);
    if (x->rc != OK) return;
    if (pattern_parse(&n, x->g, str_c(pattern), PATTERN_JSON, false, &e) != OK)
        schema_fail_with(x, s->path, "'patternProperties': ", &e);
    else if (schema_build_dfa(x, n, s->path, &f))
        k->p[k->n++] =
            (struct key_pattern){ f, schema, schema_extend_path(x, s->path, "patternProperties"),
                                  part };
}

static void list_key_patterns(struct schema_build *x, const struct conjunction *p,
                              struct key_patterns *k)
{
    for (int i = 0; i < p->n; i++) {
        const json_t *list = json_object_get(p->p[i].s, "patternProperties");
        const char *key;
        json_t *v;
        if (list && !json_is_object(list))
            schema_fail(x, p->p[i].path, "'patternProperties' must be an object");
        if (list)
            json_object_foreach ((json_t *)list, key, v) add_key_pattern(x, &p->p[i], i, key, v, k);
    }
}

/* The patterns that match a key. */
static unsigned match_key(struct schema_build *x, const struct key_patterns *k, struct str key)
{
    unsigned bits = 0;

    if (k->n && !schema_step(x, key.n)) return 0;
    for (int i = 0; i < k->n; i++)
        if (dfa_accepts(&k->p[i].dfa, key)) bits |= 1u << i;
    return bits;
}

/* A key as JSON writes it, with its quotes; in the arena. */
static struct str quote_key(struct schema_build *x, const char *name)
{
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    struct str s;

    jsonw_str(&w, str_c(name));
    s = arena_str(&x->g->arena, buf_str(&b));
    if (b.failed || !s.p) {
        schema_nomem(x);
        s = STR("\"\"");
    }
    buf_release(&b);
    return s;
}

static struct str strip_quotes(struct str key) { return str_of(key.p + 1, key.n - 2); }

/* The schemas of all parts for the value of a key. name NULL: the key is not named. matched: the
 * patterns that match it. false: the key may not be there, or x has an error. */
static bool find_value_schemas(struct schema_build *x, const struct conjunction *p,
                               const struct key_patterns *k, const char *name, unsigned matched,
                               struct conjunction *out)
{
    out->n = 0;
    for (int i = 0; i < p->n; i++) {
        const json_t *props = json_object_get(p->p[i].s, "properties");
        const json_t *v = name ? json_object_get(props, name) : NULL;
        const json_t *more = json_object_get(p->p[i].s, "additionalProperties");
        bool found = v != NULL;
        if (v)
            conjunction_add(
                x, out, v,
                schema_extend_path(x, schema_extend_path(x, p->p[i].path, "properties"), name));
        for (int j = 0; j < k->n; j++)
            if (k->p[j].part == i && matched >> j & 1) {
                conjunction_add(x, out, k->p[j].schema, k->p[j].path);
                found = true;
            }
        if (!found && more)
            conjunction_add(x, out, more,
                            schema_extend_path(x, p->p[i].path, "additionalProperties"));
    }
    for (int i = 0; i < out->n; i++)
        if (json_is_false(out->p[i].s)) return false;
    return x->rc == OK;
}

/* ---- keys that are not named ---- */

/* The keys of all named properties. */
static bool build_named_keys_dfa(struct schema_build *x, const struct property_list *l,
                                 const char *path, struct dfa *out)
{
    struct rule_node *alt = rules_node(x->g, NODE_ALT);

    for (int i = 0; i < l->n; i++)
        rules_add_child(x->g, alt, rules_literal(x->g, strip_quotes(quote_key(x, l->p[i].name))));
    return schema_build_dfa(x, alt, path, out);
}

/* Keywords of propertyNames that are enforced, or say nothing about names. */
static bool is_name_keyword(const char *key)
{
    static const char *const known[] = { "pattern", "minLength",   "maxLength", "format",
                                         "type",    "description", "title" };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i], key)) return true;
    return false;
}

/* All keys that propertyNames accepts. *limited: these are not all strings. */
static bool build_all_keys_dfa(struct schema_build *x, const struct conjunction *p, struct dfa *out,
                               bool *limited)
{
    struct conjunction names = { .n = 0 };
    struct charset any = { 0 };

    for (int i = 0; i < p->n; i++) {
        const json_t *v = json_object_get(p->p[i].s, "propertyNames");
        const char *key, *path = schema_extend_path(x, p->p[i].path, "propertyNames");
        json_t *w;
        if (!v || json_is_true(v)) continue;
        if (!json_is_object(v)) return schema_fail(x, path, "must be an object or true"), false;
        json_object_foreach ((json_t *)v, key, w)
            if (!is_name_keyword(key))
                return schema_fail(x, path, "the keyword '%.60s' is not supported here", key),
                       false;
        conjunction_add(x, &names, v, path);
    }
    *limited = names.n > 0 && schema_build_string_dfa(x, &names, out);
    if (*limited || x->rc != OK) return x->rc == OK;
    charset_add(&any, &x->g->arena, ' ', '~');
    charset_add(&any, &x->g->arena, 0xa0, CHARSET_LAST);
    return schema_build_dfa(
        x, rules_repeat(x->g, pattern_make_char(x->g, any, PATTERN_JSON), 1, RULES_UNBOUNDED), "#",
        out);
}

/* key: VALUE */
static struct rule_node *make_member(struct schema_build *x, struct rule_node *key,
                                     const struct conjunction *value)
{
    struct rules *g = x->g;
    return RULES_SEQ(g, key, rules_text(g, ":"), schema_make_space(x), schema_make_ref(x, value));
}

/* Intersects or subtracts the patterns, named keys and first letters from *f. */
static void limit_keys(struct schema_build *x, const char *path, const struct key_patterns *k,
                       const struct property_list *l, unsigned matched,
                       const struct rule_node *first, struct dfa *f)
{
    struct dfa named = { 0 };

    for (int i = 0; i < k->n; i++)
        schema_combine_dfa(x, f, &k->p[i].dfa, matched >> i & 1 ? DFA_INTERSECT : DFA_SUBTRACT,
                           path);
    if (l->n && build_named_keys_dfa(x, l, path, &named))
        schema_combine_dfa(x, f, &named, DFA_SUBTRACT, path);
    dfa_release(&named);
    if (first) schema_intersect_dfa(x, f, first, path);
}

/* Members whose keys are not named and match exactly these patterns. first: how the keys begin, or
 * NULL. NULL: there can be none, or x has an error. */
static struct rule_node *make_open_member(struct schema_build *x, const struct conjunction *p,
                                          const struct key_patterns *k,
                                          const struct property_list *l, unsigned matched,
                                          const struct rule_node *first)
{
    struct rules *g = x->g;
    struct rule_node *key = NULL;
    struct conjunction value;
    struct dfa f = { 0 };
    bool limited = false;

    if (!find_value_schemas(x, p, k, NULL, matched, &value)) return NULL;
    if (!build_all_keys_dfa(x, p, &f, &limited)) return NULL;
    if (!limited && l->n == 0 && k->n == 0 && !first) {
        dfa_release(&f);
        return make_member(x, schema_make_any_string(x), &value);
    }
    limit_keys(x, p->p[0].path, k, l, matched, first, &f);
    if (x->rc == OK && dfa_trim(&f))
        key = RULES_SEQ(g, rules_text(g, "\""), dfa_node(g, &f), rules_text(g, "\""));
    dfa_release(&f);
    return key ? make_member(x, key, &value) : NULL;
}

/* May there be members that are neither named nor match a pattern? Where properties are named, only
 * if additionalProperties is there. */
static bool is_open(const struct conjunction *p)
{
    bool named = false, allowed = false;

    for (int i = 0; i < p->n; i++) {
        named |= json_object_size(json_object_get(p->p[i].s, "properties")) > 0 ||
                 json_object_get(p->p[i].s, "patternProperties");
        allowed |= json_object_get(p->p[i].s, "additionalProperties") != NULL;
    }
    return allowed || !named;
}

/* All members with keys that are not named. NULL: there can be none. */
static struct rule_node *make_more_members(struct schema_build *x, const struct conjunction *p,
                                           const struct key_patterns *k,
                                           const struct property_list *l,
                                           const struct rule_node *first)
{
    struct rule_node *alt = rules_node(x->g, NODE_ALT), *m;

    for (unsigned s = 0; s < 1u << k->n && x->rc == OK; s++)
        if ((s || is_open(p)) && (m = make_open_member(x, p, k, l, s, first)))
            rules_add_child(x->g, alt, m);
    return alt->n_children ? alt : NULL;
}

/* ---- objects ---- */

struct object_build {
    struct property_list names;
    struct key_patterns keys;
    struct rule_node *list; /* the LIST node with the members so far */
    struct rule_list *info; /* of that node */
    bool *needed;           /* [names.n + MAX_COUNTED + 1] */
    struct count_bounds n;  /* properties */
    bool impossible;        /* a required member may not be there */
};

/* A maximum above the limit is lowered to it: fewer texts, but all of them are accepted. A minimum
 * above it cannot be enforced. */
static void read_counts(struct schema_build *x, const struct conjunction *p, struct object_build *o)
{
    o->n = schema_read_bounds(x, p, "minProperties", "maxProperties", 0);
    if (o->n.max > MAX_COUNTED) o->n.max = MAX_COUNTED;
    if (o->n.min > MAX_COUNTED)
        schema_fail(x, p->p[0].path, "'minProperties' above %d is not supported", MAX_COUNTED);
}

/* Adds the named members to the list. A name whose value no schema accepts is left out. */
static void add_named(struct schema_build *x, const struct conjunction *p, struct object_build *o)
{
    struct rules *g = x->g;

    for (int i = 0; i < o->names.n && x->rc == OK; i++) {
        const struct property *prop = &o->names.p[i];
        struct str key = quote_key(x, prop->name);
        unsigned matched = match_key(x, &o->keys, strip_quotes(key));
        struct conjunction value;
        if (!find_value_schemas(x, p, &o->keys, prop->name, matched, &value)) {
            o->impossible |= prop->required;
            continue;
        }
        o->needed[o->list->n_children] = prop->required;
        rules_add_child(g, o->list, make_member(x, rules_literal(g, key), &value));
    }
}

/* Members that minProperties requires beyond the named ones. The first letters of their keys are
 * disjoint, so that no two have the same key. */
static void add_distinct(struct schema_build *x, const struct conjunction *p,
                         struct object_build *o)
{
    int n_named = o->list->n_children, n = o->n.min - n_named;

    for (int i = 0; i < n_named; i++) o->needed[i] = true;
    if (n > 26)
        schema_fail(
            x, p->p[0].path,
            "'minProperties' requires %d more properties than are named; at most 26 are supported",
            n);
    for (int i = 0; i < n && x->rc == OK; i++) {
        struct charset letters = { 0 };
        struct rule_node *m,
            *rest = rules_repeat(x->g, rules_range(x->g, 0, CHARSET_LAST), 0, RULES_UNBOUNDED);
        charset_add(&letters, &x->g->arena, 'a' + i * 26 / n, 'a' + (i + 1) * 26 / n - 1);
        charset_add(&letters, &x->g->arena, 'A' + i * 26 / n, 'A' + (i + 1) * 26 / n - 1);
        m = make_more_members(x, p, &o->keys, &o->names,
                              RULES_SEQ(x->g, rules_class(x->g, letters), rest));
        if (rules_failed(x->g)) schema_nomem(x);
        if (!m && (is_open(p) || o->keys.n))
            schema_fail(
                x, p->p[0].path,
                "'minProperties' cannot be reached, or only in ways that are not supported");
        o->impossible |= !m;
        if (m) {
            o->needed[o->list->n_children] = true;
            rules_add_child(x->g, o->list, m);
        }
    }
}

/* Adds the members that are not named. NULL: no object satisfies the schema. */
static struct rule_node *finish_object(struct schema_build *x, const struct conjunction *p,
                                       struct object_build *o)
{
    struct rules *g = x->g;
    int n_needed = 0;

    if (o->n.min > o->list->n_children) {
        add_distinct(x, p, o);
        o->info->more = make_more_members(x, p, &o->keys, &o->names, NULL);
    } else {
        for (int i = 0; i < o->list->n_children; i++) n_needed += o->needed[i];
        /* Two members that are not named may have the same key: they cannot count for the minimum. */
        if (o->n.min <= n_needed)
            o->info->more = make_more_members(x, p, &o->keys, &o->names, NULL);
    }
    if (o->impossible) return NULL;
    o->info->sep = RULES_SEQ(g, rules_text(g, ","), schema_make_space(x));
    o->info->needed = o->needed;
    o->info->min = o->n.min;
    o->info->max = o->n.max;
    return RULES_SEQ(g, rules_text(g, "{"), schema_make_space(x), o->list, schema_make_space(x),
                     rules_text(g, "}"));
}

struct rule_node *schema_make_object(struct schema_build *x, const struct conjunction *p)
{
    struct object_build o = { .list = rules_node(x->g, NODE_LIST),
                              .info = arena_new(&x->g->arena, struct rule_list) };
    struct rule_node *n = NULL;

    o.list->list = o.info;
    read_counts(x, p, &o);
    list_properties(x, p, &o.names);
    list_key_patterns(x, p, &o.keys);
    o.needed = arena_array(&x->g->arena, (size_t)o.names.n + MAX_COUNTED + 1, sizeof *o.needed);
    if (!o.info || !o.needed) schema_nomem(x);
    if (x->rc == OK) add_named(x, p, &o);
    if (x->rc == OK && !o.impossible && !schema_bounds_empty(&o.n)) n = finish_object(x, p, &o);
    property_list_release(&o.names, x->g->budget);
    key_patterns_release(&o.keys);
    return n && x->rc == OK ? n : rules_node(x->g, NODE_NEVER);
}
