#include "grammar/calls.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "grammar/fsm.h"
#include "grammar/schema.h"

#include <stdio.h>

enum { CALLS = 64, NUMBERED = 16, LETTERS = 10 };

struct special {
    struct str name;
    int32_t id;
};

struct calls {
    struct grules *g;
    const json_t *form;
    struct special *special;
    int n_special;
    struct err *e;
};

/* ---- texts, in which names of special tokens are those tokens ---- */

static bool is_end(const struct grammar_spec *spec, int32_t id)
{
    for (int i = 0; i < spec->n_ends; i++)
        if (spec->ends[i] == id) return true;
    return false;
}

/* Those that end a text can be in it only letter by letter. */
static void find_specials(struct calls *c, const struct grammar_spec *spec,
                          const struct tokenizer *tok)
{
    int cap = 0;

    for (int32_t id = 0; tok && id < tokenizer_n(tok); id++) {
        if (!tokenizer_is_special(tok, id) || !tokenizer_piece(tok, id).n || is_end(spec, id))
            continue;
        if (c->n_special == cap) {
            cap = cap ? 2 * cap : 64;
            c->special = mem_grow(c->special, (size_t)cap * sizeof *c->special);
        }
        c->special[c->n_special++] = (struct special){ tokenizer_piece(tok, id), id };
    }
}

/* The longest special token whose name text begins with; NULL: none. */
static const struct special *special_at(const struct calls *c, struct str text)
{
    const struct special *best = NULL;

    for (int i = 0; i < c->n_special; i++)
        if (str_starts(text, c->special[i].name) && (!best || c->special[i].name.n > best->name.n))
            best = &c->special[i];
    return best;
}

static struct gnode *letters(struct grules *g)
{
    struct cpset s = { 0 };

    cpset_add(&s, &g->arena, 'a', 'z');
    cpset_add(&s, &g->arena, '0', '9');
    return gnode_rep(g, gnode_class(g, s), LETTERS, LETTERS);
}

static void add_bytes(struct calls *c, struct gnode *seq, struct str text)
{
    if (text.n) gnode_add(c->g, seq, gnode_lit(c->g, text));
}

static struct gnode *text_node(struct calls *c, struct str text, int number)
{
    struct gnode *seq = gnode_new(c->g, GN_SEQ);
    size_t from = 0;
    char digits[16];

    if (!text.n) return seq;
    for (size_t i = 0; i < text.n;) {
        struct str rest = str_skip(text, i);
        const struct special *t = special_at(c, rest);
        bool is_number = !t && str_starts(rest, STR("{i}")),
             is_letters = !t && str_starts(rest, STR("{r}"));
        if (!t && !is_number && !is_letters) {
            i++;
            continue;
        }
        add_bytes(c, seq, str_of(text.p + from, i - from));
        snprintf(digits, sizeof digits, "%d", number);
        gnode_add(c->g, seq,
                  t           ? gnode_token(c->g, t->id)
                  : is_number ? gnode_c(c->g, digits)
                              : letters(c->g));
        from = i += t ? t->name.n : 3;
    }
    add_bytes(c, seq, str_skip(text, from));
    return seq;
}

static struct str form_str(const struct calls *c, const char *key)
{
    const json_t *v = json_object_get(c->form, key);

    return v ? str_of(json_string_value(v), json_string_length(v)) : (struct str){ 0 };
}

static struct gnode *form_text(struct calls *c, const char *key, int number)
{
    return text_node(c, form_str(c, key), number);
}

static int form_int(const struct calls *c, const char *key)
{
    return (int)json_integer_value(json_object_get(c->form, key));
}

/* ---- arguments ---- */

static int add_args(struct calls *c, const json_t *schema, struct gnode **out)
{
    struct schema_list list = { .until = form_str(c, "until"),
                                .trim = form_int(c, "trim"),
                                .python = form_int(c, "python") };
    int rule, rc;

    *out = NULL;
    if (schema && form_str(c, "key").p) {
        list.key = form_text(c, "key", 0);
        list.is = form_text(c, "is", 0);
        list.is_json = form_str(c, "is_json").p ? form_text(c, "is_json", 0) : list.is;
        list.end = form_text(c, "end", 0);
        list.sep = form_text(c, "and", 0);
        if (form_str(c, "quote").n) list.quote = form_text(c, "quote", 0);
        if ((rc = schema_add_list(c->g, schema, &list, out, c->e)) != OK || *out) return rc;
    }
    if (!schema) rule = schema_any_object(c->g);
    else if ((rc = schema_add_object(c->g, schema, &rule, c->e)) != OK) return rc;
    *out = gnode_ref(c->g, rule);
    return OK;
}

