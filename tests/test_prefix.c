/* The prefix cache: which blocks a prompt finds, eviction of the least recently used leaf, exact
 * counts of idle blocks, and hash collisions.
 *
 * Random sequences of events are checked against a record of what each block was computed for.
 * Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kv/prefix.h"

#include <string.h>

#define B KV_BLOCK

/* A block pool and its prefix cache; tokens are 100, 101, ... unless a test sets others. */
struct world {
    struct block_pool *pool;
    struct prefix *x;
    int32_t ids[64 * B];
};

static struct world open_world(int n_blocks)
{
    struct world w = { 0 };
    struct err e = { 0 };
    if (block_pool_open(&w.pool, n_blocks, &e) != OK) fail_msg("%s", e.msg);
    if (prefix_open(&w.x, w.pool, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < 64 * B; i++) w.ids[i] = 100 + i;
    return w;
}

static void close_world(struct world *w)
{
    prefix_clear(w->x);
    assert_int_equal(prefix_n(w->x), 0);
    assert_int_equal(prefix_n_idle(w->x), 0);
    assert_int_equal(block_n_free(w->pool), block_n(w->pool));
    prefix_close(w->x);
    block_pool_close(w->pool);
}

/* The cache's own invariants hold. */
static void check_cache(const struct world *w)
{
    struct err e = { 0 };
    if (prefix_check(w->x, &e) != OK) fail_msg("%s", e.msg);
    if (block_check(w->pool, NULL, &e) != OK) fail_msg("%s", e.msg);
}

/* Begins a sequence of n tokens: takes its cached blocks, "computes" the rest and adds them to
 * the cache. Returns the number of cached tokens. */
static int begin_seq(struct world *w, struct chain *c, uint64_t salt, const int32_t *ids, int n)
{
    int hit;
    assert_true(chain_init(c, 64 * B));
    hit = prefix_take(w->x, salt, ids, n, c);
    assert_true(prefix_evict(w->x, (n + B - 1) / B - c->n));
    assert_true(chain_reserve(c, w->pool, n));
    prefix_add(w->x, salt, ids, n, hit, c);
    check_cache(w);
    return hit;
}

static int run_seq(struct world *w, uint64_t salt, const int32_t *ids, int n)
{
    struct chain c;
    int hit = begin_seq(w, &c, salt, ids, n);
    chain_release(&c, w->pool);
    check_cache(w);
    return hit;
}

static void a_cached_prefix_is_reused(void **state)
{
    struct world w = open_world(16);
    struct chain a, b;
    (void)state;
    assert_int_equal(begin_seq(&w, &a, 0, w.ids, 3 * B + 5), 0);
    assert_int_equal(prefix_n(w.x), 3);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 64 * B, NULL), 3 * B);
    assert_int_equal(begin_seq(&w, &b, 0, w.ids, 3 * B + 5), 3 * B);
    for (int i = 0; i < 3; i++) assert_int_equal(a.blocks[i], b.blocks[i]);
    assert_int_not_equal(a.blocks[3],
                         b.blocks[3]); /* not a full block: each sequence has its own */
    assert_int_equal(block_refs(w.pool, a.blocks[0]), 3);
    chain_release(&a, w.pool);
    chain_release(&b, w.pool);
    assert_int_equal(prefix_n(w.x), 3); /* the blocks stay cached when the sequences end */
    assert_int_equal(prefix_n_idle(w.x), 3);
    assert_int_equal(block_n_free(w.pool), 13);
    close_world(&w);
}

static void the_last_token_of_a_prompt_is_always_computed(void **state)
{
    struct world w = open_world(16);
    (void)state;
    run_seq(&w, 0, w.ids, 4 * B);
    assert_int_equal(prefix_n(w.x), 4);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 4 * B, NULL), 3 * B);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 4 * B + 1, NULL), 4 * B);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, B, NULL), 0);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 1, NULL), 0);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 0, NULL), 0);
    close_world(&w);
}

static void sequences_with_different_salts_share_no_blocks(void **state)
{
    struct world w = open_world(16);
    (void)state;
    run_seq(&w, 1, w.ids, 4 * B);
    assert_int_equal(prefix_lookup(w.x, 2, w.ids, 4 * B, NULL), 0);
    assert_int_equal(prefix_lookup(w.x, 1, w.ids, 4 * B, NULL), 3 * B);
    run_seq(&w, 2, w.ids, 4 * B);
    assert_int_equal(prefix_n(w.x), 8);
    close_world(&w);
}

static void the_same_tokens_after_another_prefix_are_another_block(void **state)
{
    struct world w = open_world(16);
    int32_t other[3 * B];
    (void)state;
    memcpy(other, w.ids, sizeof other);
    other[3]++;
    run_seq(&w, 0, w.ids, 3 * B);
    assert_int_equal(prefix_lookup(w.x, 0, other, 3 * B, NULL), 0);
    run_seq(&w, 0, other, 3 * B);
    assert_int_equal(prefix_n(w.x), 6);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids + B, 2 * B, NULL),
                     0); /* the middle of a cached text is not a prefix */
    close_world(&w);
}

