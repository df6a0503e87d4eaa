/* The scheduler's plan of one step (engine/sched, a pure function): which sequences decode,
 * prefill, begin and are preempted, for hand-written inputs.
 *
 * Reads no files; time and costs are given by the test. */
#include "support.h"

#include "engine/sched.h"

#include "base/clock.h"
#include "base/rng.h"

#include <string.h>

#define B 16
#define SECOND 1000000000u
#define MAX 8192

/* The input and output of one plan. Tests add sequences in one line each. */
static struct sched_seq seqs[MAX];
static struct sched_item run[MAX];
static int begin[MAX], preempt[MAX], order[MAX];
static uint64_t served[8];
static struct sched_in in;
static struct sched_plan plan;

static int reset_input(void **state)
{
    (void)state;
    memset(served, 0, sizeof served);
    in = (struct sched_in){ .opt = { .max_tokens = 512, .max_seqs = 16, .block = B },
                            .cost = { 10e6, 1e6, 1e6 },
                            .now_ns = 1000 * (uint64_t)SECOND,
                            .n_free = 1000,
                            .seqs = seqs,
                            .served = served,
                            .n_tenants = 8 };
    plan = (struct sched_plan){ .run = run, .begin = begin, .preempt = preempt };
    return 0;
}

static struct sched_seq *add_seq(struct sched_seq s)
{
    s.arrival_ns += in.now_ns;
    if (!s.waiting && !s.n_blocks) s.n_blocks = (s.n_kv + B - 1) / B;
    seqs[in.n_seqs] = s;
    return &seqs[in.n_seqs++];
}

static struct sched_seq decoding(int n_tokens)
{
    return (struct sched_seq){ .n_tokens = n_tokens, .n_kv = n_tokens - 1 };
}

static struct sched_seq waiting(int n_tokens)
{
    return (struct sched_seq){ .n_tokens = n_tokens, .waiting = true };
}

static void make_plan(void) { sched_plan(&in, &plan, order); }

static int tokens_of(int seq)
{
    for (int i = 0; i < plan.n_run; i++)
        if (run[i].seq == seq) return run[i].n;
    return 0;
}

static void without_sequences_the_plan_is_empty(void **state)
{
    (void)state;
    make_plan();
    assert_int_equal(plan.n_run + plan.n_begin + plan.n_preempt + plan.n_tokens, 0);
    assert_int_equal(plan.stuck, -1);
}

static void every_decode_takes_part_with_one_token(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) add_seq(decoding(100 + i));
    make_plan();
    assert_int_equal(plan.n_run, 10);
    assert_int_equal(plan.n_tokens, 10);
    for (int i = 0; i < 10; i++) assert_int_equal(tokens_of(i), 1);
}

static void a_held_sequence_does_not_run(void **state)
{
    (void)state;
    add_seq(decoding(100))->held = true;
    add_seq(decoding(100));
    add_seq(waiting(50))->held = true;
    add_seq(waiting(20));
    make_plan();
    assert_int_equal(tokens_of(0), 0);
    assert_int_equal(tokens_of(1), 1);
    assert_int_equal(tokens_of(2), 0);
    assert_true(tokens_of(3) > 0); /* sequences after it still run */
}

static void prefill_beside_decodes_stretches_a_step_only_to_the_limit(void **state)
{
    double alone = 10e6 + 2 * 1e6;
    (void)state;
    add_seq(decoding(100));
    add_seq(decoding(100));
    add_seq(waiting(4000));
    in.opt.stretch = 6;
    make_plan();
    assert_int_equal(tokens_of(2), 48); /* 60 fit; whole blocks */
    assert_true(alone + 48 * 1e6 <= 6 * alone);
    in.opt.stretch = 1.1;
    make_plan();
    assert_int_equal(tokens_of(2), B); /* the minimum: one block */
    in.opt.min_chunk = 32;
    make_plan();
    assert_int_equal(tokens_of(2), 32);
    in.opt.stretch = 6;
    in.opt.max_step_ns = 50 * 1000000; /* 38 ms are left for prefill */
    make_plan();
    assert_int_equal(tokens_of(2), 32);
}

