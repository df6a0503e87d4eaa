/* cut.h - the rows and columns of a tensor that a member of a gang uses.
 *
 * A cut lists ranges of the whole tensor's rows, in order; row r of the member's tensor is row
 * cut_row(c, r) of the whole. Some tensors are cut several times at equal distances, as a
 * convolution's weights for each of its taps. */
#ifndef TERN_MODEL_CUT_H
#define TERN_MODEL_CUT_H

#include <stdbool.h>
#include <stdint.h>

struct span { /* [at, at + n) */
    int64_t at, n;
};

enum { CUT_SPANS = 5 };

struct cut {
    int n_spans;
    struct span s[CUT_SPANS];
    int times;    /* the spans are used this often, */
    int64_t step; /* each time so much further on */
};

static inline struct cut cut_one(struct span s) { return (struct cut){ 1, { s }, 1, 0 }; }

static inline int64_t cut_each(const struct cut *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_spans; i++) n += c->s[i].n;
    return n;
}
static inline int64_t cut_rows(const struct cut *c) { return cut_each(c) * c->times; }

/* The whole tensor's row; *run: how many rows from r on follow each other there. */
static inline int64_t cut_row(const struct cut *c, int64_t r, int64_t *run)
{
    int64_t each = cut_each(c), base = r / each * c->step, at = r % each;
    int i = 0;

    while (i < c->n_spans - 1 && at >= c->s[i].n) at -= c->s[i++].n;
    *run = c->s[i].n - at;
    return base + c->s[i].at + at;
}

static inline void cut_add(struct cut *c, int64_t at, int64_t n)
{
    c->s[c->n_spans++] = (struct span){ at, n };
    c->times = 1;
}
#endif
