/* arch_rows_moe.c - tensors of mixtures of experts under the names of single families: routers,
 * experts, shared experts, selection biases. The usual ones are in arch_rows.c. */
#include "model/arch_rows.h"

#define H(name) "layers.*." name

/* clang-format off */
#define ROUTER(hf) MAT(B("ffn_gate_inp.weight"), H(hf), ROW_MOE | ROW_F32, L(router), DIM_EXPERTS, DIM_EMBD)
#define STACK(gguf, hf, flags, at, rows, cols) \
    { gguf, hf, ROW_WHOLE, ROW_MOE | (flags), at, rows, cols, DIM_EXPERTS }
/* A tensor per expert: gate, up, down. */
#define EXPERTS(gate, up, down) \
    STACK(B("ffn_gate_exps.weight"), H(gate ".weight"), 0, L(x_gate), DIM_EXP_FF, DIM_EMBD), \
    STACK(B("ffn_up_exps.weight"), H(up ".weight"), 0, L(x_up), DIM_EXP_FF, DIM_EMBD), \
    STACK(B("ffn_down_exps.weight"), H(down ".weight"), 0, L(x_down), DIM_EMBD, DIM_EXP_FF)
/* The same, or stacked with gate and up packed, as newer folders have them. */
#define EXPERTS_EITHER \
    STACK(B("ffn_gate_exps.weight"), H("mlp.experts.#.gate_proj.weight"), ROW_SPLIT, L(x_gate), DIM_EXP_FF, \
          DIM_EMBD), \
    STACK(B("ffn_up_exps.weight"), H("mlp.experts.#.up_proj.weight"), ROW_SPLIT, L(x_up), DIM_EXP_FF, \
          DIM_EMBD), \
    STACK(B("ffn_down_exps.weight"), H("mlp.experts.#.down_proj.weight"), ROW_SPLIT, L(x_down), DIM_EMBD, \
          DIM_EXP_FF), \
    { NULL, H("mlp.experts.gate_up_proj"), ROW_GATE_UP, ROW_MOE | ROW_OPTIONAL, L(x_gate), DIM_EXP_2FF, \
      DIM_EMBD, DIM_EXPERTS }, \
    STACK(NULL, H("mlp.experts.down_proj"), ROW_OPTIONAL, L(x_down), DIM_EMBD, DIM_EXP_FF)
/* Stacked, gate and up packed. */
#define EXPERTS_PACKED(gate_up, down, flags) \
    { NULL, H(gate_up), ROW_GATE_UP, ROW_MOE | (flags), L(x_gate), DIM_EXP_2FF, DIM_EMBD, DIM_EXPERTS }, \
    STACK(NULL, H(down), flags, L(x_down), DIM_EMBD, DIM_EXP_FF), \
    STACK(B("ffn_gate_exps.weight"), NULL, 0, L(x_gate), DIM_EXP_FF, DIM_EMBD), \
    STACK(B("ffn_up_exps.weight"), NULL, 0, L(x_up), DIM_EXP_FF, DIM_EMBD), \
    STACK(B("ffn_down_exps.weight"), NULL, 0, L(x_down), DIM_EMBD, DIM_EXP_FF)
#define SHARED(path) \
    MAT(B("ffn_gate_shexp.weight"), H(path ".gate_proj.weight"), ROW_MOE | ROW_SHARED, L(gate), DIM_FF, \
        DIM_EMBD), \
    MAT(B("ffn_up_shexp.weight"), H(path ".up_proj.weight"), ROW_MOE | ROW_SHARED, L(up), DIM_FF, DIM_EMBD), \
    MAT(B("ffn_down_shexp.weight"), H(path ".down_proj.weight"), ROW_MOE | ROW_SHARED, L(down), DIM_EMBD, \
        DIM_FF)
#define CHOICE(hf, flags) VEC(B("exp_probs_b.bias"), H(hf), ROW_MOE | (flags), L(choice_bias), DIM_EXPERTS)