static void a_chain_gets_no_more_cached_blocks_than_its_maximum(void **state)
{
    struct world w = open_world(16);
    struct chain c;
    (void)state;
    run_seq(&w, 0, w.ids, 6 * B);
    assert_true(chain_init(&c, 2 * B));
    assert_int_equal(prefix_take(w.x, 0, w.ids, 6 * B, &c), 2 * B);
    chain_release(&c, w.pool);
    close_world(&w);
}

static void the_least_recently_used_leaf_is_evicted_first(void **state)
{
    struct world w = open_world(8);
    int32_t *a = w.ids, *b = w.ids + 10 * B;
    (void)state;
    run_seq(&w, 0, a, 3 * B + 1);
    run_seq(&w, 0, b, 3 * B + 1);
    assert_int_equal(block_n_free(w.pool), 2);
    assert_true(prefix_evict(w.x, 3));
    assert_int_equal(prefix_lookup(w.x, 0, a, 4 * B, NULL), 2 * B);
    assert_int_equal(prefix_lookup(w.x, 0, b, 4 * B, NULL), 3 * B);
    assert_true(prefix_evict(w.x, 3)); /* enough blocks are free: nothing is evicted */
    assert_int_equal(prefix_n(w.x), 5);
    assert_true(prefix_evict(w.x, 6));
    assert_int_equal(prefix_lookup(w.x, 0, a, 4 * B, NULL), 0);
    assert_int_equal(prefix_lookup(w.x, 0, b, 4 * B, NULL), 2 * B);
    assert_false(prefix_evict(w.x, 9));
    close_world(&w);
}

static void using_a_prefix_protects_it_from_eviction(void **state)
{
    struct world w = open_world(8);
    int32_t *a = w.ids, *b = w.ids + 10 * B;
    (void)state;
    run_seq(&w, 0, a, 3 * B + 1);
    run_seq(&w, 0, b, 3 * B + 1);
    run_seq(&w, 0, a, 2 * B + 1); /* uses the first two blocks; the third is older than all of b */
    assert_true(prefix_evict(w.x, 3));
    assert_int_equal(prefix_lookup(w.x, 0, a, 4 * B, NULL), 2 * B);
    assert_true(prefix_evict(w.x, 6));
    assert_int_equal(prefix_lookup(w.x, 0, b, 4 * B, NULL), 0);
    assert_int_equal(prefix_lookup(w.x, 0, a, 4 * B, NULL), 2 * B);
    close_world(&w);
}

static void a_block_is_not_evicted_before_its_children(void **state)
{
    struct world w = open_world(16);
    int32_t a[3 * B], b[3 * B];
    struct chain c;
    (void)state;
    memcpy(a, w.ids, sizeof a);
    memcpy(b, w.ids, sizeof b);
    b[2 * B] = 7; /* two equal blocks, then the texts differ */
    run_seq(&w, 0, a, 3 * B);
    run_seq(&w, 0, b, 3 * B);
    assert_int_equal(prefix_n(w.x), 4);
    assert_true(chain_init(&c, 64 * B));
    assert_int_equal(prefix_take(w.x, 0, b, 3 * B, &c), 2 * B);
    assert_int_equal(prefix_n_idle(w.x), 2); /* the two leaves */
    assert_false(prefix_evict(w.x, 16));
    assert_int_equal(prefix_n(w.x), 2);
    assert_int_equal(prefix_lookup(w.x, 0, a, 3 * B, NULL), 2 * B);
    chain_release(&c, w.pool);
    assert_int_equal(prefix_n_idle(w.x), 2);
    close_world(&w);
}

static void blocks_of_tokens_that_are_already_cached_stay_private(void **state)
{
    struct world w = open_world(16);
    struct chain a, b;
    (void)state;
    assert_true(chain_init(&b, 64 * B));
    assert_true(chain_reserve(&b, w.pool, 4 * B)); /* b begins before the blocks of a are cached */
    begin_seq(&w, &a, 0, w.ids, 2 * B);
    prefix_add(w.x, 0, w.ids, 2 * B, 0, &b);
    assert_int_equal(prefix_n(w.x), 2);
    assert_int_equal(block_refs(w.pool, b.blocks[1]), 1);
    prefix_add(w.x, 0, w.ids, 4 * B, 2 * B, &b); /* b's next blocks become children of a's */
    assert_int_equal(prefix_n(w.x), 4);
    assert_int_equal(block_refs(w.pool, b.blocks[2]), 2);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 5 * B, NULL), 4 * B);
    chain_release(&a, w.pool); /* b does not reference a's blocks, but its own are their children */
    assert_int_equal(prefix_n_idle(w.x), 0);
    assert_false(prefix_evict(w.x, 16));
    assert_int_equal(prefix_n(w.x), 4);
    chain_release(&b, w.pool);
    assert_int_equal(prefix_n_idle(w.x), 4);
    assert_int_equal(block_n_free(w.pool), 12);
    close_world(&w);
}

