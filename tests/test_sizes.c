/* Default sizes (model/sizes): what a model gets on machines from 4 GB to a GPU of 139 GiB, and for
 * any machine: sizes never exceed memory, grow with it, are whole blocks, and what is given wins. */
#include "support.h"

#include "base/rng.h"
#include "kernel/kvview.h"
#include "model/sizes.h"

#include <stdio.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define N(a) (sizeof(a) / sizeof *(a))

/* A model as its sizes depend on it. */
struct card {
    uint64_t weights, token_bytes, slot_bytes;
    int trained, n_vocab, width;
};

static const struct card half_b = { 400 * MIB, 12 * KIB, 0, 32768, 151936, 896 };
static const struct card small_1b = { 1300 * MIB, 32 * KIB, 0, 131072, 128256, 2048 };
static const struct card seven_b = { 14400 * MIB, 128 * KIB, 0, 32768, 32000, 4096 };
static const struct card eight_q4 = { 4700 * MIB, 128 * KIB, 0, 131072, 128256, 4096 };
static const struct card recurrent = { 5 * GIB, 0, 35 * MIB, 1 << 20, 50280, 4096 };

/* Activations, logits and block tables; on a GPU twice. */
static uint64_t scratch_of(const struct card *c, bool gpu, const struct sizes *s)
{
    uint64_t floats = (uint64_t)s->max_batch * (uint64_t)c->width * 12 +
                      (uint64_t)s->max_seqs * (uint64_t)c->n_vocab +
                      (uint64_t)s->max_seqs * ((uint64_t)s->n_ctx / KV_BLOCK + 1);

    return floats * 4 * (gpu ? 2 : 1);
}

struct machine {
    const struct card *card;
    bool gpu;
};

static uint64_t scratch(const void *arg, int i, const struct sizes *s)
{
    const struct machine *x = arg;
    (void)i;
    return scratch_of(x->card, x->gpu, s);
}

static struct sizes_out choose(const struct card *c, bool gpu, uint64_t room, double share,
                               struct sizes given)
{
    struct machine x = { c, gpu };
    struct sizes_memory m = { room, c->weights, c->token_bytes * KV_BLOCK, c->slot_bytes, share };
    struct sizes_in in = { .given = given,
                           .trained_ctx = c->trained,
                           .gpu = gpu,
                           .known = true,
                           .memory = &m,
                           .n_memories = 1,
                           .scratch = scratch,
                           .arg = &x };
    struct sizes_out out;

    sizes_choose(&out, &in);
    return out;
}

static uint64_t kv_bytes(const struct card *c, const struct sizes_out *o)
{
    return (uint64_t)sizes_blocks(o->s.kv_tokens) * KV_BLOCK * c->token_bytes +
           (uint64_t)(o->s.max_seqs + o->n_saved) * c->slot_bytes;
}

/* ---- machines ---- */

