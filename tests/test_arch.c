/* Architectures other than llama: hyper-parameters from config.json keys of their own, tensors
 * with other names, shapes and orders, and configurations that are refused.
 *
 * Models are folders with zero weights that the test writes; one test reads tests/golden/hf. */
#include "open_model.h"
#include "safetens.h"

#include "kernel/quant.h"
#include "model/model.h"
#include "model/naming.h"
#include "model/pass.h"

#include <math.h>
#include <string.h>

struct world {
    struct source *src;
    struct arena arena;
    struct hparams hp;
    struct err e;
    int rc;
};

static struct world *read_folder(struct folder *f, const char *config)
{
    struct world *w = mem_new(struct world);
    if (source_open(&w->src, folder_end(f, str_c(config)), &w->e) != OK) fail_msg("%s", w->e.msg);
    w->rc = hparams_read(&w->hp, &w->arena, w->src, &w->e);
    return w;
}

static void world_close(struct world *w)
{
    arena_release(&w->arena);
    source_close(w->src);
    mem_free(w);
}

static void assert_refused(struct world *w, int code, const char *what)
{
    assert_int_equal(w->rc, code);
    if (!strstr(w->e.msg, what)) fail_msg("the error '%s' does not contain %s", w->e.msg, what);
    world_close(w);
}

static void add_layer_zeros(struct folder *f, int l, const char *pattern, int rows, int cols)
{
    char name[128];
    snprintf(name, sizeof name, pattern, l);
    folder_zeros(f, name, rows, cols);
}

/* ---- older families ---- */

/* A falcon folder: hidden size 64, 4 heads of 16, q, k and v packed into qkv rows. */
static struct world *make_falcon(const char *name, int qkv, const char *more)
{
    struct folder f;
    struct buf c = { 0 };
    struct world *w;
    folder_begin(&f, name);
    folder_zeros(&f, "transformer.word_embeddings.weight", 320, 64);
    for (int l = 0; l < 2; l++) {
        add_layer_zeros(&f, l, "transformer.h.%d.self_attention.query_key_value.weight", qkv, 64);
        add_layer_zeros(&f, l, "transformer.h.%d.self_attention.dense.weight", 64, 64);
        add_layer_zeros(&f, l, "transformer.h.%d.mlp.dense_4h_to_h.weight", 64, 256);
    }
    buf_printf(&c,
               "{\"model_type\":\"falcon\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_"
               "attention_heads\":4,%s}",
               more);
    w = read_folder(&f, buf_cstr(&c));
    buf_release(&c);
    return w;
}

static void falcon_variants_are_told_apart_by_their_keys(void **state)
{
    struct world *w = make_falcon("falcon1", 96, "\"num_kv_heads\":4");
    (void)state;
    assert_int_equal(w->rc, OK);
    assert_int_equal(w->hp.layers[0].n_kv_heads, 1); /* multi_query overrides num_kv_heads */
    assert_true(w->hp.parallel && !w->hp.two_norms && w->hp.tied);
    assert_int_equal(w->hp.layers[1].n_ff, 256);
    world_close(w);
    w = make_falcon("falcon2", 128, "\"num_kv_heads\":2,\"new_decoder_architecture\":true");
    assert_true(w->rc == OK && w->hp.layers[0].n_kv_heads == 2 && w->hp.parallel &&
                w->hp.two_norms);
    world_close(w);
    w = make_falcon("falcon3", 192,
                    "\"multi_query\":false,\"parallel_attn\":false,\"bias\":true,\"alibi\":true");
    assert_true(w->rc == OK && w->hp.layers[0].n_kv_heads == 4 && !w->hp.parallel &&
                w->hp.bias == BIAS_ALL);
    assert_true(w->hp.alibi == 8 && w->hp.n_rope == 0 && w->hp.layers[0].rope == -1);
    assert_float_equal(w->hp.alibi_scale, 0.25, 1e-7);
    world_close(w);
    w = make_falcon(
        "falcon4", 128,
        "\"num_kv_heads\":2,\"new_decoder_architecture\":true,\"num_ln_in_parallel_attn\":3");
    assert_refused(w, E_UNSUPPORTED, "num_ln_in_parallel_attn");
}

