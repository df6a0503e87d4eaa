/* expr.c - evaluation of expressions, calls, filters and tests.
 *
 * eval() charges a step, limits the recursion and records the place in the source; after a failure
 * it returns None at once. Evaluators of compound expressions check jv_failed before they call
 * anything with what they evaluated. */
#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/render.h"

/* ---- arguments ---- */

/* Linear: calls have few named arguments. */
static bool is_keyword_given(const struct jpair *kw, size_t n, struct str name)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(kw[i].key.s, name)) return true;
    return false;
}

/* Adds a named argument; a name that is given twice is an error. */
static void push_keyword(struct render *r, struct jval dict, struct jval key, struct jval value)
{
    if (key.kind != J_STR) jv_fail(r, "keywords must be strings");
    else if (is_keyword_given(dict.d->e, dict.d->n, key.s))
        jv_fail(r, "got multiple values for the keyword argument '%.*s'",
                STR_ARG(str_take(key.s, 60)));
    else jdict_append(r, dict.d, key, value);
}

/* **from */
static void push_mapping(struct render *r, struct jval dict, struct jval from)
{
    if (jv_is_undef(from)) jv_fail_undef(r, from);
    else if (from.kind != J_DICT)
        jv_fail(r, "the argument after ** must be a mapping, not %s", jv_type(from));
    else
        for (size_t i = 0; i < from.d->n; i++)
            push_keyword(r, dict, from.d->e[i].key, from.d->e[i].value);
}

/* *from */
static void push_iterable(struct render *r, struct jval list, struct jval from)
{
    struct jiter it;
    struct jval v;

    if (!jiter_begin(r, &it, from)) return;
    while (jiter_next(r, &it, &v)) jlist_push(r, list.l, v);
}

/* Arguments in source order. After a failure the result may be incomplete; callers check
 * jv_failed. */
struct jargs eval_args(struct render *r, struct activation *act, const struct node *n)
{
    struct jval list, dict;

    if (!n->list) return (struct jargs){ 0 };
    list = jv_list(r, 4);
    dict = jv_dict(r, 0);
    for (const struct node *a = n->list; a && !jv_failed(r); a = a->next) {
        switch (a->type) {
        case NODE_KEYWORD: push_keyword(r, dict, jv_str(a->name), eval(r, act, a->a)); break;
        case NODE_STAR: push_iterable(r, list, eval(r, act, a->a)); break;
        case NODE_STARSTAR: push_mapping(r, dict, eval(r, act, a->a)); break;
        default: jlist_push(r, list.l, eval(r, act, a)); break;
        }
    }
    return (struct jargs){ list.l->v, list.l->n, dict.d->e, dict.d->n };
}

/* ---- calls ---- */

/* Markup overrides the methods of str to return Markup. */
static struct jval call_method(struct render *r, const struct jmethod *m, const struct jargs *a)
{
    struct jval v = m->def->call(r, m->self, a);

    if (m->self.kind != J_STR || !(m->self.flags & JV_MARKUP)) return v;
    if (v.kind == J_STR) v.flags |= JV_MARKUP;
    /* split() and partition() of Markup give lists of Markup. */
    for (size_t i = 0; (v.kind == J_LIST || v.kind == J_TUPLE) && i < v.l->n; i++)
        if (v.l->v[i].kind == J_STR) v.l->v[i].flags |= JV_MARKUP;
    return v;
}

/* f(*a) for every callable type. */
struct jval value_call(struct render *r, struct jval f, const struct jargs *a)
{
    struct jcycler *c;

    switch (f.kind) {
    case J_UNDEF: return jv_fail_undef(r, f);
    case J_FUNC: return f.func->call(r, a);
    case J_METHOD: return call_method(r, f.method, a);
    case J_MACRO: return macro_call(r, f.macro, a);
    case J_LOOP: return loop_call(r, f.loop, a);
    case J_JOINER: /* "" the first time, then the separator */
        c = f.cycler;
        if (c->at++) return c->items->v[0];
        return jv_str(STR(""));
    default: return jv_fail(r, "'%s' object is not callable", jv_type(f));
    }
}

/* The callee is evaluated before the arguments, as in Python. */
static struct jval eval_call(struct render *r, struct activation *act, const struct node *n)
{
    struct jval f = eval(r, act, n->a);
    struct jargs a;

    a = eval_args(r, act, n);
    r->at = n->at;
    return jv_failed(r) ? jv_none() : value_call(r, f, &a);
}

/* An unknown filter inside an if is only an error when it is reached. */
struct jval eval_filter(struct render *r, struct activation *act, const struct node *n,
                        struct jval input)
{
    const struct jfilter *f = n->def;
    struct jargs a;

    if (n->a) input = eval(r, act, n->a);
    a = eval_args(r, act, n);
    r->at = n->at;
    if (jv_failed(r)) return jv_none();
    if (!f) return jv_fail(r, "there is no filter '%.*s'", STR_ARG(str_take(n->name, 60)));
    return f->call(r, input, &a);
}

/* value is test(args). Negation is a NODE_NOT around it. */
static struct jval eval_test(struct render *r, struct activation *act, const struct node *n)
{
    const struct jfilter *f = n->def;
    struct jval over = eval(r, act, n->a);
    struct jargs a = eval_args(r, act, n);

