/* regex.h - one pattern of a tokenizer, run by PCRE2.
 *
 * A pattern is checked when it is opened and compiled to machine code when it is first needed; it
 * may be used by any number of threads, each with a matcher of its own. */
#ifndef TERN_TOKEN_REGEX_H
#define TERN_TOKEN_REGEX_H

#include "base/err.h"
#include "base/str.h"

struct regex;
struct matcher;

int regex_open(struct regex **out, struct str pattern, struct err *e); /* Oniguruma's dialect */
void regex_close(struct regex *r);                                     /* NULL is fine */
struct str regex_pattern(const struct regex *r);                       /* as it was given */

struct matcher *matcher_open(void);
void matcher_close(struct matcher *m); /* NULL is fine */

/* A walk over all matches in text (valid UTF-8), left to right, as onig's find_iter walks. */
struct regex_walk {
    const struct regex *r;
    struct matcher *m;
    struct str text;
    size_t from, last_end;
    bool any;
    int rc; /* not OK: the pattern needs more work or memory than we give it */
};
bool regex_next(struct regex_walk *w, size_t *start, size_t *end);
#endif
