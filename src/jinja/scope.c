#include "jinja/scope.h"

#include "base/mem.h"
#include "jinja/lex.h"

enum { MAX_NAMES = 1000 }; /* of one scope */

/* ---- symbols of a scope ---- */

struct slot_key {
    int level;
    struct str name;
};

struct fn_scope { /* a function while it is built */
    struct fn_scope *up;
    int depth;
    struct frame_fn *fn;
    struct slot_key *slots;
    size_t n, cap;
};

struct outer { /* a variable, wherever it is */
    const struct fn_scope *fn;
    int slot;
};

struct symbol {
    struct str name;
    int slot;
    enum load_kind load;
    struct outer alias;
    bool stored;
};

struct symbols {
    struct symbols *parent;
    struct fn_scope *fn;
    int level;
    struct symbol *v;
    size_t n, cap;
};

struct scope { /* where statements are: symbols, and whether errors may wait until they run */
    struct symbols *sym;
    bool soft, top; /* top: of the template, not of anything inside it */
};

static void fail(struct scoping *s, uint32_t at, const char *what, struct str name)
{
    if (s->rc == OK)
        s->rc =
            lex_error(s->source, s->name, at, s->e, "%s '%.*s'", what, STR_ARG(str_take(name, 60)));
}

static int slot_of(struct scoping *s, struct fn_scope *fn, int level, struct str name)
{
    for (size_t i = 0; i < fn->n; i++)
        if (fn->slots[i].level == level && str_eq(fn->slots[i].name, name)) return (int)i;
    if (fn->n == fn->cap) {
        struct slot_key *to;
        fn->cap = fn->cap ? 2 * fn->cap : 16;
        to = arena_array(s->arena, fn->cap, sizeof *to);
        if (fn->n) memcpy(to, fn->slots, fn->n * sizeof *to);
        fn->slots = to;
    }
    fn->slots[fn->n] = (struct slot_key){ level, name };
    fn->fn->n_slots = (int)fn->n + 1;
    return (int)fn->n++;
}

static struct symbol *own(const struct symbols *y, struct str name)
{
    for (size_t i = 0; i < y->n; i++)
        if (str_eq(y->v[i].name, name)) return &y->v[i];
    return NULL;
}

static bool find_ref(const struct symbols *y, struct str name, struct outer *out)
{
    for (; y; y = y->parent) {
        const struct symbol *found = own(y, name);
        if (!found) continue;
        *out = (struct outer){ y->fn, found->slot };
        return true;
    }
    return false;
}

static struct symbol *define(struct scoping *s, struct symbols *y, struct str name,
                             enum load_kind load)
{
    struct symbol *at = own(y, name);

    if (!at) {
        if (y->n == y->cap) {
            y->cap = y->cap ? 2 * y->cap : 16;
            y->v = mem_grow(y->v, y->cap * sizeof *y->v);
        }
        if (y->n >= MAX_NAMES) fail(s, 0, "too many names in one scope, at", name);
        at = &y->v[y->n++];
        *at = (struct symbol){ .name = name, .slot = slot_of(s, y->fn, y->level, name) };
    }
    at->load = load;
    return at;
}

static void declare_param(struct scoping *s, struct symbols *y, struct str name)
{
    define(s, y, name, LOAD_PARAM)->stored = true;
}

static void declare_load(struct scoping *s, struct symbols *y, struct str name)
{
    struct outer ref;
    if (!find_ref(y, name, &ref)) define(s, y, name, LOAD_RESOLVE);
}

static void declare_store(struct scoping *s, struct symbols *y, struct str name)
{
    struct symbol *at = own(y, name);
    struct outer ref;

    if (!at) {
        if (y->parent && find_ref(y->parent, name, &ref)) {
            at = define(s, y, name, LOAD_ALIAS);
            at->alias = ref;
        } else {
            at = define(s, y, name, LOAD_UNDEFINED);
        }
    }
    at->stored = true;
}

static struct symbols copy_of(const struct symbols *y)
{
    struct symbols c = *y;

    c.v = y->n ? mem_dup(y->v, y->n * sizeof *y->v) : NULL;
    c.cap = y->n;
    return c;
}

