/* builtins.h - what templates can use without defining it: operators, attributes and methods,
 * filters, tests and global functions. Inside jinja/ only.
 *
 * All follow Python 3.11 and jinja2 3.1; error messages are Python's where Python has one. */
#ifndef TERN_JINJA_BUILTINS_H
#define TERN_JINJA_BUILTINS_H

#include "jinja/value.h"

#include <jansson.h>

struct jfilter { /* also tests: their result is used as a truth value */
    const char *name;
    struct jval (*call)(struct render *r, struct jval v, const struct jargs *a);
};

const struct jfilter *filter_find(struct str name); /* NULL: there is none */
const struct jfilter *test_find(struct str name);
const struct jfunc *global_find(struct str name);
bool test_true(struct render *r, const struct jfilter *test, struct jval v, const struct jargs *a);

/* The tables that filter_find searches; each ends with a NULL name. */
extern const struct jfilter filters_seq[], filters_text[], filters_misc[];

/* ---- arguments ---- */

/* Binds arguments to parameters: out[i] is the argument for names[i], positional or named, or
 * J_MISSING. names ends with NULL. Too many arguments, unknown names, or one of the first
 * n_required missing fail the rendering: false. `what` is the callee in these messages. */
bool jargs_bind(struct render *r, const struct jargs *a, const char *what, const char *const *names,
                size_t n_required, struct jval *out);
const struct jval *jargs_keyword(const struct jargs *a, struct str name); /* NULL: not given */
static inline bool jv_given(struct jval v) { return v.kind != J_MISSING; }
/* Given and not None: for parameters whose default is None. */
static inline bool jv_some(struct jval v) { return v.kind != J_MISSING && v.kind != J_NONE; }
/* An integer argument; `fallback` where it is not given. False and a failure: another type. */
bool jarg_int(struct render *r, struct jval v, int64_t fallback, int64_t *out);

/* ---- operators (ops.c) ---- */

struct jval op_binary(struct render *r, const char *op, struct jval a, struct jval b);
struct jval op_unary(struct render *r, char op, struct jval a);
struct jval op_add(struct render *r, struct jval a, struct jval b);
/* "==", "<", ..., "in", "!in" (not in). */
bool op_compare(struct render *r, const char *op, struct jval a, struct jval b);

/* ---- attributes, items, slices (attr.c), calls (expr.c) ---- */

/* of.name: an attribute, else an item of that key. */
struct jval attr_get(struct render *r, struct jval of, struct str name);
/* of[key]: an item, else an attribute of that name. */
struct jval attr_item(struct render *r, struct jval of, struct jval key);
struct jval attr_slice(struct render *r, struct jval of, struct jval from, struct jval to,
                       struct jval step);
/* getattr(of, name): no items, as the filter attr. */
struct jval attr_only(struct render *r, struct jval of, struct str name);
struct jval value_call(struct render *r, struct jval f, const struct jargs *a);
/* The value at a path like "a.b.0": the parameter `attribute` of map, sort and others. An undefined
 * step becomes `fallback` if that is given. */
struct jval attr_path(struct render *r, struct jval of, struct jval path, struct jval fallback);

/* Methods of str, searched in this order; each table ends with a NULL name. */
extern const struct jmethod_def str_methods[], str_case_methods[], str_split_methods[];

/* ---- text ---- */

struct jval text_escape(struct render *r, struct jval v); /* HTML; the result is Markup */
/* str.strip(); chars NULL or None: white space. A part of s. */
struct str text_strip(struct str s, const struct jval *chars, bool left, bool right);
struct jval text_upper(struct render *r, struct str s);
struct jval text_lower(struct render *r, struct str s);
struct jval text_capitalize(struct render *r, struct str s);
/* At most max replacements; -1: all. */
struct jval text_replace(struct render *r, struct str s, struct str old, struct str with,
                         int64_t max);
struct jval text_splitlines(struct render *r, struct str s, bool keep_ends);
struct jval text_center(struct render *r, struct str s, int64_t width, struct str fill);
size_t text_offset(struct str s, size_t n);               /* bytes of the first n code points */
ptrdiff_t text_find_last(struct str in, struct str what); /* byte offset; -1: not in there */
/* int(s, base) and float(s); false: Python would raise ValueError, or 64 bits overflow. */
bool text_to_int(struct str s, int base, int64_t *out);
bool text_to_float(struct str s, double *out);

/* ---- formatting (format.c) ---- */

struct jval format_percent(struct render *r, struct str fmt, struct jval args,
                           bool markup); /* fmt % args */
/* fmt.format(*a); map: of format_map(), else None. */
struct jval format_braces(struct render *r, struct str fmt, const struct jargs *a, struct jval map);
void format_spec(struct jtext *t, struct jval v, struct str spec); /* format(v, spec) */

/* ---- JSON (json.c) ---- */

/* The filter tojson: json.dumps as transformers calls it. */
struct jval json_dump(struct render *r, struct jval v, const struct jargs *a);
/* A value of the caller. Strings are shared with j, which must outlive the rendering. */
struct jval json_load(struct render *r, const json_t *j);
#endif
