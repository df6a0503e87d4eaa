/* toolrules.c - the rules of an answer with tool calls:
 *
 *     calls      open call (sep call)* close
 *     call       before NAME between arguments after, an alternative for each tool
 *     arguments  of each tool, from the schema of its parameters
 *
 * With a trigger the calls are embedded in free text: text (calls text)*, where the text does not
 * contain the trigger. A format that numbers its calls needs a node for each number, so its
 * repetition is written out.
 *
 * The description is JSON text: it is the key under which the compiled grammar is cached, and it is
 * compiled on another thread than it is written on. */
#include "toolcall/toolrules.h"

#include "base/jsonw.h"
#include "grammar/schema.h"
#include "grammar/specials.h"
#include "grammar/dfa.h"

#include <stdio.h>

enum {
    MAX_CALLS = 64,     /* where a format and a request allow any number */
    MAX_NUMBERED = 16,  /* calls of a format that numbers them: each number has its own nodes */
    RANDOM_LETTERS = 10 /* of {r} */
};

struct toolrules {
    struct rules *g;
    const json_t *form; /* the text that toolrules_write wrote, parsed */
    const json_t *tools;
    struct specials specials;
    int *args; /* the rule of the arguments of each tool */
    struct err *e;
};

/* ---- texts of the format ---- */

/* A text of the format; p NULL: the format does not have it. */
static struct str get_form_str(const struct toolrules *t, const char *key)
{
    const json_t *v = json_object_get(t->form, key);

    return v ? str_of(json_string_value(v), json_string_length(v)) : (struct str){ 0 };
}

/* A number of the format; 0: the format does not have it. */
static int get_form_int(const struct toolrules *t, const char *key)
{
    return (int)json_integer_value(json_object_get(t->form, key));
}

/* An id that the model chooses. */
static struct rule_node *make_random_letters(struct rules *g)
{
    struct charset s = { 0 };

    charset_add(&s, &g->arena, 'a', 'z');
    charset_add(&s, &g->arena, '0', '9');
    return rules_repeat(g, rules_class(g, s), RANDOM_LETTERS, RANDOM_LETTERS);
}

struct placeholder {
    struct rules *g;
    int number; /* of the call */
};

/* specials_placeholder_fn: {i} and {r}. */
static struct rule_node *fill_placeholder(void *arg, struct str text, size_t *n)
{
    const struct placeholder *p = arg;
    char digits[16];

    *n = 3;
    if (str_starts(text, STR("{r}"))) return make_random_letters(p->g);
    if (!str_starts(text, STR("{i}"))) return NULL;
    snprintf(digits, sizeof digits, "%d", p->number);
    return rules_text(p->g, digits);
}

/* A text of the format as a node. number: of the call, for {i}. */
static struct rule_node *make_text_node(struct toolrules *t, struct str text, int number)
{
    struct placeholder p = { t->g, number };

    return specials_text(&t->specials, t->g, text, fill_placeholder, &p);
}

static struct rule_node *make_form_node(struct toolrules *t, const char *key, int number)
{
    return make_text_node(t, get_form_str(t, key), number);
}

/* ---- arguments ---- */

/* *out NULL: the schema cannot be written as a list of members. */
static int make_list(struct toolrules *t, const json_t *schema, struct rule_node **out)
{
    struct schema_list list = { .until = get_form_str(t, "until"),
                                .trim = get_form_int(t, "trim"),
                                .python = get_form_int(t, "python") };
    struct str end = get_form_str(t, "end");
    ptrdiff_t at = str_find(end, STR("{k}"));

    list.key = make_form_node(t, "key", 0);
    list.is = make_form_node(t, "is", 0);
    list.is_json = get_form_str(t, "is_json").p ? make_form_node(t, "is_json", 0) : list.is;
    if (at >= 0) { /* the key comes again in it */
        list.end = make_text_node(t, str_take(end, (size_t)at), 0);
        list.end_tail = make_text_node(t, str_skip(end, (size_t)at + 3), 0);
    } else list.end = make_text_node(t, end, 0);
    list.sep = make_form_node(t, "and", 0);
    if (get_form_str(t, "quote").n) list.quote = make_form_node(t, "quote", 0);
    return schema_add_list(t->g, schema, &list, out, t->e);
}

/* The arguments of a tool: as a list of members if the format has one and the schema allows it,
 * else as a JSON object. A tool without a schema takes any object. */
