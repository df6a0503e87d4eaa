/* KV memory: the block pool, the store of all layers, chains of blocks per sequence, state slots
 * of recurrent layers, and state snapshots.
 *
 * Runs on the CPU backend. Reads no files. */
#include "support.h"

#include "kv/chain.h"
#include "kv/kvstore.h"
#include "kv/slots.h"
#include "kv/snap.h"
#include "kv/statestore.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct backend *be;

static int open_backend(void **state)
{
    (void)state;
    return backend_open(&be, &(struct backend_opt){ .n_threads = 1, .reference = true }, NULL);
}

static int close_backend(void **state)
{
    (void)state;
    backend_close(be);
    return 0;
}

static const struct kvshape two_layers[] = { { 2, 16, 16, false, 0 }, { 1, 8, 32, false, 0 } };

static struct block_pool *open_pool(int n)
{
    struct block_pool *p = NULL;
    struct err e = { 0 };
    if (block_pool_open(&p, n, &e) != OK) fail_msg("%s", e.msg);
    return p;
}

/* The reference counts of the pool equal the uses by these chains. */
static void check_pool(const struct block_pool *p, const struct chain *a, const struct chain *b)
{
    int32_t uses[16] = { 0 };
    struct err e = { 0 };
    if (a) chain_count_uses(a, uses);
    if (b) chain_count_uses(b, uses);
    if (block_check(p, a ? uses : NULL, &e) != OK) fail_msg("%s", e.msg);
}

static struct kvstore *open_store(int n)
{
    struct kvstore *s = NULL;
    struct err e = { 0 };
    if (kvstore_open(&s, &(struct backend_share){ be, 2 }, 1, two_layers, DT_F32, n, &e) != OK)
        fail_msg("%s", e.msg);
    return s;
}

static void a_block_is_free_when_its_last_reference_is_released(void **state)
{
    struct block_pool *p = open_pool(3);
    int a = block_get(p), b = block_get(p);
    (void)state;
    assert_int_not_equal(a, b);
    assert_int_equal(block_n_free(p), 1);
    block_ref(p, a);
    check_pool(p, NULL, NULL);
    block_unref(p, a);
    assert_int_equal(block_n_free(p), 1);
    check_pool(p, NULL, NULL);
    block_unref(p, a);
    check_pool(p, NULL, NULL);
    assert_int_equal(block_n_free(p), 2);
    block_unref(p, b);
    assert_int_equal(block_n_free(p), 3);
    assert_int_equal(block_n(p), 3);
    block_pool_close(p);
}

static void an_exhausted_pool_returns_no_block_and_stays_usable(void **state)
{
    struct block_pool *p = open_pool(2);
    int a = block_get(p);
    (void)state;
    assert_int_equal(block_get(p) >= 0, 1);
    assert_int_equal(block_get(p), -1);
    assert_int_equal(block_get(p), -1);
    block_unref(p, a);
    assert_int_equal(block_get(p), a);
    block_pool_close(p);
}

static void blocks_of_different_layers_do_not_overlap(void **state)
{
    struct kvstore *p = open_store(4);
    struct kvview v;
    (void)state;
    kvstore_view(p, &v);
    assert_int_equal(v.n_layers, 2);
    assert_int_equal(v.type, DT_F32);
    assert_int_equal(v.layers[0].k_block_bytes, 2 * KV_BLOCK * 16 * 4);
    assert_int_equal(v.layers[1].v_block_bytes, 1 * KV_BLOCK * 32 * 4);
    for (int l = 0; l < 2; l++) {
        memset(v.layers[l].k, 2 * l + 1, 4 * v.layers[l].k_block_bytes);
        memset(v.layers[l].v, 2 * l + 2, 4 * v.layers[l].v_block_bytes);
    }
    for (int l = 0; l < 2; l++) {
        const unsigned char *k = v.layers[l].k, *w = v.layers[l].v;
        for (size_t i = 0; i < 4 * v.layers[l].k_block_bytes; i++)
            assert_int_equal(k[i], 2 * l + 1);
        for (size_t i = 0; i < 4 * v.layers[l].v_block_bytes; i++)
            assert_int_equal(w[i], 2 * l + 2);
        assert_int_equal((uintptr_t)k % 64, 0);
    }
    assert_int_equal(kvstore_block_bytes(two_layers, 2, DT_F32),
                     KV_BLOCK * 4 * (2 * 16 * 2 + 8 + 32));
    assert_int_equal(kvstore_block_bytes(two_layers, 2, DT_F16),
                     KV_BLOCK * 2 * (2 * 16 * 2 + 8 + 32));
    kvstore_close(p);
}

