/* Scheduler, block pool and prefix cache together, simulated over the whole life of many
 * sequences (sim/sim.h): fairness, deadlines, preemption, shared prefixes, and no leaked blocks.
 *
 * The simulation checks budgets and blocks in every step. Reads no files. */
#include "sim/sim.c"

#include "base/rng.h"

#define MS 1000000u
#define SECOND 1000000000u

static int random_between(struct rng *r, int least, int most)
{
    return least + (int)(rng_u64(r) % (uint64_t)(most - least + 1));
}

static void decode_continues_while_a_long_prompt_prefills(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .n_blocks = 512, .step_tokens = 32 });
    int decoding = sim_add(s, (struct sim_req){ .n_prompt = 8, .n_decode = 100 });
    int late;
    (void)state;
    sim_run(s, 2);
    late = sim_add(s, (struct sim_req){ .n_prompt = 4000, .n_decode = 1 });
    sim_run(s, 10);
    assert_int_equal(sim_n_emitted(s, decoding), 12); /* one token per step */
    assert_int_equal(s->seqs[late].n_kv, 160);
    sim_finish(s, 1000);
    sim_expect_text(s, decoding);
    sim_expect_text(s, late);
    sim_close(s);
}

static void a_long_prompt_does_not_stretch_steps_past_the_bound(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .stretch = 2.5, .max_step_ns = 200 * MS });
    int talkers[4];
    uint64_t alone;
    (void)state;
    for (int i = 0; i < 4; i++)
        talkers[i] = sim_add(s, (struct sim_req){ .n_prompt = 8, .n_decode = 300 });
    sim_run(s, 3);
    alone = s->step_ns; /* four decodes and no prefill: 12 ms */
    assert_int_equal(alone, 12 * MS);
    sim_add(s, (struct sim_req){ .n_prompt = 3000, .n_decode = 4 });
    for (int i = 0; i < 100; i++) {
        sim_step(s);
        assert_int_equal(s->n_decodes, 4);
        assert_true((double)s->step_ns <= 2.5 * (double)alone);
    }
    assert_int_equal(s->n_prefill, 16);
    sim_finish(s, 2000);
    for (int i = 0; i < 4; i++) assert_true(s->seqs[talkers[i]].max_gap_ns <= 3 * alone);
    sim_close(s);
}

static void steps_of_unknown_cost_are_short_beside_decodes(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .blind = true });
    (void)state;
    sim_add(s, (struct sim_req){ .n_prompt = 8, .n_decode = 200 });
    sim_run(s, 2);
    sim_add(s, (struct sim_req){ .n_prompt = 3000, .n_decode = 4 });
    for (int i = 0; i < 40; i++) {
        sim_step(s);
        assert_int_equal(s->n_decodes, 1);
        assert_true(s->n_prefill <= 64);
    }
    sim_finish(s, 1000);
    sim_close(s);
}

static struct sim_req make_random_request(struct rng *r, int most, int most_decode)
{
    struct sim_req q = { .n_prompt = random_between(r, 1, most),
                         .n_decode = random_between(r, 1, most_decode) };
    q.n_common = random_between(r, 0, 1) ? random_between(r, 1, most) : 0;
    q.common = (uint64_t)random_between(r, 1, 4);
    q.salt = (uint64_t)random_between(r, 0, 1);
    q.priority = random_between(r, 0, 1) * 10;
    q.tenant = (uint32_t)random_between(r, 0, 3);
    return q;
}

/* The simulation itself checks budgets and blocks in every step. */
static void budgets_are_kept_over_thousands_of_random_steps(void **state)
{
    int64_t n_preempted = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct sim *s =
            sim_open((struct sim_opt){ .n_blocks = (seed % 2 ? 60 : 30) + 10 * (int)seed,
                                       .step_tokens = 16 << seed % 4,
                                       .max_seqs = 4 + 2 * (int)seed,
                                       .no_prefix = seed == 6,
                                       .max_step_ns = 80 * MS });
        struct rng r;
        rng_seed(&r, seed);
        for (int step = 0; step < 2000; step++) {
            if (s->n_alive < 40 && random_between(&r, 0, 2) == 0)
                sim_add(s, seed % 2 ? make_random_request(&r, 600, 60)
                                    : make_random_request(&r, 60, 300));
            if (s->n_alive &&
                random_between(&r, 0, 3) == 0) { /* a client stops reading, or reads again */
                struct sim_seq *q = &s->seqs[s->alive[random_between(&r, 0, s->n_alive - 1)]];
                q->held = !q->held && random_between(&r, 0, 4) == 0;
            }
            sim_step(s);
        }
        for (int i = 0; i < s->n_seqs; i++) s->seqs[i].held = false;
        sim_finish(s, 20000);
        for (int i = 0; i < s->n_seqs; i++) {
            assert_int_equal(s->seqs[i].state, SIM_DONE);
            sim_expect_text(s, i);
        }
        assert_int_equal(s->n_short, 0);
        n_preempted += s->n_preempted;
        sim_close(s);
    }
    assert_true(n_preempted > 100);
}