static void prefill_alone_keeps_to_the_maximum_step_time(void **state)
{
    (void)state;
    add_seq(waiting(4000));
    make_plan();
    assert_int_equal(plan.n_tokens, 512);
    in.opt.max_step_ns = 100 * 1000000;
    make_plan();
    assert_int_equal(plan.n_tokens, 80); /* 90 fit; whole blocks */
    in.opt.max_step_ns = 1000;
    make_plan();
    assert_int_equal(plan.n_tokens, B);
}

static void a_chunk_that_is_alone_in_a_step_may_be_longer(void **state)
{
    (void)state;
    in.opt.max_step_ns = 100 * 1000000;
    in.opt.solo_step_ns = 300 * 1000000;
    add_seq(waiting(4000));
    add_seq(waiting(4000));
    make_plan();
    assert_int_equal(plan.n_run, 1); /* no other sequence joins the step */
    assert_int_equal(plan.n_tokens, 288);
    seqs[0].n_tokens = 40; /* a short prompt leaves the rest of a normal step to the second */
    make_plan();
    assert_int_equal(plan.n_run, 2);
    assert_true(plan.n_tokens <= 90);
    add_seq(decoding(10));
    make_plan();
    assert_true(plan.n_tokens <= 90); /* no decode waits for a long chunk */
}

static void unknown_costs_lead_to_small_chunks(void **state)
{
    (void)state;
    in.cost = (struct sched_cost){ 0 };
    in.opt.max_step_ns = 100 * 1000000;
    add_seq(waiting(4000));
    make_plan();
    assert_int_equal(plan.n_tokens, 512);
    add_seq(decoding(10));
    make_plan();
    assert_int_equal(plan.n_tokens, 65);
}

static void chunks_end_at_block_boundaries(void **state)
{
    (void)state;
    in.opt.max_tokens = 100;
    add_seq((struct sched_seq){ .n_tokens = 500, .n_kv = 5, .n_blocks = 1 });
    make_plan();
    assert_int_equal(tokens_of(0), 91); /* up to position 96 */
    seqs[0].n_tokens = 60;
    add_seq(waiting(300));
    make_plan();
    assert_int_equal(tokens_of(0), 55); /* the whole prompt */
    assert_int_equal(tokens_of(1), 32); /* 45 tokens are left in the step */
    seqs[0].n_tokens = 97;
    make_plan();
    assert_int_equal(tokens_of(0), 92);
    assert_int_equal(tokens_of(1), 0); /* 8 tokens are left: less than a block */
    assert_int_equal(plan.n_begin, 0);
    in.opt.max_tokens = 7;
    in.n_seqs = 1;
    make_plan();
    assert_int_equal(tokens_of(0), 7); /* less than a block is better than nothing */
}

static void a_cached_prefix_is_not_computed(void **state)
{
    (void)state;
    add_seq(waiting(100))->n_hit = 64;
    add_seq(waiting(65))->n_hit = 64;
    make_plan();
    assert_int_equal(plan.n_begin, 2);
    assert_int_equal(tokens_of(0), 36);
    assert_int_equal(tokens_of(1), 1);
}

static void a_cached_prefix_in_use_needs_no_new_blocks(void **state)
{
    (void)state;
    add_seq(decoding(50));
    add_seq(waiting(161))->n_hit = 160;
    in.n_free = 11; /* 11 blocks are needed, and one for decoding */
    make_plan();
    assert_int_equal(plan.n_begin, 0);
    seqs[1].n_hit_used = 160;
    in.n_free = 2;
    make_plan();
    assert_int_equal(plan.n_begin, 1);
}

static void the_sequence_of_the_lowest_rank_is_preempted(void **state)
{
    (void)state;
    in.n_free = 0;
    add_seq(decoding(33))->n_blocks = 2; /* all need one more block */
    add_seq(decoding(33))->n_blocks = 2;
    add_seq(decoding(33))->n_blocks = 2;
    seqs[0].arrival_ns -= 2000;
    seqs[1].arrival_ns -= 3000;
    seqs[2].arrival_ns -= 1000;
    make_plan();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 2);
    assert_int_equal(tokens_of(0) + tokens_of(1), 2);
    seqs[0].tenant = 1; /* service counts do not matter for preemption */
    served[1] = 1000;
    make_plan();
    assert_int_equal(preempt[0], 2);
    seqs[2].priority = 10;
    make_plan();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 0); /* the youngest of the lowest priority */
    assert_int_equal(tokens_of(1) + tokens_of(2), 2);
}