static int count_resident(char *p, size_t bytes)
{
    static unsigned char in[1 << 14];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = bytes / page;
    int sum = 0;

    assert_true(n <= sizeof in);
    p += (page - (uintptr_t)p % page) % page;
    assert_int_equal(mincore(p, (n - 1) * page, in), 0);
    for (size_t i = 0; i + 1 < n; i++) sum += in[i] & 1;
    return sum;
}

/* The first use of a block takes the pages of this block, not a huge page in every layer. */
static void a_small_cache_takes_the_pages_that_are_used(void **state)
{
    enum { LAYERS = 12, BLOCKS = 513, PAGE = 4096 };
    struct kvshape shapes[LAYERS];
    struct kvstore *s = NULL;
    struct kvview v;
    size_t block, bytes;

    (void)state;
    for (int l = 0; l < LAYERS; l++) shapes[l] = (struct kvshape){ 2, 64, 64, false, 0 };
    block = kvstore_block_bytes(shapes, LAYERS, DT_F16);
    bytes = block * BLOCKS;
    assert_true(bytes > 32 << 20);
    assert_int_equal(
        kvstore_open(&s, &(struct backend_share){ be, LAYERS }, 1, shapes, DT_F16, BLOCKS, NULL),
        OK);
    kvstore_view(s, &v);
    for (int l = 0; l < LAYERS; l++) {
        memset(v.layers[l].k, 1, v.layers[l].k_block_bytes);
        memset(v.layers[l].v, 1, v.layers[l].v_block_bytes);
    }
    assert_in_range(count_resident(v.layers[0].k, bytes), 1,
                    2 * LAYERS * (block / (2 * LAYERS * PAGE) + 2));
    assert_false(be->thin_kv);
    kvstore_close(s);
}

static void a_layer_without_kv_takes_no_memory(void **state)
{
    static const struct kvshape shapes[] = { { 0, 0, 0, false, 0 }, { 1, 16, 16, false, 0 } };
    struct kvstore *p = NULL;
    struct kvview v;
    (void)state;
    assert_int_equal(kvstore_open(&p, &(struct backend_share){ be, 2 }, 1, shapes, DT_F16, 2, NULL),
                     OK);
    kvstore_view(p, &v);
    assert_null(v.layers[0].k);
    assert_non_null(v.layers[1].k);
    kvstore_close(p);
}

static int fail_alloc(struct backend *self, void **out, size_t bytes, enum mem_kind kind,
                      struct err *e)
{
    (void)self, (void)out, (void)bytes, (void)kind;
    return err_set(e, E_NOMEM, "none");
}

static void the_error_for_a_pool_that_does_not_fit_has_its_size(void **state)
{
    struct backend poor = { .name = "poor", .alloc = fail_alloc };
    struct backend_share all = { &poor, 2 };
    struct kvstore *p = NULL;
    struct block_pool *ids = NULL;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(kvstore_open(&p, &all, 1, two_layers, DT_F32, 100, &e), E_NOMEM);
    assert_null(p);
    assert_non_null(strstr(e.msg, "665856")); /* 100 * 6656 plus the alignment of two layers */
    assert_int_equal(kvstore_open(&p, &all, 1, two_layers, DT_F32, 0, &e), E_INVALID);
    assert_int_equal(block_pool_open(&ids, 0, &e), E_INVALID);
    assert_int_equal(kvstore_open(&p, &all, 1, two_layers, DT_Q8_0, 4, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "Q8_0"));
}

