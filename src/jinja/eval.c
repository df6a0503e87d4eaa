/* eval.c - execution of statements, macros and recursive loops.
 *
 * The tree is walked directly. Variables are slots of the activation of the running function;
 * entering a scope fills its slots (enter_frame), leaving it empties them. Statements report break
 * and continue through enum flow. Output goes to r->out, which captures (set blocks, macros, filter
 * blocks) replace for a while. */
#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/render.h"

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow exec_list(struct render *r, struct activation *act, const struct node *n);

/* ---- scopes ---- */

/* All slots are J_MISSING. NULL after a failed allocation. */
static struct activation *make_activation(struct render *r, const struct frame_fn *fn,
                                          struct activation *up)
{
    struct activation *act = jv_alloc(r, sizeof *act + (size_t)fn->n_slots * sizeof *act->v);

    if (act) act->up = up;
    return act;
}

/* A variable that the template does not set: exported at the top level (only blocks get here with
 * one), of the caller, or a global function. */
static struct jval lookup_name(struct render *r, struct str name)
{
    const struct jval *v = jdict_get_str(r->exported, name);
    const struct jfunc *f;

    if (!v) v = jdict_get_str(r->vars, name);
    if (v) return *v;
    f = global_find(name);
    return f ? jv_func(f) : jv_missing();
}

/* Gives the variables of a scope their first values. Slots of parameters were filled by the
 * statement that enters the scope. */
static void enter_frame(struct render *r, struct activation *act, const struct frame *f)
{
    for (size_t i = 0; i < f->n_loads; i++) {
        const struct load *l = &f->loads[i];
        /* LOAD_PARAM: the caller of enter_frame has filled the slot. */
        if (l->kind == LOAD_RESOLVE) act->v[l->slot] = lookup_name(r, l->name);
        else if (l->kind == LOAD_ALIAS) act->v[l->slot] = *slot_at(act, l->alias);
        else if (l->kind == LOAD_UNDEFINED) act->v[l->slot].kind = J_MISSING;
    }
}

/* Empties the slots, so that the next entry of the scope starts without old values. */
static void leave_frame(struct activation *act, const struct frame *f)
{
    for (size_t i = 0; i < f->n_loads; i++) act->v[f->loads[i].slot].kind = J_MISSING;
}

/* ---- assignment ---- */

static void assign_target(struct render *r, struct activation *act, const struct node *to,
                          struct jval v);

/* a, b = value: the number of items must match. */
static void unpack_value(struct render *r, struct activation *act, const struct node *to,
                         struct jval v)
{
    size_t want = 0, got = 0;
    struct jiter it;
    struct jval item;

    for (const struct node *i = to->list; i; i = i->next) want++;
    r->at = to->at;
    if (!jv_iterable(v)) {
        jv_fail(r, "cannot unpack non-iterable %s object", jv_type(v));
        return;
    }
    jiter_begin(r, &it, v);
    for (const struct node *i = to->list; i && jiter_next(r, &it, &item); i = i->next, got++)
        assign_target(r, act, i, item);
    if (jv_failed(r)) return;
    if (got < want) jv_fail(r, "not enough values to unpack (expected %zu, got %zu)", want, got);
    else if (jiter_next(r, &it, &item))
        jv_fail(r, "too many values to unpack (expected %zu)", want);
}

static void assign_target(struct render *r, struct activation *act, const struct node *to,
                          struct jval v)
{
    struct jval *at;

    if (to->type == NODE_TUPLE) {
        unpack_value(r, act, to, v);
        return;
    }
    at = slot_at(act, to->ref);
    if (to->type == NODE_NAME) *at = v;
    else if (at->kind == J_NAMESPACE) jdict_put(r, at->d, jv_str(to->attr), v);
    else
        r->at = to->at, jv_fail(r, "cannot assign to an attribute of '%.*s': it is not a namespace",
                                STR_ARG(to->name));
}