static void a_block_is_cached_under_one_key_only(void **state)
{
    struct world w = open_world(8);
    struct chain a;
    (void)state;
    begin_seq(&w, &a, 1, w.ids, 3 * B);
    prefix_add(w.x, 2, w.ids, 3 * B, 0, &a);
    assert_int_equal(prefix_n(w.x), 3);
    assert_int_equal(prefix_lookup(w.x, 2, w.ids, 3 * B + 1, NULL), 0);
    assert_int_equal(prefix_lookup(w.x, 1, w.ids, 3 * B + 1, NULL), 3 * B);
    chain_release(&a, w.pool);
    close_world(&w);
}

static void taking_an_idle_prefix_updates_the_idle_count(void **state)
{
    struct world w = open_world(16);
    struct chain a, b;
    int used = -1;
    (void)state;
    run_seq(&w, 0, w.ids, 4 * B + 1);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 4 * B + 1, &used), 4 * B);
    assert_int_equal(used, 0);
    assert_true(chain_init(&a, 64 * B));
    prefix_take(w.x, 0, w.ids, 2 * B + 1, &a);
    assert_int_equal(prefix_lookup(w.x, 0, w.ids, 4 * B + 1, &used), 4 * B);
    assert_int_equal(used, 2 * B);
    assert_int_equal(prefix_n_gain(w.x, &a), 2);
    begin_seq(&w, &b, 0, w.ids, 4 * B + 1);
    assert_int_equal(prefix_n_gain(w.x, &a), 0); /* b references them too */
    assert_int_equal(prefix_n_gain(w.x, &b), 3);
    chain_release(&a, w.pool);
    assert_int_equal(prefix_n_gain(w.x, &b), 5);
    chain_release(&b, w.pool);
    close_world(&w);
}

static void closing_the_cache_leaves_sequences_their_blocks(void **state)
{
    struct world w = open_world(8);
    struct chain a;
    (void)state;
    begin_seq(&w, &a, 0, w.ids, 3 * B);
    run_seq(&w, 0, w.ids + 10 * B, 2 * B);
    prefix_close(w.x);
    assert_int_equal(block_n_free(w.pool), 5);
    chain_release(&a, w.pool);
    assert_int_equal(block_n_free(w.pool), 8);
    block_pool_close(w.pool);
}

/* Random sequences over few different tokens, so that they often share prefixes. A note per
 * block records the tokens that it was computed for: a block that is handed out for other tokens
 * is found at once. */
struct note {
    uint64_t salt;
    int at;
    int32_t ids[12 * B];
};

struct life {
    struct chain c;
    struct note is;
    int n;
};

static void expect_right_blocks(const struct note *notes, const struct life *l, int hit)
{
    for (int i = 0; i < hit / B; i++) {
        const struct note *t = &notes[l->c.blocks[i]];
        assert_int_equal(t->salt, l->is.salt);
        assert_int_equal(t->at, i);
        assert_memory_equal(t->ids, l->is.ids, (size_t)(i + 1) * B * sizeof *t->ids);
    }
}

static void make_random(struct rng *r, struct life *l)
{
    l->is.salt = rng_u64(r) % 2;
    l->n = 1 + (int)(rng_u64(r) % (10 * B));
    for (int i = 0; i < 12 * B; i++) l->is.ids[i] = i % B == 0 ? (int32_t)(rng_u64(r) % 2) : 5;
}

static void begin_random(struct world *w, struct rng *r, struct life *l, struct note *notes)
{
    int hit, used, look, idle = prefix_n_idle(w->x);
    make_random(r, l);
    assert_true(chain_init(&l->c, 12 * B));
    look = prefix_lookup(w->x, l->is.salt, l->is.ids, l->n, &used);
    hit = prefix_take(w->x, l->is.salt, l->is.ids, l->n, &l->c);
    assert_int_equal(look, hit);
    assert_int_equal(prefix_n_idle(w->x), idle - (hit - used) / B);
    expect_right_blocks(notes, l, hit);
    prefix_evict(w->x, (l->n + B - 1) / B - l->c.n);
    if (!chain_reserve(&l->c, w->pool, l->n)) {
        chain_release(&l->c, w->pool);
        return;
    }
    for (int i = hit / B; i < l->c.n; i++) {
        notes[l->c.blocks[i]] = l->is;
        notes[l->c.blocks[i]].at = i;
    }
    if (rng_u64(r) % 4 == 0) return; /* computed, but not yet added to the cache */
    prefix_add(w->x, l->is.salt, l->is.ids, l->n, hit, &l->c);
}

