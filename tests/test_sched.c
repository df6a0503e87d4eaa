#include "support.h"

#include "engine/sched.h"

#include "base/clock.h"
#include "base/rng.h"

#include <string.h>

#define B 16
#define SECOND 1000000000u
#define MAX 8192

/* A plan over sequences said in one line each. */
static struct sched_seq seqs[MAX];
static struct sched_item run[MAX];
static int begin[MAX], preempt[MAX], order[MAX];
static uint64_t served[8];
static struct sched_in in;
static struct sched_plan plan;

static int fresh(void **state)
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

static struct sched_seq *add(struct sched_seq s)
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

static void make(void) { sched_plan(&in, &plan, order); }

static int tokens_of(int seq)
{
    for (int i = 0; i < plan.n_run; i++)
        if (run[i].seq == seq) return run[i].n;
    return 0;
}

static void nothing_there_is_an_empty_plan(void **state)
{
    (void)state;
    make();
    assert_int_equal(plan.n_run + plan.n_begin + plan.n_preempt + plan.n_tokens, 0);
    assert_int_equal(plan.stuck, -1);
}

static void every_decode_takes_part_with_one_token(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) add(decoding(100 + i));
    make();
    assert_int_equal(plan.n_run, 10);
    assert_int_equal(plan.n_tokens, 10);
    for (int i = 0; i < 10; i++) assert_int_equal(tokens_of(i), 1);
}

static void a_held_one_sits_out(void **state)
{
    (void)state;
    add(decoding(100))->held = true;
    add(decoding(100));
    add(waiting(50))->held = true;
    add(waiting(20));
    make();
    assert_int_equal(tokens_of(0), 0);
    assert_int_equal(tokens_of(1), 1);
    assert_int_equal(tokens_of(2), 0);
    assert_true(tokens_of(3) > 0); /* nor does it stop those behind it */
}

static void prefill_beside_decodes_keeps_to_the_stretch(void **state)
{
    double alone = 10e6 + 2 * 1e6;
    (void)state;
    add(decoding(100));
    add(decoding(100));
    add(waiting(4000));
    in.opt.stretch = 6;
    make();
    assert_int_equal(tokens_of(2), 48); /* 60 fit; whole blocks */
    assert_true(alone + 48 * 1e6 <= 6 * alone);
    in.opt.stretch = 1.1;
    make();
    assert_int_equal(tokens_of(2), B); /* the least: one block */
    in.opt.min_chunk = 32;
    make();
    assert_int_equal(tokens_of(2), 32);
    in.opt.stretch = 6;
    in.opt.max_step_ns = 50 * 1000000; /* 38 ms are left */
    make();
    assert_int_equal(tokens_of(2), 32);
}

static void prefill_alone_keeps_to_the_longest_step(void **state)
{
    (void)state;
    add(waiting(4000));
    make();
    assert_int_equal(plan.n_tokens, 512);
    in.opt.max_step_ns = 100 * 1000000;
    make();
    assert_int_equal(plan.n_tokens, 80); /* 90 fit; whole blocks */
    in.opt.max_step_ns = 1000;
    make();
    assert_int_equal(plan.n_tokens, B);
}

static void a_chunk_with_a_step_for_itself_may_be_longer(void **state)
{
    (void)state;
    in.opt.max_step_ns = 100 * 1000000;
    in.opt.solo_step_ns = 300 * 1000000;
    add(waiting(4000));
    add(waiting(4000));
    make();
    assert_int_equal(plan.n_run, 1); /* nobody joins it */
    assert_int_equal(plan.n_tokens, 288);
    seqs[0].n_tokens = 40; /* a short one leaves the second what is common */
    make();
    assert_int_equal(plan.n_run, 2);
    assert_true(plan.n_tokens <= 90);
    add(decoding(10));
    make();
    assert_true(plan.n_tokens <= 90); /* no decode waits for a long chunk */
}

static void unknown_costs_are_met_with_care(void **state)
{
    (void)state;
    in.cost = (struct sched_cost){ 0 };
    in.opt.max_step_ns = 100 * 1000000;
    add(waiting(4000));
    make();
    assert_int_equal(plan.n_tokens, 512);
    add(decoding(10));
    make();
    assert_int_equal(plan.n_tokens, 65);
}