static struct world *make_gpt(const char *name, const char *type, const char *more)
{
    struct folder f;
    struct buf c = { 0 };
    struct world *w;
    bool neo = strcmp(type, "gpt_neo") == 0;
    folder_begin(&f, name);
    folder_zeros(&f, "transformer.wte.weight", 320, 64);
    for (int l = 0; l < 6; l++) {
        if (neo) add_layer_zeros(&f, l, "transformer.h.%d.attn.attention.q_proj.weight", 64, 64);
        else add_layer_zeros(&f, l, "transformer.h.%d.attn.c_attn.weight", 64, 192);
        add_layer_zeros(&f, l, "transformer.h.%d.attn.c_proj.weight", 64, 64);
        add_layer_zeros(&f, l, "transformer.h.%d.mlp.c_proj.weight", neo ? 64 : 160,
                        neo ? 160 : 64);
    }
    buf_printf(&c, "{\"model_type\":\"%s\",\"%s\":6,\"%s\":64,\"%s\":4%s}", type,
               neo ? "num_layers" : "n_layer", neo ? "hidden_size" : "n_embd",
               neo ? "num_heads" : "n_head", more);
    w = read_folder(&f, buf_cstr(&c));
    buf_release(&c);
    return w;
}

static void gpt2_shapes_are_read_from_transposed_matrices(void **state)
{
    struct world *w = make_gpt("gpt2a", "gpt2", "");
    (void)state;
    if (w->rc != OK) fail_msg("%s", w->e.msg);
    assert_true(w->hp.n_ctx == 1024 && w->hp.norm == NORM_LAYER && w->hp.act == ACT_GELU_TANH &&
                w->hp.tied);
    assert_true(w->hp.layers[5].n_ff == 160 && w->hp.layers[5].head_dim == 16 && w->hp.n_rope == 0);
    assert_float_equal(w->hp.layers[3].attn_scale, 0.25, 1e-7);
    world_close(w);
    w = make_gpt("gpt2b", "gpt2", ",\"scale_attn_by_inverse_layer_idx\":true");
    assert_float_equal(w->hp.layers[3].attn_scale, 0.25 / 4, 1e-7);
    world_close(w);
    w = make_gpt("gpt2c", "gpt2", ",\"scale_attn_weights\":false");
    assert_float_equal(w->hp.layers[3].attn_scale, 1, 1e-7);
    world_close(w);
    assert_refused(make_gpt("gpt2d", "gpt2", ",\"add_cross_attention\":true"), E_UNSUPPORTED,
                   "add_cross_attention");
}

static void gpt_neo_repeats_its_pattern_of_attention_windows(void **state)
{
    static const int want[6] = { 0, 7, 0, 7, 0, 0 };
    struct world *w = make_gpt(
        "neo1", "gpt_neo",
        ",\"window_size\":7,\"attention_types\":[[[\"global\",\"local\"],2],[[\"global\"],2]]");
    (void)state;
    if (w->rc != OK) fail_msg("%s", w->e.msg);
    for (int l = 0; l < 6; l++) assert_int_equal(w->hp.layers[l].window, want[l]);
    assert_float_equal(w->hp.layers[0].attn_scale, 1, 0);
    world_close(w);
    w = make_gpt("neo2", "gpt_neo", "");
    assert_true(w->rc == OK && w->hp.layers[0].window == 0 && w->hp.layers[1].window == 256);
    world_close(w);
    assert_refused(make_gpt("neo3", "gpt_neo", ",\"attention_types\":[[[\"global\"],3]]"), E_FORMAT,
                   "attention_types");
    assert_refused(make_gpt("neo4", "gpt_neo", ",\"attention_types\":[[[\"banded\"],6]]"),
                   E_UNSUPPORTED, "attention_types");
}

static void alibi_slopes_for_head_counts_that_are_no_power_of_two_interleave(void **state)
{
    struct hparams hp = { .alibi = 8, .alibi_scale = 1 };
    float s[6];
    (void)state;
    hparams_slopes(&hp, 6, 0, 6, s);
    for (int i = 0; i < 4; i++) assert_float_equal(s[i], exp2(-2.0 * (i + 1)), 1e-7);
    assert_float_equal(s[4], exp2(-1), 1e-7);
    assert_float_equal(s[5], exp2(-3), 1e-7);
}

/* ---- families derived from llama ---- */

#define SHAPES "\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4"

