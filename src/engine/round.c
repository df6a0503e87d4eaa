/* round.c - one round of the engine: take arrivals, plan, start a step, emit the last step's
 * events, wait, sample.
 *
 * A step starts as soon as its content is known: which tokens were sampled, which sequences ended.
 * Events of the last step are emitted while the next one computes, so that detokenizing and waking
 * readers cost no time between steps. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_impl.h"
#include "model/parallel.h"

#include <assert.h>
#include <string.h>

enum {
    LOOK_AHEAD = 64,       /* waiting requests whose prefix is looked up in a round */
    CHECK_EVERY = 16,      /* rounds between measurements of how long the cancel checks take */
    SOLO = 4,              /* times step_ms: a chunk alone in its step, which a cancel can stop */
    SERVED_HALF = 1 << 20, /* tokens after which earlier service counts half */
    RECENT_STEPS = 64,     /* over which the share of communication is told */
    SLOW_STEP = 4, /* times the expected time of a step, and SLOW_STEP_NS: said in the log */
    SLOW_STEP_NS = 100000000,
    RESUME_NS = 1500000000, /* resumed tokens are computed one by one if that takes no longer */
    PATIENCE = 20 /* empty rounds, about 1 ms each, that a reader has to empty its outbox */
};

#define RELAXED memory_order_relaxed

/* ---- the list of live requests ---- */

void engine_unlist(struct engine *g, int i)
{
    memmove(g->live + i, g->live + i + 1, (size_t)(--g->n_live - i) * sizeof *g->live);
}

int engine_find_live(const struct engine *g, const struct request *r)
{
    for (int i = 0; i < g->n_live; i++)
        if (g->live[i] == r) return i;
    return -1;
}

static bool is_running(const struct request *r) { return r->seq && r->seq->running; }

static int count_running(const struct engine *g)
{
    int n = 0;

    for (int i = 0; i < g->n_live; i++) n += is_running(g->live[i]);
    return n;
}

void engine_finish_live(struct engine *g, int i, enum finish why, const struct err *e)
{
    struct request *r = g->live[i];

    for (int k = 0; k < g->n_pending; k++)
        if (g->pending[k].r == r) engine_emit_one(g, &g->pending[k]);
    engine_unlist(g, i);
    engine_end(g, r, why, e);
}

/* ---- arrivals and cancels ---- */

/* A tenant that had no request here starts level with the least served of the others: service that
 * they got meanwhile is not owed to it. */
static void level_tenant(struct engine *g, const struct request *r)
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
        level_tenant(g, r);
        g->live[g->n_live++] = r;
    }
}

/* Ends live[i] if it was cancelled, is late, or lost text. */
static void end_if_over(struct engine *g, int i, uint64_t now)
{
    struct err e = { 0 };
    struct request *r = g->live[i];

    if (request_is_cancelled(r)) {
        err_set(&e, E_CANCELLED, "the request was cancelled");
        engine_finish_live(g, i, FINISH_CANCELLED, &e);
    } else if (r->deadline_ns && now >= r->deadline_ns) {
        err_set(&e, E_DEADLINE, "the deadline passed after %d tokens", r->n_out);
        engine_finish_live(g, i, FINISH_DEADLINE, &e);
    } else if (r->seq && r->seq->failed) {
        err_nomem(&e, "the text of the completion");
        engine_finish_live(g, i, FINISH_ERROR, &e);
    }
}

static void end_cancelled(struct engine *g)
{
    bool abort_all = atomic_exchange_explicit(&g->abort, false, memory_order_acq_rel);
    bool timed = g->n_rounds % CHECK_EVERY == 0 && g->n_live > 0;
    int n = g->n_live;
    uint64_t begin = timed ? clock_ns() : 0;

    for (int i = g->n_live - 1; i >= 0; i--) {
        if (abort_all) request_cancel(g->live[i], CANCEL_SHUTDOWN);
        end_if_over(g, i, g->round_ns);
    }
    if (timed && g->n_live == n)
        hist_add(&g->stats->deadline_check_us, (double)(clock_ns() - begin) / 1e3 / n);
}