static void chunks_end_with_blocks(void **state)
{
    (void)state;
    in.opt.max_tokens = 100;
    add((struct sched_seq){ .n_tokens = 500, .n_kv = 5, .n_blocks = 1 });
    make();
    assert_int_equal(tokens_of(0), 91); /* to 96 */
    seqs[0].n_tokens = 60;
    add(waiting(300));
    make();
    assert_int_equal(tokens_of(0), 55); /* all of it */
    assert_int_equal(tokens_of(1), 32); /* of the 45 left */
    seqs[0].n_tokens = 97;
    make();
    assert_int_equal(tokens_of(0), 92);
    assert_int_equal(tokens_of(1), 0); /* 8 are left: crumbs */
    assert_int_equal(plan.n_begin, 0);
    in.opt.max_tokens = 7;
    in.n_seqs = 1;
    make();
    assert_int_equal(tokens_of(0), 7); /* less than a block is better than nothing */
}

static void a_known_prefix_is_not_computed(void **state)
{
    (void)state;
    add(waiting(100))->n_hit = 64;
    add(waiting(65))->n_hit = 64;
    make();
    assert_int_equal(plan.n_begin, 2);
    assert_int_equal(tokens_of(0), 36);
    assert_int_equal(tokens_of(1), 1);
}

static void a_prefix_in_use_takes_no_room(void **state)
{
    (void)state;
    add(decoding(50));
    add(waiting(161))->n_hit = 160;
    in.n_free = 11; /* 11 blocks and one to go on */
    make();
    assert_int_equal(plan.n_begin, 0);
    seqs[1].n_hit_used = 160;
    in.n_free = 2;
    make();
    assert_int_equal(plan.n_begin, 1);
}

static void the_last_in_rank_gives_its_blocks(void **state)
{
    (void)state;
    in.n_free = 0;
    add(decoding(33))->n_blocks = 2; /* all need one more */
    add(decoding(33))->n_blocks = 2;
    add(decoding(33))->n_blocks = 2;
    seqs[0].arrival_ns -= 2000;
    seqs[1].arrival_ns -= 3000;
    seqs[2].arrival_ns -= 1000;
    make();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 2);
    assert_int_equal(tokens_of(0) + tokens_of(1), 2);
    seqs[0].tenant = 1; /* whoever was served how much */
    served[1] = 1000;
    make();
    assert_int_equal(preempt[0], 2);
    seqs[2].priority = 10;
    make();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 0); /* the youngest of the least important */
    assert_int_equal(tokens_of(1) + tokens_of(2), 2);
}

static void nobody_begins_in_a_step_that_preempts(void **state)
{
    (void)state;
    in.n_free = 0;
    add(decoding(33))->n_blocks = 2;
    add(decoding(333))->arrival_ns += 5;
    add(waiting(16));
    make();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(plan.n_begin, 0);
    assert_int_equal(plan.n_tokens, 1);
}

static void nobody_gives_way_to_one_behind_it(void **state)
{
    (void)state;
    in.n_free = 0;
    add(decoding(33))->n_blocks = 3; /* needs none */
    add(decoding(33))->n_blocks = 2;
    seqs[1].arrival_ns += 1;
    make();
    assert_int_equal(plan.n_preempt, 0);
    assert_int_equal(tokens_of(0), 1);
    assert_int_equal(tokens_of(1), 0);
    assert_int_equal(plan.stuck, -1);
}

static void only_who_has_blocks_of_its_own_gives_way(void **state)
{
    (void)state;
    in.n_free = 0;
    add(decoding(33))->n_blocks = 2;
    add(decoding(33))->n_blocks = 3;
    add(decoding(33))->n_blocks = 3;
    seqs[0].priority = 1;
    seqs[2].arrival_ns += 5;
    seqs[2].n_shared = 3;
    make();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 1);
    assert_int_equal(tokens_of(2), 1);
}

static void a_prefill_without_a_block_is_not_stuck_behind_another(void **state)
{
    (void)state;
    in.n_free = 0;
    for (int i = 0; i < 2; i++)
        add((struct sched_seq){ .n_tokens = 500, .n_kv = 160, .n_blocks = 10, .arrival_ns = i });
    make();
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(preempt[0], 1);
    assert_int_equal(tokens_of(0), 160);
}

