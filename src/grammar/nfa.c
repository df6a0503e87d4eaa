#include "grammar/nfa.h"

#include "base/mem.h"

enum { NFA_STATES = 400000, DEPTH = 2000, SMALL = 64, SIZE_MOST = 1 << 24 };

static void build(struct nfa *a, const struct gnode *n, int from, int to);

static int new_state(struct nfa *a)
{
    if (a->n_states == a->cap_states) {
        a->cap_states = a->cap_states ? 2 * a->cap_states : 64;
        a->first = mem_grow(a->first, (size_t)a->cap_states * sizeof *a->first);
    }
    a->first[a->n_states] = -1;
    if (a->n_states > NFA_STATES) a->env->work = -1;
    return a->n_states++;
}

static void add_edge(struct nfa *a, int from, struct nfa_edge x)
{
    if (a->n_edges == a->cap_edges) {
        a->cap_edges = a->cap_edges ? 2 * a->cap_edges : 64;
        a->edges = mem_grow(a->edges, (size_t)a->cap_edges * sizeof *a->edges);
    }
    x.next = a->first[from];
    a->first[from] = a->n_edges;
    a->edges[a->n_edges++] = x;
    a->env->work--;
}

static void eps(struct nfa *a, int from, int to)
{
    if (from != to) add_edge(a, from, (struct nfa_edge){ .kind = NFA_EPS, .to = to });
}

static void byte(struct nfa *a, int from, uint8_t lo, uint8_t hi, int to)
{
    add_edge(a, from, (struct nfa_edge){ .kind = NFA_BYTE, .lo = lo, .hi = hi, .to = to });
}

static void build_lit(struct nfa *a, struct str lit, int from, int to)
{
    for (size_t i = 0; i < lit.n && a->env->work > 0; i++) {
        int next = i + 1 == lit.n ? to : new_state(a);
        byte(a, from, (uint8_t)lit.p[i], (uint8_t)lit.p[i], next);
        from = next;
    }
    if (lit.n == 0) eps(a, from, to);
}

struct class_build {
    struct nfa *a;
    int from, to;
};

static void build_run(void *arg, const struct utf8_run *run)
{
    struct class_build *c = arg;
    int at = c->from;

    for (int i = 0; i < run->n; i++) {
        int next = i + 1 == run->n ? c->to : new_state(c->a);
        byte(c->a, at, run->lo[i], run->hi[i], next);
        at = next;
    }
}

static void build_token(struct nfa *a, int32_t id, int from, int to)
{
    char name[4] = { (char)FSM_TOKEN, (char)(id >> 16), (char)(id >> 8), (char)id };
    build_lit(a, str_of(name, 4), from, to);
}

static void build_rep(struct nfa *a, const struct gnode *n, int from, int to)
{
    const struct gnode *x = n->kids[0];
    int at = from, loop;

    if (n->min > 1 || n->max > 1) {
        if (a->env->counted && !gnode_rep_is_small(n, NULL)) {
            int rule = a->env->counted(a->env->arg, n);
            add_edge(a, from, (struct nfa_edge){ .kind = NFA_CALL, .rule = rule, .to = to });
            if (n->min == 0 || a->env->nullable[rule]) eps(a, from, to);
            return;
        }
    }
    for (int i = 0; i < n->min && a->env->work > 0; i++) {
        int next = new_state(a);
        build(a, x, at, next);
        at = next;
    }
    if (n->max == GNODE_MANY) {
        loop = new_state(a);
        eps(a, at, loop);
        build(a, x, loop, loop);
        eps(a, loop, to);
        return;
    }
    for (int i = n->min; i < n->max && a->env->work > 0; i++) {
        int next = new_state(a);
        eps(a, at, to);
        build(a, x, at, next);
        at = next;
    }
    eps(a, at, to);
}

/* States by how many members are decided and how many there are, up to where the number does not
 * matter. */
static void build_list(struct nfa *a, const struct gnode *n, int from, int to)
{
    const struct glist *l = n->list;
    int most = l->max != GNODE_MANY ? l->max : l->min > 1 ? l->min : 1, *now, *next;

    now = mem_array((size_t)most + 1, sizeof *now);
    next = mem_array((size_t)most + 1, sizeof *next);
    for (int k = 0; k <= most; k++) now[k] = k ? new_state(a) : from;
    for (int i = 0; i <= n->n_kids && a->env->work > 0; i++) {
        const struct gnode *x = i < n->n_kids ? n->kids[i] : l->more;
        bool last = i == n->n_kids;
        for (int k = 0; k <= most; k++) next[k] = last ? now[k] : new_state(a);
        for (int k = 0; k <= most && x; k++) {
            int at = now[k];
            if (k == most && l->max != GNODE_MANY) break;
            if (k > 0) build(a, l->sep, now[k], at = new_state(a));
            build(a, x, at, next[k < most ? k + 1 : k]);
        }
        for (int k = 0; k <= most && !last && !l->needed[i]; k++) eps(a, now[k], next[k]);
        memcpy(now, next, ((size_t)most + 1) * sizeof *now);
    }
    for (int k = l->min; k <= most; k++) eps(a, now[k], to);
    mem_free(now);
    mem_free(next);
}

