/* nfa.c - Thompson's construction: build_node adds, between two given states, the ways that read
 * the texts of a node. New states are added for what is inside, so ways of different nodes never
 * mix.
 *
 * Three kinds of node go beyond the textbook. A reference is either expanded in place or becomes
 * one CALL edge. A large repetition becomes a CALL of a counted rule in place of copies of its
 * body. A LIST (the members of an object, some optional, with separators between those that are
 * there) is a grid of states instead of an alternative for each subset.
 *
 * Every state and every edge is a step of the budget, so that a hostile grammar ends soon. */
#include "grammar/nfa.h"

#include "base/mem.h"

enum {
    MAX_NFA_STATES = 400000,
    MAX_DEPTH = 2000,  /* nested nodes, rules expanded in place included */
    UNROLL_SIZE = 64,  /* states up to which a repetition is unrolled */
    MAX_SIZE = 1 << 24 /* estimates stop there */
};

static void build_node(struct nfa *a, const struct rule_node *n, int from, int to);

/* The result is not used any more. */
static bool is_stopped(const struct nfa *a)
{
    return a->endless || a->failed || a->full || budget_failed(a->budget);
}

/* State 0 after a failure. */
static int add_state(struct nfa *a)
{
    if (!budget_step(a->budget, 1) ||
        !budget_ensure(a->budget, a->first, a->cap_states, a->n_states + 1)) {
        a->failed = true;
        return 0;
    }
    a->first[a->n_states] = -1;
    if (a->n_states > MAX_NFA_STATES) a->full = true;
    return a->n_states++;
}

/* Edges of a state form a list, newest first. */
static void add_edge(struct nfa *a, int from, struct nfa_edge x)
{
    if (!budget_step(a->budget, 1) ||
        !budget_ensure(a->budget, a->edges, a->cap_edges, a->n_edges + 1)) {
        a->failed = true;
        return;
    }
    x.next = a->first[from];
    a->first[from] = a->n_edges;
    a->edges[a->n_edges++] = x;
}

/* An edge that reads nothing. */
static void add_epsilon(struct nfa *a, int from, int to)
{
    if (from != to) add_edge(a, from, (struct nfa_edge){ .kind = NFA_EPSILON, .to = to });
}

static void add_bytes(struct nfa *a, int from, uint8_t lo, uint8_t hi, int to)
{
    add_edge(a, from, (struct nfa_edge){ .kind = NFA_BYTE, .lo = lo, .hi = hi, .to = to });
}

static void add_call(struct nfa *a, int from, int rule, int to)
{
    add_edge(a, from, (struct nfa_edge){ .kind = NFA_CALL, .rule = rule, .to = to });
}

static void build_literal(struct nfa *a, struct str lit, int from, int to)
{
    for (size_t i = 0; i < lit.n && !is_stopped(a); i++) {
        int next = i + 1 == lit.n ? to : add_state(a);
        add_bytes(a, from, (uint8_t)lit.p[i], (uint8_t)lit.p[i], next);
        from = next;
    }
    if (lit.n == 0) add_epsilon(a, from, to);
}

/* The two states between which the sequences of a class are added. */
struct class_build {
    struct nfa *a;
    int from, to;
};

/* charset_each_utf8 callback: one chain of states. Common prefixes are merged by the subset
 * construction. */
static void build_utf8(void *arg, const struct charset_utf8 *seq)
{
    struct class_build *c = arg;
    int at = c->from;

    for (int i = 0; i < seq->n; i++) {
        int next = i + 1 == seq->n ? c->to : add_state(c->a);
        add_bytes(c->a, at, seq->lo[i], seq->hi[i], next);
        at = next;
    }
}

/* The four bytes under which a special token stands in the vocabulary's trie. */
static void build_token(struct nfa *a, int32_t id, int from, int to)
{
    char name[4] = { (char)DFA_TOKEN_BYTE, (char)(id >> 16), (char)(id >> 8), (char)id };
    build_literal(a, str_of(name, 4), from, to);
}

/* The rule itself is only entered to read something (pda.h), so a way around it is added here. */
static void build_counted(struct nfa *a, const struct rule_node *n, int from, int to)
{
    int rule = a->env->add_counted(a->env->arg, n);

    if (rule < 0) {
        a->failed = true;
        return;
    }
    add_call(a, from, rule, to);
    if (n->min == 0 || a->env->nullable[rule]) add_epsilon(a, from, to);
}

