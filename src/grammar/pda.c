/* pda.c - from rules to the tables of the pushdown automaton.
 *
 * 1. Nullable rules are found; left recursion is refused; small rules are marked for expansion.
 * 2. The DFA of each rule that is reached from the root is built and appended to the tables. Large
 *    repetitions that are met on the way become counted rules, which are built in turn.
 * 3. Shortest ways to the end of each rule are computed, and dead ends are removed by them.
 * 4. FOLLOW sets and byte classes are computed.
 * Steps 1, 3 and 4 are fixed points: they run over all states until nothing changes. Going
 * backwards over the states, whose later ones are nearer to the end, takes few rounds. */
#include "grammar/pda.h"

#include "base/mem.h"
#include "grammar/nfa.h"

enum {
    MAX_RULES = 8000,
    MAX_COUNTED = 4096, /* rules that are made for repetitions */
    MAX_STATES = 120000,
    MAX_EDGES = 1000000,
    INLINE_SIZE = 16,  /* states up to which a rule is expanded in its callers */
    INLINE_ROUNDS = 4, /* nesting of rules that are expanded */
    NAME_SHOWN = 80    /* bytes of a rule's name in messages */
};

/* A rule of the grammar, or one that was made for a repetition. */
struct pending_rule {
    const struct rule_node *body;
    struct str name;
    int min, max; /* rounds of a counted rule */
    bool counted, wanted;
};

struct pda_maker {
    const struct rules *g;
    struct pda *out;
    /* Each [g->n + MAX_COUNTED]; the first n are in use. */
    struct pending_rule *rules;
    bool *nullable, *inlined;
    int *size;  /* states of a rule that is expanded in place, else 0 */
    int *queue; /* rules that are called and whose automaton is to be built */
    int n, n_queued;
    struct map counted; /* address of a REPEAT node → its rule */
    struct arena arena; /* keys of `counted` */
    struct dfa_env env;
    int cap_states, cap_edges, cap_calls;
    bool full; /* more than MAX_COUNTED */
    struct err *e;
};

static int report_nomem(struct pda_maker *m)
{
    if (budget_failed(m->g->budget)) return budget_error(m->g->budget, m->e);
    return err_nomem(m->e, "the automaton of a grammar");
}

/* ---- nullable rules ---- */

/* Does the tree match the empty text, as far as is known of the rules? */
static bool is_nullable(const struct pda_maker *m, const struct rule_node *n)
{
    bool all = true;

    if (!budget_step(m->g->budget, 1)) return false;
    switch (n->kind) {
    case NODE_EMPTY: return true;
    case NODE_REF: return m->nullable[n->rule];
    case NODE_REPEAT: return n->min == 0 || is_nullable(m, n->children[0]);
    case NODE_DFA: return n->dfa->states[0].final;
    case NODE_SEQ:
        for (int i = 0; i < n->n_children; i++) all &= is_nullable(m, n->children[i]);
        return all;
    case NODE_ALT:
        for (int i = 0; i < n->n_children; i++)
            if (is_nullable(m, n->children[i])) return true;
        return false;
    case NODE_LIST:
        for (int i = 0; i < n->n_children; i++) all &= !n->list->needed[i];
        return all && n->list->min == 0;
    default: return false;
    }
}

static void find_nullable(struct pda_maker *m)
{
    bool changed = true;

    while (changed && !budget_failed(m->g->budget)) {
        changed = false;
        for (int i = m->g->n - 1; i >= 0; i--)
            if (!m->nullable[i] && m->g->rules[i].body && is_nullable(m, m->g->rules[i].body))
                m->nullable[i] = changed = true;
    }
}

/* ---- references between rules ---- */

/* Expanding a small rule in its callers saves a stack frame at run time, and lets the subset
 * construction merge it with its neighbours. Rules that are marked no_inline are shared on purpose. */

struct ref_list {
    int *p, n, cap;
    struct budget *budget;
    bool failed;
};

/* Adds the number of a rule; duplicates do no harm. */
static void add_ref(struct ref_list *r, int rule)
{
    if (!budget_ensure(r->budget, r->p, r->cap, r->n + 1)) r->failed = true;
    else r->p[r->n++] = rule;
}