static void machines_get_sizes_that_fit_them(void **state)
{
    static const struct {
        const char *what;
        const struct card *card;
        bool gpu;
        uint64_t room;
        int n_ctx, max_seqs, kv_least, kv_most;
        enum sizes_why why;
    } all[] = {
        { "0.5 B, 4 GB", &half_b, false, 3 * GIB, 32768, 16, 100000, 120000, SIZES_MEMORY },
        { "0.5 B, 24 GB", &half_b, false, 21 * GIB, 32768, 16, 16 * 32768, 16 * 32768,
          SIZES_OF_USE },
        { "1 B, 4 GB", &small_1b, false, 3 * GIB, 0, 16, 20000, 28000, SIZES_MEMORY },
        { "8 B Q4, 24 GB", &eight_q4, false, 21 * GIB, 0, 16, 60000, 68000, SIZES_MEMORY },
        { "8 B Q4, 4 GB", &eight_q4, false, 3 * GIB, 4096, 16, 4096, 4096, SIZES_LEAST },
        { "7.2 B F16, 139 GiB GPU", &seven_b, true, 125 * GIB, 32768, 256, 850000, 910000,
          SIZES_MEMORY },
        { "7.2 B F16, 24 GB GPU", &seven_b, true, 21 * GIB, 32768, 64, 40000, 56000, SIZES_MEMORY },
        { "7.2 B F16, 8 GB GPU", &seven_b, true, 7 * GIB, 16384, 16, 16384, 16384, SIZES_LEAST },
        { "0.5 B, 139 GiB GPU", &half_b, true, 125 * GIB, 32768, 256, 1 << 22, 1 << 22,
          SIZES_OF_USE },
        { "recurrent, 24 GB", &recurrent, false, 21 * GIB, 1 << 20, 16, 1 << 22, 1 << 22,
          SIZES_OF_USE },
        { "recurrent, 24 GB GPU", &recurrent, true, 21 * GIB, 1 << 20, 256, 1 << 22, 1 << 22,
          SIZES_OF_USE },
        { "recurrent, 8 GB GPU", &recurrent, true, 7 * GIB, 1 << 20, 16, 1 << 22, 1 << 22,
          SIZES_OF_USE },
    };
    (void)state;

    for (size_t i = 0; i < N(all); i++) {
        struct sizes_out o =
            choose(all[i].card, all[i].gpu, all[i].room, all[i].gpu ? 1 : 0.5, (struct sizes){ 0 });
        int n_ctx = all[i].n_ctx ? all[i].n_ctx : o.s.kv_tokens; /* 0: as long as the cache */
        if (o.s.n_ctx != n_ctx || o.s.max_seqs != all[i].max_seqs ||
            o.s.kv_tokens < all[i].kv_least || o.s.kv_tokens > all[i].kv_most ||
            o.kv_why != all[i].why)
            fail_msg("%s: context %d, %d sequences, %d KV tokens (%d)", all[i].what, o.s.n_ctx,
                     o.s.max_seqs, o.s.kv_tokens, (int)o.kv_why);
    }
}

static void two_hundred_and_fifty_six_clients_fit_on_the_large_gpu(void **state)
{
    struct sizes_out o = choose(&seven_b, true, 125 * GIB, 1, (struct sizes){ 0 });
    (void)state;

    assert_true(o.s.max_seqs >= 256 && o.s.kv_tokens >= 256 * 512 && o.s.max_batch >= 2048);
}

/* A machine of 24 GB has room for two snapshots of each sequence; where memory is scarce there are a few;
 * the members of a gang, whose memories differ, agree on these. */
static void snapshots_of_state_are_as_many_as_memory_allows(void **state)
{
    struct machine x = { &recurrent, false };
    struct sizes_memory m = { 21 * GIB, recurrent.weights, 0, recurrent.slot_bytes, 0.5 };
    struct sizes_in in = { .trained_ctx = recurrent.trained,
                           .known = true,
                           .memory = &m,
                           .n_memories = 1,
                           .scratch = scratch,
                           .arg = &x };
    struct sizes_out o;
    (void)state;

    sizes_choose(&o, &in);
    assert_int_equal(o.n_saved, 32);
    m.room = 7 * GIB;
    sizes_choose(&o, &in);
    assert_int_equal(o.n_saved, 8);
    m.slot_bytes = 1 * MIB;
    sizes_choose(&o, &in);
    assert_int_equal(o.n_saved, 32);
    in.given.max_seqs = 2;
    sizes_choose(&o, &in);
    assert_int_equal(o.n_saved, 16);
    in.given.max_seqs = 0;
    in.few_saved = true;
    sizes_choose(&o, &in);
    assert_int_equal(o.n_saved, 8);
    in.given.max_seqs = 1;
    sizes_choose(&o, &in);
    assert_int_equal(o.n_saved, 4);
    in.no_prefix = true;
    sizes_choose(&o, &in);
    assert_int_equal(o.n_saved, 0);
}

