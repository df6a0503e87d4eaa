/* Token mixers other than attention (recurrent layers) and latent attention: requirements on
 * batches, backends without their operations, memory per block, and invalid hyper-parameters.
 *
 * Reads models of tests/golden/hf. */
#include "open_model.h"
#include "safetens.h"

#include "model/decoder.h"

#include <string.h>

struct world {
    struct source *src;
    struct backend *be;
    struct arena arena;
    struct model *m;
    struct runner *dec;
};

static struct world open_world(const char *path)
{
    struct decoder_opt opt = { .max_tokens = 32,
                               .max_seqs = 3,
                               .max_table = 4,
                               .max_out = 32,
                               .n_blocks = 12,
                               .kv_type = DT_F32 };
    struct world w = { 0 };
    struct err e = { 0 };

    if (source_open(&w.src, repo(path), &e) != OK ||
        backend_open(&w.be, &(struct backend_opt){ .n_threads = 1, .reference = true }, &e) != OK ||
        open_model(&w.m, &w.arena, w.src, w.be, &e) != OK ||
        decoder_open(&w.dec, w.m, &opt, &e) != OK)
        fail_msg("%s", e.msg);
    return w;
}

static void close_world(struct world *w)
{
    runner_close(w->dec);
    model_close(w->m);
    arena_release(&w->arena);
    for (int i = 0; i < MEM_KINDS; i++) assert_int_equal(w->be->used_bytes[i], 0);
    backend_close(w->be);
    source_close(w->src);
}

