/* logprob.h - what the caller asked to see: log probabilities of the model, before any sampling
 * setting. */
#ifndef TERN_SAMPLE_LOGPROB_H
#define TERN_SAMPLE_LOGPROB_H

#include <stdint.h>

#define TOP_MAX 20 /* alternatives of a token at most */

struct top {
    int32_t id;
    float logprob;
};

/* The log probability of id under softmax(logits), and the n_top most likely tokens (n_top <=
 * TOP_MAX), the smaller id first when two are equal. NaN counts as never: -Inf. Where fewer tokens
 * are possible than n_top, the rest have id -1. Allocates nothing. */
float logprob_of(const float *logits, int n, int32_t id, struct top *top, int n_top);
#endif