static void end_random(struct world *w, struct rng *r, struct life *l)
{
    int room = block_n_free(w->pool) + prefix_n_idle(w->x), gain;
    if (rng_u64(r) % 2) prefix_add(w->x, l->is.salt, l->is.ids, l->n, 0, &l->c);
    gain = prefix_n_gain(w->x, &l->c);
    room = block_n_free(w->pool) + prefix_n_idle(w->x);
    chain_release(&l->c, w->pool);
    assert_true(block_n_free(w->pool) + prefix_n_idle(w->x) >= room + gain);
}

/* Every block reference belongs to a sequence or to the cache. */
static void check_uses(const struct world *w, const struct life *lives, int n)
{
    int32_t uses[60] = { 0 };
    struct err e = { 0 };
    for (int i = 0; i < n; i++) chain_count_uses(&lives[i].c, uses);
    prefix_count_uses(w->x, uses);
    if (prefix_check(w->x, &e) != OK || block_check(w->pool, uses, &e) != OK) fail_msg("%s", e.msg);
}

static void check_random_events(int hash_bits, uint64_t seed, int n_events)
{
    enum { N = 12 };
    struct world w = open_world(60);
    struct note *notes = mem_array(60, sizeof *notes);
    struct life *lives = mem_array(N, sizeof *lives);
    struct rng r;
    rng_seed(&r, seed);
    prefix_set_hash_bits(w.x, hash_bits);
    for (int ev = 0; ev < n_events; ev++) {
        struct life *l = &lives[rng_u64(&r) % N];
        if (l->c.blocks) end_random(&w, &r, l);
        else begin_random(&w, &r, l, notes);
        assert_true(prefix_n_idle(w.x) <= prefix_n(w.x));
        check_uses(&w, lives, N);
        if (ev % 97 == 96) { /* every idle block can be evicted */
            int room = block_n_free(w.pool) + prefix_n_idle(w.x);
            assert_false(prefix_evict(w.x, room + 1));
            assert_int_equal(block_n_free(w.pool), room);
            assert_int_equal(prefix_n_idle(w.x), 0);
            check_uses(&w, lives, N);
        }
    }
    for (int i = 0; i < N; i++)
        if (lives[i].c.blocks) chain_release(&lives[i].c, w.pool);
    assert_int_equal(prefix_n_idle(w.x), prefix_n(w.x));
    mem_free(notes);
    mem_free(lives);
    close_world(&w);
}

static void the_idle_count_is_exact_in_any_order_of_events(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) check_random_events(64, seed, 6000);
}

static void equal_hashes_never_return_a_wrong_block(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) check_random_events(0, seed, 4000);
    check_random_events(2, 9, 4000);
}

static void a_hot_prefix_survives_a_flood_smaller_than_the_cache(void **state)
{
    struct world w = open_world(40);
    int32_t flood[8 * B];
    int hits = 0;
    (void)state;
    run_seq(&w, 0, w.ids, 6 * B + 1);
    for (int i = 0; i < 200; i++) { /* 3 * 8 blocks of other texts between two uses */
        for (int j = 0; j < 8 * B; j++) flood[j] = 100000 + i * 1000 + j;
        assert_int_equal(run_seq(&w, 0, flood, 8 * B), 0);
        if (i % 3 == 2) hits += run_seq(&w, 0, w.ids, 6 * B + 1) == 6 * B;
    }
    assert_int_equal(hits, 66);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cached_prefix_is_reused),
        cmocka_unit_test(the_last_token_of_a_prompt_is_always_computed),
        cmocka_unit_test(sequences_with_different_salts_share_no_blocks),
        cmocka_unit_test(the_same_tokens_after_another_prefix_are_another_block),
        cmocka_unit_test(a_chain_gets_no_more_cached_blocks_than_its_maximum),
        cmocka_unit_test(the_least_recently_used_leaf_is_evicted_first),
        cmocka_unit_test(using_a_prefix_protects_it_from_eviction),
        cmocka_unit_test(a_block_is_not_evicted_before_its_children),
        cmocka_unit_test(blocks_of_tokens_that_are_already_cached_stay_private),
        cmocka_unit_test(a_block_is_cached_under_one_key_only),
        cmocka_unit_test(taking_an_idle_prefix_updates_the_idle_count),
        cmocka_unit_test(closing_the_cache_leaves_sequences_their_blocks),
        cmocka_unit_test(the_idle_count_is_exact_in_any_order_of_events),
        cmocka_unit_test(equal_hashes_never_return_a_wrong_block),
        cmocka_unit_test(a_hot_prefix_survives_a_flood_smaller_than_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