static void no_sequence_begins_in_a_step_that_preempts(void **state)
{
    (void)state;
    in.n_free = 0;
    add_seq(decoding(33))->n_blocks = 2;
    add_seq(decoding(333))->arrival_ns += 5;
    add_seq(waiting(16));
    make_plan();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(plan.n_begin, 0);
    assert_int_equal(plan.n_tokens, 1);
}

static void no_sequence_is_preempted_for_one_of_lower_rank(void **state)
{
    (void)state;
    in.n_free = 0;
    add_seq(decoding(33))->n_blocks = 3; /* needs no block */
    add_seq(decoding(33))->n_blocks = 2;
    seqs[1].arrival_ns += 1;
    make_plan();
    assert_int_equal(plan.n_preempt, 0);
    assert_int_equal(tokens_of(0), 1);
    assert_int_equal(tokens_of(1), 0);
    assert_int_equal(plan.stuck, -1);
}

static void only_sequences_with_private_blocks_are_preempted(void **state)
{
    (void)state;
    in.n_free = 0;
    add_seq(decoding(33))->n_blocks = 2;
    add_seq(decoding(33))->n_blocks = 3;
    add_seq(decoding(33))->n_blocks = 3;
    seqs[0].priority = 1;
    seqs[2].arrival_ns += 5;
    seqs[2].n_shared = 3;
    make_plan();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 1);
    assert_int_equal(tokens_of(2), 1);
}

static void a_prefill_without_a_block_is_not_stuck_behind_another(void **state)
{
    (void)state;
    in.n_free = 0;
    for (int i = 0; i < 2; i++)
        add_seq(
            (struct sched_seq){ .n_tokens = 500, .n_kv = 160, .n_blocks = 10, .arrival_ns = i });
    make_plan();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 1);
    assert_int_equal(tokens_of(0), 160);
}

static void a_prefill_does_not_preempt_a_sequence_that_runs_in_this_step(void **state)
{
    (void)state;
    in.n_free = 0;
    add_seq((struct sched_seq){ .n_tokens = 500, .n_kv = 160, .n_blocks = 10 });
    add_seq(decoding(30))->arrival_ns += 5;
    make_plan();
    assert_int_equal(plan.n_preempt, 0);
    assert_int_equal(plan.n_run, 1);
    assert_int_equal(tokens_of(1), 1);
    seqs[1] = (struct sched_seq){
        .n_tokens = 33, .n_kv = 32, .n_blocks = 2, .arrival_ns = in.now_ns + 5
    };
    make_plan(); /* the decode finds no block itself and is preempted */
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(tokens_of(0), 32);
}

static void a_sequence_that_is_alone_and_out_of_blocks_is_reported_as_stuck(void **state)
{
    (void)state;
    in.n_free = 0;
    add_seq(decoding(33))->n_blocks = 2;
    make_plan();
    assert_int_equal(plan.n_run, 0);
    assert_int_equal(plan.stuck, 0);
    seqs[0].held = true;
    make_plan();
    assert_int_equal(plan.stuck, -1);
}

static void a_large_prompt_is_not_overtaken_by_small_ones(void **state)
{
    (void)state;
    in.n_free = 20;
    add_seq(decoding(10));
    add_seq(waiting(1000));
    add_seq(waiting(16))->arrival_ns += 1;
    make_plan();
    assert_int_equal(plan.n_begin, 0);
    in.n_free = 64;
    make_plan();
    assert_int_equal(begin[0], 1);
}

static void running_sequences_keep_blocks_for_the_rest_of_their_prompt(void **state)
{
    (void)state;
    in.n_free = 70;
    in.opt.max_tokens = 64;
    add_seq((struct sched_seq){ .n_tokens = 1000, .n_kv = 32 }); /* needs 61 more blocks */
    seqs[0].priority = -1;
    add_seq(waiting(16 * 8)); /* needs 8 blocks and one for decoding */
    make_plan();
    assert_int_equal(plan.n_begin, 1);
    in.n_free = 69;
    make_plan();
    assert_int_equal(plan.n_begin, 0);
    assert_int_equal(tokens_of(0), 64);
}

static void sequences_that_begin_together_fit_together(void **state)
{
    (void)state;
    add_seq(waiting(80));
    add_seq(waiting(80));
    in.n_free = 10;
    make_plan();
    assert_int_equal(plan.n_begin, 1);
    in.n_free = 11; /* two times five, and one for decoding */
    make_plan();
    assert_int_equal(plan.n_begin, 2);
}

