/* round.c - one round of the engine: take, plan, start, tell of the last step, wait, sample.
 *
 * A step is started as soon as it is known what is in it: which tokens came, which sequences ended.
 * What the last one came to is told while the next one runs. */
#include "base/clock.h"
#include "engine/engine_impl.h"
#include "onnx/card.h"

#include <math.h>
#include <string.h>

enum {
    LOOK_AHEAD = 64,      /* waiting requests whose prefix is looked up in a round */
    CHECK_EVERY = 16,     /* rounds between measurements of the checks themselves */
    SOLO = 4,             /* times step_ms: a chunk alone in its step, which a cancel stops */
    SERVED_HALF = 1 << 20 /* tokens after which old service counts half */
};

#define RELAXED memory_order_relaxed

/* ---- leaving ---- */

static void leave(struct engine *g, int i)
{
    memmove(g->live + i, g->live + i + 1, (size_t)(--g->n_live - i) * sizeof *g->live);
}

/* The request at live[i] is over: it leaves, and is told so behind what came before. */
static void finish(struct engine *g, int i, enum finish why, const struct err *e)
{
    struct request *r = g->live[i];

    for (int k = 0; k < g->n_untold; k++)
        if (g->untold[k].r == r) engine_tell_one(g, &g->untold[k]);
    leave(g, i);
    engine_end(g, r, why, e);
}

/* ---- taking ---- */

/* A tenant that was away begins beside the others: what they were given meanwhile is not owed to
 * it. */
static void level(struct engine *g, const struct request *r)
{
    uint64_t *own = &g->served[r->tenant % TENANTS], least = UINT64_MAX;

    for (int i = 0; i < g->n_live; i++) {
        uint64_t *other = &g->served[g->live[i]->tenant % TENANTS];
        if (other == own) return;
        if (*other < least) least = *other;
    }
    if (least != UINT64_MAX && *own < least) *own = least;
}

static void take_arrivals(struct engine *g)
{
    struct request *r;

    while (g->n_live < g->max_live && (r = chan_pop(g->in))) {
        level(g, r);
        g->live[g->n_live++] = r;
    }
}

static void end_one(struct engine *g, int i, uint64_t now)
{
    struct err e = { 0 };
    struct request *r = g->live[i];

    if (request_is_cancelled(r)) {
        err_set(&e, E_CANCELLED, "the request was cancelled");
        finish(g, i, FINISH_CANCELLED, &e);
    } else if (r->deadline_ns && now >= r->deadline_ns) {
        err_set(&e, E_DEADLINE, "the deadline passed after %d tokens", r->n_out);
        finish(g, i, FINISH_DEADLINE, &e);
    }
}

static void end_cancelled(struct engine *g)
{
    bool abort = atomic_exchange_explicit(&g->abort, false, memory_order_acq_rel);
    bool timed = g->n_rounds % CHECK_EVERY == 0 && g->n_live > 0;
    int n = g->n_live;
    uint64_t begin = timed ? clock_ns() : 0;

    for (int i = g->n_live - 1; i >= 0; i--) {
        if (abort) request_cancel(g->live[i], CANCEL_SHUTDOWN);
        end_one(g, i, g->round_ns);
    }
    if (timed && g->n_live == n)
        hist_add(&g->stats.deadline_check_us, (double)(clock_ns() - begin) / 1e3 / n);
}

/* ---- planning ---- */

/* Is someone else about to compute a block that r begins with and that is not there yet? Then r
 * waits for it: one computes, all use it. */
static bool is_being_computed(const struct engine *g, const struct request *r, int n_before)
{
    for (int i = 0; i < n_before; i++) {
        const struct request *o = g->live[i];
        int there = o->seq && o->seq->running && o->seq->n_kv > r->n_hit ? o->seq->n_kv : r->n_hit;
        size_t need = (size_t)(there / KV_BLOCK + 1) * KV_BLOCK; /* up to the next block's end */

        if (g->view[i].held || o->salt != r->salt || o->priority < r->priority) continue;
        if (need > o->prompt.n || need >= r->prompt.n) continue;
        if (memcmp(o->prompt.p, r->prompt.p, need * sizeof *r->prompt.p) == 0) return true;
    }
    return false;
}

/* The end of the whole blocks of a prompt: where its state is kept. */
static int border(const struct request *r) { return ((int)r->prompt.n - 1) / KV_BLOCK * KV_BLOCK; }

