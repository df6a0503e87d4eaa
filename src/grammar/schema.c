#include "grammar/schema_impl.h"

#include "base/jsonw.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

enum { WORK = 4000, LITERAL_DEPTH = 30 };

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

struct gnode *schema_space(struct schema *x) { return gnode_rep(x->g, gnode_c(x->g, " "), 0, 1); }

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
    struct gnode *alt = gnode_new(g, GN_ALT), *h = hex(x, "09afAF"), *h1 = hex(x, "19afAF"),
                 *zero = gnode_c(g, "0");

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
        x->string =
            shared_rule(x, "string",
                        GSEQ(g, gnode_c(g, "\""), gnode_rep(g, schema_chars(x), 0, GNODE_MANY),
                             gnode_c(g, "\"")));
    return gnode_ref(g, x->string);
}

static struct gnode *list_of(struct schema *x, const char *open, struct gnode *item,
                             const char *close)
{
    struct grules *g = x->g;
    struct gnode *more =
        gnode_rep(g, GSEQ(g, gnode_c(g, ","), schema_space(x), item), 0, GNODE_MANY);

    return GSEQ(g, gnode_c(g, open), schema_space(x),
                gnode_rep(g, GSEQ(g, item, more, schema_space(x)), 0, 1), gnode_c(g, close));
}

static struct gnode *any_object(struct schema *x, struct gnode *value)
{
    struct grules *g = x->g;

    return list_of(x, "{", GSEQ(g, schema_any_string(x), gnode_c(g, ":"), schema_space(x), value),
                   "}");
}

static void add_words(struct schema *x, struct gnode *alt, unsigned types)
{
    struct grules *g = x->g;

    if (types & T_BOOL) gnode_add(g, alt, gnode_c(g, x->python ? "True" : "true"));
    if (types & T_BOOL) gnode_add(g, alt, gnode_c(g, x->python ? "False" : "false"));
    if (types & T_NULL) gnode_add(g, alt, gnode_c(g, x->python ? "None" : "null"));
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
    add_words(x, alt, T_BOOL | T_NULL);
    g->rules[x->any].body = alt;
    return x->any;
}

/* ---- literals ---- */

static bool write_value(struct jsonw *w, const json_t *v, int depth, bool python)
{
    const char *key;
    json_t *item;
    size_t i;

    if (depth > LITERAL_DEPTH) return false;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        jsonw_obj(w);
        json_object_foreach ((json_t *)v, key, item) {
            jsonw_key(w, key);
            if (!write_value(w, item, depth + 1, python)) return false;
        }
        jsonw_end(w);
        break;
    case JSON_ARRAY:
        jsonw_arr(w);
        json_array_foreach (v, i, item)
            if (!write_value(w, item, depth + 1, python)) return false;
        jsonw_end(w);
        break;
    case JSON_STRING: jsonw_str(w, str_of(json_string_value(v), json_string_length(v))); break;
    case JSON_INTEGER: jsonw_int(w, json_integer_value(v)); break;
    case JSON_REAL: jsonw_num(w, json_real_value(v)); break;
    case JSON_NULL: python ? jsonw_raw(w, STR("None")) : jsonw_null(w); break;
    default:
        if (python) jsonw_raw(w, json_is_true(v) ? STR("True") : STR("False"));
        else jsonw_bool(w, json_is_true(v));
    }
    return true;
}

struct gnode *schema_literal(struct schema *x, const json_t *v)
{
    struct buf text = { 0 };
    struct jsonw w = { .out = &text };
    struct gnode *n = write_value(&w, v, 0, x->python) ? gnode_lit(x->g, buf_str(&text)) : NULL;

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
        { "null", T_NULL },
        { "boolean", T_BOOL },
        { "object", T_OBJECT },
        { "array", T_ARRAY },
        { "string", T_STRING },
        { "integer", T_INTEGER },
        { "number", T_NUMBER | T_INTEGER },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(name, names[i].name)) return names[i].bits;
    return 0;
}

