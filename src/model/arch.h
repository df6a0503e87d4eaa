/* arch.h - the table of architectures: names in both worlds, tensor names, what is special.
 *
 * An architecture is data: which tensors it has (rows of tensor_row, shared between kin) and
 * the values its own library takes when a configuration leaves them out. Shapes never have
 * defaults: they are in the file, as keys or as tensors. A new kin of llama is one entry. */
#ifndef TERN_MODEL_ARCH_H
#define TERN_MODEL_ARCH_H

#include "base/str.h"
#include "kernel/backend.h"
#include "model/mix.h"

enum dim {
    DIM_NONE,
    DIM_EMBD,
    DIM_Q,
    DIM_K,
    DIM_V,
    DIM_QKV,
    DIM_O,
    DIM_FF,
    DIM_2FF,
    DIM_HEAD,
    DIM_VOCAB,
    DIM_ONE,
    DIM_WORD, /* width of the embedding's rows: n_embd, but for projected ones */
    DIM_POS,  /* rows of learned positions, with those that are skipped */
    DIM_HEADS,
    DIM_KV_HEADS,
    DIM_EXPERTS,
    DIM_EXP_FF,
    DIM_EXP_2FF,
    DIM_TYPES, /* of tokens, which encoders add to their embeddings */
    /* of a mixer (model/mix.h): its projections, channels and taps of its convolution, what it
     * makes of a low rank, that rank, numbers of state, heads and one of them, the latent, what a
     * head's keys and values are made by */
    DIM_2Q,
    DIM_MIX_IN,
    DIM_MIX_CONV,
    DIM_MIX_TAPS,
    DIM_MIX_LOW,
    DIM_MIX_RANK,
    DIM_MIX_STATE,
    DIM_MIX_HEADS,
    DIM_MIX_HEAD,
    DIM_MIX_LATENT,
    DIM_MIX_UP,
    DIM_MIX_NOPE
};

/* How a tensor lies in struct layer: whole, or in parts of which `at` is the first and the others
 * follow. Without cols it is a vector of F32 in the backend's memory, else a struct weight; with a
 * count, an array of them. */
enum row_kind {
    ROW_WHOLE,
    ROW_QKV,        /* rows of q, k, v: into wq, wk, wv */
    ROW_GATE_UP,    /* rows of gate and up */
    ROW_SCALE,      /* float: one number that multiplies a product */
    ROW_PLANE,      /* a matrix of plain numbers that is kept as a vector, columns first */
    ROW_FLAT,       /* a vector that GGUF files have in groups */
    ROW_Q_GATE,     /* rows of queries and their gates, head by head: into wq and wg */
    ROW_QKVZ,       /* rows of q, k, v and gate, key head by key head: into mix.in and mix.z */
    ROW_BETA_ALPHA, /* rows of beta and alpha, key head by key head */
    ROW_KV_B, /* rows of a head's keys and values by the latent: into mix.k_b, turned, and mix.v_b
               */
    ROW_EACH_HEAD, /* a matrix a head: one weight of `count` */
    ROW_Q_WHOLE    /* queries, where they are of no low rank */
};

