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

enum norm_kind { NORM_RMS, NORM_LAYER };

enum rope_scaling {
    ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_DYNAMIC, ROPE_SCALINGS
};

/* One kind of rotary embedding; gemma3 has two, most models one. */
struct rope_hp {
    double theta;
    int n_rot;                       /* numbers of a head that turn */
    enum rope_scaling scaling;
    double factor, low_freq, high_freq, orig_ctx, max_ctx;
    double beta_fast, beta_slow;     /* yarn */
    double attn_factor;              /* multiplies cos and sin; never 0 */
    bool truncate;                   /* yarn: round the ramp's ends to whole dimensions */
    const float *long_factor, *short_factor;                 /* [n_rot/2] or NULL */
    const float *freq_factors;       /* [n_rot/2] divisors GGUF carries as a tensor, or NULL */
};

struct layer_hp {
    int n_heads, n_kv_heads, head_dim, head_dim_v;
    int window;                      /* 0: sees everything */
    int rope;                        /* index into rope[], -1: this layer does not turn */
    int n_ff;
};

struct hparams {
    const char *arch;                /* GGUF's name: "llama", "qwen2", "gemma3" */
    const struct arch *info;         /* its entry in the table */
    enum source_kind from;
    const char *prefix;              /* of tensor names in a folder: "model." */
    int n_layers, n_embd, n_vocab, n_ctx;
    struct layer_hp *layers;
    struct rope_hp rope[2];
    int n_rope;
    enum rope_style rope_style;

    enum norm_kind norm;
    float norm_eps;
    float norm_bias1;                /* added to norms' weights (gemma from Hugging Face: 1) */
    enum act act;

    float embd_scale, residual_scale, logit_scale;           /* factors; never 0 */
    float attn_scale;                /* of scores; 0: 1/sqrt(head_dim) */
    float attn_softcap, logit_softcap;
    bool qk_norm_whole;              /* q/k norm over all heads together (olmo2), else per head */
    bool tied;                       /* lm head is the embedding */
    bool attn_bias, mlp_bias;        /* the configuration promises them */
};

/* Reads and checks them; names in a's memory. An unknown architecture is E_UNSUPPORTED and named,
 * with the list of known ones. */
int hparams_read(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);

/* "none", "linear", …: as both worlds spell them. */
const char *rope_scaling_name(enum rope_scaling s);
bool rope_scaling_by_name(struct str name, enum rope_scaling *out);

/* The shape a row of the architecture's table must have in layer l (any l outside the layers). */
int hparams_dim(const struct hparams *hp, enum dim d, int l);
/* Writes the tensor's name in the world hp was read from (or in the other one); false: it has none
 * there. */
bool hparams_name(const struct hparams *hp, const struct tensor_row *r, int l,
                  enum source_kind world, char *out, size_t cap);

/* The two readers, for hparams.c: they fill what the file says; checks come after. */
int hparams_from_hf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);
int hparams_from_gguf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e);
/* Shapes that keys left open (0), from the tensors of the layers and the embedding. */
int hparams_infer(struct hparams *hp, const struct source *src, struct err *e);
#endif