static unsigned type_of(struct schema *x, const struct part *p, const json_t *v)
{
    unsigned t = json_is_string(v) ? type_named(str_c(json_string_value(v))) : 0;

    if (!t)
        schema_bad(
            x, p->path,
            "'type' must be null, boolean, object, array, string, integer, number, or a list "
            "of these");
    return t;
}

unsigned schema_types(struct schema *x, const struct part *p)
{
    const json_t *v = json_object_get(p->s, "type"), *item;
    unsigned t = 0;
    size_t i;

    if (!v) return T_ALL;
    if (json_is_array(v))
        json_array_foreach (v, i, item) t |= type_of(x, p, item);
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
        { "properties", T_OBJECT },
        { "required", T_OBJECT },
        { "additionalProperties", T_OBJECT },
        { "patternProperties", T_OBJECT },
        { "minProperties", T_OBJECT },
        { "maxProperties", T_OBJECT },
        { "propertyNames", T_OBJECT },
        { "items", T_ARRAY },
        { "prefixItems", T_ARRAY },
        { "minItems", T_ARRAY },
        { "maxItems", T_ARRAY },
        { "uniqueItems", T_ARRAY },
        { "minLength", T_STRING },
        { "maxLength", T_STRING },
        { "pattern", T_STRING },
        { "format", T_STRING },
        { "minimum", T_NUMBER },
        { "maximum", T_NUMBER },
        { "exclusiveMinimum", T_NUMBER },
        { "exclusiveMaximum", T_NUMBER },
        { "multipleOf", T_NUMBER },
    };
    unsigned t = 0;

    for (int i = 0; i < p->n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (json_object_get(p->p[i].s, keys[k].key)) t |= keys[k].bits;
    return t & T_NUMBER ? t | T_INTEGER : t;
}

/* ---- one conjunction ---- */

/* A list of values that one of the parts names, and all others admit. */
static struct gnode *values_node(struct schema *x, const struct parts *p, const json_t *list,
                                 int from)
{
    struct gnode *alt = gnode_new(x->g, GN_ALT);
    size_t i;
    json_t *v;

    json_array_foreach (list, i, v) {
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

struct gnode *schema_conjunction(struct schema *x, const struct parts *p)
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
    add_words(x, alt, types);
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

void schema_init(struct schema *x, struct grules *g, const json_t *root, struct err *e)
{
    *x = (struct schema){ .g = g,
                          .root = root,
                          .e = e,
                          .any = -1,
                          .string = -1,
                          .chars = -1,
                          .number = -1,
                          .integer = -1,
                          .space = -1,
                          .as = PATTERN_JSON };
    x->env = (struct fsm_env){ .g = g, .work = FSM_WORK };
}

void schema_release(struct schema *x)
{
    map_release(&x->rules);
    map_release(&x->strings);
    json_decref(x->made);
    mem_free(x->work);
}

void schema_finish(struct schema *x)
{
    struct grules *g = x->g;

    for (int i = 0; i < x->n_work && x->rc == OK; i++) {
        struct parts p = x->work[i].parts;
        struct gnode *body = schema_body(x, &p);
        g->rules[x->work[i].rule].body = body;
        if (g->full) schema_bad(x, p.p[0].path, "the schema is too large");
    }
}

static int add(struct grules *g, const json_t *schema, const json_t *also, int *rule, struct err *e)
{
    struct parts all = { .n = 0 };
    struct gnode *top;
    struct schema x;

    schema_init(&x, g, schema, e);
    parts_add(&x, &all, schema, "#");
    if (also) parts_add(&x, &all, also, "#");
    top = schema_value(&x, &all);
    *rule = top->rule;
    schema_finish(&x);
    schema_release(&x);
    return x.rc;
}

int schema_add(struct grules *g, const json_t *schema, int *rule, struct err *e)
{
    return add(g, schema, NULL, rule, e);
}

int schema_add_object(struct grules *g, const json_t *schema, int *rule, struct err *e)
{
    json_t *object = json_pack("{s:s}", "type", "object");
    int rc = add(g, schema, object, rule, e);

    json_decref(object);
    return rc;
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