static void add_llama_layers(struct folder *f, int from)
{
    folder_zeros(f, "model.embed_tokens.weight", 320, 64);
    for (int l = 0; l < 4; l++) {
        add_layer_zeros(f, l, "model.layers.%d.self_attn.q_proj.weight", 64, 64);
        add_layer_zeros(f, l, "model.layers.%d.self_attn.k_proj.weight", 32, 64);
        if (l >= from) add_layer_zeros(f, l, "model.layers.%d.mlp.down_proj.weight", 64, 160);
    }
}

static struct world *make_llama_variant(const char *name, const char *type, const char *more)
{
    struct folder f;
    struct buf c = { 0 };
    struct world *w;
    folder_begin(&f, name);
    add_llama_layers(&f, 0);
    buf_printf(&c, "{\"model_type\":\"%s\"," SHAPES "%s}", type, more);
    w = read_folder(&f, buf_cstr(&c));
    buf_release(&c);
    return w;
}

static void full_attention_layers_have_no_rotary_embedding_in_cohere2_and_exaone4(void **state)
{
    struct world *w = make_llama_variant("still1", "cohere2", ",\"sliding_window\":5");
    (void)state;
    assert_true(w->rc == OK && w->hp.layers[0].rope == 0 && w->hp.layers[3].rope == -1 &&
                w->hp.parallel);
    assert_true(w->hp.layers[2].window == 5 && w->hp.layers[3].window == 0 &&
                w->hp.rope_style == ROPE_PAIR);
    world_close(w);
    w = make_llama_variant("still2", "exaone4",
                           ",\"sliding_window\":5,\"sliding_window_pattern\":\"LG\"");
    assert_true(w->rc == OK && w->hp.layers[0].window == 5 && w->hp.layers[1].rope == -1 &&
                w->hp.layers[2].rope == 0);
    world_close(w);
    w = make_llama_variant("still3", "exaone4", ",\"sliding_window\":null");
    assert_true(w->rc == OK && w->hp.layers[0].window == 0 && w->hp.layers[3].rope == 0);
    world_close(w);
}

static void unsupported_options_are_refused_by_name(void **state)
{
    (void)state;
    assert_refused(make_llama_variant("no1", "cohere2", ",\"layer_types\":[\"chunked_attention\"]"),
                   E_UNSUPPORTED, "chunked_attention");
    assert_refused(
        make_llama_variant("no2", "llama", ",\"quantization_config\":{\"quant_method\":\"zork\"}"),
        E_UNSUPPORTED, "zork");
    assert_refused(make_llama_variant("no3", "helium", ",\"hidden_act\":\"mish\""), E_UNSUPPORTED,
                   "mish");
    assert_refused(
        make_llama_variant("no4", "llama", ",\"per_layer_config\":{\"1\":{\"head_dim\":8}}"),
        E_UNSUPPORTED, "per_layer_config");
}

