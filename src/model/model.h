/* model.h - hyper-parameters and weights: what the forward pass of a decoder reads.
 *
 * A model is immutable once it is open and may be shared by any number of decoders. Its layers lie
 * on one device or several (struct part). It borrows the source (matrices are read from the mapped
 * files), the backends and the memory that its hparams point to; all of them outlive it. */
#ifndef TERN_MODEL_MODEL_H
#define TERN_MODEL_MODEL_H

#include "base/arena.h"
#include "kernel/backend.h"
#include "kv/kvstore.h"
#include "kv/statestore.h"
#include "model/expertplace.h"
#include "model/hparams.h"
#include "model/loadprogress.h"

struct weight_list;

/* One layer's weights. A member with rows == 0 (weight) or NULL (vector) is not there. */
struct layer {
    float *attn_norm, *attn_norm_b, *attn_post_norm, *ffn_norm, *ffn_norm_b, *ffn_post_norm;
    float *q_norm, *k_norm, *q_norm_b, *k_norm_b, *attn_sub_norm, *ffn_sub_norm;
    struct weight wq, wk, wv, wo; /* slices of a packed tensor are neighbours, in its order */
    struct weight wg;             /* gate of the attention output; rows 0: there is none */
    float *bq, *bk, *bv, *bo, *bg;
    float *sinks;                 /* [n_heads] */
    struct weight gate, up, down; /* no gate: a plain block; beside experts: the shared expert */
    float *b_gate, *b_up, *b_down;
    struct weight router, shared_gate;
    float *b_router, *choice_bias;                  /* [n_experts] */
    struct weight *x_gate, *x_up, *x_down;          /* [n_experts] */
    float *xb_gate, *xb_up, *xb_down;               /* [n_experts][rows] */
    float s_q, s_k, s_v, s_o, s_gate, s_up, s_down; /* scales of the matrix products; 0: none */
    struct xielu_opt xielu;                         /* parameters of its activation, as stored */
    struct weight latent_in, latent_out;            /* of experts that work on a latent */
    float *latent_in_b, *latent_out_b;
    /* Experts beside a dense block, each with norms of its own (gemma 4): */
    float *router_norm, *expert_scale;             /* scale of the router's input; of each expert */
    float *dense_post_norm, *x_norm, *x_post_norm; /* after the dense block; around the experts */
    /* Per-layer inputs (gemma 3n, 4): gate, projection, its norm; scale of the layer's output. */
    struct weight ple_gate, ple_proj;
    float *ple_norm;
    float out_scale;
    struct index_weights index;
    /* Residual streams: the router of coefficients, its norm, what they are made from; the scale of
     * the corrected stream. The low-rank residual. */
    struct weight altup_router, altup_predict, altup_correct, laurel_left, laurel_right;
    float *altup_norm, *altup_scale, *laurel_norm;
    /* Hyper-connections of attention and of the feed-forward block: what their weights are made from. */
    struct weight hyper_attn, hyper_ffn;
    float *hyper_attn_base, *hyper_attn_scale, *hyper_ffn_base, *hyper_ffn_scale;
    const int32_t *by_token; /* [n_vocab][n_used] experts of every id, or NULL */
    struct mix_weights mix;
};

struct owned;

enum { MODEL_PARTS = 8 };

/* The part of the model on one device. The first part also has the embedding, the last the head. */
struct part {
    struct backend *be;      /* borrowed */
    int first, end;          /* its layers: [first, end) */
    float *rope_freq[ROPES]; /* [n_rot/2] rotary frequencies with scaling, in the device's memory */
    float *slopes;           /* [n_heads] ALiBi, or NULL */
    float *vectors;          /* one block with all norms, biases and the two above */
    size_t vector_bytes;
};

struct model {
    struct arena arena; /* small arrays: layers, shapes, lists of experts */
    struct hparams hp;
    struct part parts[MODEL_PARTS];
    int n_parts;
    struct part experts; /* routed experts on another device than their layers; be NULL: none */
    const bool *apart;   /* [n_layers] those whose experts are there */
    struct weight embd, head;  /* head.rows == 0: embd is used for both */
    struct weight token_types; /* the first row is added to every embedding; rows == 0: none */
    struct weight positions;   /* learned position embeddings; rows == 0: none */
    struct weight proj_in, proj_out; /* between the embedding's width and the layers' */
    struct weight ple_embd, ple_in;  /* per-layer inputs: of a token, from its embedding */
    float *ple_in_norm;
    struct weight *altup_in, *altup_out; /* [streams - 1] from the embedding, and back */
    struct weight hyper_head;            /* joins the residual streams after the last layer */
    float *hyper_head_base, *hyper_head_scale;
    float *embd_norm, *embd_norm_b, *out_norm, *out_norm_b, *head_b;
    struct layer *layers;     /* [n_layers] */
    struct kvshape *kv;       /* [n_layers] */
    struct stateshape *state; /* [n_layers] */
    uint64_t weight_bytes;    /* of the tensors it uses, as they are stored */
    double put_ms;            /* time the backends took to take the weights over */
    struct owned *owned;      /* converted copies of matrices (weights.c) */
};

/* What a model is made from. All of it is borrowed and outlives the model. */
struct model_input {
    const struct source *source;
    const struct hparams *hp;
    const struct weight_list *weights;  /* of source and hp: weights_find */
    const struct backend_share *shares; /* [n_shares], 1 to MODEL_PARTS: all layers, in order */
    int n_shares;
    struct expert_place experts; /* zeroed: all experts lie with their layers */
    bool allow_nan;              /* numbers that are not finite are a warning, not E_DAMAGED */
    struct loadprogress progress;
};

/* A device that lacks an operation the model needs is E_UNSUPPORTED. E_DAMAGED: a weight is not
 * finite; the matrices of large models are not looked at here (scan.h). */
int model_open(struct model **out, const struct model_input *in, struct err *e);
void model_close(struct model *m); /* NULL is allowed */

struct part *model_part(struct model *m, int l); /* the part with layer l */
/* The part with the routed experts of layer l: m->experts, or the layer's. */
struct part *model_experts(struct model *m, int l);
bool model_has_state(const struct model *m); /* does any layer carry recurrent state? */
#endif
