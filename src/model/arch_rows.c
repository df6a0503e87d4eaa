/* arch_rows.c - tensors of llama and related families. H: a name in a layer of a folder. */
#include "model/arch_rows.h"

#define H(name) "layers.*." name

/* clang-format off */
const struct tensor_row rows_ends[] = {
    MAT("token_embd.weight", "embed_tokens.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "norm.weight", ROW_NORM, M(out_norm), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    VEC("output.bias", "lm_head.bias", ROW_HEAD | ROW_BIAS_HEAD, M(head_b), DIM_VOCAB),
    END
};

const struct tensor_row rows_ends_bias[] = {
    MAT("token_embd.weight", "embed_tokens.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "norm.weight", ROW_NORM, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "norm.bias", 0, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    VEC("output.bias", "lm_head.bias", ROW_HEAD | ROW_BIAS_HEAD, M(head_b), DIM_VOCAB),
    END
};

/* olmo: the final norm has no weight. */
const struct tensor_row rows_ends_bare[] = {
    MAT("token_embd.weight", "embed_tokens.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    END
};

/* ---- attention ---- */

/* Separate q, k, v, or packed in some GGUF files. GGUF reorders the rows of q and k for
 * ROPE_PAIR. */
const struct tensor_row rows_attn[] = {
    MAT(B("attn_q.weight"), H("self_attn.q_proj.weight"), ROW_PERM_Q | ROW_SPLIT, L(wq), DIM_Q, DIM_EMBD),
    MAT(B("attn_k.weight"), H("self_attn.k_proj.weight"), ROW_PERM_K | ROW_SPLIT, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), H("self_attn.v_proj.weight"), ROW_SPLIT, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), H("self_attn.o_proj.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_q.bias"), H("self_attn.q_proj.bias"), ROW_BIAS_QKV | ROW_PERM_Q | ROW_SPLIT, L(bq), DIM_Q),
    VEC(B("attn_k.bias"), H("self_attn.k_proj.bias"), ROW_BIAS_QKV | ROW_PERM_K | ROW_SPLIT, L(bk), DIM_K),
    VEC(B("attn_v.bias"), H("self_attn.v_proj.bias"), ROW_BIAS_QKV | ROW_SPLIT, L(bv), DIM_V),
    VEC(B("attn_output.bias"), H("self_attn.o_proj.bias"), ROW_BIAS_O | ROW_RESIDUAL, L(bo), DIM_EMBD),
    { B("attn_qkv.weight"), NULL, ROW_QKV, ROW_OPTIONAL, L(wq), DIM_QKV, DIM_EMBD, DIM_NONE },
    { B("attn_qkv.bias"), NULL, ROW_QKV, ROW_OPTIONAL, L(bq), DIM_QKV, DIM_NONE, DIM_NONE },
    END
};

/* phi3. */
const struct tensor_row rows_attn_packed[] = {
    { B("attn_qkv.weight"), H("self_attn.qkv_proj.weight"), ROW_QKV, 0, L(wq), DIM_QKV, DIM_EMBD, DIM_NONE },
    MAT(B("attn_output.weight"), H("self_attn.o_proj.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    END
};

/* phi: the output projection is called "dense". */
const struct tensor_row rows_attn_phi[] = {
    MAT(B("attn_q.weight"), H("self_attn.q_proj.weight"), ROW_SPLIT, L(wq), DIM_Q, DIM_EMBD),
    MAT(B("attn_k.weight"), H("self_attn.k_proj.weight"), ROW_SPLIT, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), H("self_attn.v_proj.weight"), ROW_SPLIT, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), H("self_attn.dense.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_q.bias"), H("self_attn.q_proj.bias"), ROW_BIAS_QKV | ROW_SPLIT, L(bq), DIM_Q),
    VEC(B("attn_k.bias"), H("self_attn.k_proj.bias"), ROW_BIAS_QKV | ROW_SPLIT, L(bk), DIM_K),
    VEC(B("attn_v.bias"), H("self_attn.v_proj.bias"), ROW_BIAS_QKV | ROW_SPLIT, L(bv), DIM_V),
    VEC(B("attn_output.bias"), H("self_attn.dense.bias"), ROW_BIAS_O, L(bo), DIM_EMBD),
    { B("attn_qkv.weight"), NULL, ROW_QKV, ROW_OPTIONAL, L(wq), DIM_QKV, DIM_EMBD, DIM_NONE },
    { B("attn_qkv.bias"), NULL, ROW_QKV, ROW_OPTIONAL, L(bq), DIM_QKV, DIM_NONE, DIM_NONE },
    END
};

/* gpt-oss: attention sinks. */
const struct tensor_row rows_sinks[] = {
    VEC(B("attn_sinks.weight"), H("self_attn.sinks"), 0, L(sinks), DIM_HEADS),
    END
};

/* One weight for all heads. */
const struct tensor_row rows_qk_norm[] = {
    VEC(B("attn_q_norm.weight"), H("self_attn.q_norm.weight"), ROW_NORM, L(q_norm), DIM_HEAD),
    VEC(B("attn_k_norm.weight"), H("self_attn.k_norm.weight"), ROW_NORM, L(k_norm), DIM_HEAD),
    END
};

/* The same, if the key qk_key is true. */
const struct tensor_row rows_qk_norm_keyed[] = {
    VEC(B("attn_q_norm.weight"), H("self_attn.q_norm.weight"), ROW_NORM | ROW_QK, L(q_norm), DIM_HEAD),
    VEC(B("attn_k_norm.weight"), H("self_attn.k_norm.weight"), ROW_NORM | ROW_QK, L(k_norm), DIM_HEAD),
    END
};

/* One norm over all heads together. */
const struct tensor_row rows_qk_norm_whole[] = {
    VEC(B("attn_q_norm.weight"), H("self_attn.q_norm.weight"), ROW_NORM, L(q_norm), DIM_Q),
    VEC(B("attn_k_norm.weight"), H("self_attn.k_norm.weight"), ROW_NORM, L(k_norm), DIM_K),
    END
};

/* A weight for each head, in one tensor. */
const struct tensor_row rows_qk_norm_each[] = {
    { B("attn_q_norm.weight"), H("self_attn.q_norm.weight"), ROW_WHOLE, ROW_QK, L(q_norm), DIM_HEAD, DIM_NONE,
      DIM_HEADS },
    { B("attn_k_norm.weight"), H("self_attn.k_norm.weight"), ROW_WHOLE, ROW_QK, L(k_norm), DIM_HEAD, DIM_NONE,
      DIM_KV_HEADS },
    END
};

/* A weight for each head, in a tensor of its own in folders. */
const struct tensor_row rows_qk_norm_heads[] = {
    { B("attn_q_norm.weight"), H("self_attn.q_layernorm.norms.#.weight"), ROW_WHOLE, ROW_QK, L(q_norm),
      DIM_HEAD, DIM_NONE, DIM_HEADS },
    { B("attn_k_norm.weight"), H("self_attn.k_layernorm.norms.#.weight"), ROW_WHOLE, ROW_QK, L(k_norm),
      DIM_HEAD, DIM_NONE, DIM_KV_HEADS },
    END
};

/* LayerNorm with bias. */
const struct tensor_row rows_qk_norm_phi[] = {
    VEC(B("attn_q_norm.weight"), H("self_attn.q_layernorm.weight"), ROW_QK, L(q_norm), DIM_HEAD),
    VEC(B("attn_q_norm.bias"), H("self_attn.q_layernorm.bias"), ROW_QK, L(q_norm_b), DIM_HEAD),
    VEC(B("attn_k_norm.weight"), H("self_attn.k_layernorm.weight"), ROW_QK, L(k_norm), DIM_HEAD),
    VEC(B("attn_k_norm.bias"), H("self_attn.k_layernorm.bias"), ROW_QK, L(k_norm_b), DIM_HEAD),
    END
};

const struct tensor_row rows_qk_norm_hunyuan[] = {
    VEC(B("attn_q_norm.weight"), H("self_attn.query_layernorm.weight"), 0, L(q_norm), DIM_HEAD),
    VEC(B("attn_k_norm.weight"), H("self_attn.key_layernorm.weight"), 0, L(k_norm), DIM_HEAD),
    END
};

/* ---- feed-forward ---- */

/* Gated: down(act(gate x) * up x). */
const struct tensor_row rows_mlp[] = {
    MAT(B("ffn_gate.weight"), H("mlp.gate_proj.weight"), ROW_DENSE, L(gate), DIM_FF, DIM_EMBD),
    MAT(B("ffn_up.weight"), H("mlp.up_proj.weight"), ROW_DENSE, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down.weight"), H("mlp.down_proj.weight"), ROW_DENSE, L(down), DIM_EMBD, DIM_FF),
    VEC(B("ffn_gate.bias"), H("mlp.gate_proj.bias"), ROW_DENSE | ROW_BIAS_MLP, L(b_gate), DIM_FF),
    VEC(B("ffn_up.bias"), H("mlp.up_proj.bias"), ROW_DENSE | ROW_BIAS_MLP, L(b_up), DIM_FF),
    VEC(B("ffn_down.bias"), H("mlp.down_proj.bias"), ROW_DENSE | ROW_BIAS_MLP | ROW_RESIDUAL, L(b_down),
        DIM_EMBD),
    END
};

/* Without a gate: down(act(up x)). */
const struct tensor_row rows_mlp_plain[] = {
    MAT(B("ffn_up.weight"), H("mlp.up_proj.weight"), 0, L(up), DIM_FF, DIM_EMBD),
    MAT(B("ffn_down.weight"), H("mlp.down_proj.weight"), 0, L(down), DIM_EMBD, DIM_FF),
    VEC(B("ffn_up.bias"), H("mlp.up_proj.bias"), ROW_BIAS_MLP, L(b_up), DIM_FF),
    VEC(B("ffn_down.bias"), H("mlp.down_proj.bias"), ROW_BIAS_MLP, L(b_down), DIM_EMBD),
    END
};

/* Gate and up in one tensor. */
const struct tensor_row rows_mlp_packed[] = {
    { B("ffn_up.weight"), H("mlp.gate_up_proj.weight"), ROW_GATE_UP, 0, L(gate), DIM_2FF, DIM_EMBD,
      DIM_NONE },
    MAT(B("ffn_down.weight"), H("mlp.down_proj.weight"), 0, L(down), DIM_EMBD, DIM_FF),
    END
};

const struct tensor_row rows_mlp_phi[] = {
    MAT(B("ffn_up.weight"), H("mlp.fc1.weight"), 0, L(up), DIM_FF, DIM_EMBD),
    VEC(B("ffn_up.bias"), H("mlp.fc1.bias"), 0, L(b_up), DIM_FF),
    MAT(B("ffn_down.weight"), H("mlp.fc2.weight"), 0, L(down), DIM_EMBD, DIM_FF),
    VEC(B("ffn_down.bias"), H("mlp.fc2.bias"), 0, L(b_down), DIM_EMBD),
    END
};

const struct tensor_row rows_mlp_starcoder2[] = {
    MAT(B("ffn_up.weight"), H("mlp.c_fc.weight"), 0, L(up), DIM_FF, DIM_EMBD),
    VEC(B("ffn_up.bias"), H("mlp.c_fc.bias"), ROW_BIAS_MLP, L(b_up), DIM_FF),
    MAT(B("ffn_down.weight"), H("mlp.c_proj.weight"), 0, L(down), DIM_EMBD, DIM_FF),
    VEC(B("ffn_down.bias"), H("mlp.c_proj.bias"), ROW_BIAS_MLP, L(b_down), DIM_EMBD),
    END
};

/* ---- norms ---- */

/* Pre-norm, the usual case. */
const struct tensor_row rows_norm_before[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), ROW_NORM, L(attn_norm), DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("post_attention_layernorm.weight"), ROW_NORM, L(ffn_norm), DIM_EMBD),
    END
};