/* The same of a model with state: is someone about to come to a border that r begins with? */
static bool is_state_coming(const struct engine *g, const struct request *r, int n_before)
{
    for (int i = 0; i < n_before; i++) {
        const struct request *o = g->live[i];
        int end = border(o);

        if (g->view[i].held || o->embed || o->salt != r->salt || o->priority < r->priority)
            continue;
        if (end <= r->n_hit || (size_t)end >= r->prompt.n || (o->seq && o->seq->n_kv >= end))
            continue;
        if (memcmp(o->prompt.p, r->prompt.p, (size_t)end * sizeof *r->prompt.p) == 0) return true;
    }
    return false;
}

/* What of its tokens it need not compute. */
static void look(struct engine *g, struct request *r, struct sched_seq *v)
{
    const struct ids *t = r->seq ? &r->seq->tokens : &r->prompt;

    r->n_hit = prefix_look(g->prefix, r->salt, t->p, (int)t->n, &v->n_hit_used);
    if (!g->snaps) return;
    r->n_hit = snaps_look(g->snaps, r->salt, t->p, r->n_hit);
    if (v->n_hit_used > r->n_hit) v->n_hit_used = r->n_hit;
}

static void describe(struct engine *g, int n_free)
{
    bool tight = n_free < block_n(g->pool) / 4; /* only then may someone be preempted */
    int looked = 0, n_running = 0;

    for (int i = 0; i < g->n_live; i++) n_running += g->live[i]->seq && g->live[i]->seq->running;
    for (int i = 0; i < g->n_live; i++) {
        struct request *r = g->live[i];
        struct seq *s = r->seq;
        struct sched_seq *v = &g->view[i];

        *v = (struct sched_seq){ .n_tokens = s ? (int)s->tokens.n : (int)r->prompt.n,
                                 .n_kv = s ? s->n_kv : 0,
                                 .n_blocks = s ? s->chain.n : 0,
                                 .waiting = !s || !s->running,
                                 .held = !outbox_has_room(&r->out),
                                 .priority = r->priority,
                                 .tenant = r->tenant % TENANTS,
                                 .arrival_ns = r->submit_ns,
                                 .deadline_ns = r->deadline_ns };
        if (!v->waiting && tight && g->prefix)
            v->n_shared = s->chain.n - prefix_n_gain(g->prefix, &s->chain);
        if (!v->waiting || v->held || !g->prefix || r->embed) continue;
        if (n_running < g->opt.max_seqs && looked++ < LOOK_AHEAD) {
            look(g, r, v);
            if (!s) v->held = g->snaps ? is_state_coming(g, r, i) : is_being_computed(g, r, i);
        }
        v->n_hit = r->n_hit;
    }
}

static void make_plan(struct engine *g)
{
    int n_decode = 0;
    struct sched_in in = { .opt = { .max_tokens = g->opt.max_batch,
                                    .max_seqs = g->opt.max_seqs,
                                    .block = KV_BLOCK,
                                    .min_chunk = g->min_chunk,
                                    .age_ns = (uint64_t)g->opt.age_ms * 1000000,
                                    .max_step_ns = (uint64_t)g->opt.step_ms * 1000000,
                                    .solo_step_ns = (uint64_t)g->opt.step_ms * 1000000 * SOLO,
                                    .stretch = g->opt.stretch },
                           .now_ns = g->round_ns,
                           .n_free =
                               block_n_free(g->pool) + (g->prefix ? prefix_n_idle(g->prefix) : 0),
                           .seqs = g->view,
                           .n_seqs = g->n_live,
                           .served = g->served,
                           .n_tenants = TENANTS };

    describe(g, in.n_free);
    for (int i = 0; i < g->n_live; i++) {
        const struct sched_seq *v = &g->view[i];
        n_decode += !v->waiting && !v->held && v->n_tokens - v->n_kv == 1;
    }
    in.cost = cost_of(&g->cost, n_decode);
    sched_plan(&in, &g->plan, g->order);
}

/* ---- carrying it out ---- */

static void preempt(struct engine *g, struct request *r)
{
    seq_forget(r->seq, g->pool);
    engine_give_slot(g, r->seq);
    r->seq->running = false;
    r->n_preempted++;
    atomic_store_explicit(&r->state, REQ_PREEMPTED, RELAXED);
    counter_add(&g->stats.preemptions, 1);
}

static int open_seq(struct engine *g, struct request *r, struct err *e)
{
    int rc = seq_open(&r->seq, r, g->lim, g->tokenizer, e);

    if (rc != OK || !r->grammar) return rc;
    return guided_begin(&g->guided, &r->seq->matcher, r->grammar, r->seq->stream.detok.ids.n == 0,
                        e);
}