static void biases_are_where_each_family_has_them(void **state)
{
    static const struct {
        const char *type, *more;
        unsigned bias;
    } all[] = {
        { "glm", "", BIAS_QKV },
        { "glm", ",\"attention_bias\":false", 0 },
        { "seed_oss", ",\"attention_out_bias\":true", BIAS_QKV | BIAS_O },
        { "starcoder2", "", BIAS_ALL },
        { "starcoder2", ",\"use_bias\":false", 0 },
        { "ernie4_5", ",\"use_bias\":true", BIAS_ALL },
        { "stablelm", ",\"use_qkv_bias\":true", BIAS_QKV },
        { "llama", ",\"attention_bias\":true,\"mlp_bias\":true", BIAS_ALL },
        { "qwen2", "", BIAS_QKV },
        { "phi", "", BIAS_ALL | BIAS_HEAD },
        { "exaone4", ",\"attention_bias\":true", 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[32];
        snprintf(name, sizeof name, "bias%zu", i);
        struct world *w = make_llama_variant(name, all[i].type, all[i].more);
        if (w->hp.bias != all[i].bias)
            fail_msg("%s%s: the bias flags are %u", all[i].type, all[i].more, w->hp.bias);
        world_close(w);
    }
}

/* ---- experts ---- */

static struct world *make_moe(const char *name, const char *type, const char *more, int n_experts)
{
    struct folder f;
    struct buf c = { 0 };
    struct world *w;
    bool mixtral = strcmp(type, "mixtral") == 0;
    folder_begin(&f, name);
    add_llama_layers(&f, 4);
    for (int l = 0; l < 4; l++) {
        add_layer_zeros(&f, l, "model.layers.%d.self_attn.v_proj.weight", 32, 64);
        add_layer_zeros(&f, l, "model.layers.%d.self_attn.o_proj.weight", 64, 64);
        add_layer_zeros(&f, l, "model.layers.%d.input_layernorm.weight", 64, 0);
        add_layer_zeros(&f, l, "model.layers.%d.post_attention_layernorm.weight", 64, 0);
        add_layer_zeros(&f, l,
                        mixtral ? "model.layers.%d.block_sparse_moe.gate.weight"
                                : "model.layers.%d.mlp.gate.weight",
                        4, 64);
        for (int e = 0; e < n_experts; e++)
            for (int k = 1; k <= 3; k++) {
                char tensor[128];
                snprintf(tensor, sizeof tensor,
                         "model.layers.%d.block_sparse_moe.experts.%d.w%d.weight", l, e, k);
                folder_zeros(&f, tensor, k == 2 ? 64 : 96, k == 2 ? 96 : 64);
            }
    }
    folder_zeros(&f, "model.norm.weight", 64, 0);
    folder_zeros(&f, "lm_head.weight", 320, 64);
    buf_printf(&c, "{\"model_type\":\"%s\"," SHAPES ",\"num_experts_per_tok\":2%s}", type, more);
    w = read_folder(&f, buf_cstr(&c));
    buf_release(&c);
    return w;
}

static void experts_are_in_the_layers_that_the_config_selects(void **state)
{
    struct world *w = make_moe(
        "moe1", "qwen2_moe",
        ",\"num_experts\":4,\"moe_intermediate_size\":96,\"intermediate_size\":160,"
        "\"shared_expert_intermediate_size\":48,\"mlp_only_layers\":[1],\"norm_topk_prob\":true",
        0);
    (void)state;
    if (w->rc != OK) fail_msg("%s", w->e.msg);
    assert_true(w->hp.moe.n == 4 && w->hp.moe.n_used == 2 && w->hp.moe.n_ff == 96 &&
                w->hp.moe.norm);
    assert_true(w->hp.layers[0].moe && !w->hp.layers[1].moe && w->hp.layers[2].moe);
    assert_true(w->hp.layers[0].n_ff == 48 && w->hp.layers[1].n_ff == 160);
    world_close(w);
    w = make_moe("moe2", "qwen3_moe",
                 ",\"num_experts\":4,\"moe_intermediate_size\":96,\"intermediate_size\":160,"
                 "\"decoder_sparse_step\":2",
                 0);
    assert_true(w->rc == OK && !w->hp.layers[0].moe && w->hp.layers[1].moe && w->hp.layers[3].moe &&
                !w->hp.moe.norm);
    world_close(w);
    w = make_moe(
        "moe3", "glm4_moe",
        ",\"n_routed_experts\":8,\"moe_intermediate_size\":96,\"intermediate_size\":160,"
        "\"first_k_dense_replace\":3,\"n_group\":4,\"topk_group\":2,\"n_shared_experts\":2,"
        "\"routed_scaling_factor\":1.5",
        0);
    if (w->rc != OK) fail_msg("%s", w->e.msg);
    assert_true(!w->hp.layers[2].moe && w->hp.layers[3].moe && w->hp.layers[3].n_ff == 192);
    assert_true(w->hp.moe.n_groups == 4 && w->hp.moe.n_groups_used == 2 &&
                w->hp.moe.group_top == 2);
    assert_true(w->hp.moe.norm && w->hp.moe.route == ROUTE_SIGMOID && w->hp.moe.scale == 1.5f);
    world_close(w);
}

static void inconsistent_expert_counts_are_refused(void **state)
{
    (void)state;
    assert_refused(make_moe("bad1", "mixtral", ",\"num_local_experts\":1", 1), E_FORMAT, "experts");
    assert_refused(make_moe("bad2", "mixtral", ",\"num_local_experts\":99999", 4), E_FORMAT,
                   "experts");
    assert_refused(make_moe("bad3", "glm4_moe",
                            ",\"n_routed_experts\":8,\"moe_intermediate_size\":96,\"n_group\":3,"
                            "\"intermediate_size\":160",
                            0),
                   E_FORMAT, "groups");
    assert_refused(make_moe("bad4", "mixtral", ",\"num_local_experts\":4", 0), E_NOTFOUND,
                   "model.layers.0.block_sparse_moe.experts.0.w2.weight");
}

static void the_error_for_a_missing_expert_names_its_tensor(void **state)
{
    struct world *w =
        make_moe("gap", "mixtral", ",\"num_local_experts\":4,\"intermediate_size\":96", 3);
    struct backend *be = NULL;
    struct model *m = NULL;
    struct gguf_item *items;
    struct err e = { 0 };
    int n;
    (void)state;
    if (w->rc != OK) fail_msg("%s", w->e.msg);
    assert_int_equal(backend_open(&be, &(struct backend_opt){ .n_threads = 1 }, NULL), OK);
    assert_int_equal(open_model(&m, &w->arena, w->src, be, &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "model.layers.0.block_sparse_moe.experts.3.w1.weight"));
    assert_non_null(strstr(e.msg, "[96, 64]"));
    assert_int_equal(naming_plan(&w->hp, w->src, &w->arena, &items, &n, &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "experts.3.w1.weight"));
    backend_close(be);
    world_close(w);
}

/* Writes a copy of the golden glm4_moe with the experts of each layer stacked, gate and up in
 * one tensor. */
static const char *write_stacked_copy(struct folder *f, const struct source *src)
{
    static const char *const parts[] = { "gate_proj", "up_proj", "down_proj" };
    char name[128], *config = path_join(repo("tests/golden/hf/glm4_moe"), "config.json");
    struct filemap map = { 0 };

    folder_begin(f, "stacked");
    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const struct source_tensor *t = source_tensor(src, i);
        snprintf(name, sizeof name, "%.*s", STR_ARG(t->name));
        if (!strstr(name, ".experts."))
            folder_add(f, name, "BF16", t->dims, t->n_dims, t->data, t->bytes);
    }
    for (int l = 1; l < 3; l++)
        for (int down = 0; down < 2; down++) {
            struct buf all = { 0 };
            int64_t dims[3] = { 8, down ? 64 : 128, 64 };
            for (int e = 0; e < 8; e++)
                for (int k = down ? 2 : 0; k < (down ? 3 : 2); k++) {
                    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", l, e,
                             parts[k]);
                    const struct source_tensor *t = source_find(src, name);
                    buf_add(&all, t->data, t->bytes);
                }
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", l,
                     down ? "down_proj" : "gate_up_proj");
            folder_add(f, name, "BF16", dims, 3, all.p, all.n);
            buf_release(&all);
        }
    assert_int_equal(filemap_open(&map, config, NULL), OK);
    folder_end(f, str_of((const char *)map.p, map.n));
    filemap_release(&map);
    mem_free(config);
    return f->dir;
}

