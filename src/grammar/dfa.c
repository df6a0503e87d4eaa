/* dfa.c - the subset construction (Rabin and Scott), the product construction, and properties of
 * automata.
 *
 * Both constructions number states in the order in which they are found and are their own work
 * list: state i is processed after all before it, and may add states at the end. A DFA is not
 * minimized. It would save little: rules are small, and the matcher's tables are filled on demand. */
#include "grammar/dfa.h"

#include "base/mem.h"
#include "grammar/nfa.h"

#include <stdlib.h>

void dfa_release(struct dfa *f)
{
    budget_free(f->budget, f->states, f->cap_states);
    budget_free(f->budget, f->edges, f->cap_edges);
    budget_free(f->budget, f->calls, f->cap_calls);
    *f = (struct dfa){ 0 };
}

/* These add to a DFA, and set `failed` in place of a result. */
static void add_state(struct dfa *f, bool final)
{
    if (!budget_ensure(f->budget, f->states, f->cap_states, f->n_states + 1)) f->failed = true;
    else f->states[f->n_states++] = (struct dfa_state){ .final = final };
}

static void add_call(struct dfa *f, int32_t state, struct dfa_call x)
{
    if (!budget_ensure(f->budget, f->calls, f->cap_calls, f->n_calls + 1)) {
        f->failed = true;
        return;
    }
    f->calls[f->n_calls++] = x;
    f->states[state].n_calls++;
}

/* Adds an edge of the state that was begun last. The edge is merged with the one before if both
 * lead to the same state and their bytes touch. */
static void add_edge(struct dfa *f, int32_t state, struct dfa_edge x)
{
    struct dfa_state *s = &f->states[state];
    struct dfa_edge *last = f->n_edges > s->edge ? &f->edges[f->n_edges - 1] : NULL;

    if (last && last->to == x.to && last->hi + 1 == x.lo) {
        last->hi = x.hi;
    } else if (!budget_ensure(f->budget, f->edges, f->cap_edges, f->n_edges + 1)) {
        f->failed = true;
    } else {
        f->edges[f->n_edges++] = x;
        s->n_edges++;
    }
}

/* The error with which a construction stops, or OK. */
static int check_limits(const struct dfa *out, struct err *e)
{
    if (budget_failed(out->budget)) return budget_error(out->budget, e);
    if (out->failed) return err_nomem(e, "the automaton of a grammar");
    if (out->n_states <= DFA_MAX_STATES) return OK;
    return err_set(e, E_INVALID, "the grammar is too complex: a rule takes more than %d states",
                   DFA_MAX_STATES);
}

/* ---- the subset construction ---- */

/* A state of the DFA as the sorted NFA states it stands for. */
struct subset {
    int32_t *members;
    int n;
};

/* A call of a rule from a member of a subset. */
struct nfa_call {
    int32_t rule, to;
    int met, first; /* its place in the order in which calls were met; that of the rule's first */
};

struct subsets {
    const struct nfa *a;
    struct dfa *out;
    struct budget *budget;
    struct arena arena; /* members of all subsets */
    struct map known;   /* members as bytes → state of out */
    struct subset *of;  /* [out->n_states] */
    int cap;
    /* the subset in progress */
    int32_t *members, *stack; /* [NFA states] */
    uint32_t *seen, stamp;    /* [NFA states] */
    int n_members;
    struct nfa_call *calls; /* of the subset whose calls are made */
    int n_calls, cap_calls;
};

/* qsort order. */
static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* A subset is made by subset_begin, any number of subset_add, and subset_end. */
static void subset_begin(struct subsets *s)
{
    s->n_members = 0;
    s->stamp++;
}

/* Adds a state with its epsilon closure. Only states with an edge that is not epsilon, and the
 * final state, are members: others make no difference. */
static void subset_add(struct subsets *s, int32_t state)
{
    int n = 0;

    if (s->seen[state] == s->stamp) return;
    s->seen[state] = s->stamp;
    s->stack[n++] = state;
    while (n > 0) {
        int32_t at = s->stack[--n];
        bool counts = at == 1;
        for (int32_t i = s->a->first[at]; i >= 0; i = s->a->edges[i].next) {
            const struct nfa_edge *x = &s->a->edges[i];
            budget_step(s->budget, 1);
            if (x->kind != NFA_EPSILON) counts = true;
            else if (s->seen[x->to] != s->stamp) {
                s->seen[x->to] = s->stamp;
                s->stack[n++] = x->to;
            }
        }
        if (counts) s->members[s->n_members++] = at;
    }
}