static void one_sequence_has_a_cache_of_one_context(void **state)
{
    struct sizes_out o = choose(&half_b, false, 21 * GIB, 0.5, (struct sizes){ .max_seqs = 1 });
    (void)state;

    assert_int_equal(o.s.n_ctx, 32768);
    assert_int_equal(o.s.kv_tokens, 32768);
    assert_int_equal(o.s.max_seqs, 1);
}

static void few_short_sequences_have_room_for_prefixes(void **state)
{
    struct sizes given = { .max_seqs = 1, .n_ctx = 512 };
    struct sizes_out o = choose(&half_b, false, 21 * GIB, 0.5, given);
    (void)state;

    assert_int_equal(o.s.kv_tokens, 4 * 512);
}

static void without_a_known_memory_sizes_are_small(void **state)
{
    struct sizes_in in = { .trained_ctx = 131072 };
    struct sizes_out o;
    (void)state;

    sizes_choose(&o, &in);
    assert_int_equal(o.s.n_ctx, 4096);
    assert_int_equal(o.s.kv_tokens, 4 * 4096);
    assert_int_equal(o.s.max_seqs, 16);
    assert_int_equal(o.s.max_batch, 512);
    assert_int_equal(o.kv_why, SIZES_UNKNOWN);
    in.trained_ctx = 0;
    sizes_choose(&o, &in);
    assert_int_equal(o.s.n_ctx, 4096);
}

/* An encoder computes a text at once: more KV than a step has is of no use. */
static void an_encoder_gets_the_cache_of_its_largest_step(void **state)
{
    struct sizes_in in = { .trained_ctx = 512, .max_ctx = 512, .known = true, .at_once = true };
    struct sizes_out o;
    (void)state;

    sizes_choose(&o, &in);
    assert_int_equal(o.s.n_ctx, 512);
    assert_int_equal(o.s.kv_tokens, 4 * 512);
    in.given.max_batch = 8192;
    sizes_choose(&o, &in);
    assert_int_equal(o.s.kv_tokens, 8192 + 16 * KV_BLOCK);
    assert_int_equal(o.s.max_batch, 8192);
}

/* ---- several models ---- */

static void equal_models_get_equal_shares_one_after_the_other(void **state)
{
    static const double parts[] = { 0.5, 1 };
    (void)state;

    for (size_t k = 0; k < N(parts); k++)
        for (int n = 1; n <= 5; n++) {
            double left = 1000;
            for (int i = 0; i < n; i++) {
                struct sizes_room r = { .share = 1.0 / n, .share_before = (double)i / n };
                double mine = left * sizes_share(&r, parts[k]), want = 1000 * parts[k] / n;
                assert_true(mine > want - 1e-6 && mine < want + 1e-6);
                left -= mine;
            }
        }
    for (int i = 0; i < 4; i++) { /* numbers that make no sense */
        struct sizes_room r = { .share = i - 2.5, .share_before = 3 * i - 4.0 };
        double s = sizes_share(&r, 1);
        assert_true(s > 0 && s <= 1.0000001);
    }
}

/* ---- any machine ---- */

static uint64_t below(struct rng *g, uint64_t n) { return rng_u64(g) % n; }

static struct card random_card(struct rng *g)
{
    return (struct card){ .weights = below(g, 20000) * MIB,
                          .token_bytes = below(g, 5) ? 1 + below(g, 512 * 1024) : 0,
                          .slot_bytes = below(g, 3) ? 0 : below(g, 64 << 20),
                          .trained = (int)below(g, 1 << (4 + (int)below(g, 17))),
                          .n_vocab = 1 + (int)below(g, 200000),
                          .width = 64 + (int)below(g, 8192) };
}

static struct sizes random_given(struct rng *g)
{
    struct sizes s = { 0 };

