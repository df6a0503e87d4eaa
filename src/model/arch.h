/* arch.h - the table of architectures: names, tensors, and properties of each model family.
 *
 * An architecture is data, not code. Its entry (struct arch) has the names of the family in GGUF
 * files (general.architecture) and in Hugging Face folders (model_type in config.json), a list of
 * the tensors it has, flags for what is special about it, and default values. The defaults are
 * those that the family's reference library (transformers) uses when config.json has no such key.
 * Shapes have no defaults: they are in the file, as keys or as tensors.
 *
 * A tensor is a struct tensor_row: its name in a GGUF file ("blk.*.attn_q.weight"), its name in a
 * folder ("layers.*.self_attn.q_proj.weight"), where it is stored in struct layer or struct model,
 * its shape, and for which models and layers it exists. Families share tables of rows
 * (arch_rows.h). Loading (weights.c), shape inference (hparams_infer.c) and conversion (naming.c)
 * all work from these rows. A new relative of llama is one entry; see docs/a-model.md.
 *
 * Below, "folder" means a Hugging Face folder, and "file format" GGUF or folder. */
#ifndef TERN_MODEL_ARCH_H
#define TERN_MODEL_ARCH_H

#include "base/str.h"
#include "kernel/backend.h"
#include "model/mix.h"

/* A dimension of a tensor, by meaning; hparams_dim gives its size in a layer. */
enum dim {
    DIM_NONE,
    DIM_EMBD, /* hidden size */
    DIM_Q,    /* n_heads * head_dim */
    DIM_K,    /* n_kv_heads * head_dim; latent attention: latent and rotary part */
    DIM_V,    /* n_kv_heads * head_dim_v */
    DIM_QKV,  /* the three together */
    DIM_O,    /* input of the output projection */
    DIM_FF,   /* feed-forward width */
    DIM_2FF,
    DIM_HEAD, /* head_dim */
    DIM_VOCAB,
    DIM_ONE,
    DIM_WORD, /* width of the embedding: n_embd, unless it is projected (opt) */
    DIM_POS,  /* rows of learned positions, including unused ones at the start */
    DIM_HEADS,
    DIM_KV_HEADS,
    DIM_EXPERTS,
    DIM_EXP_FF, /* feed-forward width of an expert */
    DIM_EXP_2FF,
    DIM_TYPES,       /* token types, which encoders add to their embeddings */
    DIM_2Q,          /* queries and their gates */
    DIM_PLE,         /* per-layer inputs: width of one layer's */
    DIM_PLES,        /* of all layers together */
    DIM_PLE_VOCAB,   /* ids that have per-layer inputs */
    DIM_STREAMS,     /* residual streams */
    DIM_STREAMS1,    /* those but the first */
    DIM_STREAMS2,    /* pairs of them */
    DIM_LAUREL,      /* rank of the low-rank residual */
    DIM_INDEX_Q,     /* index queries of all heads */
    DIM_INDEX_K,     /* an index key */
    DIM_INDEX_HEADS, /* heads of the indexer */
    DIM_QUERY_IN,    /* what queries are projected from: the latent, or n_embd */
    DIM_EXP_IN,      /* input and output of an expert: n_embd, unless experts work on a latent */
    DIM_HYPER,       /* all residual streams of a token together (hyper-connections) */
    DIM_HYPER_N,     /* their number */
    DIM_HYPER_MIX,   /* weights of a block that reads and writes them */
    DIM_THREE,
    DIM_USED,      /* experts of a token */
    DIM_RATE,      /* compressed attention: positions of an entry */
    DIM_RAW,       /* raw numbers of an entry's positions */
    DIM_INDEX_RAW, /* those of index keys */
    DIM_O_GROUP,   /* grouped output projection: inputs of a group */
    DIM_ROUTES,    /* outputs of the router: experts, and those that return their input */
    /* Of mixers other than attention (model/mix.h): */
    DIM_MIX_IN,     /* output of the input projection */
    DIM_MIX_CONV,   /* channels of the convolution */
    DIM_MIX_TAPS,   /* kernel size of the convolution */
    DIM_MIX_LOW,    /* output of the low-rank projection */
    DIM_MIX_RANK,   /* that rank */
    DIM_MIX_STATE,  /* state elements per channel */
    DIM_MIX_HEADS,  /* heads of the recurrence */
    DIM_MIX_HEAD,   /* elements of one */
    DIM_MIX_LATENT, /* latent of keys and values */
    DIM_MIX_UP,     /* up-projection of the latent: keys and values of all heads */
    DIM_MIX_KEYS,   /* queries or keys of all heads */
    DIM_MIX_VALUES, /* values of all heads */
    DIM_MIX_INNER,  /* channels */
    DIM_MIX_NOPE    /* part of a query head without rotary embedding */
};