/* Appends the rules that n refers to; left: only those with which a text of n may begin. */
static void list_refs(const struct pda_maker *m, const struct rule_node *n, bool left,
                      struct ref_list *out)
{
    if (!budget_step(m->g->budget, 1)) return;
    if (n->kind == NODE_REF) add_ref(out, n->rule);
    for (int i = 0; i < n->n_children; i++) {
        list_refs(m, n->children[i], left, out);
        if (left && n->kind == NODE_SEQ && !is_nullable(m, n->children[i])) return;
        if (left && n->kind == NODE_LIST && n->list->needed[i]) return;
    }
    if (n->kind != NODE_LIST) return;
    if (n->list->more) list_refs(m, n->list->more, left, out);
    if (!left) list_refs(m, n->list->sep, left, out);
}

/* A rule is expanded in its callers if it is small and refers only to rules that are, too. */
static int find_inlined(struct pda_maker *m)
{
    struct ref_list refs = { .budget = m->g->budget };

    for (int round = 0; round < INLINE_ROUNDS && !refs.failed; round++)
        for (int i = 0; i < m->g->n; i++) {
            const struct rule *r = &m->g->rules[i];
            bool all = !r->no_inline && !m->inlined[i] && i != m->g->root && r->body;
            refs.n = 0;
            if (all) list_refs(m, r->body, false, &refs);
            for (int k = 0; k < refs.n; k++) all &= m->inlined[refs.p[k]];
            if (!all || (m->size[i] = nfa_node_size(r->body, m->size)) > INLINE_SIZE) continue;
            m->inlined[i] = true;
        }
    budget_free(refs.budget, refs.p, refs.cap);
    return refs.failed ? report_nomem(m) : OK;
}

/* ---- left recursion ---- */

/* The message names the rule and, for longer cycles, the rule through which it comes back. */
static int report_left_recursion(struct pda_maker *m, int rule, int by)
{
    const struct rule *r = &m->g->rules[rule], *via = &m->g->rules[by];

    if (rule == by)
        return err_set(m->e, E_INVALID,
                       "line %d, column %d: the rule '%.*s' begins with itself (left recursion)",
                       r->line, r->column, STR_ARG(str_take(r->name, NAME_SHOWN)));
    return err_set(m->e, E_INVALID,
                   "line %d, column %d: the rule '%.*s' begins with itself, by way of '%.*s' "
                   "(left recursion)",
                   r->line, r->column, STR_ARG(str_take(r->name, NAME_SHOWN)),
                   STR_ARG(str_take(via->name, NAME_SHOWN)));
}

/* The graph "may begin with" between rules, and a depth-first search in it. */
struct left_search {
    struct ref_list refs;
    int *from;  /* [n + 1] where the references of each rule begin in refs */
    int *path;  /* [n] the rules on the path */
    int *at;    /* [n] the reference at which each of them is */
    char *mark; /* [n] 1: on the path; 2: done */
};

static bool left_search_init(struct left_search *s, const struct pda_maker *m)
{
    size_t n = (size_t)m->g->n + 1;

    s->from = mem_array(n, sizeof *s->from);
    s->path = mem_array(n, sizeof *s->path);
    s->at = mem_array(n, sizeof *s->at);
    s->mark = mem_array(n, 1);
    if (!s->from || !s->path || !s->at || !s->mark) return false;
    for (int i = 0; i < m->g->n; i++) {
        s->from[i] = s->refs.n;
        if (m->g->rules[i].body) list_refs(m, m->g->rules[i].body, true, &s->refs);
    }
    s->from[m->g->n] = s->refs.n;
    return !s->refs.failed;
}

static void left_search_release(struct left_search *s)
{
    budget_free(s->refs.budget, s->refs.p, s->refs.cap);
    mem_free(s->from);
    mem_free(s->path);
    mem_free(s->at);
    mem_free(s->mark);
}

/* Not recursive: chains of rules may be long. */
static int search_from(struct pda_maker *m, struct left_search *s, int rule)
{
    int depth = 0;

    s->path[0] = rule, s->at[0] = s->from[rule], s->mark[rule] = 1;
    while (depth >= 0 && budget_step(m->g->budget, 1)) {
        int r = s->path[depth], to;
        if (s->at[depth] == s->from[r + 1]) {
            s->mark[r] = 2, depth--;
            continue;
        }
        to = s->refs.p[s->at[depth]++];
        if (s->mark[to] == 1) return report_left_recursion(m, to, r);
        if (s->mark[to] == 0) s->path[++depth] = to, s->at[depth] = s->from[to], s->mark[to] = 1;
    }
    return OK;
}

