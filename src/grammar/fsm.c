#include "grammar/fsm.h"

#include "base/mem.h"
#include "grammar/nfa.h"

#include <stdlib.h>

void fsm_release(struct fsm *f)
{
    mem_free(f->states);
    mem_free(f->edges);
    mem_free(f->calls);
    *f = (struct fsm){ 0 };
}

static void add_state(struct fsm *f, struct fsm_state s)
{
    if (f->n_states == f->cap_states) {
        f->cap_states = f->cap_states ? 2 * f->cap_states : 16;
        f->states = mem_grow(f->states, (size_t)f->cap_states * sizeof s);
    }
    f->states[f->n_states++] = s;
}

static void add_edge(struct fsm *f, struct fsm_edge x)
{
    if (f->n_edges == f->cap_edges) {
        f->cap_edges = f->cap_edges ? 2 * f->cap_edges : 32;
        f->edges = mem_grow(f->edges, (size_t)f->cap_edges * sizeof x);
    }
    f->edges[f->n_edges++] = x;
}

static void add_call(struct fsm *f, struct fsm_call x)
{
    if (f->n_calls == f->cap_calls) {
        f->cap_calls = f->cap_calls ? 2 * f->cap_calls : 16;
        f->calls = mem_grow(f->calls, (size_t)f->cap_calls * sizeof x);
    }
    f->calls[f->n_calls++] = x;
}

/* Adds an edge of state s, joined with the one before where that leads the same way. */
static void join_edge(struct fsm *f, int32_t s, struct fsm_edge x)
{
    struct fsm_edge *last = f->n_edges > f->states[s].edge ? &f->edges[f->n_edges - 1] : NULL;

    if (last && last->to == x.to && last->hi + 1 == x.lo) last->hi = x.hi;
    else add_edge(f, x);
    f->states[s].n_edges = f->n_edges - f->states[s].edge;
}

/* ---- sets of states ---- */

struct sets {
    const struct nfa *a;
    struct fsm *out;
    struct arena arena;
    struct map known; /* a set, as the bytes of its sorted states → state of out */
    int32_t **set;    /* [n_states of out] */
    int *n_set, cap;
    /* while one is made */
    int32_t *members, *stack; /* [nfa states] */
    uint32_t *seen, stamp;
    int n_members;
};

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void set_begin(struct sets *s)
{
    s->n_members = 0;
    s->stamp++;
}

/* Adds a state with all that follow it for nothing; only those with an edge of their own, or the
 * last, count. */
static void set_add(struct sets *s, int32_t state)
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
            s->a->env->work--;
            if (x->kind != NFA_EPS) counts = true;
            else if (s->seen[x->to] != s->stamp) {
                s->seen[x->to] = s->stamp;
                s->stack[n++] = x->to;
            }
        }
        if (counts) s->members[s->n_members++] = at;
    }
}

static int32_t new_set(struct sets *s, bool known)
{
    size_t bytes = (size_t)s->n_members * sizeof *s->members;
    int32_t id = s->out->n_states, *copy = arena_alloc(&s->arena, bytes + 1);
    bool final = false;

    memcpy(copy, s->members, bytes);
    for (int i = 0; i < s->n_members; i++) final |= copy[i] == 1;
    if (id == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->set = mem_grow(s->set, (size_t)s->cap * sizeof *s->set);
        s->n_set = mem_grow(s->n_set, (size_t)s->cap * sizeof *s->n_set);
    }
    s->set[id] = copy;
    s->n_set[id] = s->n_members;
    add_state(s->out, (struct fsm_state){ .final = final });
    if (known) map_put(&s->known, str_of((const char *)copy, bytes), (uint64_t)id);
    return id;
}

/* The state for the members there are; -1: none are. */
static int32_t set_end(struct sets *s)
{
    uint64_t id;

    if (s->n_members == 0) return -1;
    qsort(s->members, (size_t)s->n_members, sizeof *s->members, by_number);
    s->a->env->work -= s->n_members;
    if (map_get(&s->known,
                str_of((const char *)s->members, (size_t)s->n_members * sizeof *s->members), &id))
        return (int32_t)id;
    return new_set(s, true);
}

/* ---- from sets to states ---- */

static void make_edges(struct sets *s, int32_t id)
{
    bool cut[257] = { false };
    int from = 0;

    for (int i = 0; i < s->n_set[id]; i++)
        for (int32_t k = s->a->first[s->set[id][i]]; k >= 0; k = s->a->edges[k].next)
            if (s->a->edges[k].kind == NFA_BYTE)
                cut[s->a->edges[k].lo] = cut[s->a->edges[k].hi + 1] = true;
    for (int b = 1; b <= 256; b++) {
        int32_t to;
        if (!cut[b] && b < 256) continue;
        set_begin(s);
        for (int i = 0; i < s->n_set[id]; i++)
            for (int32_t k = s->a->first[s->set[id][i]]; k >= 0; k = s->a->edges[k].next) {
                const struct nfa_edge *x = &s->a->edges[k];
                s->a->env->work--;
                if (x->kind == NFA_BYTE && x->lo <= from && x->hi >= b - 1) set_add(s, x->to);
            }
        to = set_end(s);
        if (to >= 0)
            join_edge(s->out, id, (struct fsm_edge){ (uint8_t)from, (uint8_t)(b - 1), to });
        from = b;
    }
}

