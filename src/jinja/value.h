/* value.h - Python's values, as templates see them.
 *
 * Values live in the arena of a rendering (constants in the template's) and end with it; copying
 * a jval shares what it points to. Lists and dicts never change once they are built, as the
 * sandbox has it; what changes (namespaces, loops, iterators) is an object behind a pointer.
 *
 * A rendering keeps its first failure: after jv_fail() everything goes on with undefined values
 * until the next look at r->failed. */
#ifndef TERN_JINJA_VALUE_H
#define TERN_JINJA_VALUE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum jkind {
    J_MISSING, /* a slot nothing was put into; never seen by a template */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE,
    J_VIEW, /* dict.keys(), .values(), .items() */
    J_ITER, /* a generator or an iterator: gone through once */
    J_NAMESPACE,
    J_MACRO,
    J_LOOP,
    J_METHOD, /* of a value: bound */
    J_FUNC,   /* of tern: range, raise_exception, ... */
    J_CYCLER,
    J_JOINER
};

enum { JV_MARKUP = 1, JV_GROUP = 2 }; /* flags: a str that is safe; a tuple of groupby */

struct jval {
    uint8_t kind, flags;
    union {
        bool b;
        int64_t i;
        double f;
        struct str s;
        struct jlist *l;  /* also of tuples */
        struct jdict *d;  /* also of namespaces */
        struct jundef *u; /* NULL: nothing is known about it */
        struct jrange *range;
        struct jview *view;
        struct jiter *iter;
        struct jmacro *macro;
        struct jloop *loop;
        struct jmethod *method;
        const struct jfunc *func;
        struct jcycler *cycler;
    };
};

struct jlist {
    size_t n, cap;
    struct jval *v;
};

struct jpair {
    struct jval key, value;
};

struct jdict { /* in order of insertion */
    size_t n, cap;
    struct jpair *e;
};

struct jundef {
    struct str what; /* the sentence of the error */
};

struct jrange {
    int64_t start, stop, step;
    size_t n;
};

enum jview_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct jview {
    enum jview_kind kind;
    const struct jdict *d;
};

struct jcycler {
    struct jlist *items; /* of a joiner: the separator */
    size_t at;
};

struct render;

/* What a call brings: positional and named arguments. */
struct jargs {
    struct jval *v;
    size_t n;
    struct jpair *kw;
    size_t n_kw;
};

struct jfunc {
    const char *name;
    struct jval (*call)(struct render *r, const struct jargs *a);
};

struct jmethod {
    struct jval self;
    const struct jmethod_def *def;
};

struct jmethod_def {
    const char *name;
    struct jval (*call)(struct render *r, struct jval self, const struct jargs *a);
};

/* ---- making them ---- */

static inline struct jval jv_none(void) { return (struct jval){ .kind = J_NONE }; }
static inline struct jval jv_bool(bool b) { return (struct jval){ .kind = J_BOOL, .b = b }; }
static inline struct jval jv_int(int64_t i) { return (struct jval){ .kind = J_INT, .i = i }; }
static inline struct jval jv_float(double f) { return (struct jval){ .kind = J_FLOAT, .f = f }; }
static inline struct jval jv_str(struct str s) { return (struct jval){ .kind = J_STR, .s = s }; }
static inline struct jval jv_func(const struct jfunc *f)
{
    return (struct jval){ .kind = J_FUNC, .func = f };
}

struct jval jv_undef(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct jval jv_list(struct render *r, size_t cap); /* empty, with room for cap */
struct jval jv_tuple(struct render *r, size_t cap);
struct jval jv_tuple2(struct render *r, struct jval a, struct jval b);
struct jval jv_dict(struct render *r, size_t cap);
void jlist_push(struct render *r, struct jlist *l, struct jval v);
/* Python's d[key] = value; a key that cannot be one fails. */
void jdict_put(struct render *r, struct jdict *d, struct jval key, struct jval value);
void jdict_append(struct render *r, struct jdict *d, struct jval key,
                  struct jval value); /* known to be new */
const struct jval *jdict_get(struct render *r, const struct jdict *d,
                             struct jval key); /* NULL: not there */
const struct jval *jdict_get_str(const struct jdict *d, struct str key);

/* ---- asking them ---- */

static inline bool jv_is_undef(struct jval v) { return v.kind == J_UNDEF; }
static inline bool jv_is_int(struct jval v) { return v.kind == J_INT || v.kind == J_BOOL; }
static inline bool jv_is_num(struct jval v) { return jv_is_int(v) || v.kind == J_FLOAT; }
static inline int64_t jv_as_int(struct jval v) { return v.kind == J_BOOL ? v.b : v.i; }
static inline double jv_as_float(struct jval v)
{
    return v.kind == J_FLOAT ? v.f : (double)jv_as_int(v);
}

const char *jv_type(struct jval v); /* "str", "list", as Python names it */
bool jv_truth(struct render *r, struct jval v);
bool jv_equal(struct render *r, struct jval a, struct jval b);
bool jv_same(struct jval a, struct jval b); /* Python's "is", as near as it makes sense */
bool jv_hashable(struct jval v);
/* Below 0, 0, above 0; what has no order fails and gives 0. `op` is named in the failure. */
int jv_compare(struct render *r, struct jval a, struct jval b, const char *op);
/* a < b, with Python's rules for NaN. */
bool jv_less(struct render *r, struct jval a, struct jval b);
/* len(): false and a failure where it has none. */
bool jv_len(struct render *r, struct jval v, size_t *n);
bool jv_has_len(struct jval v);
bool jv_contains(struct render *r, struct jval in, struct jval what);
bool jv_callable(struct jval v);

/* ---- texts of them ---- */

struct jtext { /* text that grows in the rendering's arena */
    struct render *r;
    char *p;
    size_t n, cap;
};

void jtext_add(struct jtext *t, struct str s);
void jtext_putc(struct jtext *t, char c);
void jtext_puts(struct jtext *t, const char *s);
void jtext_put_cp(struct jtext *t, int32_t cp);
void jtext_fill(struct jtext *t, struct str s, int64_t times);
void jtext_printf(struct jtext *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void jtext_put_value(struct jtext *t, struct jval v); /* str() of it */
void jtext_put_repr(struct jtext *t, struct jval v);
void jtext_put_float(struct jtext *t, double f); /* as repr() does */
static inline struct jval jtext_done(struct jtext *t)
{
    return jv_str(str_of(t->p ? t->p : "", t->n));
}

struct str jv_text(struct render *r, struct jval v); /* str(): "" of undefined */
struct str jv_repr(struct render *r, struct jval v);
size_t jstr_len(struct str s); /* in code points */

/* ---- a rendering, as values see it ---- */

void *jv_alloc(struct render *r, size_t n); /* small: never NULL */
bool jv_room(struct render *r, size_t n);   /* false and a failure: not so much */
bool jv_step(struct render *r, size_t n);   /* n steps more; false: it failed, stop */
bool jv_failed(const struct render *r);
bool jv_enter(struct render *r); /* a level deeper; false: too deep */
void jv_leave(struct render *r);
struct jval jv_fail(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The failure that using an undefined value is. */
struct jval jv_fail_undef(struct render *r, struct jval v);
#endif
