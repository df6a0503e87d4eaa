/* regex.h - one pattern of a tokenizer, run by PCRE2.
 *
 * A pattern is checked when it is opened and compiled to machine code when it is first needed; it
 * may be used by any number of threads, each with a matcher of its own. */
#ifndef TERN_TOKEN_REGEX_H
#define TERN_TOKEN_REGEX_H

#include "base/buf.h"
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

/* onig.h - patterns as tokenizer.json writes them, in the words of PCRE2.
 *
 * The dialect is Oniguruma's with Ruby's syntax. What differs and is translated: \s \d \w \h and
 * their opposites, names of properties and scripts, \u, classes inside classes and &&, {n,m}+ (a
 * repeat of a repeat there, not possessive), {,m}, (?m). */
/* Appends the translation of pattern (UTF-8) to out. */
int onig_translate(struct buf *out, struct str pattern, struct err *e);

/* scan.h - the patterns most models split with, followed by hand over plain ASCII.
 *
 * PCRE2 defines what a pattern matches; this only knows the few whose matches inside ASCII are
 * simple, and says "undecided" wherever another byte could have a say. */
enum scan_style { SCAN_GPT2, SCAN_CL100K, SCAN_O200K };

struct scan {
    bool known;
    enum scan_style style;
    int max_digits;    /* in one match */
    bool slash;        /* O200K: '/' may follow punctuation as line ends may */
    bool contractions; /* O200K: words take 's with them */
};

extern const char scan_gpt2_pattern[];

/* The scan for a pattern (as tokenizer.json writes it); not known for most. */
struct scan scan_for(struct str pattern);

/* Length of the match at p[0], n > 0 bytes before the end of the text; 0: ask PCRE2. */
size_t scan_next(const struct scan *s, const unsigned char *p, size_t n);
#endif