/* ---- planning ---- */

/* Will another request, ahead of r, compute the next block of r's prompt that is not cached yet?
 * Then r waits for it: one computes the block, all use it. */
static bool is_being_computed(const struct engine *g, const struct request *r, int n_before)
{
    for (int i = 0; i < n_before; i++) {
        const struct request *o = g->live[i];
        int there = is_running(o) && o->seq->n_kv > r->n_hit ? o->seq->n_kv : r->n_hit;
        size_t need = (size_t)(there / KV_BLOCK + 1) * KV_BLOCK; /* up to the next block's end */

        if (g->view[i].held || o->salt != r->salt || o->priority < r->priority) continue;
        if (need > o->prompt.n || need >= r->prompt.n) continue;
        if (memcmp(o->prompt.p, r->prompt.p, need * sizeof *r->prompt.p) == 0) return true;
    }
    return false;
}

/* May r begin behind cached tokens? A vector needs hidden rows of all of them, unless it is made of the
 * last one's: then scores of texts that begin alike share it. Embeddings stay what they are, to the
 * last bit, whatever was computed before. */
static bool uses_prefix(const struct engine *g, const struct request *r)
{
    return g->prefix && (!r->embed || (r->classify && !g->snaps && !g->runner->lim.bidirectional &&
                                       g->step.opt.pooler.pooling == POOL_LAST));
}

/* Tokens of r that are cached and need no prefill. */
static void look_up_prefix(struct engine *g, struct request *r, struct sched_seq *v)
{
    const struct ids *t = r->seq ? &r->seq->tokens : &r->prompt;

    r->n_hit = prefix_lookup(g->prefix, r->salt, t->p, (int)t->n, &v->n_hit_used);
    if (!g->snaps) return;
    r->n_hit = snaps_find(g->snaps, r->salt, t->p, r->n_hit);
    if (v->n_hit_used > r->n_hit) v->n_hit_used = r->n_hit;
}

/* One request as the scheduler sees it, without what the prefix cache knows. */
static struct sched_seq describe_one(const struct request *r)
{
    const struct seq *s = r->seq;

    return (struct sched_seq){ .n_tokens = s ? (int)s->tokens.n : (int)(r->prompt.n + r->resume.n),
                               .n_kv = s ? s->n_kv : 0,
                               .n_blocks = s ? s->chain.n : 0,
                               .waiting = !s || !s->running,
                               .held = !outbox_has_room(&r->out),
                               .priority = r->priority,
                               .tenant = r->tenant % TENANTS,
                               .arrival_ns = r->arrival_ns,
                               .deadline_ns = r->deadline_ns };
}

/* Counts the requests of each ticket; returns the number of those that wait, with or without one. */
static int count_tickets(struct engine *g)
{
    int n_waiting = 0;

    for (int i = 0; i < g->n_live; i++)
        if (g->live[i]->ticket) g->live[i]->ticket->n_running = g->live[i]->ticket->n_waiting = 0;
    for (int i = 0; i < g->n_live; i++) {
        struct ticket *t = g->live[i]->ticket;
        bool running = is_running(g->live[i]);
        n_waiting += !running;
        if (t && running) t->n_running++;
        else if (t) t->n_waiting++;
    }
    return n_waiting;
}

/* While others wait, the requests of one ticket have half of the places at most: a list of a
 * thousand texts, which ranks as early as its first, would keep all of them for itself. */
static void hold_long_lists(struct engine *g)
{
    int n_waiting = count_tickets(g), most = g->opt.max_seqs > 1 ? g->opt.max_seqs / 2 : 1;

    for (int i = 0; i < g->n_live; i++) {
        struct ticket *t = g->live[i]->ticket;
        if (!t || is_running(g->live[i]) || t->n_waiting == n_waiting) continue;
        if (t->n_running++ >= most) g->view[i].held = true;
    }
}