/* How a tensor becomes members of struct layer. A packed tensor has several parts: `at` is the
 * member of the first, the others follow it. A tensor without cols becomes an F32 vector in device
 * memory, one with cols a struct weight, one with a count an array of these. */
enum row_kind {
    ROW_WHOLE,      /* one tensor, one member */
    ROW_QKV,        /* rows of q, k and v: to wq, wk, wv */
    ROW_GATE_UP,    /* rows of gate and up */
    ROW_SCALE,      /* a single float that multiplies a matrix product */
    ROW_PLANE,      /* a small matrix that is stored as an F32 vector, transposed */
    ROW_FLAT,       /* a vector that GGUF files store as [groups, n] */
    ROW_Q_GATE,     /* rows of queries and gates, interleaved by head: to wq and wg */
    ROW_QKVZ,       /* rows of q, k, v and gate, by key head: to mix.in and mix.z */
    ROW_BETA_ALPHA, /* rows of beta and alpha, by key head */
    ROW_KV_B,       /* up-projection of the latent, by head: to mix.k_b (transposed) and mix.v_b */
    ROW_EACH_HEAD,  /* a matrix per head: one weight with n = count */
    ROW_IDS,        /* numbers of experts, which become 32-bit integers */
    ROW_Q_WHOLE     /* the query projection of models that do not factor it (MLA without q_rank) */
};

enum {
    ROW_OPTIONAL = 1 << 0, /* may be missing */
    ROW_NORM = 1 << 1,     /* a norm weight: folders of ARCH_NORM1 families store w - 1 */
    ROW_HEAD = 1 << 2,     /* the output head: may have another name prefix; none if tied */
    ROW_PERM_Q = 1 << 3,   /* rows are reordered when the file formats differ in rope_style */
    ROW_PERM_K = 1 << 4,
    ROW_RESIDUAL = 1 << 5, /* a bias added to the residual stream: multiplied by residual_scale */
    /* Exists if hparams.bias has the bit: */
    ROW_BIAS_QKV = 1 << 6,
    ROW_BIAS_O = 1 << 7,
    ROW_BIAS_MLP = 1 << 8,
    ROW_BIAS_HEAD = 1 << 9,
    /* Exists only in models or layers of one kind: */
    ROW_DENSE = 1 << 10,  /* layers without experts */
    ROW_MOE = 1 << 11,    /* layers with experts */
    ROW_SHARED = 1 << 12, /* layers with a shared expert, which every token uses */
    ROW_QK = 1 << 13,     /* models that normalize q and k */
    ROW_AFFINE = 1 << 14, /* models whose norms have weights */
    ROW_ONE = 1 << 15,    /* models without two_norms */
    ROW_TWO = 1 << 16,    /* models with two_norms: attention and feed-forward in parallel, each
                           * with its own norm */
    ROW_SEQ = 1 << 17,    /* models with attention and feed-forward in sequence */
    ROW_PROJ = 1 << 18,   /* models whose embeddings are projected to the hidden size */
    /* How a folder stores it. GGUF files have [out, in] and rows in order. */
    ROW_TRANSPOSED = 1 << 19, /* [in, out] */
    ROW_GROUPS = 1 << 20,     /* rows of q, k, v by KV head: its queries, its key, its value */
    ROW_ALTERNATE = 1 << 21,  /* rows of gate and up alternate */
    ROW_SPLIT = 1 << 22,      /* may instead be a part of the packed tensor of an optional row */
    ROW_F32 = 1 << 23,        /* a matrix that stays F32 in files tern writes: router, positions */
    ROW_LAST_NORM = 1 << 24,  /* models with a norm after the last layer */
    ROW_FIRST = 1 << 25,      /* not in a layer, used before the first one: on its device */
    ROW_MX = 1 << 26,    /* folders with MXFP4 experts: "..._blocks"; scales are in "..._scales" */
    ROW_NO_MX = 1 << 27, /* folders of the same family with unquantized experts */
    ROW_MIXER = 1 << 28, /* layers whose mixer is not attention */
    ROW_ATTN = 1 << 29,  /* layers whose mixer is attention */
    ROW_LOG = 1 << 30,   /* folders store log(-x); GGUF files and tern use x, which is negative */
    ROW_BIASES = ROW_BIAS_QKV | ROW_BIAS_O | ROW_BIAS_MLP | ROW_BIAS_HEAD,
    ROW_FFN = 1ll << 31,      /* layers with a feed-forward block */
    ROW_LATENT = 1ll << 32,   /* models whose experts work on a latent */
    ROW_INDEX = 1ll << 33,    /* layers with an indexer of sparse attention */
    ROW_EVEN = 1ll << 34,     /* even layers only (longcat) */
    ROW_SSM_NORM = 1ll << 35, /* state space layers with a norm after the gate */
    ROW_MIXED = 1ll << 36,    /* layers with a mixer, attention included */
    ROW_PLE = 1ll << 37,      /* models with per-layer inputs */
    ROW_HASH = 1ll << 38,     /* layers whose experts depend on the token's id */
    ROW_NO_HASH = 1ll << 39,  /* other layers with experts */
    ROW_COMPRESS = 1ll << 40  /* layers with compressed attention */
};

