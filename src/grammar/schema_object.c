/* schema_object.c - objects of a schema. */
#include "grammar/schema_impl.h"

#include "base/jsonw.h"
#include "base/mem.h"

enum { COUNTED = 64, PATTERNS = 5, MEMBERS = 4000 };

/* ---- what an object may hold ---- */

struct names {
    const char **p;
    bool *needed;
    int n, cap;
    struct map at;
};

static void names_add(struct schema *x, struct names *l, const char *name, bool needed)
{
    uint64_t i;

    if (map_get(&l->at, str_c(name), &i)) {
        l->needed[i] |= needed;
        return;
    }
    if (l->n == MEMBERS) schema_bad(x, "#", "an object has more than %d properties", MEMBERS);
    if (x->rc != OK) return;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        l->p = mem_grow(l->p, (size_t)l->cap * sizeof *l->p);
        l->needed = mem_grow(l->needed, (size_t)l->cap * sizeof *l->needed);
    }
    l->p[l->n] = name;
    l->needed[l->n] = needed;
    map_put(&l->at, str_c(name), (uint64_t)l->n++);
}

static void names_release(struct names *l)
{
    mem_free(l->p);
    mem_free(l->needed);
    map_release(&l->at);
}

/* Properties in the order they are written, then what is only required. */
static void find_names(struct schema *x, const struct parts *p, struct names *l)
{
    for (int i = 0; i < p->n; i++) {
        const json_t *props = json_object_get(p->p[i].s, "properties");
        const char *key;
        json_t *v;
        if (props && !json_is_object(props))
            schema_bad(x, p->p[i].path, "'properties' must be an object");
        else if (props)
            json_object_foreach ((json_t *)props, key, v) names_add(x, l, key, false);
    }
    for (int i = 0; i < p->n; i++) {
        const json_t *req = json_object_get(p->p[i].s, "required"), *v;
        size_t k;
        if (req && !json_is_array(req) &&
            !json_is_boolean(req)) /* draft 3 has a boolean: of the property itself */
            schema_bad(x, p->p[i].path, "'required' must be a list of names");
        if (json_is_array(req))
            json_array_foreach (req, k, v) {
                if (json_is_string(v)) names_add(x, l, json_string_value(v), true);
                else schema_bad(x, p->p[i].path, "'required' must be a list of names");
            }
    }
}

/* The patterns of all parts, as machines over the inside of a key. */
struct keys {
    struct fsm fsm[PATTERNS];
    const json_t *schema[PATTERNS];
    const char *path[PATTERNS];
    int part[PATTERNS];
    int n;
};

static void keys_release(struct keys *k)
{
    for (int i = 0; i < k->n; i++) fsm_release(&k->fsm[i]);
}

static void find_keys(struct schema *x, const struct parts *p, struct keys *k)
{
    for (int i = 0; i < p->n; i++) {
        const json_t *list = json_object_get(p->p[i].s, "patternProperties");
        const char *key;
        json_t *v;
        if (list && !json_is_object(list))
            schema_bad(x, p->p[i].path, "'patternProperties' must be an object");
        if (list)
            json_object_foreach ((json_t *)list, key, v) {
                struct gnode *n;
                struct err e = { 0 };
                if (k->n == PATTERNS)
                    schema_bad(x, p->p[i].path,
                               "more than %d 'patternProperties' are not supported", PATTERNS);
                if (x->rc != OK) return;
                if (pattern_parse(&n, x->g, str_c(key), PATTERN_JSON, false, &e) != OK)
                    schema_bad(x, p->p[i].path, "'patternProperties': %s", e.msg);
                else if (schema_fsm(x, n, p->p[i].path, &k->fsm[k->n])) {
                    k->schema[k->n] = v;
                    k->path[k->n] = schema_path(x, p->p[i].path, "patternProperties");
                    k->part[k->n++] = i;
                }
            }
    }
}

