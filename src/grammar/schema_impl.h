/* schema_impl.h - a schema on its way to rules; seen by schema*.c only. */
#ifndef TERN_GRAMMAR_SCHEMA_IMPL_H
#define TERN_GRAMMAR_SCHEMA_IMPL_H

#include "base/buf.h"
#include "grammar/fsm.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"

enum {
    T_NULL = 1,
    T_BOOL = 2,
    T_OBJECT = 4,
    T_ARRAY = 8,
    T_STRING = 16,
    T_INTEGER = 32,
    T_NUMBER = 64,
    T_ALL = 127
};

#define PARTS_MAX 24

/* A schema and where it stands. */
struct part {
    const json_t *s;
    const char *path;
};

/* Schemas that all have to hold. */
struct parts {
    struct part p[PARTS_MAX];
    int n;
};

struct schema_work {
    struct parts parts;
    int rule;
};

struct schema {
    struct grules *g;
    const json_t *root;
    struct err *e;
    int rc;
    struct map rules;         /* addresses of schemas → rule */
    struct map strings;       /* "min max" → rule */
    struct schema_work *work; /* rules without a body yet */
    int n_work, cap_work;
    int any, string, chars, number, integer,
        space; /* rules every schema shares; -1: not made yet */
    int n_alternatives;
    enum pattern_as as; /* how strings are written now */
    bool python;        /* True, False, None */
    json_t *made;       /* schemas that nobody wrote, kept until the end */
    struct fsm_env env;
};

/* "path: sentence", once; returns E_INVALID. */
int schema_bad(struct schema *x, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *schema_path(struct schema *x, const char *path,
                        const char *key); /* path/key, in the arena */
/* Adds s unless it is true; false: there is no room (x has the error). */
bool parts_add(struct schema *x, struct parts *p, const json_t *s, const char *path);

/* The body of a rule for what keeps to all parts; of one without references and alternatives. */
struct gnode *schema_body(struct schema *x, const struct parts *p);
struct gnode *schema_conjunction(struct schema *x, const struct parts *p);
/* A value that keeps to all parts: a call of its rule. */
struct gnode *schema_value(struct schema *x, const struct parts *p);
void schema_init(struct schema *x, struct grules *g, const json_t *root, struct err *e);
void schema_finish(struct schema *x); /* the bodies of all rules that were spoken of */
void schema_release(struct schema *x);
struct gnode *schema_space(struct schema *x); /* none or one */
struct gnode *schema_chars(struct schema *x); /* one character of a JSON string */
struct gnode *schema_any_string(struct schema *x);
/* The literal JSON of a value; NULL: it is nested too deep. */
struct gnode *schema_literal(struct schema *x, const json_t *v);
/* A machine for a tree without rules; false: x has the error. */
bool schema_fsm(struct schema *x, const struct gnode *n, const char *path, struct fsm *out);
/* The keyword of a part as a count, or `none`. */
int schema_count(struct schema *x, const struct part *p, const char *key, int none);

struct gnode *schema_string(struct schema *x, const struct parts *p);
/* The inside of the string, as a machine; false: any string. Errors are in x. */
bool schema_string_fsm(struct schema *x, const struct parts *p, struct fsm *out);
struct gnode *schema_number(struct schema *x, const struct parts *p, bool integer);
struct gnode *schema_object(struct schema *x, const struct parts *p);
struct gnode *schema_array(struct schema *x, const struct parts *p);
struct gnode *schema_format(struct schema *x, const char *path,
                            struct str name); /* NULL: says nothing */

const json_t *schema_resolve(struct schema *x,
                             const struct part *p); /* of "$ref"; NULL: x has the error */
const json_t *schema_see_through(struct schema *x,
                                 const json_t *s); /* what it stands for, if it is only a "$ref" */
bool schema_is_only_ref(const json_t *s);          /* there is nothing in it but a "$ref" */
unsigned schema_types(struct schema *x, const struct part *p); /* of "type"; T_ALL if it has none */
/* Every value that is made for `a` is refused by b; false: not certain. */
bool schema_apart(struct schema *x, const json_t *a, const json_t *b, int depth);
/* Does the value keep to what a part says of type, bounds, lengths and values? */
bool schema_admits(struct schema *x, const struct part *p, const json_t *v);
bool schema_admits_own(struct schema *x, const struct part *p,
                       const json_t *v); /* v is of its enum or const */
#endif