/* What only some branches set is, where they did not run, what it was before. */
static void merge(struct scoping *s, struct symbols *y, const struct symbols branches[3])
{
    struct symbols before = copy_of(y);

    for (int b = 0; b < 3; b++)
        for (size_t i = 0; i < branches[b].n; i++) {
            const struct symbol *from = &branches[b].v[i];
            struct symbol *to = define(s, y, from->name, from->load);
            to->alias = from->alias;
            to->stored |= from->stored;
        }
    for (size_t i = 0; i < y->n; i++) {
        struct symbol *at = &y->v[i], *was = own(&before, at->name);
        struct outer ref;
        if (!at->stored || (was && was->stored)) continue;
        if (y->parent && find_ref(y->parent, at->name, &ref))
            at->load = LOAD_ALIAS, at->alias = ref;
        else at->load = LOAD_RESOLVE;
    }
    mem_free(before.v);
}

/* ---- what a scope says about names ---- */

static void visit(struct scoping *s, struct symbols *y, const struct node *n, bool as_param);

static void visit_list(struct scoping *s, struct symbols *y, const struct node *n, bool as_param)
{
    for (; n && s->rc == OK; n = n->next) visit(s, y, n, as_param);
}

static void visit_if(struct scoping *s, struct symbols *y, const struct node *n)
{
    const struct node *bodies[3] = { n->list, n->list2, n->other };
    struct symbols branches[3];

    visit(s, y, n->a, false);
    for (int i = 0; i < 3; i++) {
        branches[i] = copy_of(y);
        visit_list(s, &branches[i], bodies[i], false);
    }
    merge(s, y, branches);
    for (int i = 0; i < 3; i++) mem_free(branches[i].v);
}

static void visit_children(struct scoping *s, struct symbols *y, const struct node *n,
                           bool as_param)
{
    const struct node *one[] = { n->a, n->b, n->c, n->d };

    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (one[i]) visit(s, y, one[i], as_param);
    visit_list(s, y, n->list, as_param);
}

static void visit(struct scoping *s, struct symbols *y, const struct node *n, bool as_param)
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
        visit(s, y, n->b, false);
        visit(s, y, n->a, false);
        break;
    case NODE_FOR: visit(s, y, n->b, false); break;
    case NODE_CALL_BLOCK:
        if (n->a) visit(s, y, n->a, false);
        break;
    case NODE_FILTER_BLOCK: visit(s, y, n->b, false); break;
    case NODE_WITH:
        for (const struct node *i = n->list2; i; i = i->next) visit(s, y, i->b, false);
        break;
    case NODE_SET_BLOCK: visit(s, y, n->a, false); break;
    case NODE_BLOCK: break;
    default: visit_children(s, y, n, as_param); break;
    }
}

/* ---- names read inside ---- */

/* 1: the name is read in there, -1: it is set before that, 0: neither. */
static int mentions(const struct node *n, const char *name)
{
    int found = 0;

    for (; n && !found; n = n->next) {
        const struct node *parts[] = { n->a, n->b, n->c, n->d, n->list2, n->list, n->other };
        if (n->type == NODE_BLOCK) continue;
        if (n->type == NODE_NAME && str_is(n->name, name)) return n->store ? -1 : 1;
        if (n->type == NODE_PARAM && str_is(n->name, name)) return -1;
        for (size_t i = 0; i < sizeof parts / sizeof *parts && !found; i++)
            if (parts[i]) found = mentions(parts[i], name);
    }
    return found;
}

static bool sets(const struct node *n, const char *name)
{
    for (; n; n = n->next) {
        const struct node *parts[] = { n->a, n->list2, n->list, n->other };
        if (n->type == NODE_NAME && n->store && str_is(n->name, name)) return true;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (parts[i] && sets(parts[i], name)) return true;
    }
    return false;
}

/* ---- resolving ---- */

static void scope_body(struct scoping *s, struct scope at, struct node *n);
static void scope_expr(struct scoping *s, struct scope at, struct node *n);

static struct ref ref_from(const struct symbols *y, struct outer o)
{
    return (struct ref){ y->fn->depth - o.fn->depth, o.slot };
}

static struct ref ref_of(struct scoping *s, struct symbols *y, struct str name)
{
    struct outer o = { 0 };