static void batch_work_finishes_under_a_steady_stream_of_interactive(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .max_seqs = 4, .stretch = 2.5 });
    uint64_t start = s->now_ns;
    int batch;
    (void)state;
    for (int i = 0; i < 8; i++)
        sim_add(s, (struct sim_req){ .n_prompt = 64, .n_decode = 40, .priority = 10 });
    batch = sim_add(s, (struct sim_req){ .n_prompt = 400, .n_decode = 50 });
    while (s->seqs[batch].state < SIM_DONE && s->now_ns - start < 120 * (uint64_t)SECOND) {
        while (s->n_alive < 10) /* always more interactive requests than max_seqs */
            sim_add(s, (struct sim_req){ .n_prompt = 64, .n_decode = 40, .priority = 10 });
        sim_step(s);
    }
    assert_int_equal(s->seqs[batch].state, SIM_DONE);
    assert_true(s->seqs[batch].begin_ns - start >
                9 * (uint64_t)SECOND); /* the batch request was delayed */
    assert_true(s->seqs[batch].end_ns - start <
                20 * (uint64_t)SECOND); /* ten times age_ns, and its own run time */
    sim_finish(s, 2000);
    sim_close(s);
}

static void requests_without_a_deadline_do_not_starve(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .max_seqs = 2, .age_ns = 100 * MS });
    uint64_t start = s->now_ns;
    int plain = -1;
    (void)state;
    while (plain < 0 || s->seqs[plain].state < SIM_DONE) {
        while (s->n_alive < 6 + (plain >= 0))
            sim_add(s, (struct sim_req){ .n_prompt = 32,
                                         .n_decode = 30,
                                         .deadline_ns = s->now_ns + 60 * (uint64_t)SECOND });
        if (plain < 0) plain = sim_add(s, (struct sim_req){ .n_prompt = 32, .n_decode = 30 });
        sim_step(s);
        assert_true(s->now_ns - start < 12 * (uint64_t)SECOND);
    }
    assert_true(s->seqs[plain].begin_ns - start > 6 * (uint64_t)SECOND);
    sim_finish(s, 2000);
    sim_close(s);
}

static void tenants_get_equal_service_while_both_have_work(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .max_seqs = 4, .no_prefix = true });
    struct rng r;
    double a, b;
    int n_light = 0;
    (void)state;
    rng_seed(&r, 3);
    for (int i = 0; i < 500; i++) /* the flood arrives first, and waits for minutes */
        sim_add(s, (struct sim_req){
                       .n_prompt = random_between(&r, 20, 100), .n_decode = 30, .tenant = 0 });
    sim_run(s, 500);
    memset(s->served, 0, sizeof s->served);
    for (int i = 0; i < 2000; i++) {
        while (n_light < 10 + i / 100) {
            sim_add(s, (struct sim_req){
                           .n_prompt = random_between(&r, 20, 100), .n_decode = 30, .tenant = 1 });
            n_light++;
        }
        for (int k = n_light = 0; k < s->n_alive; k++)
            n_light += s->seqs[s->alive[k]].req.tenant == 1;
        sim_step(s);
    }
    a = (double)s->served[0];
    b = (double)s->served[1];
    assert_true(a > 1000 && b > 1000);
    assert_true(a / b > 0.95 && a / b < 1.05);
    for (int i = 0; i < s->n_seqs; i++) sim_cancel(s, i);
    sim_close(s);
}

