/* hparams.h - hyper-parameters of a model, read from its file and checked.
 *
 * One struct describes every architecture: a field that an architecture does not have is 0, NULL or
 * false, and the block it stands for is then skipped. Shapes come from metadata keys or, where a
 * key is missing, from the tensors; they are never guessed. A struct hparams is constant after
 * hparams_read; its arrays are in the caller's arena. */
#ifndef TERN_MODEL_HPARAMS_H
#define TERN_MODEL_HPARAMS_H

#include "base/arena.h"
#include "base/err.h"
#include "format/source.h"
#include "kernel/backend.h"
#include "model/arch.h"
#include "model/indexer.h"
#include "model/mix.h"
#include "model/pooler.h"

enum rope_scaling {
    ROPE_NONE,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_DYNAMIC,
    ROPE_SCALINGS
};

/* One kind of rotary embedding. Most models have one; gemma3 has a second for layers with a window.
 * Scalings extend the context: linear (position interpolation), llama3, yarn (Peng et al.),
 * longrope, dynamic (NTK-aware). See model/rotary.h. */
struct rope_hp {
    double theta; /* base of the frequencies */
    int n_rot;    /* elements of a head that are rotated, from its start */
    enum rope_scaling scaling;
    double factor;                           /* extension of the context */
    double low_freq, high_freq;              /* llama3 */
    double orig_ctx, max_ctx;                /* context of the training, and of the model */
    double beta_fast, beta_slow;             /* yarn */
    double attn_factor;                      /* multiplies cos and sin; never 0 */
    double attn_factor_long;                 /* longrope: beyond orig_ctx; 0: attn_factor */
    bool always_short;                       /* longrope: short_factor also beyond orig_ctx */
    bool truncate;                           /* yarn: round the ends of the ramp to integers */
    const float *long_factor, *short_factor; /* longrope: [n_rot/2] divisors, or NULL */
    const float *freq_factors; /* [n_rot/2] divisors that GGUF stores as a tensor, or NULL */
    int n_turn; /* only so many elements have a frequency, those behind them have 0; 0: all (gemma 4) */
    bool reverse; /* rotates in the opposite direction */
};

enum { ROPES = 4 }; /* kinds of rotary embedding that a model may have */

struct layer_hp {
    int n_heads, n_kv_heads, head_dim, head_dim_v;
    int window;            /* sliding window in positions; 0: full attention */
    int rope;              /* index into hparams.rope; -1: no rotary embedding */
    int n_ff;              /* feed-forward width; in a layer with experts, of the shared expert */
    float attn_scale;      /* of scores; 0: hparams.attn_scale */
    int chunk;             /* attention within chunks of so many positions; 0: none */
    int kv_of;             /* 1 + the layer whose keys and values it reads; 0: it has its own */
    bool k_is_v;           /* values are the keys, before their norm and rotation */
    bool no_ffn;           /* the layer has a mixer only */
    bool moe;              /* the feed-forward block is a mixture of experts */
    bool hash;             /* its experts depend on the token's id */
    struct index_hp index; /* of sparse attention */
    float sparsity; /* standard deviations above the mean below which gates are 0; 0: not sparse */
    struct xielu_opt xielu; /* ACT_XIELU: its parameters, as stored */
    struct mix_hp mix;      /* the layer's mixer, if it is not plain attention */
};

/* Has the layer softmax attention over keys and values of heads? */
static inline bool layer_attends(const struct layer_hp *w)
{
    return w->mix.kind == MIX_ATTN || w->mix.with_attn;
}

/* Is its mixer a form of attention over the KV cache? */
static inline bool layer_caches(const struct layer_hp *w)
{
    return layer_attends(w) || w->mix.kind == MIX_MLA || w->mix.kind == MIX_CSA;
}