/* A key as it stands between its quotes. */
static struct str inside(struct schema *x, const char *name)
{
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    struct str s;

    jsonw_str(&w, str_c(name));
    s = arena_str(&x->g->arena, str_of(b.p + 1, b.n - 2));
    buf_release(&b);
    return s;
}

/* What all parts say of the value under a name; matched: bits of keys. false: it must not be there.
 */
static bool value_parts(struct schema *x, const struct parts *p, const struct keys *k,
                        const char *name, unsigned matched, struct parts *out)
{
    out->n = 0;
    for (int i = 0; i < p->n; i++) {
        const json_t *props = json_object_get(p->p[i].s, "properties");
        const json_t *v = name ? json_object_get(props, name) : NULL;
        const json_t *more = json_object_get(p->p[i].s, "additionalProperties");
        bool found = v != NULL;
        if (v)
            parts_add(x, out, v, schema_path(x, schema_path(x, p->p[i].path, "properties"), name));
        for (int j = 0; j < k->n; j++)
            if (k->part[j] == i && matched >> j & 1) {
                parts_add(x, out, k->schema[j], k->path[j]);
                found = true;
            }
        if (!found && more)
            parts_add(x, out, more, schema_path(x, p->p[i].path, "additionalProperties"));
    }
    for (int i = 0; i < out->n; i++)
        if (json_is_false(out->p[i].s)) return false;
    return x->rc == OK;
}

static unsigned match_keys(const struct keys *k, struct str name)
{
    unsigned bits = 0;

    for (int i = 0; i < k->n; i++)
        if (fsm_accepts(&k->fsm[i], name)) bits |= 1u << i;
    return bits;
}

/* ---- keys that are not named ---- */

static bool take(struct schema *x, struct fsm *io, const struct fsm *y, enum fsm_op op,
                 const char *path)
{
    struct fsm out = { 0 };
    struct err e = { 0 };

    if (x->rc != OK) return false;
    if (fsm_product(&out, io, y, op, &x->env, &e) != OK) {
        schema_bad(x, path, "%s", e.msg);
        return false;
    }
    fsm_release(io);
    *io = out;
    return true;
}

static bool names_fsm(struct schema *x, const struct names *l, const char *path, struct fsm *out)
{
    struct gnode *alt = gnode_new(x->g, GN_ALT);

    for (int i = 0; i < l->n; i++) gnode_add(x->g, alt, gnode_lit(x->g, inside(x, l->p[i])));
    return schema_fsm(x, alt, path, out);
}

static bool is_for_names(const char *key)
{
    static const char *const known[] = { "pattern", "minLength",   "maxLength", "format",
                                         "type",    "description", "title" };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i], key)) return true;
    return false;
}

/* Any key, or what propertyNames leaves of it. *limited: not any string. */
static bool all_keys(struct schema *x, const struct parts *p, struct fsm *out, bool *limited)
{
    struct parts rules = { .n = 0 };
    struct cpset any = { 0 };

    for (int i = 0; i < p->n; i++) {
        const json_t *v = json_object_get(p->p[i].s, "propertyNames");
        const char *key, *path = schema_path(x, p->p[i].path, "propertyNames");
        json_t *w;
        if (!v || json_is_true(v)) continue;
        if (!json_is_object(v)) return schema_bad(x, path, "must be an object or true"), false;
        json_object_foreach ((json_t *)v, key, w)
            if (!is_for_names(key))
                return schema_bad(x, path, "the keyword '%.60s' is not supported here", key), false;
        parts_add(x, &rules, v, path);
    }
    *limited = rules.n > 0 && schema_string_fsm(x, &rules, out);
    if (*limited || x->rc != OK) return x->rc == OK;
    cpset_add(&any, &x->g->arena, ' ', '~');
    cpset_add(&any, &x->g->arena, 0xa0, CP_LAST);
    return schema_fsm(x, gnode_rep(x->g, pattern_char(x->g, any, PATTERN_JSON), 1, GNODE_MANY), "#",
                      out);
}

