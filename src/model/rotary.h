/* rotary.h - rotary frequencies and their scalings. Plain functions of the hyper-parameters. */
#ifndef TERN_MODEL_ROTARY_H
#define TERN_MODEL_ROTARY_H

#include "model/hparams.h"

/* freq[n_rot/2]: what a position is multiplied with, every scaling applied. seq_len is the length
 * the sequence has reached: longrope and dynamic scaling look at it, the others do not. */
void rotary_freq(const struct rope_hp *r, int seq_len, float *freq);

/* Do the frequencies depend on seq_len? */
bool rotary_varies(const struct rope_hp *r);
/* And is it in its long regime, where they do? */
bool rotary_is_long(const struct rope_hp *r, int seq_len);

/* What cos and sin are multiplied with in a sequence of that length. */
double rotary_factor(const struct rope_hp *r, int seq_len);

/* The factor yarn and longrope give cos and sin when the file names none. */
double rotary_yarn_factor(double factor, double mscale, double mscale_all_dim);
double rotary_long_factor(double factor, double orig_ctx);
#endif