/* Makes the variables of a target visible in blocks. */
static void export_target(struct render *r, struct activation *act, const struct node *to)
{
    if (to->type == NODE_NAME) jdict_put(r, r->exported, jv_str(to->name), *slot_at(act, to->ref));
    for (const struct node *i = to->list; i; i = i->next) export_target(r, act, i);
}

/* {% set target = expression %}. On the top level the variable is also visible in blocks. */
static void exec_set(struct render *r, struct activation *act, const struct node *n)
{
    struct jval v = eval(r, act, n->b);

    if (jv_failed(r)) return;
    assign_target(r, act, n->a, v);
    if (n->exports) export_target(r, act, n->a);
}

/* ---- output ---- */

/* Writes str(v) to the output. Long output is charged as steps. */
static void emit_value(struct render *r, struct jval v)
{
    size_t before = r->out->n;

    if (jv_failed(r)) return;
    jtext_put_value(r->out, v);
    if (r->out->n > r->max_output)
        jv_fail(r, "the rendered text is longer than the limit of %zu bytes", r->max_output);
    jv_step(r, (r->out->n - before) / 64);
}

/* Runs the statements and returns their output as a str. */
static struct jval capture_output(struct render *r, struct activation *act, const struct node *body,
                                  enum flow *flow)
{
    struct jtext text = { .r = r }, *out = r->out;

    r->out = &text;
    *flow = exec_list(r, act, body);
    r->out = out;
    return jtext_done(&text);
}

/* Applies a chain of filters, the innermost first. Each is evaluated as a copy without its operand,
 * which is the text. */
static struct jval filter_text(struct render *r, struct activation *act, const struct node *last,
                               struct jval text)
{
    enum { MAX_CHAIN = 63 };
    const struct node *chain[MAX_CHAIN];
    int n = 0;

    for (const struct node *f = last; f; f = f->a) {
        if (n == MAX_CHAIN) return jv_fail(r, "a block has more than %d filters", MAX_CHAIN);
        chain[n++] = f;
    }
    while (n > 0 && !jv_failed(r)) {
        struct node one = *chain[--n];
        one.a = NULL;
        text = eval_filter(r, act, &one, text);
    }
    return text;
}

/* {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}. */
static enum flow exec_captured(struct render *r, struct activation *act, const struct node *n)
{
    struct jval text;
    enum flow flow;

    enter_frame(r, act, n->frame);
    text = capture_output(r, act, n->list, &flow);
    if (flow == FLOW_ON && n->b) text = filter_text(r, act, n->b, text);
    if (flow == FLOW_ON && !jv_failed(r)) {
        if (n->type == NODE_FILTER_BLOCK) emit_value(r, text);
        else assign_target(r, act, n->a, text);
        if (n->type == NODE_SET_BLOCK && n->exports) export_target(r, act, n->a);
    }
    leave_frame(act, n->frame);
    return flow;
}

/* ---- loops ---- */

struct loop_filter { /* state of the generator behind "for x in xs if test" */
    const struct node *n;
    struct activation *act; /* of the test */
};

/* The next item of a filtered loop: assigns the target in the scope of the test and evaluates it. */
static bool next_filtered(struct render *r, struct jiter *it, struct jval *out)
{
    const struct loop_filter *f = it->extra;

    if (!it->begun) enter_frame(r, f->act, f->n->test_frame);
    it->begun = true;
    while (jiter_source(r, it, out)) {
        assign_target(r, f->act, f->n->d, *out);
        /* The target is only visible to the test here; the body assigns its own. */
        if (jv_truth(r, eval(r, f->act, f->n->c)) && !jv_failed(r)) return true;
    }
    return false;
}

/* The generator for "for x in over if test". */
static struct jval make_filtered(struct render *r, struct activation *act, const struct node *n,
                                 struct jval over)
{
    struct loop_filter *f = jv_alloc(r, sizeof *f);
    struct jval v = jiter_new(r, next_filtered, over, NULL);
    struct activation *test = make_activation(r, n->test_fn, act);