static void a_light_tenant_does_not_wait_for_anothers_backlog(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .max_seqs = 4 });
    int one;
    (void)state;
    for (int i = 0; i < 400; i++) sim_add(s, (struct sim_req){ .n_prompt = 64, .n_decode = 50 });
    while (s->now_ns < 100 * (uint64_t)SECOND && s->n_alive > 100) sim_step(s);
    one = sim_add(s, (struct sim_req){ .n_prompt = 64, .n_decode = 50, .tenant = 1 });
    while (!s->seqs[one].first_ns) sim_step(s);
    assert_true(s->seqs[one].first_ns - s->seqs[one].arrival_ns < 2 * (uint64_t)SECOND);
    assert_true(s->n_alive > 80);
    for (int i = 0; i < s->n_seqs; i++) sim_cancel(s, i);
    sim_close(s);
}

/* Adds 12 sequences that need 17 blocks each at their end, with 60 blocks in all. */
static void add_many(struct sim *s, int *ids)
{
    for (int i = 0; i < 12; i++) {
        ids[i] = sim_add(s, (struct sim_req){ .n_prompt = 64,
                                              .n_decode = 200,
                                              .seed = 900 + (uint64_t)i,
                                              .tenant = (uint32_t)i % 3 });
        s->now_ns += 1000;
    }
}

static void preempted_sequences_give_the_same_text(void **state)
{
    (void)state;
    for (int no_prefix = 0; no_prefix < 2; no_prefix++) {
        struct sim *roomy = sim_open((struct sim_opt){ .n_blocks = 512 });
        struct sim *tight = sim_open((struct sim_opt){ .n_blocks = 60, .no_prefix = no_prefix });
        int a[12], b[12], worst = 0;
        add_many(roomy, a);
        add_many(tight, b);
        sim_finish(roomy, 1000);
        sim_finish(tight, 5000);
        assert_int_equal(roomy->n_preempted, 0);
        assert_true(tight->n_preempted > 0);
        for (int i = 0; i < 12; i++) {
            const struct sim_seq *x = &roomy->seqs[a[i]], *y = &tight->seqs[b[i]];
            assert_int_equal(x->n_tokens, 264);
            assert_int_equal(y->n_tokens, 264);
            assert_memory_equal(x->tokens, y->tokens, 264 * sizeof *x->tokens);
            sim_expect_text(tight, b[i]);
            if (y->n_preempted > worst) worst = y->n_preempted;
        }
        assert_int_equal(tight->seqs[b[0]].n_preempted, 0); /* the oldest is never preempted */
        assert_true(worst < 30);
        assert_true(tight->n_computed < 6 * roomy->n_computed);
        assert_int_equal(tight->n_short, 0);
        sim_close(roomy);
        sim_close(tight);
    }
}

/* The sequences of two tenants do not fit together. The rank of running sequences must not
 * depend on service counts, or the two would preempt each other forever. */
static void two_sequences_that_do_not_fit_together_finish_one_after_the_other(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .n_blocks = 20, .no_prefix = true });
    int a = sim_add(s, (struct sim_req){ .n_prompt = 100, .n_decode = 200, .tenant = 0 });
    int b = sim_add(s, (struct sim_req){ .n_prompt = 100, .n_decode = 200, .tenant = 1 });
    (void)state;
    sim_finish(s, 700);
    assert_int_equal(s->seqs[a].n_preempted, 0);
    assert_true(s->seqs[b].n_preempted <= 2);
    sim_expect_text(s, a);
    sim_expect_text(s, b);
    sim_close(s);
}

static void a_sequence_that_never_fits_ends_and_the_others_continue(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .n_blocks = 20 });
    int big = sim_add(s, (struct sim_req){ .n_prompt = 400, .n_decode = 20 });
    int long_one = sim_add(s, (struct sim_req){ .n_prompt = 300, .n_decode = 100 });
    int small = sim_add(s, (struct sim_req){ .n_prompt = 50, .n_decode = 20 });
    (void)state;
    sim_finish(s, 500);
    assert_int_equal(s->seqs[big].state, SIM_STUCK);
    assert_int_equal(s->seqs[long_one].state, SIM_STUCK);
    assert_int_equal(sim_n_emitted(s, long_one),
                     21); /* 320 tokens fit, and one more is emitted from the last */
    assert_int_equal(s->seqs[small].state, SIM_DONE);
    sim_close(s);
}