/* Fills the scheduler's view of all live requests. */
static void describe_live(struct engine *g, int n_free)
{
    bool tight = n_free < block_n(g->pool) / 4; /* only then may a sequence be preempted */
    int n_looked = 0, n_running = count_running(g);

    for (int i = 0; i < g->n_live; i++) g->view[i] = describe_one(g->live[i]);
    hold_long_lists(g);
    for (int i = 0; i < g->n_live; i++) {
        struct request *r = g->live[i];
        struct sched_seq *v = &g->view[i];

        if (!v->waiting && tight && g->prefix)
            v->n_shared = r->seq->chain.n - prefix_n_gain(g->prefix, &r->seq->chain);
        if (!v->waiting || v->held || !uses_prefix(g, r)) continue;
        if (n_running < g->opt.max_seqs && n_looked++ < LOOK_AHEAD) {
            look_up_prefix(g, r, v);
            if (!r->seq)
                v->held = g->snaps ? engine_is_state_coming(g, r, i) : is_being_computed(g, r, i);
        }
        v->n_hit = r->n_hit;
    }
}

/* Sequences that would decode in the next step: the size class of its cost. */
static int count_decodes(const struct engine *g)
{
    int n = 0;

    for (int i = 0; i < g->n_live; i++) {
        const struct sched_seq *v = &g->view[i];
        n += !v->waiting && !v->held && v->n_tokens - v->n_kv == 1;
    }
    return n;
}

/* The plan of the next step, in plan_now. Pure but for the prefix lookups. */
static void make_plan(struct engine *g)
{
    uint64_t step_ns = (uint64_t)g->opt.step_ms * 1000000;
    struct sched_in in = { .opt = { .max_tokens = g->opt.max_batch,
                                    .max_seqs = g->opt.max_seqs,
                                    .block = KV_BLOCK,
                                    .min_chunk = g->runner->lim.min_chunk,
                                    .age_ns = (uint64_t)g->opt.age_ms * 1000000,
                                    .max_step_ns = step_ns,
                                    .solo_step_ns = step_ns * SOLO,
                                    .stretch = g->opt.stretch },
                           .now_ns = g->round_ns,
                           .n_free =
                               block_n_free(g->pool) + (g->prefix ? prefix_n_idle(g->prefix) : 0),
                           .seqs = g->view,
                           .n_seqs = g->n_live,
                           .served = g->served,
                           .n_tenants = TENANTS };

    describe_live(g, in.n_free);
    in.cost = cost_of(&g->cost, count_decodes(g));
    sched_plan(&in, &g->plan_now, g->order);
    if (HARD) {
        struct err e;
        if (sched_check(&in, &g->plan_now, &e) != OK) {
            log_error("hard mode: %s", e.msg);
            assert(false);
        }
    }
}

/* ---- carrying the plan out ---- */

/* The sequence keeps its tokens and its sampler; blocks and state are computed again when it
 * resumes, with the help of the prefix cache. The text stays the same. */
static void preempt(struct engine *g, struct request *r)
{
    seq_drop_kv(r->seq, g->pool);
    engine_free_slot(g, r->seq);
    r->seq->running = false;
    r->n_preempted++;
    atomic_store_explicit(&r->state, REQ_PREEMPTED, RELAXED);
    counter_add(&g->stats->preemptions, 1);
}

static bool is_end_token(void *arg, int32_t id)
{
    const struct engine *g = arg;

    return ends_has(&g->ends, id);
}

/* The tokens that a request continues behind. The grammar must allow them. */
static int resume_seq(struct engine *g, struct request *r, struct err *e)
{
    struct seq *s = r->seq;

    s->resumed_to = seq_resume(s, is_end_token, g);
    s->one_by_one = (double)r->resume.n * cost_of(&g->cost, 1).step_ns < RESUME_NS;
    for (size_t i = 0; i < r->resume.n && s->matcher.cache; i++) {
        if (ends_has(&g->ends, r->resume.p[i])) break;
        if (matcher_accept(&s->matcher, r->resume.p[i]) != OK)
            return err_set(e, E_INVALID,
                           "token %zu of the completion to continue does not follow the grammar",
                           i);
    }
    if (s->matcher.cache && s->resumed_to == FINISH_NONE && matcher_is_complete(&s->matcher))
        s->resumed_to = FINISH_STOP;
    return OK;
}

