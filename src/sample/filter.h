/* filter.h - selecting candidate tokens from logits: top-k, top-p, typical sampling.
 *
 * A vocabulary has up to 260,000 logits; sorting it for every token would cost more than the rest
 * of sampling. So the logits are read once, in blocks of FILTER_BLOCK, for the maximum of each
 * block. Blocks whose maximum is below a bound are skipped; the others give the candidates, and
 * only those are partially ordered (quickselect).
 *
 * Nothing allocates. Results are the same on every machine: the exponential is implemented here,
 * with a fixed order of additions and without fused multiply-add. */
#ifndef TERN_SAMPLE_FILTER_H
#define TERN_SAMPLE_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#define FILTER_BLOCK 64

struct cand {
    float key; /* sort key: smaller is better; of equal keys the smaller id is better */
    float d;   /* logit minus the largest logit: 0 or less */
    float p;   /* exp(d): the probability, not normalized */
    int32_t id;
};

static inline int filter_n_blocks(int n) { return (n + FILTER_BLOCK - 1) / FILTER_BLOCK; }

/* Fills the maximum of each block (NaN is ignored; -Inf for a block of NaN) and returns the
 * largest. */
float filter_max(const float *x, int n, float *block_max);

/* The candidates above a bound that at least k logits reach. Returns how many. tmp has room for a
 * float per block. NaN and -Inf are never candidates. */
int filter_gather(const float *x, int n, const float *block_max, float *tmp, int k, float max,
                  struct cand *c);
/* A bound such that the logits above it have at least the mass `want`, the sum of exp(x - max). */
float filter_bound(const float *x, int n, float max, double want);
/* All candidates with a logit of at least `least`; returns how many. */
int filter_above(const float *x, int n, const float *block_max, float least, float max,
                 struct cand *c);

/* Moves the best candidates to the front, in no order: k of them, or the fewest whose sum of p
 * reaches `want`. Returns how many. */
int filter_top_k(struct cand *c, int n, int k);
int filter_top_mass(struct cand *c, int n, double want);

double filter_sum(const struct cand *c, int n);                  /* sum of p */
void filter_weigh(struct cand *c, int n, float top, float temp); /* p = exp((d - top) / temp) */
float filter_exp(float x); /* for x <= 0; 0 below -87 and for NaN */
/* w[i] = exp((x[i] - max) * scale); returns the sum. w NULL: only the sum. */
double filter_exp_all(const float *x, int n, float max, float scale, float *w);
#endif