    if (!find_ref(y, name, &o)) { /* a filter of a set block sees what its body did not name */
        declare_load(s, y, name);
        find_ref(y, name, &o);
    }
    return ref_from(y, o);
}

static struct symbols inner(struct symbols *parent, struct fn_scope *fn)
{
    return (struct symbols){ .parent = parent, .fn = fn, .level = parent ? parent->level + 1 : 0 };
}

static struct fn_scope *new_fn(struct scoping *s, struct fn_scope *up)
{
    struct fn_scope *fn = arena_new(s->arena, struct fn_scope);

    fn->up = up;
    fn->depth = up ? up->depth + 1 : 0;
    fn->fn = arena_new(s->arena, struct frame_fn);
    return fn;
}

static void ask(struct scoping *s, struct str name)
{
    for (size_t i = 0; i < s->asked.n; i++)
        if (str_eq(s->asked.v[i], name)) return;
    if (s->asked.n == s->asked.cap) {
        struct str *to;
        s->asked.cap = s->asked.cap ? 2 * s->asked.cap : 32;
        to = arena_array(s->arena, s->asked.cap, sizeof *to);
        if (s->asked.n) memcpy(to, s->asked.v, s->asked.n * sizeof *to);
        s->asked.v = to;
    }
    s->asked.v[s->asked.n++] = name;
}

/* The scope is done: what entering it does. Ends the symbols. */
static struct frame *frame_of(struct scoping *s, struct symbols *y)
{
    struct frame *f = arena_new(s->arena, struct frame);

    f->loads = arena_array(s->arena, y->n, sizeof *f->loads);
    for (size_t i = 0; i < y->n; i++) {
        const struct symbol *at = &y->v[i];
        struct load *l = &f->loads[f->n_loads++];
        *l = (struct load){ .kind = at->load, .slot = at->slot, .name = at->name };
        if (at->load == LOAD_ALIAS) l->alias = ref_from(y, at->alias);
        if (at->load == LOAD_RESOLVE) ask(s, at->name);
    }
    mem_free(y->v);
    return f;
}

static void scope_list(struct scoping *s, struct scope at, struct node *n)
{
    for (; n && s->rc == OK; n = n->next) scope_expr(s, at, n);
}

static void scope_expr(struct scoping *s, struct scope at, struct node *n)
{
    struct node *one[] = { n->a, n->b, n->c, n->d };

    if (n->type == NODE_NAME || n->type == NODE_NSREF) n->ref = ref_of(s, at.sym, n->name);
    if (n->type == NODE_COND) at.soft = true;
    if ((n->type == NODE_FILTER || n->type == NODE_TEST) && !n->def && !at.soft)
        fail(s, n->at, n->type == NODE_FILTER ? "there is no filter" : "there is no test", n->name);
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (one[i]) scope_expr(s, at, one[i]);
    scope_list(s, at, n->list);
}

/* The target of a loop again, as its filter sees it. */
static struct node *copy_target(struct scoping *s, const struct node *n)
{
    struct node *c = arena_new(s->arena, struct node), **tail = &c->list;

    *c = *n;
    c->list = c->next = NULL;
    for (const struct node *i = n->list; i; i = i->next) {
        *tail = copy_target(s, i);
        tail = &(*tail)->next;
    }
    return c;
}

static void scope_for(struct scoping *s, struct scope at, struct node *n)
{
    struct fn_scope *fn = n->recursive ? new_fn(s, at.sym->fn) : at.sym->fn;
    struct symbols body = inner(at.sym, fn), other = inner(at.sym, fn), test;
    struct scope in = { &body, false, false };

    n->extended = n->recursive || mentions(n->list, "loop") > 0;
    if (sets(n->a, "loop") || sets(n->list, "loop"))
        fail(s, n->at, "a loop cannot set", STR("loop"));
    if (n->extended) declare_param(s, &body, STR("loop"));
    visit(s, &body, n->a, true);
    visit_list(s, &body, n->list, false);
    if (n->extended) n->ref = ref_of(s, &body, STR("loop"));
    scope_expr(s, at, n->b);
    if (n->c) {
        struct fn_scope *test_fn = new_fn(s, fn);
        test = inner(at.sym, test_fn);
        visit(s, &test, n->a, true);
        visit(s, &test, n->c, false);
        n->d = copy_target(s, n->a);
        scope_expr(s, (struct scope){ &test, false, false }, n->d);
        scope_expr(s, (struct scope){ &test, false, false }, n->c);
        n->test_frame = frame_of(s, &test);
        n->test_fn = test_fn->fn;
    }
    scope_expr(s, in, n->a);
    scope_body(s, in, n->list);
    n->frame = frame_of(s, &body);
    visit_list(s, &other, n->other, false);
    scope_body(s, (struct scope){ &other, false, false }, n->other);
    n->else_frame = frame_of(s, &other);
    if (n->recursive) n->fn = fn->fn;
}

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