static bool is_called(const struct fsm *f, int32_t id, int32_t rule)
{
    for (int i = 0; i < f->states[id].n_calls; i++)
        if (f->calls[f->states[id].call + i].rule == rule) return true;
    return false;
}

static void make_calls(struct sets *s, int32_t id)
{
    for (int i = 0; i < s->n_set[id]; i++)
        for (int32_t k = s->a->first[s->set[id][i]]; k >= 0; k = s->a->edges[k].next) {
            int32_t rule = s->a->edges[k].rule, to;
            if (s->a->edges[k].kind != NFA_CALL || is_called(s->out, id, rule)) continue;
            set_begin(s);
            for (int m = i; m < s->n_set[id]; m++)
                for (int32_t j = s->a->first[s->set[id][m]]; j >= 0; j = s->a->edges[j].next)
                    if (s->a->edges[j].kind == NFA_CALL && s->a->edges[j].rule == rule)
                        set_add(s, s->a->edges[j].to);
            to = set_end(s);
            if (to < 0) continue;
            add_call(s->out, (struct fsm_call){ rule, to });
            s->out->states[id].n_calls++;
        }
}

static int too_complex(struct err *e)
{
    return err_set(
        e, E_INVALID,
        "the grammar is too complex: it takes more than %d states, or too long to compile",
        FSM_STATES);
}

static int determinize(struct fsm *out, const struct nfa *a, struct err *e)
{
    struct sets s = { .a = a, .out = out };
    size_t n = (size_t)a->n_states;
    int rc = OK;

    s.members = mem_array(n, sizeof *s.members);
    s.stack = mem_array(n, sizeof *s.stack);
    s.seen = mem_array(n, sizeof *s.seen);
    set_begin(&s);
    set_add(&s, 0);
    qsort(s.members, (size_t)s.n_members, sizeof *s.members, by_number);
    new_set(&s, false);
    for (int32_t id = 0; id < out->n_states && rc == OK; id++) {
        out->states[id].edge = out->n_edges;
        make_edges(&s, id);
        out->states[id].call = out->n_calls;
        make_calls(&s, id);
        if (a->env->work <= 0 || out->n_states > FSM_STATES) rc = too_complex(e);
    }
    mem_free(s.members);
    mem_free(s.stack);
    mem_free(s.seen);
    mem_free(s.set);
    mem_free(s.n_set);
    map_release(&s.known);
    arena_release(&s.arena);
    return rc;
}

int fsm_make(struct fsm *out, const struct gnode *n, struct fsm_env *env, struct err *e)
{
    struct nfa a;
    int rc = nfa_make(&a, n, env, e);

    *out = (struct fsm){ 0 };
    if (rc == OK) rc = determinize(out, &a, e);
    if (rc != OK) fsm_release(out);
    nfa_release(&a);
    return rc;
}

/* ---- two together ---- */

int32_t fsm_step(const struct fsm *f, int32_t state, uint8_t byte)
{
    for (int i = 0; i < f->states[state].n_edges; i++) {
        const struct fsm_edge *x = &f->edges[f->states[state].edge + i];
        if (byte >= x->lo && byte <= x->hi) return x->to;
    }
    return -1;
}

struct product {
    const struct fsm *x, *y;
    struct fsm *out;
    struct map known;
    struct arena arena;
    int32_t (*pair)[2];
    int cap;
};

static int32_t pair_state(struct product *p, int32_t x, int32_t y, enum fsm_op op)
{
    int32_t key[2] = { x, y }, id = p->out->n_states;
    uint64_t known;
    bool fy = y >= 0 && p->y->states[y].final;

    if (map_get(&p->known, str_of((const char *)key, sizeof key), &known)) return (int32_t)known;
    if (id == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->pair = mem_grow(p->pair, (size_t)p->cap * sizeof *p->pair);
    }
    memcpy(p->pair[id], key, sizeof key);
    add_state(p->out,
              (struct fsm_state){ .final = p->x->states[x].final && (op == FSM_AND ? fy : !fy) });
    map_put(&p->known, arena_str(&p->arena, str_of((const char *)key, sizeof key)), (uint64_t)id);
    return id;
}

/* The ways of a pair under one edge of x: cut where y's edges begin and end. */
static void pair_edges(struct product *p, int32_t id, const struct fsm_edge *ex, int32_t sy,
                       enum fsm_op op)
{
    int at = ex->lo, n = sy >= 0 ? p->y->states[sy].n_edges : 0;

