/* scope.c - name resolution, after jinja2's idtracking.py.
 *
 * Each scope is handled in two passes over its statements. The first ("visit") collects the names
 * that the scope reads and sets into a symbol table; nested scopes are not entered. The second
 * ("scope") replaces each name in the tree by the slot that the tables give, and handles nested
 * scopes. The finished table becomes a frame: the list of loads on entering the scope.
 *
 * A function (struct fn_scope) owns slots; scopes inside one function use different slots of it, so
 * that leaving a scope needs no copying.
 *
 * Failure: s->rc keeps the first one. Helpers go on with spare objects after it, and the recursive
 * passes stop; the tree is then discarded. */
#include "jinja/scope.h"

#include "base/budget.h"
#include "base/mem.h"
#include "jinja/lex.h"

enum { MAX_NAMES = 1000 }; /* of one scope; lookup is linear */

/* ---- symbols of a scope ---- */

struct slot_key { /* a name at a nesting level of scopes has one slot */
    int level;
    struct str name;
};

struct fn_scope { /* a function while its scopes are resolved; in the arena */
    struct fn_scope *up;
    int depth; /* number of enclosing functions */
    struct frame_fn *fn;
    struct slot_key *slots;
    size_t n, cap;
};

struct variable { /* a slot of any function */
    const struct fn_scope *fn;
    int slot;
};

struct symbol {
    struct str name;
    int slot;
    enum load_kind load;
    struct variable alias; /* LOAD_ALIAS: what to copy */
    bool stored;           /* the scope sets it */
};

struct symbols { /* the table of one scope; v is from mem_grow, finish_frame frees it */
    struct symbols *parent;
    struct fn_scope *fn;
    int level;
    struct symbol *v;
    size_t n, cap;
};

struct scope { /* the context of the second pass */
    struct symbols *sym;
    bool soft; /* inside an if: an unknown filter is an error only when it is evaluated */
    bool top;  /* at the top level of the template */
};

static void scope_fail(struct scoping *s, uint32_t at, const char *what, struct str name)
{
    if (s->rc == OK)
        s->rc =
            lex_error(s->source, s->name, at, s->e, "%s '%.*s'", what, STR_ARG(str_take(name, 60)));
}

static void scope_fail_nomem(struct scoping *s)
{
    if (s->rc == OK) s->rc = err_nomem(s->e, "the variables of a template");
}

/* Lookups and copies of tables take time in proportion to their sizes, and count as so many steps.
 * false: there is a failure. */
static bool scope_step(struct scoping *s, size_t n)
{
    if (!budget_step(s->budget, n) && s->rc == OK) s->rc = budget_error(s->budget, s->e);
    return s->rc == OK;
}

/* Makes room for one more item of an array in the arena: a larger copy; the old one stays there
 * unused. Returns the array, NULL: no memory. */
static void *grow_array(struct scoping *s, void *v, size_t n, size_t *cap, size_t size)
{
    size_t more = *cap ? 2 * *cap : 16;
    void *to = v;

    if (n < *cap) return v;
    if (!(to = arena_array(s->arena, more, size))) {
        scope_fail_nomem(s);
        return NULL;
    }
    if (n) memcpy(to, v, n * size);
    *cap = more;
    return to;
}

static int find_or_add_slot(struct scoping *s, struct fn_scope *fn, int level, struct str name)
{
    struct slot_key *v;

    if (!scope_step(s, 1 + fn->n / 4)) return 0;
    for (size_t i = 0; i < fn->n; i++)
        if (fn->slots[i].level == level && str_eq(fn->slots[i].name, name)) return (int)i;
    if (!(v = grow_array(s, fn->slots, fn->n, &fn->cap, sizeof *v))) return 0;
    fn->slots = v;
    fn->slots[fn->n] = (struct slot_key){ level, name };
    fn->fn->n_slots = (int)fn->n + 1;
    return (int)fn->n++;
}