    if (jv_failed(r)) return jv_none();
    *f = (struct loop_filter){ n, test };
    v.iter->extra = f;
    return v;
}

/* Runs the body for each item of `over`. loop is the variable "loop", NULL: the body does not use
 * it. */
static void run_loop(struct render *r, struct activation *act, const struct node *n,
                     struct jval over, struct jloop *loop)
{
    bool none = true;
    enum flow flow = FLOW_ON;
    struct jiter it;
    struct jval v;

    if (n->c) over = make_filtered(r, act, n, over);
    if (jv_failed(r)) return;
    if (loop) jloop_init(r, loop, over);
    else jiter_begin(r, &it, over);
    /* The target is assigned before the frame is entered: its slots are parameters. */
    while (flow != FLOW_BREAK && !jv_failed(r) &&
           (loop ? jloop_next(r, loop, &v) : jiter_next(r, &it, &v))) {
        assign_target(r, act, n->a, v);
        if (loop) *slot_at(act, n->ref) = (struct jval){ .kind = J_LOOP, .loop = loop };
        enter_frame(r, act, n->frame);
        flow = exec_list(r, act, n->list);
        if (flow == FLOW_ON)
            none = false; /* as in jinja2: else runs if break or continue ended every iteration */
        r->at = n->at;
    }
    leave_frame(act, n->frame);
    if (!none || jv_failed(r) || !n->other) return;
    enter_frame(r, act, n->else_frame);
    exec_list(r, act, n->other);
    leave_frame(act, n->else_frame);
}

/* One level of a recursive loop; its output is the result. */
static struct jval run_recursive(struct render *r, struct activation *up, const struct node *n,
                                 struct jval over, int depth)
{
    struct activation *act = make_activation(r, n->fn, up);
    struct jloop *loop = jv_alloc(r, sizeof *loop);
    struct jtext text = { .r = r }, *out = r->out;

    if (!act || !loop || !jv_enter(r)) return over;
    loop->recursive = n;
    loop->act = up;
    loop->depth0 = depth;
    r->out = &text;
    run_loop(r, act, n, over, loop);
    r->out = out;
    jv_leave(r);
    return jtext_done(&text);
}

/* loop(iterable) inside a recursive loop runs the loop again, one level deeper. */
struct jval loop_call(struct render *r, const struct jloop *l, const struct jargs *a)
{
    if (!l->recursive) return jv_fail(r, "the loop must have the 'recursive' marker to be called");
    if (a->n != 1 || a->n_kw)
        return jv_fail(r, "a recursive loop is called with one iterable argument");
    return run_recursive(r, l->act, l->recursive, a->v[0], l->depth0 + 1);
}

/* The iterable is evaluated in the scope around the loop. */
static void exec_for(struct render *r, struct activation *act, const struct node *n)
{
    struct jval over = eval(r, act, n->b);
    struct jloop *loop = NULL;

    if (jv_failed(r)) return;
    r->at = n->at;
    if (n->recursive) {
        emit_value(r, run_recursive(r, act, n, over, 0));
        return;
    }
    if (n->extended && !(loop = jv_alloc(r, sizeof *loop))) return;
    run_loop(r, act, n, over, loop);
}

/* ---- macros ---- */

/* Whether a parameter from the index `from` on has the name. */
static bool is_param(const struct node *n, struct str name, size_t from)
{
    size_t i = 0;

    for (const struct node *p = n->list2; p; p = p->next, i++)
        if (i >= from && str_eq(p->name, name)) return true;
    return false;
}

