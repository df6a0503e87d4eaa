#include "grammar/grammar.h"

#include "base/mem.h"
#include "grammar/calls.h"
#include "grammar/gbnf.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"

#include <stdatomic.h>

enum { SCHEMA_BYTES = 1 << 20, SCHEMA_PARTS = 100000, CHOICES = 10000 };

struct grammar {
    struct gauto a;
    atomic_int refs;
};

static int32_t find_token(void *arg, struct str name)
{
    return arg ? tokenizer_find(arg, name) : -1;
}

/* ---- kinds of texts ---- */

static int load_json(json_t **out, struct str text, struct err *e)
{
    json_error_t je;

    if (text.n > SCHEMA_BYTES || str_json_parts(text) > SCHEMA_PARTS)
        return err_set(e, E_INVALID, "the schema is too large: at most %d bytes and %d parts",
                       SCHEMA_BYTES, SCHEMA_PARTS);
    *out = json_loadb(text.p, text.n, JSON_DECODE_ANY, &je);
    if (*out) return OK;
    return err_set(e, E_INVALID, "the schema is not JSON: line %d, column %d: %s", je.line,
                   je.column, je.text);
}

static int add_calls(struct grules *g, const struct grammar_spec *spec, const struct tokenizer *tok,
                     struct err *e)
{
    json_t *form = NULL;
    int rc = load_json(&form, spec->text, e);

    if (rc == OK) rc = calls_add(g, form, spec, tok, e);
    json_decref(form);
    return rc;
}

static int add_schema(struct grules *g, struct str text, int *rule, struct err *e)
{
    json_t *schema = NULL;
    int rc = load_json(&schema, text, e);

    if (rc == OK) rc = schema_add(g, schema, rule, e);
    json_decref(schema);
    return rc;
}

static int set_root(struct grules *g, struct gnode *body)
{
    g->root = grules_add(g, "root", body);
    return OK;
}

static int add_choice(struct grules *g, struct str text, struct err *e)
{
    json_t *list = NULL, *v;
    struct gnode *alt = gnode_new(g, GN_ALT);
    size_t i;
    int rc = load_json(&list, text, e);

    if (rc == OK && (json_array_size(list) == 0 || json_array_size(list) > CHOICES))
        rc = err_set(e, E_INVALID, "a choice must be a list of 1 to %d strings", CHOICES);
    if (rc == OK)
        json_array_foreach (list, i, v) {
            if (!json_is_string(v)) {
                rc = err_set(e, E_INVALID, "choice %zu is not a string", i);
                break;
            }
            gnode_add(g, alt, gnode_lit(g, str_of(json_string_value(v), json_string_length(v))));
        }
    json_decref(list);
    return rc == OK ? set_root(g, alt) : rc;
}

static int add_regex(struct grules *g, struct str text, struct err *e)
{
    struct gnode *n;
    int rc = pattern_parse(&n, g, text, PATTERN_TEXT, true, e);

    return rc == OK ? set_root(g, n) : rc;
}

/* ---- compiling ---- */

static int add_rules(struct grules *g, const struct grammar_spec *spec, const struct tokenizer *tok,
                     struct err *e)
{
    switch (spec->kind) {
    case GRAMMAR_GBNF: return gbnf_parse(g, spec->text, find_token, (void *)tok, e);
    case GRAMMAR_SCHEMA: return add_schema(g, spec->text, &g->root, e);
    case GRAMMAR_OBJECT: g->root = schema_any_object(g); return OK;
    case GRAMMAR_REGEX: return add_regex(g, spec->text, e);
    case GRAMMAR_CHOICE: return add_choice(g, spec->text, e);
    case GRAMMAR_CALLS: return add_calls(g, spec, tok, e);
    }
    return err_set(e, E_INTERNAL, "a grammar of no kind");
}

int grammar_compile(struct grammar **out, const struct grammar_spec *spec,
                    const struct tokenizer *tok, struct err *e)
{
    struct grammar *g = mem_new(struct grammar);
    struct grules rules;
    int rc;

    grules_init(&rules);
    atomic_init(&g->refs, 1);
    rc = add_rules(&rules, spec, tok, e);
    if (rc == OK) rc = calls_lead(&rules, spec, tok, e);
    if (rc == OK) rc = gauto_make(&g->a, &rules, e);
    grules_release(&rules);
    if (rc == OK) *out = g;
    else mem_free(g);
    return rc;
}

struct grammar *grammar_ref(struct grammar *g)
{
    if (g) atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    gauto_release(&g->a);
    mem_free(g);
}

const struct gauto *grammar_auto(const struct grammar *g) { return &g->a; }