/* The symbol of this scope alone; NULL: none. */
static struct symbol *find_symbol(struct scoping *s, const struct symbols *y, struct str name)
{
    if (!scope_step(s, 1 + y->n / 4)) return NULL;
    for (size_t i = 0; i < y->n; i++)
        if (str_eq(y->v[i].name, name)) return &y->v[i];
    return NULL;
}

/* The variable of the innermost scope from y outwards; false: no scope has the name. */
static bool find_variable(struct scoping *s, const struct symbols *y, struct str name,
                          struct variable *out)
{
    for (; y; y = y->parent) {
        const struct symbol *found = find_symbol(s, y, name);
        if (!found) continue;
        *out = (struct variable){ y->fn, found->slot };
        return true;
    }
    return false;
}

/* NULL: no memory. */
static struct symbol *find_or_add_symbol(struct scoping *s, struct symbols *y, struct str name,
                                         enum load_kind load)
{
    struct symbol *at = find_symbol(s, y, name);

    if (!at) {
        if (!mem_ensure(y->v, y->cap, y->n + 1)) {
            scope_fail_nomem(s);
            return NULL;
        }
        /* Reported once; the array has room all the same. */
        if (y->n >= MAX_NAMES) scope_fail(s, 0, "one scope has too many names, the last is", name);
        at = &y->v[y->n++];
        *at = (struct symbol){ .name = name, .slot = find_or_add_slot(s, y->fn, y->level, name) };
    }
    at->load = load;
    return at;
}

/* A variable that the statement which opens the scope assigns. */
static void declare_param(struct scoping *s, struct symbols *y, struct str name)
{
    struct symbol *at = find_or_add_symbol(s, y, name, LOAD_PARAM);
    if (at) at->stored = true;
}

/* A name is read: unless a scope has it already, it comes from outside of the template. */
static void declare_load(struct scoping *s, struct symbols *y, struct str name)
{
    struct variable ref;
    if (!find_variable(s, y, name, &ref)) find_or_add_symbol(s, y, name, LOAD_RESOLVE);
}

/* A name is set: the variable belongs to this scope. If an outer scope has the name too, it starts
 * as a copy of that variable. */
static void declare_store(struct scoping *s, struct symbols *y, struct str name)
{
    struct symbol *at = find_symbol(s, y, name);
    struct variable ref = { 0 };
    bool outside;

    if (!at) {
        outside = y->parent && find_variable(s, y->parent, name, &ref);
        at = find_or_add_symbol(s, y, name, outside ? LOAD_ALIAS : LOAD_UNDEFINED);
        if (at) at->alias = ref;
    }
    if (at) at->stored = true;
}

/* A copy with a `v` of its own, which the caller frees; empty after a failed allocation. */
static struct symbols copy_symbols(struct scoping *s, const struct symbols *y)
{
    struct symbols c = *y;

    scope_step(s, y->n);
    c.v = y->n ? mem_dup(y->v, y->n * sizeof *y->v) : NULL;
    if (y->n && !c.v) {
        scope_fail_nomem(s);
        c.n = 0;
    }
    c.cap = c.n;
    return c;
}

/* Adds the symbols of the branches of an if to y. A variable that only some branches set keeps its
 * outer value where another branch ran: it is loaded on entry. */
static void merge_branches(struct scoping *s, struct symbols *y, const struct symbols branches[3])
{
    struct symbols before = copy_symbols(s, y);

    for (int b = 0; b < 3; b++)
        for (size_t i = 0; i < branches[b].n; i++) {
            const struct symbol *from = &branches[b].v[i];
            struct symbol *to = find_or_add_symbol(s, y, from->name, from->load);
            if (!to) break;
            to->alias = from->alias;
            to->stored |= from->stored;
        }
    for (size_t i = 0; i < y->n; i++) {
        struct symbol *at = &y->v[i], *was = find_symbol(s, &before, at->name);
        struct variable ref;
        /* Only variables that a branch sets, and that were not set before the if. */
        if (!at->stored || (was && was->stored)) continue;
        if (y->parent && find_variable(s, y->parent, at->name, &ref))
            at->load = LOAD_ALIAS, at->alias = ref;
        else at->load = LOAD_RESOLVE;
    }
    mem_free(before.v);
}

