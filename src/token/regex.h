/* regex.h - the patterns of normalizers and pre-tokenizers, matched by PCRE2.
 *
 * tokenizer.json writes patterns in the dialect of Oniguruma. regex_open translates the pattern
 * (regex_onig.c) and compiles it. The few patterns that most models split text with also have a
 * hand-written scanner for plain ASCII (regex_scan.c); PCRE2 decides everything else.
 *
 * A struct regex is immutable for its users: any number of threads may match with it at once, each
 * with a matcher of its own. Machine code (PCRE2's JIT) is generated at the first match. */
#ifndef TERN_TOKEN_REGEX_H
#define TERN_TOKEN_REGEX_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

struct regex;
struct matcher; /* PCRE2's working memory for one thread */

/* pattern: Oniguruma, Ruby syntax. E_FORMAT: not a pattern; E_NOMEM. */
int regex_open(struct regex **out, struct str pattern, struct err *e);
void regex_close(struct regex *r);               /* NULL is allowed */
struct str regex_pattern(const struct regex *r); /* the pattern as given to regex_open */

struct matcher *matcher_open(void);    /* NULL: no memory */
void matcher_close(struct matcher *m); /* NULL is allowed */

/* An iteration over the matches in a text (valid UTF-8), left to right and without overlap, in the
 * way of Oniguruma's find_iter. The caller sets the first three fields and zeroes the rest. */
struct regex_walk {
    const struct regex *r;
    struct matcher *m;
    struct str text;
    size_t from;     /* byte where the next search starts */
    size_t last_end; /* end of the last match, where there was one */
    bool any;        /* there was a match */
    int rc;          /* after the last match: OK, E_FORMAT (match limit exceeded), E_NOMEM */
};
/* The next match is text[*start, *end). false: no more matches, or w->rc says why not. */
bool regex_next(struct regex_walk *w, size_t *start, size_t *end);
/* w->rc as an error; where: "normalizer", "pre-tokenizer". */
int regex_walk_check(const struct regex_walk *w, const char *where, struct err *e);

/* regex_onig.c: appends the pattern in PCRE2's syntax to out.
 *
 * Translated are \s \d \w \h and their complements, names of properties and scripts, \u, nested
 * classes and &&, {n,m}+ (in Oniguruma a repetition of a repetition, not a possessive one), {,m},
 * and the option (?m). */
int onig_translate(struct buf *out, struct str pattern, struct err *e);

/* regex_scan.c: scanners for the patterns of GPT-2, cl100k and o200k over ASCII text. */
enum scan_style { SCAN_GPT2, SCAN_CL100K, SCAN_O200K };

struct scan {
    bool known; /* false: no scanner for this pattern, the other fields are unused */
    enum scan_style style;
    int max_digits;    /* of one match */
    bool slash;        /* O200K: '/' continues punctuation as line ends do */
    bool contractions; /* O200K: a word includes a following 's, 't, 'll ... */
};

extern const char scan_gpt2_pattern[]; /* the pattern of ByteLevel pre-tokenizers */

struct scan scan_for(struct str pattern);

/* Length of the match that starts at p[0], with n > 0 bytes of text left. 0: not decided here, ask
 * PCRE2; that is so wherever a byte that is not ASCII could change the match. */
size_t scan_next(const struct scan *s, const unsigned char *p, size_t n);
#endif
