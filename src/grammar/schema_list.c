/* schema_list.c - the members of an object where they are not written as JSON's: arguments as tags,
 * or as Python and others have them. */
#include "grammar/schema_impl.h"

#include <ctype.h>

static bool is_in(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(*list, key)) return true;
    return false;
}

/* Nothing but these keys; what only tells of it aside. */
static bool has_only(const json_t *s, const char *const *keys)
{
    static const char *const notes[] = { "title",   "description", "default",    "examples",
                                         "example", "$schema",     "$id",        "$comment",
                                         "$defs",   "definitions", "deprecated", NULL };
    const char *key;
    json_t *v;

    json_object_foreach ((json_t *)s, key, v)
        if (!is_in(key, keys) && !is_in(key, notes)) return false;
    return true;
}

static bool is_type(const json_t *v, const char *name)
{
    return json_is_string(v) && !strcmp(json_string_value(v), name);
}

/* Those are read back as texts, whatever they look like. */
static bool is_text(const json_t *s)
{
    const json_t *type = json_object_get(s, "type"), *v;
    size_t i;

    if (is_type(type, "string")) return true;
    if (json_is_array(type))
        json_array_foreach (type, i, v)
            if (is_type(v, "string")) return true;
    return false;
}

static bool is_name(const char *s)
{
    if (!*s) return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && *s != '_' && *s != '-' && *s != '.') return false;
    return true;
}

/* An object of named members, of which texts ask for nothing that only JSON could say. */
static bool is_list(const json_t *s, const struct schema_list *form)
{
    static const char *const keys[] = { "type",   "properties", "required", "additionalProperties",
                                        "strict", NULL };
    static const char *const of_text[] = { "type",   "enum",      "const",     "pattern",
                                           "format", "minLength", "maxLength", NULL };
    const json_t *props = json_object_get(s, "properties"), *req = json_object_get(s, "required"),
                 *type, *v;
    const char *name;
    json_t *prop;
    size_t i;

    if (!json_is_object(s) || !has_only(s, keys)) return false;
    if ((type = json_object_get(s, "type")) && !is_type(type, "object")) return false;
    if ((props && !json_is_object(props)) || (req && !json_is_array(req))) return false;
    json_object_foreach ((json_t *)props, name, prop) {
        if (!is_name(name) || json_is_false(prop)) return false;
        if (form->until.p && is_text(prop) && !has_only(prop, of_text)) return false;
    }
    json_array_foreach (req, i, v)
        if (!json_object_get(props, json_is_string(v) ? json_string_value(v) : "")) return false;
    return true;
}

/* ---- texts as they are ---- */

static bool fits(const struct schema_list *form, struct str s)
{
    if (str_find(s, form->until) >= 0) return false;
    return !form->trim || !s.n || (s.p[0] != '\n' && s.p[s.n - 1] != '\n');
}

static struct gnode *listed_text(struct schema *x, const struct part *p,
                                 const struct schema_list *form)
{
    const json_t *list = json_object_get(p->s, "enum"), *one = json_object_get(p->s, "const");
    struct gnode *alt = gnode_new(x->g, GN_ALT);
    json_t *all, *v;
    size_t i;

    if (!list && !one) return NULL;
    all = one ? json_pack("[O]", one) : json_incref((json_t *)list);
    json_array_foreach (all, i, v) {
        struct str s =
            json_is_string(v) ? str_of(json_string_value(v), json_string_length(v)) : STR("");
        if (json_is_string(v) && fits(form, s) && schema_admits_own(x, p, v))
            gnode_add(x->g, alt, gnode_lit(x->g, s));
    }
    json_decref(all);
    return alt->n_kids ? alt : gnode_new(x->g, GN_NEVER);
}

/* No newline at either end. */
static struct gnode *trimmed(struct grules *g)
{
    struct cpset inner = { 0 };
    struct gnode *one, *alt = gnode_new(g, GN_ALT);