/* The first time a request runs. */
static int open_seq(struct engine *g, struct request *r, struct err *e)
{
    int rc = seq_open(&r->seq, r, &g->lim, g->tokenizer, e);

    if (rc == OK && r->grammar)
        rc = guided_begin(&g->guided, &r->seq->matcher, r->grammar, r->seq->stream.detok.ids.n == 0,
                          e);
    return rc == OK && r->resume.n ? resume_seq(g, r, e) : rc;
}

/* A preempted request that resumes was counted before. */
static void count_begin(struct engine *g, struct request *r)
{
    if (r->start_ns) return; /* it was preempted: counted the first time */
    r->start_ns = clock_ns();
    r->n_cached = r->seq->n_kv;
    admit_begun(&g->admit, r);
    if (r->quiet) return;
    counter_add(&g->stats->prompt_tokens, r->prompt.n);
    counter_add(&g->stats->cached_tokens, (uint64_t)r->n_cached);
    counter_add(&g->stats->prefix_queried, r->prompt.n);
    counter_add(&g->stats->prefix_hit, (uint64_t)r->n_cached);
}

/* Begins or resumes a request: opens its sequence, takes a slot and cached blocks. */
static int begin_request(struct engine *g, struct request *r, struct err *e)
{
    struct seq *s;
    int rc;

    if (!r->seq && (rc = open_seq(g, r, e)) != OK) return rc;
    s = r->seq;
    if (g->slots.n && (s->slot = slots_get(&g->slots)) < 0)
        return err_set(e, E_NOMEM, "all %d slots of recurrent state are taken", g->slots.n);
    s->running = true;
    if (uses_prefix(g, r))
        s->n_kv = s->n_published =
            prefix_take(g->prefix, r->salt, s->tokens.p, (int)s->tokens.n, &s->chain);
    if (g->snaps && s->n_kv > 0) engine_restore_state(g, s);
    atomic_store_explicit(&r->state, REQ_PREFILL, RELAXED);
    count_begin(g, r);
    return OK;
}

/* Reserves blocks for n more tokens, evicting cached blocks that no sequence uses. */
static bool reserve_blocks(struct engine *g, struct seq *s, int n)
{
    int want = (s->n_kv + n + KV_BLOCK - 1) / KV_BLOCK - s->chain.n;

    if (chain_reserve(&s->chain, g->pool, s->n_kv + n)) return true;
    return g->prefix && prefix_evict(g->prefix, want) &&
           chain_reserve(&s->chain, g->pool, s->n_kv + n);
}

/* A step of many tokens rounds otherwise than one of a single token. A sequence that continues one of
 * another engine is computed in the same steps where that takes little time, so that its next token is
 * the same: the prompt first, then token by token. */
static int limit_resumed(const struct seq *s, int n)
{
    int left = (int)s->r->prompt.n - s->n_kv;

    if (!s->one_by_one) return n;
    if (left > 0) return n < left ? n : left;
    return n > 1 ? 1 : n;
}

/* Tokens of s in this step, of n planned ones: no more than it has and the batch has room for. */
static int tokens_of(struct engine *g, const struct seq *s, int n)
{
    int left = (int)s->tokens.n - s->n_kv, room = g->opt.max_batch - g->step.n_tokens;
    int snap = g->snaps ? engine_next_snapshot(s->r, s->n_kv) : 0;

    if (g->runner->lim.bidirectional) return left <= room ? left : 0; /* all at once */
    if (n > left) n = left;
    if (n > room) n = room;
    if (s->r->resume.n) n = limit_resumed(s, n);
    if (HARD && n > 1)
        n = 1 + (int)(rng_u64(&g->rng) % (uint64_t)(n < HARD_CHUNK ? n : HARD_CHUNK));
    if (snap && s->n_kv + n > snap) n = snap - s->n_kv;
    return n;
}

/* The batch of the planned sequences. One that finds no blocks is left out: the plan counted idle
 * blocks as free, and eviction may yield fewer. */
