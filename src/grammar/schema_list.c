/* schema_list.c - the members of an object in a notation other than JSON: arguments of tool calls
 * as tags, as Python keyword arguments, and others (struct schema_list).
 *
 * Only a flat object of named members can be written so. A string member is written raw, so its
 * schema may only say what holds for raw text too. Members of other types are JSON inside. */
#include "grammar/schema_impl.h"

#include <ctype.h>

/* list ends with NULL. */
static bool is_in(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(*list, key)) return true;
    return false;
}

/* Does the schema have no keywords but these, apart from annotations? */
static bool has_only(const json_t *s, const char *const *keys)
{
    const char *key;
    json_t *v;

    json_object_foreach ((json_t *)s, key, v)
        if (!is_in(key, keys) && !schema_is_annotation(key)) return false;
    return true;
}

/* Is v this string? */
static bool equals_string(const json_t *v, const char *name)
{
    return json_is_string(v) && !strcmp(json_string_value(v), name);
}

/* May the value be a string? Such values are read back as strings, whatever they look like. */
static bool may_be_string(const json_t *s)
{
    const json_t *type = json_object_get(s, "type"), *v;
    size_t i;

    if (equals_string(type, "string")) return true;
    if (json_is_array(type))
        json_array_foreach (type, i, v)
            if (equals_string(v, "string")) return true;
    return false;
}

/* A name that needs no quotes in any notation. */
static bool is_plain_name(const char *s)
{
    if (!*s) return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && *s != '_' && *s != '-' && *s != '.') return false;
    return true;
}

/* Can the objects of this schema be written in the notation? */
static bool is_expressible(const json_t *s, const struct schema_list *form)
{
    static const char *const keys[] = { "type",   "properties", "required", "additionalProperties",
                                        "strict", NULL };
    static const char *const of_string[] = { "type",   "enum",      "const",     "pattern",
                                             "format", "minLength", "maxLength", NULL };
    const json_t *props = json_object_get(s, "properties"), *req = json_object_get(s, "required"),
                 *type, *v;
    const char *name;
    json_t *prop;
    size_t i;

    if (!json_is_object(s) || !has_only(s, keys)) return false;
    if ((type = json_object_get(s, "type")) && !equals_string(type, "object")) return false;
    if ((props && !json_is_object(props)) || (req && !json_is_array(req))) return false;
    json_object_foreach ((json_t *)props, name, prop) {
        if (!is_plain_name(name) || json_is_false(prop)) return false;
        if (form->until.p && may_be_string(prop) && !has_only(prop, of_string)) return false;
    }
    json_array_foreach (req, i, v)
        if (!json_object_get(props, json_is_string(v) ? json_string_value(v) : "")) return false;
    return true;
}

/* ---- raw strings ---- */

/* Can the string be written without escapes? */
static bool can_be_raw(const struct schema_list *form, struct str s)
{
    if (str_find(s, form->until) >= 0) return false;
    return !form->trim || !s.n || (s.p[0] != '\n' && s.p[s.n - 1] != '\n');
}

/* The values of enum or const. NULL: the schema has neither. */
static struct rule_node *make_listed_strings(struct schema_build *x, const struct subschema *p,
                                             const struct schema_list *form)
{
    const json_t *list = json_object_get(p->s, "enum"), *one = json_object_get(p->s, "const");
    struct rule_node *alt = rules_node(x->g, NODE_ALT);
    size_t n = one ? 1 : json_array_size(list);

    if (!list && !one) return NULL;
    for (size_t i = 0; i < n && schema_step(x, 1); i++) {
        const json_t *v = one ? one : json_array_get(list, i);
        struct str s =
            json_is_string(v) ? str_of(json_string_value(v), json_string_length(v)) : STR("");
        if (json_is_string(v) && can_be_raw(form, s) && schema_accepts_listed(x, p, v))
            rules_add_child(x->g, alt, rules_literal(x->g, s));
    }
    return alt->n_children ? alt : rules_node(x->g, NODE_NEVER);
}

/* Any text without a newline at either end. */
static struct rule_node *make_trimmed_text(struct rules *g)
{
    struct charset inner = { 0 };
    struct rule_node *one, *alt = rules_node(g, NODE_ALT);