static int make_args(struct toolrules *t, const json_t *schema, struct rule_node **out)
{
    int rule, rc = OK;

    *out = NULL;
    if (schema && get_form_str(t, "key").p) rc = make_list(t, schema, out);
    if (rc != OK || *out) return rc;
    if (!schema) rule = schema_add_any_object(t->g);
    else if ((rc = schema_add_object(t->g, schema, &rule, t->e)) != OK) return rc;
    *out = rules_ref(t->g, rule);
    return OK;
}

/* A rule for the arguments of each tool. They are shared by all calls of the tool. */
static int add_args_rules(struct toolrules *t)
{
    struct rule_node *args;
    json_t *tool;
    size_t i;

    if (json_array_size(t->tools) == 0)
        return err_set(t->e, E_INVALID, "a tool call is required, but there are no tools");
    json_array_foreach ((json_t *)t->tools, i, tool) {
        if (make_args(t, json_object_get(tool, "parameters"), &args) != OK)
            return err_wrap(t->e, "tool '%.60s'", json_string_value(json_object_get(tool, "name")));
        t->args[i] = rules_add(t->g, STR("arguments"), args);
    }
    return OK;
}

/* ---- calls ---- */

/* Where `before` ends with a quote, the name is inside of a JSON string and escaped. */
static struct rule_node *make_name(struct toolrules *t, const json_t *tool)
{
    const json_t *v = json_object_get(tool, "name");
    struct str name = str_of(json_string_value(v), json_string_length(v)),
               before = get_form_str(t, "before");
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    struct rule_node *n;

    if (!before.n || before.p[before.n - 1] != '"') return rules_literal(t->g, name);
    jsonw_str(&w, name);
    if (b.failed) t->g->failed = true;
    n = rules_literal(t->g, b.n >= 2 ? str_of(b.p + 1, b.n - 2) : name);
    buf_release(&b);
    return n;
}

/* A call of any of the tools. The texts around the names are the same nodes for all. */
static struct rule_node *make_call(struct toolrules *t, int number)
{
    struct rule_node *alt = rules_node(t->g, NODE_ALT),
                     *before = make_form_node(t, "before", number),
                     *between = make_form_node(t, "between", number),
                     *after = make_form_node(t, "after", number);
    json_t *tool;
    size_t i;

    json_array_foreach ((json_t *)t->tools, i, tool)
        rules_add_child(t->g, alt,
                        RULES_SEQ(t->g, before, make_name(t, tool), between,
                                  rules_ref(t->g, t->args[i]), after));
    return alt;
}

/* Do the texts of a call depend on its number? */
static bool is_numbered(const struct toolrules *t)
{
    return str_find(get_form_str(t, "before"), STR("{i}")) >= 0 ||
           str_find(get_form_str(t, "between"), STR("{i}")) >= 0;
}

/* Calls after the first one. Each is nested in the optional part after the one before it. */
static struct rule_node *make_more_numbered(struct toolrules *t, int min, int max)
{
    struct rule_node *more = NULL;

    if (!max || max > MAX_NUMBERED) max = MAX_NUMBERED;
    for (int i = max - 1; i > 0; i--) {
        more = RULES_SEQ(t->g, make_form_node(t, "sep", i), make_call(t, i), more);
        if (i >= min) more = rules_repeat(t->g, more, 0, 1);
    }
    return more;
}

/* At least one call, with the texts before and after all of them. */
static struct rule_node *make_calls(struct toolrules *t)
{
    struct rules *g = t->g;
    int min = get_form_int(t, "min"), max = get_form_int(t, "max"), call;
    struct rule_node *first, *more;

    if (min < 1) min = 1;
    if (is_numbered(t)) {
        more = make_more_numbered(t, min, max);
        first = make_call(t, 0);
    } else {
        call = rules_add(g, STR("call"), make_call(t, 0));
        first = rules_ref(g, call);
        more = rules_repeat(g, RULES_SEQ(g, make_form_node(t, "sep", 0), rules_ref(g, call)),
                            min - 1, (max ? max : MAX_CALLS) - 1);
    }
    return RULES_SEQ(g, make_form_node(t, "open", 0), first, more, make_form_node(t, "close", 0));
}

/* ---- lazy grammars: text around the calls ---- */