static void shared_prefixes_give_the_same_text_for_less_work(void **state)
{
    struct sim *with = sim_open((struct sim_opt){ .n_blocks = 1024 });
    struct sim *without = sim_open((struct sim_opt){ .n_blocks = 1024, .no_prefix = true });
    (void)state;
    for (int i = 0; i < 30; i++) {
        struct sim_req q = { .n_prompt = 500 + 7 * i,
                             .n_decode = 20,
                             .seed = 50 + (uint64_t)i,
                             .n_common = 480,
                             .common = 1 };
        sim_add(with, q);
        sim_add(without, q);
        sim_run(with, 3);
        sim_run(without, 3);
    }
    sim_finish(with, 3000);
    sim_finish(without, 3000);
    for (int i = 0; i < 30; i++) {
        const struct sim_seq *x = &with->seqs[i], *y = &without->seqs[i];
        assert_int_equal(x->n_tokens, y->n_tokens);
        assert_memory_equal(x->tokens, y->tokens, (size_t)x->n_tokens * sizeof *x->tokens);
        sim_expect_text(with, i);
    }
    assert_true(with->n_computed * 2 < without->n_computed);
    sim_close(with);
    sim_close(without);
}

static void a_continued_conversation_computes_only_its_new_tokens(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .n_blocks = 256 });
    int first = sim_add(s, (struct sim_req){ .n_prompt = 100, .n_decode = 60 }), next;
    (void)state;
    sim_finish(s, 200);
    next = sim_add(s, (struct sim_req){ .n_prompt = 200, .n_decode = 5 });
    memcpy(s->seqs[next].tokens, s->seqs[first].tokens, 160 * sizeof(int32_t));
    sim_finish(s, 200);
    assert_int_equal(s->seqs[next].n_cached,
                     144); /* the KV row of the last token was never computed */
    sim_expect_text(s, next);
    sim_close(s);
}

static void equal_concurrent_prompts_share_the_blocks_of_their_completions(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .n_blocks = 40 });
    (void)state;
    for (int i = 0; i < 6; i++)
        sim_add(s, (struct sim_req){ .n_prompt = 96, .n_decode = 70, .seed = 5 });
    sim_finish(s, 2000);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(s->seqs[i].state, SIM_DONE);
        sim_expect_text(s, i);
    }
    assert_int_equal(s->n_short, 0);
    assert_int_equal(prefix_n(s->prefix), 10); /* one chain of blocks: 165 tokens were computed */
    sim_close(s);
}

static void the_earlier_deadline_is_served_first(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .max_seqs = 1 });
    int ids[5];
    (void)state;
    for (int i = 0; i < 5; i++) {
        uint64_t at = i ? s->now_ns + (uint64_t)(9 - i) * SECOND : 0;
        ids[i] = sim_add(s, (struct sim_req){ .n_prompt = 40, .n_decode = 5, .deadline_ns = at });
    }
    sim_finish(s, 200);
    for (int i = 1; i < 4; i++) /* later requests have earlier deadlines; the first has none */
        assert_true(s->seqs[ids[i]].begin_ns > s->seqs[ids[i + 1]].begin_ns);
    assert_true(s->seqs[ids[0]].begin_ns > s->seqs[ids[1]].begin_ns);
    sim_close(s);
}

static void interactive_does_not_wait_for_batch_prompts(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .max_step_ns = 100 * MS, .n_blocks = 4096 });
    int one;
    (void)state;
    for (int i = 0; i < 10; i++) sim_add(s, (struct sim_req){ .n_prompt = 3000, .n_decode = 10 });
    sim_run(s, 5);
    one = sim_add(s, (struct sim_req){ .n_prompt = 60, .n_decode = 10, .priority = 10 });
    sim_run(s, 1);
    assert_int_equal(sim_n_emitted(s, one), 1);
    sim_finish(s, 10000);
    sim_close(s);
}