/* The mixture of experts; n 0: none. See struct route_opt in kernel/backend.h. */
struct moe_hp {
    int n, n_used, n_ff; /* experts, experts per token, feed-forward width of an expert */
    enum route_kind route;
    bool norm;                   /* weights are divided by their sum */
    float scale;                 /* then multiplied by this; never 0 */
    int n_groups, n_groups_used; /* 0: no groups */
    int group_top;               /* experts that make up the score of a group */
    float jitter;                /* ROUTE_SPARSEMIXER */
    bool beside;                 /* beside a dense block, each with norms of its own (gemma 4) */
    int n_in;                    /* width of the latent that experts work on; 0: n_embd */
    int n_zero;                  /* further experts that return their input */
    bool weigh_inputs;           /* weights multiply the inputs of experts */
    float mean;                  /* of the sum of shared and chosen experts; 0: 1 */
    bool late;                   /* their output is added after the next layer (longcat) */
    struct glu_clip clip;        /* the gated activation of all feed-forward blocks; limit 0: act */
};

struct shard;
struct vec_head;

enum { STREAMS = 8 }; /* residual streams at most */

/* Several residual streams (gemma 3n); n 0: one. */
struct altup_hp {
    int n, active; /* streams, and the one that layers compute */
    int rank;      /* of the low-rank residual */
    bool scaled;   /* the gate of per-layer inputs reads the scaled stream */
};

/* Residual streams that every block reads and writes (hyper-connections); n 0: none. */
struct hyper_hp {
    int n, iters;
    float eps;
};

struct hparams {
    const char *arch;        /* the name in GGUF: "llama", "qwen2", "gemma3" */
    const struct arch *info; /* its entry in the table */
    enum source_kind from;
    const char *prefix, *head_prefix; /* of tensor names in a folder: "model."; of the head: "" */
    int n_layers, n_embd, n_vocab, n_ctx;
    int n_word;              /* width of the embedding; not n_embd: it is projected */
    int pos_skip;            /* unused rows before the first learned position */
    struct layer_hp *layers; /* [n_layers] */
    struct rope_hp rope[ROPES];
    int n_rope;
    enum rope_style rope_style;
    int32_t sections[4]; /* ARCH_SECTIONS, of a folder: frequencies that time, height, width turn */

    enum norm_kind norm;
    float norm_eps;
    float norm_bias1; /* added to norm weights at load: 1 for folders of ARCH_NORM1, else 0 */
    enum act act;

    float embd_scale, residual_scale, logit_scale; /* multipliers; never 0 */
    float attn_scale;                              /* of scores; 0: 1 / sqrt(head_dim) */
    float attn_softcap, logit_softcap;
    bool qk_norm;       /* ROW_QK rows exist: q and k are normalized */
    bool qk_norm_whole; /* over all heads together (olmo2), else per head */
    bool qk_bare; /* q and k are normalized without weights, in layers with rotary embedding */
    bool v_norm;  /* values are normalized by head, without weights */
    float k_scale, v_scale;                      /* multiply keys and values; 0: none */
    struct pos_scale_opt pos_scale;              /* of queries; beta 0: none */
    bool pos_scale_nope;                         /* only in layers without rotary embedding */
    bool embd_norm;                              /* embeddings are normalized without weights */
    bool expert_scales;                          /* experts have scales */
    float s_attn_in, s_attn_out, s_gate, s_down; /* of the inputs and outputs of blocks; 0: none */
    int n_ple;                                   /* width of per-layer inputs; 0: none */
    int n_ple_vocab; /* ids that have such inputs: others have those of id 0 */
    struct altup_hp altup;
    struct hyper_hp hyper;
    bool tied;    /* the output head is the embedding */
    bool encoder; /* bidirectional attention, no output head */
    enum pooling pooling;
    bool ranks;         /* a classifier's head follows: vechead.h */
    int n_types;        /* token types */
    unsigned bias;      /* BIAS_*: biases that must exist */
    bool bare_norm;     /* norms have no weights */
    bool last_norm;     /* there is a norm after the last layer */
    bool parallel;      /* attention and feed-forward both read the input of the layer */
    bool two_norms;     /* parallel, each with its own norm */
    bool norm_after;    /* post-norm: the residual stream is normalized after each block */
    bool norm_residual; /* the residual connection starts from the normalized input (old bloom) */
    float clip_qkv;     /* q, k, v are clamped to [-clip_qkv, clip_qkv]; 0: no */
    float alibi;        /* ALiBi: largest exponent of the slopes, 8; 0: none */
    float alibi_scale;  /* of the slopes; never 0 */
    struct moe_hp moe;
    bool mxfp4; /* a folder with experts in MXFP4 */
    const struct vec_head
        *dense;                /* EmbeddingGemma, of a folder: layers behind the pooling; or NULL */
    const struct shard *shard; /* the part of the model this is (shard.h); NULL: all of it */
};

