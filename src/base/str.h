/* str.h - borrowed text: a pointer and a length, not owned, not NUL-terminated.
 *
 * A struct str is passed by value and is valid as long as the memory it points into. It may hold
 * NUL bytes. An empty one may have p NULL. */
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

/* A string literal as a struct str; the "" refuses anything else at compile time. */
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
/* str_skip: without the first n bytes; str_take: the first n bytes. Both stop at the end of a. */
static inline struct str str_skip(struct str a, size_t n)
{
    return n > a.n ? str_of(a.p + a.n, 0) : str_of(a.p + n, a.n - n);
}
static inline struct str str_take(struct str a, size_t n) { return str_of(a.p, n < a.n ? n : a.n); }

/* An upper bound of the number of values in a JSON text, in one pass without parsing. Readers of
 * untrusted JSON compare it with a limit first, because a parsed tree takes far more memory than
 * its text. */
size_t str_json_parts(struct str json);

/* Offset of the first occurrence of `what`, or -1; an empty `what` is at 0. */
ptrdiff_t str_find(struct str in, struct str what);
struct str str_trim(struct str s); /* without ASCII white space at both ends */

/* Edits (insert, delete, replace, swap two neighbours) that make one word the other: the optimal
 * string alignment distance. 99 where a word has more than 40 bytes. */
int str_distance(struct str a, struct str b);
/* Is `word` probably a mistyped `name`: less than 4 edits, and less than half of the word? *least: the
 * fewest edits found so far, at first 4; a nearer name lowers it. */
bool str_is_nearer(struct str word, struct str name, int *least);

/* Parses the whole string as a decimal integer or a finite real number. false: anything else, or
 * out of range; *out is unchanged. */
bool str_to_i64(struct str s, int64_t *out);
bool str_to_f64(struct str s, double *out);
#endif