static void random_arrivals_and_cancels_leave_no_block_behind(void **state)
{
    struct sim *s =
        sim_open((struct sim_opt){ .n_blocks = 100, .step_tokens = 256, .max_seqs = 24 });
    struct rng r;
    int n_cancelled = 0;
    (void)state;
    rng_seed(&r, 11);
    while (s->n_seqs < 10000) {
        for (int i = random_between(&r, 0, 3); i > 0 && s->n_alive < 100; i--)
            sim_add(s, make_random_request(&r, 100, 150));
        if (s->n_alive &&
            random_between(&r, 0, 2) == 0) { /* in any state; mostly early requests, which run */
            int most = random_between(&r, 0, 1) ? s->n_alive - 1 : s->n_alive / 4;
            sim_cancel(s, s->alive[random_between(&r, 0, most)]);
            n_cancelled++;
        }
        sim_step(s);
    }
    sim_finish(s, 10000);
    for (int i = 0; i < s->n_seqs; i++) sim_expect_text(s, i);
    assert_true(n_cancelled > 1000 && s->n_preempted > 100);
    assert_int_equal(s->n_short, 0);
    assert_int_equal(block_n_free(s->pool) + prefix_n(s->prefix), 100);
    assert_int_equal(prefix_n_idle(s->prefix), prefix_n(s->prefix));
    sim_close(s);
}

static void a_frequently_used_prefix_stays_cached_under_many_other_prompts(void **state)
{
    struct sim *s = sim_open((struct sim_opt){ .n_blocks = 200, .max_seqs = 4 });
    int hits = 0;
    (void)state;
    sim_add(s, (struct sim_req){ .n_prompt = 330, .n_decode = 4, .n_common = 320, .common = 9 });
    sim_finish(s, 100);
    for (int round = 0; round < 60; round++) { /* 5 * 21 blocks of other prompts between two uses */
        int hot;
        for (int i = 0; i < 5; i++) sim_add(s, (struct sim_req){ .n_prompt = 330, .n_decode = 4 });
        hot = sim_add(
            s, (struct sim_req){ .n_prompt = 330, .n_decode = 4, .n_common = 320, .common = 9 });
        sim_finish(s, 200);
        hits += s->seqs[hot].n_cached == 320;
    }
    assert_int_equal(hits, 60);
    sim_close(s);
}

/* ---- short prompts beside a long one ---- */

#define LONG_PROMPT 16000

static struct sim *open_long(void)
{
    return sim_open((struct sim_opt){
        .n_blocks = 2000, .step_tokens = 512, .max_step_ns = 100 * MS, .no_prefix = true });
}

/* Steps until the sequence has emitted its first token. */
static int steps_to_first(struct sim *s, int seq)
{
    int n = 0;

    while (sim_n_emitted(s, seq) == 0) {
        assert_true(++n < 100000);
        sim_step(s);
    }
    return n;
}

static void a_short_prompt_gets_its_first_token_within_three_steps(void **state)
{
    struct sim *s = open_long();
    int first = sim_add(s, (struct sim_req){ .n_prompt = LONG_PROMPT, .n_decode = 1 }), late;
    uint64_t alone;

    (void)state;
    sim_finish(s, 10000);
    alone = s->seqs[first].first_ns - s->seqs[first].arrival_ns;
    first = sim_add(s, (struct sim_req){ .n_prompt = LONG_PROMPT, .n_decode = 1 });
    sim_run(s, 20); /* in the middle of its prefill */
    late = sim_add(s, (struct sim_req){ .n_prompt = 16, .n_decode = 8 });
    assert_true(steps_to_first(s, late) <= 3);
    sim_finish(s, 10000);
    assert_true((double)(s->seqs[first].first_ns - s->seqs[first].arrival_ns) <=
                1.10 * (double)alone);
    sim_expect_text(s, first);
    sim_expect_text(s, late);
    sim_close(s);
}

/* One arrives in every step. Each gets its first token within three steps, and the long one
 * advances in every step. */
static void a_stream_of_short_prompts_does_not_starve_a_long_one(void **state)
{
    struct sim *s = open_long();
    int first = sim_add(s, (struct sim_req){ .n_prompt = LONG_PROMPT, .n_decode = 1 });

    (void)state;
    while (s->seqs[first].state < SIM_DONE) {
        int before = s->seqs[first].n_kv, late = s->n_seqs - 3;
        sim_add(s, (struct sim_req){ .n_prompt = 16, .n_decode = 2 });
        sim_step(s);
        assert_true(s->seqs[first].n_kv >= before + 16);
        if (late > first) assert_true(sim_n_emitted(s, late) > 0);
    }
    sim_close(s);
}

