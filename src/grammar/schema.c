/* schema.c - the parts that all schemas need: errors, shared rules, literals, types, and the work
 * list by which subschemas become rules.
 *
 * A conjunction of keywords becomes one alternative for each JSON type that it allows, because the
 * keywords of different types do not interact. Where no part names a type, the keywords tell which
 * types are meant: {"properties": ...} generates objects, although JSON Schema would accept any
 * value that is not an object, too. */
#include "grammar/schema_impl.h"

#include "base/jsonr.h"
#include "base/jsonw.h"
#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    MAX_JSON_BYTES = 1 << 20, /* of a text that is parsed */
    MAX_JSON_PARTS = 100000,  /* values in it */
    JSON_PART_BYTES = 160,    /* of a value, its key and its place, about */
    MAX_WORK = 4000,          /* rules of one schema */
    MAX_LITERAL_DEPTH = 30    /* of a value in enum or const */
};

/* The parts of a text and their bytes are known before they are made. */
int schema_load(json_t **out, struct str text, const char *what, struct budget *b, struct err *e)
{
    size_t parts = text.n > MAX_JSON_BYTES ? 0 : str_json_parts(text);
    json_error_t je;

    if (text.n > MAX_JSON_BYTES || parts > MAX_JSON_PARTS)
        return err_set(e, E_INVALID, "%s is too large: at most %d bytes and %d values are allowed",
                       what, MAX_JSON_BYTES, MAX_JSON_PARTS);
    if (!budget_step(b, parts) || !budget_take(b, text.n + parts * JSON_PART_BYTES))
        return budget_error(b, e);
    *out = jsonr_load(text, JSON_DECODE_ANY, &je);
    if (*out) return OK;
    if (json_error_code(&je) == json_error_out_of_memory) return err_nomem(e, what);
    return err_set(e, E_INVALID, "%s is not JSON: line %d, column %d: %s", what, je.line, je.column,
                   je.text);
}

/* ---- errors, paths, conjunctions ---- */

int schema_fail(struct schema_build *x, const char *path, const char *fmt, ...)
{
    char what[320];
    va_list ap;

    if (x->rc != OK) return x->rc;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return x->rc = err_set(x->e, E_INVALID, "%.150s: %s", path, what);
}

int schema_nomem(struct schema_build *x)
{
    if (x->rc != OK) return x->rc;
    if (budget_failed(x->g->budget)) return x->rc = budget_error(x->g->budget, x->e);
    return x->rc = err_nomem(x->e, "the rules of a schema");
}

bool schema_step(struct schema_build *x, size_t n)
{
    if (!budget_step(x->g->budget, n)) schema_nomem(x);
    return x->rc == OK;
}

int schema_fail_with(struct schema_build *x, const char *path, const char *what,
                     const struct err *e)
{
    if (e->code == E_NOMEM || budget_failed(x->g->budget)) return schema_nomem(x);
    return schema_fail(x, path, "%s%s", what, e->msg);
}

/* On failure the path is not extended; the arena remembers the failure. */
const char *schema_extend_path(struct schema_build *x, const char *path, const char *key)
{
    const char *longer =
        !schema_step(x, 16) ? NULL : arena_printf(&x->g->arena, "%.400s/%.80s", path, key);

    return longer ? longer : path;
}

void conjunction_add(struct schema_build *x, struct conjunction *p, const json_t *s,
                     const char *path)
{
    if (json_is_true(s) || !schema_step(x, 1)) return;
    for (int i = 0; i < p->n; i++)
        if (p->p[i].s == s) return;
    if (p->n == CONJUNCTION_MAX)
        schema_fail(x, path, "more than %d schemas apply to one value", CONJUNCTION_MAX);
    else p->p[p->n++] = (struct subschema){ s, path };
}

int schema_read_count(struct schema_build *x, const struct subschema *p, const char *key, int none)
{
    const json_t *v = json_object_get(p->s, key);
    double d;

    if (!v) return none;
    d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || floor(d) != d) {
        schema_fail(x, p->path, "'%s' must be an integer of 0 or more", key);
        return none;
    }
    return d > 1e6 ? 1000000 : (int)d;
}

struct count_bounds schema_read_bounds(struct schema_build *x, const struct conjunction *p,
                                       const char *min_key, const char *max_key, int min)
{
    struct count_bounds b = { min, RULES_UNBOUNDED };

    for (int i = 0; i < p->n; i++) {
        int lo = schema_read_count(x, &p->p[i], min_key, 0),
            hi = schema_read_count(x, &p->p[i], max_key, RULES_UNBOUNDED);
        if (lo > b.min) b.min = lo;
        if (hi != RULES_UNBOUNDED && (b.max == RULES_UNBOUNDED || hi < b.max)) b.max = hi;
    }
    return b;
}