const struct tensor_row rows_norm_before_b[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), ROW_NORM, L(attn_norm), DIM_EMBD),
    VEC(B("attn_norm.bias"), H("input_layernorm.bias"), 0, L(attn_norm_b), DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("post_attention_layernorm.weight"), ROW_NORM, L(ffn_norm), DIM_EMBD),
    VEC(B("ffn_norm.bias"), H("post_attention_layernorm.bias"), 0, L(ffn_norm_b), DIM_EMBD),
    END
};

/* Pre-norm; GGUF calls the second one post_attention_norm. */
const struct tensor_row rows_norm_late[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), ROW_NORM, L(attn_norm), DIM_EMBD),
    VEC(B("post_attention_norm.weight"), H("post_attention_layernorm.weight"), ROW_NORM, L(ffn_norm),
        DIM_EMBD),
    END
};

/* One norm for parallel blocks. */
const struct tensor_row rows_norm_one[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), ROW_NORM, L(attn_norm), DIM_EMBD),
    END
};

const struct tensor_row rows_norm_one_b[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), 0, L(attn_norm), DIM_EMBD),
    VEC(B("attn_norm.bias"), H("input_layernorm.bias"), 0, L(attn_norm_b), DIM_EMBD),
    END
};

const struct tensor_row rows_norm_seq_b[] = { /* with rows_norm_one_b */
    VEC(B("ffn_norm.weight"), H("post_attention_layernorm.weight"), ROW_SEQ, L(ffn_norm), DIM_EMBD),
    VEC(B("ffn_norm.bias"), H("post_attention_layernorm.bias"), ROW_SEQ, L(ffn_norm_b), DIM_EMBD),
    END
};