static void fill_step(struct engine *g)
{
    step_clear(&g->step);
    for (int i = 0; i < g->plan_now.n_run && g->step.n_seqs < g->opt.max_seqs; i++) {
        struct seq *s = g->live[g->plan_now.run[i].seq]->seq;
        int n;

        if (!s || !s->running) continue;
        n = tokens_of(g, s, g->plan_now.run[i].n);
        if (n > 0 && reserve_blocks(g, s, n)) step_add(&g->step, s, n);
    }
}

/* Begins the planned requests and fills the step; then ends those that could not begin. Ending
 * shifts `live`, which the plan's indices refer to, so it comes last. */
static void begin_planned(struct engine *g)
{
    enum finish why[4];
    struct err e[4];
    int bad[4], n_bad = 0;

    for (int i = 0; i < g->plan_now.n_begin && n_bad < 4; i++) {
        struct request *r = g->live[g->plan_now.begin[i]];
        e[n_bad] = (struct err){ 0 };
        why[n_bad] = FINISH_ERROR;
        if (begin_request(g, r, &e[n_bad]) == OK) {
            if (r->seq->resumed_to == FINISH_NONE) continue;
            why[n_bad] = r->seq->resumed_to; /* the tokens to continue behind were all of them */
            r->seq->running = false;
        }
        bad[n_bad++] = g->plan_now.begin[i];
    }
    fill_step(g);
    while (n_bad-- > 0) {
        for (int i = 0; i < n_bad; i++)
            if (bad[i] > bad[n_bad]) bad[i]--;
        engine_finish_live(g, bad[n_bad], why[n_bad], e[n_bad].code ? &e[n_bad] : NULL);
    }
}

/* The step is empty: blocks, or places for running sequences, are so short that no sequence can
 * advance. A sequence whose outbox is full is preempted first, if another one can use its blocks
 * and its reader has had time to read; then the sequence that began last. If that is the only one,
 * it ends. false: there is nothing to do until an outbox is read.
 *
 * An outbox can be read at any moment. A sequence that the plan left out because its outbox was
 * full, and that has room now, is not short of blocks: the next plan includes it. */
static bool preempt_one(struct engine *g)
{
    int last = -1, n = 0, blocked = -1, n_waiting = 0;
    struct err e = { 0 };

    for (int i = 0; i < g->n_live; i++) {
        bool room = outbox_has_room(&g->live[i]->out);
        if (room && g->view[i].held && !g->view[i].waiting) return true;
        if (is_running(g->live[i]) && room) last = i, n++;
        else if (is_running(g->live[i])) blocked = i;
        else n_waiting += room;
    }
    if (blocked >= 0 && n + n_waiting > 0) {
        if (n == 0 && ++g->n_empty < PATIENCE) return false;
        last = blocked, n = 2;
    }
    if (n == 0) return false;
    if (n > 1) {
        preempt(g, g->live[last]);
        return true;
    }
    err_set(&e, E_NOMEM, "no KV block is free for a sequence of %zu tokens",
            g->live[last]->seq->tokens.n);
    engine_finish_live(g, last, FINISH_ERROR, &e);
    return true;
}

/* ---- after the step ---- */

/* Adds full blocks to the prefix cache, and takes snapshots of recurrent state. */
static void publish_prefixes(struct engine *g)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        struct seq *s = g->step.seqs[i];
        if (!s) continue;
        if (g->snaps) engine_save_state(g, s);
        if (!g->prefix || s->n_kv / KV_BLOCK == s->n_published / KV_BLOCK) continue;
        prefix_add(g->prefix, s->r->salt, s->tokens.p, s->n_kv, s->n_published, &s->chain);
        s->n_published = s->n_kv / KV_BLOCK * KV_BLOCK;
    }
}

