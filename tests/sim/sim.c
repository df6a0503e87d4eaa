/* sim.c - the simulation of sim.h. A step builds the planner's input, plans, checks the plan,
 * and carries it out. */
#include "sim/sim.h"

#include "base/mem.h"

#include <string.h>

enum { CHECK_EVERY = 64 }; /* in steps; the check of all blocks is quadratic */

/* ---- the model ---- */

static uint64_t sim_mix(uint64_t h, uint64_t w)
{
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 31;
}

/* The simulated KV row of a token: a hash of the row before it and the token. */
static uint64_t sim_key(uint64_t before, int32_t token)
{
    return sim_mix(before + 1, (uint64_t)token);
}
static uint64_t sim_weigh(uint64_t key, int pos) { return key * (2 * (uint64_t)pos + 1); }
static int32_t sim_token_of(uint64_t sum) { return (int32_t)(sim_mix(sum, 77) % 50000); }

static uint64_t *sim_cell(const struct sim *s, const struct chain *c, int pos)
{
    return s->cells + (size_t)c->blocks[pos / KV_BLOCK] * KV_BLOCK + pos % KV_BLOCK;
}

static void sim_compute_kv(struct sim *s, struct sim_seq *q, int n)
{
    for (int i = q->n_kv; i < q->n_kv + n; i++)
        *sim_cell(s, &q->chain, i) = sim_key(i ? *sim_cell(s, &q->chain, i - 1) : 0, q->tokens[i]);
    q->n_kv += n;
    q->n_computed += n;
    s->n_computed += n;
    if (s->prefix) prefix_add(s->prefix, q->req.salt, q->tokens, q->n_kv, q->n_kv - n, &q->chain);
}

/* The next token: a hash of all KV rows, read through the blocks of the sequence. */
static int32_t sim_attend(const struct sim *s, const struct sim_seq *q)
{
    uint64_t sum = 0;
    for (int i = 0; i < q->n_kv; i++) sum += sim_weigh(*sim_cell(s, &q->chain, i), i);
    return sim_token_of(sum);
}

void sim_expect_text(const struct sim *s, int seq)
{
    const struct sim_seq *q = &s->seqs[seq];
    uint64_t key = 0, sum = 0;
    for (int i = 0; i + 1 < q->n_tokens; i++) {
        key = sim_key(key, q->tokens[i]);
        sum += sim_weigh(key, i);
        if (i + 1 >= q->req.n_prompt) assert_int_equal(q->tokens[i + 1], sim_token_of(sum));
    }
}

/* ---- open, add, end ---- */

struct sim *sim_open(struct sim_opt opt)
{
    struct sim *s = mem_new(struct sim);
    s->opt = opt;
    if (!opt.n_blocks) s->opt.n_blocks = 512;
    if (!opt.step_tokens) s->opt.step_tokens = 512;
    if (!opt.max_seqs) s->opt.max_seqs = 16;
    if (opt.cost.step_ns <= 0) s->opt.cost = (struct sched_cost){ 10e6, 0.5e6, 1e6 };
    s->cells = mem_array((size_t)s->opt.n_blocks * KV_BLOCK, sizeof *s->cells);
    assert_non_null(s->cells);
    assert_int_equal(block_pool_open(&s->pool, s->opt.n_blocks, NULL), OK);
    if (!opt.no_prefix) assert_int_equal(prefix_open(&s->prefix, s->pool, NULL), OK);
    s->now_ns = 5000000000u;
    return s;
}

void sim_close(struct sim *s)
{
    for (int i = 0; i < s->n_alive; i++) chain_release(&s->seqs[s->alive[i]].chain, s->pool);
    if (s->prefix) {
        assert_int_equal(prefix_n_idle(s->prefix), prefix_n(s->prefix));
        assert_int_equal(block_n_free(s->pool) + prefix_n(s->prefix), s->opt.n_blocks);
        prefix_clear(s->prefix);
    }
    assert_int_equal(block_n_free(s->pool), s->opt.n_blocks);
    prefix_close(s->prefix);
    block_pool_close(s->pool);
    mem_free(s->cells);
    for (int i = 0; i < s->n_seqs; i++) mem_free(s->seqs[i].tokens);
    mem_free(s->seqs);
    mem_free(s->alive);
    mem_free(s->view);
    mem_free(s->plan.run);
    mem_free(s->plan.begin);
    mem_free(s->plan.preempt);
    mem_free(s->order);
    mem_free(s);
}

