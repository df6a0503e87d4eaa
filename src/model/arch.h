/* arch.h - the table of architectures: names in both worlds, tensor names, what is special.
 *
 * An architecture is data: which tensors it has (rows of tensor_row, shared between kin) and
 * the values its own library takes when a configuration leaves them out. Shapes never have
 * defaults: they are in the file, as keys or as tensors. A new kin of llama is one entry. */
#ifndef TERN_MODEL_ARCH_H
#define TERN_MODEL_ARCH_H

#include "base/str.h"
#include "kernel/backend.h"

enum dim {
    DIM_NONE, DIM_EMBD, DIM_Q, DIM_K, DIM_V, DIM_QKV, DIM_O, DIM_FF, DIM_2FF, DIM_HEAD, DIM_VOCAB,
    DIM_ONE
};

enum row_kind {
    ROW_VEC,                 /* float * : converted to F32 in the backend's memory */
    ROW_MAT,                 /* struct weight */
    ROW_QKV,                 /* packed rows: sliced into wq, wk, wv */
    ROW_GATE_UP,             /* packed rows: sliced into gate, up */
    ROW_SCALE                /* float: one number that multiplies a product */
};

enum {
    ROW_OPTIONAL = 1,        /* there or not, as the file has it */
    ROW_NORM = 2,            /* a norm's weight: stored as w - 1 by architectures with ARCH_NORM1 */
    ROW_ATTN_BIAS = 4,       /* there when the configuration says attention_bias */
    ROW_MLP_BIAS = 8,        /* there when it says mlp_bias */
    ROW_HEAD = 16,           /* the lm head: outside the prefix, not there when tied */
    ROW_PERM_Q = 32,         /* rows change their order between the worlds when GGUF turns pairs */
    ROW_PERM_K = 64,
    ROW_RESIDUAL = 128,      /* a bias that is added to the residual: takes its multiplier */
    ROW_QKV_BIAS = 256,      /* there with ARCH_QKV_BIAS, whatever the configuration says */
    ROW_FIRST = 512          /* of no layer, and read before the first one: lies on its device */
};

struct tensor_row {
    const char *gguf, *hf;   /* '*' is the layer; hf without the prefix; NULL: not in that world */
    enum row_kind kind;
    unsigned flags;
    size_t at;               /* of the member in struct layer, or in struct model without a '*' */
    enum dim rows, cols;     /* cols is DIM_NONE for vectors */
};

enum {
    ARCH_NORM1 = 1,          /* Hugging Face stores norms as w - 1; GGUF files hold w */
    ARCH_EMBD_SQRT = 2,      /* embeddings times sqrt(n_embd) */
    ARCH_QK_WHOLE = 4,       /* q and k are normed over all heads together */
    ARCH_PARTIAL_ROPE = 8,   /* partial_rotary_factor counts */
    ARCH_TWO_ROPES = 16,     /* layers with a window turn by a base of their own */
    ARCH_WINDOW = 32,        /* every layer has sliding_window; layer_types is not looked at */
    ARCH_LAYER_TYPES = 64,   /* sliding_window where layer_types says so */
    ARCH_USE_WINDOW = 128,   /* no window at all unless use_sliding_window */
    ARCH_QUERY_SCALAR = 256, /* scores are scaled by query_pre_attn_scalar ^ -1/2 */
    ARCH_ATTN_CAP = 512,     /* attn_logit_softcapping */
    ARCH_LOGIT_CAP = 1024,   /* final_logit_softcapping */
    ARCH_MULTIPLIERS = 2048, /* embedding, attention, residual multipliers, logits_scaling */
    ARCH_NO_ROPE = 4096,     /* some layers do not turn: no_rope_layers */
    ARCH_LONGROPE = 8192,    /* its scalings "su" and "yarn" mean longrope */
    ARCH_QKV_BIAS = 16384,
    ARCH_USE_RULE = 32768    /* use_sliding_window counts only where layer_types is missing */
};

struct arch {
    const char *gguf;                        /* general.architecture */
    const char *hf[3];                       /* model_type, the first for writing */
    unsigned flags;
    enum rope_style gguf_rope;               /* order of the rotary pairs in GGUF files */
    const struct tensor_row *const *rows;    /* NULL-terminated list of tables */
    /* what its library takes when the configuration has no such key */
    double eps, theta, theta_window;
    int n_ctx, orig_ctx, window;
    int window_every;                        /* n > 0: all but every n-th layer have the window */
    float attn_cap, logit_cap;
    enum act act;
    const char *act_key;                     /* "hidden_act" */
    bool tied;
    int gguf_wide;           /* GGUF files with so many layers scale scores by n_embd / n_heads */
    bool gguf_silu;          /* GGUF files of this name mean silu unless they say otherwise */
};

const struct arch *arch_by_gguf(struct str name);        /* NULL: not known */
const struct arch *arch_by_hf(struct str model_type);    /* NULL: not known */
/* "bitnet, gemma, …": names in the given world, for messages. Static memory. */
const char *arch_list(bool hf);

/* Calls of rows: for (r = arch_row(a, &it); r; r = arch_row(a, &it)), it starting at 0. */
const struct tensor_row *arch_row(const struct arch *a, int *it);
static inline bool row_in_layer(const struct tensor_row *r)
{
    return strchr(r->gguf ? r->gguf : r->hf, '*') != NULL;
}

bool act_by_name(struct str name, enum act *out);        /* as config.json spells them */
const char *act_name(enum act a);
#endif
