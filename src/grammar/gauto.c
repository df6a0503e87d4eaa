#include "grammar/gauto.h"

#include "base/mem.h"

enum {
    RULES = 8000,
    COUNTED = 4096,
    STATES = 120000,
    EDGES = 1000000,
    INLINE_SIZE = 16,
    INLINE_ROUNDS = 4
};

/* A rule on its way: of the grammar, or made for a repetition. */
struct pending {
    const struct gnode *body;
    struct str name;
    int line, column, min, max;
    bool counted, wanted, done;
    bool called; /* the body of a repetition, which has to be a rule of its own */
};

struct maker {
    const struct grules *g;
    struct gauto *out;
    struct pending *rules;    /* [g->n + COUNTED] */
    bool *nullable, *inlined; /* likewise */
    int *size;
    int n, n_todo, *queue;
    struct map counted; /* address of a REP → rule */
    struct arena arena;
    struct fsm_env env;
    int cap_states, cap_edges, cap_calls;
    bool full;
    struct err *e;
};

/* ---- what trees say ---- */

static bool is_nullable(const struct maker *m, const struct gnode *n)
{
    bool all = true;

    switch (n->kind) {
    case GN_EMPTY: return true;
    case GN_REF: return m->nullable[n->rule];
    case GN_REP: return n->min == 0 || is_nullable(m, n->kids[0]);
    case GN_FSM: return n->fsm->states[0].final;
    case GN_SEQ:
        for (int i = 0; i < n->n_kids; i++) all &= is_nullable(m, n->kids[i]);
        return all;
    case GN_ALT:
        for (int i = 0; i < n->n_kids; i++)
            if (is_nullable(m, n->kids[i])) return true;
        return false;
    case GN_LIST:
        for (int i = 0; i < n->n_kids; i++) all &= !n->list->needed[i];
        return all && n->list->min == 0;
    default: return false;
    }
}

static void find_nullable(struct maker *m)
{
    bool changed = true;

    while (changed) {
        changed = false;
        for (int i = m->g->n - 1; i >= 0; i--)
            if (!m->nullable[i] && m->g->rules[i].body && is_nullable(m, m->g->rules[i].body))
                m->nullable[i] = changed = true;
    }
}

struct refs {
    int *p, n, cap;
};

static void add_ref(struct refs *r, int rule)
{
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        r->p = mem_grow(r->p, (size_t)r->cap * sizeof *r->p);
    }
    r->p[r->n++] = rule;
}

/* Rules that n may begin with (left), or all it speaks of. */
static void find_refs(const struct maker *m, const struct gnode *n, bool left, struct refs *out)
{
    if (n->kind == GN_REF) add_ref(out, n->rule);
    for (int i = 0; i < n->n_kids; i++) {
        find_refs(m, n->kids[i], left, out);
        if (left && n->kind == GN_SEQ && !is_nullable(m, n->kids[i])) return;
        if (left && n->kind == GN_LIST && n->list->needed[i]) return;
    }
    if (n->kind != GN_LIST) return;
    if (n->list->more) find_refs(m, n->list->more, left, out);
    if (!left) find_refs(m, n->list->sep, left, out);
}

static void find_inlined(struct maker *m)
{
    struct refs refs = { 0 };

    for (int round = 0; round < INLINE_ROUNDS; round++)
        for (int i = 0; i < m->g->n; i++) {
            const struct grule *r = &m->g->rules[i];
            bool all = !r->keep && !m->inlined[i] && i != m->g->root && r->body;
            refs.n = 0;
            if (all) find_refs(m, r->body, false, &refs);
            for (int k = 0; k < refs.n; k++) all &= m->inlined[refs.p[k]];
            if (!all || (m->size[i] = gnode_size(r->body, m->size)) > INLINE_SIZE) continue;
            m->inlined[i] = true;
        }
    mem_free(refs.p);
}

static int left_recursion(struct maker *m, int rule, int by)
{
    const struct grule *r = &m->g->rules[rule], *via = &m->g->rules[by];

    if (rule == by)
        return err_set(m->e, E_INVALID,
                       "line %d, column %d: the rule '%.*s' begins with itself (left recursion)",
                       r->line, r->column, STR_ARG(str_take(r->name, 80)));
    return err_set(m->e, E_INVALID,
                   "line %d, column %d: the rule '%.*s' begins with itself, by way of '%.*s' "
                   "(left recursion)",
                   r->line, r->column, STR_ARG(str_take(r->name, 80)),
                   STR_ARG(str_take(via->name, 80)));
}