static void stacked_experts_give_the_logits_of_separate_experts(void **state)
{
    struct source *src[2] = { 0 };
    struct backend *be = NULL;
    struct model *m[2] = { 0 };
    struct arena arena = { 0 };
    struct folder f;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(backend_open(&be, &(struct backend_opt){ .n_threads = 1 }, NULL), OK);
    assert_int_equal(source_open(&src[0], repo("tests/golden/hf/glm4_moe"), &e), OK);
    assert_int_equal(source_open(&src[1], write_stacked_copy(&f, src[0]), &e), OK);
    for (int i = 0; i < 2; i++)
        if (open_model(&m[i], &arena, src[i], be, &e) != OK) fail_msg("%s", e.msg);
    for (int l = 1; l < 3; l++)
        for (int x = 0; x < 8; x++) {
            const struct layer *a = &m[0]->layers[l], *b = &m[1]->layers[l];
            assert_memory_equal(a->x_gate[x].data, b->x_gate[x].data, 64 * 64 * 2);
            assert_memory_equal(a->x_up[x].data, b->x_up[x].data, 64 * 64 * 2);
            assert_memory_equal(a->x_down[x].data, b->x_down[x].data, 64 * 64 * 2);
        }
    for (int i = 0; i < 2; i++) model_close(m[i]), source_close(src[i]);
    arena_release(&arena);
    backend_close(be);
}

