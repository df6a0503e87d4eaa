/* render.h - one rendering: its memory, its bounds, its first failure. Of one thread; inside jinja/
 * only. */
#ifndef TERN_JINJA_RENDER_H
#define TERN_JINJA_RENDER_H

#include "jinja/ast.h"
#include "jinja/iter.h"
#include "jinja/jinja.h"
#include "jinja/value.h"

#include <time.h>

#define JINJA_MAX_DEPTH 1200 /* of expressions, calls and values inside each other */

struct jinja {
    struct arena arena;
    char *name;
    struct str source; /* newlines made one kind of, the last one off */
    struct node *root; /* NODE_TEMPLATE */
    struct frame_fn *fn;
    struct str *asked; /* names the caller is asked for */
    size_t n_asked;
};

/* What a function of the template runs on: its variables, and those of the one around it. */
struct activation {
    struct activation *up;
    struct jval v[];
};

struct render {
    const struct jinja *t;
    struct arena arena;
    uint64_t steps_left;
    size_t max_bytes, max_output;
    int depth;
    bool failed;
    struct err *e;
    uint32_t at;            /* in the source: what is being done */
    struct jdict *vars;     /* of the caller, then the globals */
    struct jdict *exported; /* set at the top of the template: what blocks see */
    struct jtext *out;
    struct tm now;
    uint64_t dice;
};

struct jmacro {
    const struct node *n;  /* NODE_MACRO or NODE_CALL_BLOCK */
    struct activation *up; /* where it was written */
};

static inline const struct node *jmacro_node(const struct jmacro *m) { return m->n; }
static inline struct str jmacro_name(const struct jmacro *m) { return m->n->name; }

/* ---- eval.c and expr.c ---- */

struct jval eval(struct render *r, struct activation *act, const struct node *n);
/* The arguments of a call, a filter or a test. */
struct jargs eval_args(struct render *r, struct activation *act, const struct node *n);
struct jval eval_filter(struct render *r, struct activation *act, const struct node *n,
                        struct jval over);
struct jval macro_call(struct render *r, const struct jmacro *m, const struct jargs *a);
struct jval loop_call(struct render *r, const struct jloop *l, const struct jargs *a);
void eval_template(struct render *r);
static inline struct jval *slot_at(struct activation *act, struct ref ref)
{
    for (int up = ref.up; up > 0; up--) act = act->up;
    return &act->v[ref.slot];
}

/* Line and column, from 1, of a place in the source. */
void jinja_place(struct str source, uint32_t at, int *line, int *column);
#endif