/* One tensor. A tensor that is packed in one file format and separate in the other has rows for
 * each: hf is NULL in the rows of GGUF, gguf is NULL in those of folders, and both name the same
 * members. */
struct tensor_row {
    /* Names: '*' stands for the layer, '#' for the number of the expert or head; '@' for the layer's
     * number in pairs of layers that folders store as one ('*' is then the pair's). hf is without the
     * prefix ("model."). NULL: not in that format. A tensor with a count whose name has no '#' is
     * stacked: [count, ...]. */
    const char *gguf, *hf;
    enum row_kind kind;
    uint64_t flags;      /* ROW_* */
    size_t at;           /* offset in struct layer; without '*' in the name, in struct model */
    enum dim rows, cols; /* cols is DIM_NONE for vectors */
    enum dim count;      /* DIM_NONE: one tensor */
};

/* Properties of an architecture. Quoted names are keys of config.json. */
enum {
    ARCH_NORM1 = 1 << 0,         /* folders store norm weights as w - 1; GGUF files as w */
    ARCH_EMBD_SQRT = 1 << 1,     /* embeddings are multiplied by sqrt(n_embd) */
    ARCH_QK_WHOLE = 1 << 2,      /* q and k are normalized over all heads together */
    ARCH_PARTIAL_ROPE = 1 << 3,  /* "partial_rotary_factor" applies; default arch.partial */
    ARCH_TWO_ROPES = 1 << 4,     /* layers with a window have another rotary base */
    ARCH_WINDOW = 1 << 5,        /* every layer has "sliding_window"; "layer_types" is ignored */
    ARCH_LAYER_TYPES = 1 << 6,   /* layers have "sliding_window" as "layer_types" says */
    ARCH_USE_WINDOW = 1 << 7,    /* no window unless "use_sliding_window" is true */
    ARCH_QUERY_SCALAR = 1 << 8,  /* scores are scaled by "query_pre_attn_scalar" ^ -1/2 */
    ARCH_ATTN_CAP = 1 << 9,      /* "attn_logit_softcapping" */
    ARCH_LOGIT_CAP = 1 << 10,    /* "final_logit_softcapping" */
    ARCH_MULTIPLIERS = 1 << 11,  /* granite's "..._multiplier" keys and "logits_scaling" */
    ARCH_NO_ROPE = 1 << 12,      /* layers of "no_rope_layers" have no rotary embedding */
    ARCH_LONGROPE = 1 << 13,     /* rope types "su" and "yarn" mean longrope */
    ARCH_USE_RULE = 1 << 14,     /* "use_sliding_window" applies only without "layer_types" */
    ARCH_ROPELESS = 1 << 15,     /* no rotary embedding at all */
    ARCH_ROPE_PAIRS = 1 << 16,   /* folders rotate pairs (2i, 2i + 1): ROPE_PAIR */
    ARCH_ROPE_SLIDING = 1 << 17, /* only layers with a window have rotary embedding */
    ARCH_ROPE_ALL = 1 << 18,     /* with ARCH_ROPE_SLIDING: all layers do if none has a window */
    ARCH_MHA = 1 << 19,          /* multi-head: "num_key_value_heads" is ignored */
    ARCH_ALIBI = 1 << 20,        /* ALiBi position bias */
    ARCH_LOGIT_SCALE = 1 << 21,  /* "logit_scale" multiplies the logits */
    ARCH_QK_LATE = 1 << 22,      /* q and k are normalized after the rotary embedding */
    ARCH_QK_LAYER = 1 << 23,     /* q and k are normalized by LayerNorm */
    ARCH_QK_EACH = 1 << 24,      /* q and k norms have weights per head */
    ARCH_BARE_NORM = 1 << 25,    /* norms have no weights */
    ARCH_PARALLEL = 1 << 26,     /* attention and feed-forward run in parallel */
    ARCH_PARALLEL_KEY = 1 << 27, /* "use_parallel_residual" decides; default: ARCH_PARALLEL */
    ARCH_WINDOW_KEYED = 1 << 28, /* GGUF files without the window key have no window */
    ARCH_OWN_KEYS = 1 << 29,     /* has keys of its own, read by hparams_own.c */
    ARCH_QK_BARE = 1 << 30,      /* q and k are normalized without weights */
    ARCH_ROPE_BACK = 1ll << 31,  /* rotates in the opposite direction */
    ARCH_GATE = 1ll << 32,       /* attention has an output gate, a projection of its own */
    ARCH_EMBD_NORM = 1ll << 33,  /* embeddings are normalized without weights */
    ARCH_CHUNKS = 1ll << 34,     /* layers attend to chunks of "attention_chunk_size" positions, as
                                  * "layer_types" says */
    ARCH_POS_SCALE = 1ll << 35,  /* "llama_4_scaling_beta": queries grow with the position */
    ARCH_LAYER_ROPE = 1ll << 36, /* "layer_rope_theta": a rotary base for each layer */
    ARCH_VALUE_NORM = 1ll << 37, /* values are normalized by head, without weights */
    ARCH_ALONE = 1ll << 38,      /* mixers only: no attention, no feed-forward blocks */
    ARCH_PAIRS = 1ll << 39,      /* folders store two layers as one; hparams count both */
    ARCH_HYBRID = 1ll << 41,     /* some layers have a mixer: keys in hparams_hybrid.c */
    ARCH_FOLDER =
        1ll << 42, /* Hugging Face folders only: its keys in GGUF files are not read yet */
    ARCH_ROPE_TAIL = 1ll << 40, /* the last elements of a head are rotated, not the first */
    ARCH_TILED = 1ll << 43,     /* GGUF files have value heads in another order: tiling.h */
    ARCH_SECTIONS = 1ll << 44   /* "mrope_section": GGUF files must have rope.dimension_sections */
};