/* A step that took far longer than its like is worth a line: others wait for their tokens. */
static void note_step_time(struct engine *g, int n_decode, int n_prefill, double ns)
{
    struct sched_cost c = cost_of(&g->cost, n_decode);
    double expected = c.step_ns + n_prefill * c.prefill_ns;

    if (expected > 0 && ns > SLOW_STEP_NS && ns > SLOW_STEP * expected)
        log_debug("a step of %d decodes and %d prompt tokens took %.0f ms, %.0f were expected",
                  n_decode, n_prefill, ns / 1e6, expected / 1e6);
    cost_learn(&g->cost, n_decode, n_prefill, ns);
    hist_add(&g->stats->step_time, ns / 1e9);
}

/* Communication of a model of several members; recent steps are about the last RECENT_STEPS. */
static void count_gang(struct engine *g)
{
    const double keep = 1 - 1.0 / RECENT_STEPS;
    struct parallel_stats now;
    uint64_t step, comm;

    if (!parallel_stats(g->runner, &now)) return;
    step = now.step_ns - g->gang.step_ns;
    comm = now.comm_ns - g->gang.comm_ns;
    g->gang.step_ns = now.step_ns;
    g->gang.comm_ns = now.comm_ns;
    g->gang.recent_step = g->gang.recent_step * keep + (double)step;
    g->gang.recent_comm = g->gang.recent_comm * keep + (double)comm;
    counter_add(&g->stats->gang_step_ns, step);
    counter_add(&g->stats->gang_comm_ns, comm);
    if (g->gang.recent_step > 0)
        gauge_set(&g->stats->comm_ppm, (int64_t)(1e6 * g->gang.recent_comm / g->gang.recent_step));
}

/* Teaches the cost model, counts service per tenant and the step itself. Sequences with one token
 * count as decodes, also where a chunk happens to be that small. */
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
    note_step_time(g, n_decode, n_prefill, (double)(clock_ns() - begin_ns));
    atomic_store_explicit(&g->admit.prefill_ns, (uint64_t)g->cost.prefill_ns, RELAXED);
    atomic_store_explicit(&g->admit.step_ns, (uint64_t)cost_of(&g->cost, n_decode).step_ns,
                          RELAXED);
    counter_add(&g->stats->steps, 1);
    counter_add(&g->stats->step_tokens, (uint64_t)g->step.n_tokens);
    hist_add(&g->stats->step_size, g->step.n_tokens);
    count_gang(g);
}

/* Scores of a reranker are wanted as the head computes them. */
static void finish_vector(const struct pooler *p, struct seq *s)
{
    struct pooler raw = *p;

    if (s->r->raw) raw.form = VEC_RAW;
    pooler_finish(&raw, s->vec_sum, (int)s->tokens.n, s->r->vec);
}

/* Sums the hidden rows of the step; texts that are complete end with their vector. */
static void pool_vectors(struct engine *g)
{
    const struct pooler *p = &g->step.opt.pooler;
    const float *row = g->step.hidden;

    for (int i = 0; i < g->step.n_seqs; i++) {
        struct seq *s = g->step.seqs[i];
        for (int k = 0; k < g->step.n_hidden_of[i]; k++, row += p->width)
            if (s) pooler_add(p, s->vec_sum, row);
        if (!s || !s->r->embed || (size_t)s->n_kv < s->tokens.n) continue;
        finish_vector(p, s);
        engine_finish_live(g, engine_find_live(g, s->r), FINISH_STOP, NULL);
    }
}

/* Numbers for /status and /metrics. The watchdog takes an old beat_ns for a stalled engine. */
static void set_gauges(struct engine *g)
{
    int running = count_running(g), idle = g->prefix ? prefix_n_idle(g->prefix) : 0;
    int waiting = g->n_live - running;

    gauge_set(&g->stats->running, running);
    gauge_set(&g->stats->waiting, waiting);
    if (waiting > gauge_get(&g->stats->queue_peak)) gauge_set(&g->stats->queue_peak, waiting);
    gauge_set(&g->stats->kv_idle, idle);
    gauge_set(&g->stats->kv_used, block_n(g->pool) - block_n_free(g->pool) - idle);
    gauge_set(&g->stats->beat_ns, (int64_t)clock_ns());
}

