/* arch_hybrid.c - layers with a state space model (Mamba) and layers with attention: jamba, bamba,
 * granite hybrid, falcon-h1 (both in every layer), nemotron-h (one block in every layer).
 * H: a name in a layer of a folder; X: a member of the mixer's weights. */
#include "model/arch_rows.h"

#define H(name) "layers.*." name
#define X(member) L(mix.member)
#define PLANE(gguf, hf, flags, at, rows, cols)               \
    {                                                        \
        gguf, hf, ROW_PLANE, flags, at, rows, cols, DIM_NONE \
    }

/* The ends of families that call the last norm final_layernorm. */
static const struct tensor_row rows_ends_final[] = {
    MAT("token_embd.weight", "embed_tokens.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "final_layernorm.weight", 0, M(out_norm), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD), END
};

static const struct tensor_row rows_norm_pre_ff[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), 0, L(attn_norm), DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("pre_ff_layernorm.weight"), 0, L(ffn_norm), DIM_EMBD), END
};

/* falcon-h1: llama.cpp's name of the second norm has no suffix. */
static const struct tensor_row rows_norm_falcon_h1[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), 0, L(attn_norm), DIM_EMBD),
    VEC(B("ffn_norm"), H("pre_ff_layernorm.weight"), 0, L(ffn_norm), DIM_EMBD), END
};

/* Attention in some of the layers. `path`: self_attn or mixer. */
#define ATTENTION(path)                                                                            \
    MAT(B("attn_q.weight"), H(path ".q_proj.weight"), ROW_ATTN | ROW_PERM_Q, L(wq), DIM_Q,         \
        DIM_EMBD),                                                                                 \
        MAT(B("attn_k.weight"), H(path ".k_proj.weight"), ROW_ATTN | ROW_PERM_K, L(wk), DIM_K,     \
            DIM_EMBD),                                                                             \
        MAT(B("attn_v.weight"), H(path ".v_proj.weight"), ROW_ATTN, L(wv), DIM_V, DIM_EMBD),       \
        MAT(B("attn_output.weight"), H(path ".o_proj.weight"), ROW_ATTN, L(wo), DIM_EMBD, DIM_Q),  \
        VEC(B("attn_q.bias"), H(path ".q_proj.bias"), ROW_ATTN | ROW_BIAS_QKV | ROW_PERM_Q, L(bq), \
            DIM_Q),                                                                                \
        VEC(B("attn_k.bias"), H(path ".k_proj.bias"), ROW_ATTN | ROW_BIAS_QKV | ROW_PERM_K, L(bk), \
            DIM_K),                                                                                \
        VEC(B("attn_v.bias"), H(path ".v_proj.bias"), ROW_ATTN | ROW_BIAS_QKV, L(bv), DIM_V),      \
        VEC(B("attn_output.bias"), H(path ".o_proj.bias"), ROW_ATTN | ROW_BIAS_O, L(bo), DIM_EMBD)

/* Input projection and convolution of both Mambas. `out`: where the output projection goes. */
#define MAMBA(path, out, out_bias)                                                              \
    MAT(B("ssm_in.weight"), H(path ".in_proj.weight"), ROW_MIXER, X(in), DIM_MIX_IN, DIM_EMBD), \
        VEC(B("ssm_in.bias"), H(path ".in_proj.bias"), ROW_MIXER | ROW_OPTIONAL, X(in_b),       \
            DIM_MIX_IN),                                                                        \
        PLANE(B("ssm_conv1d.weight"), H(path ".conv1d.weight"), ROW_MIXER, X(conv_w),           \
              DIM_MIX_CONV, DIM_MIX_TAPS),                                                      \
        VEC(B("ssm_conv1d.bias"), H(path ".conv1d.bias"), ROW_MIXER | ROW_OPTIONAL, X(conv_b),  \
            DIM_MIX_CONV),                                                                      \
        MAT(B("ssm_out.weight"), H(path ".out_proj.weight"), ROW_MIXER, out, DIM_EMBD,          \
            DIM_MIX_INNER),                                                                     \
        VEC(B("ssm_out.bias"), H(path ".out_proj.bias"), ROW_MIXER | ROW_OPTIONAL, out_bias,    \
            DIM_EMBD)

