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
#include "model/hparams.h"

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
    struct mix_weights mix;
};

struct owned;

enum { MODEL_PARTS = 8 };

/* The part of the model on one device. The first part also has the embedding, the last the head. */
struct part {
    struct backend *be;  /* borrowed */
    int first, end;      /* its layers: [first, end) */
    float *rope_freq[2]; /* [n_rot/2] rotary frequencies with scaling, in the device's memory */
    float *slopes;       /* [n_heads] ALiBi, or NULL */
    float *vectors;      /* one block with all norms, biases and the two above */
    size_t vector_bytes;
};

struct model {
    struct arena arena; /* small arrays: layers, shapes, lists of experts */
    struct hparams hp;
    struct part parts[MODEL_PARTS];
    int n_parts;
    struct weight embd, head;  /* head.rows == 0: embd is used for both */
    struct weight token_types; /* the first row is added to every embedding; rows == 0: none */
    struct weight positions;   /* learned position embeddings; rows == 0: none */
    struct weight proj_in, proj_out; /* between the embedding's width and the layers' */
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
    bool allow_nan; /* numbers that are not finite are a warning, not E_DAMAGED */
};

/* A device that lacks an operation the model needs is E_UNSUPPORTED. E_DAMAGED: a weight is not
 * finite; the matrices of large models are not looked at here (scan.h). */
int model_open(struct model **out, const struct model_input *in, struct err *e);
void model_close(struct model *m); /* NULL is allowed */

struct part *model_part(struct model *m, int l); /* the part with layer l */
bool model_has_state(const struct model *m);     /* does any layer carry recurrent state? */
#endif