/* As much of the blocks it was given as there is a state behind. */
static void take_state(struct engine *g, struct seq *s)
{
    int n = snaps_look(g->snaps, s->r->salt, s->tokens.p, s->n_kv);

    chain_truncate(&s->chain, g->pool, n);
    s->n_kv = s->n_known = n;
    if (n) snaps_take(g->snaps, s->r->salt, s->tokens.p, n, g->states, s->slot);
}

static int begin(struct engine *g, struct request *r, struct err *e)
{
    struct seq *s;
    int rc;

    if (!r->seq && (rc = open_seq(g, r, e)) != OK) return rc;
    s = r->seq;
    if (g->states && (s->slot = state_get(g->states)) < 0)
        return err_set(e, E_NOMEM, "all %d slots of recurrent state are taken", state_n(g->states));
    s->running = true;
    if (g->prefix && !r->embed)
        s->n_kv = s->n_known =
            prefix_take(g->prefix, r->salt, s->tokens.p, (int)s->tokens.n, &s->chain);
    if (g->snaps && s->n_kv > 0) take_state(g, s);
    atomic_store_explicit(&r->state, REQ_PREFILL, RELAXED);
    if (r->start_ns) return OK; /* preempted before: counted then */
    r->start_ns = clock_ns();
    r->n_cached = s->n_kv;
    admit_began(&g->admit, r);
    if (r->quiet) return OK;
    counter_add(&g->stats.prompt_tokens, r->prompt.n);
    counter_add(&g->stats.cached_tokens, (uint64_t)s->n_kv);
    counter_add(&g->stats.prefix_queried, r->prompt.n);
    counter_add(&g->stats.prefix_hit, (uint64_t)s->n_kv);
    return OK;
}

/* Blocks for n more tokens, evicting what nobody uses. */
static bool reserve(struct engine *g, struct seq *s, int n)
{
    int want = (s->n_kv + n + KV_BLOCK - 1) / KV_BLOCK - s->chain.n;

    if (chain_reserve(&s->chain, g->pool, s->n_kv + n)) return true;
    return g->prefix && prefix_evict(g->prefix, want) &&
           chain_reserve(&s->chain, g->pool, s->n_kv + n);
}

static void fill_step(struct engine *g)
{
    step_begin(&g->step);
    for (int i = 0; i < g->plan.n_run && g->step.n_seqs < g->opt.max_seqs; i++) {
        struct seq *s = g->live[g->plan.run[i].seq]->seq;
        int n = g->plan.run[i].n, left, room = g->opt.max_batch - g->step.n_tokens;

        if (!s || !s->running) continue;
        left = (int)s->tokens.n - s->n_kv;
        if (n > left || g->lim.encoder) n = left; /* who looks both ways needs all at once */
        if (n > room) n = g->lim.encoder ? 0 : room;
        if (g->snaps && s->n_kv < border(s->r) && s->n_kv + n > border(s->r))
            n = border(s->r) - s->n_kv;
        if (n > 0 && reserve(g, s, n)) step_add(&g->step, s, n);
    }
}

/* Those that could not begin, by their place in live: indices change when one goes. */
static void begin_planned(struct engine *g)
{
    struct err e[4];
    int bad[4], n_bad = 0;

    for (int i = 0; i < g->plan.n_begin && n_bad < 4; i++)
        if (begin(g, g->live[g->plan.begin[i]], &e[n_bad]) != OK) bad[n_bad++] = g->plan.begin[i];
    fill_step(g);
    while (n_bad-- > 0) {
        for (int i = 0; i < n_bad; i++)
            if (bad[i] > bad[n_bad]) bad[i]--;
        finish(g, bad[n_bad], FINISH_ERROR, &e[n_bad]);
    }
}

/* Blocks are so short that not even one sequence moves: the last one begun gives its own back. */
static bool make_way(struct engine *g)
{
    int last = -1, n = 0;
    struct err e = { 0 };

    for (int i = 0; i < g->n_live; i++)
        if (g->live[i]->seq && g->live[i]->seq->running && !g->view[i].held) last = i, n++;
    if (n == 0) return false;
    if (n > 1) {
        preempt(g, g->live[last]);
        return true;
    }
    err_set(&e, E_NOMEM, "no KV block is free for a sequence of %zu tokens",
            g->live[last]->seq->tokens.n);
    finish(g, last, FINISH_ERROR, &e);
    return true;
}