/* Mamba 2: scalars per head. */
#define MAMBA2(path)                                                                               \
    VEC(B("ssm_dt.bias"), H(path ".dt_bias"), ROW_MIXER, X(dt_b), DIM_MIX_HEADS),                  \
        PLANE(B("ssm_a"), H(path ".A_log"), ROW_MIXER | ROW_LOG, X(a), DIM_MIX_HEADS, DIM_ONE),    \
        PLANE(B("ssm_d"), H(path ".D"), ROW_MIXER, X(d), DIM_MIX_HEADS, DIM_ONE),                  \
    {                                                                                              \
        B("ssm_norm.weight"), H(path ".norm.weight"), ROW_FLAT, ROW_MIXER | ROW_SSM_NORM, X(norm), \
            DIM_MIX_INNER, DIM_NONE, DIM_NONE                                                      \
    }

static const struct tensor_row rows_attn_some[] = { ATTENTION("self_attn"), END };
static const struct tensor_row rows_mamba2_some[] = { MAMBA("mamba", L(wo), L(bo)), MAMBA2("mamba"),
                                                      END };
/* Beside attention: wo is the projection of attention. */
static const struct tensor_row rows_mamba2_beside[] = { MAMBA("mamba", X(out), X(out_b)),
                                                        MAMBA2("mamba"), END };

/* jamba: Mamba 1 with norms of dt, b and c. */
static const struct tensor_row rows_mamba1_some[] = {
    MAMBA("mamba", L(wo), L(bo)),
    MAT(B("ssm_x.weight"), H("mamba.x_proj.weight"), ROW_MIXER, X(x), DIM_MIX_LOW, DIM_MIX_INNER),
    MAT(B("ssm_dt.weight"), H("mamba.dt_proj.weight"), ROW_MIXER | ROW_F32, X(dt), DIM_MIX_INNER,
        DIM_MIX_RANK),
    VEC(B("ssm_dt.bias"), H("mamba.dt_proj.bias"), ROW_MIXER, X(dt_b), DIM_MIX_INNER),
    PLANE(B("ssm_a"), H("mamba.A_log"), ROW_MIXER | ROW_LOG, X(a), DIM_MIX_INNER, DIM_MIX_STATE),
    VEC(B("ssm_d"), H("mamba.D"), ROW_MIXER, X(d), DIM_MIX_INNER),
    VEC(B("ssm_dt_norm.weight"), H("mamba.dt_layernorm.weight"), ROW_MIXER, X(dt_norm),
        DIM_MIX_RANK),
    VEC(B("ssm_b_norm.weight"), H("mamba.b_layernorm.weight"), ROW_MIXER, X(b_norm), DIM_MIX_STATE),
    VEC(B("ssm_c_norm.weight"), H("mamba.c_layernorm.weight"), ROW_MIXER, X(c_norm), DIM_MIX_STATE),
    END
};