/* A norm of each block's output before it is added to the residual stream. */
const struct tensor_row rows_norm_after[] = {
    VEC(B("post_attention_norm.weight"), H("post_attention_layernorm.weight"), ROW_NORM, L(attn_post_norm),
        DIM_EMBD),
    VEC(B("post_ffw_norm.weight"), H("post_feedforward_layernorm.weight"), ROW_NORM, L(ffn_post_norm),
        DIM_EMBD),
    END
};

const struct tensor_row rows_norm_around[] = { /* with rows_norm_after */
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), ROW_NORM, L(attn_norm), DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("pre_feedforward_layernorm.weight"), ROW_NORM, L(ffn_norm), DIM_EMBD),
    END
};

/* Norms before and after, under other names. */
const struct tensor_row rows_norm_glm4[] = {
    VEC(B("attn_norm.weight"), H("input_layernorm.weight"), 0, L(attn_norm), DIM_EMBD),
    VEC(B("post_attention_norm.weight"), H("post_self_attn_layernorm.weight"), 0, L(attn_post_norm),
        DIM_EMBD),
    VEC(B("ffn_norm.weight"), H("post_attention_layernorm.weight"), 0, L(ffn_norm), DIM_EMBD),
    VEC(B("post_ffw_norm.weight"), H("post_mlp_layernorm.weight"), 0, L(ffn_post_norm), DIM_EMBD), END
};

