/* samplerow.h - parameters of sampling on the device, one struct per row of logits.
 *
 * The parameters and their order of application are those of sample/sampler.h. The device samples
 * the token that sampler_next would sample on the host, except where rounding moves a logit across
 * a cut-off (top-k, top-p, min-p). The layout of both structs is shared with CUDA kernels. */
#ifndef TERN_KERNEL_SAMPLEROW_H
#define TERN_KERNEL_SAMPLEROW_H

#include <stdint.h>

struct sample_row {
    int32_t row;              /* of the logits; each row at most once per call */
    int32_t top_k;            /* 0: all tokens */
    float temp, top_p, min_p; /* temp 0: greedy */
    int32_t adjust, n_adjust; /* this row's adjustments: [adjust, adjust + n_adjust), one per id */
    int32_t spare;            /* 0: aligns u */
    double u; /* uniform in [0, 1): selects the token by the cumulative probability */
};

/* A change of one logit x: first x += add (logit bias), then x /= repeat if x > 0, else x *= repeat
 * (repetition penalty), then x -= sub (frequency and presence penalty). */
struct logit_adjust {
    int32_t id;
    float add, repeat, sub;
};
#endif