/* Unrolled: min copies, then a loop, or max - min copies that may each be left out. */
static void build_repeat(struct nfa *a, const struct rule_node *n, int from, int to)
{
    const struct rule_node *x = n->children[0];
    int at = from, loop;

    if (a->env->add_counted && !nfa_repeat_is_small(n, NULL)) {
        build_counted(a, n, from, to);
        return;
    }
    for (int i = 0; i < n->min && !is_stopped(a); i++) {
        int next = add_state(a);
        build_node(a, x, at, next);
        at = next;
    }
    if (n->max == RULES_UNBOUNDED) {
        loop = add_state(a);
        add_epsilon(a, at, loop);
        build_node(a, x, loop, loop);
        add_epsilon(a, loop, to);
        return;
    }
    for (int i = n->min; i < n->max && !is_stopped(a); i++) {
        int next = add_state(a);
        add_epsilon(a, at, to);
        build_node(a, x, at, next);
        at = next;
    }
    add_epsilon(a, at, to);
}

/* A grid of states. The row is the number of members that are decided, the column the number of
 * those that are present; in the last column the exact number does not matter any more. now[] and
 * next[] are two rows. */
static void build_grid(struct nfa *a, const struct rule_node *n, int *now, int *next, int last_col,
                       int from, int to)
{
    const struct rule_list *l = n->list;

    for (int k = 0; k <= last_col; k++) now[k] = k ? add_state(a) : from;
    for (int i = 0; i <= n->n_children && !is_stopped(a); i++) {
        bool last = i == n->n_children;
        const struct rule_node *x = last ? l->more : n->children[i];
        for (int k = 0; k <= last_col; k++) next[k] = last ? now[k] : add_state(a);
        for (int k = 0; k <= last_col && x; k++) {
            int at = now[k];
            if (k == last_col && l->max != RULES_UNBOUNDED) break;
            if (k > 0) build_node(a, l->sep, now[k], at = add_state(a));
            build_node(a, x, at, next[k < last_col ? k + 1 : k]);
        }
        for (int k = 0; k <= last_col && !last && !l->needed[i]; k++)
            add_epsilon(a, now[k], next[k]);
        memcpy(now, next, ((size_t)last_col + 1) * sizeof *now);
    }
    for (int k = l->min; k <= last_col; k++) add_epsilon(a, now[k], to);
}

/* The exact number of members matters up to the maximum, or else up to the minimum; one column is
 * needed in any case to tell whether a separator comes first. */
static void build_list(struct nfa *a, const struct rule_node *n, int from, int to)
{
    const struct rule_list *l = n->list;
    int last_col = l->max != RULES_UNBOUNDED ? l->max : l->min > 1 ? l->min : 1;
    int *now = mem_array((size_t)last_col + 1, sizeof *now);
    int *next = mem_array((size_t)last_col + 1, sizeof *next);

    if (now && next) build_grid(a, n, now, next, last_col, from, to);
    else a->failed = true;
    mem_free(now);
    mem_free(next);
}

/* A copy of the automaton. Its start is `from`, which is why no edge may lead back to state 0. */
static void build_dfa(struct nfa *a, const struct dfa *f, int from, int to)
{
    int base = a->n_states - 1; /* state i of f is base + i, except for its start */

    for (int i = 1; i < f->n_states; i++) add_state(a);
    if (a->failed) return;
    for (int i = 0; i < f->n_states; i++) {
        const struct dfa_state *s = &f->states[i];
        int at = i ? base + i : from;
        for (int k = 0; k < s->n_edges; k++) {
            const struct dfa_edge *x = &f->edges[s->edge + k];
            add_bytes(a, at, x->lo, x->hi, base + x->to);
        }
        if (s->final) add_epsilon(a, at, to);
    }
}

/* Expansion is bounded in depth: a recursive rule that must be expanded is an error. */
static void build_ref(struct nfa *a, int rule, int from, int to)
{
    struct dfa_env *env = a->env;

    if (!env->inlined || env->inlined[rule]) {
        if (!env->g->rules[rule].body) return;
        if (env->depth >= MAX_DEPTH) a->endless = true;
        else build_node(a, env->g->rules[rule].body, from, to);
        return;
    }
    add_call(a, from, rule, to);
    if (env->nullable[rule]) add_epsilon(a, from, to);
}

static void build_seq(struct nfa *a, const struct rule_node *n, int from, int to)
{
    int at = from;

    for (int i = 0; i < n->n_children; i++) {
        int next = i + 1 == n->n_children ? to : add_state(a);
        build_node(a, n->children[i], at, next);
        at = next;
    }
    if (n->n_children == 0) add_epsilon(a, from, to);
}

