/* grammar.c - one function for each kind of description, and the compilation: rules, lead,
 * automaton. The rules are released when the automaton is there. */
#include "grammar/grammar.h"

#include "base/budget.h"
#include "base/mem.h"
#include "grammar/gbnf.h"
#include "grammar/lead.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"
#include "grammar/pda.h"
#include "token/tokenizer.h"

#include <stdatomic.h>

enum { MAX_CHOICES = 10000 };

/* Only `refs` changes after compiling. */
struct grammar {
    struct pda pda;
    atomic_int refs;
    size_t bytes;
};

/* Of all grammars in the process: they outlive the engines that compiled them. */
static atomic_size_t live_bytes;

/* ---- descriptions ---- */

/* gbnf_token_fn. */
static int32_t find_token(void *arg, struct str name)
{
    const struct grammar_env *env = arg;

    return env && env->tok ? tokenizer_find(env->tok, name) : -1;
}

static int add_schema(struct rules *g, struct str text, struct err *e)
{
    json_t *schema = NULL;
    int rc = schema_load(&schema, text, "the schema", g->budget, e);

    if (rc == OK) rc = schema_add(g, schema, &g->root, e);
    json_decref(schema);
    return rc;
}

/* The answer is one of the strings, as they are. */
static int add_choice(struct rules *g, struct str text, struct err *e)
{
    struct rule_node *alt = rules_node(g, NODE_ALT);
    json_t *list = NULL, *v;
    size_t i;
    int rc = schema_load(&list, text, "the list of choices", g->budget, e);

    if (rc == OK && (json_array_size(list) == 0 || json_array_size(list) > MAX_CHOICES))
        rc = err_set(e, E_INVALID, "a choice must be a list of 1 to %d strings", MAX_CHOICES);
    if (rc == OK)
        json_array_foreach (list, i, v) {
            if (!json_is_string(v)) {
                rc = err_set(e, E_INVALID, "choice %zu is not a string", i);
                break;
            }
            rules_add_child(g, alt,
                            rules_literal(g, str_of(json_string_value(v), json_string_length(v))));
        }
    json_decref(list);
    g->root = rules_add(g, STR("root"), alt);
    return rc;
}

static int add_regex(struct rules *g, struct str text, struct err *e)
{
    struct rule_node *n;
    int rc = pattern_parse(&n, g, text, PATTERN_TEXT, true, e);

    if (rc == OK) g->root = rules_add(g, STR("root"), n);
    return rc;
}

/* Adds the rules of the description and sets the root. */
static int add_rules(struct rules *g, const struct grammar_spec *spec, struct err *e)
{
    switch (spec->kind) {
    case GRAMMAR_GBNF: return gbnf_parse(g, spec->text, find_token, (void *)g->env, e);
    case GRAMMAR_SCHEMA: return add_schema(g, spec->text, e);
    case GRAMMAR_OBJECT: g->root = schema_add_any_object(g); return OK;
    case GRAMMAR_REGEX: return add_regex(g, spec->text, e);
    case GRAMMAR_CHOICE: return add_choice(g, spec->text, e);
    case GRAMMAR_RULES: return spec->build(g, spec->text, e);
    }
    return err_set(e, E_INTERNAL, "unknown kind of grammar: %d", (int)spec->kind);
}

/* ---- compiling ---- */

static int compile_rules(struct pda *out, const struct grammar_spec *spec,
                         const struct grammar_env *env, struct err *e)
{
    struct rules rules;
    int rc;

    rules_init(&rules, env);
    rc = add_rules(&rules, spec, e);
    if (rc == OK) rc = rules_check(&rules, e); /* the root is not set after a failure */
    if (rc == OK) rc = lead_add(&rules, spec, e);
    if (rc == OK) rc = pda_build(out, &rules, e);
    rules_release(&rules);
    return rc;
}

/* What the messages of the budget say. */
static const char *name_work(enum grammar_kind kind)
{
    switch (kind) {
    case GRAMMAR_GBNF: return "compiling the grammar";
    case GRAMMAR_SCHEMA: return "compiling the JSON schema";
    case GRAMMAR_OBJECT: return "compiling the grammar of JSON objects";
    case GRAMMAR_REGEX: return "compiling the regular expression";
    case GRAMMAR_CHOICE: return "compiling the list of choices";
    case GRAMMAR_RULES: break;
    }
    return "compiling the tool definitions";
}

/* Whatever a stage has made of it: where the budget is exceeded, that is the error. */
static int compile_within(struct pda *out, const struct grammar_spec *spec,
                          const struct grammar_env *env, struct err *e)
{
    int rc = compile_rules(out, spec, env, e);

    if (!budget_failed(env->budget)) return rc;
    if (rc == OK) pda_release(out);
    return budget_error(env->budget, e);
}

int grammar_compile(struct grammar **out, const struct grammar_spec *spec,
                    const struct grammar_env *env, struct err *e)
{
    struct budget usual = { .max_steps = GRAMMAR_STEPS, .max_bytes = GRAMMAR_BYTES };
    struct grammar_env own = env ? *env : (struct grammar_env){ 0 };
    struct grammar *g = mem_new(struct grammar);
    int rc;

    if (!g) return err_nomem(e, "a grammar");
    if (!own.budget) own.budget = &usual;
    if (!own.budget->what) own.budget->what = name_work(spec->kind);
    atomic_init(&g->refs, 1);
    if ((rc = compile_within(&g->pda, spec, &own, e)) != OK) {
        mem_free(g);
        return rc;
    }
    g->bytes = sizeof *g + pda_bytes(&g->pda);
    atomic_fetch_add_explicit(&live_bytes, g->bytes, memory_order_relaxed);
    *out = g;
    return OK;
}

size_t grammar_bytes(const struct grammar *g) { return g->bytes; }

size_t grammar_live_bytes(void) { return atomic_load_explicit(&live_bytes, memory_order_relaxed); }

struct grammar *grammar_ref(struct grammar *g)
{
    if (g) atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    atomic_fetch_sub_explicit(&live_bytes, g->bytes, memory_order_relaxed);
    pda_release(&g->pda);
    mem_free(g);
}

const struct pda *grammar_pda(const struct grammar *g) { return &g->pda; }

/* ---- the cache key ---- */

/* NULL and "" are different: some of the texts have a default. */
static bool same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

bool grammar_spec_equal(const struct grammar_spec *a, const struct grammar_spec *b)
{
    return a->kind == b->kind && a->build == b->build && a->reasoning == b->reasoning &&
           same_text(a->reasoning_open, b->reasoning_open) &&
           same_text(a->reasoning_close, b->reasoning_close) &&
           same_text(a->reasoning_after, b->reasoning_after) && same_text(a->lead, b->lead) &&
           str_eq(a->text, b->text);
}
