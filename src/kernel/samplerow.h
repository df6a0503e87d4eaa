/* pick.h - how a token is to be drawn from a row of logits, for a device that draws itself.
 *
 * What the numbers mean and in which order they apply is said in sample/sampler.h; what is drawn is
 * what sampler_pick would have drawn, but for roundings at a border. */
#ifndef TERN_KERNEL_SAMPLEROW_H
#define TERN_KERNEL_SAMPLEROW_H

#include <stdint.h>

struct sample_row {
    int32_t row;   /* of the logits; no other pick of the same call has it */
    int32_t top_k; /* 0: all */
    float temp, top_p, min_p;
    int32_t adjust, n_adjust; /* which of the adjustments are this row's: each of another id */
    int32_t spare;            /* 0 */
    double u;                 /* [0, 1): where the draw falls */
};

/* x += add; x divided by repeat where it is above 0, else multiplied; x -= sub */
struct logit_adjust {
    int32_t id;
    float add, repeat, sub;
};
#endif
