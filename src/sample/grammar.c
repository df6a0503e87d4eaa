#include "sample/grammar.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "sample/gbnf.h"
#include "sample/pattern.h"
#include "sample/schema.h"

#include <stdatomic.h>

enum { SCHEMA_BYTES = 1 << 20, SCHEMA_PARTS = 100000, CHOICES = 10000, CALLS = 64 };

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
        return err_set(e, E_INVALID, "the schema is too large: at most %d bytes and %d parts", SCHEMA_BYTES,
                       SCHEMA_PARTS);
    *out = json_loadb(text.p, text.n, JSON_DECODE_ANY, &je);
    if (*out) return OK;
    return err_set(e, E_INVALID, "the schema is not JSON: line %d, column %d: %s", je.line, je.column,
                   je.text);
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
    g->root = grules_new(g);
    g->rules[g->root].name = STR("root");
    g->rules[g->root].body = body;
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
        json_array_foreach(list, i, v) {
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

/* ---- calls ---- */

/* The longest special token whose name text begins with; -1: none. */
static int32_t special_at(const struct tokenizer *tok, struct str text, size_t *n)
{
    int32_t best = -1;

    *n = 0;
    for (int32_t id = 0; tok && id < tokenizer_n(tok); id++) {
        struct str piece = tokenizer_is_special(tok, id) ? tokenizer_piece(tok, id) : STR("");
        if (piece.n > *n && str_starts(text, piece)) best = id, *n = piece.n;
    }
    return best;
}

static struct gnode *text_node(struct grules *g, struct str text, const struct tokenizer *tok)
{
    struct gnode *seq = gnode_new(g, GN_SEQ);
    size_t from = 0, n;

    for (size_t i = 0; i < text.n;) {
        char c = text.p[i];
        int32_t id = c == '<' || c == '[' ? special_at(tok, str_skip(text, i), &n) : -1;
        if (id < 0) {
            i++;
            continue;
        }
        if (i > from) gnode_add(g, seq, gnode_lit(g, str_of(text.p + from, i - from)));
        gnode_add(g, seq, gnode_token(g, id));
        from = i += n;
    }
    if (from < text.n) gnode_add(g, seq, gnode_lit(g, str_skip(text, from)));
    return seq;
}

static struct gnode *form_text(struct grules *g, const json_t *form, const char *key,
                               const struct tokenizer *tok)
{
    const json_t *v = json_object_get(form, key);

    return text_node(g, str_of(json_string_value(v), json_string_length(v)), tok);
}

static int add_call(struct grules *g, const json_t *tool, const json_t *form, const struct tokenizer *tok,
                    struct gnode *alt, struct err *e)
{
    const json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "parameters");
    struct str text = str_of(json_string_value(name), json_string_length(name));
    int rule, rc = OK;

    if (schema) rc = schema_add(g, schema, &rule, e);
    else rule = schema_any_object(g);
    if (rc != OK) return err_wrap(e, "tool '%.*s'", STR_ARG(str_take(text, 60)));
    gnode_add(g, alt,
              GSEQ(g, form_text(g, form, "before", tok), gnode_lit(g, text),
                   form_text(g, form, "between", tok), gnode_ref(g, rule),
                   form_text(g, form, "after", tok)));
    return OK;
}

static int add_calls(struct grules *g, struct str text, const struct tokenizer *tok, struct err *e)
{
    json_t *form = NULL, *v;
    struct gnode *alt = gnode_new(g, GN_ALT), *more;
    int call, min, max, rc = load_json(&form, text, e);
    size_t i;

    if (rc != OK) return rc;
    min = (int)json_integer_value(json_object_get(form, "min"));
    max = (int)json_integer_value(json_object_get(form, "max"));
    json_array_foreach(json_object_get(form, "tools"), i, v)
        if (rc == OK) rc = add_call(g, v, form, tok, alt, e);
    if (rc == OK && alt->n_kids == 0) rc = err_set(e, E_INVALID, "there is no tool to call");
    if (rc == OK) {
        call = grules_new(g);
        g->rules[call].name = STR("call");
        g->rules[call].body = alt;
        more = GSEQ(g, form_text(g, form, "sep", tok), gnode_ref(g, call));
        more = gnode_rep(g, more, min > 1 ? min - 1 : 0, (max ? max : CALLS) - 1);
        set_root(g, GSEQ(g, form_text(g, form, "open", tok), gnode_ref(g, call), more,
                         form_text(g, form, "close", tok)));
    }
    json_decref(form);
    return rc;
}

static void put_text(struct jsonw *w, const char *key, const char *text)
{
    jsonw_key(w, key), jsonw_str(w, str_c(text ? text : ""));
}

void grammar_put_calls(struct buf *out, const struct grammar_tool *tools, int n,
                       const struct grammar_calls *form)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    put_text(&w, "open", form->open);
    put_text(&w, "before", form->before);
    put_text(&w, "between", form->between);
    put_text(&w, "after", form->after);
    put_text(&w, "sep", form->sep);
    put_text(&w, "close", form->close);
    jsonw_key(&w, "min"), jsonw_int(&w, form->min);
    jsonw_key(&w, "max"), jsonw_int(&w, form->max);
    jsonw_key(&w, "tools"), jsonw_arr(&w);
    for (int i = 0; i < n; i++) {
        jsonw_obj(&w);
        jsonw_key(&w, "name"), jsonw_str(&w, tools[i].name);
        if (tools[i].parameters.n) {
            jsonw_key(&w, "parameters");
            buf_put_str(out, tools[i].parameters);
            w.comma = true, w.key = false;
        }
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
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
    case GRAMMAR_CALLS: return add_calls(g, spec->text, tok, e);
    }
    return err_set(e, E_INTERNAL, "a grammar of no kind");
}

int grammar_compile(struct grammar **out, const struct grammar_spec *spec, const struct tokenizer *tok,
                    struct err *e)
{
    struct grammar *g = mem_new(struct grammar);
    struct grules rules;
    int rc;

    grules_init(&rules);
    atomic_init(&g->refs, 1);
    rc = add_rules(&rules, spec, tok, e);
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