    if (below(g, 4) == 0) s.n_ctx = 2 + (int)below(g, 200000);
    if (below(g, 4) == 0) s.kv_tokens = 1 + (int)below(g, 1 << 20);
    if (below(g, 4) == 0) s.max_batch = 1 + (int)below(g, 4096);
    if (below(g, 4) == 0) s.max_seqs = 1 + (int)below(g, 512);
    return s;
}

static void check_given(const struct sizes *given, const struct sizes *s)
{
    if (given->n_ctx) assert_int_equal(s->n_ctx, given->n_ctx);
    if (given->kv_tokens && given->kv_tokens >= s->n_ctx)
        assert_int_equal(s->kv_tokens, given->kv_tokens);
    if (given->kv_tokens) /* a chosen context never makes a given cache larger than 4096 tokens */
        assert_true(given->n_ctx || s->kv_tokens <= given->kv_tokens || s->kv_tokens <= 4096);
    if (given->max_batch)
        assert_true(s->max_batch == given->max_batch || s->max_batch == s->kv_tokens);
    if (given->max_seqs) assert_true(s->max_seqs == given->max_seqs || s->max_seqs == s->max_batch);
}

static void sizes_never_exceed_the_memory(void **state)
{
    struct rng g;
    int n_limited = 0;
    (void)state;

    rng_seed(&g, 15);
    for (int i = 0; i < 200000; i++) {
        struct card c = random_card(&g);
        bool gpu = below(&g, 2);
        uint64_t room = below(&g, 140 * 1024) * MIB, left;
        double share = gpu ? 1.0 / (double)(1 + below(&g, 4)) : 0.5;
        struct sizes given = random_given(&g);
        struct sizes_out o = choose(&c, gpu, room, share, given);
        const struct sizes *s = &o.s;

        check_given(&given, s);
        assert_true(s->n_ctx >= 1 && s->kv_tokens >= s->n_ctx && s->max_seqs >= 1);
        assert_true(s->max_batch >= s->max_seqs && s->max_batch <= s->kv_tokens);
        if (!given.n_ctx && c.trained > 1) assert_true(s->n_ctx <= c.trained);
        if (!given.n_ctx)
            assert_true(s->n_ctx >= (c.trained > 1 && c.trained < 4096 ? c.trained : 4096));
        if (o.kv_why != SIZES_MEMORY && o.kv_why != SIZES_OF_USE) continue;
        assert_true(s->kv_tokens % KV_BLOCK == 0);
        assert_true((uint64_t)s->kv_tokens <= (uint64_t)s->max_seqs * (uint64_t)(s->n_ctx + 15) ||
                    s->kv_tokens <= 4 * (s->n_ctx < 4096 ? s->n_ctx + 15 : 4096) ||
                    given.max_batch); /* a batch with fewer tokens than sequences lowers these */
        left = c.weights + scratch_of(&c, gpu, s);
        assert_true(left <= room);
        assert_true((double)kv_bytes(&c, &o) <= (double)(room - left) * share + 1);
        n_limited += o.kv_why == SIZES_MEMORY;
    }
    assert_true(n_limited > 1000);
}

/* More sequences need more scratch: the cache may become a little smaller when their number rises,
 * but it then holds 512 tokens of each. */
static void sizes_grow_with_the_memory(void **state)
{
    struct rng g;
    (void)state;

    rng_seed(&g, 16);
    for (int i = 0; i < 2000; i++) {
        struct card c = random_card(&g);
        bool gpu = below(&g, 2);
        struct sizes given = random_given(&g);
        struct sizes_out last = { 0 };
        uint64_t room = 0;

        for (int k = 0; k < 60; k++, room += below(&g, 3000) * MIB) {
            struct sizes_out o = choose(&c, gpu, room, gpu ? 1 : 0.5, given);
            if (k && last.kv_why != SIZES_LEAST) { /* a GPU without room leaves layers to the CPU */
                assert_true(o.s.max_seqs >= last.s.max_seqs);
                if (o.s.max_seqs == last.s.max_seqs) {
                    assert_true(o.s.kv_tokens >= last.s.kv_tokens);
                    assert_true(o.s.n_ctx >= last.s.n_ctx);
                } else if (!given.kv_tokens && !given.n_ctx && !given.max_seqs) {
                    assert_true(o.s.kv_tokens >= 512 * o.s.max_seqs || o.kv_why == SIZES_OF_USE);
                }
            }
            last = o;
        }
    }
}

