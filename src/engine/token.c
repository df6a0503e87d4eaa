/* token.c - samples the tokens of a step: plain, by the runner, or under a grammar. */
#include "base/clock.h"
#include "engine/engine_impl.h"

#include <math.h>

/* End tokens that may not be sampled yet: until min_tokens are there. */
static int n_banned(const struct engine *g, const struct request *r)
{
    return r->n_out < r->min_tokens && !r->ignore_eos ? g->ends.n : 0;
}

/* Requests with log probabilities or a grammar, or for logits alone, need them on the host. */
void token_plan_samples(struct engine *g)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        const struct request *r = g->step.seqs[i]->r;
        if (r->n_top < 0 && !r->grammar && !r->n_pick)
            step_add_sample(&g->step, i, g->ends.ids, n_banned(g, r));
    }
}

/* Banned tokens get a logit of -Inf while the token is sampled; log probabilities are taken from
 * the logits as they were. */
static int sample_plain(const struct engine *g, struct seq *s, float *logits, int32_t *id,
                        struct err *e)
{
    int n = n_banned(g, s->r), rc;
    float saved[ENDS_MAX];

    for (int i = 0; i < n; i++) saved[i] = logits[g->ends.ids[i]];
    for (int i = 0; i < n; i++) logits[g->ends.ids[i]] = -INFINITY;
    rc = sampler_next(s->sampler, logits, id, e);
    for (int i = 0; i < n; i++) logits[g->ends.ids[i]] = saved[i];
    return rc;
}

/* Masks the logits: tokens that the grammar allows keep theirs, and end tokens where the text may
 * end. *any: there is such a token. mask NULL: the matcher was out of memory. */
static int mask_logits(struct engine *g, struct seq *s, const uint64_t *mask, const float *logits,
                       bool *any, struct err *e)
{
    float *out = g->guided.logits;
    int n = g->lim.n_sample;

    *any = false;
    if (!mask) return err_nomem(e, "the state of the grammar");
    matcher_apply_mask(mask, logits, out, n);
    for (int i = 0; i < (n + 63) / 64 && !*any; i++) *any = mask[i] != 0;
    if (!matcher_may_end(&s->matcher) || (*any && (n_banned(g, s->r) || s->r->ignore_eos)))
        return OK;
    for (int i = 0; i < g->ends.n; i++)
        if (g->ends.ids[i] < n) out[g->ends.ids[i]] = logits[g->ends.ids[i]], *any = true;
    return OK;
}

/* A token of the mask was not accepted. */
static int set_matcher_error(const struct seq *s, int rc, struct err *e)
{
    if (rc == E_NOMEM) return err_nomem(e, "the state of the grammar");
    return err_set(e, E_INVALID,
                   "the grammar is too ambiguous: after %d tokens the text can be read in more "
                   "than %d ways",
                   s->r->n_out, MATCHER_MAX_STACKS);
}

/* Samples again with only the tokens that leave room to complete the text, if there are any: where
 * the shortest completion fits now, but not any more after the sampled token. Every byte of it may
 * take a token. */
static int close_text(struct engine *g, struct seq *s, const float *logits, int32_t *id,
                      struct err *e)
{
    int left = s->n_max - (int)s->tokens.n - 1, after, rc; /* tokens after this one */
    bool any;

    if (matcher_min_bytes(&s->matcher) > left + 1) return OK;
    after = matcher_min_bytes_after(&s->matcher, *id);
    if (after < 0) return set_matcher_error(s, after, e);
    if (after <= left) return OK;
    rc = mask_logits(g, s, matcher_closing_mask(&s->matcher, left), logits, &any, e);
    if (rc != OK || !any) return rc;
    s->closed_early = true;
    return sampler_sample(s->sampler, g->guided.logits, id, e);
}

/* Samples a token that the grammar allows. Out of memory ends the request with an error. */
static int sample_guided(struct engine *g, struct seq *s, const float *logits, int32_t *id,
                         struct err *e)
{
    bool any;
    int rc = mask_logits(g, s, matcher_mask(&s->matcher), logits, &any, e);