/* ---- tokens ---- */

/* Until min_tokens are there, no end token can win. */
static int n_banned(const struct engine *g, const struct request *r)
{
    return r->n_out < r->min_tokens && !r->ignore_eos ? g->ends.n : 0;
}

/* What the decoder can pick it does; who wants logprobs, or has a grammar, needs the logits. */
static void plan_picks(struct engine *g)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        const struct request *r = g->step.seqs[i]->r;
        if (r->n_top < 0 && !r->grammar) step_pick(&g->step, i, g->ends.ids, n_banned(g, r));
    }
}

/* Logits of banned tokens are kept aside while one is picked. */
static int pick_one(const struct engine *g, struct seq *s, float *logits, int32_t *id,
                    struct err *e)
{
    int n = n_banned(g, s->r), rc;
    float aside[ENDS_MAX];

    for (int i = 0; i < n; i++) aside[i] = logits[g->ends.ids[i]];
    for (int i = 0; i < n; i++) logits[g->ends.ids[i]] = -INFINITY;
    rc = sampler_pick(s->sampler, logits, id, e);
    for (int i = 0; i < n; i++) logits[g->ends.ids[i]] = aside[i];
    return rc;
}

/* Masks the logits: tokens that the grammar allows keep theirs, and end tokens where the text may
 * end. *any: there is such a token. mask NULL: the matcher was out of memory. */
static int mask_logits(struct engine *g, struct seq *s, const uint64_t *mask, const float *logits,
                       bool *any, struct err *e)
{
    float *out = g->guided.logits;

    *any = false;
    if (!mask) return err_nomem(e, "the state of the grammar");
    matcher_apply_mask(mask, logits, out, g->lim.n_pick);
    for (int i = 0; i < (g->lim.n_pick + 63) / 64 && !*any; i++) *any = mask[i] != 0;
    if (!matcher_may_end(&s->matcher) || (*any && (n_banned(g, s->r) || s->r->ignore_eos)))
        return OK;
    for (int i = 0; i < g->ends.n; i++)
        if (g->ends.ids[i] < g->lim.n_pick)
            out[g->ends.ids[i]] = logits[g->ends.ids[i]], *any = true;
    return OK;
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
    if (after < 0) return err_nomem(e, "the state of the grammar");
    if (after <= left) return OK;
    rc = mask_logits(g, s, matcher_closing_mask(&s->matcher, left), logits, &any, e);
    if (rc != OK || !any) return rc;
    s->closed = true;
    return sampler_draw(s->sampler, g->guided.logits, id, e);
}

/* Samples a token that the grammar allows. Out of memory ends the request with an error. */
static int pick_guided(struct engine *g, struct seq *s, const float *logits, int32_t *id,
                       struct err *e)
{
    bool any;
    int rc = mask_logits(g, s, matcher_mask(&s->matcher), logits, &any, e);

    if (rc != OK) return rc;
    if (!any)
        return err_set(e, E_INVALID,
                       "the grammar allows no token of this vocabulary after %d tokens",
                       s->r->n_out);
    if ((rc = sampler_draw(s->sampler, g->guided.logits, id, e)) != OK) return rc;
    if (!ends_has(&g->ends, *id) && (rc = close_text(g, s, logits, id, e)) != OK) return rc;
    sampler_accept(s->sampler, *id);
    if (!ends_has(&g->ends, *id) && matcher_accept(&s->matcher, *id) == E_NOMEM)
        return err_nomem(e, "the state of the grammar");
    return OK;
}

/* When the grammar is over, so is the text. */
static enum finish finish_guided(const struct seq *s, enum finish why)
{
    if ((why == FINISH_NONE || why == FINISH_LENGTH) && matcher_is_complete(&s->matcher))
        why = FINISH_STOP;
    return why == FINISH_STOP && s->closed ? FINISH_LENGTH : why;
}

/* Picks a token of sequence i of the step, or takes the one that the decoder did. What that leads
 * to. */
static enum finish pick(struct engine *g, int i, float *logits, struct untold *u)
{
    struct seq *s = g->step.seqs[i];
    struct request *r = s->r;
    enum finish why;
    int32_t id;
    int rc;

