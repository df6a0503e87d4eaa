/* render.h - the state of one rendering: variables, memory, limits, the first failure.
 *
 * A rendering belongs to one thread. The template it reads (struct jinja) is immutable and shared.
 * Inside jinja/ only. */
#ifndef TERN_JINJA_RENDER_H
#define TERN_JINJA_RENDER_H

#include "base/budget.h"
#include "jinja/ast.h"
#include "jinja/iter.h"
#include "jinja/jinja.h"
#include "jinja/value.h"

#include <time.h>

/* Nesting of expressions, calls and values. Each level takes a few hundred bytes of C stack, so the
 * deepest rendering fits well into the stack of any thread. */
#define JINJA_MAX_DEPTH 1200

struct jinja {
    struct arena arena;
    char *name;             /* in error messages */
    struct str source;      /* normalized: newlines are "\n", a final one is dropped */
    struct node *root;      /* NODE_TEMPLATE */
    struct frame_fn *fn;    /* slots of the top level */
    struct str *free_names; /* variables that the caller provides */
    size_t n_free_names;
};

/* The variables of one call of a function of the template (see struct frame_fn). */
struct activation {
    struct activation *up; /* of the enclosing function; NULL: the top */
    struct jval v[];       /* [n_slots] */
};

struct render {
    const struct jinja *t;
    struct arena arena;   /* all values; released when the rendering ends */
    struct budget budget; /* steps, bytes of the arena, and who may cancel */
    size_t max_output;    /* bytes of the text */
    bool change_lists;    /* of jinja_limits */
    int depth;            /* of jv_enter */
    bool failed;
    struct err *e;           /* the first failure; never NULL */
    uint32_t at;             /* offset in the source of what is being evaluated */
    struct jdict *vars;      /* variables of the caller */
    struct jdict *exported;  /* variables set at the top level: blocks see them */
    struct jtext *out;       /* where output goes: the result, or what is being captured */
    struct tm now;           /* what strftime_now() formats */
    uint64_t random_state;   /* of the filter random: a linear congruential generator */
    struct jlist spare_list; /* results of constructors after a failed allocation; stay empty */
    struct jdict spare_dict;
};

struct jmacro {
    const struct node *n;  /* NODE_MACRO or NODE_CALL_BLOCK */
    struct activation *up; /* variables of the place of its definition */
};

static inline const struct node *jmacro_node(const struct jmacro *m) { return m->n; }
static inline struct str jmacro_name(const struct jmacro *m) { return m->n->name; }

/* ---- expr.c ---- */

struct jval eval(struct render *r, struct activation *act, const struct node *n);
/* The arguments of the call, filter or test n. */
struct jargs eval_args(struct render *r, struct activation *act, const struct node *n);
/* Applies the filter n to its operand n->a, or to `input` where that is NULL (filter blocks). */
struct jval eval_filter(struct render *r, struct activation *act, const struct node *n,
                        struct jval input);

/* ---- eval.c ---- */

struct jval macro_call(struct render *r, const struct jmacro *m, const struct jargs *a);
struct jval loop_call(struct render *r, const struct jloop *l, const struct jargs *a);
void eval_template(struct render *r);

static inline struct jval *slot_at(struct activation *act, struct ref ref)
{
    for (int up = ref.up; up > 0; up--) act = act->up;
    return &act->v[ref.slot];
}
#endif