/* ---- first pass: names that a scope reads and sets ---- */

/* as_param: names are parameters of the scope (targets of loops and with). */
static void visit_node(struct scoping *s, struct symbols *y, const struct node *n, bool as_param);

static void visit_list(struct scoping *s, struct symbols *y, const struct node *n, bool as_param)
{
    for (; n && s->rc == OK; n = n->next) visit_node(s, y, n, as_param);
}

/* The branches of an if belong to the scope around it; each is visited with a copy of the table,
 * then they are merged. */
static void visit_if(struct scoping *s, struct symbols *y, const struct node *n)
{
    const struct node *bodies[3] = { n->list, n->list2, n->other };
    struct symbols branches[3];

    visit_node(s, y, n->a, false);
    for (int i = 0; i < 3; i++) {
        branches[i] = copy_symbols(s, y);
        visit_list(s, &branches[i], bodies[i], false);
    }
    merge_branches(s, y, branches);
    for (int i = 0; i < 3; i++) mem_free(branches[i].v);
}

/* Expressions: all operands. */
static void visit_children(struct scoping *s, struct symbols *y, const struct node *n,
                           bool as_param)
{
    const struct node *one[] = { n->a, n->b, n->c, n->d };

    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (one[i]) visit_node(s, y, one[i], as_param);
    visit_list(s, y, n->list, as_param);
}

/* Nested scopes (loops, macros, blocks) are not entered: only the expressions that are evaluated
 * in this scope. */
static void visit_node(struct scoping *s, struct symbols *y, const struct node *n, bool as_param)
{
    switch (n->type) {
    case NODE_NAME:
        if (as_param) declare_param(s, y, n->name);
        else if (n->store) declare_store(s, y, n->name);
        else declare_load(s, y, n->name);
        break;
    case NODE_NSREF: declare_load(s, y, n->name); break;
    case NODE_IF: visit_if(s, y, n); break;
    case NODE_MACRO: declare_store(s, y, n->name); break;
    case NODE_SET:
        visit_node(s, y, n->b, false);
        visit_node(s, y, n->a, false);
        break;
    case NODE_FOR: visit_node(s, y, n->b, false); break;
    case NODE_CALL_BLOCK:
        if (n->a) visit_node(s, y, n->a, false);
        break;
    case NODE_FILTER_BLOCK: visit_node(s, y, n->b, false); break;
    case NODE_WITH:
        for (const struct node *i = n->list2; i; i = i->next) visit_node(s, y, i->b, false);
        break;
    case NODE_SET_BLOCK: visit_node(s, y, n->a, false); break;
    case NODE_BLOCK: break;
    default: visit_children(s, y, n, as_param); break;
    }
}

/* ---- searching the tree for a name ---- */

/* What the first occurrence of a name in a list of nodes does: 1 reads it, -1 sets it, 0: there is
 * none. Decides whether a macro uses caller, kwargs or varargs, and a loop `loop`. */
static int find_use(struct scoping *s, const struct node *n, const char *name)
{
    int found = 0;

    for (; n && !found && scope_step(s, 1); n = n->next) {
        const struct node *parts[] = { n->a, n->b, n->c, n->d, n->list2, n->list, n->other };
        /* A block does not see the variables of a macro or loop around it. */
        if (n->type == NODE_BLOCK) continue;
        if (n->type == NODE_NAME && str_is(n->name, name)) return n->store ? -1 : 1;
        if (n->type == NODE_PARAM && str_is(n->name, name)) return -1;
        for (size_t i = 0; i < sizeof parts / sizeof *parts && !found; i++)
            if (parts[i]) found = find_use(s, parts[i], name);
    }
    return found;
}

/* Whether a list of nodes assigns to a name anywhere. */
static bool sets_name(struct scoping *s, const struct node *n, const char *name)
{
    for (; n && scope_step(s, 1); n = n->next) {
        const struct node *parts[] = { n->a, n->list2, n->list, n->other };
        if (n->type == NODE_NAME && n->store && str_is(n->name, name)) return true;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (parts[i] && sets_name(s, parts[i], name)) return true;
    }
    return false;
}