/* nemotron-h: every layer has a norm and one block, which is called mixer whatever it is. */
static const struct tensor_row rows_nemotron_h[] = {
    MAT("token_embd.weight", "embeddings.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "norm_f.weight", 0, M(out_norm), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    VEC(B("attn_norm.weight"), H("norm.weight"), ROW_MIXED, L(attn_norm), DIM_EMBD),
    VEC(B("attn_norm.weight"), H("norm.weight"), ROW_FFN, L(ffn_norm), DIM_EMBD),
    ATTENTION("mixer"),
    MAMBA("mixer", L(wo), L(bo)),
    MAMBA2("mixer"),
    MAT(B("ffn_up.weight"), H("mixer.up_proj.weight"), ROW_FFN | ROW_DENSE, L(up), DIM_FF,
        DIM_EMBD),
    VEC(B("ffn_up.bias"), H("mixer.up_proj.bias"), ROW_FFN | ROW_DENSE | ROW_BIAS_MLP, L(b_up),
        DIM_FF),
    MAT(B("ffn_down.weight"), H("mixer.down_proj.weight"), ROW_FFN | ROW_DENSE, L(down), DIM_EMBD,
        DIM_FF),
    VEC(B("ffn_down.bias"), H("mixer.down_proj.bias"), ROW_FFN | ROW_DENSE | ROW_BIAS_MLP,
        L(b_down), DIM_EMBD),
    MAT(B("ffn_gate_inp.weight"), H("mixer.gate.weight"), ROW_MOE | ROW_F32, L(router), DIM_EXPERTS,
        DIM_EMBD),
    VEC(B("exp_probs_b.bias"), H("mixer.gate.e_score_correction_bias"), ROW_MOE, L(choice_bias),
        DIM_EXPERTS),
    { B("ffn_up_exps.weight"), H("mixer.experts.#.up_proj.weight"), ROW_WHOLE, ROW_MOE, L(x_up),
      DIM_EXP_FF, DIM_EXP_IN, DIM_EXPERTS },
    { B("ffn_down_exps.weight"), H("mixer.experts.#.down_proj.weight"), ROW_WHOLE, ROW_MOE,
      L(x_down), DIM_EXP_IN, DIM_EXP_FF, DIM_EXPERTS },
    MAT(B("ffn_up_shexp.weight"), H("mixer.shared_experts.up_proj.weight"), ROW_MOE | ROW_SHARED,
        L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down_shexp.weight"), H("mixer.shared_experts.down_proj.weight"),
        ROW_MOE | ROW_SHARED, L(down), DIM_EMBD, DIM_FF),
    MAT(B("ffn_latent_down.weight"), H("mixer.fc1_latent_proj.weight"), ROW_MOE | ROW_LATENT,
        L(latent_in), DIM_EXP_IN, DIM_EMBD),
    VEC(B("ffn_latent_down.bias"), H("mixer.fc1_latent_proj.bias"),
        ROW_MOE | ROW_LATENT | ROW_BIAS_MLP, L(latent_in_b), DIM_EXP_IN),
    MAT(B("ffn_latent_up.weight"), H("mixer.fc2_latent_proj.weight"), ROW_MOE | ROW_LATENT,
        L(latent_out), DIM_EMBD, DIM_EXP_IN),
    VEC(B("ffn_latent_up.bias"), H("mixer.fc2_latent_proj.bias"),
        ROW_MOE | ROW_LATENT | ROW_BIAS_MLP, L(latent_out_b), DIM_EMBD),
    END
};

const struct arch archs_hybrid[] = {
    /* Granite 4: Mamba 2 in most layers, attention in the others, granite's multipliers, and experts
     * beside a shared block. Models with attention only have the names of granite. */
    { .gguf = "granitehybrid",
      .gguf_also = { "granite", "granitemoe" },
      .hf = { "granitemoehybrid" },
      .mix = MIX_MAMBA2,
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_HYBRID | ARCH_MULTIPLIERS,
      .rows = ROWS(rows_ends, rows_attn_some, rows_mamba2_some, rows_norm_before,
                   rows_experts_granite, rows_shared_granite),
      .eps = 1e-6,
      .n_ctx = 2048,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O,
      .moe = { .route = ROUTE_TOP_SOFTMAX, .norm_fixed = true } },
    /* Bamba: the same without multipliers and experts. */
    { .gguf = "granitehybrid",
      .hf = { "bamba" },
      .mix = MIX_MAMBA2,
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_HYBRID | ARCH_PARTIAL_ROPE,
      .rows = ROWS(rows_ends_final, rows_attn_some, rows_mamba2_some, rows_mlp_forward,
                   rows_norm_pre_ff),
      .eps = 1e-5,
      .partial = 0.5,
      .n_ctx = 262144,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O },
    /* Falcon-H1: Mamba 2 and attention beside each other in every layer. */
    { .gguf = "falcon-h1",
      .hf = { "falcon_h1" },
      .mix = MIX_MAMBA2,
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_HYBRID,
      .rows = ROWS(rows_ends_final, rows_attn_some, rows_mamba2_beside, rows_mlp_forward,
                   rows_norm_falcon_h1),
      .eps = 1e-5,
      .n_ctx = 8192,
      .act = ACT_SILU,
      .bias_keyed = BIAS_QKV | BIAS_O },
    /* Jamba: Mamba 1, attention without rotary embedding, experts in some layers. */
    { .gguf = "jamba",
      .hf = { "jamba" },
      .mix = MIX_MAMBA,
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_HYBRID | ARCH_ROPELESS,
      .rows = ROWS(rows_ends_final, rows_attn_some, rows_mamba1_some, rows_mlp_forward,
                   rows_norm_pre_ff, rows_experts_jamba),
      .eps = 1e-6,
      .n_ctx = 262144,
      .act = ACT_SILU,
      .moe = { .norm_fixed = true } },
    /* Nemotron-H: one block in every layer: Mamba 2, attention, feed-forward or experts. */
    { .gguf = "nemotron_h",
      .gguf_also = { "nemotron_h_moe" },
      .hf = { "nemotron_h" },
      .mix = MIX_MAMBA2,
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_HYBRID | ARCH_ROPELESS,
      .rows = ROWS(rows_nemotron_h),
      .eps = 1e-5,
      .eps_key = "layer_norm_epsilon",
      .n_ctx = 4096,
      .act = ACT_RELU2,
      .act_key = "mlp_hidden_act",
      .bias_keyed = BIAS_QKV | BIAS_O,
      .moe = { .route = ROUTE_SIGMOID, .norm = true, .dense_ff = true } },
    { 0 },
};
