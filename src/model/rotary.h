/* rotary.h - frequencies of the rotary position embedding, and their scalings for long contexts.
 * Pure functions of the hyper-parameters. */
#ifndef TERN_MODEL_ROTARY_H
#define TERN_MODEL_ROTARY_H

#include "model/hparams.h"

/* freq[n_rot/2]: the angle of pair i at position p is p * freq[i], with the scaling applied.
 * seq_len: the current length of the sequence; only longrope and dynamic scaling depend on it. */
void rotary_freq(const struct rope_hp *r, int seq_len, float *freq);

/* The frequencies depend on seq_len. */
bool rotary_varies(const struct rope_hp *r);
/* They do, and seq_len is beyond the threshold. */
bool rotary_is_long(const struct rope_hp *r, int seq_len);

/* The factor of cos and sin in a sequence of this length. */
double rotary_factor(const struct rope_hp *r, int seq_len);

/* The factor of cos and sin of yarn and longrope, if the file gives none. */
double rotary_yarn_factor(double factor, double mscale, double mscale_all_dim);
double rotary_long_factor(double factor, double orig_ctx);
#endif