static struct gnode *member(struct schema *x, struct gnode *key, const struct parts *value)
{
    struct grules *g = x->g;
    return GSEQ(g, key, gnode_c(g, ":"), schema_space(x), schema_value(x, value));
}

/* Members with keys for which exactly these patterns match. NULL: there can be none. first: a bound
 * on how the key begins, or NULL. */
static struct gnode *open_member(struct schema *x, const struct parts *p, const struct keys *k,
                                 const struct names *l, unsigned matched, const struct gnode *first)
{
    struct grules *g = x->g;
    struct parts value;
    struct fsm f = { 0 }, y = { 0 };
    bool limited = false, some;
    struct gnode *key;

    if (!value_parts(x, p, k, NULL, matched, &value)) return NULL;
    if (!all_keys(x, p, &f, &limited)) return NULL;
    if (!limited && l->n == 0 && k->n == 0 && !first) {
        fsm_release(&f);
        return member(x, schema_any_string(x), &value);
    }
    for (int i = 0; i < k->n; i++)
        take(x, &f, &k->fsm[i], matched >> i & 1 ? FSM_AND : FSM_AND_NOT, p->p[0].path);
    if (l->n && names_fsm(x, l, p->p[0].path, &y)) take(x, &f, &y, FSM_AND_NOT, p->p[0].path);
    fsm_release(&y);
    if (first && schema_fsm(x, first, p->p[0].path, &y)) take(x, &f, &y, FSM_AND, p->p[0].path);
    fsm_release(&y);
    some = x->rc == OK && fsm_trim(&f);
    key = some ? GSEQ(g, gnode_c(g, "\""), gnode_fsm(g, &f), gnode_c(g, "\"")) : NULL;
    fsm_release(&f);
    return key ? member(x, key, &value) : NULL;
}

/* May there be members that are neither named nor under a pattern? Where properties are named, only
 * if it is said. */
static bool is_open(const struct parts *p)
{
    bool named = false, said = false;

    for (int i = 0; i < p->n; i++) {
        named |= json_object_size(json_object_get(p->p[i].s, "properties")) > 0 ||
                 json_object_get(p->p[i].s, "patternProperties");
        said |= json_object_get(p->p[i].s, "additionalProperties") != NULL;
    }
    return said || !named;
}

static struct gnode *more_members(struct schema *x, const struct parts *p, const struct keys *k,
                                  const struct names *l, const struct gnode *first)
{
    struct gnode *alt = gnode_new(x->g, GN_ALT), *m;

    for (unsigned s = 0; s < 1u << k->n && x->rc == OK; s++)
        if ((s || is_open(p)) && (m = open_member(x, p, k, l, s, first))) gnode_add(x->g, alt, m);
    return alt->n_kids ? alt : NULL;
}

/* ---- objects ---- */

struct object {
    struct names names;
    struct keys keys;
    struct gnode *list; /* GN_LIST with the named members */
    struct glist *info;
    bool *needed;
    int min, max;
    bool closed; /* a member that must be there must not */
};

static void count_members(struct schema *x, const struct parts *p, struct object *o)
{
    o->max = GNODE_MANY;
    for (int i = 0; i < p->n; i++) {
        int min = schema_count(x, &p->p[i], "minProperties", 0);
        int max = schema_count(x, &p->p[i], "maxProperties", GNODE_MANY);
        if (min > o->min) o->min = min;
        if (max != GNODE_MANY && (o->max == GNODE_MANY || max < o->max)) o->max = max;
    }
    if (o->max > COUNTED) o->max = COUNTED;
    if (o->min > COUNTED)
        schema_bad(x, p->p[0].path, "'minProperties' above %d is not supported", COUNTED);
}

