/* mix.h - what stands in a layer's place of attention: state space models, short convolutions,
 * gated delta nets, attention over a latent.
 *
 * A mixer reads the normed rows of a step (p->h) and leaves p->a, which the layer's wo brings back
 * into the residual. What it keeps of the past lies in a sequence's state, or in KV blocks where it
 * attends. */
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

enum mixer { MIX_ATTN, MIX_MAMBA, MIX_MAMBA2, MIX_SHORTCONV, MIX_DELTA, MIX_MLA };

/* No layer attends, and there is no feed-forward block. */
static inline bool mix_is_alone(enum mixer m) { return m == MIX_MAMBA || m == MIX_MAMBA2; }

/* A layer's numbers that only its mixer has. */
struct mix_hp {
    enum mixer kind;
    bool gate; /* attention: sigmoid of a projection multiplies what it leaves */
    int taps;  /* of the convolution */
    int inner, n_state,
        dt_rank; /* mamba 1 and 2: channels, state of each; rank of the time step (1) */
    int n_groups, norm_groups; /* mamba 2: of b and c; of the norm behind the gate */
    int n_heads, head_dim;     /* mamba 2; delta: of values */
    int n_k_heads, k_dim;      /* delta */
    float dt_min, dt_max;      /* mamba 2: limits of the time step */
    int q_rank, kv_rank;       /* latent attention; q_rank 0: queries are not compressed */
    int nope, rope;            /* of a query's head: what does not turn, what does */
};

/* Its weights beside those of struct layer. wo is the product behind the mixer in any case. */
struct mix_weights {
    struct weight
        in; /* mamba: x, z; mamba 2: z, x, b, c, dt; short convolution: b, c, x; delta: q, k, v */
    struct weight z, ba;     /* delta: gate; beta and alpha */
    struct weight x, dt;     /* mamba: dt, b, c of x; the time step of its low rank */
    struct weight q_a, kv_a; /* latent: queries and keys down; wq is up, or all of it */
    struct weight k_b,
        v_b; /* latent, a matrix a head: from queries to the latent, from it to values */
    float *in_b, *conv_w, *conv_b; /* conv_w [taps][channels] */
    float *a, *d, *dt_b, *norm;    /* a below 0; mamba: [n_state][channels] */
    float *q_a_norm, *kv_a_norm, *q_a_b, *kv_a_b;
};

/* A layer's calls, filled by mix_plan. */
struct mix_step {
    struct tensor in, mid, z, conv, low, q, lat; /* see ssm.c, delta.c, mla.c */
    struct linear jobs[3], up, dt;
    struct conv_opt conv_opt;
    struct scan_in scan_in;
    struct scan_opt scan;
    struct delta_in delta_in;
    struct delta_opt delta;
    struct linear_heads_opt to_latent, from_latent;
    struct tensor latent, k_rot, q_rot;
};

/* Numbers a token needs in the step's memory for the mixer: of its projections, behind them, and
 * small ones. */
struct mix_width {
    int in, mid, low;
};
struct mix_width mix_width(const struct hparams *hp, int l);
int mix_out(const struct hparams *hp, int l); /* width of p->a */

struct stateshape mix_stateshape(const struct hparams *hp, int l);
struct kvshape mix_kvshape(const struct hparams *hp, int l);

/* What a mixer works with. */
struct mix {
    struct backend *be;
    const struct hparams *hp;
    const struct layer_hp *lh;
    const struct layer *w;
    struct layer_step *p;
    const struct kvview *kv;
    const struct stateview *st;
    const struct tensor *table; /* of the layer's rotary embedding */
    int l;
};

struct mix_memory {
    float *in, *mid, *low; /* [n][mix_width] */
};

void mix_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
              int n);
/* The layer's mixer but for attention itself: state and KV are behind this batch then. */
void mix_run(const struct mix *x, bool wanted); /* wanted: p->a is read */

/* E_UNSUPPORTED names the operation that be lacks for one of the layers [first, end). */
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
#endif
