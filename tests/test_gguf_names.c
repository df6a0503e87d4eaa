/* GGUF files that tern writes have llama.cpp's names: the architecture, keys, tensors. What a name or
 * a shape stands for there is in its converters; test_model.c compares the logits.
 *
 * Reads ../shared/fixtures/hf-2026 (skipped without it). */
#include "model_gguf.h"
#include "model_world.h"

#include "format/source.h"

/* One folder. `tensors` and `keys` must be in the file; keys are without the architecture, unless they
 * begin with '='. */
static const struct {
    const char *folder, *arch;
    const char *tensors[6], *keys[8];
} files[] = {
    { "granitemoehybrid",
      "granitehybrid",
      { "blk.0.ssm_in.weight", "blk.0.ssm_norm.weight", "blk.1.attn_q.weight",
        "blk.0.ffn_gate_shexp.weight", "blk.0.ffn_gate_exps.weight" },
      { "ssm.group_count", "ssm.time_step_rank", "attention.head_count_kv",
        "rope.scaling.finetuned", "expert_shared_feed_forward_length", "residual_scale" } },
    { "granitemoehybrid-dense", "granitehybrid", { "blk.0.ffn_gate.weight" }, { 0 } },
    { "bamba", "granitehybrid", { "blk.0.ffn_gate.weight", "output_norm.weight" }, { 0 } },
    { "falcon_h1",
      "falcon-h1",
      { "blk.0.ssm_in.weight", "blk.0.attn_q.weight", "blk.0.ssm_out.weight", "blk.0.ffn_norm" },
      { "ssm.inner_size", "attention.key_length", "rope.freq_base" } },
    { "jamba",
      "jamba",
      { "blk.0.ssm_x.weight", "blk.0.ssm_dt_norm.weight", "blk.0.ssm_b_norm.weight",
        "blk.2.attn_q.weight", "blk.1.ffn_gate_inp.weight" },
      { "attention.head_count_kv", "ssm.state_size", "expert_count" } },
    { "nemotron_h",
      "nemotron_h_moe",
      { "blk.0.ssm_in.weight", "blk.1.exp_probs_b.bias", "blk.1.ffn_up_exps.weight",
        "blk.2.attn_output.weight" },
      { "feed_forward_length", "expert_shared_feed_forward_length", "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon" } },
    { "nemotron_h-latent",
      "nemotron_h_moe",
      { "blk.1.ffn_latent_down.weight", "blk.1.ffn_latent_up.weight" },
      { "moe_latent_size" } },
    { "apertus", "apertus", { "blk.0.attn_q_norm.weight" }, { "=xielu.alpha_p", "=xielu.eps" } },
    { "minicpm3",
      "minicpm3",
      { "blk.0.attn_kv_b.weight", "blk.0.attn_q_a.weight" },
      { "attention.kv_lora_rank", "attention.key_length", "rope.dimension_count" } },
    { "cohere2_moe",
      "cohere2moe",
      { "blk.1.ffn_gate_shexp.weight", "blk.0.ffn_gate.weight" },
      { "leading_dense_block_count", "attention.layer_norm_epsilon", "expert_gating_func",
        "attention.sliding_window_pattern" } },
    { "mimo_v2_flash",
      "mimo2",
      { "blk.1.attn_sinks.weight", "blk.1.exp_probs_b.bias" },
      { "attention.value_scale", "attention.head_count_kv", "rope.freq_base_swa" } },
    { "deepseek_v32",
      "deepseek32",
      { "blk.0.indexer.attn_q_b.weight", "blk.0.indexer.attn_k.weight", "blk.0.indexer.proj.weight",
        "blk.0.indexer.k_norm.bias", "blk.0.attn_k_b.weight" },
      { "attention.indexer.head_count", "attention.indexer.key_length",
        "attention.indexer.top_k" } },
    { "glm_moe_dsa",
      "glm-dsa",
      { "blk.1.indexer.attn_q_b.weight" },
      { "attention.indexer.types", "attention.indexer.top_k" } },
    { "minimax_m3_vl",
      "minimax-m3",
      { "blk.1.indexer.q_proj.weight", "blk.1.indexer.k_proj.weight",
        "blk.1.indexer.q_norm.weight" },
      { "attention.indexer.block_size", "attention.indexer.local_blocks" } },
    { "glm4_moe_lite", "deepseek2", { "blk.0.attn_k_b.weight" }, { "attention.key_length_mla" } },
    { "solar_open", "glm4moe", { "blk.0.post_attention_norm.weight" }, { 0 } },
    { "gemma3_text-embed",
      "gemma-embedding",
      { "dense_2.weight", "dense_3.weight", "blk.0.post_ffw_norm.weight" },
      { "dense_2_feat_out", "pooling_type", "attention.sliding_window" } },
    { "granite_swa", "granite_swa", { "blk.0.attn_sinks.weight" }, { "attention.rope_pattern" } },
    { "falcon_mamba", "mamba", { "blk.0.ssm_x.weight" }, { "ssm.dt_b_c_rms" } },
};