static void sim_grow(struct sim *s)
{
    size_t n = s->cap = s->cap ? 2 * s->cap : 64;
    s->seqs = mem_grow(s->seqs, n * sizeof *s->seqs);
    s->alive = mem_grow(s->alive, n * sizeof *s->alive);
    s->view = mem_grow(s->view, n * sizeof *s->view);
    s->plan.run = mem_grow(s->plan.run, n * sizeof *s->plan.run);
    s->plan.begin = mem_grow(s->plan.begin, n * sizeof *s->plan.begin);
    s->plan.preempt = mem_grow(s->plan.preempt, n * sizeof *s->plan.preempt);
    s->order = mem_grow(s->order, n * sizeof *s->order);
}

int sim_add(struct sim *s, struct sim_req req)
{
    struct sim_seq *q;
    uint64_t seed = req.seed ? req.seed : 1000000 + (uint64_t)s->n_seqs;
    assert_true(req.n_prompt > 0 && req.tenant < SIM_TENANTS);
    if (s->n_seqs == s->cap) sim_grow(s);
    q = &s->seqs[s->n_seqs];
    *q = (struct sim_seq){ .req = req, .n_tokens = req.n_prompt, .arrival_ns = s->now_ns };
    if (req.arrival_ns) q->arrival_ns = req.arrival_ns;
    q->tokens = mem_array((size_t)(req.n_prompt + req.n_decode), sizeof *q->tokens);
    for (int i = 0; i < req.n_prompt; i++)
        q->tokens[i] = sim_token_of(sim_mix(i < req.n_common ? req.common : seed, (uint64_t)i));
    assert_true(chain_init(&q->chain, req.n_prompt + req.n_decode));
    s->alive[s->n_alive++] = s->n_seqs;
    return s->n_seqs++;
}

static void sim_end_seq(struct sim *s, int seq, enum sim_state why)
{
    struct sim_seq *q = &s->seqs[seq];
    int i = 0;
    chain_release(&q->chain, s->pool);
    q->state = why;
    q->end_ns = s->now_ns;
    while (s->alive[i] != seq) i++;
    s->n_alive--;
    memmove(s->alive + i, s->alive + i + 1, (size_t)(s->n_alive - i) * sizeof *s->alive);
}

void sim_cancel(struct sim *s, int seq)
{
    if (s->seqs[seq].state <= SIM_RUNNING) sim_end_seq(s, seq, SIM_CANCELLED);
}

int sim_n_emitted(const struct sim *s, int seq)
{
    return s->seqs[seq].n_tokens - s->seqs[seq].req.n_prompt;
}

/* ---- a step ---- */

static int sim_available_blocks(const struct sim *s)
{
    return block_n_free(s->pool) + (s->prefix ? prefix_n_idle(s->prefix) : 0);
}

