/* GGUF files that tern writes have llama.cpp's names: the architecture, keys, tensors. What a name or
 * a shape stands for there is in its converters; test_model.c compares the logits.
 *
 * Reads ../shared/fixtures/hf-2026 (skipped without it). */
#include "model_gguf.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_have_the_names_of_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
