/* filter.h - which tokens stay in the draw: block maxima, top-k, top-p, typical.
 *
 * A vocabulary of 150,000 is looked at once, by blocks of FILTER_BLOCK logits; what may survive is
 * gathered into candidates, and only those are put in (partial) order. Nothing here allocates, and
 * every result is the same on every machine: exponentials are our own. */
#ifndef TERN_SAMPLE_FILTER_H
#define TERN_SAMPLE_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#define FILTER_BLOCK 64

struct cand {
    float key; /* the order: smaller is better; the smaller id when two are equal */
    float d;   /* logit minus the largest logit: 0 or less */
    float p;   /* exp(d), not normalised */
    int32_t id;
};

static inline int filter_n_blocks(int n) { return (n + FILTER_BLOCK - 1) / FILTER_BLOCK; }

/* Largest of each block (NaN left out; -Inf for a block without a number); returns the largest. */
float filter_max(const float *x, int n, float *block_max);

/* At least k candidates, all those above some bound: a whole prefix of the order by logit. tmp
 * holds as many numbers as there are blocks. NaN and -Inf are never candidates. */
int filter_gather(const float *x, int n, const float *block_max, float *tmp, int k, float max,
                  struct cand *c);
/* A bound: the logits from there on have at least the mass `want`, in units of the largest one's.
 */
float filter_least(const float *x, int n, float max, double want);
/* All candidates with a logit of at least `least`. */
int filter_above(const float *x, int n, const float *block_max, float least, float max,
                 struct cand *c);

/* Moves the best ones to the front: k of them, or as few as have the mass `want`. Returns how many.
 */
int filter_best(struct cand *c, int n, int k);
int filter_mass(struct cand *c, int n, double want);

double filter_sum(const struct cand *c, int n);                  /* of p */
void filter_weigh(struct cand *c, int n, float top, float temp); /* p = exp((d - top) / temp) */
float filter_exp(float x); /* for x <= 0; 0 below -87 and for NaN */
/* w[i] = exp((x[i] - max) * scale); returns the sum. w NULL: only the sum. */
double filter_exp_all(const float *x, int n, float max, float scale, float *w);
#endif