    if (request_is_cancelled(r)) {
        err_set(&u->err, E_CANCELLED, "the request was cancelled");
        return FINISH_CANCELLED;
    }
    if (s->matcher.cache) rc = pick_guided(g, s, logits, &id, &u->err);
    else if (g->step.pick[i] < 0) rc = pick_one(g, s, logits, &id, &u->err);
    else rc = sampler_take(s->sampler, id = g->step.picked[g->step.pick[i]], &u->err);
    if (rc != OK) return FINISH_ERROR;
    if (r->n_top >= 0) {
        u->ev.n_top = r->n_top;
        u->ev.logprob = logprob_of(logits, g->lim.n_vocab, id, u->ev.top, u->ev.n_top);
    }
    u->ev.id = id;
    u->ev.at_ns = clock_ns();
    why = seq_take(s, id, ends_has(&g->ends, id));
    return s->matcher.cache ? finish_guided(s, why) : why;
}

static int place_of(const struct engine *g, const struct request *r)
{
    for (int i = 0; i < g->n_live; i++)
        if (g->live[i] == r) return i;
    return -1;
}

/* Whoever ended leaves, so that the next plan has its blocks. */
static void pick_tokens(struct engine *g, const float *logits)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        struct seq *s = g->step.seqs[i];
        struct untold *u = &g->untold[g->n_untold];

        if (!s || g->step.out[i] < 0) continue;
        g->n_untold++;
        u->r = s->r;
        u->err.code = OK;
        u->ev.id = -1;
        u->ev.logprob = 0;
        u->ev.n_top = u->ev.finish = 0;
        /* The decoder's rows are this step's alone. */
        u->why =
            pick(g, i, (float *)logits + (size_t)g->step.out[i] * (size_t)g->model->hp.n_vocab, u);
        if (u->why == FINISH_NONE) continue;
        leave(g, place_of(g, s->r));
        seq_forget(s, g->pool);
        engine_give_slot(g, s);
    }
}

/* What is full by now can be shared. */
static void make_known(struct engine *g)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        struct seq *s = g->step.seqs[i];
        if (!s) continue;
        if (g->snaps && !s->r->embed && s->n_kv == border(s->r))
            snaps_keep(g->snaps, s->r->salt, s->tokens.p, s->n_kv, g->states, s->slot);
        if (!g->prefix || s->n_kv / KV_BLOCK == s->n_known / KV_BLOCK) continue;
        prefix_add(g->prefix, s->r->salt, s->tokens.p, s->n_kv, s->n_known, &s->chain);
        s->n_known = s->n_kv / KV_BLOCK * KV_BLOCK;
    }
}

static void count_step(struct engine *g, uint64_t begin_ns)
{
    int n_decode = 0, n_prefill = 0;

    for (int i = 0; i < g->step.n_seqs; i++) {
        uint64_t *served;
        if (g->step.n_new[i] == 1) n_decode++;
        else n_prefill += g->step.n_new[i];
        if (!g->step.seqs[i]) continue;
        served = &g->served[g->step.seqs[i]->r->tenant % TENANTS];
        if ((*served += (uint64_t)g->step.n_new[i]) > SERVED_HALF)
            for (int t = 0; t < TENANTS; t++) g->served[t] /= 2;
    }
    cost_learn(&g->cost, n_decode, n_prefill, (double)(clock_ns() - begin_ns));
    atomic_store_explicit(&g->admit.prefill_ns, (uint64_t)g->cost.prefill_ns, RELAXED);
    atomic_store_explicit(&g->admit.step_ns, (uint64_t)cost_of(&g->cost, n_decode).step_ns,
                          RELAXED);
    counter_add(&g->stats.steps, 1);
    counter_add(&g->stats.step_tokens, (uint64_t)g->step.n_tokens);
    hist_add(&g->stats.step_size, g->step.n_tokens);
}

/* ---- embeddings ---- */

/* What classes score, by the model's own rule. */
static void finish_scores(const struct engine *g, struct seq *s)
{
    double most = s->pool[0], sum = 0;
    int n = g->lim.n_embd;

    for (int i = 0; i < n; i++) most = s->pool[i] > most ? s->pool[i] : most;
    for (int i = 0; i < n; i++) sum += exp(s->pool[i] - most);
    for (int i = 0; i < n; i++)
        s->r->vec[i] = (float)(g->card->score == CARD_SOFTMAX   ? exp(s->pool[i] - most) / sum
                               : g->card->score == CARD_SIGMOID ? 1 / (1 + exp(-s->pool[i]))
                                                                : s->pool[i]);
}