/* A matcher follows calls until a byte is read: a left-recursive rule would never end. */
static int check_left_recursion(struct pda_maker *m)
{
    struct left_search s = { .refs.budget = m->g->budget };
    int rc = left_search_init(&s, m) ? OK : report_nomem(m);

    for (int i = 0; i < m->g->n && rc == OK; i++)
        if (!s.mark[i]) rc = search_from(m, &s, i);
    left_search_release(&s);
    return rc;
}

/* ---- the automata of the rules, put into the tables ---- */

/* States of a rule are consecutive and its start is the first of them. */

/* Each rule is built once, when the first call of it is met. */
static void queue_rule(struct pda_maker *m, int rule)
{
    if (m->rules[rule].wanted) return;
    m->rules[rule].wanted = true;
    m->queue[m->n_queued++] = rule;
}

/* Adds a rule that the grammar does not have. Beyond MAX_COUNTED the last one is returned again,
 * and build_rule reports. */
static int add_rule(struct pda_maker *m, struct pending_rule t)
{
    if (m->n == m->g->n + MAX_COUNTED) {
        m->full = true;
        return m->n - 1;
    }
    m->rules[m->n] = t;
    m->nullable[m->n] = is_nullable(m, t.body);
    return m->n++;
}

/* dfa_env.add_counted: one rule for each REPEAT node, however often the node is built. */
static int find_or_add_counted(void *arg, const struct rule_node *repeat)
{
    struct pda_maker *m = arg;
    struct str key = str_of((const char *)&repeat, sizeof repeat);
    uint64_t known;
    int rule;

    if (map_get(&m->counted, key, &known)) return (int)known;
    rule = add_rule(m, (struct pending_rule){ .body = repeat->children[0],
                                              .counted = true,
                                              .min = repeat->min,
                                              .max = repeat->max });
    if (m->nullable[rule]) m->rules[rule].min = 0;
    key = arena_str(&m->arena, key);
    if (!key.p || budget_map_put(m->g->budget, &m->counted, key, (uint64_t)rule) == E_NOMEM)
        return -1;
    return rule;
}

/* Room for more. The tables exist even where they stay empty. */
static bool ensure_tables(struct pda_maker *m, int states, int edges, int calls)
{
    struct budget *b = m->g->budget;
    struct pda *a = m->out;

    return budget_step(b, (uint64_t)states + (uint64_t)edges + (uint64_t)calls) &&
           budget_ensure(b, a->states, m->cap_states, a->n_states + states + 1) &&
           budget_ensure(b, a->edges, m->cap_edges, a->n_edges + edges + 1) &&
           budget_ensure(b, a->calls, m->cap_calls, a->n_calls + calls + 1);
}

/* id: the number of each state of f in the tables. */
static void append_state(struct pda_maker *m, int rule, const struct dfa *f, int state,
                         const int *id)
{
    const struct dfa_state *s = &f->states[state];
    struct pda *a = m->out;

    a->states[id[state]] = (struct pda_state){ .edge = a->n_edges,
                                               .n_edges = s->n_edges,
                                               .call = a->n_calls,
                                               .n_calls = s->n_calls,
                                               .rule = rule,
                                               .final = state > 0 && s->final,
                                               .min_bytes = PDA_FAR };
    for (int k = 0; k < s->n_edges; k++) {
        struct dfa_edge x = f->edges[s->edge + k];
        x.to = id[x.to];
        a->edges[a->n_edges++] = x;
    }
    for (int k = 0; k < s->n_calls; k++) {
        struct dfa_call x = f->calls[s->call + k];
        queue_rule(m, x.rule);
        x.to = id[x.to];
        a->calls[a->n_calls++] = x;
    }
}

/* Appends the automaton of a rule. In a counted rule the states that end a round become its start. */
static int append_dfa(struct pda_maker *m, int rule, const struct dfa *f)
{
    struct pda *a = m->out;
    int base = a->n_states, n = 0, *id = mem_array((size_t)f->n_states, sizeof *id);
    bool counted = m->rules[rule].counted;

    if (!id || !ensure_tables(m, f->n_states, f->n_edges, f->n_calls)) {
        mem_free(id);
        return report_nomem(m);
    }
    for (int i = 0; i < f->n_states; i++)
        id[i] = i && counted && f->states[i].final ? base : base + n++;
    for (int i = 0; i < f->n_states; i++)
        if (!(i && counted && f->states[i].final)) append_state(m, rule, f, i, id);
    a->n_states += n;
    a->rules[rule].start = base;
    mem_free(id);
    return OK;
}