static void files_have_the_names_of_llama_cpp(void **state)
{
    char path[256], key[160];
    (void)state;
    need_shared("fixtures/hf-2026");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct source *s = NULL;
        struct str arch;
        struct value v;
        snprintf(path, sizeof path, "fixtures/hf-2026/%s", files[i].folder);
        char folder[256];
        snprintf(folder, sizeof folder, "%s", shared(path));
        snprintf(path, sizeof path, "%s/%s.gguf", temp_dir(), files[i].folder);
        write_gguf_of(folder, path, false);
        assert_int_equal(source_open(&s, path, NULL), OK);
        assert_true(source_str(s, "general.architecture", &arch));
        if (!str_is(arch, files[i].arch)) fail_msg("%s: %.*s", files[i].folder, STR_ARG(arch));
        for (int k = 0; k < 6 && files[i].tensors[k]; k++)
            if (!source_find(s, files[i].tensors[k]))
                fail_msg("%s: no tensor %s", files[i].folder, files[i].tensors[k]);
        for (int k = 0; k < 8 && files[i].keys[k]; k++) {
            const char *name = files[i].keys[k];
            if (*name == '=') snprintf(key, sizeof key, "%s", name + 1);
            else snprintf(key, sizeof key, "%s.%s", files[i].arch, name);
            if (!source_key(s, key, &v)) fail_msg("%s: no key %s", files[i].folder, key);
        }
        source_close(s);
    }
}

/* Replaces the first `from` in a file by `to`, which is as long. */
static void change_file(const char *path, const char *from, const char *to)
{
    struct buf b = { 0 };
    ptrdiff_t at;

    assert_int_equal(file_read(&b, path, 1 << 24, NULL), OK);
    at = str_find(buf_str(&b), str_c(from));
    assert_true(at >= 0);
    memcpy((char *)b.p + at, to, strlen(to));
    assert_int_equal(file_replace(path, buf_str(&b), NULL), OK);
    buf_release(&b);
}

/* Without these keys the models would compute something else. */
static void missing_keys_are_named(void **state)
{
    static const char *const cases[][3] = {
        { "apertus", "xielu.alpha_p", "xielu.alpha_x" },
        { "deepseek_v32", "deepseek32.attention.indexer.top_k",
          "deepseek32.attention.indexer.top_x" },
        { "minimax_m3_vl", "minimax-m3.attention.indexer.block_size",
          "minimax-m3.attention.indexer.block_sixe" },
        { "jamba", "jamba.ssm.state_size", "jamba.ssm.state_sixe" },
    };
    (void)state;
    need_shared("fixtures/hf-2026");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[300], folder[300];
        struct source *s = NULL;
        struct arena a = { 0 };
        struct hparams hp;
        struct err e = { 0 };
        snprintf(path, sizeof path, "fixtures/hf-2026/%s", cases[i][0]);
        snprintf(folder, sizeof folder, "%s", shared(path));
        snprintf(path, sizeof path, "%s/missing-%s.gguf", temp_dir(), cases[i][0]);
        write_gguf_of(folder, path, false);
        change_file(path, cases[i][1], cases[i][2]);
        assert_int_equal(source_open(&s, path, NULL), OK);
        assert_int_equal(hparams_read(&hp, &a, s, &e), E_FORMAT);
        if (!strstr(e.msg, cases[i][1])) fail_msg("%s", e.msg);
        arena_release(&a);
        source_close(s);
    }
}

