/* str.h - borrowed text: a pointer and a length, not owned, not NUL-terminated. */
#ifndef TERN_BASE_STR_H
#define TERN_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct str {
    const char *p;
    size_t n;
};

#define STR(lit) ((struct str){ "" lit, sizeof(lit) - 1 })
#define STR_ARG(s) (int)(s).n, (s).p /* for "%.*s" */

static inline struct str str_of(const char *p, size_t n) { return (struct str){ p, n }; }
static inline struct str str_c(const char *s) { return (struct str){ s, s ? strlen(s) : 0 }; }

static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}
static inline bool str_is(struct str a, const char *b) { return str_eq(a, str_c(b)); }
static inline bool str_starts(struct str a, struct str with)
{
    return a.n >= with.n && (with.n == 0 || memcmp(a.p, with.p, with.n) == 0);
}
static inline bool str_ends(struct str a, struct str with)
{
    return a.n >= with.n && (with.n == 0 || memcmp(a.p + a.n - with.n, with.p, with.n) == 0);
}
static inline struct str str_skip(struct str a, size_t n)
{
    return n > a.n ? str_of(a.p + a.n, 0) : str_of(a.p + n, a.n - n);
}
static inline struct str str_take(struct str a, size_t n) { return str_of(a.p, n < a.n ? n : a.n); }

/* At most so many values are in this JSON: what its tree will take can be bounded before it is
 * read. */
size_t str_json_parts(struct str json);

/* Offset of the first occurrence, or -1. */
ptrdiff_t str_find(struct str in, struct str what);
struct str str_trim(struct str s); /* ASCII white space off both ends */

/* Whole string as a number: false if it is not one or does not fit. */
bool str_to_i64(struct str s, int64_t *out);
bool str_to_f64(struct str s, double *out);
#endif