    if (rc != OK) return rc;
    if (!any)
        return err_set(e, E_INVALID,
                       "the grammar allows no token of this vocabulary after %d tokens",
                       s->r->n_out);
    if ((rc = sampler_sample(s->sampler, g->guided.logits, id, e)) != OK) return rc;
    if (!ends_has(&g->ends, *id) && (rc = close_text(g, s, logits, id, e)) != OK) return rc;
    sampler_accept(s->sampler, *id);
    if (ends_has(&g->ends, *id) || (rc = matcher_accept(&s->matcher, *id)) == OK) return OK;
    return set_matcher_error(s, rc, e);
}

/* A text whose grammar is complete is over. One that was completed early counts as cut off. */
static enum finish finish_guided(const struct seq *s, enum finish why)
{
    if ((why == FINISH_NONE || why == FINISH_LENGTH) && matcher_is_complete(&s->matcher))
        why = FINISH_STOP;
    return why == FINISH_STOP && s->closed_early ? FINISH_LENGTH : why;
}

static int sample_id(struct engine *g, int i, float *logits, int32_t *id, struct err *e)
{
    struct seq *s = g->step.seqs[i];

    if (s->matcher.cache) return sample_guided(g, s, logits, id, e);
    if (g->step.sample_of[i] < 0) return sample_plain(g, s, logits, id, e);
    *id = g->step.sampled[g->step.sample_of[i]];
    return sampler_accept_device(s->sampler, *id, e);
}

/* Samples the token of sequence i of the step, or takes the one that the runner sampled. Returns
 * the finish it leads to. */
static enum finish sample_one(struct engine *g, int i, float *logits, struct pending *p)
{
    struct seq *s = g->step.seqs[i];
    struct request *r = s->r;
    enum finish why;
    int32_t id;

    if (request_is_cancelled(r)) {
        err_set(&p->err, E_CANCELLED, "the request was cancelled");
        return FINISH_CANCELLED;
    }
    if (sample_id(g, i, logits, &id, &p->err) != OK) return FINISH_ERROR;
    if (r->n_top >= 0) {
        p->ev.n_top = r->n_top;
        p->ev.logprob = logprob_of(logits, g->lim.n_vocab, id, p->ev.top, p->ev.n_top);
    }
    p->ev.id = id;
    p->ev.at_ns = clock_ns();
    why = seq_append(s, id, ends_has(&g->ends, id));
    return s->matcher.cache ? finish_guided(s, why) : why;
}

void token_pick_all(struct engine *g, const float *logits)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        const float *row;
        struct request *r;

        /* A sequence without a row may have ended with its vector. */
        if (g->step.out[i] < 0 || !g->step.seqs[i] || g->step.seqs[i]->r->n_pick == 0) continue;
        r = g->step.seqs[i]->r;
        row = logits + (size_t)g->step.out[i] * (size_t)g->lim.n_vocab;
        for (int k = 0; k < r->n_pick; k++) r->vec[k] = row[r->pick[k]];
        g->step.seqs[i] = NULL;
        engine_finish_live(g, engine_find_live(g, r), FINISH_STOP, NULL);
    }
}

void token_sample_all(struct engine *g, const float *logits)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        struct seq *s = g->step.seqs[i];
        struct pending *p = &g->pending[g->n_pending];

        if (!s || g->step.out[i] < 0) continue;
        g->n_pending++;
        p->r = s->r;
        p->err.code = OK;
        p->ev.id = -1;
        p->ev.logprob = 0;
        p->ev.n_top = p->ev.finish = 0;
        /* The rows are the runner's, but only this step uses them: they may be written. */
        p->why =
            sample_one(g, i, (float *)logits + (size_t)g->step.out[i] * (size_t)g->lim.n_vocab, p);
        if (p->why == FINISH_NONE) continue;
        engine_unlist(g, engine_find_live(g, s->r));
        seq_drop_kv(s, g->pool);
        engine_free_slot(g, s);
    }
}
