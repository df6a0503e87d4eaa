/* value.h - Python values as a template sees them. Inside jinja/ only.
 *
 * Ownership: values live in the arena of one rendering (constants of the source in the arena of the
 * template) and end with it. A struct jval is copied freely; copies share what it points to.
 *
 * Mutability follows jinja2's ImmutableSandboxedEnvironment: lists, tuples and dicts do not change
 * once they are built. Values with state (namespaces, loops, iterators, cyclers) are objects behind
 * a pointer, so all copies see a change.
 *
 * Failure: a rendering keeps its first failure (jv_fail). Functions after it go on with None,
 * undefined or empty values, and every loop looks at jv_step or jv_failed, so the call stack
 * unwinds without a check behind each call. This also holds for allocation: a constructor that
 * finds no memory fails the rendering and returns None. jv_list, jv_tuple and jv_dict return an
 * empty spare container of their kind instead, so `.l` and `.d` of their results are never NULL. */
#ifndef TERN_JINJA_VALUE_H
#define TERN_JINJA_VALUE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum jkind {
    J_MISSING, /* a slot that holds no value; a template never sees it */
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
    J_ITER, /* a generator or an iterator; can be iterated once */
    J_NAMESPACE,
    J_MACRO,
    J_LOOP,
    J_METHOD, /* bound to its object */
    J_FUNC,   /* a global function: range, raise_exception, ... */
    J_CYCLER,
    J_JOINER
};

/* Flags. JV_MARKUP: a str that is safe HTML, Python's Markup. JV_GROUP: a (grouper, list) tuple of
 * the filter groupby, whose items also have names. */
enum { JV_MARKUP = 1, JV_GROUP = 2 };

struct jval {
    uint8_t kind, flags;
    union {
        bool b;
        int64_t i; /* Python's int, limited to 64 bits; overflow is an error */
        double f;
        struct str s;     /* UTF-8; indexes and lengths that templates see count code points */
        struct jlist *l;  /* lists and tuples */
        struct jdict *d;  /* dicts and namespaces */
        struct jundef *u; /* NULL: no error message is known */
        struct jrange *range;
        struct jview *view;
        struct jiter *iter;
        struct jmacro *macro;
        struct jloop *loop;
        struct jmethod *method;
        const struct jfunc *func;
        struct jcycler *cycler; /* cyclers and joiners */
    };
};

struct jlist {
    size_t n, cap;
    struct jval *v;
};

struct jpair {
    struct jval key, value;
};

/* In insertion order. Lookup is linear: the dicts of chat templates are small, and jv_step charges
 * for large ones. */
struct jdict {
    size_t n, cap;
    struct jpair *e;
};

struct jundef {
    struct str what; /* the error message of using this value */
};

struct jrange {
    int64_t start, stop, step;
    size_t n; /* number of items */
};

enum jview_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct jview {
    enum jview_kind kind;
    const struct jdict *d;
};

struct jcycler {
    struct jlist *items; /* at least one; of a joiner: the separator alone */
    size_t at;           /* index of the current item; of a joiner: number of calls */
};

struct render;

/* Evaluated arguments of a call, a filter or a test. Keys of kw are of kind J_STR. */
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

/* ---- constructors ---- */

static inline struct jval jv_none(void) { return (struct jval){ .kind = J_NONE }; }
static inline struct jval jv_missing(void) { return (struct jval){ .kind = J_MISSING }; }
static inline struct jval jv_bool(bool b) { return (struct jval){ .kind = J_BOOL, .b = b }; }
static inline struct jval jv_int(int64_t i) { return (struct jval){ .kind = J_INT, .i = i }; }
static inline struct jval jv_float(double f) { return (struct jval){ .kind = J_FLOAT, .f = f }; }
static inline struct jval jv_str(struct str s) { return (struct jval){ .kind = J_STR, .s = s }; }
static inline struct jval jv_func(const struct jfunc *f)
{
    return (struct jval){ .kind = J_FUNC, .func = f };
}

