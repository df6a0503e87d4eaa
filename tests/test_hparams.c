/* Hyper-parameters from config.json and from GGUF keys: defaults, windows, rotary scalings and
 * multipliers as each model family's own library understands them.
 *
 * Models are small folders and GGUF files that the test writes. */
#include "safetens.h"

#include "format/ggufw.h"
#include "model/hparams.h"

#include <math.h>
#include <string.h>

struct world {
    struct source *src;
    struct arena arena;
    struct hparams hp;
    struct err e;
    int rc;
};

/* Adds the tensors from which shapes are derived: hidden size 64, 4 heads of 16, 2 KV heads,
 * feed-forward size 160, 320 tokens. packed: q, k and v in one tensor. */
static void add_tensors(struct folder *f, int n_layers, bool packed)
{
    folder_zeros(f, "model.embed_tokens.weight", 320, 64);
    for (int l = 0; l < n_layers; l++) {
        static const struct {
            const char *name;
            int rows, cols;
            bool packed;
        } all[] = {
            { "self_attn.q_proj", 64, 64, false },   { "self_attn.k_proj", 32, 64, false },
            { "self_attn.qkv_proj", 128, 64, true }, { "self_attn.o_proj", 64, 64, true },
            { "mlp.down_proj", 64, 160, true },
        };
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            char name[128];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, all[i].name);
            if (all[i].packed || !packed) folder_zeros(f, name, all[i].rows, all[i].cols);
        }
    }
}

#define SHAPES "\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4"

/* Reads {"model_type": type, SHAPES, more}. */
static struct world *read_folder(const char *type, const char *more)
{
    static int n;
    struct world *w = mem_new(struct world);
    struct folder f;
    struct buf config = { 0 };
    char name[32];

    snprintf(name, sizeof name, "hp%d", n++);
    folder_begin(&f, name);
    add_tensors(&f, 4, strcmp(type, "phi3") == 0);
    buf_printf(&config, "{\"model_type\":\"%s\"," SHAPES "%s%s}", type, more[0] ? "," : "", more);
    if (source_open(&w->src, folder_end(&f, buf_str(&config)), &w->e) != OK)
        fail_msg("%s", w->e.msg);
    w->rc = hparams_read(&w->hp, &w->arena, w->src, &w->e);
    buf_release(&config);
    return w;
}

static struct world *read_ok(const char *type, const char *more)
{
    struct world *w = read_folder(type, more);
    if (w->rc != OK) fail_msg("%s", w->e.msg);
    return w;
}

static void world_close(struct world *w)
{
    arena_release(&w->arena);
    source_close(w->src);
    mem_free(w);
}

static void near(double got, double want) { assert_true(fabs(got - want) <= 1e-6 * fabs(want)); }

static void missing_sizes_are_derived_from_the_tensors(void **state)
{
    static const char *const types[] = { "llama", "mistral", "qwen3", "gemma", "phi3" };
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct world *w = read_ok(types[i], "");
        assert_int_equal(w->hp.layers[0].head_dim, 16);
        assert_int_equal(w->hp.layers[0].n_kv_heads, 2);
        assert_int_equal(w->hp.layers[3].n_ff, 160);
        assert_int_equal(w->hp.n_vocab, 320);
        world_close(w);
    }
}

static void a_missing_size_is_an_error_that_names_its_key(void **state)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct folder f;
    struct err e = { 0 };
    (void)state;
    folder_begin(&f, "noheads");
    add_tensors(&f, 1, false);
    source_open(
        &src,
        folder_end(&f,
                   STR("{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":64}")),
        &e);
    assert_int_equal(hparams_read(&hp, &a, src, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "num_attention_heads"));
    arena_release(&a);
    source_close(src);
}

static void head_counts_that_do_not_divide_are_refused(void **state)
{
    struct world *w = read_folder("llama", "\"num_key_value_heads\":3");
    (void)state;
    assert_int_equal(w->rc, E_FORMAT);
    assert_non_null(strstr(w->e.msg, "3 KV heads"));
    world_close(w);
}

static void an_unknown_architecture_is_named_with_the_known_ones(void **state)
{
    struct world *w = read_folder("gemma_frobnicator", "");
    (void)state;
    assert_int_equal(w->rc, E_UNSUPPORTED);
    assert_non_null(strstr(w->e.msg, "gemma_frobnicator"));
    assert_non_null(strstr(w->e.msg, "the nearest names are gemma, gemma2"));
    world_close(w);
}