/* bitnet: norms inside the blocks. */
const struct tensor_row rows_sub_norm[] = {
    VEC(B("attn_sub_norm.weight"), H("self_attn.attn_sub_norm.weight"), ROW_NORM, L(attn_sub_norm), DIM_O),
    VEC(B("ffn_sub_norm.weight"), H("mlp.ffn_sub_norm.weight"), ROW_NORM, L(ffn_sub_norm), DIM_FF),
    END
};

#define SCALE(name, member)                                                                                  \
    {                                                                                                        \
        B(name ".scale"), NULL, ROW_SCALE, ROW_OPTIONAL, L(member), DIM_ONE, DIM_NONE, DIM_NONE              \
    }

/* bitnet: one scale per matrix, in GGUF files. */
const struct tensor_row rows_scale[] = {
    SCALE("attn_q", s_q), SCALE("attn_k", s_k), SCALE("attn_v", s_v), SCALE("attn_output", s_o),
    SCALE("ffn_gate", s_gate), SCALE("ffn_up", s_up), SCALE("ffn_down", s_down),
    END
};

/* ---- experts; the shared expert uses the members of the dense feed-forward block ---- */

#define STACK(gguf, hf, flags, at, rows, cols)                                                               \
    {                                                                                                        \
        gguf, hf, ROW_WHOLE, ROW_MOE | flags, at, rows, cols, DIM_EXPERTS                                    \
    }