/* Depth first over "may begin with", without recursion: chains of rules may be long. */
static int check_left(struct maker *m)
{
    int n = m->g->n, rc = OK, *from = mem_array((size_t)n + 1, sizeof *from), *path, *at;
    char *color = mem_array((size_t)n + 1, 1); /* 1: on the path; 2: done */
    struct refs refs = { 0 };

    path = mem_array((size_t)n + 1, sizeof *path);
    at = mem_array((size_t)n + 1, sizeof *at);
    for (int i = 0; i < n; i++) {
        from[i] = refs.n;
        if (m->g->rules[i].body) find_refs(m, m->g->rules[i].body, true, &refs);
    }
    from[n] = refs.n;
    for (int i = 0; i < n && rc == OK; i++) {
        int depth = 0;
        if (color[i]) continue;
        path[0] = i, at[0] = from[i], color[i] = 1;
        while (depth >= 0 && rc == OK) {
            int r = path[depth], to;
            if (at[depth] == from[r + 1]) {
                color[r] = 2, depth--;
                continue;
            }
            to = refs.p[at[depth]++];
            if (color[to] == 1) rc = left_recursion(m, to, r);
            else if (color[to] == 0) path[++depth] = to, at[depth] = from[to], color[to] = 1;
        }
    }
    mem_free(refs.p);
    mem_free(from);
    mem_free(path);
    mem_free(at);
    mem_free(color);
    return rc;
}

/* ---- machines into tables ---- */

static void want(struct maker *m, int rule)
{
    if (m->rules[rule].wanted) return;
    m->rules[rule].wanted = true;
    m->queue[m->n_todo++] = rule;
}

static int new_rule(struct maker *m, struct pending t)
{
    if (m->n == m->g->n + COUNTED) {
        m->full = true;
        return m->n - 1;
    }
    m->rules[m->n] = t;
    m->nullable[m->n] = is_nullable(m, t.body);
    return m->n++;
}

static int counted_rule(void *arg, const struct gnode *rep)
{
    struct maker *m = arg;
    uint64_t known;
    char *key;
    int rule;

    if (map_get(&m->counted, str_of((const char *)&rep, sizeof rep), &known)) return (int)known;
    rule =
        new_rule(m, (struct pending){
                        .body = rep->kids[0], .counted = true, .min = rep->min, .max = rep->max });
    if (m->nullable[rule]) m->rules[rule].min = 0;
    key = arena_alloc(&m->arena, sizeof rep);
    memcpy(key, &rep, sizeof rep);
    map_put(&m->counted, str_of(key, sizeof rep), (uint64_t)rule);
    return rule;
}

static void *room(void *p, int *cap, int n, int more, size_t size)
{
    if (p && n + more <= *cap) return p;
    if (*cap == 0) *cap = 256; /* there is a table, also where it stays empty */
    while (n + more > *cap) *cap *= 2;
    return mem_grow(p, (size_t)*cap * size);
}

/* Appends the machine of a rule. Of a counted one, the ends of a round are its start. */
static void append(struct maker *m, int rule, const struct fsm *f)
{
    struct gauto *a = m->out;
    int base = a->n_states, n = 0, *id = mem_array((size_t)f->n_states, sizeof *id);
    bool counted = m->rules[rule].counted;

    for (int i = 0; i < f->n_states; i++)
        id[i] = i && counted && f->states[i].final ? base : base + n++;
    a->states = room(a->states, &m->cap_states, base, n, sizeof *a->states);
    a->edges = room(a->edges, &m->cap_edges, a->n_edges, f->n_edges, sizeof *a->edges);
    a->calls = room(a->calls, &m->cap_calls, a->n_calls, f->n_calls, sizeof *a->calls);
    for (int i = 0; i < f->n_states; i++) {
        const struct fsm_state *s = &f->states[i];
        if (i && counted && s->final) continue;
        a->states[id[i]] = (struct gauto_state){ .edge = a->n_edges,
                                                 .n_edges = s->n_edges,
                                                 .call = a->n_calls,
                                                 .n_calls = s->n_calls,
                                                 .rule = rule,
                                                 .final = i > 0 && s->final,
                                                 .least = GAUTO_FAR };
        for (int k = 0; k < s->n_edges; k++) {
            struct fsm_edge x = f->edges[s->edge + k];
            x.to = id[x.to];
            a->edges[a->n_edges++] = x;
        }
        for (int k = 0; k < s->n_calls; k++) {
            struct fsm_call x = f->calls[s->call + k];
            want(m, x.rule);
            x.to = id[x.to];
            a->calls[a->n_calls++] = x;
        }
    }
    a->n_states += n;
    a->rules[rule].start = base;
    mem_free(id);
}