    for (int i = 0; i <= n && at <= ex->hi; i++) {
        const struct fsm_edge *ey = i < n ? &p->y->edges[p->y->states[sy].edge + i] : NULL;
        int from = !ey || ey->lo > ex->hi ? ex->hi + 1 : ey->lo > at ? ey->lo : at;
        int to = ey && ey->hi < ex->hi ? ey->hi : ex->hi;
        if (ey && ey->hi < at) continue;
        if (from > at && op == FSM_AND_NOT)
            join_edge(p->out, id,
                      (struct fsm_edge){ (uint8_t)at, (uint8_t)(from - 1),
                                         pair_state(p, ex->to, -1, op) });
        if (ey && from <= to)
            join_edge(
                p->out, id,
                (struct fsm_edge){ (uint8_t)from, (uint8_t)to, pair_state(p, ex->to, ey->to, op) });
        at = ey && from <= to ? to + 1 : from;
    }
}

int fsm_product(struct fsm *out, const struct fsm *x, const struct fsm *y, enum fsm_op op,
                struct fsm_env *env, struct err *e)
{
    struct product p = { .x = x, .y = y, .out = out };
    int rc = OK;

    *out = (struct fsm){ 0 };
    pair_state(&p, 0, 0, op);
    for (int32_t id = 0; id < out->n_states && rc == OK; id++) {
        int32_t sx = p.pair[id][0], sy = p.pair[id][1];
        out->states[id].edge = out->n_edges;
        for (int i = 0; i < x->states[sx].n_edges; i++)
            pair_edges(&p, id, &x->edges[x->states[sx].edge + i], sy, op);
        env->work -= 4 + x->states[sx].n_edges * (sy >= 0 ? 1 + y->states[sy].n_edges : 1);
        if (env->work <= 0 || out->n_states > FSM_STATES) rc = too_complex(e);
    }
    map_release(&p.known);
    arena_release(&p.arena);
    mem_free(p.pair);
    if (rc != OK) fsm_release(out);
    return rc;
}

bool fsm_trim(struct fsm *f)
{
    bool *good = mem_array((size_t)f->n_states + 1, sizeof *good), changed = true, any;

    for (int i = 0; i < f->n_states; i++) good[i] = f->states[i].final;
    while (changed) {
        changed = false;
        for (int i = f->n_states - 1; i >= 0; i--)
            for (int k = 0; k < f->states[i].n_edges && !good[i]; k++)
                if (good[f->edges[f->states[i].edge + k].to]) good[i] = changed = true;
    }
    for (int i = 0; i < f->n_states; i++) {
        int from = f->states[i].edge, n = 0;
        for (int k = 0; k < f->states[i].n_edges; k++)
            if (good[f->edges[from + k].to]) f->edges[from + n++] = f->edges[from + k];
        f->states[i].n_edges = n;
    }
    any = f->n_states > 0 && good[0];
    mem_free(good);
    return any;
}

bool fsm_accepts(const struct fsm *f, struct str text)
{
    int32_t at = 0;

    for (size_t i = 0; i < text.n && at >= 0; i++) at = fsm_step(f, at, (uint8_t)text.p[i]);
    return at >= 0 && f->states[at].final;
}

int fsm_longest(const struct fsm *f)
{
    int *far = mem_array((size_t)f->n_states + 1, sizeof *far), most = 0, round = 0;
    bool changed = true;

    for (; changed && round <= f->n_states; round++) {
        changed = false;
        for (int i = f->n_states - 1; i >= 0; i--)
            for (int k = 0; k < f->states[i].n_edges; k++) {
                int d = far[f->edges[f->states[i].edge + k].to] + 1;
                if (d <= far[i]) continue;
                far[i] = d;
                changed = true;
                if (d > f->n_states) goto out; /* around and around */
            }
    }
out:
    most = changed ? -1 : far[0];
    mem_free(far);
    return most;
}

struct gnode *gnode_fsm(struct grules *g, const struct fsm *f)
{
    struct gnode *n = gnode_new(g, GN_FSM);
    struct fsm *copy = arena_new(&g->arena, struct fsm);

    *copy = *f;
    copy->states = arena_array(&g->arena, (size_t)f->n_states + 1, sizeof *f->states);
    copy->edges = arena_array(&g->arena, (size_t)f->n_edges + 1, sizeof *f->edges);
    memcpy(copy->states, f->states, (size_t)f->n_states * sizeof *f->states);
    if (f->n_edges) memcpy(copy->edges, f->edges, (size_t)f->n_edges * sizeof *f->edges);
    n->fsm = copy;
    g->n_nodes += f->n_states;
    return n;
}

int gnode_without(struct gnode **out, struct grules *g, struct str mark, struct err *e)
{
    struct gnode *any = gnode_rep(g, gnode_range(g, 1, CP_LAST), 0, GNODE_MANY);
    struct fsm_env env = { .g = g, .work = FSM_WORK };
    struct fsm all = { 0 }, with = { 0 }, f = { 0 };
    int rc;

    if ((rc = fsm_make(&all, any, &env, e)) != OK) goto out;
    if ((rc = fsm_make(&with, GSEQ(g, any, gnode_lit(g, mark), any), &env, e)) != OK) goto out;
    if ((rc = fsm_product(&f, &all, &with, FSM_AND_NOT, &env, e)) != OK) goto out;
    fsm_trim(&f);
    *out = gnode_fsm(g, &f);
out:
    fsm_release(&all);
    fsm_release(&with);
    fsm_release(&f);
    return rc;
}
