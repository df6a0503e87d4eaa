/* schema_impl.h - the state of a schema that is turned into rules; included by schema*.c only.
 *
 * The way of a schema: schema_make_ref gives every subschema (or conjunction of several) a rule
 * and puts it into a work list, so that recursive schemas become recursive rules. schema_finish
 * makes the bodies: schema_make_body follows $ref, allOf, anyOf and oneOf until there are only
 * conjunctions of plain keywords, and schema_make_conjunction makes a node of each: values of enum
 * and const, or one alternative for each type.
 *
 * The first error is kept in `rc`. From then on functions return some node or value that nobody
 * uses. */
#ifndef TERN_GRAMMAR_SCHEMA_IMPL_H
#define TERN_GRAMMAR_SCHEMA_IMPL_H

#include "base/buf.h"
#include "grammar/dfa.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"

/* A set of JSON types. An integer is a number too. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOL = 2,
    TYPE_OBJECT = 4,
    TYPE_ARRAY = 8,
    TYPE_STRING = 16,
    TYPE_INTEGER = 32,
    TYPE_NUMBER = 64,
    TYPE_ALL = 127
};

#define CONJUNCTION_MAX 24

/* A schema and its place, for errors. Both are borrowed. */
struct subschema {
    const json_t *s;
    const char *path; /* "#/properties/a"; in the arena of the rules, or a literal */
};

/* Schemas that all have to accept a value. An empty one accepts every value. */
struct conjunction {
    struct subschema p[CONJUNCTION_MAX];
    int n;
};

/* A rule whose body is not made yet. */
struct schema_work {
    struct conjunction parts;
    int rule;
};

struct schema_build {
    struct rules *g;
    const json_t *root; /* references (#/...) begin there */
    struct err *e;
    int rc;
    struct map rules;   /* addresses of the schemas of a conjunction → rule */
    struct map strings; /* "min max" → rule of strings with these lengths */
    struct schema_work *work;
    int n_work, cap_work;
    int any, string, number, integer; /* rules that all schemas share; -1: not made yet */
    int n_alternatives;               /* made by anyOf, oneOf and allOf so far */
    int n_choices;                    /* nested around the one that is expanded */
    enum pattern_as as;               /* how strings are written */
    bool python;                      /* True, False, None */
    json_t *made;                     /* an array that owns derived schemas until the end */
    struct dfa_env env;
};

void schema_init(struct schema_build *x, struct rules *g, const json_t *root, struct err *e);
void schema_finish(struct schema_build *x); /* makes the bodies of all rules in the work list */
void schema_release(struct schema_build *x);

/* ---- errors ---- */

/* E_INVALID "path: message", unless there is an error already. Returns x->rc. */
int schema_fail(struct schema_build *x, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* An error of another module: E_NOMEM stays E_NOMEM, others are E_INVALID "path: what message". */
int schema_fail_with(struct schema_build *x, const char *path, const char *what,
                     const struct err *e);
/* E_NOMEM, or the error of the budget, unless there is an error already */
int schema_nomem(struct schema_build *x);
/* Counts steps that make no node. false: x has an error. */
bool schema_step(struct schema_build *x, size_t n);

/* path/key, in the arena. */
const char *schema_extend_path(struct schema_build *x, const char *path, const char *key);
/* Adds s, unless it is `true` or there already. */
void conjunction_add(struct schema_build *x, struct conjunction *p, const json_t *s,
                     const char *path);

/* ---- nodes ---- */

/* A reference to the rule of the values that all parts accept. */
struct rule_node *schema_make_ref(struct schema_build *x, const struct conjunction *p);
/* The body of that rule. */
struct rule_node *schema_make_body(struct schema_build *x, const struct conjunction *p);
/* The same for parts without references and alternatives. */
struct rule_node *schema_make_conjunction(struct schema_build *x, const struct conjunction *p);
struct rule_node *schema_make_space(struct schema_build *x); /* none or one */
struct rule_node *schema_make_char(struct schema_build *x);  /* a character inside of JSON "" */
struct rule_node *schema_make_any_string(struct schema_build *x);
/* The JSON text of a value. NULL: it is nested too deep. */
struct rule_node *schema_make_literal(struct schema_build *x, const json_t *v);

struct rule_node *schema_make_string(struct schema_build *x, const struct conjunction *p);
struct rule_node *schema_make_number(struct schema_build *x, const struct conjunction *p,
                                     bool integer);
struct rule_node *schema_make_object(struct schema_build *x, const struct conjunction *p);
struct rule_node *schema_make_array(struct schema_build *x, const struct conjunction *p);

/* ---- automata ---- */

/* The DFA of a tree without references. false: x has the error. */
bool schema_build_dfa(struct schema_build *x, const struct rule_node *n, const char *path,
                      struct dfa *out);
/* Replaces *io by its combination with y. false: x has the error, and *io is unchanged. */
bool schema_combine_dfa(struct schema_build *x, struct dfa *io, const struct dfa *y, enum dfa_op op,
                        const char *path);
/* Replaces *io by its intersection with the DFA of a tree, trimmed. */
bool schema_intersect_dfa(struct schema_build *x, struct dfa *io, const struct rule_node *with,
                          const char *path);
/* The inside of the strings that all parts accept. false: any string, or x has an error. */
bool schema_build_string_dfa(struct schema_build *x, const struct conjunction *p, struct dfa *out);

/* ---- what schemas say ---- */

/* Bounds of a number of characters, items or properties. */
struct count_bounds {
    int min, max; /* max may be RULES_UNBOUNDED */
};
/* The bounds that all parts set with two keywords, and not below `min`. */
struct count_bounds schema_read_bounds(struct schema_build *x, const struct conjunction *p,
                                       const char *min_key, const char *max_key, int min);
/* Is there no count within the bounds? */
static inline bool schema_bounds_empty(const struct count_bounds *b)
{
    return b->max != RULES_UNBOUNDED && b->max < b->min;
}
/* The value of a keyword as an integer of 0 or more; `none` if it is absent. */
int schema_read_count(struct schema_build *x, const struct subschema *p, const char *key, int none);
unsigned schema_read_types(struct schema_build *x,
                           const struct subschema *p); /* TYPE_ALL: no "type" */
/* The target of "$ref". NULL: x has the error. */
const json_t *schema_resolve(struct schema_build *x, const struct subschema *p);
/* The target of a schema that is nothing but a "$ref"; else the schema. */
const json_t *schema_follow_refs(struct schema_build *x, const json_t *s);
bool schema_is_annotation(const char *key); /* a keyword that constrains nothing */
bool schema_is_only_ref(const json_t *s);   /* apart from annotations */
/* Does b refuse every value that is generated for a? false: that is not certain. */
bool schema_are_disjoint(struct schema_build *x, const json_t *a, const json_t *b, int depth);
/* Does the part accept the value, as far as its own keywords say? */
bool schema_accepts(struct schema_build *x, const struct subschema *p, const json_t *v);
/* The same for a value of the part's own enum or const. */
bool schema_accepts_listed(struct schema_build *x, const struct subschema *p, const json_t *v);
#endif