static void a_chain_reserves_all_blocks_or_none(void **state)
{
    struct block_pool *p = open_pool(4);
    struct chain a, b;
    (void)state;
    assert_true(chain_init(&a, 1000));
    assert_true(chain_init(&b, 1000));
    assert_true(chain_reserve(&a, p, KV_BLOCK + 1));
    assert_int_equal(a.n, 2);
    assert_true(chain_reserve(&a, p, 2 * KV_BLOCK)); /* still two blocks */
    assert_int_equal(block_n_free(p), 2);
    assert_false(chain_reserve(&b, p, 3 * KV_BLOCK));
    assert_int_equal(b.n, 0);
    assert_int_equal(block_n_free(p), 2);
    assert_true(chain_reserve(&b, p, 2 * KV_BLOCK));
    assert_false(chain_reserve(&a, p, 2 * KV_BLOCK + 1));
    chain_release(&a, p);
    assert_int_equal(block_n_free(p), 2);
    check_pool(p, &a, &b);
    chain_release(&b, p);
    check_pool(p, &a, &b);
    assert_int_equal(block_n_free(p), 4);
    block_pool_close(p);
}

static void a_chain_does_not_grow_beyond_its_maximum(void **state)
{
    struct block_pool *p = open_pool(8);
    struct chain c;
    (void)state;
    assert_true(chain_init(&c, 2 * KV_BLOCK));
    assert_true(chain_reserve(&c, p, 2 * KV_BLOCK));
    assert_false(chain_reserve(&c, p, 2 * KV_BLOCK + 1));
    chain_truncate(&c, p, KV_BLOCK + 1);
    assert_int_equal(c.n, 2);
    chain_truncate(&c, p, KV_BLOCK);
    assert_int_equal(c.n, 1);
    chain_truncate(&c, p, 0);
    assert_int_equal(block_n_free(p), 8);
    chain_release(&c, p);
    block_pool_close(p);
}

static void a_fork_shares_whole_blocks_until_both_chains_are_released(void **state)
{
    struct block_pool *p = open_pool(4);
    struct chain a, b;
    (void)state;
    assert_true(chain_init(&a, 1000));
    assert_true(chain_init(&b, 1000));
    assert_true(chain_reserve(&a, p, 3 * KV_BLOCK));
    assert_int_equal(chain_fork(&b, &a, p, 2 * KV_BLOCK + 5), 2 * KV_BLOCK);
    assert_int_equal(b.n, 2);
    assert_int_equal(b.blocks[1], a.blocks[1]);
    check_pool(p, &a, &b);
    chain_release(&a, p);
    assert_int_equal(block_n_free(p), 2);
    check_pool(p, &a, &b);
    chain_release(&b, p);
    check_pool(p, &a, &b);
    assert_int_equal(block_n_free(p), 4);
    block_pool_close(p);
}

static const struct stateshape three_layers[] = { { 3, 10, 40 }, { 0 }, { 2, 4, 0 } };

static struct state_store *open_states(int n)
{
    struct state_store *p = NULL;
    struct err e = { 0 };
    if (state_store_open(&p, &(struct backend_share){ be, 3 }, 1, three_layers, n, &e) != OK)
        fail_msg("%s", e.msg);
    return p;
}

static void state_slots_are_counted_and_reused(void **state)
{
    struct slots s;
    int a, b;
    (void)state;
    assert_int_equal(slots_init(&s, 2, NULL), OK);
    a = slots_get(&s), b = slots_get(&s);
    assert_true(a >= 0 && b >= 0 && a != b);
    assert_int_equal(slots_get(&s), -1);
    slots_put(&s, -1);
    slots_put(&s, a);
    assert_int_equal(s.n_free, 1);
    assert_int_equal(slots_get(&s), a);
    assert_int_equal(s.n, 2);
    slots_release(&s);
    assert_int_equal(slots_init(&s, 0, NULL), OK);
    assert_int_equal(slots_get(&s), -1);
    slots_release(&s);
}

static void the_state_store_uses_the_announced_memory(void **state)
{
    size_t before = be->used_bytes[MEM_KV];
    struct state_store *p = open_states(2);
    (void)state;
    assert_int_equal(be->used_bytes[MEM_KV] - before, 2 * state_bytes(three_layers, 3));
    assert_int_equal(state_store_n(p), 2);
    state_store_close(p);
    assert_int_equal(be->used_bytes[MEM_KV], before);
}

