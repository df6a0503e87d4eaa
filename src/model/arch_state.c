/* arch_state.c - architectures with mixers other than plain attention: state space models (Mamba),
 * short convolutions (LFM2), gated delta nets (Qwen3-Next), latent attention (DeepSeek).
 * H: a name in a layer of a folder; X: a member of the mixer's weights. */
#include "model/arch_rows.h"

#define H(name) "layers.*." name
#define X(member) L(mix.member)
/* A small matrix that is stored as a transposed F32 vector. */
#define PLANE(gguf, hf, flags, at, rows, cols)               \
    {                                                        \
        gguf, hf, ROW_PLANE, flags, at, rows, cols, DIM_NONE \
    }

/* The ends of both Mambas. */
static const struct tensor_row rows_ends_mamba[] = {
    MAT("token_embd.weight", "embeddings.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "norm_f.weight", 0, M(out_norm), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD), END
};

/* Norm, projections and convolution, the same in Mamba 1 and 2. */
static const struct tensor_row rows_mamba_both[] = {
    VEC(B("attn_norm.weight"), H("norm.weight"), 0, L(attn_norm), DIM_EMBD),
    MAT(B("ssm_in.weight"), H("mixer.in_proj.weight"), 0, X(in), DIM_MIX_IN, DIM_EMBD),
    VEC(B("ssm_in.bias"), H("mixer.in_proj.bias"), ROW_BIAS_QKV, X(in_b), DIM_MIX_IN),
    PLANE(B("ssm_conv1d.weight"), H("mixer.conv1d.weight"), 0, X(conv_w), DIM_MIX_CONV,
          DIM_MIX_TAPS),
    VEC(B("ssm_conv1d.bias"), H("mixer.conv1d.bias"), ROW_OPTIONAL, X(conv_b), DIM_MIX_CONV),
    MAT(B("ssm_out.weight"), H("mixer.out_proj.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("ssm_out.bias"), H("mixer.out_proj.bias"), ROW_BIAS_O, L(bo), DIM_EMBD),
    END
};

/* Mamba 1: the time step has a low rank; A is [channels][state]. */
static const struct tensor_row rows_mamba[] = {
    MAT(B("ssm_x.weight"), H("mixer.x_proj.weight"), 0, X(x), DIM_MIX_LOW, DIM_O),
    MAT(B("ssm_dt.weight"), H("mixer.dt_proj.weight"), ROW_F32, X(dt), DIM_O, DIM_MIX_RANK),
    VEC(B("ssm_dt.bias"), H("mixer.dt_proj.bias"), 0, X(dt_b), DIM_O),
    PLANE(B("ssm_a"), H("mixer.A_log"), ROW_LOG, X(a), DIM_O, DIM_MIX_STATE),
    VEC(B("ssm_d"), H("mixer.D"), 0, X(d), DIM_O),
    END
};

/* Mamba 2: scalars per head; the norm after the gate may be grouped. */
static const struct tensor_row rows_mamba2[] = {
    VEC(B("ssm_dt.bias"), H("mixer.dt_bias"), 0, X(dt_b), DIM_MIX_HEADS),
    PLANE(B("ssm_a"), H("mixer.A_log"), ROW_LOG, X(a), DIM_MIX_HEADS, DIM_ONE),
    PLANE(B("ssm_d"), H("mixer.D"), 0, X(d), DIM_MIX_HEADS, DIM_ONE),
    { B("ssm_norm.weight"), H("mixer.norm.weight"), ROW_FLAT, 0, X(norm), DIM_O, DIM_NONE,
      DIM_NONE },
    END
};

/* All of LFM2: GGUF calls the final norm token_embd_norm. */
static const struct tensor_row rows_lfm2[] = {
    MAT("token_embd.weight", "embed_tokens.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("token_embd_norm.weight", "embedding_norm.weight", 0, M(out_norm), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    VEC(B("attn_norm.weight"), H("operator_norm.weight"), 0, L(attn_norm), DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("ffn_norm.weight"), 0, L(ffn_norm), DIM_EMBD),
    MAT(B("shortconv.in_proj.weight"), H("conv.in_proj.weight"), ROW_MIXER, X(in), DIM_MIX_IN,
        DIM_EMBD),
    VEC(B("shortconv.in_proj.bias"), H("conv.in_proj.bias"), ROW_MIXER | ROW_BIAS_QKV, X(in_b),
        DIM_MIX_IN),
    PLANE(B("shortconv.conv.weight"), H("conv.conv.weight"), ROW_MIXER, X(conv_w), DIM_EMBD,
          DIM_MIX_TAPS),
    VEC(B("shortconv.conv.bias"), H("conv.conv.bias"), ROW_MIXER | ROW_BIAS_QKV, X(conv_b),
        DIM_EMBD),
    MAT(B("shortconv.out_proj.weight"), H("conv.out_proj.weight"), ROW_MIXER, L(wo), DIM_EMBD,
        DIM_O),
    VEC(B("shortconv.out_proj.bias"), H("conv.out_proj.bias"), ROW_MIXER | ROW_BIAS_O, L(bo),
        DIM_EMBD),
    MAT(B("attn_q.weight"), H("self_attn.q_proj.weight"), ROW_ATTN, L(wq), DIM_Q, DIM_EMBD),
    MAT(B("attn_k.weight"), H("self_attn.k_proj.weight"), ROW_ATTN, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), H("self_attn.v_proj.weight"), ROW_ATTN, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), H("self_attn.out_proj.weight"), ROW_ATTN, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_q_norm.weight"), H("self_attn.q_layernorm.weight"), ROW_ATTN, L(q_norm), DIM_HEAD),
    VEC(B("attn_k_norm.weight"), H("self_attn.k_layernorm.weight"), ROW_ATTN, L(k_norm), DIM_HEAD),
    MAT(B("ffn_gate.weight"), H("feed_forward.w1.weight"), ROW_DENSE, L(gate), DIM_FF, DIM_EMBD),
    MAT(B("ffn_up.weight"), H("feed_forward.w3.weight"), ROW_DENSE, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down.weight"), H("feed_forward.w2.weight"), ROW_DENSE, L(down), DIM_EMBD, DIM_FF),
    END
};

/* The rows of q hold queries and gates, interleaved by head, in both file formats. */
const struct tensor_row rows_attn_gated[] = {
    { B("attn_q.weight"), H("self_attn.q_proj.weight"), ROW_Q_GATE, ROW_ATTN, L(wq), DIM_2Q,
      DIM_EMBD, DIM_NONE },
    MAT(B("attn_k.weight"), H("self_attn.k_proj.weight"), ROW_ATTN, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), H("self_attn.v_proj.weight"), ROW_ATTN, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), H("self_attn.o_proj.weight"), ROW_ATTN, L(wo), DIM_EMBD, DIM_O),
    { B("attn_q.bias"), H("self_attn.q_proj.bias"), ROW_Q_GATE, ROW_ATTN | ROW_BIAS_QKV, L(bq),
      DIM_2Q, DIM_NONE, DIM_NONE },
    VEC(B("attn_k.bias"), H("self_attn.k_proj.bias"), ROW_ATTN | ROW_BIAS_QKV, L(bk), DIM_K),
    VEC(B("attn_v.bias"), H("self_attn.v_proj.bias"), ROW_ATTN | ROW_BIAS_QKV, L(bv), DIM_V),
    VEC(B("attn_output.bias"), H("self_attn.o_proj.bias"), ROW_ATTN | ROW_BIAS_O, L(bo), DIM_EMBD),
    VEC(B("attn_q_norm.weight"), H("self_attn.q_norm.weight"), ROW_ATTN | ROW_NORM, L(q_norm),
        DIM_HEAD),
    VEC(B("attn_k_norm.weight"), H("self_attn.k_norm.weight"), ROW_ATTN | ROW_NORM, L(k_norm),
        DIM_HEAD),
    END
};

/* Folders pack q, k, v and the gate by key head; GGUF has q, k, v and the gate apart. */
static const struct tensor_row rows_delta[] = {
    { NULL, H("linear_attn.in_proj_qkvz.weight"), ROW_QKVZ, ROW_MIXER, X(in), DIM_MIX_IN, DIM_EMBD,
      DIM_NONE },
    MAT(B("attn_qkv.weight"), NULL, ROW_MIXER, X(in), DIM_MIX_CONV, DIM_EMBD),
    MAT(B("attn_gate.weight"), NULL, ROW_MIXER, X(z), DIM_O, DIM_EMBD),
    { B("ssm_ba.weight"), H("linear_attn.in_proj_ba.weight"), ROW_BETA_ALPHA, ROW_MIXER, X(ba),
      DIM_MIX_LOW, DIM_EMBD, DIM_NONE },
    PLANE(B("ssm_conv1d.weight"), H("linear_attn.conv1d.weight"), ROW_MIXER, X(conv_w),
          DIM_MIX_CONV, DIM_MIX_TAPS),
    VEC(B("ssm_dt.bias"), H("linear_attn.dt_bias"), ROW_MIXER, X(dt_b), DIM_MIX_HEADS),
    VEC(B("ssm_a"), H("linear_attn.A_log"), ROW_MIXER | ROW_LOG, X(a), DIM_MIX_HEADS),
    VEC(B("ssm_norm.weight"), H("linear_attn.norm.weight"), ROW_MIXER, X(norm), DIM_MIX_HEAD),
    MAT(B("ssm_out.weight"), H("linear_attn.out_proj.weight"), ROW_MIXER, L(wo), DIM_EMBD, DIM_O),
    END
};

/* A delta net with q, k, v and the gate, beta and alpha apart in both formats. */
static const struct tensor_row rows_delta_apart[] = {
    MAT(B("attn_qkv.weight"), H("linear_attn.in_proj_qkv.weight"), ROW_MIXER, X(in), DIM_MIX_CONV,
        DIM_EMBD),
    MAT(B("attn_gate.weight"), H("linear_attn.in_proj_z.weight"), ROW_MIXER, X(z), DIM_O, DIM_EMBD),
    MAT(B("ssm_beta.weight"), H("linear_attn.in_proj_b.weight"), ROW_MIXER, X(beta), DIM_MIX_HEADS,
        DIM_EMBD),
    MAT(B("ssm_alpha.weight"), H("linear_attn.in_proj_a.weight"), ROW_MIXER, X(alpha),
        DIM_MIX_HEADS, DIM_EMBD),
    PLANE(B("ssm_conv1d.weight"), H("linear_attn.conv1d.weight"), ROW_MIXER, X(conv_w),
          DIM_MIX_CONV, DIM_MIX_TAPS),
    VEC(B("ssm_dt.bias"), H("linear_attn.dt_bias"), ROW_MIXER, X(dt_b), DIM_MIX_HEADS),
    VEC(B("ssm_a"), H("linear_attn.A_log"), ROW_MIXER | ROW_LOG, X(a), DIM_MIX_HEADS),
    VEC(B("ssm_norm.weight"), H("linear_attn.norm.weight"), ROW_MIXER, X(norm), DIM_MIX_HEAD),
    MAT(B("ssm_out.weight"), H("linear_attn.out_proj.weight"), ROW_MIXER, L(wo), DIM_EMBD, DIM_O),
    END
};

/* All of OLMo hybrid's layers but the feed-forward block. q, k and v of delta nets have convolutions
 * of their own. */
static const struct tensor_row rows_olmo_hybrid[] = {
    MAT(B("delta_q.weight"), H("linear_attn.q_proj.weight"), ROW_MIXER, L(wq), DIM_MIX_KEYS,
        DIM_EMBD),
    MAT(B("delta_k.weight"), H("linear_attn.k_proj.weight"), ROW_MIXER, L(wk), DIM_MIX_KEYS,
        DIM_EMBD),
    MAT(B("delta_v.weight"), H("linear_attn.v_proj.weight"), ROW_MIXER, L(wv), DIM_MIX_VALUES,
        DIM_EMBD),
    MAT(B("attn_gate.weight"), H("linear_attn.g_proj.weight"), ROW_MIXER, X(z), DIM_O, DIM_EMBD),
    MAT(B("ssm_beta.weight"), H("linear_attn.b_proj.weight"), ROW_MIXER, X(beta), DIM_MIX_HEADS,
        DIM_EMBD),
    MAT(B("ssm_alpha.weight"), H("linear_attn.a_proj.weight"), ROW_MIXER, X(alpha), DIM_MIX_HEADS,
        DIM_EMBD),
    PLANE(B("ssm_conv1d_q.weight"), H("linear_attn.q_conv1d.weight"), ROW_MIXER, X(conv_w),
          DIM_MIX_KEYS, DIM_MIX_TAPS),
    PLANE(B("ssm_conv1d_k.weight"), H("linear_attn.k_conv1d.weight"), ROW_MIXER, X(conv_k),
          DIM_MIX_KEYS, DIM_MIX_TAPS),
    PLANE(B("ssm_conv1d_v.weight"), H("linear_attn.v_conv1d.weight"), ROW_MIXER, X(conv_v),
          DIM_MIX_VALUES, DIM_MIX_TAPS),
    VEC(B("ssm_dt.bias"), H("linear_attn.dt_bias"), ROW_MIXER, X(dt_b), DIM_MIX_HEADS),
    VEC(B("ssm_a"), H("linear_attn.A_log"), ROW_MIXER | ROW_LOG, X(a), DIM_MIX_HEADS),
    VEC(B("ssm_norm.weight"), H("linear_attn.o_norm.weight"), ROW_MIXER, X(norm), DIM_MIX_HEAD),
    MAT(B("ssm_out.weight"), H("linear_attn.o_proj.weight"), ROW_MIXER, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_norm.weight"), H("attention_layer_norm.weight"), ROW_MIXER, L(attn_norm), DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("feedforward_layer_norm.weight"), ROW_MIXER, L(ffn_norm), DIM_EMBD),
    MAT(B("attn_q.weight"), H("self_attn.q_proj.weight"), ROW_ATTN, L(wq), DIM_Q, DIM_EMBD),
    MAT(B("attn_k.weight"), H("self_attn.k_proj.weight"), ROW_ATTN, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), H("self_attn.v_proj.weight"), ROW_ATTN, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), H("self_attn.o_proj.weight"), ROW_ATTN, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_q.bias"), H("self_attn.q_proj.bias"), ROW_ATTN | ROW_BIAS_QKV, L(bq), DIM_Q),
    VEC(B("attn_k.bias"), H("self_attn.k_proj.bias"), ROW_ATTN | ROW_BIAS_QKV, L(bk), DIM_K),
    VEC(B("attn_v.bias"), H("self_attn.v_proj.bias"), ROW_ATTN | ROW_BIAS_QKV, L(bv), DIM_V),
    VEC(B("attn_output.bias"), H("self_attn.o_proj.bias"), ROW_ATTN | ROW_BIAS_O, L(bo), DIM_EMBD),
    VEC(B("attn_q_norm.weight"), H("self_attn.q_norm.weight"), ROW_ATTN, L(q_norm), DIM_Q),
    VEC(B("attn_k_norm.weight"), H("self_attn.k_norm.weight"), ROW_ATTN, L(k_norm), DIM_K),
    VEC(B("post_attention_norm.weight"), H("feedforward_layer_norm.weight"), ROW_ATTN,
        L(attn_post_norm), DIM_EMBD),
    VEC(B("post_ffw_norm.weight"), H("post_feedforward_layernorm.weight"), ROW_ATTN,
        L(ffn_post_norm), DIM_EMBD),
    END
};

/* kv_b is one tensor in folders; newer GGUF files have k_b (transposed) and v_b per head. */
const struct tensor_row rows_mla_up[] = { { NULL, H("self_attn.kv_b_proj.weight"), ROW_KV_B, 0,
                                            X(k_b), DIM_MIX_UP, DIM_MIX_LATENT, DIM_NONE },
                                          { B("attn_kv_b.weight"), NULL, ROW_KV_B, ROW_OPTIONAL,
                                            X(k_b), DIM_MIX_UP, DIM_MIX_LATENT, DIM_NONE },
                                          { B("attn_k_b.weight"), NULL, ROW_EACH_HEAD, ROW_OPTIONAL,
                                            X(k_b), DIM_MIX_LATENT, DIM_MIX_NOPE, DIM_HEADS },
                                          { B("attn_v_b.weight"), NULL, ROW_EACH_HEAD, ROW_OPTIONAL,
                                            X(v_b), DIM_MIX_HEAD, DIM_MIX_LATENT, DIM_HEADS },
                                          END };
/* Or it is one tensor in both (minicpm3). */
const struct tensor_row rows_mla_whole[] = { { B("attn_kv_b.weight"),
                                               H("self_attn.kv_b_proj.weight"), ROW_KV_B, 0, X(k_b),
                                               DIM_MIX_UP, DIM_MIX_LATENT, DIM_NONE },
                                             END };

/* Latent attention but for kv_b. */
const struct tensor_row rows_mla[] = {
    { B("attn_q.weight"), H("self_attn.q_proj.weight"), ROW_Q_WHOLE, 0, L(wq), DIM_Q, DIM_EMBD,
      DIM_NONE },
    MAT(B("attn_q_a.weight"), H("self_attn.q_a_proj.weight"), 0, X(q_a), DIM_MIX_RANK, DIM_EMBD),
    VEC(B("attn_q_a.bias"), H("self_attn.q_a_proj.bias"), ROW_BIAS_QKV, X(q_a_b), DIM_MIX_RANK),
    VEC(B("attn_q_a_norm.weight"), H("self_attn.q_a_layernorm.weight"), 0, X(q_a_norm),
        DIM_MIX_RANK),
    MAT(B("attn_q_b.weight"), H("self_attn.q_b_proj.weight"), 0, L(wq), DIM_Q, DIM_MIX_RANK),
    MAT(B("attn_kv_a_mqa.weight"), H("self_attn.kv_a_proj_with_mqa.weight"), 0, X(kv_a), DIM_K,
        DIM_EMBD),
    VEC(B("attn_kv_a_mqa.bias"), H("self_attn.kv_a_proj_with_mqa.bias"), ROW_BIAS_QKV, X(kv_a_b),
        DIM_K),
    VEC(B("attn_kv_a_norm.weight"), H("self_attn.kv_a_layernorm.weight"), 0, X(kv_a_norm),
        DIM_MIX_LATENT),
    MAT(B("attn_output.weight"), H("self_attn.o_proj.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_output.bias"), H("self_attn.o_proj.bias"), ROW_BIAS_O, L(bo), DIM_EMBD),
    VEC(B("exp_probs_b.bias"), H("mlp.gate.e_score_correction_bias"), ROW_MOE | ROW_OPTIONAL,
        L(choice_bias), DIM_EXPERTS),
    END
};

const struct arch archs_state[] = {
    /* Mamba: no attention and no feed-forward block. */
    { .gguf = "mamba",
      .hf = { "mamba" },
      .mix = MIX_MAMBA,
      .flags = ARCH_ROPELESS | ARCH_ALONE,
      .rows = ROWS(rows_ends_mamba, rows_mamba_both, rows_mamba),
      .eps = 1e-5,
      .eps_key = "layer_norm_epsilon",
      .n_ctx = 1 << 20,
      .act = ACT_SILU,
      .bias_key = "use_bias",
      .bias_keyed = BIAS_QKV | BIAS_O,
      .tied = true },
    /* Falcon Mamba: dt, b and c are normalized without weights. */
    { .gguf = "mamba",
      .hf = { "falcon_mamba" },
      .mix = MIX_MAMBA,
      .flags = ARCH_ROPELESS | ARCH_ALONE,
      .rows = ROWS(rows_ends_mamba, rows_mamba_both, rows_mamba),
      .eps = 1e-5,
      .eps_key = "layer_norm_epsilon",
      .n_ctx = 1 << 20,
      .act = ACT_SILU,
      .bias_key = "use_bias",
      .bias_keyed = BIAS_QKV | BIAS_O,
      .tied = true },
    /* Mamba 2: heads with a scalar decay. */
    { .gguf = "mamba2",
      .hf = { "mamba2" },
      .mix = MIX_MAMBA2,
      .flags = ARCH_ROPELESS | ARCH_ALONE,
      .rows = ROWS(rows_ends_mamba, rows_mamba_both, rows_mamba2),
      .eps = 1e-5,
      .eps_key = "layer_norm_epsilon",
      .n_ctx = 1 << 20,
      .act = ACT_SILU,
      .bias_key = "use_bias",
      .bias_keyed = BIAS_QKV | BIAS_O },
    /* LFM2: short convolutions in most layers, attention in the others. */
    { .gguf = "lfm2",
      .hf = { "lfm2" },
      .mix = MIX_SHORTCONV,
      .gguf_rope = ROPE_HALF,
      .rows = ROWS(rows_lfm2),
      .eps = 1e-5,
      .eps_key = "norm_eps",
      .theta = 1000000,
      .n_ctx = 128000,
      .act = ACT_SILU,
      .act_key = "",
      .bias_key = "conv_bias",
      .bias_keyed = BIAS_QKV | BIAS_O,
      .tied = true },
    /* LFM2 MoE: experts behind the first layers. */
    { .gguf = "lfm2moe",
      .hf = { "lfm2_moe" },
      .mix = MIX_SHORTCONV,
      .gguf_rope = ROPE_HALF,
      .rows = ROWS(rows_lfm2, rows_experts_lfm2),
      .eps = 1e-5,
      .eps_key = "norm_eps",
      .theta = 1000000,
      .n_ctx = 128000,
      .act = ACT_SILU,
      .act_key = "",
      .bias_key = "conv_bias",
      .bias_keyed = BIAS_QKV | BIAS_O,
      .tied = true,
      .moe = { .route = ROUTE_SIGMOID,
               .norm = true,
               .gguf_norm = true,
               .dense_ff = true,
               .first = 2 } },
    /* Qwen 3.5, dense: gated delta nets whose projections are stored apart. */
    { .gguf = "qwen35",
      .hf = { "qwen3_5_text", "qwen3_5" },
      .mix = MIX_DELTA,
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_NORM1 | ARCH_PARTIAL_ROPE | ARCH_TILED | ARCH_SECTIONS,
      .rows = ROWS(rows_ends, rows_attn_gated, rows_delta_apart, rows_mlp, rows_norm_late),
      .eps = 1e-6,
      .partial = 0.25,
      .n_ctx = 32768,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O },
    /* Qwen 3.5 MoE: the same with experts and a gated shared one. */
    { .gguf = "qwen35moe",
      .hf = { "qwen3_5_moe_text", "qwen3_5_moe" },
      .mix = MIX_DELTA,
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_NORM1 | ARCH_PARTIAL_ROPE | ARCH_TILED | ARCH_SECTIONS,
      .rows = ROWS(rows_ends, rows_attn_gated, rows_delta_apart, rows_norm_late, rows_experts,
                   rows_shared_gate),
      .eps = 1e-6,
      .partial = 0.25,
      .n_ctx = 32768,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O,
      .moe = { .norm = true, .norm_fixed = true, .gguf_norm = true, .dense_ff = true } },
    /* OLMo hybrid: delta nets with norms before the blocks, attention with norms after them. */
    { .gguf = "olmo_hybrid",
      .hf = { "olmo_hybrid" },
      .mix = MIX_DELTA,
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_QK_WHOLE | ARCH_OWN_KEYS,
      .rows = ROWS(rows_ends, rows_olmo_hybrid, rows_mlp),
      .eps = 1e-6,
      .theta = 500000,
      .n_ctx = 65536,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O },
    /* Qwen3-Next: gated delta nets in three of four layers, gated attention in the others,
     * experts. */
    { .gguf = "qwen3next",
      .hf = { "qwen3_next" },
      .mix = MIX_DELTA,
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_NORM1 | ARCH_PARTIAL_ROPE,
      .rows = ROWS(rows_ends, rows_attn_gated, rows_delta, rows_mlp, rows_norm_late, rows_experts,
                   rows_shared_gate),
      .eps = 1e-6,
      .partial = 0.25,
      .n_ctx = 32768,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O,
      .moe = { .norm = true, .gguf_norm = true, .dense_ff = true } },
    /* DeepSeek V2: latent attention, softmax routing, shared experts. */
    { .gguf = "deepseek2",
      .hf = { "deepseek_v2" },
      .mix = MIX_MLA,
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_ROPE_PAIRS,
      .rows = ROWS(rows_ends, rows_mla, rows_mla_up, rows_mlp, rows_norm_before, rows_experts,
                   rows_shared),
      .eps = 1e-6,
      .n_ctx = 2048,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O,
      .moe = { .norm_fixed = true, .dense_ff = true, .greedy = true } },
    /* DeepSeek V3 and R1: sigmoid routing with groups and a selection bias. */
    { .gguf = "deepseek2",
      .hf = { "deepseek_v3" },
      .mix = MIX_MLA,
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_ROPE_PAIRS,
      .rows = ROWS(rows_ends, rows_mla, rows_mla_up, rows_mlp, rows_norm_before, rows_experts,
                   rows_shared),
      .eps = 1e-6,
      .n_ctx = 4096,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O,
      .moe = { .route = ROUTE_SIGMOID, .norm = true, .dense_ff = true, .scale = 2.5f } },
    { 0 },
};