enum norm_kind { NORM_RMS, NORM_LAYER };

/* Which layers have the window if "layer_types" is missing. */
enum window_rule {
    WINDOW_EVERY, /* all but every window_every-th layer */
    WINDOW_FROM,  /* layers from "max_window_layers" on */
    WINDOW_ODD    /* layers 0, 2, 4, ... below "max_window_layers" */
};

enum { BIAS_QKV = 1, BIAS_O = 2, BIAS_MLP = 4, BIAS_HEAD = 8, BIAS_ALL = 7 };

/* Mixture of experts: properties and defaults. */
struct arch_moe {
    enum route_kind route;
    bool norm;        /* default of "norm_topk_prob": the weights are divided by their sum */
    bool norm_fixed;  /* the key is ignored */
    bool gguf_norm;   /* default for GGUF files */
    bool dense_ff;    /* "intermediate_size" is that of dense layers; experts have their own key */
    bool shared_gate; /* the output of the shared expert is multiplied by a gate */
    float scale;      /* default of "routed_scaling_factor"; 0: 1 */
    bool greedy;      /* group-limited routing only if "topk_method" says so */
    int first;        /* dense layers before the first one with experts, if no key says how many */
    bool group_two;   /* softmax routing: a group's score is its two best experts */
    bool no_shared;   /* no shared expert unless a key says how many */
};