static void a_sequence_that_is_alone_begins_whatever_its_estimate(void **state)
{
    (void)state;
    in.n_free = 10;
    add_seq(waiting(160));
    make_plan();
    assert_int_equal(plan.n_begin, 1);
    assert_int_equal(tokens_of(0), 160);
    seqs[0].n_tokens = 300;
    make_plan();
    assert_int_equal(tokens_of(0), 160); /* as many tokens as fit */
}

static void no_more_than_max_seqs_run(void **state)
{
    (void)state;
    in.opt.max_seqs = 4;
    add_seq(decoding(10));
    add_seq(decoding(10))->held = true;
    for (int i = 0; i < 10; i++) add_seq(waiting(4));
    make_plan();
    assert_int_equal(plan.n_begin, 2);
    assert_int_equal(plan.n_run, 3);
}

static void interactive_requests_begin_before_batch_requests(void **state)
{
    (void)state;
    add_seq(waiting(100));
    add_seq(waiting(100))->priority = 10;
    seqs[1].arrival_ns += 5;
    assert_true(sched_before(&in, 1, 0));
    in.opt.max_tokens = 100;
    make_plan();
    assert_int_equal(plan.n_begin, 1);
    assert_int_equal(begin[0], 1);
    seqs[0].waiting = false; /* also before the prompt of a batch request that has begun */
    seqs[0].n_kv = 16;
    seqs[0].n_blocks = 1;
    make_plan();
    assert_int_equal(tokens_of(1), 100);
    assert_int_equal(tokens_of(0), 0);
    seqs[1].priority = 0;
    make_plan();
    assert_int_equal(tokens_of(0), 84);
}

static void waiting_long_raises_the_priority_to_the_highest_present(void **state)
{
    (void)state;
    add_seq(waiting(10));
    add_seq(waiting(10))->priority = 10;
    seqs[1].tenant = 1;
    seqs[0].arrival_ns -= 9 * (uint64_t)SECOND;
    assert_true(sched_before(&in, 1, 0));
    seqs[0].arrival_ns -= SECOND;
    assert_true(sched_before(&in, 0, 1)); /* equal priority now, and arrived first */
    seqs[0].arrival_ns -= 500 * (uint64_t)SECOND;
    served[0] = 1;
    assert_true(
        sched_before(&in, 1, 0)); /* a tenant that was served less goes before an older request */
    seqs[1].deadline_ns = in.now_ns + SECOND;
    assert_true(sched_before(&in, 0, 1)); /* an aged request goes before a deadline */
    in.opt.age_ns = 100 * (uint64_t)SECOND;
    assert_true(sched_before(&in, 1, 0));
}

static void the_earlier_deadline_goes_first(void **state)
{
    (void)state;
    add_seq(waiting(10));
    add_seq(waiting(10))->deadline_ns = in.now_ns + 20;
    add_seq(waiting(10))->deadline_ns = in.now_ns + 10;
    seqs[2].arrival_ns += 10;
    assert_true(sched_before(&in, 2, 1));
    assert_true(sched_before(&in, 1, 0));
    assert_false(sched_before(&in, 0, 2));
    seqs[0].priority = 1;
    assert_true(sched_before(&in, 0, 2));
}

static void the_tenant_served_less_begins_first(void **state)
{
    (void)state;
    served[3] = 100;
    served[4] = 50;
    add_seq(waiting(10))->tenant = 3;
    add_seq(waiting(10))->tenant = 4;
    seqs[1].arrival_ns += 10;
    add_seq(waiting(10))->tenant = 77; /* unknown tenant: counts as served nothing */
    seqs[2].arrival_ns += 20;
    make_plan();
    assert_int_equal(begin[0], 2);
    assert_int_equal(begin[1], 1);
    assert_int_equal(begin[2], 0);
    in.served = NULL;
    make_plan();
    assert_int_equal(begin[0], 0);
}