/* The memory with the least room decides, and is named. */
static void every_memory_limits(void **state)
{
    struct machine x = { &seven_b, false };
    struct sizes_memory m[2] = { { 64 * GIB, 8 * GIB, 16 * 96 * KIB, 0, 1 },
                                 { 10 * GIB, 6 * GIB, 16 * 32 * KIB, 0, 0.5 } };
    struct sizes_in in = { .trained_ctx = 1 << 20,
                           .gpu = true,
                           .known = true,
                           .memory = m,
                           .n_memories = 2,
                           .scratch = scratch,
                           .arg = &x };
    struct sizes_out o;
    uint64_t blocks;
    (void)state;

    sizes_choose(&o, &in);
    blocks = (uint64_t)sizes_blocks(o.s.kv_tokens);
    assert_int_equal(o.limited_by, 1);
    assert_true(blocks * m[1].block_bytes <= 2 * GIB && blocks * m[1].block_bytes > GIB);
    m[0].room = 9 * GIB;
    sizes_choose(&o, &in);
    assert_int_equal(o.limited_by, 0);
}

static uint64_t no_scratch(const void *arg, int i, const struct sizes *s)
{
    (void)arg, (void)i, (void)s;
    return UINT64_MAX;
}

static void numbers_at_their_limits_do_not_overflow(void **state)
{
    struct sizes_memory m = { UINT64_MAX, UINT64_MAX - 5, UINT64_MAX / 3, UINT64_MAX / 2, 1 };
    struct sizes_in in = { .trained_ctx = INT32_MAX,
                           .given = { .max_seqs = 4096 },
                           .known = true,
                           .memory = &m,
                           .n_memories = 1,
                           .scratch = no_scratch };
    struct machine x = { &half_b, false };
    struct sizes_out o;
    (void)state;

    sizes_choose(&o, &in);
    assert_int_equal(o.kv_why, SIZES_LEAST);
    in.scratch = scratch;
    in.arg = &x;
    sizes_choose(&o, &in);
    assert_int_equal(o.kv_why, SIZES_LEAST);
    m = (struct sizes_memory){ UINT64_MAX, 0, 1, 0, 1 };
    sizes_choose(&o, &in);
    assert_int_equal(o.kv_why, SIZES_MEMORY);
    assert_true(o.s.kv_tokens > 0 && o.s.n_ctx > 0 && o.s.kv_tokens >= o.s.n_ctx);
    in.given = (struct sizes){ .n_ctx = 1 << 24, .max_seqs = 4096 };
    sizes_choose(&o, &in);
    assert_int_equal(o.s.n_ctx, 1 << 24);
    assert_true(o.s.kv_tokens >= 1 << 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_get_sizes_that_fit_them),
        cmocka_unit_test(two_hundred_and_fifty_six_clients_fit_on_the_large_gpu),
        cmocka_unit_test(snapshots_of_state_are_as_many_as_memory_allows),
        cmocka_unit_test(one_sequence_has_a_cache_of_one_context),
        cmocka_unit_test(few_short_sequences_have_room_for_prefixes),
        cmocka_unit_test(without_a_known_memory_sizes_are_small),
        cmocka_unit_test(an_encoder_gets_the_cache_of_its_largest_step),
        cmocka_unit_test(equal_models_get_equal_shares_one_after_the_other),
        cmocka_unit_test(sizes_never_exceed_the_memory),
        cmocka_unit_test(sizes_grow_with_the_memory),
        cmocka_unit_test(every_memory_limits),
        cmocka_unit_test(numbers_at_their_limits_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