enum {
    ROW_OPTIONAL = 1 << 0, /* there or not, as the file has it */
    ROW_NORM = 1 << 1,     /* a norm's weight: stored as w - 1 by architectures with ARCH_NORM1 */
    ROW_HEAD = 1 << 2, /* the lm head: has a prefix of its own; its matrix is not there when tied */
    ROW_PERM_Q = 1 << 3, /* rows change their order between the worlds when GGUF turns pairs */
    ROW_PERM_K = 1 << 4,
    ROW_RESIDUAL = 1 << 5, /* a bias that is added to the residual: takes its multiplier */
    /* there when hparams.bias has the bit */
    ROW_BIAS_QKV = 1 << 6,
    ROW_BIAS_O = 1 << 7,
    ROW_BIAS_MLP = 1 << 8,
    ROW_BIAS_HEAD = 1 << 9,
    /* there only in models or layers of one kind */
    ROW_DENSE = 1 << 10,  /* layers without experts */
    ROW_MOE = 1 << 11,    /* layers with experts */
    ROW_SHARED = 1 << 12, /* and with an expert that every token asks */
    ROW_QK = 1 << 13,     /* models that norm q and k */
    ROW_AFFINE = 1 << 14, /* models whose norms have weights */
    ROW_ONE =
        1
        << 15, /* parallel attention and feed-forward that share a norm, or one behind the other */
    ROW_TWO = 1 << 16,  /* parallel with a norm each */
    ROW_SEQ = 1 << 17,  /* one behind the other */
    ROW_PROJ = 1 << 18, /* embeddings of another width than the layers */
    /* how Hugging Face stores it; GGUF files have [out, in] and rows in order */
    ROW_TURNED = 1 << 19,    /* [in, out] */
    ROW_GROUPS = 1 << 20,    /* rows of q, k, v by KV head: its queries, its key, its value */
    ROW_ALTERNATE = 1 << 21, /* rows of gate and up in turn */
    ROW_SPLIT = 1 << 22,     /* files may have it within another, optional row's tensor instead */
    ROW_F32 = 1 << 23,       /* a matrix that stays F32 in files we write: routers, positions */
    ROW_LAST_NORM = 1 << 24, /* models with a norm behind the last layer */
    ROW_FIRST = 1 << 25,     /* of no layer, and read before the first one: lies on its device */
    ROW_MX = 1 << 26,    /* folders whose experts are MXFP4: nibbles here, scales in "…_scales" */
    ROW_NO_MX = 1 << 27, /* and those where they are plain numbers */
    ROW_MIXER = 1 << 28, /* layers whose mixer is not attention */
    ROW_ATTN = 1 << 29,  /* layers whose mixer is */
    ROW_LOG = 1 << 30,   /* Hugging Face stores the logarithm of what is below 0 */
    ROW_BIASES = ROW_BIAS_QKV | ROW_BIAS_O | ROW_BIAS_MLP | ROW_BIAS_HEAD
};

struct tensor_row {
    /* '*' is the layer, '#' runs over count; hf without the prefix; NULL: not in that world. A
     * tensor with a count is one of [count, …] where its name has no '#'. */
    const char *gguf, *hf;
    enum row_kind kind;
    unsigned flags;
    size_t at;           /* of the member in struct layer, or in struct model without a '*' */
    enum dim rows, cols; /* cols is DIM_NONE for vectors */
    enum dim count;      /* DIM_NONE: one of it */
};
/* A tensor that is packed in one world and not in the other has rows for each: hf NULL in those of
 * GGUF, gguf NULL in those of Hugging Face, the same members. */

enum {
    ARCH_NORM1 = 1 << 0,        /* Hugging Face stores norms as w - 1; GGUF files hold w */
    ARCH_EMBD_SQRT = 1 << 1,    /* embeddings times sqrt(n_embd) */
    ARCH_QK_WHOLE = 1 << 2,     /* q and k are normed over all heads together */
    ARCH_PARTIAL_ROPE = 1 << 3, /* partial_rotary_factor counts; arch.partial where it is missing */
    ARCH_TWO_ROPES = 1 << 4,    /* layers with a window turn by a base of their own */
    ARCH_WINDOW = 1 << 5,       /* every layer has sliding_window; layer_types is not looked at */
    ARCH_LAYER_TYPES = 1 << 6,  /* sliding_window where layer_types says so */
    ARCH_USE_WINDOW = 1 << 7,   /* no window at all unless use_sliding_window */
    ARCH_QUERY_SCALAR = 1 << 8, /* scores are scaled by query_pre_attn_scalar ^ -1/2 */
    ARCH_ATTN_CAP = 1 << 9,     /* attn_logit_softcapping */
    ARCH_LOGIT_CAP = 1 << 10,   /* final_logit_softcapping */
    ARCH_MULTIPLIERS = 1 << 11, /* embedding, attention, residual multipliers, logits_scaling */
    ARCH_NO_ROPE = 1 << 12,     /* some layers do not turn: no_rope_layers */
    ARCH_LONGROPE = 1 << 13,    /* its scalings "su" and "yarn" mean longrope */
    ARCH_USE_RULE = 1 << 14,    /* use_sliding_window counts only where layer_types is missing */
    ARCH_ROPELESS = 1 << 15,    /* nothing turns */
    ARCH_ROPE_PAIRS = 1 << 16,  /* Hugging Face's weights turn pairs (2i, 2i + 1) */
    ARCH_ROPE_SLIDING = 1 << 17, /* only layers with a window turn */
    ARCH_ROPE_ALL = 1 << 18,     /* with it: all do where no layer has a window */
    ARCH_MHA = 1 << 19,          /* as many KV heads as heads, whatever num_key_value_heads says */
    ARCH_ALIBI = 1 << 20,        /* scores fall with distance */
    ARCH_LOGIT_SCALE = 1 << 21,  /* logit_scale multiplies logits */
    ARCH_QK_LATE = 1 << 22,      /* q and k are normed behind the rotary embedding */
    ARCH_QK_LAYER = 1 << 23,     /* by a layer norm */
    ARCH_QK_EACH = 1 << 24,      /* every head has its own weights */
    ARCH_BARE_NORM = 1 << 25,    /* norms have no weights */
    ARCH_PARALLEL = 1 << 26,     /* attention and feed-forward both read the layer's input */
    ARCH_PARALLEL_KEY =
        1 << 27, /* when use_parallel_residual says so (ARCH_PARALLEL: when it is missing) */
    ARCH_WINDOW_KEYED = 1 << 28, /* GGUF files name the window or have none */
    ARCH_OWN_KEYS = 1 << 29      /* has keys that hparams_own.c reads */
};