static void defaults_are_those_of_each_library(void **state)
{
    static const struct {
        const char *type;
        double eps, theta;
        int n_ctx;
        bool tied;
    } all[] = {
        { "llama", 1e-6, 1e4, 2048, false },  { "qwen2", 1e-6, 1e4, 32768, false },
        { "phi3", 1e-5, 1e4, 4096, false },   { "gemma2", 1e-6, 1e4, 8192, true },
        { "olmo2", 1e-5, 1e4, 2048, false },  { "smollm3", 1e-6, 2e6, 32768, true },
        { "bitnet", 1e-5, 5e5, 2048, false }, { "gemma3_text", 1e-6, 1e6, 131072, true },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct world *w = read_ok(all[i].type, all[i].tied ? "" : "\"tie_word_embeddings\":false");
        near(w->hp.norm_eps, all[i].eps);
        near(w->hp.rope[0].theta, all[i].theta);
        assert_int_equal(w->hp.n_ctx, all[i].n_ctx);
        assert_int_equal(w->hp.tied, all[i].tied);
        world_close(w);
    }
}

static int window_bits(const struct hparams *hp) /* bit l: layer l has a window */
{
    int bits = 0;
    for (int l = 0; l < hp->n_layers; l++) bits |= (hp->layers[l].window > 0) << l;
    return bits;
}

static void attention_windows_are_in_the_layers_of_each_family(void **state)
{
    static const struct {
        const char *type, *more;
        int bits, window;
    } all[] = {
        { "llama", "\"sliding_window\":8", 0, 0 },
        { "mistral", "", 15, 4096 },
        { "mistral", "\"sliding_window\":null", 0, 0 },
        { "mistral", "\"sliding_window\":7", 15, 7 },
        { "ministral",
          "\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"sliding_attention\","
          "\"full_attention\",\"sliding_attention\"]",
          10, 7 },
        { "ministral", "\"sliding_window\":7", 15, 7 },
        { "qwen2", "\"sliding_window\":7,\"max_window_layers\":2", 0, 0 },
        { "qwen2", "\"sliding_window\":7,\"max_window_layers\":2,\"use_sliding_window\":true", 12,
          7 },
        { "qwen3",
          "\"use_sliding_window\":true,\"sliding_window\":7,\"layer_types\":[\"sliding_attention\","
          "\"full_attention\",\"full_attention\",\"full_attention\"]",
          1, 7 },
        { "qwen2", "\"use_sliding_window\":true", 0, 0 }, /* from layer 28 on */
        { "phi3", "", 0, 0 },
        { "phi3", "\"sliding_window\":9", 15, 9 },
        { "gemma", "\"sliding_window\":9", 0, 0 },
        { "gemma2", "", 5, 4096 },
        { "gemma2",
          "\"sliding_window\":9,\"layer_types\":[\"full_attention\",\"sliding_attention\","
          "\"sliding_attention\",\"full_attention\"]",
          6, 9 },
        { "gemma3_text", "\"sliding_window\":9,\"sliding_window_pattern\":2", 5, 9 },
        { "gemma3_text", "", 15, 4096 },
        { "smollm3", "\"sliding_window\":9", 0, 0 },
        { "smollm3",
          "\"sliding_window\":9,\"use_sliding_window\":false,\"layer_types\":[\"sliding_"
          "attention\","
          "\"full_attention\",\"full_attention\",\"full_attention\"]",
          1, 9 },
        { "smollm3", "\"sliding_window\":9,\"use_sliding_window\":true", 8, 9 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct world *w = read_ok(all[i].type, all[i].more);
        if (window_bits(&w->hp) != all[i].bits)
            fail_msg("%s %s: %d", all[i].type, all[i].more, window_bits(&w->hp));
        for (int l = 0; l < 4; l++)
            if (w->hp.layers[l].window) assert_int_equal(w->hp.layers[l].window, all[i].window);
        world_close(w);
    }
}

static void old_and_new_names_of_rope_keys_are_equivalent(void **state)
{
    static const char *const ways[] = {
        "\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}",
        "\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4}",
        "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":500000.0}",
        "\"rope_theta\":500000.0,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0}",
        ("\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1.5},"
         "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":500000.0}"),
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct world *w = read_ok("llama", ways[i]);
        assert_int_equal(w->hp.rope[0].scaling, ROPE_LINEAR);
        near(w->hp.rope[0].factor, 4);
        near(w->hp.rope[0].theta, 500000);
        assert_int_equal(w->hp.rope[0].n_rot, 16);
        world_close(w);
    }
}

