/* guide.h - a compiled grammar at work over one vocabulary: where texts stand in it, and which
 * tokens may come.
 *
 * Where a text stands is a set of stacks. Stacks and sets of them are kept once each and get a
 * number, with what every byte leads to, so that a byte is a look into a table. Which tokens may
 * come is worked out by the top of a stack alone, once, for all texts that ever have it on top;
 * tokens that write beyond the end of its rule are kept by what they write there, and checked
 * against the stack below.
 *
 * All of it is one thread's. It grows when something is met for the first time, up to a bound; then
 * what no text stands on is forgotten. */
#ifndef TERN_GRAMMAR_GUIDE_H
#define TERN_GRAMMAR_GUIDE_H

#include "grammar/gauto.h"
#include "grammar/lexicon.h"

struct guide;

/* Both are borrowed and must outlive it. */
struct guide *guide_open(const struct gauto *a, const struct lexicon *lex);
void guide_close(struct guide *m); /* NULL is fine; no match is left */

/* One text. */
struct match {
    struct guide *m;
    struct match *prev, *next; /* of the guide's */
    int32_t at;                /* where it stands */
    bool first;                /* nothing was written yet: the first token may lose a space */
};

/* at_start: the text is a new one, not one that goes on behind a prompt. */
void match_begin(struct match *x, struct guide *m, bool at_start);
void match_end(struct match *x); /* a zeroed one is fine */

/* A bit for each id that may come, end tokens not among them; valid until the guide is used again.
 */
const uint64_t *match_mask(struct match *x);
/* Only those after which the rest can be written in `left` bytes, as far as there are any. */
const uint64_t *match_closing(struct match *x, int left);
bool match_may_end(const struct match *x);
bool match_is_over(const struct match *x); /* it may end, and nothing else may come */
int match_least(const struct match *x);    /* bytes until it may end */
int match_least_after(struct match *x,
                      int32_t id); /* the same behind a token; GAUTO_FAR: that may not come */
/* The token was written; false: it may not be, nothing moved. */
bool match_accept(struct match *x, int32_t id);
bool match_write(struct match *x, struct str bytes); /* the same with text */

size_t guide_bytes(const struct guide *m);       /* held by now */
void guide_bound(struct guide *m, size_t bytes); /* from which on it forgets; 96 MB at first */

/* out = in where the bit is set, else -Inf. */
void mask_apply(const uint64_t *mask, const float *in, float *out, int n);
#endif