/* ---- automata ---- */

bool schema_build_dfa(struct schema_build *x, const struct rule_node *n, const char *path,
                      struct dfa *out)
{
    struct err e = { 0 };

    *out = (struct dfa){ 0 };
    if (x->rc != OK) return false;
    if (dfa_build(out, n, &x->env, &e) == OK) return true;
    schema_fail_with(x, path, "", &e);
    return false;
}

bool schema_combine_dfa(struct schema_build *x, struct dfa *io, const struct dfa *y, enum dfa_op op,
                        const char *path)
{
    struct dfa out = { 0 };
    struct err e = { 0 };

    if (x->rc != OK) return false;
    if (dfa_product(&out, io, y, op, &x->env, &e) != OK) {
        schema_fail_with(x, path, "", &e);
        return false;
    }
    dfa_release(io);
    *io = out;
    return true;
}

bool schema_intersect_dfa(struct schema_build *x, struct dfa *io, const struct rule_node *with,
                          const char *path)
{
    struct dfa y;
    bool ok =
        schema_build_dfa(x, with, path, &y) && schema_combine_dfa(x, io, &y, DFA_INTERSECT, path);

    if (ok) dfa_trim(io);
    dfa_release(&y);
    return ok;
}

/* ---- rules that all schemas share ---- */

/* JSON is generated compactly or with one space where models like to write one. Other white space
 * is never generated: a model in a loop of newlines would not end. */

struct rule_node *schema_make_space(struct schema_build *x)
{
    return rules_repeat(x->g, rules_text(x->g, " "), 0, 1);
}

/* One character; ranges: pairs of first and last. */
static struct rule_node *make_char_in(struct schema_build *x, const char *ranges)
{
    struct charset s = { 0 };

    for (; *ranges; ranges += 2) charset_add(&s, &x->g->arena, ranges[0], ranges[1]);
    return rules_class(x->g, s);
}

/* The rest of \uHHHH, without surrogates, which are not characters, and without NUL, which many
 * readers refuse. */
static struct rule_node *make_unicode_escape(struct schema_build *x)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT), *h = make_char_in(x, "09afAF"),
                     *h1 = make_char_in(x, "19afAF"), *zero = rules_text(g, "0");

    rules_add_child(g, alt, RULES_SEQ(g, make_char_in(x, "19acAC"), h, h, h));
    rules_add_child(g, alt, RULES_SEQ(g, make_char_in(x, "efEF"), h, h, h));
    rules_add_child(g, alt, RULES_SEQ(g, make_char_in(x, "ddDD"), make_char_in(x, "07"), h, h));
    rules_add_child(g, alt, RULES_SEQ(g, zero, h1, h, h));
    rules_add_child(g, alt, RULES_SEQ(g, zero, zero, h1, h));
    rules_add_child(g, alt, RULES_SEQ(g, zero, zero, zero, h1));
    return RULES_SEQ(g, rules_text(g, "u"), alt);
}

struct rule_node *schema_make_char(struct schema_build *x)
{
    struct rules *g = x->g;
    struct rule_node *alt, *esc;

    alt = rules_add_child(g, rules_node(g, NODE_ALT), rules_class(g, pattern_get_unescaped(g)));
    esc = rules_add_child(g, rules_node(g, NODE_ALT), make_char_in(x, "\"\"\\\\//bbffnnrrtt"));
    rules_add_child(g, esc, make_unicode_escape(x));
    return rules_add_child(g, alt, RULES_SEQ(g, rules_text(g, "\\"), esc));
}

/* One rule for all: its token masks are the largest, and so they are computed once. */
struct rule_node *schema_make_any_string(struct schema_build *x)
{
    struct rules *g = x->g;

    if (x->string < 0)
        x->string =
            rules_add_shared(g, STR("string"),
                             RULES_SEQ(g, rules_text(g, "\""),
                                       rules_repeat(g, schema_make_char(x), 0, RULES_UNBOUNDED),
                                       rules_text(g, "\"")));
    return rules_ref(g, x->string);
}