/* Do rounds end where nothing can follow in the same round? Only then the end can be the start. */
static bool has_clear_ends(const struct dfa *f)
{
    for (int i = 1; i < f->n_states; i++)
        if (f->states[i].final && (f->states[i].n_edges || f->states[i].n_calls)) return false;
    return true;
}

/* A counted rule whose round is one call of a new rule with the body. */
static int append_call_round(struct pda_maker *m, int rule)
{
    struct dfa_state states[2] = { { .n_calls = 1 }, { .final = true } };
    struct dfa_call call = { .to = 1 };
    struct dfa f = { .states = states, .calls = &call, .n_states = 2, .n_calls = 1 };

    call.rule = add_rule(m, (struct pending_rule){ .body = m->rules[rule].body });
    return append_dfa(m, rule, &f);
}

/* Builds one rule and checks the limits of the whole. */
static int build_rule(struct pda_maker *m, int rule)
{
    struct dfa f = { 0 };
    int rc = dfa_build(&f, m->rules[rule].body, &m->env, m->e);

    if (rc != OK) {
        if (m->rules[rule].name.n)
            err_wrap(m->e, "rule '%.*s'", STR_ARG(str_take(m->rules[rule].name, NAME_SHOWN)));
        return rc;
    }
    if (m->rules[rule].counted && !has_clear_ends(&f)) rc = append_call_round(m, rule);
    else rc = append_dfa(m, rule, &f);
    dfa_release(&f);
    if (rc == OK && (m->full || m->out->n_states > MAX_STATES || m->out->n_edges > MAX_EDGES))
        return err_set(m->e, E_INVALID,
                       "the grammar is too large: it takes more than %d states or %d repetitions",
                       MAX_STATES, MAX_COUNTED);
    return rc;
}

/* Only rules that can be reached from the root are built. */
static int build_all_rules(struct pda_maker *m)
{
    int rc = OK;

    queue_rule(m, m->g->root);
    for (int i = 0; i < m->n_queued && rc == OK; i++) rc = build_rule(m, m->queue[i]);
    return rc;
}

/* Copies the properties of the rules; names go into the automaton's own arena. */
static int describe_rules(struct pda_maker *m)
{
    struct pda *a = m->out;

    a->n_rules = m->n;
    a->root = m->g->root;
    for (int i = 0; i < m->n; i++) {
        struct pda_rule *r = &a->rules[i];
        r->name = arena_str(&a->arena, m->rules[i].name);
        r->counted = m->rules[i].counted;
        r->min = m->rules[i].min;
        r->max = m->rules[i].max;
        r->nullable = m->nullable[i];
    }
    return arena_check(&a->arena, m->e);
}

/* ---- shortest ways ---- */

/* In bytes. The matcher adds them up over a stack, to know how many bytes complete a text. */

/* Sums of ways stay within an int. */
static int clamp_far(int64_t n) { return n > PDA_FAR ? PDA_FAR : (int)n; }

/* From a state to the end of its round, which is over at the start of a counted rule. */
static int min_bytes_to_round_end(const struct pda *a, int32_t state)
{
    const struct pda_rule *r = &a->rules[a->states[state].rule];
    return r->counted && state == r->start ? 0 : a->states[state].min_bytes;
}

/* The shortest way from a state, as far as is known of its neighbours. */
static int compute_min_bytes(const struct pda *a, const struct pda_state *s)
{
    int best = s->final ? 0 : PDA_FAR;

    for (int i = 0; i < s->n_edges; i++) {
        int d = clamp_far(1 + (int64_t)min_bytes_to_round_end(a, a->edges[s->edge + i].to));
        if (d < best) best = d;
    }
    for (int i = 0; i < s->n_calls; i++) {
        const struct dfa_call *c = &a->calls[s->call + i];
        int d = clamp_far((int64_t)a->rules[c->rule].min_bytes + min_bytes_to_round_end(a, c->to));
        if (d < best) best = d;
    }
    return best;
}

/* Counts one round of a fixed point over all states. */
static bool step_round(const struct pda *a, struct budget *b)
{
    return budget_step(b, (uint64_t)a->n_states + (uint64_t)a->n_edges + (uint64_t)a->n_calls);
}

