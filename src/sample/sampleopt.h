/* sampleopt.h - the sampling options of a request. sampler.h describes what they do and in which
 * order they apply. */
#ifndef TERN_SAMPLE_SAMPLEOPT_H
#define TERN_SAMPLE_SAMPLEOPT_H

#include <stdint.h>

struct logit_bias {
    int32_t id;
    float bias;
};

struct sample_opt {
    float temp;                           /* 0 (greedy) to 2 */
    int top_k;                            /* 0: all */
    float top_p;                          /* (0, 1]; 1: all */
    float min_p;                          /* [0, 1); 0: all */
    float typical;                        /* (0, 1]; 1: off */
    float repeat_penalty;                 /* for tokens of prompt and completion; > 0; 1: off */
    int repeat_last;                      /* window of repeat_penalty, in tokens; 0: off, -1: all */
    float freq_penalty, presence_penalty; /* for tokens of the completion; [-2, 2]; 0: off */
    uint64_t seed;
    const struct logit_bias *bias; /* copied by sampler_open */
    int n_bias;
};
#endif