static void the_order_of_sequences_is_total(void **state)
{
    struct rng r;
    (void)state;
    rng_seed(&r, 5);
    for (int round = 0; round < 20; round++) {
        int n = 40;
        in.n_seqs = 0;
        for (int i = 0; i < 8; i++) served[i] = rng_u64(&r) % 3;
        for (int i = 0; i < n; i++) {
            struct sched_seq *s = add_seq(waiting(10));
            s->arrival_ns -= rng_u64(&r) % 100 * (SECOND / 2);
            s->priority = (int)(rng_u64(&r) % 3) * 5;
            s->tenant = (uint32_t)(rng_u64(&r) % 4);
            s->deadline_ns = round % 2 && rng_u64(&r) % 2 ? in.now_ns + rng_u64(&r) % 4 : 0;
        }
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++) {
                if (a != b) assert_true(sched_before(&in, a, b) != sched_before(&in, b, a));
                for (int c = 0; c < n; c++)
                    if (sched_before(&in, a, b) && sched_before(&in, b, c))
                        assert_true(a == c || sched_before(&in, a, c));
            }
        in.opt.max_seqs = n;
        make_plan();
        assert_int_equal(plan.n_begin, n);
        for (int i = 1; i < n; i++) assert_true(sched_before(&in, begin[i - 1], begin[i]));
    }
}

/* ---- short prompts beside a long one ---- */

static struct sched_seq prefilling(int n_tokens, int n_kv)
{
    return (struct sched_seq){ .n_tokens = n_tokens, .n_kv = n_kv };
}

static void a_short_prompt_does_not_wait_for_a_long_one(void **state)
{
    (void)state;
    in.opt.max_step_ns = 100000000; /* 90 tokens */
    in.opt.solo_step_ns = 400000000;
    in.n_free = 2000;
    add_seq(prefilling(16000, 1600));
    make_plan();
    assert_int_equal(tokens_of(0), 384); /* alone: 4 times as long */
    add_seq(waiting(16))->arrival_ns = SECOND;
    make_plan();
    assert_int_equal(tokens_of(1), 16);
    assert_int_equal(tokens_of(0), 64); /* the rest of the budget, in whole blocks */
}

static void a_long_prompt_keeps_half_of_the_prefill(void **state)
{
    (void)state;
    in.opt.max_step_ns = 138000000; /* 128 tokens */
    in.n_free = 2000;
    add_seq(prefilling(16000, 1600));
    for (int i = 0; i < 20; i++) add_seq(waiting(24))->arrival_ns = SECOND;
    make_plan();
    assert_true(tokens_of(0) >= 64);
    assert_int_equal(tokens_of(1), 24); /* 64 tokens: two of them, and 16 of the third */
    assert_int_equal(tokens_of(2), 24);
    assert_int_equal(tokens_of(3), 16);
    assert_int_equal(plan.n_begin, 3);
    assert_true(plan.n_tokens <= 128);
}

static void the_smallest_budget_is_shared_too(void **state)
{
    (void)state;
    in.opt.max_tokens = 24; /* 16 are left beside the decodes */
    for (int i = 0; i < 8; i++) add_seq(decoding(50));
    add_seq(prefilling(1600, 160));
    add_seq(waiting(8))->arrival_ns = SECOND;
    make_plan();
    assert_int_equal(tokens_of(9), 8);
    assert_int_equal(tokens_of(8), 8);
}

static void the_shorter_of_two_short_prompts_goes_first(void **state)
{
    (void)state;
    in.opt.max_step_ns = 74000000; /* 64 tokens */
    in.n_free = 2000;
    add_seq(prefilling(16000, 1600));
    add_seq(waiting(2000))->arrival_ns = SECOND;
    add_seq(waiting(30))->arrival_ns = 2 * (uint64_t)SECOND;
    make_plan();
    assert_int_equal(tokens_of(2), 30);
    assert_int_equal(tokens_of(1), 0);
    assert_int_equal(tokens_of(0), 32);
}

static void prompts_of_like_length_are_computed_one_after_the_other(void **state)
{
    (void)state;
    in.opt.max_step_ns = 74000000; /* 64 tokens */
    add_seq(prefilling(1000, 160));
    add_seq(waiting(300))->arrival_ns = SECOND;
    make_plan();
    assert_int_equal(tokens_of(0), 64);
    assert_int_equal(plan.n_run, 1);
}

static void a_short_prompt_of_lower_priority_waits(void **state)
{
    (void)state;
    in.opt.max_step_ns = 74000000;
    in.n_free = 2000;
    add_seq(prefilling(16000, 1600))->priority = 10;
    add_seq(waiting(16));
    make_plan();
    assert_int_equal(plan.n_run, 1);
}

