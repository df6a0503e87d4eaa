/* cost.h - how long steps take on this machine with this model, learned from the steps themselves.
 *
 * Exponential averages of the time of pure decode steps, by powers of two of their size, and of a
 * prefill token. While many prompts wait, every step has some prefill: a size of which no pure step was
 * seen yet is estimated from the first mixed one. The engine thread owns it. */
#ifndef TERN_ENGINE_COST_H
#define TERN_ENGINE_COST_H

#include "engine/sched.h"

#define COST_SIZES 13 /* decoding sequences: 1, 2, 3-4, 5-8, ... */

struct cost {
    double decode_ns[COST_SIZES]; /* time of a step with only so many decodes; 0: not seen */
    double prefill_ns;            /* time of each token of a prefill chunk; 0: not seen */
};

void cost_learn(struct cost *c, int n_decode, int n_prefill, double step_ns);
/* The estimate for a step with so many decodes. */
struct sched_cost cost_of(const struct cost *c, int n_decode);
#endif