/* ---- second pass: names to slots ---- */

static void scope_body(struct scoping *s, struct scope at, struct node *n);
static void scope_expr(struct scoping *s, struct scope at, struct node *n);

/* The variable o as seen from the scope y. */
static struct ref ref_from(const struct symbols *y, struct variable o)
{
    return (struct ref){ y->fn->depth - o.fn->depth, o.slot };
}

/* The slot of a name, as seen from scope y. */
static struct ref ref_of(struct scoping *s, struct symbols *y, struct str name)
{
    struct variable o;

    if (find_variable(s, y, name, &o)) return ref_from(y, o);
    /* A filter of a set block may read a name that the first pass did not see. */
    declare_load(s, y, name);
    return find_variable(s, y, name, &o) ? ref_from(y, o) : (struct ref){ 0, 0 };
}

/* An empty table for a scope inside `parent`; NULL: it sees nothing outside. */
static struct symbols make_symbols(struct symbols *parent, struct fn_scope *fn)
{
    return (struct symbols){ .parent = parent, .fn = fn, .level = parent ? parent->level + 1 : 0 };
}

/* A function inside `up`; `up` itself after a failed allocation, or NULL where that is NULL. */
static struct fn_scope *make_fn(struct scoping *s, struct fn_scope *up)
{
    struct fn_scope *fn = arena_new(s->arena, struct fn_scope);

    if (fn) fn->fn = arena_new(s->arena, struct frame_fn);
    if (!fn || !fn->fn) {
        scope_fail_nomem(s);
        return up;
    }
    fn->up = up;
    fn->depth = up ? up->depth + 1 : 0;
    return fn;
}

static void note_free_name(struct scoping *s, struct str name)
{
    struct scope_names *f = &s->free_names;
    struct str *v;

    if (!scope_step(s, 1 + f->n / 4)) return;
    for (size_t i = 0; i < f->n; i++)
        if (str_eq(f->v[i], name)) return;
    if (!(v = grow_array(s, f->v, f->n, &f->cap, sizeof *v))) return;
    f->v = v;
    f->v[f->n++] = name;
}

/* The scope is resolved: its table becomes the loads on entering it. Frees the table. NULL after a
 * failure. */
static struct frame *finish_frame(struct scoping *s, struct symbols *y)
{
    struct frame *f = arena_new(s->arena, struct frame);

    if (!f || !(f->loads = arena_array(s->arena, y->n, sizeof *f->loads))) {
        scope_fail_nomem(s);
        mem_free(y->v);
        return NULL;
    }
    for (size_t i = 0; i < y->n; i++) {
        const struct symbol *at = &y->v[i];
        struct load *l = &f->loads[f->n_loads++];
        *l = (struct load){ .kind = at->load, .slot = at->slot, .name = at->name };
        if (at->load == LOAD_ALIAS) l->alias = ref_from(y, at->alias);
        if (at->load == LOAD_RESOLVE) note_free_name(s, at->name);
    }
    mem_free(y->v);
    return f;
}

/* A list of expressions. */
static void scope_list(struct scoping *s, struct scope at, struct node *n)
{
    for (; n && s->rc == OK; n = n->next) scope_expr(s, at, n);
}

static void scope_operands(struct scoping *s, struct scope at, struct node *n)
{
    struct node *one[] = { n->a, n->b, n->c, n->d };

    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (one[i]) scope_expr(s, at, one[i]);
    scope_list(s, at, n->list);
}

/* Resolves the names of an expression, and reports filters and tests that do not exist. */
static void scope_expr(struct scoping *s, struct scope at, struct node *n)
{
    if (s->rc != OK) return;
    if (n->type == NODE_NAME || n->type == NODE_NSREF) n->ref = ref_of(s, at.sym, n->name);
    if (n->type == NODE_COND) at.soft = true;
    if ((n->type == NODE_FILTER || n->type == NODE_TEST) && !n->def && !at.soft)
        scope_fail(s, n->at, n->type == NODE_FILTER ? "there is no filter" : "there is no test",
                   n->name);
    scope_operands(s, at, n);
}