static float *conv_state(const struct stateview *v, int l, int slot)
{
    return v->layers[l].conv + (size_t)slot * v->layers[l].conv_floats;
}

static void a_copied_state_is_independent(void **state)
{
    enum { A = 1, B = 0, C = 2 };
    struct state_store *p = open_states(3);
    struct stateview v;
    (void)state;
    state_store_view(p, &v);
    assert_int_equal(v.n_layers, 3);
    assert_null(v.layers[1].conv);
    assert_null(v.layers[2].rec);
    for (int i = 0; i < 30; i++) conv_state(&v, 0, A)[i] = (float)i, conv_state(&v, 0, C)[i] = -1;
    for (int i = 0; i < 8; i++)
        conv_state(&v, 2, A)[i] = 100 + (float)i, conv_state(&v, 2, C)[i] = -1;
    for (int i = 0; i < 40; i++) v.layers[0].rec[A * v.layers[0].rec_floats + (size_t)i] = 7;
    state_store_copy(p, B, A);
    conv_state(&v, 0, A)[0] = 55;
    for (int i = 0; i < 30; i++)
        assert_true(conv_state(&v, 0, B)[i] == (float)i && conv_state(&v, 0, C)[i] == -1);
    for (int i = 0; i < 8; i++)
        assert_true(conv_state(&v, 2, B)[i] == 100 + (float)i && conv_state(&v, 2, C)[i] == -1);
    for (int i = 0; i < 40; i++)
        assert_true(v.layers[0].rec[B * v.layers[0].rec_floats + (size_t)i] == 7);
    state_store_close(p);
}

static void snapshots_are_found_by_their_tokens(void **state)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8 }, other[] = { 1, 2, 9, 4, 5, 6, 7, 8 };
    struct snaps *s = NULL;
    int two, six;
    (void)state;

    assert_int_equal(snaps_open(&s, 5, 2, 8, NULL), OK);
    two = snaps_add(s, 0, ids, 2);
    six = snaps_add(s, 0, ids, 6);
    assert_true(two >= 5 && six >= 5 && two != six && two < 7 && six < 7);
    assert_int_equal(snaps_add(s, 0, ids, 6), -1); /* already stored: unchanged */
    assert_int_equal(snaps_find(s, 0, ids, 8), 6);
    assert_int_equal(snaps_find(s, 0, ids, 5), 2);
    assert_int_equal(snaps_find(s, 0, other, 8), 2);
    assert_int_equal(snaps_find(s, 7, ids, 8), 0); /* another salt */
    assert_int_equal(snaps_use(s, 0, ids, 6), six);
    assert_int_equal(snaps_use(s, 0, ids, 2), two);
    assert_int_equal(snaps_n(s), 2);
    assert_int_equal(snaps_max(s), 2);
    assert_int_equal(snaps_add(s, 0, ids, 9), -1); /* longer than any sequence */
    snaps_close(s);
}

/* Conversation c: its tokens are c, then 0, 1, 2, ... */
static const int32_t *talk(int c)
{
    static int32_t ids[1024];

    for (int i = 0; i < 1024; i++) ids[i] = i - 1;
    ids[0] = c;
    return ids;
}

static void a_snapshot_that_a_neighbour_nearly_replaces_is_given_up_first(void **state)
{
    struct snaps *s = NULL;
    (void)state;

    assert_int_equal(snaps_open(&s, 0, 4, 1024, NULL), OK);
    snaps_add(s, 0, talk(1), 500); /* the only one of its conversation, and the oldest */
    snaps_add(s, 0, talk(2), 100);
    snaps_add(s, 0, talk(2), 600);
    snaps_add(s, 0, talk(2), 620);
    snaps_add(s, 0, talk(3), 300); /* in the place of 620, which 600 nearly replaces */
    assert_int_equal(snaps_find(s, 0, talk(1), 1024), 500);
    assert_int_equal(snaps_find(s, 0, talk(2), 1024), 600);
    assert_int_equal(snaps_find(s, 0, talk(2), 599), 100);
    assert_int_equal(snaps_find(s, 0, talk(3), 1024), 300);
    snaps_close(s);
}

