/* The operations that the GPU's backend table has, and the arguments that it refuses. No device is
 * needed: operations are only recorded. */
#include "support.h"

#include "format/source.h"
#include "kernel/cuda/record.h"
#include "model/hparams.h"
#include "model/mix.h"
#include "model/pass.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 3, COLS = 8 };

/* A table whose operations go to a record; device memory is mere addresses. */
struct world {
    struct record r;
    struct backend be;
    float mem[32][ROWS * COLS];
    struct kvlayer layers[2];
    struct kvview kv;
    struct statelayer state;
    struct state_run run;
    struct stateview st;
    int next;
};

static struct tensor tensor_at(struct world *w)
{
    return tensor_f32(w->mem[w->next++], ROWS, COLS);
}

static void open_world(struct world *w)
{
    memset(w, 0, sizeof *w);
    assert_int_equal(record_init(&w->r, 64, NULL), OK);
    w->r.max_tokens = 64, w->r.index_keys = 512;
    w->be = (struct backend){ .name = "record", .self = &w->r };
    record_fill_table(&w->be);
    w->layers[1] = (struct kvlayer){ .k = w->mem[0],
                                     .v = w->mem[1],
                                     .n_kv_heads = 1,
                                     .head_dim = 4,
                                     .head_dim_v = 4,
                                     .k_block_bytes = 64,
                                     .v_block_bytes = 64,
                                     .v_in_k = true,
                                     .x = w->mem[2],
                                     .x_block_bytes = 64,
                                     .index_dim = COLS };
    w->kv = (struct kvview){
        .type = DT_F16, .layers = w->layers, .n_layers = 2, .n_tokens = ROWS, .max_pos = 300
    };
    w->state = (struct statelayer){ w->mem[3], w->mem[4], 1 << 12, 1 << 12 };
    w->st = (struct stateview){ &w->state, 1, &w->run, 1, ROWS };
    w->next = 5;
}

static void close_world(struct world *w) { record_release(&w->r); }

/* Records one operation with a wrong argument, and returns the error code. */
static int refusal_of(struct world *w)
{
    int rc = w->r.rc;

    assert_int_equal(w->r.n, 0);
    w->r.rc = OK;
    return rc;
}

static void wrong_shapes_of_sparse_attention_are_refused(void **state)
{
    struct world w;
    (void)state;

    open_world(&w);
    struct backend *be = &w.be;
    struct tensor x = tensor_at(&w), out = tensor_at(&w);
    struct key_choice keys = { (uint32_t *)w.mem[10], 32, 1 };
    struct index_opt index = { .n_heads = 1, .head_dim = COLS, .top = 4 };
    struct compress_opt pool = { .rate = 4, .dim = 4 };
    struct attend_opt attend = { .n_heads = 2, .head_dim = 4 };
    struct conv_opt conv = { .k = 4, .at = 3, .of = COLS };
    struct experts_opt experts = { .n = 1, .n_used = 1, .clip = { 1, 7, 0 } };

    index.head_dim = COLS + 1;
    be->index_choose(be, &keys, &x, NULL, &w.kv, 1, &index);
    assert_int_equal(refusal_of(&w), E_INVALID);
    index.head_dim = COLS, keys.stride = 9; /* 288 bits for 301 positions */
    be->index_choose(be, &keys, &x, NULL, &w.kv, 1, &index);
    assert_int_equal(refusal_of(&w), E_INVALID);
    keys.stride = 32, w.r.index_keys = 300;
    be->index_choose(be, &keys, &x, NULL, &w.kv, 1, &index);
    assert_int_equal(refusal_of(&w), E_INVALID);
    w.layers[1].index_dim = COLS + 1;
    be->index_put(be, &w.kv, 1, &x);
    assert_int_equal(refusal_of(&w), E_INVALID);
    be->compress(be, &w.kv, 1, &pool); /* values are a part of the keys */
    assert_int_equal(refusal_of(&w), E_INVALID);
    be->attend_compressed(be, &out, &x, &w.kv, 1, &attend, &pool);
    assert_int_equal(refusal_of(&w), E_INVALID);
    be->hyper_weights(be, &x, w.mem[8], w.mem[9], &(struct hyper_opt){ 4, 20, 0 });
    assert_int_equal(refusal_of(&w), E_INVALID);
    be->hyper_out(be, &x, &out, &out, HYPER_MAX_STREAMS + 1);
    assert_int_equal(refusal_of(&w), E_UNSUPPORTED);
    be->conv(be, &out, &x, &w.st, 0, &conv);
    assert_int_equal(refusal_of(&w), E_INVALID);
    be->experts(be, &out, &x, (int32_t *)w.mem[8], w.mem[9], &experts);
    assert_int_equal(refusal_of(&w), E_INVALID);
    close_world(&w);
}

/* Fails for every model folder that the GPU's table lacks an operation for. */
static int check_folders(struct world *w, const char *folder)
{
    DIR *d = folder ? opendir(folder) : NULL;
    int n = 0;

    for (struct dirent *f; d && (f = readdir(d));) {
        struct source *src = NULL;
        struct arena a = { 0 };
        struct hparams hp;
        struct err e = { 0 };
        char path[1024];
        if (strchr(f->d_name, '.')) continue;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (source_open(&src, path, &e) != OK || hparams_read(&hp, &a, src, &e) != OK ||
            pass_check(&hp, &w->be, &e) != OK || mix_check(&hp, &w->be, 0, hp.n_layers, &e) != OK)
            fail_msg("%s: %s", f->d_name, e.msg);
        arena_release(&a);
        source_close(src);
        n++;
    }
    if (d) closedir(d);
    return n;
}

static void no_model_needs_an_operation_that_the_gpu_lacks(void **state)
{
    struct world w;
    (void)state;

    open_world(&w);
    assert_true(check_folders(&w, repo("tests/golden/hf-2026")) > 0);
    check_folders(&w, shared("fixtures/hf-2026"));
    close_world(&w);
}

/* Every option of an operation, and every operation that may be missing. */
static void the_table_is_complete(void **state)
{
    struct world w;
    (void)state;

    open_world(&w);
    const struct backend *be = &w.be;
    assert_int_equal(be->features, (BACKEND_CONV_PARTS << 1) - 1);
    assert_true(be->clamp && be->gate_rows && be->xielu && be->clipped_glu && be->scale_by_pos);
    assert_true(be->mix_streams && be->add_weighted && be->match_rms && be->sparsify);
    assert_true(be->hyper_weights && be->hyper_in && be->hyper_out);
    assert_true(be->index_put && be->index_choose && be->compress && be->attend_compressed);
    assert_true(be->route && be->experts && be->linear_heads);
    assert_true(be->conv && be->scan && be->delta && be->sample);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_shapes_of_sparse_attention_are_refused),
        cmocka_unit_test(no_model_needs_an_operation_that_the_gpu_lacks),
        cmocka_unit_test(the_table_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