/* Adds the ways from state `from` to state `to` that read the texts of n. */
static void build_node(struct nfa *a, const struct rule_node *n, int from, int to)
{
    struct class_build c = { a, from, to };

    if (is_stopped(a) || !budget_step(a->budget, 1)) return;
    a->env->depth++;
    switch (n->kind) {
    case NODE_EMPTY: add_epsilon(a, from, to); break;
    case NODE_NEVER: break;
    case NODE_LITERAL: build_literal(a, n->lit, from, to); break;
    case NODE_CLASS: charset_each_utf8(&n->set, build_utf8, &c); break;
    case NODE_ALT:
        for (int i = 0; i < n->n_children; i++) build_node(a, n->children[i], from, to);
        break;
    case NODE_SEQ: build_seq(a, n, from, to); break;
    case NODE_REPEAT: build_repeat(a, n, from, to); break;
    case NODE_REF: build_ref(a, n->rule, from, to); break;
    case NODE_TOKEN: build_token(a, n->min, from, to); break;
    case NODE_LIST: build_list(a, n, from, to); break;
    case NODE_DFA: build_dfa(a, n->dfa, from, to); break;
    }
    a->env->depth--;
}

int nfa_build(struct nfa *a, const struct rule_node *n, struct dfa_env *env, struct err *e)
{
    *a = (struct nfa){ .env = env, .budget = env->g->budget };
    if (rules_failed(env->g)) return rules_check(env->g, e); /* the tree is incomplete */
    env->depth = 0;
    add_state(a);
    add_state(a);
    build_node(a, n, 0, 1);
    if (budget_failed(a->budget)) return budget_error(a->budget, e);
    if (a->failed) return err_nomem(e, "the automaton of a grammar");
    if (a->endless)
        return err_set(e, E_INVALID,
                       "a rule that refers to itself is not allowed here, or rules are nested more "
                       "than %d deep",
                       MAX_DEPTH);
    if (a->full)
        return err_set(e, E_INVALID, "the grammar is too large: it takes more than %d states",
                       MAX_NFA_STATES);
    return OK;
}

void nfa_release(struct nfa *a)
{
    budget_free(a->budget, a->first, a->cap_states);
    budget_free(a->budget, a->edges, a->cap_edges);
    *a = (struct nfa){ 0 };
}

/* ---- sizes ---- */

/* These multiply in 64 bits and stop at MAX_SIZE. */
static int multiply_sizes(int64_t a, int64_t b)
{
    return a * b > MAX_SIZE ? MAX_SIZE : (int)(a * b);
}

static int count_rounds(const struct rule_node *n)
{
    return n->max != RULES_UNBOUNDED ? n->max : n->min + 1;
}

/* None or one, one or more, any number: a loop in place of copies. */
static bool is_simple_repeat(const struct rule_node *n)
{
    return n->min <= 1 && (n->max == RULES_UNBOUNDED || n->max <= 1);
}

/* The size of the body. Repetitions are nested hundreds deep and their sizes asked for at every copy
 * of them, so it is kept: a body is complete when its automaton is built. */
static int get_body_size(const struct rule_node *n, const int *rule_size)
{
    struct rule_node *body = n->children[0];

    if (rule_size) return nfa_node_size(body, rule_size);
    if (!body->size) body->size = nfa_node_size(body, NULL);
    return body->size;
}

int nfa_node_size(const struct rule_node *n, const int *rule_size)
{
    int64_t sum = 1;

    switch (n->kind) {
    case NODE_LITERAL: return n->lit.n > MAX_SIZE ? MAX_SIZE : (int)n->lit.n;
    case NODE_CLASS: return n->set.n + (n->set.ranges[n->set.n - 1].hi > 0x7f ? 4 : 0);
    case NODE_REF: return rule_size && rule_size[n->rule] ? rule_size[n->rule] : 2;
    case NODE_TOKEN: return 4;
    case NODE_DFA: return n->dfa->n_states;
    case NODE_REPEAT:
        sum = multiply_sizes(get_body_size(n, rule_size), count_rounds(n));
        return is_simple_repeat(n) || sum <= UNROLL_SIZE ? (int)sum : 2;
    default: break;
    }
    for (int i = 0; i < n->n_children && sum < MAX_SIZE; i++)
        sum += nfa_node_size(n->children[i], rule_size);
    if (n->kind == NODE_LIST) {
        if (n->list->more) sum += nfa_node_size(n->list->more, rule_size);
        sum = multiply_sizes(sum,
                             (n->list->max != RULES_UNBOUNDED ? n->list->max : n->list->min) + 2);
    }
    return sum > MAX_SIZE ? MAX_SIZE : (int)sum;
}

bool nfa_repeat_is_small(const struct rule_node *n, const int *rule_size)
{
    if (is_simple_repeat(n)) return true;
    return multiply_sizes(get_body_size(n, rule_size), count_rounds(n)) <= UNROLL_SIZE;
}
