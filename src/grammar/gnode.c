#include "grammar/gnode.h"

#include "base/mem.h"

void grules_init(struct grules *g) { *g = (struct grules){ .root = -1 }; }

void grules_release(struct grules *g)
{
    map_release(&g->names);
    mem_free(g->rules);
    arena_release(&g->arena);
    *g = (struct grules){ .root = -1 };
}

int grules_new(struct grules *g)
{
    if (g->n == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 32;
        g->rules = mem_grow(g->rules, (size_t)g->cap * sizeof *g->rules);
    }
    g->rules[g->n] = (struct grule){ .name = STR("") };
    return g->n++;
}

int grules_add(struct grules *g, const char *name, struct gnode *body)
{
    int r = grules_new(g);

    g->rules[r].name = str_c(name);
    g->rules[r].body = body;
    return r;
}

int grules_name(struct grules *g, struct str name)
{
    uint64_t at;
    int i;

    if (map_get(&g->names, name, &at)) return (int)at;
    i = grules_new(g);
    g->rules[i].name = arena_str(&g->arena, name);
    map_put(&g->names, g->rules[i].name, (uint64_t)i);
    return i;
}

struct gnode *gnode_new(struct grules *g, enum gnode_kind kind)
{
    struct gnode *n = arena_new(&g->arena, struct gnode);

    n->kind = kind;
    if (++g->n_nodes > GRULES_NODES) g->full = true;
    return n;
}

struct gnode *gnode_lit(struct grules *g, struct str bytes)
{
    struct gnode *n = gnode_new(g, bytes.n ? GN_LIT : GN_EMPTY);

    n->lit = arena_str(&g->arena, bytes);
    g->n_nodes += (int)(bytes.n < GRULES_NODES ? bytes.n / 8 : GRULES_NODES);
    return n;
}

struct gnode *gnode_c(struct grules *g, const char *bytes) { return gnode_lit(g, str_c(bytes)); }

struct gnode *gnode_class(struct grules *g, struct cpset set)
{
    struct gnode *n;

    cpset_tidy(&set);
    n = gnode_new(g, set.n ? GN_CLASS : GN_NEVER);
    n->set = set;
    return n;
}

struct gnode *gnode_range(struct grules *g, int32_t lo, int32_t hi)
{
    struct cpset s = { 0 };

    cpset_add(&s, &g->arena, lo, hi);
    return gnode_class(g, s);
}

struct gnode *gnode_ref(struct grules *g, int rule)
{
    struct gnode *n = gnode_new(g, GN_REF);

    n->rule = rule;
    return n;
}

struct gnode *gnode_rep(struct grules *g, struct gnode *x, int min, int max)
{
    struct gnode *n;

    if (max == 0) return gnode_new(g, GN_EMPTY);
    if (min == 1 && max == 1) return x;
    n = gnode_new(g, GN_REP);
    n->min = min;
    n->max = max;
    return gnode_add(g, n, x);
}

struct gnode *gnode_token(struct grules *g, int32_t id)
{
    struct gnode *n = gnode_new(g, GN_TOKEN);

    n->min = id;
    return n;
}

struct gnode *gnode_add(struct grules *g, struct gnode *to, struct gnode *kid)
{
    if (to->n_kids == to->cap_kids) {
        struct gnode **old = to->kids;
        to->cap_kids = to->cap_kids ? 2 * to->cap_kids : 4;
        to->kids = arena_array(&g->arena, (size_t)to->cap_kids, sizeof *to->kids);
        if (to->n_kids) memcpy(to->kids, old, (size_t)to->n_kids * sizeof *to->kids);
    }
    to->kids[to->n_kids++] = kid;
    return to;
}

struct gnode *gnode_seq(struct grules *g, int n, struct gnode *const *kids)
{
    struct gnode *seq = gnode_new(g, GN_SEQ);

    for (int i = 0; i < n; i++)
        if (kids[i]) gnode_add(g, seq, kids[i]);
    return seq;
}