/* Arguments that no parameter takes go into kwargs and varargs if the macro uses them. */
static void bind_rest(struct render *r, struct activation *act, const struct node *n,
                      const struct jargs *a, size_t n_params)
{
    struct jval rest = jv_dict(r, 0), more;

    for (size_t i = 0; i < a->n_kw; i++) {
        struct str name = a->kw[i].key.s;
        /* Parameters that a positional argument filled do not accept a name as well. */
        if (is_param(n, name, a->n)) continue;
        if (n->caller.slot >= 0 && str_is(name, "caller")) continue;
        if (n->kwargs.slot < 0) {
            jv_fail(r, "macro '%.*s' takes no keyword argument '%.*s'", STR_ARG(n->name),
                    STR_ARG(str_take(name, 60)));
            return;
        }
        jdict_append(r, rest.d, a->kw[i].key, a->kw[i].value);
    }
    if (n->kwargs.slot >= 0) *slot_at(act, n->kwargs) = rest;
    if (n->varargs.slot < 0) {
        if (a->n > n_params)
            jv_fail(r, "macro '%.*s' takes not more than %zu argument(s)", STR_ARG(n->name),
                    n_params);
        return;
    }
    more = jv_tuple(r, 0);
    for (size_t i = n_params; i < a->n; i++) jlist_push(r, more.l, a->v[i]);
    *slot_at(act, n->varargs) = more;
}

/* Stores the arguments of a macro call in its slots. Parameters without an argument stay J_MISSING
 * until their defaults are evaluated. */
static void bind_params(struct render *r, struct activation *act, const struct node *n,
                        const struct jargs *a)
{
    const struct jval *v;
    size_t i = 0;

    for (const struct node *p = n->list2; p; p = p->next, i++) {
        v = i < a->n ? &a->v[i] : jargs_keyword(a, p->name);
        /* Marks a parameter that needs its default. */
        slot_at(act, p->ref)->kind = J_MISSING;
        if (v) *slot_at(act, p->ref) = *v;
    }
    if (n->caller.slot >= 0) {
        v = jargs_keyword(a, STR("caller"));
        *slot_at(act, n->caller) = v && v->kind != J_NONE ? *v : jv_undef(r, "No caller defined");
    }
    bind_rest(r, act, n, a, i);
}

/* Calls a macro: its output is the result. Variables of the place of definition are reached
 * through m->up. */
struct jval macro_call(struct render *r, const struct jmacro *m, const struct jargs *a)
{
    const struct node *n = m->n;
    struct activation *act = make_activation(r, n->fn, m->up);
    struct jval text = jv_none();
    enum flow flow;

    if (!act || !jv_enter(r)) return text;
    bind_params(r, act, n, a);
    enter_frame(r, act, n->frame);
    /* Defaults are evaluated at the call and may use the parameters before them. */
    for (const struct node *p = n->list2; p && !jv_failed(r); p = p->next) {
        struct jval *at = slot_at(act, p->ref);
        if (at->kind != J_MISSING) continue;
        *at = p->a ? eval(r, act, p->a)
                   : jv_undef(r, "parameter '%.*s' was not provided", STR_ARG(p->name));
    }
    if (!jv_failed(r)) text = capture_output(r, act, n->list, &flow);
    jv_leave(r);
    return text;
}

/* A macro value: the node and the variables around it (a closure). */
static struct jval make_macro(struct render *r, struct activation *act, const struct node *n)
{
    struct jmacro *m = jv_alloc(r, sizeof *m);

    if (!m) return jv_none();
    *m = (struct jmacro){ n, act };
    return (struct jval){ .kind = J_MACRO, .macro = m };
}

/* {% macro %}: stores the macro in the variable of its name. */
static void exec_macro(struct render *r, struct activation *act, const struct node *n)
{
    struct jval m = make_macro(r, act, n);

    *slot_at(act, n->ref) = m;
    if (n->exports) jdict_put(r, r->exported, jv_str(n->name), m);
}

/* {% call f(args) %}: calls f with the block as the keyword argument "caller". {% generation %}
 * only marks a part of the conversation for training; here its body is rendered. */