const struct tensor_row rows_experts_wg[] = { /* hunyuan_v1_moe */
    ROUTER("mlp.gate.wg.weight"), EXPERTS_EITHER, SHARED("mlp.shared_mlp"), END
};
const struct tensor_row rows_experts_hy[] = { /* hy_v3 */
    ROUTER("mlp.router.gate.weight"), EXPERTS_EITHER, SHARED("mlp.shared_mlp"),
    CHOICE("mlp.expert_bias", 0), END
};
const struct tensor_row rows_experts_afmoe[] = {
    ROUTER("mlp.router.gate.weight"), EXPERTS_EITHER, SHARED("mlp.shared_experts"),
    CHOICE("mlp.expert_bias", 0), END
};
const struct tensor_row rows_experts_lfm2[] = {
    ROUTER("feed_forward.gate.weight"),
    EXPERTS("feed_forward.experts.#.w1", "feed_forward.experts.#.w3", "feed_forward.experts.#.w2"),
    CHOICE("feed_forward.expert_bias", ROW_OPTIONAL), END
};
const struct tensor_row rows_experts_jamba[] = {
    ROUTER("feed_forward.router.weight"),
    EXPERTS("feed_forward.experts.#.gate_proj", "feed_forward.experts.#.up_proj",
            "feed_forward.experts.#.down_proj"), END
};
const struct tensor_row rows_experts_llama4[] = {
    ROUTER("feed_forward.router.weight"),
    EXPERTS_PACKED("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", ROW_TRANSPOSED),
    SHARED("feed_forward.shared_expert"), END
};
const struct tensor_row rows_experts_flipped[] = { /* qwen3_vl_moe */
    ROUTER("mlp.gate.weight"),
    EXPERTS_PACKED("mlp.experts.gate_up_proj", "mlp.experts.down_proj", ROW_TRANSPOSED), END
};
const struct tensor_row rows_experts_minimax3[] = { /* with the indexer of its sparse layers */
    ROUTER("block_sparse_moe.gate.weight"),
    EXPERTS("block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",
            "block_sparse_moe.experts.#.w2"),
    SHARED("block_sparse_moe.shared_experts"),
    CHOICE("block_sparse_moe.e_score_correction_bias", 0),
    MAT(B("indexer.q_proj.weight"), H("self_attn.index_q_proj.weight"), ROW_INDEX, L(index.q), DIM_INDEX_Q,
        DIM_QUERY_IN),
    MAT(B("indexer.k_proj.weight"), H("self_attn.index_k_proj.weight"), ROW_INDEX, L(index.k), DIM_INDEX_K,
        DIM_EMBD),
    VEC(B("indexer.q_norm.weight"), H("self_attn.index_q_norm.weight"), ROW_INDEX | ROW_NORM,
        L(index.q_norm), DIM_INDEX_K),
    VEC(B("indexer.k_norm.weight"), H("self_attn.index_k_norm.weight"), ROW_INDEX | ROW_NORM,
        L(index.k_norm), DIM_INDEX_K), END
};
const struct tensor_row rows_experts_longcat[] = {
    MAT(B("ffn_gate_inp.weight"), H("mlp.router.classifier.weight"), ROW_MOE | ROW_F32, L(router), DIM_ROUTES,
        DIM_EMBD),
    EXPERTS_EITHER,
    VEC(B("exp_probs_b.bias"), H("mlp.router.e_score_correction_bias"), ROW_MOE, L(choice_bias), DIM_ROUTES),
    END
};
const struct tensor_row rows_experts_gemma4[] = {
    MAT(B("ffn_gate_inp.weight"), H("router.proj.weight"), ROW_MOE | ROW_F32, L(router), DIM_EXPERTS,
        DIM_EMBD),
    VEC(B("ffn_gate_inp.scale"), H("router.scale"), ROW_MOE, L(router_norm), DIM_EMBD),
    VEC(B("ffn_down_exps.scale"), H("router.per_expert_scale"), ROW_MOE, L(expert_scale), DIM_EXPERTS),
    { NULL, H("experts.gate_up_proj"), ROW_GATE_UP, ROW_MOE, L(x_gate), DIM_EXP_2FF, DIM_EMBD, DIM_EXPERTS },
    { B("ffn_gate_up_exps.weight"), NULL, ROW_GATE_UP, ROW_MOE | ROW_OPTIONAL, L(x_gate), DIM_EXP_2FF,
      DIM_EMBD, DIM_EXPERTS },
    STACK(NULL, H("experts.down_proj"), 0, L(x_down), DIM_EMBD, DIM_EXP_FF),
    STACK(B("ffn_gate_exps.weight"), NULL, ROW_SPLIT, L(x_gate), DIM_EXP_FF, DIM_EMBD),
    STACK(B("ffn_up_exps.weight"), NULL, ROW_SPLIT, L(x_up), DIM_EXP_FF, DIM_EMBD),
    STACK(B("ffn_down_exps.weight"), NULL, 0, L(x_down), DIM_EMBD, DIM_EXP_FF),
    VEC(B("post_ffw_norm_1.weight"), H("post_feedforward_layernorm_1.weight"), ROW_MOE, L(dense_post_norm),
        DIM_EMBD),
    VEC(B("post_ffw_norm_2.weight"), H("post_feedforward_layernorm_2.weight"), ROW_MOE, L(x_post_norm),
        DIM_EMBD),
    VEC(B("pre_ffw_norm_2.weight"), H("pre_feedforward_layernorm_2.weight"), ROW_MOE, L(x_norm),
        DIM_EMBD), END
};