/* The message is that of the error which using the value is. Always of kind J_UNDEF. */
struct jval jv_undef(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct jval jv_list(struct render *r, size_t cap); /* empty, with room for cap items */
struct jval jv_tuple(struct render *r, size_t cap);
struct jval jv_tuple2(struct render *r, struct jval a, struct jval b); /* empty after a failure */
struct jval jv_dict(struct render *r, size_t cap);
struct jval jv_method(struct render *r, struct jval self, const struct jmethod_def *def);
void jlist_push(struct render *r, struct jlist *l, struct jval v);
/* Python's d[key] = value. A key of an unhashable type fails the rendering. */
void jdict_put(struct render *r, struct jdict *d, struct jval key, struct jval value);
/* The same for a key that is known to be absent: no lookup. */
void jdict_append(struct render *r, struct jdict *d, struct jval key, struct jval value);
const struct jval *jdict_get(struct render *r, const struct jdict *d,
                             struct jval key); /* NULL: absent */
const struct jval *jdict_get_str(const struct jdict *d, struct str key);

/* ---- predicates and comparison, by Python's rules ---- */

static inline bool jv_is_undef(struct jval v) { return v.kind == J_UNDEF; }
static inline bool jv_is_int(struct jval v) { return v.kind == J_INT || v.kind == J_BOOL; }
static inline bool jv_is_num(struct jval v) { return jv_is_int(v) || v.kind == J_FLOAT; }
static inline int64_t jv_as_int(struct jval v) { return v.kind == J_BOOL ? v.b : v.i; }
static inline double jv_as_float(struct jval v)
{
    return v.kind == J_FLOAT ? v.f : (double)jv_as_int(v);
}

const char *jv_type(struct jval v); /* Python's name of the type: "str", "list" */
bool jv_truth(struct render *r, struct jval v);
bool jv_equal(struct render *r, struct jval a, struct jval b);
/* Python's "is", close to CPython's caching of small integers and of strings. */
bool jv_same(struct jval a, struct jval b);
bool jv_hashable(struct jval v);
/* Below 0, 0 or above 0. Types without an order fail the rendering and give 0; `op` is the operator
 * in that message. */
int jv_compare(struct render *r, struct jval a, struct jval b, const char *op);
bool jv_less(struct render *r, struct jval a, struct jval b); /* a < b; false with NaN */
/* len(v); false and a failure: the type has no length. */
bool jv_len(struct render *r, struct jval v, size_t *n);
bool jv_has_len(struct jval v);
bool jv_contains(struct render *r, struct jval in, struct jval what); /* what in in */
bool jv_callable(struct jval v);

/* ---- text ---- */

struct jtext { /* text that grows in the arena of its rendering */
    struct render *r;
    char *p;
    size_t n, cap;
};

void jtext_add(struct jtext *t, struct str s);
void jtext_putc(struct jtext *t, char c);
void jtext_puts(struct jtext *t, const char *s);
void jtext_put_cp(struct jtext *t, int32_t cp);
void jtext_fill(struct jtext *t, struct str s, int64_t times);
/* At most 511 bytes. */
void jtext_printf(struct jtext *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void jtext_put_value(struct jtext *t, struct jval v); /* str(v); "" of an undefined value */
void jtext_put_repr(struct jtext *t, struct jval v);  /* repr(v) */
void jtext_put_float(struct jtext *t, double f);      /* repr(f): the shortest that reads back */
static inline struct jval jtext_done(struct jtext *t)
{
    return jv_str(str_of(t->p ? t->p : "", t->n));
}

struct str jv_text(struct render *r, struct jval v); /* str(v) */
struct str jv_repr(struct render *r, struct jval v);
size_t jstr_len(struct str s); /* in code points */

/* ---- limits and failure of a rendering (jinja.c) ---- */

/* Zeroed memory of the rendering's arena. NULL and a failure: the memory limit of the rendering is
 * reached, or the system has no memory. */
void *jv_alloc(struct render *r, size_t n);
void *jv_array(struct render *r, size_t n, size_t size);
struct str jv_copy_str(struct render *r, struct str s);
/* Whether n bytes more are within the memory limit; false: the rendering fails. */
bool jv_check_room(struct render *r, size_t n);
bool jv_step(struct render *r, size_t n); /* charges n steps; false: it failed, stop */
bool jv_failed(const struct render *r);
bool jv_enter(struct render *r); /* one level deeper; false: too deep or failed. Pairs with: */
void jv_leave(struct render *r);
/* Fails the rendering with a message at the current place of the source. Only the first failure
 * counts. Returns None, so that it can be returned in one line. */
struct jval jv_fail(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The failure of using an undefined value. */
struct jval jv_fail_undef(struct render *r, struct jval v);
#endif