    charset_add(&inner, &g->arena, 0, '\n' - 1);
    charset_add(&inner, &g->arena, '\n' + 1, CHARSET_LAST);
    one = rules_class(g, inner);
    rules_add_child(g, alt, rules_node(g, NODE_EMPTY));
    rules_add_child(g, alt, one);
    return rules_add_child(
        g, alt,
        RULES_SEQ(g, one, rules_repeat(g, rules_range(g, 0, CHARSET_LAST), 0, RULES_UNBOUNDED),
                  one));
}

/* A string without escapes: the patterns, formats and lengths of its schema, for characters as they
 * are, and without the text that ends it. */
static struct rule_node *make_raw_string(struct schema_build *x, const struct subschema *p,
                                         const struct schema_list *form)
{
    struct conjunction one = { .p = { *p }, .n = 1 };
    struct rule_node *n = make_listed_strings(x, p, form), *without;
    struct dfa f = { 0 };
    struct err e = { 0 };

    if (n) return n;
    if (dfa_text_without(&without, x->g, form->until, &e) != OK) {
        schema_fail_with(x, p->path, "", &e);
        return rules_node(x->g, NODE_NEVER);
    }
    x->as = PATTERN_TEXT;
    if (schema_build_string_dfa(x, &one, &f)) schema_intersect_dfa(x, &f, without, p->path);
    else if (x->rc == OK) schema_build_dfa(x, without, p->path, &f);
    x->as = PATTERN_JSON;
    if (form->trim && x->rc == OK) schema_intersect_dfa(x, &f, make_trimmed_text(x->g), p->path);
    n = x->rc == OK && dfa_trim(&f) ? dfa_node(x->g, &f) : rules_node(x->g, NODE_NEVER);
    dfa_release(&f);
    return n;
}

/* ---- the list ---- */

/* The value with the text between its key and it, which depends on whether it is a raw string. */
static struct rule_node *make_member_value(struct schema_build *x, const struct subschema *p,
                                           const struct schema_list *form)
{
    struct conjunction one = { .n = 0 };

    if (form->until.p && may_be_string(p->s))
        return RULES_SEQ(x->g, form->is, form->quote, make_raw_string(x, p, form), form->quote);
    conjunction_add(x, &one, p->s, p->path);
    return RULES_SEQ(x->g, form->is_json, schema_make_ref(x, &one));
}

/* The LIST node of all members. Optional members may be left out, but the order is fixed. */
static struct rule_node *make_members(struct schema_build *x, const json_t *s,
                                      const struct schema_list *form)
{
    struct rules *g = x->g;
    const json_t *props = json_object_get(s, "properties"), *req = json_object_get(s, "required"),
                 *v;
    struct rule_node *list = rules_node(g, NODE_LIST);
    struct rule_list *info = arena_new(&g->arena, struct rule_list);
    bool *needed = arena_array(&g->arena, json_object_size(props) + 1, sizeof *needed);
    const char *name;
    json_t *prop;
    size_t i;

    if (!info || !needed) return list; /* the arena has failed */
    *info = (struct rule_list){ .sep = form->sep, .needed = needed, .max = RULES_UNBOUNDED };
    list->list = info;
    json_object_foreach ((json_t *)props, name, prop) {
        struct subschema p = { prop, schema_extend_path(x, "#/properties", name) };
        if (!schema_step(x, 1 + json_array_size(req))) break;
        json_array_foreach (req, i, v)
            if (equals_string(v, name)) needed[list->n_children] = true;
        rules_add_child(g, list,
                        RULES_SEQ(g, form->key, rules_text(g, name), make_member_value(x, &p, form),
                                  form->end, form->end_tail ? rules_text(g, name) : NULL,
                                  form->end_tail));
    }
    return list;
}

int schema_add_list(struct rules *g, const json_t *schema, const struct schema_list *form,
                    struct rule_node **out, struct err *e)
{
    struct schema_build x;

    *out = NULL;
    if (!is_expressible(schema, form)) return OK;
    schema_init(&x, g, schema, e);
    x.python = form->python;
    *out = make_members(&x, schema, form);
    schema_finish(&x);
    schema_release(&x);
    return x.rc;
}