/* Variants of newer files: experts stacked in folders, gate and up packed. */
#define PACKED_EXPERTS                                                                                       \
    { NULL,        H("mlp.experts.gate_up_proj"),                                                            \
      ROW_GATE_UP, ROW_MOE | ROW_OPTIONAL,                                                                   \
      L(x_gate),   DIM_EXP_2FF,                                                                              \
      DIM_EMBD,    DIM_EXPERTS },                                                                            \
        STACK(NULL, H("mlp.experts.down_proj"), ROW_OPTIONAL, L(x_down), DIM_EMBD, DIM_EXP_FF),              \
    {                                                                                                        \
        B("ffn_gate_up_exps.weight"), NULL, ROW_GATE_UP, ROW_MOE | ROW_OPTIONAL, L(x_gate), DIM_EXP_2FF,     \
            DIM_EMBD, DIM_EXPERTS                                                                            \
    }

/* Routers stay F32. */
const struct tensor_row rows_experts[] = {
    MAT(B("ffn_gate_inp.weight"), H("mlp.gate.weight"), ROW_MOE | ROW_F32, L(router), DIM_EXPERTS, DIM_EMBD),
    STACK(B("ffn_gate_exps.weight"), H("mlp.experts.#.gate_proj.weight"), ROW_SPLIT, L(x_gate), DIM_EXP_FF,
          DIM_EMBD),
    STACK(B("ffn_up_exps.weight"), H("mlp.experts.#.up_proj.weight"), ROW_SPLIT, L(x_up), DIM_EXP_FF,
          DIM_EMBD),
    STACK(B("ffn_down_exps.weight"), H("mlp.experts.#.down_proj.weight"), ROW_SPLIT, L(x_down), DIM_EMBD,
          DIM_EXP_FF),
    PACKED_EXPERTS,
    END
};

/* mixtral: w1 gate, w2 down, w3 up. */
const struct tensor_row rows_experts_w123[] = {
    MAT(B("ffn_gate_inp.weight"), H("block_sparse_moe.gate.weight"), ROW_MOE | ROW_F32, L(router),
        DIM_EXPERTS, DIM_EMBD),
    STACK(B("ffn_gate_exps.weight"), H("block_sparse_moe.experts.#.w1.weight"), ROW_SPLIT, L(x_gate),
          DIM_EXP_FF, DIM_EMBD),
    STACK(B("ffn_up_exps.weight"), H("block_sparse_moe.experts.#.w3.weight"), ROW_SPLIT, L(x_up), DIM_EXP_FF,
          DIM_EMBD),
    STACK(B("ffn_down_exps.weight"), H("block_sparse_moe.experts.#.w2.weight"), ROW_SPLIT, L(x_down),
          DIM_EMBD, DIM_EXP_FF),
    PACKED_EXPERTS,
    END
};

/* Stacked in folders, with gate and up packed. */
const struct tensor_row rows_experts_granite[] = {
    MAT(B("ffn_gate_inp.weight"), H("block_sparse_moe.router.layer.weight"), ROW_MOE | ROW_F32, L(router),
        DIM_EXPERTS, DIM_EMBD),
    { NULL, H("block_sparse_moe.input_linear.weight"), ROW_GATE_UP, ROW_MOE, L(x_gate), DIM_EXP_2FF, DIM_EMBD,
      DIM_EXPERTS },
    STACK(B("ffn_gate_exps.weight"), NULL, 0, L(x_gate), DIM_EXP_FF, DIM_EMBD),
    STACK(B("ffn_up_exps.weight"), NULL, 0, L(x_up), DIM_EXP_FF, DIM_EMBD),
    STACK(B("ffn_down_exps.weight"), H("block_sparse_moe.output_linear.weight"), 0, L(x_down), DIM_EMBD,
          DIM_EXP_FF),
    END
};