static void special(struct scoping *s, struct symbols *y, const struct node *n, const char *name,
                    struct ref *out)
{
    for (const struct node *i = n->list2; i; i = i->next)
        if (str_is(i->name, name)) return;
    if (mentions(n->list, name) <= 0) return;
    declare_param(s, y, str_c(name));
    *out = ref_of(s, y, str_c(name));
}

static void scope_macro(struct scoping *s, struct scope at, struct node *n)
{
    struct fn_scope *fn = new_fn(s, at.sym->fn);
    struct symbols y = inner(at.sym, fn);
    struct scope in = { &y, false, false };

    for (struct node *i = n->list2; i; i = i->next) declare_param(s, &y, i->name);
    for (struct node *i = n->list2; i; i = i->next) {
        if (i->a) visit(s, &y, i->a, false);
        if (str_is(i->name, "caller") && !i->a && mentions(n->list, "caller"))
            fail(s, i->at, "a default is needed for the parameter", i->name);
    }
    special(s, &y, n, "caller", &n->caller);
    special(s, &y, n, "kwargs", &n->kwargs);
    special(s, &y, n, "varargs", &n->varargs);
    visit_list(s, &y, n->list, false);
    for (struct node *i = n->list2; i; i = i->next) {
        i->ref = ref_of(s, &y, i->name);
        if (i->a) scope_expr(s, in, i->a);
    }
    scope_body(s, in, n->list);
    n->frame = frame_of(s, &y);
    n->fn = fn->fn;
    if (n->type == NODE_MACRO) n->ref = ref_of(s, at.sym, n->name);
    else if (n->a) scope_expr(s, at, n->a);
}

static void scope_with(struct scoping *s, struct scope at, struct node *n)
{
    struct symbols y = inner(at.sym, at.sym->fn);
    struct scope in = { &y, false, false };

    for (struct node *i = n->list2; i; i = i->next) visit(s, &y, i->a, true);
    visit_list(s, &y, n->list, false);
    for (struct node *i = n->list2; i; i = i->next) {
        scope_expr(s, in, i->a);
        scope_expr(s, at, i->b);
    }
    scope_body(s, in, n->list);
    n->frame = frame_of(s, &y);
}

/* Set blocks and filter blocks. */
static void scope_captured(struct scoping *s, struct scope at, struct node *n)
{
    struct symbols y = inner(at.sym, at.sym->fn);
    struct scope in = { &y, false, false };

    visit_list(s, &y, n->list, false);
    if (n->b) visit(s, &y, n->b, false);
    scope_body(s, in, n->list);
    if (n->b) scope_expr(s, in, n->b);
    n->frame = frame_of(s, &y);
    if (n->a) scope_expr(s, at, n->a);
}

static void scope_block(struct scoping *s, struct node *n)
{
    struct fn_scope *fn = new_fn(s, NULL);
    struct symbols y = inner(NULL, fn);

    visit_list(s, &y, n->list, false);
    scope_body(s, (struct scope){ &y, false, false }, n->list);
    n->frame = frame_of(s, &y);
    n->fn = fn->fn;
}

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

int scope_template(struct scoping *s, struct node *root, struct frame_fn **fn)
{
    struct fn_scope *top = new_fn(s, NULL);
    struct symbols y = inner(NULL, top);

    visit_list(s, &y, root->list, false);
    scope_body(s, (struct scope){ &y, false, true }, root->list);
    root->frame = frame_of(s, &y);
    *fn = root->fn = top->fn;
    return s->rc;
}