static void a_prefill_does_not_take_from_who_takes_part(void **state)
{
    (void)state;
    in.n_free = 0;
    add((struct sched_seq){ .n_tokens = 500, .n_kv = 160, .n_blocks = 10 });
    add(decoding(30))->arrival_ns += 5;
    make();
    assert_int_equal(plan.n_preempt, 0);
    assert_int_equal(plan.n_run, 1);
    assert_int_equal(tokens_of(1), 1);
    seqs[1] = (struct sched_seq){
        .n_tokens = 33, .n_kv = 32, .n_blocks = 2, .arrival_ns = in.now_ns + 5
    };
    make(); /* it finds no block itself: then it does */
    assert_int_equal(plan.n_preempt, 1);
    assert_int_equal(tokens_of(0), 32);
}

static void one_that_cannot_go_on_alone_is_named(void **state)
{
    (void)state;
    in.n_free = 0;
    add(decoding(33))->n_blocks = 2;
    make();
    assert_int_equal(plan.n_run, 0);
    assert_int_equal(plan.stuck, 0);
    seqs[0].held = true;
    make();
    assert_int_equal(plan.stuck, -1);
}

static void a_big_prompt_is_not_passed_by_small_ones(void **state)
{
    (void)state;
    in.n_free = 20;
    add(decoding(10));
    add(waiting(1000));
    add(waiting(16))->arrival_ns += 1;
    make();
    assert_int_equal(plan.n_begin, 0);
    in.n_free = 64;
    make();
    assert_int_equal(begin[0], 1);
}

static void what_runs_keeps_room_for_its_prompt(void **state)
{
    (void)state;
    in.n_free = 70;
    in.opt.max_tokens = 64;
    add((struct sched_seq){ .n_tokens = 1000, .n_kv = 32 }); /* 61 more */
    seqs[0].priority = -1;
    add(waiting(16 * 8)); /* 8 and one to go on */
    make();
    assert_int_equal(plan.n_begin, 1);
    in.n_free = 69;
    make();
    assert_int_equal(plan.n_begin, 0);
    assert_int_equal(tokens_of(0), 64);
}

static void those_that_begin_together_fit_together(void **state)
{
    (void)state;
    add(waiting(80));
    add(waiting(80));
    in.n_free = 10;
    make();
    assert_int_equal(plan.n_begin, 1);
    in.n_free = 11; /* twice five, and one to go on */
    make();
    assert_int_equal(plan.n_begin, 2);
}

static void alone_one_begins_whatever_is_estimated(void **state)
{
    (void)state;
    in.n_free = 10;
    add(waiting(160));
    make();
    assert_int_equal(plan.n_begin, 1);
    assert_int_equal(tokens_of(0), 160);
    seqs[0].n_tokens = 300;
    make();
    assert_int_equal(tokens_of(0), 160); /* as far as it goes */
}

static void no_more_run_than_may(void **state)
{
    (void)state;
    in.opt.max_seqs = 4;
    add(decoding(10));
    add(decoding(10))->held = true;
    for (int i = 0; i < 10; i++) add(waiting(4));
    make();
    assert_int_equal(plan.n_begin, 2);
    assert_int_equal(plan.n_run, 3);
}

static void interactive_goes_before_batch(void **state)
{
    (void)state;
    add(waiting(100));
    add(waiting(100))->priority = 10;
    seqs[1].arrival_ns += 5;
    assert_true(sched_before(&in, 1, 0));
    in.opt.max_tokens = 100;
    make();
    assert_int_equal(plan.n_begin, 1);
    assert_int_equal(begin[0], 1);
    seqs[0].waiting = false; /* also before the prompt of a batch that began */
    seqs[0].n_kv = 16;
    seqs[0].n_blocks = 1;
    make();
    assert_int_equal(tokens_of(1), 100);
    assert_int_equal(tokens_of(0), 0);
    seqs[1].priority = 0;
    make();
    assert_int_equal(tokens_of(0), 84);
}