/* A copy of the target of a loop, to be resolved in the scope of the loop's test. NULL after a
 * failed allocation. */
static struct node *copy_target(struct scoping *s, const struct node *n)
{
    struct node *c = arena_new(s->arena, struct node), **tail;

    if (!c) {
        scope_fail_nomem(s);
        return NULL;
    }
    *c = *n;
    c->list = c->next = NULL;
    tail = &c->list;
    for (const struct node *i = n->list; i && (*tail = copy_target(s, i)); i = i->next)
        tail = &(*tail)->next;
    return c;
}

/* The test of "for x in y if test" runs as a function, since the loop may be read lazily. */
static void scope_loop_test(struct scoping *s, struct scope at, struct node *n, struct fn_scope *fn)
{
    struct fn_scope *test_fn = make_fn(s, fn);
    struct symbols test = make_symbols(at.sym, test_fn);
    struct scope in = { &test, false, false };

    visit_node(s, &test, n->a, true);
    visit_node(s, &test, n->c, false);
    n->d = copy_target(s, n->a);
    scope_expr(s, in, n->d);
    scope_expr(s, in, n->c);
    n->test_frame = finish_frame(s, &test);
    n->test_fn = test_fn->fn;
}

/* Body and else are two scopes. The iterable belongs to the scope around the loop. */
static void scope_for(struct scoping *s, struct scope at, struct node *n)
{
    struct fn_scope *fn = n->recursive ? make_fn(s, at.sym->fn) : at.sym->fn;
    struct symbols body = make_symbols(at.sym, fn), other = make_symbols(at.sym, fn);
    struct scope in = { &body, false, false };

    n->extended = n->recursive || find_use(s, n->list, "loop") > 0;
    if (sets_name(s, n->a, "loop") || sets_name(s, n->list, "loop"))
        scope_fail(s, n->at, "a for loop cannot set its variable", STR("loop"));
    /* The variable loop exists only where it is used: creating it costs memory in every iteration
     * of an outer loop. */
    if (n->extended) declare_param(s, &body, STR("loop"));
    visit_node(s, &body, n->a, true);
    visit_list(s, &body, n->list, false);
    if (n->extended) n->ref = ref_of(s, &body, STR("loop"));
    scope_expr(s, at, n->b);
    if (n->c) scope_loop_test(s, at, n, fn);
    scope_expr(s, in, n->a);
    scope_body(s, in, n->list);
    n->frame = finish_frame(s, &body);
    visit_list(s, &other, n->other, false);
    scope_body(s, (struct scope){ &other, false, false }, n->other);
    n->else_frame = finish_frame(s, &other);
    if (n->recursive) n->fn = fn->fn;
}

/* Not a scope of its own; unknown filters inside are errors only when they run. */
static void scope_if(struct scoping *s, struct scope at, struct node *n)
{
    at.soft = true;
    scope_expr(s, at, n->a);
    scope_body(s, at, n->list);
    for (struct node *i = n->list2; i; i = i->next) {
        scope_expr(s, at, i->a);
        scope_body(s, at, i->list);
    }
    scope_body(s, at, n->other);
}

/* caller, kwargs or varargs: a variable of the macro n if its body reads it and no parameter has
 * the name. */
static void declare_special(struct scoping *s, struct symbols *y, const struct node *n,
                            const char *name, struct ref *out)
{
    for (const struct node *i = n->list2; i; i = i->next)
        if (str_is(i->name, name)) return;
    if (find_use(s, n->list, name) <= 0) return;
    declare_param(s, y, str_c(name));
    *out = ref_of(s, y, str_c(name));
}