/* open ITEM, ITEM ... close, or open close. */
static struct rule_node *make_comma_list(struct schema_build *x, const char *open,
                                         struct rule_node *item, const char *close)
{
    struct rules *g = x->g;
    struct rule_node *more = rules_repeat(
        g, RULES_SEQ(g, rules_text(g, ","), schema_make_space(x), item), 0, RULES_UNBOUNDED);

    return RULES_SEQ(g, rules_text(g, open), schema_make_space(x),
                     rules_repeat(g, RULES_SEQ(g, item, more, schema_make_space(x)), 0, 1),
                     rules_text(g, close));
}

/* {"key": value, ...} with any keys. */
static struct rule_node *make_any_object(struct schema_build *x, struct rule_node *value)
{
    struct rules *g = x->g;

    return make_comma_list(
        x, "{",
        RULES_SEQ(g, schema_make_any_string(x), rules_text(g, ":"), schema_make_space(x), value),
        "}");
}

/* true, false and null, as far as the types allow them. */
static void add_constants(struct schema_build *x, struct rule_node *alt, unsigned types)
{
    struct rules *g = x->g;

    if (types & TYPE_BOOL) rules_add_child(g, alt, rules_text(g, x->python ? "True" : "true"));
    if (types & TYPE_BOOL) rules_add_child(g, alt, rules_text(g, x->python ? "False" : "false"));
    if (types & TYPE_NULL) rules_add_child(g, alt, rules_text(g, x->python ? "None" : "null"));
}

/* The rule of any JSON value. */
static int find_or_add_any_value(struct schema_build *x)
{
    struct rules *g = x->g;
    struct rule_node *alt, *self;
    struct conjunction unbounded = { .n = 0 };
    int object, array;

    if (x->any >= 0) return x->any;
    x->any = rules_add_shared(g, STR("value"), NULL);
    self = rules_ref(g, x->any);
    object = rules_add_shared(g, STR("object"), make_any_object(x, self));
    array = rules_add_shared(g, STR("array"), make_comma_list(x, "[", self, "]"));
    alt = rules_add_child(g, rules_node(g, NODE_ALT), rules_ref(g, object));
    rules_add_child(g, alt, rules_ref(g, array));
    rules_add_child(g, alt, schema_make_any_string(x));
    rules_add_child(g, alt, schema_make_number(x, &unbounded, false));
    add_constants(x, alt, TYPE_BOOL | TYPE_NULL);
    rules_get(g, x->any)->body = alt;
    return x->any;
}

/* ---- literals ---- */

/* The values of enum and const are written compactly, members in the order of the schema. */

