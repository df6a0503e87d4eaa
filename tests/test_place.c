/* One model over several backends: logits must be those of one backend; which layers go to a
 * device; invalid divisions of layers.
 *
 * Reads models of tests/golden/hf. All backends are CPU backends. */
#include "model_world.h"

#include "model/loadplan.h"

/* Opens a model with n_first layers on one backend and the others on a second. */
static struct world open_split(const char *path, struct backend **first, int n_first)
{
    struct world w = { 0 };
    struct err e = { 0 };
    struct backend_opt be = { .n_threads = 1, .reference = true };
    struct decoder_opt opt = world_opt(DT_F32);
    struct backend_share shares[2];
    struct hparams hp;

    if (source_open(&w.src, path, &e) != OK || hparams_read(&hp, &w.arena, w.src, &e) != OK ||
        backend_open(first, &be, &e) != OK || backend_open(&w.be, &be, &e) != OK)
        fail_msg("%s", e.msg);
    shares[0] = (struct backend_share){ *first, n_first };
    shares[1] = (struct backend_share){ w.be, hp.n_layers - n_first };
    if (open_model_over(&w.m, &w.arena, w.src, shares, 2, &e) != OK ||
        block_pool_open(&w.pool, opt.n_blocks, &e) != OK ||
        decoder_open(&w.dec, w.m, &opt, &e) != OK)
        fail_msg("%s", e.msg);
    return w;
}

static void layers_on_two_devices_give_the_logits_of_one_device(void **state)
{
    int32_t ids[24];
    (void)state;
    for (int i = 0; i < 24; i++) ids[i] = 1 + i * 5 % 60;
    for (size_t i = 0; i < N(committed); i++) {
        struct backend *first = NULL;
        struct world a = open_world(golden(committed[i]), true);
        struct world b = open_split(golden(committed[i]), &first, 1);
        size_t n = (size_t)a.m->hp.n_vocab * 24 * sizeof(float);
        struct chain ca, cb;
        assert_true(chain_init(&ca, 64) && chain_init(&cb, 64));
        assert_true(chain_reserve(&ca, a.pool, 64) && chain_reserve(&cb, b.pool, 64));
        assert_memory_equal(run_tokens(&a, &ca, ids, 0, 24), run_tokens(&b, &cb, ids, 0, 24), n);
        assert_memory_equal(run_tokens(&a, &ca, ids, 24, 1), run_tokens(&b, &cb, ids, 24, 1),
                            n / 24);
        assert_true(first->used_bytes[MEM_KV] > 0 && b.be->used_bytes[MEM_KV] > 0);
        chain_release(&ca, a.pool), chain_release(&cb, b.pool);
        close_world(&a), close_world(&b);
        for (int k = 0; k < MEM_KINDS; k++) assert_int_equal(first->used_bytes[k], 0);
        backend_close(first);
    }
}

static void shares_that_do_not_add_up_to_the_layers_are_refused(void **state)
{
    struct source *src = NULL;
    struct backend *be = NULL;
    struct model *m = NULL;
    struct arena a = { 0 };
    struct err e = { 0 };
    (void)state;
    assert_int_equal(source_open(&src, golden("qwen2"), NULL), OK);
    assert_int_equal(
        backend_open(&be, &(struct backend_opt){ .n_threads = 1, .reference = true }, NULL), OK);
    struct backend_share few[] = { { be, 1 } }, empty[] = { { be, 0 }, { be, 2 } };
    assert_int_equal(open_model_over(&m, &a, src, few, 1, &e), E_INVALID);
    assert_int_equal(open_model_over(&m, &a, src, empty, 2, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "layers"));
    arena_release(&a);
    backend_close(be);
    source_close(src);
}

static void as_many_of_the_last_layers_as_fit_go_to_the_device(void **state)
{
    const uint64_t bytes[] = { 50, 40, 10, 10 };
    (void)state;
    assert_int_equal(place_fit(bytes, 4, 5, 4), 0);
    assert_int_equal(place_fit(bytes, 4, 5, 14), 0);
    assert_int_equal(place_fit(bytes, 4, 5, 15), 1);
    assert_int_equal(place_fit(bytes, 4, 5, 64), 2);
    assert_int_equal(place_fit(bytes, 4, 5, 65), 3);
    assert_int_equal(place_fit(bytes, 4, 5, 115), 4);
}