/* Where a round could go on behind its end, its end is not to be seen: then the round is a call. */
static bool has_clear_ends(const struct fsm *f)
{
    for (int i = 1; i < f->n_states; i++)
        if (f->states[i].final && (f->states[i].n_edges || f->states[i].n_calls)) return false;
    return true;
}

static void one_call(struct maker *m, int rule)
{
    struct fsm_state states[2] = { { .n_calls = 1 }, { .final = true } };
    struct fsm_call call = { .to = 1 };
    struct fsm f = { .states = states, .calls = &call, .n_states = 2, .n_calls = 1 };

    call.rule = new_rule(m, (struct pending){ .body = m->rules[rule].body, .called = true });
    append(m, rule, &f);
}

static int make_rule(struct maker *m, int rule)
{
    struct fsm f = { 0 };
    int rc = fsm_make(&f, m->rules[rule].body, &m->env, m->e);

    if (rc != OK) {
        if (m->rules[rule].name.n)
            err_wrap(m->e, "rule '%.*s'", STR_ARG(str_take(m->rules[rule].name, 80)));
        return rc;
    }
    if (m->rules[rule].counted && !has_clear_ends(&f)) one_call(m, rule);
    else append(m, rule, &f);
    fsm_release(&f);
    if (m->full || m->out->n_states > STATES || m->out->n_edges > EDGES)
        return err_set(m->e, E_INVALID,
                       "the grammar is too large: it takes more than %d states or %d repetitions",
                       STATES, COUNTED);
    return OK;
}

/* ---- how far the end is ---- */

static int far(int64_t n) { return n > GAUTO_FAR ? GAUTO_FAR : (int)n; }

static int dist_to(const struct gauto *a, int32_t to)
{
    const struct gauto_rule *r = &a->rules[a->states[to].rule];
    return r->counted && to == r->start ? 0 : a->states[to].least;
}

static int state_least(const struct gauto *a, const struct gauto_state *s)
{
    int best = s->final ? 0 : GAUTO_FAR;

    for (int i = 0; i < s->n_edges; i++) {
        int d = far(1 + (int64_t)dist_to(a, a->edges[s->edge + i].to));
        if (d < best) best = d;
    }
    for (int i = 0; i < s->n_calls; i++) {
        const struct fsm_call *c = &a->calls[s->call + i];
        int d = far((int64_t)a->rules[c->rule].least + dist_to(a, c->to));
        if (d < best) best = d;
    }
    return best;
}

static void find_least(struct gauto *a)
{
    bool changed = true;

    for (int i = 0; i < a->n_rules; i++) a->rules[i].least = GAUTO_FAR;
    while (changed) {
        changed = false;
        for (int i = a->n_states - 1; i >= 0; i--) {
            struct gauto_state *s = &a->states[i];
            struct gauto_rule *r = &a->rules[s->rule];
            int d = state_least(a, s);
            if (d < s->least) s->least = d, changed = true;
            if (i != r->start) continue;
            d = far((int64_t)s->least * (r->counted && r->min > 1 ? r->min : 1));
            if (d < r->least) r->least = d, changed = true;
        }
    }
}

/* Ways that never end are no ways. */
static void prune(struct gauto *a)
{
    for (int i = 0; i < a->n_states; i++) {
        struct gauto_state *s = &a->states[i];
        struct fsm_edge *x = a->edges + s->edge;
        struct fsm_call *c = a->calls + s->call;
        int n = 0;
        for (int k = 0; k < s->n_edges; k++)
            if (dist_to(a, x[k].to) < GAUTO_FAR) x[n++] = x[k];
        s->n_edges = n;
        n = 0;
        for (int k = 0; k < s->n_calls; k++)
            if (dist_to(a, c[k].to) < GAUTO_FAR && a->rules[c[k].rule].least < GAUTO_FAR)
                c[n++] = c[k];
        s->n_calls = n;
    }
}

/* ---- what may come behind ---- */

static bool merge(uint64_t to[4], const uint64_t from[4])
{
    bool changed = false;

    for (int i = 0; i < 4; i++) {
        changed |= (from[i] & ~to[i]) != 0;
        to[i] |= from[i];
    }
    return changed;
}