/* A rule for the arguments of each tool. */
static int add_tools(struct calls *c, const json_t *tools, int *rules)
{
    struct gnode *args;
    json_t *tool;
    size_t i;

    json_array_foreach ((json_t *)tools, i, tool) {
        if (add_args(c, json_object_get(tool, "parameters"), &args) != OK)
            return err_wrap(c->e, "tool '%.60s'", json_string_value(json_object_get(tool, "name")));
        rules[i] = grules_add(c->g, "arguments", args);
    }
    return i ? OK : err_set(c->e, E_INVALID, "there is no tool to call");
}

/* ---- calls ---- */

/* Inside of a JSON string a name is written as such. */
static struct gnode *name_node(struct calls *c, const json_t *tool)
{
    const json_t *v = json_object_get(tool, "name");
    struct str name = str_of(json_string_value(v), json_string_length(v)),
               before = form_str(c, "before");
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    struct gnode *n;

    if (!before.n || before.p[before.n - 1] != '"') return gnode_lit(c->g, name);
    jsonw_str(&w, name);
    n = gnode_lit(c->g, str_of(b.p + 1, b.n - 2));
    buf_release(&b);
    return n;
}

static struct gnode *one_call(struct calls *c, const json_t *tools, const int *rules, int number)
{
    struct gnode *alt = gnode_new(c->g, GN_ALT);
    json_t *tool;
    size_t i;

    json_array_foreach ((json_t *)tools, i, tool)
        gnode_add(c->g, alt,
                  GSEQ(c->g, form_text(c, "before", number), name_node(c, tool),
                       form_text(c, "between", number), gnode_ref(c->g, rules[i]),
                       form_text(c, "after", number)));
    return alt;
}

static bool is_numbered(const struct calls *c)
{
    return str_find(form_str(c, "before"), STR("{i}")) >= 0 ||
           str_find(form_str(c, "between"), STR("{i}")) >= 0;
}

static struct gnode *all_calls(struct calls *c, const json_t *tools, const int *rules)
{
    struct grules *g = c->g;
    int min = form_int(c, "min"), max = form_int(c, "max"), call;
    struct gnode *more = NULL;

    if (min < 1) min = 1;
    if (is_numbered(c)) { /* each one inside what follows the one before */
        if (!max || max > NUMBERED) max = NUMBERED;
        for (int i = max - 1; i > 0; i--) {
            more = GSEQ(g, form_text(c, "sep", i), one_call(c, tools, rules, i), more);
            if (i >= min) more = gnode_rep(g, more, 0, 1);
        }
        return GSEQ(g, form_text(c, "open", 0), one_call(c, tools, rules, 0), more,
                    form_text(c, "close", 0));
    }
    call = grules_add(g, "call", one_call(c, tools, rules, 0));
    more = gnode_rep(g, GSEQ(g, form_text(c, "sep", 0), gnode_ref(g, call)), min - 1,
                     (max ? max : CALLS) - 1);
    return GSEQ(g, form_text(c, "open", 0), gnode_ref(g, call), more, form_text(c, "close", 0));
}

/* ---- around them ---- */

/* Any special token but the one a mark begins with. */
static int add_specials(struct calls *c, struct str mark, struct gnode **out)
{
    struct fsm_state states[] = { { 0, 1, 0, 0, false },
                                  { 1, 1, 0, 0, false },
                                  { 2, 1, 0, 0, false },
                                  { 3, 1, 0, 0, false },
                                  { 4, 0, 0, 0, true } };
    struct fsm_edge edges[] = {
        { FSM_TOKEN, FSM_TOKEN, 1 }, { 0, 255, 2 }, { 0, 255, 3 }, { 0, 255, 4 }
    };
    const struct fsm any = { .states = states, .edges = edges, .n_states = 5, .n_edges = 4 };
    const struct special *t = special_at(c, mark);
    struct fsm_env env = { .g = c->g, .work = FSM_WORK };
    struct fsm its = { 0 }, f = { 0 };
    int rc = OK;

    if (!t) {
        *out = gnode_fsm(c->g, &any);
        return OK;
    }
    if ((rc = fsm_make(&its, gnode_token(c->g, t->id), &env, c->e)) == OK)
        rc = fsm_product(&f, &any, &its, FSM_AND_NOT, &env, c->e);
    if (rc == OK) {
        fsm_trim(&f);
        *out = gnode_fsm(c->g, &f);
    }
    fsm_release(&its);
    fsm_release(&f);
    return rc;
}

