/* rules.c - building rule sets. Nodes are never changed into another kind and never freed on their
 * own: trees may share subtrees, and front ends reuse a node in several places. The spare node and
 * the spare rule take the writes of code that goes on after a failure. */
#include "grammar/rules.h"

#include "base/mem.h"
#include "grammar/grammar.h"

void rules_init(struct rules *g, const struct grammar_env *env)
{
    *g = (struct rules){ .root = -1, .env = env, .budget = env ? env->budget : NULL };
    g->arena.budget = g->budget;
}

void rules_release(struct rules *g)
{
    budget_map_release(g->budget, &g->names);
    budget_free(g->budget, g->rules, g->cap);
    arena_release(&g->arena);
    *g = (struct rules){ .root = -1 };
}

bool rules_failed(const struct rules *g)
{
    return g->failed || g->arena.failed || budget_failed(g->budget);
}

int rules_check(const struct rules *g, struct err *e)
{
    if (budget_failed(g->budget)) return budget_error(g->budget, e);
    if (rules_failed(g)) return err_nomem(e, "the rules of a grammar");
    if (g->full)
        return err_set(e, E_INVALID, "the grammar is too large: it has more than %d parts",
                       RULES_MAX_NODES);
    return OK;
}

/* ---- rules ---- */

int rules_add(struct rules *g, struct str name, struct rule_node *body)
{
    if (rules_failed(g)) return -1;
    if (!budget_ensure(g->budget, g->rules, g->cap, g->n + 1)) {
        g->failed = true;
        return -1;
    }
    g->rules[g->n] = (struct rule){ .name = name, .body = body };
    return g->n++;
}

int rules_add_shared(struct rules *g, struct str name, struct rule_node *body)
{
    int r = rules_add(g, name, body);

    rules_get(g, r)->no_inline = true;
    return r;
}

int rules_find_or_add(struct rules *g, struct str name)
{
    uint64_t at;
    int i;

    if (map_get(&g->names, name, &at)) return (int)at;
    i = rules_add(g, arena_str(&g->arena, name), NULL); /* the map borrows its keys */
    if (i >= 0 && budget_map_put(g->budget, &g->names, g->rules[i].name, (uint64_t)i) == E_NOMEM)
        g->failed = true;
    return rules_failed(g) ? -1 : i;
}

struct rule *rules_get(struct rules *g, int rule)
{
    return rule >= 0 ? &g->rules[rule] : &g->spare_rule;
}

/* ---- nodes ---- */

/* A node of the kind, otherwise zero. */
struct rule_node *rules_node(struct rules *g, enum rule_node_kind kind)
{
    struct rule_node *n = !budget_step(g->budget, 4) || rules_failed(g)
                              ? NULL
                              : arena_new(&g->arena, struct rule_node);

    if (!n) {
        g->spare_node = (struct rule_node){ .kind = NODE_NEVER };
        return &g->spare_node;
    }
    n->kind = kind;
    if (++g->n_nodes > RULES_MAX_NODES) g->full = true;
    return n;
}

/* Long literals count as several nodes: the limit bounds the states that they become. */
struct rule_node *rules_literal(struct rules *g, struct str bytes)
{
    struct rule_node *n = rules_node(g, bytes.n ? NODE_LITERAL : NODE_EMPTY);

    n->lit = arena_str(&g->arena, bytes);
    g->n_nodes += (int)(bytes.n < RULES_MAX_NODES ? bytes.n / 8 : RULES_MAX_NODES);
    return n;
}

struct rule_node *rules_text(struct rules *g, const char *bytes)
{
    return rules_literal(g, str_c(bytes));
}

/* An empty class matches nothing. */
struct rule_node *rules_class(struct rules *g, struct charset set)
{
    struct rule_node *n;

    budget_step(g->budget, (uint64_t)set.n);
    charset_normalize(&set);
    n = rules_node(g, set.n ? NODE_CLASS : NODE_NEVER);
    n->set = set;
    return n;
}

struct rule_node *rules_range(struct rules *g, int32_t lo, int32_t hi)
{
    struct charset s = { 0 };

    charset_add(&s, &g->arena, lo, hi);
    return rules_class(g, s);
}

struct rule_node *rules_ref(struct rules *g, int rule)
{
    struct rule_node *n = rules_node(g, NODE_REF);

    n->rule = rule;
    return n;
}

/* Without a node where the repetition is trivial. */
struct rule_node *rules_repeat(struct rules *g, struct rule_node *x, int min, int max)
{
    struct rule_node *n;

    if (max == 0) return rules_node(g, NODE_EMPTY);
    if (min == 1 && max == 1) return x;
    n = rules_node(g, NODE_REPEAT);
    n->min = min;
    n->max = max;
    return rules_add_child(g, n, x);
}

struct rule_node *rules_token(struct rules *g, int32_t id)
{
    struct rule_node *n = rules_node(g, NODE_TOKEN);

    n->min = id;
    return n;
}

/* The array of children doubles in the arena. */
struct rule_node *rules_add_child(struct rules *g, struct rule_node *to, struct rule_node *child)
{
    if (!budget_step(g->budget, 1) || rules_failed(g))
        return to; /* the spare node gets no children: it may be its own */
    if (to->n_children == to->cap_children) {
        int cap = to->cap_children ? 2 * to->cap_children : 4;
        struct rule_node **children = arena_array(&g->arena, (size_t)cap, sizeof *children);
        if (!children) return to;
        if (to->n_children)
            memcpy(children, to->children, (size_t)to->n_children * sizeof *children);
        to->children = children;
        to->cap_children = cap;
    }
    to->children[to->n_children++] = child;
    return to;
}

struct rule_node *rules_seq(struct rules *g, int n, struct rule_node *const *children)
{
    struct rule_node *seq = rules_node(g, NODE_SEQ);

    for (int i = 0; i < n; i++)
        if (children[i]) rules_add_child(g, seq, children[i]);
    return seq;
}