static void exec_call_block(struct render *r, struct activation *act, const struct node *n)
{
    struct jval caller = make_macro(r, act, n), f, dict;
    struct jargs a = { 0 };

    if (!n->a) { /* {% generation %} */
        emit_value(r, value_call(r, caller, &a));
        return;
    }
    f = eval(r, act, n->a->a);
    a = eval_args(r, act, n->a);
    r->at = n->at;
    dict = jv_dict(r, a.n_kw + 1);
    for (size_t i = 0; i < a.n_kw; i++) jdict_append(r, dict.d, a.kw[i].key, a.kw[i].value);
    jdict_append(r, dict.d, jv_str(STR("caller")), caller);
    /* The named arguments with "caller" added. */
    a.kw = dict.d->e;
    a.n_kw = dict.d->n;
    if (!jv_failed(r)) emit_value(r, value_call(r, f, &a));
}

/* ---- statements ---- */

/* if, elif, else: not scopes; variables set inside are visible after it. */
static enum flow exec_if(struct render *r, struct activation *act, const struct node *n)
{
    if (jv_truth(r, eval(r, act, n->a))) return exec_list(r, act, n->list);
    for (const struct node *i = n->list2; i && !jv_failed(r); i = i->next)
        if (jv_truth(r, eval(r, act, i->a))) return exec_list(r, act, i->list);
    return exec_list(r, act, n->other);
}

/* {% with a = 1 %}: values are evaluated in the scope around it. */
static enum flow exec_with(struct render *r, struct activation *act, const struct node *n)
{
    enum flow flow;

    enter_frame(r, act, n->frame);
    for (const struct node *i = n->list2; i && !jv_failed(r); i = i->next)
        assign_target(r, act, i->a, eval(r, act, i->b));
    flow = exec_list(r, act, n->list);
    leave_frame(act, n->frame);
    return flow;
}

/* {% block %}: without inheritance it renders its body in place. Unless it is scoped, it sees no
 * variables of loops around it. */
static enum flow exec_block(struct render *r, struct activation *act, const struct node *n)
{
    enum flow flow;

    if (!n->scoped && !(act = make_activation(r, n->fn, NULL))) return FLOW_ON;
    enter_frame(r, act, n->frame);
    flow = exec_list(r, act, n->list);
    leave_frame(act, n->frame);
    return flow;
}

/* Runs one statement. r->at is where an error in it is reported. */
static enum flow exec_statement(struct render *r, struct activation *act, const struct node *n)
{
    r->at = n->at;
    switch (n->type) {
    case NODE_DATA: emit_value(r, n->value); break;
    case NODE_OUTPUT: emit_value(r, eval(r, act, n->a)); break;
    case NODE_SET: exec_set(r, act, n); break;
    case NODE_IF: return exec_if(r, act, n);
    case NODE_FOR: exec_for(r, act, n); break;
    case NODE_MACRO: exec_macro(r, act, n); break;
    case NODE_CALL_BLOCK: exec_call_block(r, act, n); break;
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK: return exec_captured(r, act, n);
    case NODE_WITH: return exec_with(r, act, n);
    case NODE_BLOCK: return exec_block(r, act, n);
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: break;
    }
    return FLOW_ON;
}

/* Runs statements until one breaks or continues a loop, or the rendering fails. */
static enum flow exec_list(struct render *r, struct activation *act, const struct node *n)
{
    enum flow flow = FLOW_ON;

    if (!n || !jv_enter(r)) return flow;
    for (; n && flow == FLOW_ON && jv_step(r, 1); n = n->next) flow = exec_statement(r, act, n);
    jv_leave(r);
    return flow;
}

/* Runs the whole template; output goes to r->out. */
void eval_template(struct render *r)
{
    const struct node *root = r->t->root;
    struct activation *act = make_activation(r, r->t->fn, NULL);

    if (!act) return;
    enter_frame(r, act, root->frame);
    exec_list(r, act, root->list);
}