    cpset_add(&inner, &g->arena, 0, '\n' - 1);
    cpset_add(&inner, &g->arena, '\n' + 1, CP_LAST);
    one = gnode_class(g, inner);
    gnode_add(g, alt, gnode_new(g, GN_EMPTY));
    gnode_add(g, alt, one);
    return gnode_add(g, alt,
                     GSEQ(g, one, gnode_rep(g, gnode_range(g, 0, CP_LAST), 0, GNODE_MANY), one));
}

static void meet(struct schema *x, struct fsm *io, const struct gnode *with, const char *path)
{
    struct fsm y = { 0 }, both = { 0 };
    struct err e = { 0 };

    if (!schema_fsm(x, with, path, &y)) return;
    if (fsm_product(&both, io, &y, FSM_AND, &x->env, &e) != OK) schema_bad(x, path, "%s", e.msg);
    fsm_release(&y);
    fsm_release(io);
    *io = both;
}

static struct gnode *raw_text(struct schema *x, const struct part *p,
                              const struct schema_list *form)
{
    struct parts one = { .p = { *p }, .n = 1 };
    struct gnode *n = listed_text(x, p, form), *without;
    struct fsm f = { 0 };
    struct err e = { 0 };

    if (n) return n;
    if (gnode_without(&without, x->g, form->until, &e) != OK) {
        schema_bad(x, p->path, "%s", e.msg);
        return gnode_new(x->g, GN_NEVER);
    }
    x->as = PATTERN_TEXT;
    if (schema_string_fsm(x, &one, &f)) meet(x, &f, without, p->path);
    else if (x->rc == OK) schema_fsm(x, without, p->path, &f);
    x->as = PATTERN_JSON;
    if (form->trim && x->rc == OK) meet(x, &f, trimmed(x->g), p->path);
    n = x->rc == OK && fsm_trim(&f) ? gnode_fsm(x->g, &f) : gnode_new(x->g, GN_NEVER);
    fsm_release(&f);
    return n;
}

/* ---- the list ---- */

/* What stands between the key and it goes by what it is. */
static struct gnode *value_of(struct schema *x, const struct part *p,
                              const struct schema_list *form)
{
    struct parts one = { .n = 0 };

    if (form->until.p && is_text(p->s))
        return GSEQ(x->g, form->is, form->quote, raw_text(x, p, form), form->quote);
    parts_add(x, &one, p->s, p->path);
    return GSEQ(x->g, form->is_json, schema_value(x, &one));
}

static struct gnode *members(struct schema *x, const json_t *s, const struct schema_list *form)
{
    struct grules *g = x->g;
    const json_t *props = json_object_get(s, "properties"), *req = json_object_get(s, "required"),
                 *v;
    struct gnode *list = gnode_new(g, GN_LIST);
    struct glist *info = arena_new(&g->arena, struct glist);
    bool *needed = arena_array(&g->arena, json_object_size(props) + 1, sizeof *needed);
    const char *name;
    json_t *prop;
    size_t i;

    *info = (struct glist){ .sep = form->sep, .needed = needed, .max = GNODE_MANY };
    list->list = info;
    json_object_foreach ((json_t *)props, name, prop) {
        struct part p = { prop, schema_path(x, "#/properties", name) };
        json_array_foreach (req, i, v)
            if (is_type(v, name)) needed[list->n_kids] = true;
        gnode_add(g, list, GSEQ(g, form->key, gnode_c(g, name), value_of(x, &p, form), form->end));
    }
    return list;
}

int schema_add_list(struct grules *g, const json_t *schema, const struct schema_list *form,
                    struct gnode **out, struct err *e)
{
    struct schema x;

    *out = NULL;
    if (!is_list(schema, form)) return OK;
    schema_init(&x, g, schema, e);
    x.python = form->python;
    *out = members(&x, schema, form);
    schema_finish(&x);
    schema_release(&x);
    return x.rc;
}