/* Any special token but the one with which the trigger begins. */
static int make_other_specials(struct toolrules *t, struct str trigger, struct rule_node **out)
{
    struct dfa_state states[] = { { .edge = 0, .n_edges = 1 },
                                  { .edge = 1, .n_edges = 1 },
                                  { .edge = 2, .n_edges = 1 },
                                  { .edge = 3, .n_edges = 1 },
                                  { .edge = 4, .final = true } };
    struct dfa_edge edges[] = {
        { DFA_TOKEN_BYTE, DFA_TOKEN_BYTE, 1 }, { 0, 255, 2 }, { 0, 255, 3 }, { 0, 255, 4 }
    };
    const struct dfa any = { .states = states, .edges = edges, .n_states = 5, .n_edges = 4 };
    const struct special_token *token = specials_at(&t->specials, trigger);
    struct dfa_env env = { .g = t->g };
    struct dfa its = { 0 }, f = { 0 };
    int rc;

    if (!token) {
        *out = dfa_node(t->g, &any);
        return OK;
    }
    if ((rc = dfa_build(&its, rules_token(t->g, token->id), &env, t->e)) == OK)
        rc = dfa_product(&f, &any, &its, DFA_SUBTRACT, &env, t->e);
    if (rc == OK) {
        dfa_trim(&f);
        *out = dfa_node(t->g, &f);
    }
    dfa_release(&its);
    dfa_release(&f);
    return rc;
}

/* Replaces *io, the calls, by text without the trigger in which the calls may stand. */
static int add_text_around(struct toolrules *t, struct rule_node **io)
{
    struct rules *g = t->g;
    struct str trigger = get_form_str(t, "trigger");
    struct rule_node *text, *other;
    int rule, rc;

    if ((rc = dfa_text_without(&text, g, trigger, t->e)) != OK) return rc;
    if ((rc = make_other_specials(t, trigger, &other)) != OK) return rc;
    rule = rules_add(
        g, STR("text"),
        RULES_SEQ(g, text, rules_repeat(g, RULES_SEQ(g, other, text), 0, RULES_UNBOUNDED)));
    *io = RULES_SEQ(g, rules_repeat(g, RULES_SEQ(g, rules_ref(g, rule), *io), 0, RULES_UNBOUNDED),
                    rules_ref(g, rule));
    return OK;
}

/* ---- building ---- */

/* Adds all rules and sets the root. */
static int add_calls(struct toolrules *t)
{
    struct rule_node *body;
    int rc;

    t->args = arena_array(&t->g->arena, json_array_size(t->tools) + 1, sizeof *t->args);
    if (!t->args) return rules_check(t->g, t->e);
    if ((rc = add_args_rules(t)) != OK) return rc;
    body = make_calls(t);
    if (get_form_str(t, "trigger").n && (rc = add_text_around(t, &body)) != OK) return rc;
    t->g->root = rules_add(t->g, STR("calls"), body);
    return OK;
}

int toolrules_build(struct rules *g, struct str text, struct err *e)
{
    struct err local = { 0 };
    struct toolrules t = { .g = g, .e = e ? e : &local };
    json_t *form = NULL;
    int rc = schema_load(&form, text, "the description of the tools", g->budget, t.e);

    if (rc == OK) rc = specials_init(&t.specials, g->env, t.e);
    if (rc == OK) {
        t.form = form;
        t.tools = json_object_get(form, "tools");
        rc = add_calls(&t);
    }
    specials_release(&t.specials);
    json_decref(form);
    return rc;
}

/* ---- the text ---- */

static void write_str(struct jsonw *w, const char *key, const char *text)
{
    if (text) jsonw_key(w, key), jsonw_str(w, str_c(text));
}

static void write_int(struct jsonw *w, const char *key, int v)
{
    jsonw_key(w, key), jsonw_int(w, v);
}

static void write_format(struct jsonw *w, const struct toolformat *f)
{
    const struct {
        const char *key, *text;
    } texts[] = { { "open", f->open },       { "before", f->before },  { "between", f->between },
                  { "after", f->after },     { "sep", f->sep },        { "close", f->close },
                  { "key", f->key },         { "is", f->is },          { "end", f->end },
                  { "is_json", f->is_json }, { "and", f->and },        { "quote", f->quote },
                  { "until", f->until },     { "trigger", f->trigger } };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        write_str(w, texts[i].key, texts[i].text);
    write_int(w, "min", 1);
    write_int(w, "max", f->max);
    write_int(w, "trim", f->trim);
    write_int(w, "python", f->python);
}

void toolrules_write(struct buf *out, const struct toolrules_tool *tools, int n,
                     const struct toolformat *format)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    write_format(&w, format);
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
