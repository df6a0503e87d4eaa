/* arch_rows.h - tables of tensors that architectures share; an architecture lists some of them.
 *
 * A table covers one block of a layer (attention, feed-forward, norms, experts) or the ends of the
 * model, in the variant of one family. */
#ifndef TERN_MODEL_ARCH_ROWS_H
#define TERN_MODEL_ARCH_ROWS_H

#include "model/arch.h"
#include "model/model.h"

#include <stddef.h>

/* Shorthands of the tables: a member of struct model, a member of struct layer, a GGUF name in a
 * layer; a vector, a matrix; the end of a table. */
#define M(member) offsetof(struct model, member)
#define L(member) offsetof(struct layer, member)
#define B(name) "blk.*." name
#define VEC(gguf, hf, flags, at, n)                           \
    {                                                         \
        gguf, hf, ROW_WHOLE, flags, at, n, DIM_NONE, DIM_NONE \
    }
#define MAT(gguf, hf, flags, at, rows, cols)                 \
    {                                                        \
        gguf, hf, ROW_WHOLE, flags, at, rows, cols, DIM_NONE \
    }
#define END \
    {       \
        0   \
    }
/* The list of tables of an architecture. */
#define ROWS(...) ((const struct tensor_row *const[]){ __VA_ARGS__, NULL })

/* The ends: embedding, final norm, output head. */
extern const struct tensor_row rows_ends[];
extern const struct tensor_row rows_ends_bias[]; /* the final norm has a bias */
extern const struct tensor_row rows_ends_gpt[];  /* "wte", "ln_f" */
extern const struct tensor_row rows_ends_bloom[], rows_ends_falcon[], rows_ends_neox[],
    rows_ends_mpt[];
extern const struct tensor_row rows_ends_opt[], rows_ends_phi[], rows_ends_bare[];
extern const struct tensor_row rows_positions[]; /* learned positions: "wpe" */

/* Attention. */
extern const struct tensor_row rows_attn[], rows_attn_packed[];
extern const struct tensor_row rows_attn_gpt2[], rows_attn_bigcode[], rows_attn_neo[],
    rows_attn_gptj[];
extern const struct tensor_row rows_attn_neox[], rows_attn_bloom[], rows_attn_mpt[],
    rows_attn_opt[];
extern const struct tensor_row rows_attn_phi[];
extern const struct tensor_row rows_mla[], rows_mla_up[], rows_mla_whole[]; /* latent attention */
extern const struct tensor_row rows_attn_gated[]; /* queries and their gates in one tensor */
extern const struct tensor_row rows_sinks[];
extern const struct tensor_row rows_qk_norm[], rows_qk_norm_whole[];
extern const struct tensor_row rows_qk_norm_keyed[]; /* if a key says so */
extern const struct tensor_row rows_qk_norm_each[];  /* weights per head */
extern const struct tensor_row
    rows_qk_norm_heads[]; /* weights per head, in a folder a tensor per head */
extern const struct tensor_row rows_qk_norm_phi[], rows_qk_norm_hunyuan[];

/* Feed-forward. _plain: without a gate; _packed: gate and up in one tensor. */
extern const struct tensor_row rows_mlp[], rows_mlp_packed[], rows_mlp_plain[];
extern const struct tensor_row rows_mlp_gpt2[], rows_mlp_gpt[], rows_mlp_gptj[], rows_mlp_4h[],
    rows_mlp_neox[];
extern const struct tensor_row rows_mlp_mpt[], rows_mlp_opt[], rows_mlp_phi[],
    rows_mlp_starcoder2[];

/* Norms. _before: pre-norm; _after: after each block; _around: both, with _after; _b: with bias. */
extern const struct tensor_row rows_norm_before[], rows_norm_before_b[], rows_norm_after[],
    rows_norm_around[];
extern const struct tensor_row rows_norm_one[], rows_norm_one_b[]; /* one norm for both blocks */
extern const struct tensor_row rows_norm_seq_b[]; /* the second norm if blocks are not parallel */
extern const struct tensor_row rows_norm_late[];  /* GGUF names the second post_attention_norm */
extern const struct tensor_row rows_norm_glm4[];
extern const struct tensor_row rows_norm_gpt[], rows_norm_gptj[], rows_norm_bloom[],
    rows_norm_falcon[];
extern const struct tensor_row rows_norm_neox[], rows_norm_mpt[], rows_norm_opt[];
extern const struct tensor_row rows_sub_norm[], rows_scale[];

/* Experts. */
extern const struct tensor_row rows_experts[];      /* mlp.experts.#.gate_proj */
extern const struct tensor_row rows_experts_w123[]; /* block_sparse_moe.experts.#.w1 */
extern const struct tensor_row rows_experts_granite[], rows_experts_oss[];
extern const struct tensor_row rows_shared[], rows_shared_gate[];
extern const struct tensor_row rows_choice_bias[];
/* Rows of single families (arch_rows_moe.c); some include the shared expert and the bias. */
extern const struct tensor_row rows_experts_wg[], rows_experts_hy[], rows_experts_afmoe[],
    rows_experts_lfm2[], rows_experts_jamba[], rows_experts_llama4[], rows_experts_flipped[],
    rows_experts_longcat[], rows_experts_gemma4[], rows_experts_minimax3[];
extern const struct tensor_row rows_shared_granite[];
extern const struct tensor_row rows_choice_mlp[], rows_choice_w123[], rows_choice_statics[];
extern const struct tensor_row rows_mlp_forward[], rows_mlp_bare[], rows_mlp_always[];
extern const struct tensor_row rows_xielu[], rows_attn_gate[], rows_sinks_some[];
extern const struct tensor_row rows_norm_apertus[], rows_norm_afmoe[];
#endif