static void a_null_rope_scaling_means_none(void **state)
{
    struct world *w = read_ok("llama", "\"rope_theta\":500000.0,\"rope_scaling\":null");
    (void)state;
    assert_int_equal(w->hp.rope[0].scaling, ROPE_NONE);
    near(w->hp.rope[0].theta, 500000);
    world_close(w);
}

static void yarn_keys_are_read(void **state)
{
    struct world *w = read_ok(
        "qwen2",
        "\"max_position_embeddings\":128,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
        "\"original_max_position_embeddings\":32,\"beta_fast\":16,\"truncate\":false}");
    (void)state;
    assert_int_equal(w->hp.rope[0].scaling, ROPE_YARN);
    near(w->hp.rope[0].orig_ctx, 32);
    near(w->hp.rope[0].beta_fast, 16);
    near(w->hp.rope[0].beta_slow, 1);
    near(w->hp.rope[0].attn_factor, 0.1 * log(4) + 1);
    assert_false(w->hp.rope[0].truncate);
    world_close(w);
    w = read_ok("llama",
                "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"attention_factor\":0.5}");
    near(w->hp.rope[0].attn_factor, 0.5);
    near(w->hp.rope[0].orig_ctx, 2048); /* default: the context length */
    world_close(w);
}

static void phi3_accepts_the_old_names_of_longrope(void **state)
{
    static const char *const more =
        "\"max_position_embeddings\":128,\"original_max_position_embeddings\":32,\"rope_scaling\":{"
        "\"type\":\"%s\","
        "\"short_factor\":[1,1,1,1],\"long_factor\":[1,2,3,4]},\"partial_rotary_factor\":0.5";
    static const char *const names[] = { "su", "yarn", "longrope" };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char text[512];
        snprintf(text, sizeof text, more, names[i]);
        struct world *w = read_ok("phi3", text);
        assert_int_equal(w->hp.rope[0].scaling, ROPE_LONGROPE);
        assert_int_equal(w->hp.rope[0].n_rot, 8);
        near(w->hp.rope[0].long_factor[3], 4);
        near(w->hp.rope[0].attn_factor, sqrt(1 + log(4) / log(32)));
        world_close(w);
    }
    struct world *w = read_folder(
        "phi3", "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1],\"long_factor\":[1,2]}");
    assert_int_equal(w->rc, E_FORMAT);
    assert_non_null(strstr(w->e.msg, "8 short and long factors"));
    world_close(w);
}

static void gemma3_has_two_bases_and_scales_one(void **state)
{
    static const char *const ways[] = {
        "\"rope_theta\":2000000.0,\"rope_local_base_freq\":20000.0,\"rope_scaling\":{\"rope_type\":"
        "\"linear\",\"factor\":8.0}",
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_"
        "theta\":2000000.0},"
        "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":20000.0}}",
    };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char more[512];
        snprintf(more, sizeof more, "%s,\"sliding_window_pattern\":2", ways[i]);
        struct world *w = read_ok("gemma3_text", more);
        assert_int_equal(w->hp.n_rope, 2);
        near(w->hp.rope[0].theta, 2e6);
        near(w->hp.rope[1].theta, 2e4);
        assert_int_equal(w->hp.rope[0].scaling, ROPE_LINEAR);
        assert_int_equal(w->hp.rope[1].scaling, ROPE_NONE);
        assert_int_equal(w->hp.layers[0].rope, 1);
        assert_int_equal(w->hp.layers[1].rope, 0);
        world_close(w);
    }
}

static void null_soft_caps_mean_none(void **state)
{
    struct world *w = read_ok("gemma2", "");
    (void)state;
    near(w->hp.attn_softcap, 50);
    near(w->hp.logit_softcap, 30);
    near(w->hp.attn_scale, 1 / 16.0);
    near(w->hp.embd_scale, 8);
    world_close(w);
    w = read_ok("gemma2", "\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"
                          "\"query_pre_attn_scalar\":64");
    assert_true(w->hp.attn_softcap == 0 && w->hp.logit_softcap == 0);
    near(w->hp.attn_scale, 1 / 8.0);
    world_close(w);
}