static void age_lifts_to_the_highest_that_is_there(void **state)
{
    (void)state;
    add(waiting(10));
    add(waiting(10))->priority = 10;
    seqs[1].tenant = 1;
    seqs[0].arrival_ns -= 9 * (uint64_t)SECOND;
    assert_true(sched_before(&in, 1, 0));
    seqs[0].arrival_ns -= SECOND;
    assert_true(sched_before(&in, 0, 1)); /* alike now, and came first */
    seqs[0].arrival_ns -= 500 * (uint64_t)SECOND;
    served[0] = 1;
    assert_true(sched_before(&in, 1, 0)); /* no age beats a tenant that had less */
    seqs[1].deadline_ns = in.now_ns + SECOND;
    assert_true(sched_before(&in, 0, 1)); /* but deadlines it does: overdue */
    in.opt.age_ns = 100 * (uint64_t)SECOND;
    assert_true(sched_before(&in, 1, 0));
}

static void the_nearer_deadline_goes_first(void **state)
{
    (void)state;
    add(waiting(10));
    add(waiting(10))->deadline_ns = in.now_ns + 20;
    add(waiting(10))->deadline_ns = in.now_ns + 10;
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
    add(waiting(10))->tenant = 3;
    add(waiting(10))->tenant = 4;
    seqs[1].arrival_ns += 10;
    add(waiting(10))->tenant = 77; /* not counted: nothing served */
    seqs[2].arrival_ns += 20;
    make();
    assert_int_equal(begin[0], 2);
    assert_int_equal(begin[1], 1);
    assert_int_equal(begin[2], 0);
    in.served = NULL;
    make();
    assert_int_equal(begin[0], 0);
}

static void order_is_total(void **state)
{
    struct rng r;
    (void)state;
    rng_seed(&r, 5);
    for (int round = 0; round < 20; round++) {
        int n = 40;
        in.n_seqs = 0;
        for (int i = 0; i < 8; i++) served[i] = rng_u64(&r) % 3;
        for (int i = 0; i < n; i++) {
            struct sched_seq *s = add(waiting(10));
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
        make();
        assert_int_equal(plan.n_begin, n);
        for (int i = 1; i < n; i++) assert_true(sched_before(&in, begin[i - 1], begin[i]));
    }
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
        struct sched_seq *s = add(i < 256 ? decoding(100) : waiting(20));
        s->arrival_ns -= rng_u64(&r) % (20 * (uint64_t)SECOND);
        s->priority = (int)(rng_u64(&r) % 2) * 10;
        s->tenant = (uint32_t)(rng_u64(&r) % 8);
    }
    for (int i = 0; i < 20; i++) {
        uint64_t t = clock_ns();
        make();
        if (clock_ms_since(t) < best) best = clock_ms_since(t);
    }
    print_message("4096 waiting, 256 running: %.3f ms\n", best);
    assert_int_equal(plan.n_run > 256, 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(f, fresh)
    const struct CMUnitTest tests[] = {
        T(nothing_there_is_an_empty_plan),
        T(every_decode_takes_part_with_one_token),
        T(a_held_one_sits_out),
        T(prefill_beside_decodes_keeps_to_the_stretch),
        T(prefill_alone_keeps_to_the_longest_step),
        T(a_chunk_with_a_step_for_itself_may_be_longer),
        T(unknown_costs_are_met_with_care),
        T(chunks_end_with_blocks),
        T(a_known_prefix_is_not_computed),
        T(a_prefix_in_use_takes_no_room),
        T(the_last_in_rank_gives_its_blocks),
        T(nobody_begins_in_a_step_that_preempts),
        T(nobody_gives_way_to_one_behind_it),
        T(only_who_has_blocks_of_its_own_gives_way),
        T(a_prefill_without_a_block_is_not_stuck_behind_another),
        T(a_prefill_does_not_take_from_who_takes_part),
        T(one_that_cannot_go_on_alone_is_named),
        T(a_big_prompt_is_not_passed_by_small_ones),
        T(what_runs_keeps_room_for_its_prompt),
        T(those_that_begin_together_fit_together),
        T(alone_one_begins_whatever_is_estimated),
        T(no_more_run_than_may),
        T(interactive_goes_before_batch),
        T(age_lifts_to_the_highest_that_is_there),
        T(the_nearer_deadline_goes_first),
        T(the_tenant_served_less_begins_first),
        T(order_is_total),
        T(a_plan_over_thousands_takes_less_than_a_millisecond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