/* The runner failed: every sequence of the step ends with its error. */
static void fail_step(struct engine *g, const struct err *e)
{
    for (int i = 0; i < g->step.n_seqs; i++)
        if (g->step.seqs[i])
            engine_finish_live(g, engine_find_live(g, g->step.seqs[i]->r), FINISH_ERROR, e);
    engine_judge_failed_step(g, e);
}

/* Called between layers of a running step: requests that were cancelled or are late end at once.
 * Their blocks are free then, but no sequence gets them before the step has ended. true: no
 * sequence of the step is left. */
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
        end_if_over(g, engine_find_live(g, r), now);
    }
    return !left;
}

/* The device has the first step of these requests. */
static void note_dispatch(struct engine *g)
{
    uint64_t now = clock_ns();

    for (int i = 0; i < g->step.n_seqs; i++) {
        struct request *r = g->step.seqs[i] ? g->step.seqs[i]->r : NULL;
        if (r && !r->dispatch_ns) r->dispatch_ns = now;
    }
}

/* Starts the step, emits the last one's events meanwhile, waits, and takes the results. */
static void run_step(struct engine *g)
{
    const float *logits = NULL;
    uint64_t begin_ns = clock_ns();
    struct err e = { 0 };
    int rc;

    gauge_set(&g->stats->step_begin_ns, (int64_t)begin_ns);
    token_plan_samples(g);
    rc = step_start(&g->step, end_in_step, g, &e);
    note_dispatch(g);
    engine_emit(g);
    set_gauges(g);
    if (rc == OK) rc = step_wait(&g->step, &logits, &e);
    gauge_set(&g->stats->step_begin_ns, 0);
    if (rc == E_CANCELLED) return;
    if (rc != OK) {
        fail_step(g, &e);
        return;
    }
    if (engine_fail_if_damaged(g)) return;
    g->n_failed_steps = 0;
    count_step(g, begin_ns);
    publish_prefixes(g);
    pool_vectors(g);
    token_pick_all(g, logits);
    token_sample_all(g, logits);
}

/* ---- hard mode ---- */

/* Preempts the running request that arrived last, but never the only one. The victim must be
 * decoding: then it has sampled a token since it began, so that all requests end some time. */
static void preempt_often(struct engine *g)
{
    int last = -1;

    if (g->n_rounds % (HARD_PREEMPT_EVERY + 1) != 0 || count_running(g) < 2) return;
    for (int i = 0; i < g->n_live; i++)
        if (is_running(g->live[i]) &&
            (size_t)g->live[i]->seq->n_kv + 1 == g->live[i]->seq->tokens.n)
            last = i;
    if (last >= 0) preempt(g, g->live[last]);
}

/* A broken invariant is a mistake of ours; in this build the process ends where it shows. */
static void check_hard(struct engine *g)
{
    struct err e = { 0 };

    if (engine_check(g, &e) == OK) return;
    log_error("hard mode: %s", e.msg);
    assert(false);
}

/* ---- a round ---- */

/* The part of a round that computes. false: nothing could be done. */
static bool work(struct engine *g)
{
    int n;

    make_plan(g);
    n = g->n_live;
    for (int i = 0; i < g->plan_now.n_preempt; i++) preempt(g, g->live[g->plan_now.preempt[i]]);
    begin_planned(g);
    if (g->step.n_tokens > 0) {
        g->n_empty = 0;
        run_step(g);
        return true;
    }
    engine_emit(g);
    if (g->n_live != n) return true; /* a request ended, so there may be blocks now */
    return preempt_one(g);
}

enum round engine_round(struct engine *g)
{
    bool worked;

    g->round_ns = clock_ns();
    g->n_rounds++;
    take_arrivals(g);
    end_cancelled(g);
    engine_fail_if_lost(g);
    if (atomic_load_explicit(&g->failed, RELAXED)) engine_end_all(g);
    if (g->n_live == 0) {
        engine_emit(g);
        set_gauges(g);
        return ROUND_IDLE;
    }
    if (HARD) preempt_often(g);
    worked = work(g);
    if (HARD) check_hard(g);
    set_gauges(g);
    return worked ? ROUND_WORKED : ROUND_BLOCKED;
}
