/* hparams.h - hyper-parameters of a model, always from its file, checked once at load.
 *
 * One struct describes every architecture: a field that an architecture does not have is 0,
 * NULL or false, and then the block it stands for is not there. */
#ifndef TERN_MODEL_HPARAMS_H
#define TERN_MODEL_HPARAMS_H

#include "base/arena.h"
#include "base/err.h"
#include "format/source.h"
#include "kernel/backend.h"

enum norm_kind { NORM_RMS, NORM_LAYER };
enum ffn_kind { FFN_GATED, FFN_PLAIN, FFN_MOE };

enum rope_scaling { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_DYNAMIC };

/* One kind of rotary embedding; gemma3 has two, most models one. */
struct rope_hp {
    double theta;
    int n_rot;                       /* numbers of a head that turn; 0: no rotary */
    enum rope_scaling scaling;
    double factor, low_freq, high_freq, orig_ctx;            /* linear, llama3, yarn, longrope */
    double beta_fast, beta_slow, attn_factor, mscale, mscale_all_dim;
    bool truncate;                   /* yarn: round the ramp's ends to whole dimensions */
    const float *long_factor, *short_factor;                 /* [n_rot/2] or NULL */
    const float *freq_factors;       /* [n_rot/2] divisors GGUF carries as a tensor, or NULL */
};

struct layer_hp {
    int n_heads, n_kv_heads, head_dim, head_dim_v;
    int window;                      /* 0: sees everything */
    int rope;                        /* index into rope[], -1: this layer does not turn */
    int n_ff;
    enum ffn_kind ffn;
};

struct hparams {
    const char *arch;                /* GGUF's name: "llama", "qwen2", "gemma3" */
    int n_layers, n_embd, n_vocab, n_ctx;
    struct layer_hp *layers;
    struct rope_hp rope[2];
    int n_rope;
    enum rope_style rope_style;

    enum norm_kind norm;
    float norm_eps;
    float norm_bias1;                /* weight of a norm is w + norm_bias1 (gemma from Hugging Face: 1) */
    enum act act;

    float embd_scale, residual_scale, logit_scale, attn_scale;   /* attn_scale 0: 1/sqrt(head_dim) */
    float attn_softcap, logit_softcap;
    bool qk_norm_whole;              /* q/k norm over all heads together (olmo2), else per head */
    bool post_norm_only;             /* norms after attention and FFN instead of before (olmo2) */
    bool tied;                       /* lm head is the embedding */

    int n_experts, n_experts_used;   /* room for mixtures */
};

/* Reads and checks them; names in a's memory. An unknown architecture is E_UNSUPPORTED and named,
 * with the list of known ones. */
int hparams_read(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);
#endif