    r->at = n->at;
    if (jv_failed(r)) return jv_none();
    if (!f) return jv_fail(r, "there is no test '%.*s'", STR_ARG(str_take(n->name, 60)));
    return f->call(r, over, &a);
}

/* ---- other expressions ---- */

/* A variable without a value is undefined: the error occurs when it is used. */
static struct jval eval_name(struct render *r, struct activation *act, const struct node *n)
{
    struct jval v = *slot_at(act, n->ref);

    return v.kind != J_MISSING ? v
                               : jv_undef(r, "'%.*s' is undefined", STR_ARG(str_take(n->name, 80)));
}

/* A list or tuple display. */
static struct jval eval_items(struct render *r, struct activation *act, const struct node *n)
{
    struct jval list = n->type == NODE_TUPLE ? jv_tuple(r, 4) : jv_list(r, 4);

    for (const struct node *i = n->list; i && !jv_failed(r); i = i->next)
        jlist_push(r, list.l, eval(r, act, i));
    return list;
}

/* A dict display. A key that occurs twice keeps its place and gets the later value. */
static struct jval eval_dict(struct render *r, struct activation *act, const struct node *n)
{
    struct jval dict = jv_dict(r, 4);

    for (const struct node *i = n->list; i && !jv_failed(r); i = i->next) {
        struct jval key = eval(r, act, i->a);
        jdict_put(r, dict.d, key, eval(r, act, i->b));
    }
    return dict;
}

/* a ~ b ~ c: str() of all operands, joined. */
static struct jval eval_concat(struct render *r, struct activation *act, const struct node *n)
{
    struct jtext t = { .r = r };

    for (const struct node *i = n->list; i && !jv_failed(r); i = i->next)
        jtext_put_value(&t, eval(r, act, i));
    return jtext_done(&t);
}

/* A chain a < b < c: each operand is evaluated once, and the first false comparison ends it. */
static struct jval eval_compare(struct render *r, struct activation *act, const struct node *n)
{
    struct jval left = eval(r, act, n->a), right;

    for (const struct node *i = n->list; i && !jv_failed(r); i = i->next) {
        right = eval(r, act, i->a);
        r->at = i->at;
        if (jv_failed(r) || !op_compare(r, i->op, left, right)) return jv_bool(false);
        /* The right operand is the left one of the next comparison. */
        left = right;
    }
    return jv_bool(true);
}

/* a if b else c; without else the result is undefined. */
static struct jval eval_cond(struct render *r, struct activation *act, const struct node *n)
{
    if (jv_truth(r, eval(r, act, n->b))) return eval(r, act, n->a);
    return n->c ? eval(r, act, n->c)
                : jv_undef(r, "the inline if expression was false and has no else");
}

/* Absent bounds are None. */
static struct jval eval_slice(struct render *r, struct activation *act, const struct node *n)
{
    struct jval of = eval(r, act, n->a), none = jv_none();
    struct jval from = n->b ? eval(r, act, n->b) : none, to = n->c ? eval(r, act, n->c) : none;
    struct jval step = n->d ? eval(r, act, n->d) : none;

    r->at = n->at;
    return attr_slice(r, of, from, to, step);
}

/* Nodes with two operands: and, or, binary operators, items. */
static struct jval eval_pair(struct render *r, struct activation *act, const struct node *n)
{
    struct jval a = eval(r, act, n->a), b;

    if (n->type == NODE_AND && !jv_truth(r, a)) return a;
    if (n->type == NODE_OR && jv_truth(r, a)) return a;
    b = eval(r, act, n->b);
    r->at = n->at;
    if (jv_failed(r)) return a;
    if (n->type == NODE_BINARY) return op_binary(r, n->op, a, b);
    return n->type == NODE_GETITEM ? attr_item(r, a, b) : b;
}

/* Dispatches on the type of the node. */
static struct jval eval_one(struct render *r, struct activation *act, const struct node *n)
{
    struct jval v;

    switch (n->type) {
    case NODE_CONST: return n->value;
    case NODE_NAME: return eval_name(r, act, n);
    case NODE_TUPLE:
    case NODE_LIST: return eval_items(r, act, n);
    case NODE_DICT: return eval_dict(r, act, n);
    case NODE_GETATTR: v = eval(r, act, n->a), r->at = n->at; return attr_get(r, v, n->name);
    case NODE_SLICE: return eval_slice(r, act, n);
    case NODE_CALL: return eval_call(r, act, n);
    case NODE_FILTER: return eval_filter(r, act, n, jv_none());
    case NODE_TEST: return eval_test(r, act, n);
    case NODE_UNARY: v = eval(r, act, n->a), r->at = n->at; return op_unary(r, n->op[0], v);
    case NODE_NOT: return jv_bool(!jv_truth(r, eval(r, act, n->a)));
    case NODE_CONCAT: return eval_concat(r, act, n);
    case NODE_COMPARE: return eval_compare(r, act, n);
    case NODE_COND: return eval_cond(r, act, n);
    default: return eval_pair(r, act, n);
    }
}

/* Evaluates an expression: one step, one level of recursion. */
struct jval eval(struct render *r, struct activation *act, const struct node *n)
{
    struct jval v = jv_none();

    r->at = n->at;
    if (!jv_step(r, 1) || !jv_enter(r)) return v;
    v = eval_one(r, act, n);
    jv_leave(r);
    return v;
}