/* gpt-oss: MXFP4 or unquantized, alternating rows of gate and up, biases. */
const struct tensor_row rows_experts_oss[] = {
    MAT(B("ffn_gate_inp.weight"), H("mlp.router.weight"), ROW_MOE | ROW_F32, L(router), DIM_EXPERTS,
        DIM_EMBD),
    VEC(B("ffn_gate_inp.bias"), H("mlp.router.bias"), ROW_MOE, L(b_router), DIM_EXPERTS),
    { NULL, H("mlp.experts.gate_up_proj"), ROW_GATE_UP, ROW_MOE | ROW_NO_MX | ROW_TRANSPOSED | ROW_ALTERNATE,
      L(x_gate), DIM_EXP_2FF, DIM_EMBD, DIM_EXPERTS },
    { NULL, H("mlp.experts.gate_up_proj_blocks"), ROW_GATE_UP, ROW_MOE | ROW_MX | ROW_ALTERNATE, L(x_gate),
      DIM_EXP_2FF, DIM_EMBD, DIM_EXPERTS },
    { NULL, H("mlp.experts.gate_up_proj_bias"), ROW_GATE_UP, ROW_MOE | ROW_ALTERNATE, L(xb_gate), DIM_EXP_2FF,
      DIM_NONE, DIM_EXPERTS },
    STACK(B("ffn_gate_exps.weight"), NULL, 0, L(x_gate), DIM_EXP_FF, DIM_EMBD),
    STACK(B("ffn_up_exps.weight"), NULL, 0, L(x_up), DIM_EXP_FF, DIM_EMBD),
    STACK(NULL, H("mlp.experts.down_proj"), ROW_NO_MX | ROW_TRANSPOSED, L(x_down), DIM_EMBD, DIM_EXP_FF),
    STACK(NULL, H("mlp.experts.down_proj_blocks"), ROW_MX, L(x_down), DIM_EMBD, DIM_EXP_FF),
    STACK(B("ffn_down_exps.weight"), NULL, 0, L(x_down), DIM_EMBD, DIM_EXP_FF),
    STACK(B("ffn_gate_exps.bias"), NULL, 0, L(xb_gate), DIM_EXP_FF, DIM_NONE),
    STACK(B("ffn_up_exps.bias"), NULL, 0, L(xb_up), DIM_EXP_FF, DIM_NONE),
    STACK(B("ffn_down_exps.bias"), H("mlp.experts.down_proj_bias"), 0, L(xb_down), DIM_EMBD, DIM_NONE),
    END
};

#define SHARED(gguf, hf, at, rows, cols) MAT(gguf, hf, ROW_MOE | ROW_SHARED, at, rows, cols)
#define SHARED_BIAS(gguf, hf, at, n) VEC(gguf, hf, ROW_MOE | ROW_SHARED | ROW_BIAS_MLP, at, n)

/* The shared expert. */
const struct tensor_row rows_shared[] = {
    SHARED(B("ffn_gate_shexp.weight"), H("mlp.shared_experts.gate_proj.weight"), L(gate), DIM_FF, DIM_EMBD),
    SHARED(B("ffn_up_shexp.weight"), H("mlp.shared_experts.up_proj.weight"), L(up), DIM_FF, DIM_EMBD),
    SHARED(B("ffn_down_shexp.weight"), H("mlp.shared_experts.down_proj.weight"), L(down), DIM_EMBD, DIM_FF),
    SHARED_BIAS(B("ffn_gate_shexp.bias"), H("mlp.shared_experts.gate_proj.bias"), L(b_gate), DIM_FF),
    SHARED_BIAS(B("ffn_up_shexp.bias"), H("mlp.shared_experts.up_proj.bias"), L(b_up), DIM_FF),
    SHARED_BIAS(B("ffn_down_shexp.bias"), H("mlp.shared_experts.down_proj.bias"), L(b_down), DIM_EMBD),
    END
};

const struct tensor_row rows_shared_gate[] = { /* the same under another name, with a gate */
    SHARED(B("ffn_gate_shexp.weight"), H("mlp.shared_expert.gate_proj.weight"), L(gate), DIM_FF, DIM_EMBD),
    SHARED(B("ffn_up_shexp.weight"), H("mlp.shared_expert.up_proj.weight"), L(up), DIM_FF, DIM_EMBD),
    SHARED(B("ffn_down_shexp.weight"), H("mlp.shared_expert.down_proj.weight"), L(down), DIM_EMBD, DIM_FF),
    MAT(B("ffn_gate_inp_shexp.weight"), H("mlp.shared_expert_gate.weight"), ROW_MOE | ROW_SHARED | ROW_F32,
        L(shared_gate), DIM_ONE, DIM_EMBD),
    END
};

/* Selection bias of the router. */
const struct tensor_row rows_choice_bias[] = {
    VEC(B("exp_probs_b.bias"), H("mlp.gate.e_score_correction_bias"), ROW_MOE, L(choice_bias), DIM_EXPERTS),
    END
};
/* clang-format on */