/* The first in rank keeps a place and its blocks: otherwise it might never begin. */
static void the_last_place_and_the_last_blocks_are_not_taken_by_short_prompts(void **state)
{
    (void)state;
    in.opt.max_seqs = 3;
    in.opt.max_step_ns = 74000000;
    in.n_free = 4000;
    add_seq(prefilling(16000, 1600));
    add_seq(decoding(50));
    add_seq(waiting(8000))->arrival_ns = SECOND;
    add_seq(waiting(16))->arrival_ns = 2 * (uint64_t)SECOND;
    make_plan();
    assert_int_equal(tokens_of(3), 0); /* one place is left: it is the third's */
    in.opt.max_seqs = 4;
    make_plan();
    assert_int_equal(tokens_of(3), 16);
    in.n_free = 900 + 500 + 1; /* enough for the first and the third */
    make_plan();
    assert_int_equal(tokens_of(3), 0);
}

static void a_plan_over_thousands_takes_less_than_a_millisecond(void **state)
{
    double best = 1e9;
    struct rng r;
    (void)state;
    rng_seed(&r, 1);
    in.opt.max_seqs = 512;
    in.n_free = 1 << 20;
    in.opt.max_tokens = 8192;
    for (int i = 0; i < 4096 + 256; i++) {
        struct sched_seq *s = add_seq(i < 256 ? decoding(100) : waiting(20));
        s->arrival_ns -= rng_u64(&r) % (20 * (uint64_t)SECOND);
        s->priority = (int)(rng_u64(&r) % 2) * 10;
        s->tenant = (uint32_t)(rng_u64(&r) % 8);
    }
    for (int i = 0; i < 20; i++) {
        uint64_t t = clock_ns();
        make_plan();
        if (clock_ms_since(t) < best) best = clock_ms_since(t);
    }
    print_message("4096 waiting, 256 running: %.3f ms\n", best);
    assert_int_equal(plan.n_run > 256, 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(f, reset_input)
    const struct CMUnitTest tests[] = {
        T(without_sequences_the_plan_is_empty),
        T(every_decode_takes_part_with_one_token),
        T(a_held_sequence_does_not_run),
        T(prefill_beside_decodes_stretches_a_step_only_to_the_limit),
        T(prefill_alone_keeps_to_the_maximum_step_time),
        T(a_chunk_that_is_alone_in_a_step_may_be_longer),
        T(unknown_costs_lead_to_small_chunks),
        T(chunks_end_at_block_boundaries),
        T(a_cached_prefix_is_not_computed),
        T(a_cached_prefix_in_use_needs_no_new_blocks),
        T(the_sequence_of_the_lowest_rank_is_preempted),
        T(no_sequence_begins_in_a_step_that_preempts),
        T(no_sequence_is_preempted_for_one_of_lower_rank),
        T(only_sequences_with_private_blocks_are_preempted),
        T(a_prefill_without_a_block_is_not_stuck_behind_another),
        T(a_prefill_does_not_preempt_a_sequence_that_runs_in_this_step),
        T(a_sequence_that_is_alone_and_out_of_blocks_is_reported_as_stuck),
        T(a_large_prompt_is_not_overtaken_by_small_ones),
        T(running_sequences_keep_blocks_for_the_rest_of_their_prompt),
        T(sequences_that_begin_together_fit_together),
        T(a_sequence_that_is_alone_begins_whatever_its_estimate),
        T(no_more_than_max_seqs_run),
        T(interactive_requests_begin_before_batch_requests),
        T(waiting_long_raises_the_priority_to_the_highest_present),
        T(the_earlier_deadline_goes_first),
        T(the_tenant_served_less_begins_first),
        T(the_order_of_sequences_is_total),
        T(a_short_prompt_does_not_wait_for_a_long_one),
        T(a_long_prompt_keeps_half_of_the_prefill),
        T(the_smallest_budget_is_shared_too),
        T(the_shorter_of_two_short_prompts_goes_first),
        T(prompts_of_like_length_are_computed_one_after_the_other),
        T(a_short_prompt_of_lower_priority_waits),
        T(the_last_place_and_the_last_blocks_are_not_taken_by_short_prompts),
        T(a_plan_over_thousands_takes_less_than_a_millisecond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