static void a_backend_without_the_experts_operation_refuses_the_model(void **state)
{
    struct world *w = make_moe("lack", "mixtral", ",\"num_local_experts\":4", 4);
    struct backend *be = NULL;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(backend_open(&be, &(struct backend_opt){ .n_threads = 1 }, NULL), OK);
    be->experts = NULL;
    assert_int_equal(pass_check(&w->hp, be, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "mixtures of experts"));
    backend_close(be);
    world_close(w);
}

static void an_unknown_tensor_stops_the_conversion(void **state)
{
    struct folder f;
    struct gguf_item *items;
    struct err e = { 0 };
    int n;
    (void)state;
    folder_begin(&f, "extra");
    folder_zeros(&f, "model.embed_tokens.weight", 320, 64);
    folder_zeros(&f, "model.norm.weight", 64, 0);
    folder_zeros(&f, "model.layers.0.self_attn.rotary_emb.inv_freq", 8, 0);
    add_layer_zeros(&f, 0, "model.layers.%d.self_attn.q_proj.weight", 64, 64);
    add_layer_zeros(&f, 0, "model.layers.%d.self_attn.k_proj.weight", 32, 64);
    add_layer_zeros(&f, 0, "model.layers.%d.self_attn.v_proj.weight", 32, 64);
    add_layer_zeros(&f, 0, "model.layers.%d.self_attn.o_proj.weight", 64, 64);
    add_layer_zeros(&f, 0, "model.layers.%d.mlp.gate_proj.weight", 160, 64);
    add_layer_zeros(&f, 0, "model.layers.%d.mlp.up_proj.weight", 160, 64);
    add_layer_zeros(&f, 0, "model.layers.%d.mlp.down_proj.weight", 64, 160);
    add_layer_zeros(&f, 0, "model.layers.%d.input_layernorm.weight", 64, 0);
    add_layer_zeros(&f, 0, "model.layers.%d.post_attention_layernorm.weight", 64, 0);
    folder_zeros(&f, "model.layers.0.self_attn.q_proj.wait", 64, 0);
    struct world *w =
        read_folder(&f, "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":64,"
                        "\"num_attention_heads\":4}");
    if (w->rc != OK) fail_msg("%s", w->e.msg);
    assert_int_equal(naming_plan(&w->hp, w->src, &w->arena, &items, &n, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "model.layers.0.self_attn.q_proj.wait"));
    world_close(w);
}

/* ---- layouts ---- */

static void rows_grouped_by_kv_head_are_found(void **state)
{
    /* 4 heads and 2 KV heads of size 1: q0 q1 k0 v0 q2 q3 k1 v1 */
    struct layout y = { .rows = 8,
                        .cols = 1,
                        .order = ORDER_GROUPS,
                        .n_parts = 3,
                        .part = { 4, 2, 2 },
                        .heads = 4,
                        .kv_heads = 2 };
    static const int q[] = { 0, 1, 4, 5 };
    (void)state;
    for (int i = 0; i < 4; i++) assert_int_equal(layout_row(&y, 0, i), q[i]);
    assert_true(layout_row(&y, 1, 0) == 2 && layout_row(&y, 1, 1) == 6);
    assert_true(layout_row(&y, 2, 0) == 3 && layout_row(&y, 2, 1) == 7);
}

static void transposed_and_alternating_rows_are_read_in_order(void **state)
{
    /* Two experts, stored transposed as [in = 3, out = 4]; gate and up columns alternate. */
    float data[24], row[3], tmp[3];
    struct layout y = { .count = 2,
                        .tensors = 1,
                        .rows = 4,
                        .cols = 3,
                        .transposed = true,
                        .order = ORDER_ALTERNATE,
                        .n_parts = 2,
                        .part = { 2, 2 } };
    struct source_tensor t = {
        .type = DT_F32, .n_dims = 3, .dims = { 2, 3, 4 }, .data = data, .bytes = sizeof data
    };
    (void)state;
    for (int i = 0; i < 24; i++) data[i] = (float)i;
    layout_read(&y, &t, 1, 1, 1, DT_F32, row, tmp); /* up of expert 1, row 1: stored column 3 */
    for (int c = 0; c < 3; c++) assert_float_equal(row[c], 12 + 4 * c + 3, 0);
    layout_read(&y, &t, 0, 0, 1, DT_F32, row, tmp);
    for (int c = 0; c < 3; c++) assert_float_equal(row[c], 4 * c + 2, 0);
}