/* The queue has long prompts before the short one, and one of them is in prefill. */
static void a_short_prompt_does_not_wait_for_long_ones_that_wait(void **state)
{
    struct sim *s = open_long();
    int late;

    (void)state;
    for (int i = 0; i < 3; i++)
        sim_add(s, (struct sim_req){ .n_prompt = 4000, .n_decode = 4, .tenant = (uint32_t)i });
    sim_run(s, 5);
    late = sim_add(s, (struct sim_req){ .n_prompt = 16, .n_decode = 4, .tenant = 0 });
    assert_true(steps_to_first(s, late) <= 3);
    sim_finish(s, 10000);
    for (int i = 0; i < s->n_seqs; i++) sim_expect_text(s, i);
    sim_close(s);
}

/* ---- the inputs of one call ---- */

/* Steps until a call of 64 texts is done, of which four are in the engine at once, while so many
 * others come that some always wait. */
static int steps_of_call(bool one_place)
{
    enum { TEXTS = 64, AT_ONCE = 4 };
    struct sim *s = sim_open((struct sim_opt){ .max_seqs = 8, .n_blocks = 2000 });
    int mine[TEXTS], n = 0, n_done = 0, steps = 0;
    uint64_t arrival = 0;

    for (; n_done < TEXTS && steps < 100000; steps++) {
        while (s->n_alive < 40) sim_add(s, (struct sim_req){ .n_prompt = 20, .n_decode = 30 });
        if (steps == 50) arrival = s->now_ns;
        while (steps >= 50 && n < TEXTS && n - n_done < AT_ONCE)
            mine[n++] = sim_add(s, (struct sim_req){ .n_prompt = 20,
                                                     .n_decode = 1,
                                                     .arrival_ns = one_place ? arrival : 0 });
        sim_step(s);
        n_done = 0;
        for (int i = 0; i < n; i++) n_done += s->seqs[mine[i]].state == SIM_DONE;
    }
    sim_close(s);
    return steps - 50;
}

/* It waits once, for those that came before it; then at least one of its texts is computed in each
 * of the rounds in which a place becomes free. */
static void the_inputs_of_a_call_wait_in_the_queue_once(void **state)
{
    int apart = steps_of_call(false), together = steps_of_call(true);

    (void)state;
    print_message("64 inputs: %d steps with one place in the queue, %d with one each\n", together,
                  apart);
    assert_true(together < 64 * 4);
    assert_true(together * 4 < apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_continues_while_a_long_prompt_prefills),
        cmocka_unit_test(a_long_prompt_does_not_stretch_steps_past_the_bound),
        cmocka_unit_test(steps_of_unknown_cost_are_short_beside_decodes),
        cmocka_unit_test(budgets_are_kept_over_thousands_of_random_steps),
        cmocka_unit_test(batch_work_finishes_under_a_steady_stream_of_interactive),
        cmocka_unit_test(requests_without_a_deadline_do_not_starve),
        cmocka_unit_test(tenants_get_equal_service_while_both_have_work),
        cmocka_unit_test(a_light_tenant_does_not_wait_for_anothers_backlog),
        cmocka_unit_test(preempted_sequences_give_the_same_text),
        cmocka_unit_test(two_sequences_that_do_not_fit_together_finish_one_after_the_other),
        cmocka_unit_test(a_sequence_that_never_fits_ends_and_the_others_continue),
        cmocka_unit_test(shared_prefixes_give_the_same_text_for_less_work),
        cmocka_unit_test(a_continued_conversation_computes_only_its_new_tokens),
        cmocka_unit_test(equal_concurrent_prompts_share_the_blocks_of_their_completions),
        cmocka_unit_test(the_earlier_deadline_is_served_first),
        cmocka_unit_test(interactive_does_not_wait_for_batch_prompts),
        cmocka_unit_test(random_arrivals_and_cancels_leave_no_block_behind),
        cmocka_unit_test(a_frequently_used_prefix_stays_cached_under_many_other_prompts),
        cmocka_unit_test(a_short_prompt_gets_its_first_token_within_three_steps),
        cmocka_unit_test(a_stream_of_short_prompts_does_not_starve_a_long_one),
        cmocka_unit_test(a_short_prompt_does_not_wait_for_long_ones_that_wait),
        cmocka_unit_test(the_inputs_of_a_call_wait_in_the_queue_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