static void sort_members(struct subsets *s)
{
    qsort(s->members, (size_t)s->n_members, sizeof *s->members, by_number);
}

/* A new state of the DFA for the members. is_target: edges may lead to it. */
static int32_t add_subset(struct subsets *s, bool is_target)
{
    size_t bytes = (size_t)s->n_members * sizeof *s->members;
    int32_t id = s->out->n_states, *copy = arena_alloc(&s->arena, bytes + 1);
    bool final = false;

    if (copy) memcpy(copy, s->members, bytes);
    if (!copy || !budget_ensure(s->budget, s->of, s->cap, id + 1) ||
        (is_target && budget_map_put(s->budget, &s->known, str_of((const char *)copy, bytes),
                                     (uint64_t)id) == E_NOMEM)) {
        s->out->failed = true;
        return -1;
    }
    for (int i = 0; i < s->n_members; i++) final |= copy[i] == 1;
    s->of[id] = (struct subset){ copy, s->n_members };
    add_state(s->out, final);
    return id;
}

/* The state for the members that were added; -1: there are none, or out->failed. */
static int32_t subset_end(struct subsets *s)
{
    uint64_t id;

    if (s->n_members == 0) return -1;
    sort_members(s);
    budget_step(s->budget, (uint64_t)s->n_members);
    if (map_get(&s->known,
                str_of((const char *)s->members, (size_t)s->n_members * sizeof *s->members), &id))
        return (int32_t)id;
    return add_subset(s, true);
}

/* The bytes are cut into ranges in which all NFA edges of the subset behave alike. */
static void make_edges(struct subsets *s, int32_t id)
{
    const struct subset from = s->of[id];
    bool cut[257] = { false };
    int lo = 0;

    for (int i = 0; i < from.n; i++)
        for (int32_t k = s->a->first[from.members[i]]; k >= 0; k = s->a->edges[k].next)
            if (s->a->edges[k].kind == NFA_BYTE)
                cut[s->a->edges[k].lo] = cut[s->a->edges[k].hi + 1] = true;
    for (int b = 1; b <= 256; b++) {
        int32_t to;
        if (!cut[b] && b < 256) continue;
        if (budget_failed(s->budget)) return;
        subset_begin(s);
        for (int i = 0; i < from.n; i++)
            for (int32_t k = s->a->first[from.members[i]]; k >= 0; k = s->a->edges[k].next) {
                const struct nfa_edge *x = &s->a->edges[k];
                budget_step(s->budget, 1);
                if (x->kind == NFA_BYTE && x->lo <= lo && x->hi >= b - 1) subset_add(s, x->to);
            }
        to = subset_end(s);
        if (to >= 0) add_edge(s->out, id, (struct dfa_edge){ (uint8_t)lo, (uint8_t)(b - 1), to });
        lo = b;
    }
}

/* qsort orders: by rule; and by the first call of the same rule. Calls of one rule stay together. */
static int by_rule(const void *a, const void *b)
{
    const struct nfa_call *x = a, *y = b;
    return x->rule != y->rule ? (x->rule > y->rule) - (x->rule < y->rule)
                              : (x->met > y->met) - (x->met < y->met);
}

static int by_first(const void *a, const void *b)
{
    const struct nfa_call *x = a, *y = b;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->met > y->met) - (x->met < y->met);
}