static int run_batch(struct world *w, const int32_t *pos, const int32_t *seq, const int32_t *slots,
                     int n, struct err *e)
{
    static const int32_t ids[32] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    static const int32_t table[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    const float *logits;
    int32_t last = n - 1;
    struct batch b = { .n_tokens = n,
                       .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = 3,
                       .table = table,
                       .table_stride = 4,
                       .n_out = 1,
                       .out_rows = &last,
                       .slots = slots };

    return runner_run(w->dec, &b, &logits, e);
}

static void tokens_of_a_sequence_must_be_consecutive_in_a_batch(void **state)
{
    struct world w = open_world("tests/golden/hf/mamba2");
    struct err e = { 0 };
    (void)state;

    assert_int_equal(w.dec->lim.n_slots, 3);
    assert_int_equal(
        run_batch(&w, (int32_t[]){ 0, 1, 0, 1 }, (int32_t[]){ 0, 0, 2, 2 }, NULL, 4, &e), OK);
    assert_int_equal(run_batch(&w, (int32_t[]){ 0, 0, 1 }, (int32_t[]){ 0, 1, 0 }, NULL, 3, &e),
                     E_INVALID);
    assert_non_null(strstr(e.msg, "follow"));
    assert_int_equal(run_batch(&w, (int32_t[]){ 0, 2 }, (int32_t[]){ 0, 0 }, NULL, 2, &e),
                     E_INVALID);
    assert_int_equal(
        run_batch(&w, (int32_t[]){ 0 }, (int32_t[]){ 1 }, (int32_t[]){ 0, 3, 1 }, 1, &e),
        E_INVALID);
    assert_non_null(strstr(e.msg, "slot 3 of 3"));
    assert_int_equal(
        run_batch(&w, (int32_t[]){ 0, 0 }, (int32_t[]){ 0, 1 }, (int32_t[]){ 1, 1, 0 }, 2, &e),
        E_INVALID);
    close_world(&w);
}

/* A backend may lack an operation; here it is removed from the table. */
static void a_backend_without_a_recurrent_operation_is_refused_by_name(void **state)
{
    static const char *const models[][2] = { { "tests/golden/hf/mamba2", "selective scan" },
                                             { "tests/golden/hf/qwen3_next", "gated delta rule" },
                                             { "tests/golden/hf/deepseek_v3", "latent" } };
    (void)state;

    for (size_t i = 0; i < 3; i++) {
        struct world w = { 0 };
        struct err e = { 0 };
        if (source_open(&w.src, repo(models[i][0]), &e) != OK ||
            backend_open(&w.be, &(struct backend_opt){ .n_threads = 1, .reference = true }, &e) !=
                OK)
            fail_msg("%s", e.msg);
        w.be->scan = NULL;
        w.be->delta = NULL;
        w.be->linear_heads = NULL;
        assert_int_equal(open_model(&w.m, &w.arena, w.src, w.be, &e), E_UNSUPPORTED);
        assert_non_null(strstr(e.msg, models[i][1]));
        assert_non_null(strstr(e.msg, "layer"));
        close_world(&w);
    }
}

static void models_with_recurrent_state_have_state_slots(void **state)
{
    static const char *const models[] = { "tests/golden/hf/qwen2", "tests/golden/hf/deepseek_v3",
                                          "tests/golden/hf/mamba2", "tests/golden/hf/qwen3_next" };
    (void)state;

    for (size_t i = 0; i < 4; i++) {
        struct world w = open_world(models[i]);
        assert_false(w.dec->lim.bidirectional);
        assert_true(model_has_state(w.m) == (i >= 2));
        assert_true((w.dec->lim.n_slots > 0) == (i >= 2));
        close_world(&w);
    }
}

/* The KV cache holds only the latent and the rotary part of the key. No head has keys or values
 * of its own. */
static void blocks_of_latent_attention_hold_only_the_latent(void **state)
{
    struct world w = open_world("tests/golden/hf/deepseek_v3");
    const struct mix_hp *h = &w.m->hp.layers[0].mix;
    (void)state;

    assert_int_equal(kvstore_block_bytes(w.m->kv, 1, DT_F32),
                     KV_BLOCK * (size_t)(h->kv_rank + h->rope) * sizeof(float));
    close_world(&w);
}

/* ---- hyper-parameters ---- */

static int read_config(const char *config, struct err *e)
{
    static int n;
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct folder f;
    char name[32];
    int rc;

    snprintf(name, sizeof name, "mix%d", n++);
    folder_begin(&f, name);
    folder_zeros(&f, "backbone.embeddings.weight", 40, 16);
    folder_zeros(&f, "model.embed_tokens.weight", 40, 16);
    folder_zeros(&f, "model.layers.0.feed_forward.w2.weight", 16, 32);
    folder_zeros(&f, "model.layers.0.mlp.down_proj.weight", 16, 32);
    if (source_open(&src, folder_end(&f, str_c(config)), e) != OK) fail_msg("%s", e->msg);
    rc = hparams_read(&hp, &a, src, e);
    arena_release(&a);
    source_close(src);
    return rc;
}

#define MAMBA2                                                                                 \
    "{\"model_type\":\"mamba2\",\"hidden_size\":16,\"num_hidden_layers\":1,\"vocab_size\":40," \
    "\"expand\":"                                                                              \
    "2,"
#define DEEP                                                                                       \
    "{\"model_type\":\"deepseek_v2\",\"hidden_size\":16,\"num_hidden_layers\":1,\"vocab_size\":"   \
    "40,"                                                                                          \
    "\"num_attention_heads\":2,\"intermediate_size\":32,\"max_position_embeddings\":64,\"kv_lora_" \
    "rank\":"                                                                                      \
    "8,"

static void invalid_hyper_parameters_of_mixers_are_refused(void **state)
{
    static const struct {
        const char *config;
        int rc;
        const char *says;
    } all[] = {
        { MAMBA2
          "\"state_size\":4,\"conv_kernel\":4,\"num_heads\":4,\"head_dim\":8,\"n_groups\":2}",
          OK, NULL },
        { MAMBA2
          "\"state_size\":4,\"conv_kernel\":4,\"num_heads\":4,\"head_dim\":8,\"n_groups\":3}",
          E_FORMAT, "groups" },
        { MAMBA2
          "\"state_size\":4,\"conv_kernel\":4,\"num_heads\":4,\"head_dim\":9,\"n_groups\":2}",
          E_FORMAT, "heads" },
        { MAMBA2
          "\"state_size\":4,\"conv_kernel\":400,\"num_heads\":4,\"head_dim\":8,\"n_groups\":1}",
          E_FORMAT, "taps" },
        { MAMBA2 "\"conv_kernel\":4,\"num_heads\":4,\"head_dim\":8,\"n_groups\":1}", E_FORMAT,
          "state_size" },
        { MAMBA2
          "\"state_size\":1000000,\"conv_kernel\":4,\"num_heads\":4,\"head_dim\":8,\"n_groups\":4}",
          E_FORMAT, "state" },
        { "{\"model_type\":\"lfm2\",\"hidden_size\":16,\"num_hidden_layers\":1,\"vocab_size\":40,"
          "\"conv_L_"
          "cache\":3,"
          "\"num_attention_heads\":2,\"layer_types\":[\"spiral\"]}",
          E_UNSUPPORTED, "spiral" },
        { DEEP "\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":4,\"v_head_dim\":6}", OK, NULL },
        { DEEP "\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":3,\"v_head_dim\":6}", E_FORMAT,
          "rotary embedding of 3" },
        { DEEP "\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":4}", E_FORMAT, "v_head_dim" },
        { DEEP "\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":4,\"v_head_dim\":6,\"topk_method\":"
               "\"noaux\","
               "\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8}",
          E_UNSUPPORTED, "noaux" },
    };
    (void)state;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct err e = { 0 };
        int rc = read_config(all[i].config, &e);
        if (rc != all[i].rc || (all[i].says && !strstr(e.msg, all[i].says)))
            fail_msg("%s: %d %s", all[i].config, rc, e.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_of_a_sequence_must_be_consecutive_in_a_batch),
        cmocka_unit_test(a_backend_without_a_recurrent_operation_is_refused_by_name),
        cmocka_unit_test(models_with_recurrent_state_have_state_slots),
        cmocka_unit_test(blocks_of_latent_attention_hold_only_the_latent),
        cmocka_unit_test(invalid_hyper_parameters_of_mixers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