static void vram_only_on_the_cpu_is_refused(void **state)
{
    struct load_opt o = { .backend = { .vram_only = true }, .kv_type = DT_NONE };
    struct loadplan *p = NULL;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(loadplan_read(&p, golden("qwen2"), &e), OK);
    assert_int_equal(loadplan_make(p, &o, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "vram-only"));
    assert_int_equal(p->place.n_shares, 0);
    loadplan_close(p);
}

/* ---- a device with too little memory ---- */

static uint64_t device_room;

static uint64_t room_of_device(struct backend *be)
{
    (void)be;
    return device_room;
}

static void close_device(struct backend *be) { (void)be; }

static bool by_limit; /* the room is a limit on a large device */

/* Places the planned model on a device with so much room. */
static int fit(const struct loadplan *plan, uint64_t room, bool vram_only, struct place *out)
{
    static struct backend be;
    struct backend_opt opt = { .n_threads = 1, .vram_only = vram_only };
    struct decoder_opt dec = { .max_tokens = 8, .max_seqs = 2, .max_table = 4, .max_out = 2 };
    struct place_need need = { "x", plan->hp, plan->weights, &dec, .most = by_limit ? room : 0 };
    struct err e = { 0 };
    int rc;

    dec.n_blocks = 8, dec.n_slots = 2, dec.kv_type = DT_F32;
    be = (struct backend){ .name = "test:0", .available_bytes = room_of_device };
    be.close = close_device;
    *out = (struct place){ .shares = { { &be, plan->hp->n_layers } }, .n_shares = 1 };
    device_room = by_limit ? (uint64_t)1 << 40 : room;
    rc = place_fit_gpu(out, &opt, &need, &e);
    assert_int_equal(rc == OK, e.code == OK);
    return rc;
}

static void what_a_device_lacks_for_all_layers_is_known(void **state)
{
    struct load_opt o = { .backend = { .n_threads = 1 }, .kv_type = DT_NONE };
    struct loadplan *plan = NULL;
    struct place p;
    uint64_t all;

    (void)state;
    assert_int_equal(loadplan_read(&plan, golden("qwen2"), NULL), OK);
    assert_int_equal(loadplan_make(plan, &o, NULL), OK);
    assert_int_equal(fit(plan, 0, false, &p), E_DEVICE_MEMORY); /* not a single layer */
    all = p.lack;
    place_release(&p);
    for (int i = 0; i < 2; i++) {
        by_limit = i == 1;
        assert_int_equal(fit(plan, all, false, &p), OK);
        assert_int_equal(p.lack, 0);
        assert_int_equal(p.n_shares, 1);
        place_release(&p);
        assert_int_equal(fit(plan, all - 1, false, &p), OK); /* some on the host */
        assert_int_equal(p.lack, 1);
        assert_int_equal(p.n_shares, 2);
        place_release(&p);
        assert_int_equal(fit(plan, all - 1, true, &p), E_DEVICE_MEMORY);
        assert_int_equal(p.lack, 1);
        place_release(&p);
    }
    by_limit = false;
    loadplan_close(plan);
}

/* It can be looked at, and made again, but not opened. */
static void a_refused_plan_is_not_opened(void **state)
{
    struct load_opt o = { .backend = { .n_threads = 1 }, .kv_type = DT_NONE };
    struct loadplan *plan = NULL;
    struct runner *r = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(loadplan_read(&plan, golden("qwen2"), NULL), OK);
    assert_int_equal(loadplan_make(plan, &o, NULL), OK);
    err_set(&plan->refused, E_DEVICE_MEMORY, "no room");
    assert_int_equal(runner_open(&r, plan, &e), E_DEVICE_MEMORY);
    assert_string_equal(e.msg, "no room");
    assert_null(r);
    loadplan_close(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_on_two_devices_give_the_logits_of_one_device),
        cmocka_unit_test(shares_that_do_not_add_up_to_the_layers_are_refused),
        cmocka_unit_test(as_many_of_the_last_layers_as_fit_go_to_the_device),
        cmocka_unit_test(vram_only_on_the_cpu_is_refused),
        cmocka_unit_test(what_a_device_lacks_for_all_layers_is_known),
        cmocka_unit_test(a_refused_plan_is_not_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
