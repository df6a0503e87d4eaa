/* sampler.h - sampling a token from logits; one sampler per sequence.
 *
 * The order of operations is fixed: logit bias, penalties, top-k, typical, top-p, min-p,
 * temperature, random choice. Temperature 0 is greedy: the largest logit after bias and penalties;
 * of equal ones the smaller id. The same logits, history and seed give the same token on every
 * machine.
 *
 * A GPU that holds the logits can sample itself: sampler_plan writes what it needs, and
 * sampler_accept_device records the result. Host and device sample the same
 * token, except where rounding matters (kernel/samplerow.h).
 *
 * All memory is allocated by sampler_open. The thread of the sequence owns the sampler. */
#ifndef TERN_SAMPLE_SAMPLER_H
#define TERN_SAMPLE_SAMPLER_H

#include "base/err.h"
#include "base/rng.h"
#include "kernel/samplerow.h"
#include "sample/sampleopt.h"

#include <stdbool.h>
#include <stdint.h>

/* temp 0.8, top_k 40, top_p 0.95, min_p 0.05, the rest off */
struct sample_opt sample_defaults(void);
/* E_INVALID with the name of the option, its value and its range. */
int sample_check(const struct sample_opt *o, int n_vocab, struct err *e);

struct sampler;
int sampler_open(struct sampler **out, const struct sample_opt *o, int n_vocab, struct err *e);
void sampler_close(struct sampler *s); /* NULL is allowed */

/* Record a token for the penalties: one of the prompt, one of the completion. */
void sampler_accept_prompt(struct sampler *s, int32_t id);
void sampler_accept(struct sampler *s, int32_t id);
/* Samples a token. logits is [n_vocab] and is not changed. NaN is never sampled; E_DAMAGED: no logit
 * is a number. Allocates nothing. */
int sampler_sample(struct sampler *s, const float *logits, int32_t *id, struct err *e);
/* sampler_sample and sampler_accept. */
int sampler_next(struct sampler *s, const float *logits, int32_t *id, struct err *e);

/* Prepares sampling on a device: fills *p except for row and place, and up to max adjustments of
 * logits. Banned tokens are never sampled. Returns the number of adjustments; -1: these options
 * need sampler_next on the host. Consumes as much of the random sequence as sampler_sample. */
int sampler_plan(struct sampler *s, const int32_t *bans, int n_bans, struct sample_row *p,
                 struct logit_adjust *a, int max);
/* Accepts a token that another sampler with the same seed has sampled: consumes as much of the random
 * sequence as sampling it, so that the next token is the one that would have followed. */
void sampler_replay(struct sampler *s, int32_t id);
/* Accepts the token that the device sampled; a negative id is E_DAMAGED: no logit was a number. */
int sampler_accept_device(struct sampler *s, int32_t id, struct err *e);

int32_t sample_greedy(const float *logits, int n); /* index of the largest; -1: all are NaN */
#endif
