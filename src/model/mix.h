/* mix.h - token mixers other than plain attention: state space models (Mamba, Mamba 2), short
 * convolutions (LFM2), gated delta nets (Qwen3-Next), multi-head latent attention (DeepSeek).
 *
 * A mixer reads the normalized rows of a step (p->h) and writes p->a, which the layer's output
 * projection wo adds to the residual stream. Its memory of earlier tokens is the recurrent state of
 * the sequence (kv/statestore.h), or the KV cache for latent attention. */
#ifndef TERN_MODEL_MIX_H
#define TERN_MODEL_MIX_H

#include "kernel/backend.h"
#include "kv/kvstore.h"
#include "kv/statestore.h"

struct hparams;
struct model;
struct layer;
struct layer_hp;
struct layer_step;

/* The kind of a layer's mixer. */
enum mixer {
    MIX_ATTN,
    MIX_MAMBA,
    MIX_MAMBA2,
    MIX_SHORTCONV,
    MIX_DELTA,
    MIX_MLA,
    MIX_CSA, /* compressed attention (csa.c) */
    MIX_NONE /* the layer has a feed-forward block only */
};

/* Hyper-parameters of a layer's mixer. */
struct mix_hp {
    enum mixer kind;
    bool gate;                 /* attention: its output is multiplied by sigmoid of a projection */
    int taps;                  /* kernel size of the convolution */
    int inner, n_state;        /* Mamba 1 and 2: channels, state elements per channel */
    int dt_rank;               /* Mamba 1: rank of the time step projection */
    int n_groups, norm_groups; /* Mamba 2: groups of b and c; groups of the norm after the gate */
    int n_heads, head_dim;     /* Mamba 2; delta: of values */
    int n_k_heads, k_dim;      /* delta: of queries and keys */
    bool tiled;                /* delta: the order of value heads, see tiling.h */
    float dt_min, dt_max;      /* Mamba 2: bounds of the time step */
    bool normed;               /* Mamba 2: there is a norm beside the gate */
    bool norm_first;           /* Mamba 2: it comes before the gate */
    bool with_attn; /* Mamba 2: attention runs beside it, on the same input (falcon-h1) */
    float in_scale, scales[5]; /* Mamba 2: multiply the input, and z, x, b, c, dt; 0: none */
    float out_scale;           /* Mamba 2 beside attention: multiplies its output; 0: none */
    bool bc_norm;              /* Mamba 1: dt, b and c are normalized */
    float bc_eps;
    bool convs;              /* delta: q, k and v have projections and convolutions of their own */
    float beta_scale;        /* delta: multiplies beta; 0: 1 */
    float norm_eps;          /* delta: of the norm after it; 0: the model's */
    float q_scale, kv_scale; /* latent attention: multiply the latents after their norms; 0: none */
    int q_rank, kv_rank; /* latent attention: widths of the latents; q_rank 0: no latent for q */
    int nope, rope;      /* latent attention: parts of a query head without and with rotary
                          * embedding */
    /* Compressed attention: positions of an entry (0: a window only), and whether each entry also has
     * the positions of the window before; groups of the output projection, and the width of one. */
    int rate;
    bool overlap;
    int o_groups, o_rank;
};

/* Weights of a mixer, in addition to those of struct layer. wo is the output projection of every
 * mixer. Vectors are in device memory. */
struct mix_weights {
    /* Input projection. Mamba: x, z; Mamba 2: z, x, b, c, dt; short convolution: b, c, x; delta: q,
     * k, v. */
    struct weight in;
    struct weight z, ba;              /* delta: gate; beta and alpha */
    struct weight beta, alpha;        /* delta: the two apart; wq, wk and wv may replace `in` */
    struct weight out;                /* Mamba 2 beside attention: its output projection */
    float *out_b, *conv_k, *conv_v;   /* delta with wq, wk, wv: convolutions of keys and values */
    float *dt_norm, *b_norm, *c_norm; /* Mamba 1 */
    float s_out;                      /* scale of out; 0: none */
    struct weight x, dt;              /* Mamba: x to (dt, b, c); the time step from its low rank */
    struct weight q_a, kv_a;          /* latent: down-projections; wq is the up-projection of q */
    struct weight k_b, v_b;           /* latent, per head: query to latent, latent to value */
    /* Compressed attention: raw numbers and gates of entries, bias of gates, norm of entries; the same
     * of index keys. v_b is the grouped output projection. */
    struct weight raw, raw_gate, index_raw, index_gate;
    float *raw_bias, *raw_norm, *index_bias, *index_norm;
    float *in_b, *conv_w, *conv_b; /* conv_w [taps][channels] */
    float *a, *d, *dt_b, *norm;    /* a is negative; Mamba: [n_state][channels] */
    float *q_a_norm, *kv_a_norm, *q_a_b, *kv_a_b;
};

/* Arguments of a layer's backend calls, filled in by mix_plan for the size of a step. */
struct mix_step {
    struct tensor in, mid, z, conv, low, q; /* see ssm.c, delta.c, mla.c */
    struct linear jobs[6], up, dt, out;
    int n_jobs;
    struct conv_opt conv_opt, convs[3];
    struct scan_in scan_in;
    struct scan_opt scan;
    struct delta_in delta_in;
    struct delta_opt delta;
    struct linear_heads_opt to_latent, from_latent;
    struct tensor latent, k_rot, q_rot, parts[5];
    struct compress_opt pool, index_pool; /* compressed attention (csa.c) */
    struct tensor rows, entry, index_rows, index_entry, index_rot, out_rot;
};

/* Floats of scratch memory per token: for the input projection, for what follows it, for low-rank
 * values. */
struct mix_width {
    int in, mid, low;
};
struct mix_width mix_width(const struct hparams *hp, int l);
int mix_out(const struct hparams *hp, int l); /* width of p->a */

/* Shapes of the layer's recurrent state and KV cache; 0: it has none. */
struct stateshape mix_stateshape(const struct hparams *hp, int l);
struct kvshape mix_kvshape(const struct hparams *hp, int l);

/* Arguments of a mixer's run. */
struct mix {
    struct backend *be;
    const struct hparams *hp;
    const struct layer_hp *lh;
    const struct layer *w;
    struct layer_step *p;
    const struct kvview *kv;
    const struct stateview *st;
    const struct tensor *table; /* angles of the layer's rotary embedding */
    const struct tensor *back;  /* the opposite angles, where a model has them */
    int l;                      /* the layer */
};

struct mix_memory {
    float *in, *mid, *low; /* device memory, [n_tokens][mix_width] */
};

/* Fills in p for a step of n tokens. */
void mix_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
              int n);
/* Runs the mixer of a layer, and updates its state or KV cache. Nothing for MIX_ATTN, which pass.c
 * does. wanted: p->a is needed; else only the memory is updated. */
void mix_run(const struct mix *x, bool wanted);

/* E_UNSUPPORTED if the backend lacks an operation that one of the layers [first, end) needs. */
int mix_check(const struct hparams *hp, const struct backend *be, int first, int end,
              struct err *e);

/* ssm.c */
void mamba_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
                int n);
void mamba_run(const struct mix *x);
void mamba2_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
                 int n);
void mamba2_run(const struct mix *x);
void shortconv_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m,
                    int l, int n);
void shortconv_run(const struct mix *x);
/* delta.c */
void delta_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
                int n);
void delta_run(const struct mix *x);
/* mla.c */
void mla_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
              int n);
void mla_run(const struct mix *x, bool wanted);
/* csa.c */
void csa_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
              int n);
void csa_run(const struct mix *x, bool wanted);
#endif