static void granite_reads_its_multipliers(void **state)
{
    struct world *w =
        read_ok("granite", "\"embedding_multiplier\":6.0,\"logits_scaling\":4.0,"
                           "\"residual_multiplier\":0.3,\"attention_multiplier\":0.2");
    (void)state;
    near(w->hp.embd_scale, 6);
    near(w->hp.logit_scale, 0.25);
    near(w->hp.residual_scale, 0.3f);
    near(w->hp.attn_scale, 0.2f);
    world_close(w);
    w = read_ok("granite", "");
    near(w->hp.attn_scale, 1); /* not 1/sqrt(head_dim) */
    world_close(w);
}

static void smollm3_has_rotary_embeddings_in_the_selected_layers(void **state)
{
    struct world *w = read_ok("smollm3", "");
    (void)state;
    assert_int_equal(w->hp.layers[2].rope, 0);
    assert_int_equal(w->hp.layers[3].rope, -1);
    world_close(w);
    w = read_ok("smollm3", "\"no_rope_layers\":[0,1,1,1]");
    assert_int_equal(w->hp.layers[0].rope, -1);
    assert_int_equal(w->hp.layers[3].rope, 0);
    world_close(w);
    w = read_ok("smollm3", "\"no_rope_layer_interval\":2");
    assert_int_equal(w->hp.layers[1].rope, -1);
    world_close(w);
}

static void unknown_activations_and_rope_scalings_are_refused_by_name(void **state)
{
    struct world *w = read_folder("llama", "\"hidden_act\":\"laplace\"");
    (void)state;
    assert_int_equal(w->rc, E_UNSUPPORTED);
    assert_non_null(strstr(w->e.msg, "laplace"));
    world_close(w);
    w = read_folder("llama", "\"rope_scaling\":{\"type\":\"spiral\",\"factor\":2}");
    assert_int_equal(w->rc, E_UNSUPPORTED);
    assert_non_null(strstr(w->e.msg, "spiral"));
    world_close(w);
    w = read_ok("llama", "\"hidden_act\":\"gelu\"");
    assert_int_equal(w->hp.act, ACT_GELU);
    world_close(w);
}