/* What was summed up, as a vector of length 1, or as the mean it is. */
static void finish_vec(const struct engine *g, struct seq *s)
{
    double sum = 0;

    if (g->lim.classifies) {
        finish_scores(g, s);
        return;
    }
    if (g->card && !g->card->normalize) {
        sum = g->card->pool == CARD_MEAN ? (double)s->tokens.n : 1;
        for (int i = 0; i < g->lim.n_embd; i++) s->r->vec[i] = (float)(s->pool[i] / sum);
        return;
    }
    for (int i = 0; i < g->lim.n_embd; i++) sum += s->pool[i] * s->pool[i];
    sum = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int i = 0; i < g->lim.n_embd; i++) s->r->vec[i] = (float)(s->pool[i] * sum);
}

static void take_hidden(struct engine *g)
{
    const float *row = g->step.hidden;

    for (int i = 0; i < g->step.n_seqs; i++) {
        struct seq *s = g->step.seqs[i];
        for (int k = 0; k < g->step.n_hidden_of[i]; k++, row += g->lim.n_embd)
            for (int d = 0; s && d < g->lim.n_embd; d++) s->pool[d] += (double)row[d];
        if (!s || !s->r->embed || (size_t)s->n_kv < s->tokens.n) continue;
        finish_vec(g, s);
        finish(g, place_of(g, s->r), FINISH_STOP, NULL);
    }
}

static void show(struct engine *g)
{
    int running = 0, idle = g->prefix ? prefix_n_idle(g->prefix) : 0;

    for (int i = 0; i < g->n_live; i++) running += g->live[i]->seq && g->live[i]->seq->running;
    gauge_set(&g->stats.running, running);
    gauge_set(&g->stats.waiting, g->n_live - running);
    if (g->n_live - running > gauge_get(&g->stats.queue_peak))
        gauge_set(&g->stats.queue_peak, g->n_live - running);
    gauge_set(&g->stats.kv_idle, idle);
    gauge_set(&g->stats.kv_used, block_n(g->pool) - block_n_free(g->pool) - idle);
    gauge_set(&g->stats.beat_ns, (int64_t)clock_ns());
}

static void fail_step(struct engine *g, const struct err *e)
{
    for (int i = 0; i < g->step.n_seqs; i++)
        if (g->step.seqs[i]) finish(g, place_of(g, g->step.seqs[i]->r), FINISH_ERROR, e);
}

/* Between layers of a running step: who was cancelled, or is late, goes at once. The step need not
 * end for that: nobody is given blocks before it has. true: nobody is left. */
static bool end_in_step(void *arg)
{
    struct engine *g = arg;
    uint64_t now = clock_ns();
    bool left = false;

    for (int i = 0; i < g->step.n_seqs; i++) {
        struct request *r = g->step.seqs[i] ? g->step.seqs[i]->r : NULL;
        if (!r) continue;
        if (!request_is_cancelled(r) && (!r->deadline_ns || now < r->deadline_ns)) {
            left = true;
            continue;
        }
        g->step.seqs[i] = NULL;
        end_one(g, place_of(g, r), now);
    }
    return !left;
}

/* Starts the step, tells of the last one meanwhile, and waits. */
static void run_step(struct engine *g)
{
    const float *logits = NULL;
    uint64_t begin_ns = clock_ns();
    struct err e = { 0 };
    int rc;

    gauge_set(&g->stats.step_begin_ns, (int64_t)begin_ns);
    plan_picks(g);
    rc = step_start(&g->step, g->decoder, end_in_step, g, &e);
    engine_tell(g);
    show(g);
    if (rc == OK) rc = step_wait(&g->step, g->decoder, &logits, &e);
    gauge_set(&g->stats.step_begin_ns, 0);
    if (rc == E_CANCELLED) return;
    if (rc != OK) {
        fail_step(g, &e);
        return;
    }
    count_step(g, begin_ns);
    make_known(g);
    take_hidden(g);
    pick_tokens(g, logits);
}

enum round engine_round(struct engine *g)
{
    bool worked = true;

    g->round_ns = clock_ns();
    g->n_rounds++;
    take_arrivals(g);
    end_cancelled(g);
    if (g->n_live == 0) {
        engine_tell(g);
        show(g);
        return ROUND_IDLE;
    }
    make_plan(g);
    for (int i = 0; i < g->plan.n_preempt; i++) preempt(g, g->live[g->plan.preempt[i]]);
    begin_planned(g);
    if (g->step.n_tokens > 0) {
        run_step(g);
    } else {
        engine_tell(g);
        worked = make_way(g);
    }
    show(g);
    return worked ? ROUND_WORKED : ROUND_BLOCKED;
}