struct arch {
    const char
        *gguf; /* general.architecture; several entries may have the same: see arch_by_gguf */
    const char
        *gguf_also[3]; /* other names that some of its models have in GGUF files: arch_named */
    const char *hf[3]; /* model_type; the first one is written by tern convert */
    enum mixer mix;    /* the mixer of the layers without attention; MIX_ATTN: all have it */
    bool encoder;      /* bidirectional attention, no output head */
    uint64_t flags;    /* ARCH_* */
    enum rope_style gguf_rope; /* rotary pairs in GGUF files */
    const struct tensor_row *const
        *rows; /* NULL-terminated list of tables; its first row is the embedding */
    enum norm_kind norm;
    /* Defaults for keys that config.json does not have: */
    double eps, theta,
        theta_window; /* of norms; rotary bases (0: 10000), of layers with a window */
    double partial;   /* with ARCH_PARTIAL_ROPE */
    int n_ctx, orig_ctx, window;
    int n_heads;      /* 0: the key is required, because tensors do not show it */
    int window_every; /* n > 0: all but every n-th layer have the window */
    enum window_rule window_rule;
    float attn_cap, logit_cap, logit_scale;
    enum act act;
    bool tied;
    /* Names of keys that differ from the usual ones: */
    const char *act_key;              /* NULL: "hidden_act"; "": there is no key */
    const char *eps_key;              /* NULL: "rms_norm_eps" or "layer_norm_eps"; "": none */
    const char *bias_key;             /* NULL: "attention_bias" */
    const char *qk_key;               /* key that enables ROW_QK rows; NULL: they always exist */
    unsigned bias_always, bias_keyed; /* BIAS_*: always; if bias_key is true */
    bool bias_default;                /* if bias_key is missing */
    struct arch_moe moe;
    int gguf_wide;  /* GGUF models with exactly this many layers scale scores by
                     * (n_embd / n_heads) ^ -1/2 (the largest gemma2 and gemma3) */
    bool gguf_silu; /* GGUF files use SiLU unless a key names another activation */
};

/* The table, in several files; each part ends with an empty entry. */
extern const struct arch archs_llama[], archs_gpt[], archs_moe[], archs_latent[], archs_gemma[],
    archs_state[], archs_hybrid[], archs_encoder[];

/* The first entry with this name; NULL: unknown. Entries that share a GGUF name have the same
 * tensors there, and the first one reads the files of all. */
const struct arch *arch_by_gguf(struct str name);
/* The entry's own text of a GGUF name: gguf or one of gguf_also; NULL: it has no such name. */
const char *arch_named(const struct arch *a, struct str name);
const struct arch *arch_by_hf(struct str model_type); /* NULL: unknown */
/* "gemma, gemma2, ...": the names, of folders or of GGUF files, that begin most like `name`, for
 * messages. Writes to out, which has room for ARCH_NEAR names; returns it or a part of it. */
enum { ARCH_NEAR = 6 };
const char *arch_near(struct str name, bool hf, char *out, size_t cap);
int arch_count(void); /* entries of the table */

/* Iterates over the rows of all tables: it = 0; while ((r = arch_row(a, &it))) ... */
const struct tensor_row *arch_row(const struct arch *a, int *it);
/* Belongs to a layer, not to the whole model. */
static inline bool row_in_layer(const struct tensor_row *r)
{
    return strchr(r->gguf ? r->gguf : r->hf, '*') != NULL;
}
/* Becomes an F32 vector. */
static inline bool row_is_vector(const struct tensor_row *r)
{
    return (r->cols == DIM_NONE && r->kind != ROW_SCALE) || r->kind == ROW_PLANE;
}

bool act_by_name(struct str name, enum act *out); /* names of config.json */
const char *act_name(enum act a);                 /* the first name of it */
#endif
