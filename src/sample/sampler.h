/* sampler.h - logits → a token, in a fixed order, seeded per request.
 *
 * Order: logit bias, penalties, top-k, typical, top-p, min-p, temperature, draw. Temperature 0 is
 * greedy: the largest logit after bias and penalties, the smaller id when two are equal. The
 * same logits, history and seed give the same token on every machine.
 *
 * A device that has the logits may draw itself: sampler_plan says how, sampler_take is told what
 * came. */
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
/* E_INVALID names the field and its range. */
int sample_check(const struct sample_opt *o, int n_vocab, struct err *e);

struct sampler;
int sampler_open(struct sampler **out, const struct sample_opt *o, int n_vocab, struct err *e);
void sampler_close(struct sampler *s); /* NULL is fine */

/* For the penalties: a token of the prompt; one of the answer. */
void sampler_prompt(struct sampler *s, int32_t id);
void sampler_accept(struct sampler *s, int32_t id);
/* Picks and accepts. Allocates nothing. NaN logits never win; all NaN is E_DEVICE. */
int sampler_pick(struct sampler *s, const float *logits, int32_t *id, struct err *e);

/* The same without accepting. */
int sampler_draw(struct sampler *s, const float *logits, int32_t *id, struct err *e);

/* For a device: p but for its row and place, and its adjustments (max of them at most); bans are
 * tokens that must not win. How many adjustments there are; -1: only sampler_pick can do this.
 * Takes what a pick takes of the seed. */
int sampler_plan(struct sampler *s, const int32_t *bans, int n_bans, struct sample_row *p,
                 struct logit_adjust *a, int max);
/* What came of it; below 0: E_DEVICE as with sampler_pick. */
int sampler_take(struct sampler *s, int32_t id, struct err *e);

int32_t sample_greedy(const float *logits, int n); /* -1: nothing but NaN */
#endif