/* Text, and calls wherever the mark stands in it. */
static int add_between_text(struct calls *c, struct gnode **io)
{
    struct grules *g = c->g;
    struct str mark = form_str(c, "mark");
    struct gnode *text, *other;
    int rule, rc;

    if ((rc = gnode_without(&text, g, mark, c->e)) != OK) return rc;
    if ((rc = add_specials(c, mark, &other)) != OK) return rc;
    rule = grules_add(g, "text", GSEQ(g, text, gnode_rep(g, GSEQ(g, other, text), 0, GNODE_MANY)));
    *io =
        GSEQ(g, gnode_rep(g, GSEQ(g, gnode_ref(g, rule), *io), 0, GNODE_MANY), gnode_ref(g, rule));
    return OK;
}

int calls_add(struct grules *g, const json_t *form, const struct grammar_spec *spec,
              const struct tokenizer *tok, struct err *e)
{
    struct calls c = { .g = g, .form = form, .e = e };
    const json_t *tools = json_object_get(form, "tools");
    int *rules = arena_array(&g->arena, json_array_size(tools) + 1, sizeof *rules), rc;
    struct gnode *body;

    find_specials(&c, spec, tok);
    if ((rc = add_tools(&c, tools, rules)) != OK) goto out;
    body = all_calls(&c, tools, rules);
    if (form_str(&c, "mark").n && (rc = add_between_text(&c, &body)) != OK) goto out;
    g->root = grules_add(g, "calls", body);
out:
    mem_free(c.special);
    return rc;
}

/* ---- before a text ---- */

static struct gnode *white_space(struct grules *g)
{
    struct cpset space = { 0 };

    cpset_add(&space, &g->arena, '\n', '\n');
    cpset_add(&space, &g->arena, ' ', ' ');
    return gnode_rep(g, gnode_class(g, space), 0, 4);
}

int calls_lead(struct grules *g, const struct grammar_spec *spec, const struct tokenizer *tok,
               struct err *e)
{
    struct calls c = { .g = g, .e = e };
    struct gnode *think = NULL, *text, *after;
    int rc = OK;

    if (spec->thinking == THINK_NOT && !spec->lead) return OK;
    find_specials(&c, spec, tok);
    if (spec->thinking != THINK_NOT) {
        if ((rc = gnode_without(&text, g, str_c(spec->think_end), e)) != OK) goto out;
        after = spec->think_after ? text_node(&c, str_c(spec->think_after), 0) : white_space(g);
        think = GSEQ(g, text, text_node(&c, str_c(spec->think_end), 0), after);
        if (spec->thinking == THINK_MAY)
            think = gnode_rep(g, GSEQ(g, text_node(&c, str_c(spec->think), 0), think), 0, 1);
    }
    g->root = grules_add(g, "answer",
                         GSEQ(g, think, text_node(&c, str_c(spec->lead ? spec->lead : ""), 0),
                              gnode_ref(g, g->root)));
out:
    mem_free(c.special);
    return rc;
}

/* ---- written down ---- */

static void put_text(struct jsonw *w, const char *key, const char *text)
{
    if (text) jsonw_key(w, key), jsonw_str(w, str_c(text));
}

static void put_int(struct jsonw *w, const char *key, int v) { jsonw_key(w, key), jsonw_int(w, v); }

static void put_form(struct jsonw *w, const struct grammar_calls *f)
{
    const struct {
        const char *key, *text;
    } texts[] = { { "open", f->open },       { "before", f->before }, { "between", f->between },
                  { "after", f->after },     { "sep", f->sep },       { "close", f->close },
                  { "key", f->key },         { "is", f->is },         { "end", f->end },
                  { "is_json", f->is_json }, { "and", f->and },       { "quote", f->quote },
                  { "until", f->until },     { "mark", f->mark } };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        put_text(w, texts[i].key, texts[i].text);
    put_int(w, "min", f->min);
    put_int(w, "max", f->max);
    put_int(w, "trim", f->trim);
    put_int(w, "python", f->python);
}

void grammar_put_calls(struct buf *out, const struct grammar_tool *tools, int n,
                       const struct grammar_calls *form)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    put_form(&w, form);
    jsonw_key(&w, "tools"), jsonw_arr(&w);
    for (int i = 0; i < n; i++) {
        jsonw_obj(&w);
        jsonw_key(&w, "name"), jsonw_str(&w, tools[i].name);
        if (tools[i].parameters.n) jsonw_key(&w, "parameters"), jsonw_raw(&w, tools[i].parameters);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
}