static void rows_read_in_blocks_equal_rows_read_one_by_one(void **state)
{
    enum { IN = 5, OUT = 2 * 37 };
    float data[2 * IN * OUT], all[37 * IN], one[IN], tmp[IN * LAYOUT_ROWS + 2 * LAYOUT_ROWS];
    struct layout y = { .count = 2,
                        .tensors = 1,
                        .rows = OUT,
                        .cols = IN,
                        .transposed = true,
                        .n_parts = 2,
                        .part = { 37, 37 } };
    struct source_tensor t = { .type = DT_F32, .n_dims = 3, .dims = { 2, IN, OUT }, .data = data };
    (void)state;
    assert_true(layout_tmp(&y) * sizeof(float) <= sizeof tmp);
    for (int i = 0; i < 2 * IN * OUT; i++) data[i] = (float)(i * 7 % 1009);
    for (int kind = 0; kind < 4; kind++) {
        y.order = kind % 2 ? ORDER_ALTERNATE : ORDER_PLAIN;
        y.transposed = kind < 2;
        for (int r = 0; r < 37; r += LAYOUT_ROWS)
            layout_read_rows(&y, &t, 1, 1, r, 37 - r < LAYOUT_ROWS ? 37 - r : LAYOUT_ROWS, DT_F32,
                             all + r * IN, sizeof one, tmp);
        for (int r = 0; r < 37; r++) {
            layout_read(&y, &t, 1, 1, r, DT_F32, one, tmp);
            assert_memory_equal(one, all + r * IN, sizeof one);
        }
    }
}

static void mxfp4_nibbles_are_read_in_order(void **state)
{
    static const float level[16] = { 0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
    uint8_t q[2][16], e[2] = { 127, 129 }, block[17];
    struct source_tensor scales = { .type = DT_U8, .data = e };
    struct source_tensor t = { .type = DT_U8, .data = q };
    struct layout y = { .count = 1,
                        .tensors = 1,
                        .rows = 2,
                        .cols = 32,
                        .mx = true,
                        .n_parts = 1,
                        .part = { 2 },
                        .scales = &scales };
    float row[32], tmp[32];
    (void)state;
    for (int i = 0; i < 32; i++) q[i / 16][i % 16] = (uint8_t)(i * 37 + 11);
    for (int r = 0; r < 2; r++) {
        layout_read(&y, &t, 0, 0, r, DT_F32, row, tmp);
        for (int i = 0; i < 32; i++) {
            int nibble = i % 2 ? q[r][i / 2] >> 4 : q[r][i / 2] & 15;
            assert_float_equal(row[i], level[nibble] * (r ? 4 : 1), 0);
        }
        layout_read(&y, &t, 0, 0, r, DT_MXFP4, block, tmp);
        quant_decode(DT_MXFP4, block, tmp, 32);
        assert_memory_equal(tmp, row, sizeof row);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(falcon_variants_are_told_apart_by_their_keys),
        cmocka_unit_test(gpt2_shapes_are_read_from_transposed_matrices),
        cmocka_unit_test(gpt_neo_repeats_its_pattern_of_attention_windows),
        cmocka_unit_test(alibi_slopes_for_head_counts_that_are_no_power_of_two_interleave),
        cmocka_unit_test(full_attention_layers_have_no_rotary_embedding_in_cohere2_and_exaone4),
        cmocka_unit_test(unsupported_options_are_refused_by_name),
        cmocka_unit_test(biases_are_where_each_family_has_them),
        cmocka_unit_test(experts_are_in_the_layers_that_the_config_selects),
        cmocka_unit_test(inconsistent_expert_counts_are_refused),
        cmocka_unit_test(the_error_for_a_missing_expert_names_its_tensor),
        cmocka_unit_test(stacked_experts_give_the_logits_of_separate_experts),
        cmocka_unit_test(a_backend_without_the_experts_operation_refuses_the_model),
        cmocka_unit_test(an_unknown_tensor_stops_the_conversion),
        cmocka_unit_test(rows_grouped_by_kv_head_are_found),
        cmocka_unit_test(transposed_and_alternating_rows_are_read_in_order),
        cmocka_unit_test(rows_read_in_blocks_equal_rows_read_one_by_one),
        cmocka_unit_test(mxfp4_nibbles_are_read_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