/* A fixed point over states and rules. */
static void find_min_bytes(struct pda *a, struct budget *b)
{
    bool changed = true;

    for (int i = 0; i < a->n_rules; i++) a->rules[i].min_bytes = PDA_FAR;
    while (changed && step_round(a, b)) {
        changed = false;
        for (int i = a->n_states - 1; i >= 0; i--) {
            struct pda_state *s = &a->states[i];
            struct pda_rule *r = &a->rules[s->rule];
            int d = compute_min_bytes(a, s);
            if (d < s->min_bytes) s->min_bytes = d, changed = true;
            if (i != r->start) continue;
            d = clamp_far((int64_t)s->min_bytes * (r->counted && r->min > 1 ? r->min : 1));
            if (d < r->min_bytes) r->min_bytes = d, changed = true;
        }
    }
}

/* Removes edges and calls from which the end of the rule is not reached. */
static void prune_dead_ends(struct pda *a)
{
    for (int i = 0; i < a->n_states; i++) {
        struct pda_state *s = &a->states[i];
        struct dfa_edge *x = a->edges + s->edge;
        struct dfa_call *c = a->calls + s->call;
        int n = 0;
        for (int k = 0; k < s->n_edges; k++)
            if (min_bytes_to_round_end(a, x[k].to) < PDA_FAR) x[n++] = x[k];
        s->n_edges = n;
        n = 0;
        for (int k = 0; k < s->n_calls; k++)
            if (min_bytes_to_round_end(a, c[k].to) < PDA_FAR &&
                a->rules[c[k].rule].min_bytes < PDA_FAR)
                c[n++] = c[k];
        s->n_calls = n;
    }
}

/* ---- FIRST and FOLLOW sets, and byte classes ---- */

/* FOLLOW sets are for token masks: where a rule ends inside of a token, the next byte must be one
 * that can follow the rule somewhere. Most tokens are excluded by this alone. */

/* true: `to` has changed. */
static bool merge_sets(uint64_t to[4], const uint64_t from[4])
{
    bool changed = false;

    for (int i = 0; i < 4; i++) {
        changed |= (from[i] & ~to[i]) != 0;
        to[i] |= from[i];
    }
    return changed;
}

/* The bytes that can be read next in each state. */
static void find_first(const struct pda *a, uint64_t (*first)[4], struct budget *b)
{
    bool changed = true;

    for (int i = 0; i < a->n_states; i++)
        for (int k = 0; k < a->states[i].n_edges; k++) {
            const struct dfa_edge *x = &a->edges[a->states[i].edge + k];
            for (int c = x->lo; c <= x->hi; c++) first[i][c / 64] |= UINT64_C(1) << (c % 64);
        }
    while (changed && step_round(a, b)) {
        changed = false;
        for (int i = a->n_states - 1; i >= 0; i--)
            for (int k = 0; k < a->states[i].n_calls; k++) {
                const struct dfa_call *c = &a->calls[a->states[i].call + k];
                changed |= merge_sets(first[i], first[a->rules[c->rule].start]);
            }
    }
}

/* After a call comes what the state behind it can read; if that state may end its own rule, also
 * what follows that rule. */
static int find_follow(struct pda_maker *m)
{
    struct pda *a = m->out;
    struct budget *b = m->g->budget;
    uint64_t(*first)[4] = NULL;
    size_t n = (size_t)a->n_states + 1;
    bool changed = true;

    if (budget_take(b, n * sizeof *first)) first = mem_array(n, sizeof *first);
    if (!first) return report_nomem(m);
    find_first(a, first, b);
    while (changed && step_round(a, b)) {
        changed = false;
        for (int i = 0; i < a->n_states; i++)
            for (int k = 0; k < a->states[i].n_calls; k++) {
                const struct dfa_call *c = &a->calls[a->states[i].call + k];
                struct pda_rule *own = &a->rules[a->states[i].rule], *r = &a->rules[c->rule];
                changed |= merge_sets(r->follow, first[c->to]);
                if (a->states[c->to].final || (own->counted && c->to == own->start))
                    changed |= merge_sets(r->follow, own->follow);
            }
    }
    mem_free(first);
    budget_give(b, n * sizeof *first);
    return OK;
}

/* Bytes are cut wherever any edge begins or ends. A table of transitions then has a column for each
 * class in place of 256. */
static void find_classes(struct pda *a)
{
    bool cut[257] = { false };

    for (int i = 0; i < a->n_edges; i++) cut[a->edges[i].lo] = cut[a->edges[i].hi + 1] = true;
    a->n_classes = 1;
    for (int b = 0; b < 256; b++) {
        if (b && cut[b]) a->n_classes++;
        a->class_of[b] = (uint8_t)(a->n_classes - 1);
    }
}

/* ---- the whole ---- */