/* false: it is nested too deep. */
static bool write_value(struct jsonw *w, const json_t *v, int depth, bool python)
{
    const char *key;
    json_t *item;
    size_t i;

    if (depth > MAX_LITERAL_DEPTH) return false;
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

struct rule_node *schema_make_literal(struct schema_build *x, const json_t *v)
{
    struct buf text = { 0 };
    struct jsonw w = { .out = &text };
    struct rule_node *n =
        write_value(&w, v, 0, x->python) ? rules_literal(x->g, buf_str(&text)) : NULL;

    if (text.failed) schema_nomem(x);
    buf_release(&text);
    return n;
}

/* ---- types ---- */

/* 0: there is no such type. */
static unsigned find_type(struct str name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {
        { "null", TYPE_NULL },
        { "boolean", TYPE_BOOL },
        { "object", TYPE_OBJECT },
        { "array", TYPE_ARRAY },
        { "string", TYPE_STRING },
        { "integer", TYPE_INTEGER },
        { "number", TYPE_NUMBER | TYPE_INTEGER },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(name, names[i].name)) return names[i].bits;
    return 0;
}

static unsigned read_type(struct schema_build *x, const struct subschema *p, const json_t *v)
{
    unsigned t = json_is_string(v) ? find_type(str_c(json_string_value(v))) : 0;

    if (!t)
        schema_fail(
            x, p->path,
            "'type' must be null, boolean, object, array, string, integer, number, or a list "
            "of these");
    return t;
}

/* "nullable" is OpenAPI's. */
unsigned schema_read_types(struct schema_build *x, const struct subschema *p)
{
    const json_t *v = json_object_get(p->s, "type"), *item;
    unsigned t = 0;
    size_t i;

    if (!v) return TYPE_ALL;
    if (json_is_array(v))
        json_array_foreach (v, i, item) t |= read_type(x, p, item);
    else t = read_type(x, p, v);
    if (json_is_true(json_object_get(p->s, "nullable"))) t |= TYPE_NULL;
    return t;
}

/* The types to which the keywords of the parts apply, used where no part names a type. */
static unsigned find_implied_types(const struct conjunction *p)
{
    /* clang-format off */
    static const struct {
        const char *key;
        unsigned bits;
    } keys[] = {
        { "properties", TYPE_OBJECT }, { "required", TYPE_OBJECT },
        { "additionalProperties", TYPE_OBJECT }, { "patternProperties", TYPE_OBJECT },
        { "minProperties", TYPE_OBJECT }, { "maxProperties", TYPE_OBJECT },
        { "propertyNames", TYPE_OBJECT },
        { "items", TYPE_ARRAY }, { "prefixItems", TYPE_ARRAY }, { "minItems", TYPE_ARRAY },
        { "maxItems", TYPE_ARRAY }, { "uniqueItems", TYPE_ARRAY },
        { "minLength", TYPE_STRING }, { "maxLength", TYPE_STRING }, { "pattern", TYPE_STRING },
        { "format", TYPE_STRING },
        { "minimum", TYPE_NUMBER }, { "maximum", TYPE_NUMBER }, { "exclusiveMinimum", TYPE_NUMBER },
        { "exclusiveMaximum", TYPE_NUMBER }, { "multipleOf", TYPE_NUMBER },
    };
    /* clang-format on */
    unsigned t = 0;

    for (int i = 0; i < p->n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (json_object_get(p->p[i].s, keys[k].key)) t |= keys[k].bits;
    return t & TYPE_NUMBER ? t | TYPE_INTEGER : t;
}

/* ---- conjunctions ---- */

/* Those values of the enum or const of part `from` that all parts accept. list: the enum, or NULL;
 * one: the const, or NULL. */
static struct rule_node *make_values(struct schema_build *x, const struct conjunction *p,
                                     const json_t *list, const json_t *one, int from)
{
    struct rule_node *alt = rules_node(x->g, NODE_ALT), *lit;
    size_t n = one ? 1 : json_array_size(list);

    for (size_t i = 0; i < n && x->rc == OK; i++) {
        const json_t *v = one ? one : json_array_get(list, i);
        bool fits = schema_step(x, 1);
        for (int k = 0; k < p->n && fits; k++)
            fits = (k == from ? schema_accepts_listed : schema_accepts)(x, &p->p[k], v);
        if (!fits) continue;
        if ((lit = schema_make_literal(x, v))) rules_add_child(x->g, alt, lit);
        else
            schema_fail(x, p->p[from].path, "a value is nested more than %d deep",
                        MAX_LITERAL_DEPTH);
    }
    return alt;
}

/* NULL: no part has const or enum. */
static struct rule_node *make_enum(struct schema_build *x, const struct conjunction *p)
{
    for (int i = 0; i < p->n; i++) {
        const json_t *v = json_object_get(p->p[i].s, "const");
        if (v) return make_values(x, p, NULL, v, i);
    }
    for (int i = 0; i < p->n; i++) {
        const json_t *v = json_object_get(p->p[i].s, "enum");
        if (v && !json_is_array(v)) schema_fail(x, p->p[i].path, "'enum' must be a list");
        if (v) return make_values(x, p, v, NULL, i);
    }
    return NULL;
}

/* enum and const come first: then the other keywords only select among the values. */
struct rule_node *schema_make_conjunction(struct schema_build *x, const struct conjunction *p)
{
    struct rules *g = x->g;
    struct rule_node *alt, *values;
    unsigned types = TYPE_ALL, implied;
    bool named = false;

    for (int i = 0; i < p->n; i++) {
        if (json_is_false(p->p[i].s)) return rules_node(g, NODE_NEVER);
        types &= schema_read_types(x, &p->p[i]);
        named |= json_object_get(p->p[i].s, "type") != NULL;
    }
    if (x->rc != OK) return rules_node(g, NODE_NEVER);
    if ((values = make_enum(x, p))) return values;
    implied = find_implied_types(p);
    if (!named && implied) types = implied;
    if (types == TYPE_ALL && !implied) return rules_ref(g, find_or_add_any_value(x));
    alt = rules_node(g, NODE_ALT);
    if (types & TYPE_OBJECT) rules_add_child(g, alt, schema_make_object(x, p));
    if (types & TYPE_ARRAY) rules_add_child(g, alt, schema_make_array(x, p));
    if (types & TYPE_STRING) rules_add_child(g, alt, schema_make_string(x, p));
    if (types & (TYPE_NUMBER | TYPE_INTEGER))
        rules_add_child(g, alt, schema_make_number(x, p, !(types & TYPE_NUMBER)));
    add_constants(x, alt, types);
    return alt->n_children == 1 ? alt->children[0] : alt;
}

/* ---- rules ---- */

/* Adds a rule to the work list. -1: x has an error. */
static int add_work(struct schema_build *x, const struct conjunction *p, struct str key)
{
    struct str name = arena_str(&x->g->arena, str_c(p->p[0].path));
    struct str own_key = arena_str(&x->g->arena, key);
    int rule = rules_add(x->g, name, NULL);

    if (x->n_work == MAX_WORK)
        schema_fail(x, p->p[0].path, "the schema has more than %d subschemas", MAX_WORK);
    else if (rules_failed(x->g) ||
             !budget_ensure(x->g->budget, x->work, x->cap_work, x->n_work + 1) ||
             budget_map_put(x->g->budget, &x->rules, own_key, (uint64_t)rule) == E_NOMEM)
        schema_nomem(x);
    if (x->rc != OK) return -1;
    x->work[x->n_work++] = (struct schema_work){ *p, rule };
    return rule;
}

/* Conjunctions of the same schemas, by address, share a rule. This is what ends the recursion of
 * recursive schemas. */
struct rule_node *schema_make_ref(struct schema_build *x, const struct conjunction *p)
{
    const json_t *key[CONJUNCTION_MAX];
    uint64_t known;
    struct str k;
    int rule;

    if (!schema_step(x, (size_t)p->n)) return rules_node(x->g, NODE_NEVER);
    if (p->n == 0) return rules_ref(x->g, find_or_add_any_value(x));
    for (int i = 0; i < p->n; i++) key[i] = p->p[i].s;
    k = str_of((const char *)key, (size_t)p->n * sizeof *key);
    if (map_get(&x->rules, k, &known)) return rules_ref(x->g, (int)known);
    rule = add_work(x, p, k);
    return rule >= 0 ? rules_ref(x->g, rule) : rules_node(x->g, NODE_NEVER);
}

void schema_init(struct schema_build *x, struct rules *g, const json_t *root, struct err *e)
{
    *x = (struct schema_build){ .g = g,
                                .root = root,
                                .e = e,
                                .any = -1,
                                .string = -1,
                                .number = -1,
                                .integer = -1,
                                .as = PATTERN_JSON };
    x->env = (struct dfa_env){ .g = g };
}

void schema_release(struct schema_build *x)
{
    budget_map_release(x->g->budget, &x->rules);
    budget_map_release(x->g->budget, &x->strings);
    json_decref(x->made);
    budget_free(x->g->budget, x->work, x->cap_work);
}

void schema_finish(struct schema_build *x)
{
    for (int i = 0; i < x->n_work && x->rc == OK; i++) {
        struct conjunction p = x->work[i].parts; /* a copy: the list moves when it grows */
        struct rule_node *body = schema_make_body(x, &p);
        rules_get(x->g, x->work[i].rule)->body = body;
        if (x->g->full && !rules_failed(x->g))
            schema_fail(x, p.p[0].path, "the schema is too large");
    }
    if (x->rc == OK && rules_failed(x->g)) schema_nomem(x);
}

/* also: a second schema that has to accept the value, or NULL. */
static int add_schemas(struct rules *g, const json_t *schema, const json_t *also, int *rule,
                       struct err *e)
{
    struct conjunction all = { .n = 0 };
    struct schema_build x;

    schema_init(&x, g, schema, e);
    conjunction_add(&x, &all, schema, "#");
    if (also) conjunction_add(&x, &all, also, "#");
    *rule = schema_make_ref(&x, &all)->rule;
    schema_finish(&x);
    schema_release(&x);
    return x.rc;
}

int schema_add(struct rules *g, const json_t *schema, int *rule, struct err *e)
{
    return add_schemas(g, schema, NULL, rule, e);
}

int schema_add_object(struct rules *g, const json_t *schema, int *rule, struct err *e)
{
    json_t *object = json_pack("{s:s}", "type", "object");
    int rc = object ? add_schemas(g, schema, object, rule, e) : err_nomem(e, "a schema");

    json_decref(object);
    return rc;
}

int schema_add_any_object(struct rules *g)
{
    struct schema_build x;
    int rule;

    schema_init(&x, g, NULL, NULL);
    rule = rules_add_shared(g, STR("root"),
                            make_any_object(&x, rules_ref(g, find_or_add_any_value(&x))));
    schema_release(&x);
    return rule;
}