static void invalid_numbers_are_refused(void **state)
{
    static const struct {
        const char *type, *more, *told;
    } all[] = {
        { "llama", "\"rope_theta\":-1", "rotary base -1" },
        { "llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", "factor 0" },
        { "llama", "\"rope_scaling\":{\"type\":\"linear\"}", "no factor" },
        { "llama",
          "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,"
          "\"original_max_position_embeddings\":-5}",
          "from -5 tokens" },
        { "llama", "\"rms_norm_eps\":-1e-5", "epsilon" },
        { "llama", "\"head_dim\":15,\"num_key_value_heads\":2", "15 of the 15 elements of a head" },
        { "phi3", "\"partial_rotary_factor\":1e300", "partial_rotary_factor" },
        { "granite", "\"embedding_multiplier\":1e300", "not a finite number" },
        { "gemma2", "\"query_pre_attn_scalar\":0", "not a finite number" },
        { "llama", "\"num_key_value_heads\":1000000000", "KV heads" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct world *w = read_folder(all[i].type, all[i].more);
        assert_int_equal(w->rc, E_FORMAT);
        if (!strstr(w->e.msg, all[i].told)) fail_msg("%s: %s", all[i].more, w->e.msg);
        world_close(w);
    }
}

static void a_nested_text_config_is_used(void **state)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct folder f;
    struct err e = { 0 };
    (void)state;
    folder_begin(&f, "nested");
    folder_zeros(&f, "language_model.model.embed_tokens.weight", 320, 64);
    folder_zeros(&f, "language_model.model.layers.0.self_attn.q_proj.weight", 64, 64);
    folder_zeros(&f, "language_model.model.layers.0.self_attn.k_proj.weight", 32, 64);
    folder_zeros(&f, "language_model.model.layers.0.mlp.down_proj.weight", 64, 160);
    source_open(
        &src,
        folder_end(&f,
                   STR("{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\","
                       "\"num_hidden_layers\":1,\"hidden_size\":64,\"sliding_window\":5}}")),
        &e);
    if (hparams_read(&hp, &a, src, &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(hp.arch, "gemma3");
    assert_int_equal(hp.layers[0].window, 5);
    assert_int_equal(hp.layers[0].n_heads, 8); /* the default of gemma3's library */
    assert_string_equal(hp.prefix, "language_model.model.");
    arena_release(&a);
    source_close(src);
}

/* ---- GGUF ---- */

static struct ggufw *gguf_begin(const char *name, const char *arch, char *path, size_t cap)
{
    struct ggufw *w = NULL;
    char key[64];
    snprintf(path, cap, "%s/%s.gguf", temp_dir(), name);
    assert_int_equal(ggufw_open(&w, path, NULL), OK);
    ggufw_str(w, "general.architecture", str_c(arch));
#define KEY(k) (snprintf(key, sizeof key, "%s.%s", arch, k), key)
    ggufw_u32(w, KEY("block_count"), 4);
    ggufw_u32(w, KEY("context_length"), 512);
    ggufw_u32(w, KEY("embedding_length"), 64);
    ggufw_u32(w, KEY("attention.head_count"), 4);
    ggufw_f32(w, KEY("attention.layer_norm_rms_epsilon"), 1e-5f);
    return w;
}

static struct world *gguf_end(struct ggufw *w, const char *path)
{
    static const struct {
        const char *name;
        int64_t dims[2];
    } all[] = {
        { "attn_q", { 64, 64 } },
        { "attn_k", { 32, 64 } },
        { "ffn_up", { 160, 64 } },
        { "ffn_down", { 64, 160 } },
    };
    static const char zeros[320 * 64 * 2];
    struct world *v = mem_new(struct world);
    int64_t embd[2] = { 320, 64 };
    ggufw_tensor(w, "token_embd.weight", DT_F16, embd, 2);
    for (int i = 0; i < 16; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", i / 4, all[i % 4].name);
        ggufw_tensor(w, name, DT_F16, all[i % 4].dims, 2);
    }
    ggufw_data(w, zeros, 320 * 64 * 2);
    for (int i = 0; i < 16; i++)
        ggufw_data(w, zeros, (size_t)(all[i % 4].dims[0] * all[i % 4].dims[1] * 2));
    if (ggufw_close(w, &v->e) != OK || source_open(&v->src, path, &v->e) != OK)
        fail_msg("%s", v->e.msg);
    v->rc = hparams_read(&v->hp, &v->arena, v->src, &v->e);
    return v;
}

static void gguf_keys_are_read(void **state)
{
    char path[256];
    struct ggufw *w = gguf_begin("keys", "llama", path, sizeof path);
    uint32_t kv[4] = { 2, 2, 2, 2 };
    (void)state;
    ggufw_u32s(w, "llama.attention.head_count_kv", kv, 4);
    ggufw_f32(w, "llama.rope.freq_base", 500000);
    ggufw_u32(w, "llama.rope.dimension_count", 8);
    ggufw_f32(w, "llama.rope.scale_linear", 2);
    struct world *v = gguf_end(w, path);
    if (v->rc != OK) fail_msg("%s", v->e.msg);
    assert_int_equal(v->hp.layers[3].n_kv_heads, 2);
    assert_int_equal(v->hp.layers[0].head_dim, 16);
    assert_int_equal(v->hp.layers[0].n_ff, 160);
    assert_int_equal(v->hp.n_vocab, 320);
    assert_int_equal(v->hp.rope_style, ROPE_PAIR);
    assert_int_equal(v->hp.rope[0].n_rot, 8);
    assert_int_equal(v->hp.rope[0].scaling, ROPE_LINEAR);
    assert_true(v->hp.tied);
    assert_int_equal(window_bits(&v->hp), 0);
    world_close(v);
}

static void gguf_windows_follow_the_pattern(void **state)
{
    char path[256];
    struct ggufw *w = gguf_begin("pattern", "gemma2", path, sizeof path);
    bool list[4] = { true, false, false, true };
    (void)state;
    struct world *v = gguf_end(w, path);
    assert_int_equal(window_bits(&v->hp), 5); /* every second layer, 4096 wide */
    assert_int_equal(v->hp.layers[0].window, 4096);
    assert_int_equal(v->hp.rope_style, ROPE_HALF);
    near(v->hp.logit_softcap, 30);
    assert_true(v->hp.norm_bias1 == 0); /* GGUF files have the 1 added to the weights */
    world_close(v);
    w = gguf_begin("pattern2", "gemma3", path, sizeof path);
    ggufw_u32(w, "gemma3.attention.sliding_window", 12);
    ggufw_bools(w, "gemma3.attention.sliding_window_pattern", list, 4);
    v = gguf_end(w, path);
    assert_int_equal(window_bits(&v->hp), 9);
    assert_int_equal(v->hp.layers[0].rope, 1);
    assert_int_equal(v->hp.layers[1].rope, 0);
    world_close(v);
}

/* Some writers of GGUF files store four times the hidden size as the feed-forward size. The
 * shapes of two tensors override it. */
static void a_wrong_feed_forward_size_in_gguf_files_is_corrected_from_the_tensors(void **state)
{
    char path[256];
    struct ggufw *w = gguf_begin("wide", "llama", path, sizeof path);
    (void)state;
    ggufw_u32(w, "llama.feed_forward_length", 256);
    struct world *v = gguf_end(w, path);
    assert_int_equal(v->hp.layers[2].n_ff, 160);
    world_close(v);
    w = gguf_begin("wide2", "llama", path, sizeof path);
    ggufw_u32(w, "llama.feed_forward_length",
              192); /* not four times the hidden size: kept, and refused later */
    v = gguf_end(w, path);
    assert_int_equal(v->hp.layers[2].n_ff, 192);
    world_close(v);
}

/* OLMo 2 and OLMo 3 have the same architecture name in GGUF files; only OLMo 3 has the key of
 * the window. */
static void olmo2_gguf_files_without_a_window_have_one_rotary_embedding(void **state)
{
    char path[256];
    struct ggufw *w = gguf_begin("olmo", "olmo2", path, sizeof path);
    (void)state;
    ggufw_str(w, "olmo2.rope.scaling.type", STR("linear"));
    ggufw_f32(w, "olmo2.rope.scaling.factor", 4);
    struct world *v = gguf_end(w, path);
    if (v->rc != OK) fail_msg("%s", v->e.msg);
    for (int l = 0; l < 4; l++)
        assert_true(v->hp.layers[l].rope == 0 && v->hp.layers[l].window == 0);
    world_close(v);
}

static void the_error_for_an_unknown_gguf_architecture_lists_the_known_ones(void **state)
{
    char path[256];
    struct world *v = gguf_end(gguf_begin("unknown", "quux", path, sizeof path), path);
    (void)state;
    assert_int_equal(v->rc, E_UNSUPPORTED);
    assert_non_null(strstr(v->e.msg, "\"quux\""));
    assert_non_null(strstr(v->e.msg, "the nearest names are qwen2, qwen3"));
    world_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_sizes_are_derived_from_the_tensors),
        cmocka_unit_test(a_missing_size_is_an_error_that_names_its_key),
        cmocka_unit_test(head_counts_that_do_not_divide_are_refused),
        cmocka_unit_test(an_unknown_architecture_is_named_with_the_known_ones),
        cmocka_unit_test(defaults_are_those_of_each_library),
        cmocka_unit_test(attention_windows_are_in_the_layers_of_each_family),
        cmocka_unit_test(old_and_new_names_of_rope_keys_are_equivalent),
        cmocka_unit_test(a_null_rope_scaling_means_none),
        cmocka_unit_test(yarn_keys_are_read),
        cmocka_unit_test(phi3_accepts_the_old_names_of_longrope),
        cmocka_unit_test(gemma3_has_two_bases_and_scales_one),
        cmocka_unit_test(null_soft_caps_mean_none),
        cmocka_unit_test(granite_reads_its_multipliers),
        cmocka_unit_test(smollm3_has_rotary_embeddings_in_the_selected_layers),
        cmocka_unit_test(unknown_activations_and_rope_scalings_are_refused_by_name),
        cmocka_unit_test(invalid_numbers_are_refused),
        cmocka_unit_test(a_nested_text_config_is_used),
        cmocka_unit_test(gguf_keys_are_read),
        cmocka_unit_test(gguf_windows_follow_the_pattern),
        cmocka_unit_test(a_wrong_feed_forward_size_in_gguf_files_is_corrected_from_the_tensors),
        cmocka_unit_test(olmo2_gguf_files_without_a_window_have_one_rotary_embedding),
        cmocka_unit_test(the_error_for_an_unknown_gguf_architecture_lists_the_known_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
