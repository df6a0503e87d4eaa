/* arch_rows_gpt.c - tensors of older families: gpt2, bigcode, gpt-neo, gpt-j, gpt-neox, bloom,
 * falcon, mpt, opt. T: a name in a layer of a folder of the gpt2 line. */
#include "model/arch_rows.h"

#define T(name) "h.*." name

/* ---- the ends ---- */

/* clang-format off */
const struct tensor_row rows_ends_gpt[] = {
    MAT("token_embd.weight", "wte.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "ln_f.weight", 0, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "ln_f.bias", 0, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    VEC("output.bias", "lm_head.bias", ROW_HEAD | ROW_BIAS_HEAD, M(head_b), DIM_VOCAB),
    END
};

const struct tensor_row rows_positions[] = {
    MAT("position_embd.weight", "wpe.weight", ROW_FIRST | ROW_F32, M(positions), DIM_POS, DIM_EMBD),
    END
};

const struct tensor_row rows_ends_falcon[] = {
    MAT("token_embd.weight", "word_embeddings.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "ln_f.weight", 0, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "ln_f.bias", 0, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    END
};

/* A norm follows the embedding. */
const struct tensor_row rows_ends_bloom[] = {
    MAT("token_embd.weight", "word_embeddings.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("token_embd_norm.weight", "word_embeddings_layernorm.weight", ROW_FIRST, M(embd_norm), DIM_EMBD),
    VEC("token_embd_norm.bias", "word_embeddings_layernorm.bias", ROW_FIRST, M(embd_norm_b), DIM_EMBD),
    VEC("output_norm.weight", "ln_f.weight", 0, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "ln_f.bias", 0, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    END
};

/* The head is called embed_out. */
const struct tensor_row rows_ends_neox[] = {
    MAT("token_embd.weight", "embed_in.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "final_layer_norm.weight", 0, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "final_layer_norm.bias", 0, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "embed_out.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    END
};

/* The norm's bias is optional. */
const struct tensor_row rows_ends_mpt[] = {
    MAT("token_embd.weight", "wte.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "norm_f.weight", 0, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "norm_f.bias", ROW_OPTIONAL, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    END
};

/* The head has a bias. */
const struct tensor_row rows_ends_phi[] = {
    MAT("token_embd.weight", "embed_tokens.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    VEC("output_norm.weight", "final_layernorm.weight", 0, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "final_layernorm.bias", 0, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD),
    VEC("output.bias", "lm_head.bias", ROW_HEAD | ROW_BIAS_HEAD, M(head_b), DIM_VOCAB),
    END
};

/* The 350M model has embeddings of another width, and projections. */
const struct tensor_row rows_ends_opt[] = {
    MAT("token_embd.weight", "embed_tokens.weight", ROW_FIRST, M(embd), DIM_VOCAB, DIM_WORD),
    MAT("position_embd.weight", "embed_positions.weight", ROW_FIRST | ROW_F32, M(positions), DIM_POS,
        DIM_EMBD),
    MAT("token_embd_in.weight", "project_in.weight", ROW_FIRST | ROW_PROJ, M(proj_in), DIM_EMBD, DIM_WORD),
    MAT("token_embd_out.weight", "project_out.weight", ROW_PROJ, M(proj_out), DIM_WORD, DIM_EMBD),
    VEC("output_norm.weight", "final_layer_norm.weight", ROW_AFFINE | ROW_LAST_NORM, M(out_norm), DIM_EMBD),
    VEC("output_norm.bias", "final_layer_norm.bias", ROW_AFFINE | ROW_LAST_NORM, M(out_norm_b), DIM_EMBD),
    MAT("output.weight", "lm_head.weight", ROW_HEAD, M(head), DIM_VOCAB, DIM_WORD),
    END
};

/* ---- attention ---- */

/* q, k and v in one tensor. */
#define PACKED(hf_w, hf_b, flags)                                                                            \
    { B("attn_qkv.weight"), hf_w, ROW_QKV, flags, L(wq), DIM_QKV, DIM_EMBD, DIM_NONE },                      \
    {                                                                                                        \
        B("attn_qkv.bias"), hf_b, ROW_QKV, ROW_BIAS_QKV | ((flags)&ROW_GROUPS), L(bq), DIM_QKV, DIM_NONE,    \
            DIM_NONE                                                                                         \
    }

/* Folders store [in, out] (Conv1D). */
const struct tensor_row rows_attn_gpt2[] = {
    PACKED(T("attn.c_attn.weight"), T("attn.c_attn.bias"), ROW_TRANSPOSED),
    MAT(B("attn_output.weight"), T("attn.c_proj.weight"), ROW_TRANSPOSED, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_output.bias"), T("attn.c_proj.bias"), ROW_BIAS_O, L(bo), DIM_EMBD),
    END
};

const struct tensor_row rows_attn_bigcode[] = { /* one KV head, or rows by head as in gpt-neox */
    PACKED(T("attn.c_attn.weight"), T("attn.c_attn.bias"), ROW_GROUPS),
    MAT(B("attn_output.weight"), T("attn.c_proj.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_output.bias"), T("attn.c_proj.bias"), ROW_BIAS_O, L(bo), DIM_EMBD),
    END
};

/* Only the output projection has a bias. */
const struct tensor_row rows_attn_neo[] = {
    MAT(B("attn_q.weight"), T("attn.attention.q_proj.weight"), 0, L(wq), DIM_Q, DIM_EMBD),
    MAT(B("attn_k.weight"), T("attn.attention.k_proj.weight"), 0, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), T("attn.attention.v_proj.weight"), 0, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), T("attn.attention.out_proj.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_output.bias"), T("attn.attention.out_proj.bias"), ROW_BIAS_O, L(bo), DIM_EMBD),
    END
};

/* No biases. */
const struct tensor_row rows_attn_gptj[] = {
    MAT(B("attn_q.weight"), T("attn.q_proj.weight"), 0, L(wq), DIM_Q, DIM_EMBD),
    MAT(B("attn_k.weight"), T("attn.k_proj.weight"), 0, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), T("attn.v_proj.weight"), 0, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), T("attn.out_proj.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    END
};

/* Rows grouped by head: q, k, v of each. */
const struct tensor_row rows_attn_neox[] = {
    PACKED("layers.*.attention.query_key_value.weight", "layers.*.attention.query_key_value.bias",
           ROW_GROUPS),
    MAT(B("attn_output.weight"), "layers.*.attention.dense.weight", 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_output.bias"), "layers.*.attention.dense.bias", ROW_BIAS_O, L(bo), DIM_EMBD), END
};

/* Grouped by KV head; also falcon. */
const struct tensor_row rows_attn_bloom[] = {
    PACKED(T("self_attention.query_key_value.weight"), T("self_attention.query_key_value.bias"), ROW_GROUPS),
    MAT(B("attn_output.weight"), T("self_attention.dense.weight"), 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_output.bias"), T("self_attention.dense.bias"), ROW_BIAS_O, L(bo), DIM_EMBD),
    END
};

/* All q, then k, then v. */
const struct tensor_row rows_attn_mpt[] = {
    PACKED("blocks.*.attn.Wqkv.weight", "blocks.*.attn.Wqkv.bias", 0),
    MAT(B("attn_output.weight"), "blocks.*.attn.out_proj.weight", 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_output.bias"), "blocks.*.attn.out_proj.bias", ROW_BIAS_O, L(bo), DIM_EMBD),
    END
};

const struct tensor_row rows_attn_opt[] = {
    MAT(B("attn_q.weight"), "layers.*.self_attn.q_proj.weight", 0, L(wq), DIM_Q, DIM_EMBD),
    MAT(B("attn_k.weight"), "layers.*.self_attn.k_proj.weight", 0, L(wk), DIM_K, DIM_EMBD),
    MAT(B("attn_v.weight"), "layers.*.self_attn.v_proj.weight", 0, L(wv), DIM_V, DIM_EMBD),
    MAT(B("attn_output.weight"), "layers.*.self_attn.out_proj.weight", 0, L(wo), DIM_EMBD, DIM_O),
    VEC(B("attn_q.bias"), "layers.*.self_attn.q_proj.bias", ROW_BIAS_QKV, L(bq), DIM_Q),
    VEC(B("attn_k.bias"), "layers.*.self_attn.k_proj.bias", ROW_BIAS_QKV, L(bk), DIM_K),
    VEC(B("attn_v.bias"), "layers.*.self_attn.v_proj.bias", ROW_BIAS_QKV, L(bv), DIM_V),
    VEC(B("attn_output.bias"), "layers.*.self_attn.out_proj.bias", ROW_BIAS_O, L(bo), DIM_EMBD),
    END
};

/* ---- feed-forward ---- */

/* Feed-forward without a gate: two matrices and their biases. */
#define PLAIN(in, out, flags)                                                          \
    MAT(B("ffn_up.weight"), in ".weight", flags, L(up), DIM_FF, DIM_EMBD),              \
    VEC(B("ffn_up.bias"), in ".bias", ROW_BIAS_MLP, L(b_up), DIM_FF),                   \
    MAT(B("ffn_down.weight"), out ".weight", flags, L(down), DIM_EMBD, DIM_FF),         \
    VEC(B("ffn_down.bias"), out ".bias", ROW_BIAS_MLP, L(b_down), DIM_EMBD)

const struct tensor_row rows_mlp_gpt2[] = { PLAIN(T("mlp.c_fc"), T("mlp.c_proj"), ROW_TRANSPOSED), END };
const struct tensor_row rows_mlp_gpt[] = { PLAIN(T("mlp.c_fc"), T("mlp.c_proj"), 0), END };
const struct tensor_row rows_mlp_gptj[] = { PLAIN(T("mlp.fc_in"), T("mlp.fc_out"), 0), END };
const struct tensor_row rows_mlp_4h[] = { PLAIN(T("mlp.dense_h_to_4h"), T("mlp.dense_4h_to_h"), 0), END };
const struct tensor_row rows_mlp_neox[] = {
    PLAIN("layers.*.mlp.dense_h_to_4h", "layers.*.mlp.dense_4h_to_h", 0), END
};
const struct tensor_row rows_mlp_mpt[] = { PLAIN("blocks.*.ffn.up_proj", "blocks.*.ffn.down_proj", 0), END };
const struct tensor_row rows_mlp_opt[] = { PLAIN("layers.*.fc1", "layers.*.fc2", 0), END };

/* ---- norms ---- */

/* A LayerNorm: weight and bias. */
#define NORM(gguf, hf, flags, w)                                             \
    VEC(B(gguf ".weight"), hf ".weight", flags, L(w), DIM_EMBD),              \
    VEC(B(gguf ".bias"), hf ".bias", flags, L(w##_b), DIM_EMBD)

const struct tensor_row rows_norm_gpt[] = {
    NORM("attn_norm", T("ln_1"), 0, attn_norm), NORM("ffn_norm", T("ln_2"), 0, ffn_norm), END
};
const struct tensor_row rows_norm_gptj[] = { NORM("attn_norm", T("ln_1"), 0, attn_norm), END };
const struct tensor_row rows_norm_bloom[] = {
    NORM("attn_norm", T("input_layernorm"), 0, attn_norm),
    NORM("ffn_norm", T("post_attention_layernorm"), 0, ffn_norm),
    END
};
const struct tensor_row rows_norm_neox[] = {
    NORM("attn_norm", "layers.*.input_layernorm", 0, attn_norm),
    NORM("ffn_norm", "layers.*.post_attention_layernorm", 0, ffn_norm),
    END
};
const struct tensor_row rows_norm_opt[] = {
    NORM("attn_norm", "layers.*.self_attn_layer_norm", ROW_AFFINE, attn_norm),
    NORM("ffn_norm", "layers.*.final_layer_norm", ROW_AFFINE, ffn_norm),
    END
};
/* Biases are optional. */
const struct tensor_row rows_norm_mpt[] = {
    VEC(B("attn_norm.weight"), "blocks.*.norm_1.weight", 0, L(attn_norm), DIM_EMBD),
    VEC(B("attn_norm.bias"), "blocks.*.norm_1.bias", ROW_OPTIONAL, L(attn_norm_b), DIM_EMBD),
    VEC(B("ffn_norm.weight"), "blocks.*.norm_2.weight", 0, L(ffn_norm), DIM_EMBD),
    VEC(B("ffn_norm.bias"), "blocks.*.norm_2.bias", ROW_OPTIONAL, L(ffn_norm_b), DIM_EMBD),
    END
};

/* In models with two norms, GGUF's attn_norm is that of the feed-forward block. */
const struct tensor_row rows_norm_falcon[] = {
    NORM("attn_norm", T("input_layernorm"), ROW_ONE, attn_norm),
    NORM("ffn_norm", T("post_attention_layernorm"), ROW_SEQ, ffn_norm),
    NORM("attn_norm_2", T("ln_attn"), ROW_TWO, attn_norm),
    NORM("attn_norm", T("ln_mlp"), ROW_TWO, ffn_norm),
    END
};
/* clang-format on */