/* The calls of a subset, those of each rule together, rules in the order in which they are met. */
static void list_calls(struct subsets *s, const struct subset *from)
{
    s->n_calls = 0;
    for (int i = 0; i < from->n; i++)
        for (int32_t k = s->a->first[from->members[i]]; k >= 0; k = s->a->edges[k].next) {
            const struct nfa_edge *x = &s->a->edges[k];
            budget_step(s->budget, 1);
            if (x->kind != NFA_CALL) continue;
            if (!budget_ensure(s->budget, s->calls, s->cap_calls, s->n_calls + 1)) {
                s->out->failed = true;
                return;
            }
            s->calls[s->n_calls] = (struct nfa_call){ x->rule, x->to, s->n_calls, 0 };
            s->n_calls++;
        }
    if (s->n_calls < 2) return;
    qsort(s->calls, (size_t)s->n_calls, sizeof *s->calls, by_rule);
    for (int i = 0; i < s->n_calls; i++)
        s->calls[i].first =
            i && s->calls[i].rule == s->calls[i - 1].rule ? s->calls[i - 1].first : s->calls[i].met;
    qsort(s->calls, (size_t)s->n_calls, sizeof *s->calls, by_first);
}

/* One call for each rule: the states after all calls of the rule in the subset are one subset, too. */
static void make_calls(struct subsets *s, int32_t id)
{
    const struct subset from = s->of[id];

    list_calls(s, &from);
    for (int i = 0; i < s->n_calls && !s->out->failed;) {
        int32_t rule = s->calls[i].rule, to;
        subset_begin(s);
        for (; i < s->n_calls && s->calls[i].rule == rule; i++) subset_add(s, s->calls[i].to);
        to = subset_end(s);
        if (to >= 0) add_call(s->out, id, (struct dfa_call){ rule, to });
    }
}

/* Of members, stack and seen, for each state of the NFA. */
enum { SCRATCH_BYTES = 3 * sizeof(int32_t) };

static bool subsets_init(struct subsets *s)
{
    size_t n = (size_t)s->a->n_states;

    if (!budget_take(s->budget, n * SCRATCH_BYTES)) return false;
    s->members = mem_array(n, sizeof *s->members);
    s->stack = mem_array(n, sizeof *s->stack);
    s->seen = mem_array(n, sizeof *s->seen);
    return s->members && s->stack && s->seen;
}

static void subsets_release(struct subsets *s)
{
    budget_give(s->budget, (size_t)s->a->n_states * SCRATCH_BYTES);
    mem_free(s->members);
    mem_free(s->stack);
    mem_free(s->seen);
    budget_free(s->budget, s->of, s->cap);
    budget_free(s->budget, s->calls, s->cap_calls);
    budget_map_release(s->budget, &s->known);
    arena_release(&s->arena);
}

static int determinize(struct dfa *out, const struct nfa *a, struct err *e)
{
    struct subsets s = { .a = a, .out = out, .budget = a->budget, .arena.budget = a->budget };
    int rc = OK;

    if (subsets_init(&s)) {
        subset_begin(&s);
        subset_add(&s, 0);
        sort_members(&s);
        add_subset(&s, false); /* an equal subset met later is another state: none leads to 0 */
    } else {
        out->failed = true;
    }
    if (out->failed) rc = check_limits(out, e);
    for (int32_t id = 0; id < out->n_states && rc == OK; id++) {
        out->states[id].edge = out->n_edges;
        make_edges(&s, id);
        out->states[id].call = out->n_calls;
        make_calls(&s, id);
        rc = check_limits(out, e);
    }
    subsets_release(&s);
    return rc;
}

int dfa_build(struct dfa *out, const struct rule_node *n, struct dfa_env *env, struct err *e)
{
    struct nfa a;
    int rc = nfa_build(&a, n, env, e);

    *out = (struct dfa){ .budget = env->g->budget };
    if (rc == OK) rc = determinize(out, &a, e);
    if (rc != OK) dfa_release(out);
    nfa_release(&a);
    return rc;
}

/* ---- the product construction ---- */

/* Both automata read the same bytes in step. The intersection accepts where both do. The difference
 * accepts where x does and y does not, so it must go on when y cannot: then the state of y is -1. */

/* The state after a byte; -1: none. */
static int32_t step_state(const struct dfa *f, int32_t state, uint8_t byte)
{
    for (int i = 0; i < f->states[state].n_edges; i++) {
        const struct dfa_edge *x = &f->edges[f->states[state].edge + i];
        if (byte >= x->lo && byte <= x->hi) return x->to;
    }
    return -1;
}

/* A state of the product is a pair of states. y is -1 once y accepts nothing any more. */
struct state_pair {
    int32_t x, y;
};