static struct sched_in sim_make_input(struct sim *s)
{
    for (int i = 0; i < s->n_alive; i++) {
        struct sim_seq *q = &s->seqs[s->alive[i]];
        struct sched_seq *v = &s->view[i];
        *v = (struct sched_seq){ .n_tokens = q->n_tokens,
                                 .n_kv = q->n_kv,
                                 .n_blocks = q->chain.n,
                                 .waiting = q->state == SIM_WAITING,
                                 .held = q->held,
                                 .priority = q->req.priority,
                                 .tenant = q->req.tenant,
                                 .arrival_ns = q->arrival_ns,
                                 .deadline_ns = q->req.deadline_ns };
        if (!s->prefix) continue;
        v->n_shared = q->chain.n - prefix_n_gain(s->prefix, &q->chain);
        if (v->waiting)
            v->n_hit =
                prefix_lookup(s->prefix, q->req.salt, q->tokens, q->n_tokens, &v->n_hit_used);
    }
    return (struct sched_in){ .opt = { .max_tokens = s->opt.step_tokens,
                                       .max_seqs = s->opt.max_seqs,
                                       .block = KV_BLOCK,
                                       .min_chunk = s->opt.min_chunk,
                                       .age_ns = s->opt.age_ns,
                                       .max_step_ns = s->opt.max_step_ns,
                                       .stretch = s->opt.stretch },
                              .cost = s->opt.blind ? (struct sched_cost){ 0 } : s->opt.cost,
                              .now_ns = s->now_ns,
                              .n_free = sim_available_blocks(s),
                              .seqs = s->view,
                              .n_seqs = s->n_alive,
                              .served = s->served,
                              .n_tenants = SIM_TENANTS };
}

/* No sequence has two roles in a plan: it is preempted, or begins, or runs. */
static void sim_check_roles(const struct sim *s)
{
    const struct sched_plan *p = &s->plan;
    char *seen = mem_array((size_t)s->n_alive, 1);
    for (int i = 0; i < p->n_preempt; i++) {
        assert_false(s->view[p->preempt[i]].waiting);
        assert_int_equal(seen[p->preempt[i]]++, 0);
    }
    for (int i = 0; i < p->n_begin; i++) {
        assert_true(s->view[p->begin[i]].waiting);
        assert_int_equal(seen[p->begin[i]], 0);
        seen[p->begin[i]] = 2;
    }
    for (int i = 0; i < p->n_run;
         i++) { /* was running and is not preempted, or begins in this step */
        const struct sched_seq *v = &s->view[p->run[i].seq];
        assert_int_equal(seen[p->run[i].seq], v->waiting ? 2 : 0);
        seen[p->run[i].seq] = 3;
        assert_false(v->held);
        assert_in_range(p->run[i].n, 1, v->n_tokens - v->n_kv);
    }
    mem_free(seen);
}

static void sim_check_plan(struct sim *s, int room)
{
    const struct sched_plan *p = &s->plan;
    int n_running = p->n_begin - p->n_preempt, n_tokens = 0, n_due = 0;
    sim_check_roles(s);
    s->n_decodes = s->n_prefill = 0;
    for (int i = 0; i < s->n_alive; i++) {
        const struct sched_seq *v = &s->view[i];
        n_running += !v->waiting;
        n_due += !v->waiting && !v->held && v->n_tokens - v->n_kv == 1;
    }
    for (int i = 0; i < p->n_run; i++) {
        const struct sched_seq *v = &s->view[p->run[i].seq];
        n_tokens += p->run[i].n;
        if (!v->waiting && v->n_tokens - v->n_kv == 1) s->n_decodes++;
        else s->n_prefill += p->run[i].n;
    }
    if (room >= n_due && s->opt.step_tokens >= s->opt.max_seqs)
        assert_int_equal(s->n_decodes, n_due); /* no decoding sequence is left out */
    assert_int_equal(n_tokens, p->n_tokens);
    assert_true(n_tokens <= s->opt.step_tokens);
    assert_true(n_running <= s->opt.max_seqs);
    assert_true(p->n_run <= s->opt.max_seqs);
}

static void sim_preempt_seq(struct sim *s, int seq)
{
    struct sim_seq *q = &s->seqs[seq];
    chain_truncate(&q->chain, s->pool, 0);
    q->n_kv = 0;
    q->state = SIM_WAITING;
    q->n_preempted++;
    s->n_preempted++;
}

static void sim_begin_seq(struct sim *s, int seq)
{
    struct sim_seq *q = &s->seqs[seq];
    q->state = SIM_RUNNING;
    if (!q->begin_ns) q->begin_ns = s->now_ns;
    if (s->prefix) q->n_kv = prefix_take(s->prefix, q->req.salt, q->tokens, q->n_tokens, &q->chain);
    q->n_cached += q->n_kv;
}