enum norm_kind { NORM_RMS, NORM_LAYER };

/* Which layers have the window where layer_types is missing. */
enum window_rule {
    WINDOW_EVERY, /* all but every window_every-th */
    WINDOW_FROM,  /* from max_window_layers on */
    WINDOW_ODD    /* every other one, before max_window_layers */
};

enum { BIAS_QKV = 1, BIAS_O = 2, BIAS_MLP = 4, BIAS_HEAD = 8, BIAS_ALL = 7 };

/* Experts, where a configuration leaves it out. */
struct arch_moe {
    enum route_kind route;
    bool norm;        /* weights of the chosen sum to 1; a key may say otherwise */
    bool norm_fixed;  /* no key does */
    bool gguf_norm;   /* what GGUF files without the key mean */
    bool dense_ff;    /* intermediate_size is of the dense layers; experts have their own */
    bool shared_gate; /* the shared expert's output is weighed by a gate */
    float scale;      /* of the weights; 0: 1 */
    bool greedy;      /* groups count only where topk_method says so */
};

struct arch {
    const char *gguf;  /* general.architecture */
    const char *hf[3]; /* model_type, the first for writing */
    enum mixer mix;    /* what stands in attention's place, in some or all layers */
    bool encoder;      /* looks both ways, has no head */
    unsigned flags;
    enum rope_style gguf_rope;            /* order of the rotary pairs in GGUF files */
    const struct tensor_row *const *rows; /* NULL-terminated list of tables; the embedding first */
    enum norm_kind norm;
    /* what its library takes when the configuration has no such key */
    double eps, theta, theta_window; /* theta 0: 10000 */
    double partial;
    int n_ctx, orig_ctx, window;
    int n_heads;      /* the one shape that tensors do not tell; 0: must be said */
    int window_every; /* n > 0: all but every n-th layer have the window */
    enum window_rule window_rule;
    float attn_cap, logit_cap, logit_scale;
    enum act act;
    bool tied;
    /* keys it spells its own way */
    const char *act_key;              /* NULL: hidden_act; "": it has none */
    const char *eps_key;              /* NULL: rms_norm_eps or layer_norm_eps; "": none */
    const char *bias_key;             /* NULL: attention_bias */
    const char *qk_key;               /* ROW_QK rows are there when it says so; NULL: always */
    unsigned bias_always, bias_keyed; /* BIAS_*: there in any case, and when bias_key says so */
    bool bias_default;                /* when bias_key is missing */
    struct arch_moe moe;
    int gguf_wide;  /* GGUF files with so many layers scale scores by n_embd / n_heads */
    bool gguf_silu; /* GGUF files of this name mean silu unless they say otherwise */
};

/* The table, in several files; each ends with an entry without names. */
extern const struct arch archs_llama[], archs_gpt[], archs_moe[], archs_state[], archs_encoder[];

const struct arch *arch_by_gguf(struct str name);     /* NULL: not known */
const struct arch *arch_by_hf(struct str model_type); /* NULL: not known */
/* "bitnet, gemma, …": names in the given world, for messages. Static memory. */
const char *arch_list(bool hf);

/* Calls of rows: for (r = arch_row(a, &it); r; r = arch_row(a, &it)), it starting at 0. */
const struct tensor_row *arch_row(const struct arch *a, int *it);
static inline bool row_in_layer(const struct tensor_row *r)
{
    return strchr(r->gguf ? r->gguf : r->hf, '*') != NULL;
}
static inline bool row_is_vector(const struct tensor_row *r)
{
    return (r->cols == DIM_NONE && r->kind != ROW_SCALE) || r->kind == ROW_PLANE;
}

bool act_by_name(struct str name, enum act *out); /* as config.json spells them */
const char *act_name(enum act a);
#endif