static void add_named(struct schema *x, const struct parts *p, struct object *o)
{
    struct grules *g = x->g;

    o->needed = arena_array(&g->arena, (size_t)o->names.n + COUNTED + 1, sizeof *o->needed);
    for (int i = 0; i < o->names.n && x->rc == OK; i++) {
        struct str in = inside(x, o->names.p[i]);
        struct parts value;
        struct buf key = { 0 };
        if (!value_parts(x, p, &o->keys, o->names.p[i], match_keys(&o->keys, in), &value)) {
            o->closed |= o->names.needed[i];
            continue;
        }
        buf_printf(&key, "\"%.*s\"", STR_ARG(in));
        o->needed[o->list->n_kids] = o->names.needed[i];
        gnode_add(g, o->list, member(x, gnode_lit(g, buf_str(&key)), &value));
        buf_release(&key);
    }
}

/* Members that must be there but have no name: so that they are different, each begins with its own
 * letters. */
static void add_distinct(struct schema *x, const struct parts *p, struct object *o)
{
    int n_named = o->list->n_kids, n = o->min - n_named;

    for (int i = 0; i < n_named; i++) o->needed[i] = true;
    if (n > 26)
        schema_bad(x, p->p[0].path,
                   "'minProperties' asks for %d more than are named: not supported", n);
    for (int i = 0; i < n && x->rc == OK; i++) {
        struct cpset letters = { 0 };
        struct gnode *m, *rest = gnode_rep(x->g, gnode_range(x->g, 0, CP_LAST), 0, GNODE_MANY);
        cpset_add(&letters, &x->g->arena, 'a' + i * 26 / n, 'a' + (i + 1) * 26 / n - 1);
        cpset_add(&letters, &x->g->arena, 'A' + i * 26 / n, 'A' + (i + 1) * 26 / n - 1);
        m = more_members(x, p, &o->keys, &o->names, GSEQ(x->g, gnode_class(x->g, letters), rest));
        if (!m && (is_open(p) || o->keys.n))
            schema_bad(x, p->p[0].path,
                       "'minProperties' cannot be reached, or only in ways not supported");
        o->closed |= !m;
        if (m) {
            o->needed[o->list->n_kids] = true;
            gnode_add(x->g, o->list, m);
        }
    }
}

static struct gnode *finish_object(struct schema *x, const struct parts *p, struct object *o)
{
    struct grules *g = x->g;
    int n_needed = 0;

    if (o->min > o->list->n_kids) {
        add_distinct(x, p, o);
        o->info->more = more_members(x, p, &o->keys, &o->names, NULL);
    } else {
        for (int i = 0; i < o->list->n_kids; i++) n_needed += o->needed[i];
        /* Two that were made up may have the same key: they do not help to reach a least number. */
        if (o->min <= n_needed) o->info->more = more_members(x, p, &o->keys, &o->names, NULL);
    }
    if (o->closed) return NULL;
    o->info->sep = GSEQ(g, gnode_c(g, ","), schema_space(x));
    o->info->needed = o->needed;
    o->info->min = o->min;
    o->info->max = o->max;
    return GSEQ(g, gnode_c(g, "{"), schema_space(x), o->list, schema_space(x), gnode_c(g, "}"));
}

struct gnode *schema_object(struct schema *x, const struct parts *p)
{
    struct object o = { .list = gnode_new(x->g, GN_LIST),
                        .info = arena_new(&x->g->arena, struct glist) };
    struct gnode *n = NULL;

    o.list->list = o.info;
    count_members(x, p, &o);
    find_names(x, p, &o.names);
    find_keys(x, p, &o.keys);
    if (x->rc == OK) add_named(x, p, &o);
    if (x->rc == OK && !o.closed && !(o.max != GNODE_MANY && o.max < o.min))
        n = finish_object(x, p, &o);
    names_release(&o.names);
    keys_release(&o.keys);
    return n && x->rc == OK ? n : gnode_new(x->g, GN_NEVER);
}