/* granite: the shared block has gate and up packed; in models without experts it is the dense one. */
const struct tensor_row rows_shared_granite[] = {
    { NULL, H("shared_mlp.input_linear.weight"), ROW_GATE_UP, 0, L(gate), DIM_2FF, DIM_EMBD, DIM_NONE },
    MAT(NULL, H("shared_mlp.output_linear.weight"), 0, L(down), DIM_EMBD, DIM_FF),
    MAT(B("ffn_gate_shexp.weight"), NULL, ROW_MOE | ROW_SHARED, L(gate), DIM_FF, DIM_EMBD),
    MAT(B("ffn_up_shexp.weight"), NULL, ROW_MOE | ROW_SHARED, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down_shexp.weight"), NULL, ROW_MOE | ROW_SHARED, L(down), DIM_EMBD, DIM_FF),
    MAT(B("ffn_gate.weight"), NULL, ROW_DENSE, L(gate), DIM_FF, DIM_EMBD),
    MAT(B("ffn_up.weight"), NULL, ROW_DENSE, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down.weight"), NULL, ROW_DENSE, L(down), DIM_EMBD, DIM_FF),
    VEC(B("ffn_gate.bias"), NULL, ROW_DENSE | ROW_BIAS_MLP, L(b_gate), DIM_FF), /* bamba */
    VEC(B("ffn_up.bias"), NULL, ROW_DENSE | ROW_BIAS_MLP, L(b_up), DIM_FF),
    VEC(B("ffn_down.bias"), NULL, ROW_DENSE | ROW_BIAS_MLP, L(b_down), DIM_EMBD), END
};

/* Selection biases of the router, under other names than rows_choice_bias. */
const struct tensor_row rows_choice_mlp[] = { CHOICE("mlp.e_score_correction_bias", 0), END };
const struct tensor_row rows_choice_w123[] = { CHOICE("block_sparse_moe.e_score_correction_bias", 0), END };
const struct tensor_row rows_choice_statics[] = {
    { B("exp_probs_b.bias"), H("mlp.moe_statics.e_score_correction_bias"), ROW_FLAT, ROW_MOE, L(choice_bias),
      DIM_EXPERTS, DIM_NONE, DIM_NONE }, END
};

/* The dense block of families that call it feed_forward. */
const struct tensor_row rows_mlp_forward[] = {
    MAT(B("ffn_gate.weight"), H("feed_forward.gate_proj.weight"), ROW_DENSE, L(gate), DIM_FF, DIM_EMBD),
    MAT(B("ffn_up.weight"), H("feed_forward.up_proj.weight"), ROW_DENSE, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down.weight"), H("feed_forward.down_proj.weight"), ROW_DENSE, L(down), DIM_EMBD, DIM_FF),
    VEC(B("ffn_gate.bias"), H("feed_forward.gate_proj.bias"), ROW_DENSE | ROW_BIAS_MLP, L(b_gate), DIM_FF),
    VEC(B("ffn_up.bias"), H("feed_forward.up_proj.bias"), ROW_DENSE | ROW_BIAS_MLP, L(b_up), DIM_FF),
    VEC(B("ffn_down.bias"), H("feed_forward.down_proj.bias"), ROW_DENSE | ROW_BIAS_MLP, L(b_down),
        DIM_EMBD), END
};

/* The dense block, also in layers with experts (gemma 4). */
const struct tensor_row rows_mlp_always[] = {
    MAT(B("ffn_gate.weight"), H("mlp.gate_proj.weight"), 0, L(gate), DIM_FF, DIM_EMBD),
    MAT(B("ffn_up.weight"), H("mlp.up_proj.weight"), 0, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down.weight"), H("mlp.down_proj.weight"), 0, L(down), DIM_EMBD, DIM_FF), END
};

/* ---- other rows of these families ---- */

const struct tensor_row rows_xielu[] = { /* apertus: the parameters of the activation */
    { NULL, H("mlp.act_fn.alpha_p"), ROW_SCALE, 0, L(xielu.a_p), DIM_ONE, DIM_NONE, DIM_NONE },
    { NULL, H("mlp.act_fn.alpha_n"), ROW_SCALE, 0, L(xielu.a_n), DIM_ONE, DIM_NONE, DIM_NONE },
    { NULL, H("mlp.act_fn.beta"), ROW_SCALE, 0, L(xielu.b), DIM_ONE, DIM_NONE, DIM_NONE },
    { NULL, H("mlp.act_fn.eps"), ROW_SCALE, 0, L(xielu.eps), DIM_ONE, DIM_NONE, DIM_NONE }, END
};
const struct tensor_row rows_norm_apertus[] = {
    VEC(B("attn_norm.weight"), H("attention_layernorm.weight"), 0, L(attn_norm), DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("feedforward_layernorm.weight"), 0, L(ffn_norm), DIM_EMBD), END
};
const struct tensor_row rows_norm_afmoe[] = { /* before and after each block */
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), 0, L(attn_norm), DIM_EMBD),
    VEC(B("post_attention_norm.weight"), H("post_attention_layernorm.weight"), 0, L(attn_post_norm),
        DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("pre_mlp_layernorm.weight"), 0, L(ffn_norm), DIM_EMBD),
    VEC(B("post_ffw_norm.weight"), H("post_mlp_layernorm.weight"), 0, L(ffn_post_norm), DIM_EMBD), END
};
const struct tensor_row rows_attn_gate[] = { /* the gate of the attention output */
    MAT(B("attn_gate.weight"), H("self_attn.gate_proj.weight"), 0, L(wg), DIM_Q, DIM_EMBD), END
};
const struct tensor_row rows_sinks_some[] = { /* in the layers that have them */
    VEC(B("attn_sinks.weight"), H("self_attn.attention_sink_bias"), ROW_OPTIONAL, L(sinks), DIM_HEADS), END
};
const struct tensor_row rows_mlp_bare[] = { /* nanochat */
    MAT(B("ffn_up.weight"), H("mlp.fc1.weight"), 0, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down.weight"), H("mlp.fc2.weight"), 0, L(down), DIM_EMBD, DIM_FF), END
};
/* clang-format on */