/* Adds layer 1 of a folder, which has attention, as layer 0 of another one, and the ends. */
static void add_attention_layer(struct folder *f, const struct source *src)
{
    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const struct source_tensor *t = source_tensor(src, i);
        char name[160];
        ptrdiff_t at = str_find(t->name, STR("layers.1."));
        if (at < 0 && str_find(t->name, STR("layers.")) >= 0) continue;
        snprintf(name, sizeof name, "%.*s", STR_ARG(t->name));
        if (at >= 0) name[at + 7] = '0';
        folder_add(f, name, dtype_name((int)t->type), t->dims, t->n_dims, t->data, t->bytes);
    }
}

/* Granite 4 without a mixer is granite, or granitemoe, in GGUF files, and gives the same logits. */
static void granites_without_a_mixer_have_another_name(void **state)
{
    static const char *const names[][2] = { { "granitemoehybrid", "granitemoe" },
                                            { "granitemoehybrid-dense", "granite" } };
    (void)state;
    need_shared("fixtures/hf-2026");
    for (int i = 0; i < 2; i++) {
        char path[300], config[1024];
        struct source *src = NULL;
        struct folder f;
        struct chain c;
        int32_t ids[32];
        float *want;
        snprintf(path, sizeof path, "fixtures/hf-2026/%s", names[i][0]);
        assert_int_equal(source_open(&src, shared(path), NULL), OK);
        folder_begin(&f, names[i][1]);
        add_attention_layer(&f, src);
        snprintf(config, sizeof config,
                 "{\"model_type\":\"granitemoehybrid\",\"hidden_size\":64,\"num_hidden_layers\":1,"
                 "\"layer_types\":[\"attention\"],\"num_attention_heads\":4,"
                 "\"num_key_value_heads\":2,\"intermediate_size\":%d,"
                 "\"shared_intermediate_size\":%d,\"num_local_experts\":%d,"
                 "\"num_experts_per_tok\":2,\"mamba_n_heads\":8,\"mamba_d_state\":16,"
                 "\"position_embedding_type\":\"rope\",\"vocab_size\":320,"
                 "\"max_position_embeddings\":512,\"attention_multiplier\":0.2,"
                 "\"logits_scaling\":2.0,\"residual_multiplier\":0.4,"
                 "\"tie_word_embeddings\":%s}",
                 i ? 160 : 48, i ? 160 : 80, i ? 0 : 8, i ? "true" : "false");
        const char *folder = folder_end(&f, str_c(config));
        source_close(src);
        snprintf(path, sizeof path, "%s/%s.gguf", temp_dir(), names[i][1]);
        write_gguf_of(folder, path, false);
        for (int k = 0; k < 32; k++) ids[k] = 3 + 7 * k;
        struct world a = open_world(folder, true), b = open_world(path, true);
        assert_string_equal(b.m->hp.arch, names[i][1]);
        size_t n = (size_t)32 * (size_t)a.m->hp.n_vocab;
        want = mem_array(n, sizeof *want);
        assert_true(chain_init(&c, 64) && chain_reserve(&c, a.pool, 64));
        memcpy(want, run_tokens(&a, &c, ids, 0, 32), n * sizeof *want);
        chain_release(&c, a.pool);
        assert_true(chain_init(&c, 64) && chain_reserve(&c, b.pool, 64));
        assert_true(relative_error(run_tokens(&b, &c, ids, 0, 32), want, (int)n) < 1e-5);
        chain_release(&c, b.pool);
        mem_free(want);
        close_world(&a);
        close_world(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_have_the_names_of_llama_cpp),
        cmocka_unit_test(missing_keys_are_named),
        cmocka_unit_test(granites_without_a_mixer_have_another_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