static void a_snapshot_that_is_not_used_goes_in_the_end(void **state)
{
    struct snaps *s = NULL;
    int n = 0;
    (void)state;

    assert_int_equal(snaps_open(&s, 0, 4, 1024, NULL), OK);
    snaps_add(s, 0, talk(1), 1000);
    for (; n < 100 && snaps_find(s, 0, talk(1), 1024); n++) {
        snaps_add(s, 0, talk(2 + n), 100);
        if (n == 50) fail_msg("a snapshot is kept for good");
    }
    assert_true(n > 4); /* shorter ones went before it */
    n = 0;
    snaps_add(s, 0, talk(1), 1000); /* used again and again, it stays */
    for (; n < 100; n++) {
        snaps_add(s, 0, talk(200 + n), 100);
        snaps_use(s, 0, talk(1), 1000);
    }
    assert_int_equal(snaps_find(s, 0, talk(1), 1024), 1000);
    snaps_close(s);
}

static void the_snapshot_of_a_running_sequence_moves_on(void **state)
{
    struct snaps *s = NULL;
    int slot;
    (void)state;

    assert_int_equal(snaps_open(&s, 3, 4, 1024, NULL), OK);
    snaps_add(s, 0, talk(1), 32);
    slot = snaps_move(s, 0, talk(1), 0, 48);
    assert_true(slot > 3);
    assert_int_equal(snaps_move(s, 0, talk(1), 48, 64), slot); /* in place */
    assert_int_equal(snaps_n(s), 2);
    assert_int_equal(snaps_find(s, 0, talk(1), 1024), 64);
    assert_int_equal(snaps_find(s, 0, talk(1), 63), 32);
    assert_int_equal(snaps_use(s, 0, talk(1), 64), slot);
    /* A prompt ends there now: it stays, and the sequence gets another one. */
    assert_int_equal(snaps_add(s, 0, talk(1), 64), -1);
    assert_true(snaps_move(s, 0, talk(1), 64, 80) != slot);
    assert_int_equal(snaps_find(s, 0, talk(1), 79), 64);
    /* Another sequence was there before: nothing is copied, and the place is free. */
    snaps_add(s, 0, talk(1), 96);
    assert_int_equal(snaps_move(s, 0, talk(1), 80, 96), -1);
    assert_int_equal(snaps_n(s), 3);
    assert_int_equal(snaps_move(s, 0, talk(1), 0, 1025), -1);
    snaps_close(s);
}

static void a_model_without_state_has_no_slots(void **state)
{
    struct state_store *p = (void *)&p;
    (void)state;
    assert_int_equal(state_store_open(&p, &(struct backend_share){ be, 2 }, 1,
                                      (struct stateshape[]){ { 0 }, { 0 } }, 4, NULL),
                     OK);
    assert_null(p);
    assert_int_equal(state_store_n(p), 0);
    state_store_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_free_when_its_last_reference_is_released),
        cmocka_unit_test(an_exhausted_pool_returns_no_block_and_stays_usable),
        cmocka_unit_test(blocks_of_different_layers_do_not_overlap),
        cmocka_unit_test(a_small_cache_takes_the_pages_that_are_used),
        cmocka_unit_test(a_layer_without_kv_takes_no_memory),
        cmocka_unit_test(the_error_for_a_pool_that_does_not_fit_has_its_size),
        cmocka_unit_test(a_chain_reserves_all_blocks_or_none),
        cmocka_unit_test(a_chain_does_not_grow_beyond_its_maximum),
        cmocka_unit_test(a_fork_shares_whole_blocks_until_both_chains_are_released),
        cmocka_unit_test(state_slots_are_counted_and_reused),
        cmocka_unit_test(the_state_store_uses_the_announced_memory),
        cmocka_unit_test(a_copied_state_is_independent),
        cmocka_unit_test(snapshots_are_found_by_their_tokens),
        cmocka_unit_test(a_snapshot_that_a_neighbour_nearly_replaces_is_given_up_first),
        cmocka_unit_test(a_snapshot_that_is_not_used_goes_in_the_end),
        cmocka_unit_test(the_snapshot_of_a_running_sequence_moves_on),
        cmocka_unit_test(a_model_without_state_has_no_slots),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