/* Reads and checks the hyper-parameters; arrays are allocated from a. E_UNSUPPORTED: an unknown
 * architecture (the message lists the supported ones), a key that tern cannot honour, or an ONNX
 * graph, which has no hyper-parameters (model/loadplan.h opens it). E_FORMAT: a value that is
 * missing or out of range. */
int hparams_read(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);

/* "none", "linear", ...: the names in both file formats. */
const char *rope_scaling_name(enum rope_scaling s);
bool rope_scaling_by_name(struct str name, enum rope_scaling *out);

/* The row of the table applies to layer l of this model (kind of layer, kind of norms, ...). */
bool hparams_has(const struct hparams *hp, const struct tensor_row *r, int l);
/* Its tensor must exist. In GGUF files biases and norms of q and k are optional. */
bool hparams_needs(const struct hparams *hp, const struct tensor_row *r, int l);
/* The size of a dimension in layer l; l does not matter for tensors outside the layers. */
int hparams_dim(const struct hparams *hp, enum dim d, int l);
/* The number of learned positions, which bounds a sequence; 0: no bound. */
int hparams_max_ctx(const struct hparams *hp);
/* Do layers need results of other layers than the one before? Then they cannot be divided among
 * devices or members. */
bool hparams_is_joined(const struct hparams *hp);
/* Writes the tensor's name in a file format. i: the number of the expert or head, for names with
 * '#'. false: it does not exist in that format. */
bool hparams_name(const struct hparams *hp, const struct tensor_row *r, int l, int i,
                  enum source_kind world, char *out, size_t cap);

/* slopes[n] of the heads from `first` on, of n_heads, of a model with ALiBi. */
void hparams_slopes(const struct hparams *hp, int n_heads, int first, int n, float *slopes);

/* ---- parts of hparams_read, in several files ---- */

/* Mixers: size of a dimension, check of a layer, keys of GGUF files (shapes first, then the rest). */
int hparams_mix_dim(const struct hparams *hp, enum dim d, int l);
int hparams_mix_check(const struct hparams *hp, int l, const char *path, struct err *e);
int hparams_mix_gguf(struct hparams *hp, const struct source *src, struct err *e);
void hparams_mix_gguf_rest(struct hparams *hp, const struct source *src);

/* The keys of a state space model (mix_hp of its layers), and those of hybrids. */
struct metakeys;
int hparams_ssm_gguf(struct mix_hp *h, const struct hparams *hp, const struct metakeys *k,
                     struct err *e);
int hparams_hybrid_gguf(struct hparams *hp, const struct source *src, struct err *e);
void hparams_hybrid_gguf_rest(struct hparams *hp, const struct source *src);

/* Keys of GGUF files that single families have: shapes, then the rest. known: the family has them. */
bool hparams_own_gguf_known(const struct arch *a);
int hparams_own_gguf_shapes(struct hparams *hp, const struct source *src, struct err *e);
void hparams_own_gguf(struct hparams *hp, const struct source *src);
int hparams_own_moe_gguf_shapes(struct hparams *hp, const struct source *src, struct err *e);
void hparams_own_moe_gguf(struct hparams *hp, const struct source *src);
/* The key sliding_window_pattern, or the architecture's rule, gives layer l a window. */
bool hparams_gguf_window(const struct metakeys *k, const struct arch *a, int l);

/* Encoders: shapes, then the rest; pooling of any model. */
void hparams_encoder_gguf(struct hparams *hp, const struct source *src);
void hparams_encoder_gguf_rest(struct hparams *hp, const struct source *src);
int hparams_pooling(struct hparams *hp, const struct source *src, struct err *e);

/* The readers; they fill in what the file says, and hparams_read checks it afterwards. */
int hparams_from_hf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);
int hparams_from_gguf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);
/* The file has the row's tensor as a part of another row's packed tensor (ROW_SPLIT). */
bool hparams_covered(const struct hparams *hp, const struct source *src, const struct tensor_row *r,
                     int l);
/* Fills in shapes that are still 0, from the tensors of the layers and the embedding. */
int hparams_infer(struct hparams *hp, const struct source *src, struct err *e);
#endif