static void build_fsm(struct nfa *a, const struct fsm *f, int from, int to)
{
    int base = a->n_states - 1; /* state i of it is base + i, but for the start */

    for (int i = 1; i < f->n_states; i++) new_state(a);
    for (int i = 0; i < f->n_states; i++) {
        const struct fsm_state *s = &f->states[i];
        int at = i ? base + i : from;
        for (int k = 0; k < s->n_edges; k++) {
            const struct fsm_edge *x = &f->edges[s->edge + k];
            byte(a, at, x->lo, x->hi, base + x->to);
        }
        if (s->final) eps(a, at, to);
    }
}

static void build_ref(struct nfa *a, int rule, int from, int to)
{
    struct fsm_env *env = a->env;

    if (!env->inlined || env->inlined[rule]) {
        if (!env->g->rules[rule].body) return;
        if (env->depth >= DEPTH) a->endless = true;
        else build(a, env->g->rules[rule].body, from, to);
        return;
    }
    add_edge(a, from, (struct nfa_edge){ .kind = NFA_CALL, .rule = rule, .to = to });
    if (env->nullable[rule]) eps(a, from, to);
}

static void build(struct nfa *a, const struct gnode *n, int from, int to)
{
    struct class_build c = { a, from, to };
    int at = from;

    if (a->env->work <= 0 || a->endless) return;
    a->env->depth++;
    switch (n->kind) {
    case GN_EMPTY: eps(a, from, to); break;
    case GN_NEVER: break;
    case GN_LIT: build_lit(a, n->lit, from, to); break;
    case GN_CLASS: cpset_runs(&n->set, build_run, &c); break;
    case GN_ALT:
        for (int i = 0; i < n->n_kids; i++) build(a, n->kids[i], from, to);
        break;
    case GN_SEQ:
        for (int i = 0; i < n->n_kids; i++) {
            int next = i + 1 == n->n_kids ? to : new_state(a);
            build(a, n->kids[i], at, next);
            at = next;
        }
        if (n->n_kids == 0) eps(a, from, to);
        break;
    case GN_REP: build_rep(a, n, from, to); break;
    case GN_REF: build_ref(a, n->rule, from, to); break;
    case GN_TOKEN: build_token(a, n->min, from, to); break;
    case GN_LIST: build_list(a, n, from, to); break;
    case GN_FSM: build_fsm(a, n->fsm, from, to); break;
    }
    a->env->depth--;
}

int nfa_make(struct nfa *a, const struct gnode *n, struct fsm_env *env, struct err *e)
{
    *a = (struct nfa){ .env = env };
    env->depth = 0;
    new_state(a);
    new_state(a);
    build(a, n, 0, 1);
    if (a->endless)
        return err_set(e, E_INVALID,
                       "a rule that calls itself cannot stand here, or it is nested too deep");
    if (env->work <= 0) return err_set(e, E_INVALID, "the grammar is too large");
    return OK;
}

void nfa_release(struct nfa *a)
{
    mem_free(a->first);
    mem_free(a->edges);
    *a = (struct nfa){ 0 };
}

/* ---- sizes ---- */

static int times(int64_t a, int64_t b) { return a * b > SIZE_MOST ? SIZE_MOST : (int)(a * b); }

static int rep_count(const struct gnode *n) { return n->max != GNODE_MANY ? n->max : n->min + 1; }

int gnode_size(const struct gnode *n, const int *rule_size)
{
    int64_t sum = 1;

    switch (n->kind) {
    case GN_LIT: return n->lit.n > SIZE_MOST ? SIZE_MOST : (int)n->lit.n;
    case GN_CLASS: return n->set.n + (n->set.r[n->set.n - 1].hi > 0x7f ? 4 : 0);
    case GN_REF: return rule_size && rule_size[n->rule] ? rule_size[n->rule] : 2;
    case GN_TOKEN: return 4;
    case GN_FSM: return n->fsm->n_states;
    case GN_REP:
        if (!gnode_rep_is_small(n, rule_size)) return 2;
        return times(gnode_size(n->kids[0], rule_size), rep_count(n));
    default: break;
    }
    for (int i = 0; i < n->n_kids && sum < SIZE_MOST; i++) sum += gnode_size(n->kids[i], rule_size);
    if (n->kind == GN_LIST) {
        if (n->list->more) sum += gnode_size(n->list->more, rule_size);
        sum = times(sum, (n->list->max != GNODE_MANY ? n->list->max : n->list->min) + 2);
    }
    return sum > SIZE_MOST ? SIZE_MOST : (int)sum;
}

bool gnode_rep_is_small(const struct gnode *n, const int *rule_size)
{
    if (n->min <= 1 && (n->max == GNODE_MANY || n->max <= 1)) return true;
    return times(gnode_size(n->kids[0], rule_size), rep_count(n)) <= SMALL;
}