/* Macros and call blocks: a function with its parameters, then the body. */
static void scope_macro(struct scoping *s, struct scope at, struct node *n)
{
    struct fn_scope *fn = make_fn(s, at.sym->fn);
    struct symbols y = make_symbols(at.sym, fn);
    struct scope in = { &y, false, false };

    for (struct node *i = n->list2; i; i = i->next) declare_param(s, &y, i->name);
    for (struct node *i = n->list2; i; i = i->next) {
        if (i->a) visit_node(s, &y, i->a, false);
        if (str_is(i->name, "caller") && !i->a && find_use(s, n->list, "caller"))
            scope_fail(s, i->at, "a default value is required for the parameter", i->name);
    }
    declare_special(s, &y, n, "caller", &n->caller);
    declare_special(s, &y, n, "kwargs", &n->kwargs);
    declare_special(s, &y, n, "varargs", &n->varargs);
    visit_list(s, &y, n->list, false);
    for (struct node *i = n->list2; i; i = i->next) {
        i->ref = ref_of(s, &y, i->name);
        if (i->a) scope_expr(s, in, i->a);
    }
    scope_body(s, in, n->list);
    n->frame = finish_frame(s, &y);
    n->fn = fn->fn;
    if (n->type == NODE_MACRO) n->ref = ref_of(s, at.sym, n->name);
    else if (n->a) scope_expr(s, at, n->a);
}

/* Targets belong to the new scope, values to the one around it. */
static void scope_with(struct scoping *s, struct scope at, struct node *n)
{
    struct symbols y = make_symbols(at.sym, at.sym->fn);
    struct scope in = { &y, false, false };

    for (struct node *i = n->list2; i; i = i->next) visit_node(s, &y, i->a, true);
    visit_list(s, &y, n->list, false);
    for (struct node *i = n->list2; i; i = i->next) {
        scope_expr(s, in, i->a);
        scope_expr(s, at, i->b);
    }
    scope_body(s, in, n->list);
    n->frame = finish_frame(s, &y);
}

/* Set blocks, filter blocks, scoped blocks: statements whose output is captured. */
static void scope_captured(struct scoping *s, struct scope at, struct node *n)
{
    struct symbols y = make_symbols(at.sym, at.sym->fn);
    struct scope in = { &y, false, false };

    visit_list(s, &y, n->list, false);
    if (n->b) visit_node(s, &y, n->b, false);
    scope_body(s, in, n->list);
    if (n->b) scope_expr(s, in, n->b);
    n->frame = finish_frame(s, &y);
    if (n->a) scope_expr(s, at, n->a);
}

/* A block that is not scoped sees only the caller's variables and those set at the top level. */
static void scope_block(struct scoping *s, struct node *n)
{
    struct fn_scope *fn = make_fn(s, NULL);
    struct symbols y = make_symbols(NULL, fn);

    if (!fn) return;
    visit_list(s, &y, n->list, false);
    scope_body(s, (struct scope){ &y, false, false }, n->list);
    n->frame = finish_frame(s, &y);
    n->fn = fn->fn;
}

/* Statements of one scope. */
static void scope_body(struct scoping *s, struct scope at, struct node *n)
{
    for (; n && s->rc == OK; n = n->next) {
        n->exports = at.top;
        switch (n->type) {
        case NODE_DATA:
        case NODE_BREAK:
        case NODE_CONTINUE: break;
        case NODE_FOR: scope_for(s, at, n); break;
        case NODE_IF: scope_if(s, at, n); break;
        case NODE_MACRO:
        case NODE_CALL_BLOCK: scope_macro(s, at, n); break;
        case NODE_WITH: scope_with(s, at, n); break;
        case NODE_SET_BLOCK:
        case NODE_FILTER_BLOCK: scope_captured(s, at, n); break;
        case NODE_BLOCK:
            if (n->scoped) scope_captured(s, at, n);
            else scope_block(s, n);
            break;
        default: scope_expr(s, at, n); break;
        }
    }
}

/* The top level is a function without parameters. */
int scope_template(struct scoping *s, struct node *root, struct frame_fn **fn)
{
    struct fn_scope *top = make_fn(s, NULL);
    struct symbols y = make_symbols(NULL, top);

    if (!top) return s->rc;
    visit_list(s, &y, root->list, false);
    scope_body(s, (struct scope){ &y, false, true }, root->list);
    root->frame = finish_frame(s, &y);
    *fn = root->fn = top->fn;
    return s->rc;
}