static bool sim_reserve(struct sim *s, struct sim_seq *q, int n)
{
    int want = (q->n_kv + n + KV_BLOCK - 1) / KV_BLOCK - q->chain.n;
    if (s->prefix && want > 0) prefix_evict(s->prefix, want);
    if (chain_reserve(&q->chain, s->pool, q->n_kv + n)) return true;
    s->n_short++;
    return false;
}

static void sim_emit_token(struct sim *s, struct sim_seq *q)
{
    q->tokens[q->n_tokens++] = sim_attend(s, q);
    if (!q->first_ns) q->first_ns = s->now_ns;
    else if (s->now_ns - q->last_ns > q->max_gap_ns) q->max_gap_ns = s->now_ns - q->last_ns;
    q->last_ns = s->now_ns;
}

static void sim_execute_plan(struct sim *s, const int *who, const struct sched_plan *p)
{
    const struct sched_cost *c = &s->opt.cost;
    for (int i = 0; i < p->n_preempt; i++) sim_preempt_seq(s, who[p->preempt[i]]);
    for (int i = 0; i < p->n_begin; i++) sim_begin_seq(s, who[p->begin[i]]);
    s->step_ns =
        (uint64_t)(c->step_ns + s->n_decodes * c->decode_ns + s->n_prefill * c->prefill_ns);
    s->now_ns += s->step_ns;
    for (int i = 0; i < p->n_run; i++) {
        struct sim_seq *q = &s->seqs[who[p->run[i].seq]];
        if (!sim_reserve(s, q, p->run[i].n)) continue;
        sim_compute_kv(s, q, p->run[i].n);
        s->served[q->req.tenant] += (uint64_t)p->run[i].n;
    }
    for (int i = 0; i < p->n_run; i++) {
        int seq = who[p->run[i].seq];
        struct sim_seq *q = &s->seqs[seq];
        if (q->n_kv < q->n_tokens) continue;
        if (q->n_tokens < q->req.n_prompt + q->req.n_decode) sim_emit_token(s, q);
        if (q->n_tokens == q->req.n_prompt + q->req.n_decode) sim_end_seq(s, seq, SIM_DONE);
    }
}

/* Every block reference belongs to a live sequence or to the prefix cache. */
static void sim_check_blocks(const struct sim *s)
{
    int32_t *uses = mem_array((size_t)s->opt.n_blocks, sizeof *uses);
    struct err e = { 0 };
    for (int i = 0; i < s->n_alive; i++) chain_count_uses(&s->seqs[s->alive[i]].chain, uses);
    if (s->prefix) prefix_count_uses(s->prefix, uses);
    if ((s->prefix && prefix_check(s->prefix, &e) != OK) || block_check(s->pool, uses, &e) != OK)
        fail_msg("%s", e.msg);
    mem_free(uses);
}

bool sim_step(struct sim *s)
{
    struct sched_in in;
    struct err e = { 0 };
    int *who;
    if (s->n_alive == 0) return false;
    in = sim_make_input(s);
    who = mem_dup(s->alive, (size_t)s->n_alive * sizeof *who);
    sched_plan(&in, &s->plan, s->order);
    if (sched_check(&in, &s->plan, &e) != OK) fail_msg("%s", e.msg);
    sim_check_plan(s, in.n_free);
    sim_execute_plan(s, who, &s->plan);
    if (s->plan.stuck >= 0) sim_end_seq(s, who[s->plan.stuck], SIM_STUCK);
    if (s->n_steps++ % CHECK_EVERY == 0) sim_check_blocks(s);
    mem_free(who);
    return true;
}

void sim_run(struct sim *s, int n_steps)
{
    while (n_steps-- > 0) sim_step(s);
}

void sim_finish(struct sim *s, int max_steps)
{
    while (sim_step(s))
        if (max_steps-- == 0)
            fail_msg("%d sequences are still alive after the last step", s->n_alive);
}
