/* cost.h - what steps cost on this machine with this model, learned from the steps themselves. */
#ifndef TERN_ENGINE_COST_H
#define TERN_ENGINE_COST_H

#include "engine/sched.h"

#define COST_SIZES 13 /* decoding sequences: 1, 2, 3-4, 5-8, ... */

struct cost {
    double decode_ns[COST_SIZES]; /* a step of only so many decodes; 0: not seen */
    double prefill_ns;            /* each token of a chunk; 0: not seen */
};

void cost_learn(struct cost *c, int n_decode, int n_prefill, double step_ns);
/* For a step with so many decodes. */
struct sched_cost cost_of(const struct cost *c, int n_decode);
#endif