struct product {
    const struct dfa *x, *y;
    enum dfa_op op;
    struct dfa *out;
    struct budget *budget;
    struct arena arena;       /* keys of `known` */
    struct map known;         /* a pair as bytes → state of out */
    struct state_pair *pairs; /* [out->n_states] */
    int cap;
};

static struct str pair_key(const struct state_pair *pair)
{
    return str_of((const char *)pair, sizeof *pair);
}

/* The state of a pair, added if it is new; 0 after a failure. */
static int32_t find_or_add_pair(struct product *p, int32_t x, int32_t y)
{
    struct state_pair pair = { x, y };
    int32_t id = p->out->n_states;
    bool in_y = y >= 0 && p->y->states[y].final;
    uint64_t known;
    struct str key;

    if (map_get(&p->known, pair_key(&pair), &known)) return (int32_t)known;
    key = arena_str(&p->arena, pair_key(&pair));
    if (!key.p || !budget_ensure(p->budget, p->pairs, p->cap, id + 1) ||
        budget_map_put(p->budget, &p->known, key, (uint64_t)id) == E_NOMEM) {
        p->out->failed = true;
        return 0;
    }
    p->pairs[id] = pair;
    add_state(p->out, p->x->states[x].final && (p->op == DFA_INTERSECT ? in_y : !in_y));
    return id;
}

static void add_pair_edge(struct product *p, int32_t id, int lo, int hi, int32_t x, int32_t y)
{
    int32_t to = find_or_add_pair(p, x, y);

    if (!p->out->failed) add_edge(p->out, id, (struct dfa_edge){ (uint8_t)lo, (uint8_t)hi, to });
}

/* The edges of a pair under one edge of x, cut where edges of y begin and end. */
static void add_pair_edges(struct product *p, int32_t id, const struct dfa_edge *ex, int32_t y)
{
    int at = ex->lo, n = y >= 0 ? p->y->states[y].n_edges : 0;

    for (int i = 0; i <= n && at <= ex->hi && !p->out->failed; i++) {
        const struct dfa_edge *ey = i < n ? &p->y->edges[p->y->states[y].edge + i] : NULL;
        int from = !ey || ey->lo > ex->hi ? ex->hi + 1 : ey->lo > at ? ey->lo : at;
        int to = ey && ey->hi < ex->hi ? ey->hi : ex->hi;
        if (ey && ey->hi < at) continue;
        if (from > at && p->op == DFA_SUBTRACT) add_pair_edge(p, id, at, from - 1, ex->to, -1);
        if (ey && from <= to) add_pair_edge(p, id, from, to, ex->to, ey->to);
        at = ey && from <= to ? to + 1 : from;
    }
}

/* State 0 is the pair of both starts. Pairs that cannot be reached are never made. */
int dfa_product(struct dfa *out, const struct dfa *x, const struct dfa *y, enum dfa_op op,
                struct dfa_env *env, struct err *e)
{
    struct budget *b = env->g->budget;
    struct product p = { .x = x, .y = y, .op = op, .out = out, .budget = b, .arena.budget = b };
    int rc;

    *out = (struct dfa){ .budget = b };
    find_or_add_pair(&p, 0, 0);
    rc = out->failed ? check_limits(out, e) : OK;
    for (int32_t id = 0; id < out->n_states && rc == OK; id++) {
        struct state_pair at = p.pairs[id];
        out->states[id].edge = out->n_edges;
        for (int i = 0; i < x->states[at.x].n_edges; i++)
            add_pair_edges(&p, id, &x->edges[x->states[at.x].edge + i], at.y);
        budget_step(b, 4 + (uint64_t)x->states[at.x].n_edges *
                               (at.y >= 0 ? 1 + (uint64_t)y->states[at.y].n_edges : 1));
        rc = check_limits(out, e);
    }
    budget_map_release(b, &p.known);
    arena_release(&p.arena);
    budget_free(b, p.pairs, p.cap);
    if (rc != OK) dfa_release(out);
    return rc;
}

/* ---- properties ---- */

/* `scratch` of each state is used in place of an array, so that these cannot run out of memory. They
 * are fixed points: a round over all states counts as so many steps, and beyond the budget the
 * result is not the right one, which nobody looks at. */

/* Counts one round. */
static bool step_round(const struct dfa *f)
{
    return budget_step(f->budget, (uint64_t)f->n_states + (uint64_t)f->n_edges);
}