static int build_tables(struct pda_maker *m)
{
    struct pda *a = m->out;
    int rc;

    find_nullable(m);
    if ((rc = check_left_recursion(m)) != OK) return rc;
    if ((rc = find_inlined(m)) != OK) return rc;
    if ((rc = build_all_rules(m)) != OK) return rc;
    if ((rc = describe_rules(m)) != OK) return rc;
    find_min_bytes(a, m->g->budget);
    prune_dead_ends(a);
    if ((rc = find_follow(m)) != OK) return rc;
    find_classes(a);
    if (budget_failed(m->g->budget)) return budget_error(m->g->budget, m->e);
    if (a->rules[a->root].min_bytes >= PDA_FAR && !a->rules[a->root].nullable)
        return err_set(m->e, E_INVALID,
                       "nothing matches: every way through the rule '%.*s' is endless or closed",
                       STR_ARG(str_take(a->rules[a->root].name, NAME_SHOWN)));
    return OK;
}

/* Of the arrays of maker_init, for each rule. */
enum { RULE_BYTES = sizeof(struct pending_rule) + sizeof(struct pda_rule) + 10 };

static int maker_init(struct pda_maker *m)
{
    const struct rules *g = m->g;
    size_t n = (size_t)g->n + MAX_COUNTED;

    if (!budget_take(g->budget, n * RULE_BYTES)) return report_nomem(m);
    m->rules = mem_array(n, sizeof *m->rules);
    m->nullable = mem_array(n, sizeof *m->nullable);
    m->inlined = mem_array(n, sizeof *m->inlined);
    m->size = mem_array(n, sizeof *m->size);
    m->queue = mem_array(n, sizeof *m->queue);
    m->out->rules = mem_array(n, sizeof *m->out->rules);
    if (!m->rules || !m->nullable || !m->inlined || !m->size || !m->queue || !m->out->rules)
        return report_nomem(m);
    for (int i = 0; i < g->n; i++)
        m->rules[i] = (struct pending_rule){ .body = g->rules[i].body, .name = g->rules[i].name };
    m->env = (struct dfa_env){ .g = g,
                               .nullable = m->nullable,
                               .inlined = m->inlined,
                               .add_counted = find_or_add_counted,
                               .arg = m };
    return OK;
}

static void maker_release(struct pda_maker *m)
{
    budget_map_release(m->g->budget, &m->counted);
    arena_release(&m->arena);
    mem_free(m->rules);
    mem_free(m->nullable);
    mem_free(m->inlined);
    mem_free(m->size);
    mem_free(m->queue);
}

/* Gives back room that was allocated ahead. What cannot be moved stays as large as it is. */
static void shrink_tables(struct pda *a)
{
    void *p;

    if ((p = mem_grow(a->states, ((size_t)a->n_states + 1) * sizeof *a->states))) a->states = p;
    if ((p = mem_grow(a->edges, ((size_t)a->n_edges + 1) * sizeof *a->edges))) a->edges = p;
    if ((p = mem_grow(a->calls, ((size_t)a->n_calls + 1) * sizeof *a->calls))) a->calls = p;
    if ((p = mem_grow(a->rules, ((size_t)a->n_rules + 1) * sizeof *a->rules))) a->rules = p;
}

int pda_build(struct pda *out, const struct rules *g, struct err *e)
{
    struct err local = { 0 };
    struct pda_maker m = {
        .g = g, .out = out, .n = g->n, .arena.budget = g->budget, .e = e ? e : &local
    };
    int rc;

    *out = (struct pda){ 0 };
    if ((rc = rules_check(g, e)) != OK) return rc;
    if (g->n > MAX_RULES)
        return err_set(e, E_INVALID, "the grammar is too large: it has more than %d rules",
                       MAX_RULES);
    if ((rc = maker_init(&m)) == OK) rc = build_tables(&m);
    maker_release(&m);
    if (rc == OK) shrink_tables(out);
    else pda_release(out);
    return rc;
}

void pda_release(struct pda *a)
{
    mem_free(a->states);
    mem_free(a->edges);
    mem_free(a->calls);
    mem_free(a->rules);
    arena_release(&a->arena);
    *a = (struct pda){ 0 };
}

size_t pda_bytes(const struct pda *a)
{
    return (size_t)a->n_states * sizeof *a->states + (size_t)a->n_edges * sizeof *a->edges +
           (size_t)a->n_calls * sizeof *a->calls + (size_t)a->n_rules * sizeof *a->rules +
           a->arena.used_bytes;
}
