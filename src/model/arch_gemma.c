/* arch_gemma.c - gemma 3n and 4: per-layer inputs, layers that share keys and values. */
#include "model/arch_rows.h"

#define H(name) "layers.*." name

/* Per-layer inputs: an embedding of their own and a projection of the usual one; in every layer a
 * gate, a projection and a norm. */
static const struct tensor_row rows_layer_inputs[] = {
    MAT("per_layer_token_embd.weight", "embed_tokens_per_layer.weight", ROW_FIRST | ROW_PLE,
        M(ple_embd), DIM_PLE_VOCAB, DIM_PLES),
    MAT("per_layer_model_proj.weight", "per_layer_model_projection.weight", ROW_FIRST | ROW_PLE,
        M(ple_in), DIM_PLES, DIM_EMBD),
    VEC("per_layer_proj_norm.weight", "per_layer_projection_norm.weight", ROW_FIRST | ROW_PLE,
        M(ple_in_norm), DIM_PLE),
    MAT(B("inp_gate.weight"), H("per_layer_input_gate.weight"), ROW_PLE, L(ple_gate), DIM_PLE,
        DIM_EMBD),
    MAT(B("proj.weight"), H("per_layer_projection.weight"), ROW_PLE, L(ple_proj), DIM_EMBD,
        DIM_PLE),
    VEC(B("post_norm.weight"), H("post_per_layer_input_norm.weight"), ROW_PLE, L(ple_norm),
        DIM_EMBD),
    END
};

/* The factor of a layer's output. */
static const struct tensor_row rows_layer_scale[] = { { B("layer_output_scale.weight"),
                                                        H("layer_scalar"), ROW_SCALE, ROW_OPTIONAL,
                                                        L(out_scale), DIM_ONE, DIM_NONE, DIM_NONE },
                                                      END };

/* Residual streams and the low-rank residual of gemma 3n. */
static const struct tensor_row rows_altup[] = {
    { "altup_proj.weight", "altup_projections.#.weight", ROW_WHOLE, ROW_FIRST, M(altup_in),
      DIM_EMBD, DIM_EMBD, DIM_STREAMS1 },
    { "altup_unembd_proj.weight", "altup_unembed_projections.#.weight", ROW_WHOLE, ROW_FIRST,
      M(altup_out), DIM_EMBD, DIM_EMBD, DIM_STREAMS1 },
    MAT(B("altup_router.weight"), H("altup.modality_router.weight"), ROW_F32, L(altup_router),
        DIM_STREAMS, DIM_EMBD),
    MAT(B("altup_predict_coef.weight"), H("altup.prediction_coefs.weight"), ROW_F32,
        L(altup_predict), DIM_STREAMS2, DIM_STREAMS),
    MAT(B("altup_correct_coef.weight"), H("altup.correction_coefs.weight"), ROW_F32,
        L(altup_correct), DIM_STREAMS, DIM_STREAMS),
    VEC(B("altup_router_norm.weight"), H("altup.router_norm.weight"), 0, L(altup_norm), DIM_EMBD),
    VEC(B("altup_correct_scale.weight"), H("altup.correct_output_scale"), 0, L(altup_scale),
        DIM_EMBD),
    MAT(B("laurel_l.weight"), H("laurel.linear_left.weight"), 0, L(laurel_left), DIM_LAUREL,
        DIM_EMBD),
    MAT(B("laurel_r.weight"), H("laurel.linear_right.weight"), 0, L(laurel_right), DIM_EMBD,
        DIM_LAUREL),
    VEC(B("laurel_post_norm.weight"), H("laurel.post_laurel_norm.weight"), 0, L(laurel_norm),
        DIM_EMBD),
    END
};

const struct arch archs_gemma[] = {
    /* Gemma 3n: four residual streams, sparse gates in the first layers. */
    { .gguf = "gemma3n",
      .hf = { "gemma3n_text", "gemma3n" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_EMBD_SQRT | ARCH_LAYER_TYPES | ARCH_TWO_ROPES | ARCH_LOGIT_CAP |
               ARCH_VALUE_NORM | ARCH_OWN_KEYS,
      .rows = ROWS(rows_ends, rows_attn, rows_mlp, rows_norm_around, rows_norm_after, rows_qk_norm,
                   rows_layer_inputs, rows_altup),
      .eps = 1e-6,
      .theta = 1000000,
      .theta_window = 10000,
      .n_ctx = 32768,
      .window = 512,
      .window_every = 5,
      .logit_cap = 30,
      .act = ACT_GELU_TANH,
      .act_key = "hidden_activation",
      .tied = true,
      .bias_keyed = BIAS_QKV | BIAS_O },
    /* Gemma 4: q, k and v norms, larger heads in layers without a window, experts beside the dense
     * block in some models. */
    { .gguf = "gemma4",
      .hf = { "gemma4_text", "gemma4" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_EMBD_SQRT | ARCH_LAYER_TYPES | ARCH_TWO_ROPES | ARCH_LOGIT_CAP |
               ARCH_VALUE_NORM | ARCH_PARTIAL_ROPE | ARCH_OWN_KEYS,
      .rows = ROWS(rows_ends, rows_attn, rows_mlp_always, rows_norm_around, rows_norm_after,
                   rows_qk_norm, rows_layer_inputs, rows_layer_scale, rows_experts_gemma4),
      .eps = 1e-6,
      .theta = 1000000,
      .theta_window = 10000,
      .partial = 1,
      .n_ctx = 131072,
      .window = 512,
      .window_every = 6,
      .act = ACT_GELU_TANH,
      .act_key = "hidden_activation",
      .tied = true,
      .bias_keyed = BIAS_QKV | BIAS_O,
      .moe = { .norm = true, .norm_fixed = true, .gguf_norm = true, .dense_ff = true } },
    { 0 },
};
