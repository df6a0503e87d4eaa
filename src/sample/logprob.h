/* logprob.h - log probabilities of tokens under the model, before any sampling option applies. */
#ifndef TERN_SAMPLE_LOGPROB_H
#define TERN_SAMPLE_LOGPROB_H

#include <stdint.h>

#define TOP_MAX 20 /* the most alternatives that a request may ask for */

struct top { /* a likely token */
    int32_t id;
    float logprob;
};

/* Returns the log probability of id under softmax(logits), and fills top with the n_top (at most
 * TOP_MAX) most likely tokens, best first; of equal ones the smaller id comes first. NaN counts as
 * -Inf. If fewer than n_top tokens are possible, the remaining entries have id -1. Allocates
 * nothing. */
float logprob_of(const float *logits, int n, int32_t id, struct top *top, int n_top);
#endif
