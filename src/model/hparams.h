/* hparams.h - hyper-parameters of a model, always from its file, checked once at load.
 *
 * One struct describes every architecture: a field that an architecture does not have is 0,
 * NULL or false, and then the block it stands for is not there. Shapes come from keys or,
 * where a key is missing, from the tensors themselves; they are never guessed. */
#ifndef TERN_MODEL_HPARAMS_H
#define TERN_MODEL_HPARAMS_H

#include "base/arena.h"
#include "base/err.h"
#include "format/source.h"
#include "kernel/backend.h"
#include "model/arch.h"
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

/* One kind of rotary embedding; gemma3 has two, most models one. */
struct rope_hp {
    double theta;
    int n_rot; /* numbers of a head that turn */
    enum rope_scaling scaling;
    double factor, low_freq, high_freq, orig_ctx, max_ctx;
    double beta_fast, beta_slow;             /* yarn */
    double attn_factor;                      /* multiplies cos and sin; never 0 */
    double attn_factor_long;                 /* longrope: beyond orig_ctx; 0: the same */
    bool always_short;                       /* longrope: short_factor beyond orig_ctx too */
    bool truncate;                           /* yarn: round the ramp's ends to whole dimensions */
    const float *long_factor, *short_factor; /* [n_rot/2] or NULL */
    const float *freq_factors; /* [n_rot/2] divisors GGUF carries as a tensor, or NULL */
};

struct layer_hp {
    int n_heads, n_kv_heads, head_dim, head_dim_v;
    int window;        /* 0: sees everything */
    int rope;          /* index into rope[], -1: this layer does not turn */
    int n_ff;          /* of the dense block; in a layer with experts, of the shared one */
    float attn_scale;  /* of scores; 0: the model's */
    bool moe;          /* has experts */
    struct mix_hp mix; /* what stands in attention's place, where something does */
};

/* The mixture of experts; n 0: there is none. */
struct moe_hp {
    int n, n_used, n_ff;
    enum route_kind route;
    bool norm;                   /* weights of the chosen sum to 1 */
    float scale;                 /* and are multiplied by this; never 0 */
    int n_groups, n_groups_used; /* 0: experts are not in groups */
    int group_top;               /* a group counts as the sum of its so many best */
    float jitter;                /* sparsemixer: who is further behind than this takes no weight */
};

struct hparams {
    const char *arch;        /* GGUF's name: "llama", "qwen2", "gemma3" */
    const struct arch *info; /* its entry in the table */
    enum source_kind from;
    const char *prefix, *head_prefix; /* of tensor names in a folder: "model.", and the head's */
    int n_layers, n_embd, n_vocab, n_ctx;
    int n_word;   /* width of embeddings: n_embd, or they are projected */
    int pos_skip; /* rows before the first learned position */
    struct layer_hp *layers;
    struct rope_hp rope[2];
    int n_rope;
    enum rope_style rope_style;

    enum norm_kind norm;
    float norm_eps;
    float norm_bias1; /* added to norms' weights (gemma from Hugging Face: 1) */
    enum act act;

    float embd_scale, residual_scale, logit_scale; /* factors; never 0 */
    float attn_scale;                              /* of scores; 0: 1/sqrt(head_dim) */
    float attn_softcap, logit_softcap;
    bool qk_norm;       /* rows of ROW_QK are there */
    bool qk_norm_whole; /* q/k norm over all heads together (olmo2), else per head */
    bool tied;          /* lm head is the embedding */
    bool encoder;       /* looks both ways and has no head: embeddings only */
    enum pooling pooling;
    int n_types;        /* rows of token types */
    unsigned bias;      /* BIAS_*: the configuration promises them */
    bool bare_norm;     /* norms have no weights */
    bool last_norm;     /* there is one behind the last layer */
    bool parallel;      /* attention and feed-forward both read the layer's input, */
    bool two_norms;     /* each through its own norm */
    bool norm_after;    /* norms are taken of the residual behind each block (old opt) */
    bool norm_residual; /* the residual goes on from the norm's result (old bloom) */
    float clip_qkv;     /* 0: none; else q, k, v are held within it */
    float alibi;        /* 0: none; else the largest exponent of the slopes: 8 */
    float alibi_scale;  /* of the slopes; never 0 */
    struct moe_hp moe;
    bool mxfp4; /* a folder whose experts are in that format */
};

/* Reads and checks them; names in a's memory. An unknown architecture is E_UNSUPPORTED and named,
 * with the list of known ones. So is an ONNX graph, which has none (model/loadplan.h opens it). */
int hparams_read(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);

/* "none", "linear", …: as both worlds spell them. */
const char *rope_scaling_name(enum rope_scaling s);
bool rope_scaling_by_name(struct str name, enum rope_scaling *out);

/* Is the row of the table for layer l of this model at all (layers of its kind, norms of its kind)?
 */
bool hparams_has(const struct hparams *hp, const struct tensor_row *r, int l);
/* Must it be there? In GGUF files biases and norms of q and k speak for themselves. */
bool hparams_needs(const struct hparams *hp, const struct tensor_row *r, int l);
/* The shape a row of the architecture's table must have in layer l (any l outside the layers). */
int hparams_dim(const struct hparams *hp, enum dim d, int l);
/* The longest sequence the model can run: it has learned so many positions; 0: there is no end. */
int hparams_max_ctx(const struct hparams *hp);
/* Writes the tensor's name in the given world, i the number of the expert or head where it has one;
 * false: it has none there. */
bool hparams_name(const struct hparams *hp, const struct tensor_row *r, int l, int i,
                  enum source_kind world, char *out, size_t cap);

/* slopes[n_heads] of a model with alibi. */
void hparams_slopes(const struct hparams *hp, int n_heads, float *slopes);

/* Of mixers: a row's shape, checks of a layer, keys of GGUF files. */
int hparams_mix_dim(const struct hparams *hp, enum dim d, int l);
int hparams_mix_check(const struct hparams *hp, int l, const char *path, struct err *e);
int hparams_mix_gguf(struct hparams *hp, const struct source *src, struct err *e); /* shapes */
void hparams_mix_gguf_rest(struct hparams *hp, const struct source *src);

/* Of encoders: shapes and the rest, as above; how hidden states are pooled, of any model. */
void hparams_encoder_gguf(struct hparams *hp, const struct source *src);
void hparams_encoder_gguf_rest(struct hparams *hp, const struct source *src);
int hparams_pooling(struct hparams *hp, const struct source *src, struct err *e);

/* The readers, for hparams.c: they fill what the file says; checks come after. */
int hparams_from_hf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);
int hparams_from_gguf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);
/* Does the file have what the row stands for within the tensor of another row? */
bool hparams_covered(const struct hparams *hp, const struct source *src, const struct tensor_row *r,
                     int l);
/* Shapes that keys left open (0), from the tensors of the layers and the embedding. */
int hparams_infer(struct hparams *hp, const struct source *src, struct err *e);
#endif
