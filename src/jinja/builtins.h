/* builtins.h - what templates find there: operators, attributes and methods, filters, tests,
 * functions. Inside jinja/ only. */
#ifndef TERN_JINJA_BUILTINS_H
#define TERN_JINJA_BUILTINS_H

#include "jinja/value.h"

#include <jansson.h>

struct jfilter {
    const char *name;
    struct jval (*call)(struct render *r, struct jval v, const struct jargs *a);
};

const struct jfilter *filter_find(struct str name); /* NULL: there is none */
const struct jfilter *test_find(struct str name);
const struct jfunc *global_find(struct str name);
bool test_true(struct render *r, const struct jfilter *test, struct jval v, const struct jargs *a);

/* The groups that filter_find looks through; each table ends with a NULL name. */
extern const struct jfilter filters_seq[], filters_text[], filters_misc[];

/* ---- arguments ---- */

/* out[i] is the argument names[i], by place or by name; J_MISSING: not given. names ends with NULL.
 * Too many, unknown or missing ones (of the first n_required) fail: false. */
bool jargs_take(struct render *r, const struct jargs *a, const char *what, const char *const *names,
                size_t n_required, struct jval *out);
static inline bool jv_given(struct jval v) { return v.kind != J_MISSING; }
/* None stands for not given. */
static inline bool jv_some(struct jval v) { return v.kind != J_MISSING && v.kind != J_NONE; }
/* An integer argument; `otherwise` where it is not given. False and a failure: it is none. */
bool jarg_int(struct render *r, struct jval v, int64_t otherwise, int64_t *out);

/* ---- operators ---- */

struct jval op_binary(struct render *r, const char *op, struct jval a, struct jval b);
struct jval op_unary(struct render *r, char op, struct jval a);
struct jval op_add(struct render *r, struct jval a, struct jval b);
bool op_compare(struct render *r, const char *op, struct jval a, struct jval b);

/* ---- attributes, items, slices, calls ---- */

struct jval attr_get(struct render *r, struct jval of, struct str name);  /* of.name */
struct jval attr_item(struct render *r, struct jval of, struct jval key); /* of[key] */
struct jval attr_slice(struct render *r, struct jval of, struct jval from, struct jval to,
                       struct jval step);
struct jval attr_only(struct render *r, struct jval of, struct str name); /* getattr(), no items */
struct jval value_call(struct render *r, struct jval f, const struct jargs *a);
/* "a.b.0": what map and its like take for an attribute. */
struct jval attr_path(struct render *r, struct jval of, struct jval path, struct jval otherwise);

extern const struct jmethod_def str_methods[], str_case_methods[], str_split_methods[];

/* ---- texts ---- */

struct jval text_escape(struct render *r, struct jval v); /* HTML: gives Markup */
struct str text_strip(struct str s, const struct jval *chars, bool left, bool right);
struct jval text_upper(struct render *r, struct str s);
struct jval text_lower(struct render *r, struct str s);
struct jval text_capitalize(struct render *r, struct str s);
struct jval text_replace(struct render *r, struct str s, struct str old, struct str with,
                         int64_t max);
struct jval text_splitlines(struct render *r, struct str s, bool keep);
struct jval text_center(struct render *r, struct str s, int64_t width, struct str fill);
/* Bytes of the first n code points. */
size_t text_offset(struct str s, size_t n);

struct jval format_percent(struct render *r, struct str fmt, struct jval args,
                           bool markup); /* fmt % args */
struct jval format_braces(struct render *r, struct str fmt, const struct jargs *a,
                          struct jval map);                               /* fmt.format() */
void format_number_spec(struct jtext *t, struct jval v, struct str spec); /* format(v, spec) */

/* json.dumps, as transformers' tojson calls it. */
struct jval json_dump(struct render *r, struct jval v, const struct jargs *a);
struct jval json_load(struct render *r, const json_t *j);

/* str → int, as int(s, base) reads it; false: it does not. */
bool text_to_int(struct str s, int base, int64_t *out);
bool text_to_float(struct str s, double *out);
#endif