/* scratch is 1 for states from which a final state is reached. Later states tend to be nearer to
 * the end, so going backwards takes few rounds. */
bool dfa_trim(struct dfa *f)
{
    bool changed = true;

    for (int i = 0; i < f->n_states; i++) f->states[i].scratch = f->states[i].final;
    while (changed && step_round(f)) {
        changed = false;
        for (int i = f->n_states - 1; i >= 0; i--)
            for (int k = 0; k < f->states[i].n_edges && !f->states[i].scratch; k++)
                if (f->states[f->edges[f->states[i].edge + k].to].scratch)
                    f->states[i].scratch = changed = true;
    }
    for (int i = 0; i < f->n_states; i++) {
        int from = f->states[i].edge, n = 0;
        for (int k = 0; k < f->states[i].n_edges; k++)
            if (f->states[f->edges[from + k].to].scratch) f->edges[from + n++] = f->edges[from + k];
        f->states[i].n_edges = n;
    }
    return f->n_states > 0 && f->states[0].scratch;
}

bool dfa_accepts(const struct dfa *f, struct str text)
{
    int32_t at = 0;

    for (size_t i = 0; i < text.n && at >= 0; i++) at = step_state(f, at, (uint8_t)text.p[i]);
    return at >= 0 && f->states[at].final;
}

/* scratch is the longest way found so far. A way longer than the number of states is a cycle. */
int dfa_longest(struct dfa *f)
{
    bool changed = true;

    for (int i = 0; i < f->n_states; i++) f->states[i].scratch = 0;
    while (changed && step_round(f)) {
        changed = false;
        for (int i = f->n_states - 1; i >= 0; i--)
            for (int k = 0; k < f->states[i].n_edges; k++) {
                int d = f->states[f->edges[f->states[i].edge + k].to].scratch + 1;
                if (d <= f->states[i].scratch) continue;
                if (d > f->n_states) return -1;
                f->states[i].scratch = d;
                changed = true;
            }
    }
    return f->n_states > 0 ? f->states[0].scratch : 0;
}

/* ---- nodes ---- */

/* The states count as nodes, so that the limit of a rule set bounds its automata, too. */
struct rule_node *dfa_node(struct rules *g, const struct dfa *f)
{
    struct rule_node *n = rules_node(g, NODE_DFA);
    struct dfa *copy = arena_new(&g->arena, struct dfa);

    if (!copy) return n;
    *copy = *f;
    copy->budget = NULL; /* the arena counts it */
    budget_step(g->budget, (uint64_t)f->n_states + (uint64_t)f->n_edges);
    copy->states = arena_array(&g->arena, (size_t)f->n_states + 1, sizeof *f->states);
    copy->edges = arena_array(&g->arena, (size_t)f->n_edges + 1, sizeof *f->edges);
    if (!copy->states || !copy->edges) return n;
    memcpy(copy->states, f->states, (size_t)f->n_states * sizeof *f->states);
    if (f->n_edges) memcpy(copy->edges, f->edges, (size_t)f->n_edges * sizeof *f->edges);
    n->dfa = copy;
    g->n_nodes += f->n_states;
    return n;
}

/* All texts, less those with the mark somewhere: a finite automaton, as in the search of Knuth,
 * Morris and Pratt. */
int dfa_text_without(struct rule_node **out, struct rules *g, struct str mark, struct err *e)
{
    struct rule_node *any = rules_repeat(g, rules_range(g, 1, CHARSET_LAST), 0, RULES_UNBOUNDED);
    struct dfa_env env = { .g = g };
    struct dfa all = { 0 }, with = { 0 }, f = { 0 };
    int rc;

    if ((rc = dfa_build(&all, any, &env, e)) != OK) goto out;
    if ((rc = dfa_build(&with, RULES_SEQ(g, any, rules_literal(g, mark), any), &env, e)) != OK)
        goto out;
    if ((rc = dfa_product(&f, &all, &with, DFA_SUBTRACT, &env, e)) != OK) goto out;
    dfa_trim(&f);
    *out = dfa_node(g, &f);
out:
    dfa_release(&all);
    dfa_release(&with);
    dfa_release(&f);
    return rc;
}