static void find_follow(struct gauto *a)
{
    uint64_t(*first)[4] = mem_array((size_t)a->n_states + 1, sizeof *first);
    bool changed = true;

    for (int i = 0; i < a->n_states; i++)
        for (int k = 0; k < a->states[i].n_edges; k++) {
            const struct fsm_edge *x = &a->edges[a->states[i].edge + k];
            for (int b = x->lo; b <= x->hi; b++) first[i][b / 64] |= UINT64_C(1) << (b % 64);
        }
    while (changed) {
        changed = false;
        for (int i = a->n_states - 1; i >= 0; i--)
            for (int k = 0; k < a->states[i].n_calls; k++)
                changed |=
                    merge(first[i], first[a->rules[a->calls[a->states[i].call + k].rule].start]);
    }
    for (changed = true; changed;) {
        changed = false;
        for (int i = 0; i < a->n_states; i++)
            for (int k = 0; k < a->states[i].n_calls; k++) {
                const struct fsm_call *c = &a->calls[a->states[i].call + k];
                struct gauto_rule *own = &a->rules[a->states[i].rule], *r = &a->rules[c->rule];
                changed |= merge(r->follow, first[c->to]);
                if (a->states[c->to].final || (own->counted && c->to == own->start))
                    changed |= merge(r->follow, own->follow);
            }
    }
    mem_free(first);
}

static void find_classes(struct gauto *a)
{
    bool cut[257] = { false };

    for (int i = 0; i < a->n_edges; i++) cut[a->edges[i].lo] = cut[a->edges[i].hi + 1] = true;
    a->n_classes = 1;
    for (int b = 0; b < 256; b++) {
        if (b && cut[b]) a->n_classes++;
        a->class_of[b] = (uint8_t)(a->n_classes - 1);
    }
}

/* ---- all of it ---- */

static int make_all(struct maker *m)
{
    int rc = OK;

    want(m, m->g->root);
    for (int i = 0; i < m->n_todo && rc == OK; i++) rc = make_rule(m, m->queue[i]);
    return rc;
}

static void describe_rules(struct maker *m)
{
    struct gauto *a = m->out;

    a->n_rules = m->n;
    for (int i = 0; i < m->n; i++) {
        struct gauto_rule *r = &a->rules[i];
        r->name = arena_str(&a->arena, m->rules[i].name);
        r->counted = m->rules[i].counted;
        r->min = m->rules[i].min;
        r->max = m->rules[i].max;
        r->nullable = m->nullable[i];
    }
}

static int make(struct maker *m)
{
    struct gauto *a = m->out;
    int rc;

    find_nullable(m);
    if ((rc = check_left(m)) != OK) return rc;
    find_inlined(m);
    if ((rc = make_all(m)) != OK) return rc;
    describe_rules(m);
    a->root = m->g->root;
    find_least(a);
    prune(a);
    find_follow(a);
    find_classes(a);
    if (a->rules[a->root].least >= GAUTO_FAR && !a->rules[a->root].nullable)
        return err_set(m->e, E_INVALID,
                       "nothing matches: every way through the rule '%.*s' is endless or closed",
                       STR_ARG(str_take(a->rules[a->root].name, 80)));
    return OK;
}

int gauto_make(struct gauto *out, const struct grules *g, struct err *e)
{
    size_t n = (size_t)g->n + COUNTED;
    struct err local = { 0 };
    struct maker m = { .g = g, .out = out, .n = g->n, .e = e ? e : &local };
    int rc;

    *out = (struct gauto){ 0 };
    if (g->full || g->n > RULES)
        return err_set(e, E_INVALID,
                       "the grammar is too large: it has more than %d parts or %d rules",
                       GRULES_NODES, RULES);
    m.rules = mem_array(n, sizeof *m.rules);
    m.nullable = mem_array(n, sizeof *m.nullable);
    m.inlined = mem_array(n, sizeof *m.inlined);
    m.size = mem_array(n, sizeof *m.size);
    m.queue = mem_array(n, sizeof *m.queue);
    out->rules = mem_array(n, sizeof *out->rules);
    for (int i = 0; i < g->n; i++)
        m.rules[i] = (struct pending){ .body = g->rules[i].body, .name = g->rules[i].name };
    m.env = (struct fsm_env){ .g = g,
                              .nullable = m.nullable,
                              .inlined = m.inlined,
                              .counted = counted_rule,
                              .arg = &m,
                              .work = FSM_WORK };
    rc = make(&m);
    map_release(&m.counted);
    arena_release(&m.arena);
    mem_free(m.rules);
    mem_free(m.nullable);
    mem_free(m.inlined);
    mem_free(m.size);
    mem_free(m.queue);
    if (rc != OK) gauto_release(out);
    return rc;
}

void gauto_release(struct gauto *a)
{
    mem_free(a->states);
    mem_free(a->edges);
    mem_free(a->calls);
    mem_free(a->rules);
    arena_release(&a->arena);
    *a = (struct gauto){ 0 };
}
