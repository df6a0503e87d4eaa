/* model.h - config + weights: what a forward pass reads, shared by everyone who runs it. */
#ifndef TERN_MODEL_MODEL_H
#define TERN_MODEL_MODEL_H

#include "base/arena.h"
#include "kernel/backend.h"
#include "kv/block.h"
#include "kv/state.h"
#include "model/hparams.h"

/* One layer's weights. A member with rows == 0 (weight) or NULL (vector) is not there. */
struct layer {
    float *attn_norm, *attn_norm_b, *attn_post_norm, *ffn_norm, *ffn_norm_b, *ffn_post_norm;
    float *q_norm, *k_norm, *q_norm_b, *k_norm_b, *attn_sub_norm, *ffn_sub_norm;
    struct weight wq, wk, wv, wo; /* parts of a packed tensor stand together, in its order */
    struct weight wg;             /* gates what attention leaves; rows 0: nothing does */
    float *bq, *bk, *bv, *bo, *bg;
    float *sinks;                 /* [n_heads] */
    struct weight gate, up, down; /* no gate: a plain block; beside experts: the one all ask */
    float *b_gate, *b_up, *b_down;
    struct weight router, shared_gate;
    float *b_router, *choice_bias;                  /* [n_experts] */
    struct weight *x_gate, *x_up, *x_down;          /* [n_experts] */
    float *xb_gate, *xb_up, *xb_down;               /* [n_experts][rows] */
    float s_q, s_k, s_v, s_o, s_gate, s_up, s_down; /* multiply the product; 0: nothing does */
    struct mix_weights mix;
};

struct owned;
struct onnxpass;

enum { MODEL_PARTS = 8 };

/* What one device has of the model: the first also has the embedding, the last the head. */
struct part {
    struct backend *be;  /* borrowed */
    int first, end;      /* its layers */
    float *rope_freq[2]; /* [n_rot/2], scalings applied, in the device's memory */
    float *slopes;       /* [n_heads] ALiBi, or NULL */
    float *vectors;      /* where norms, biases and the above lie there */
    size_t vector_bytes;
};

struct model {
    struct arena arena; /* everything small */
    struct hparams hp;
    struct part parts[MODEL_PARTS];
    int n_parts;
    struct weight embd, head;  /* head.rows == 0: embd is used for both */
    struct weight token_types; /* the first row is added to every embedding; rows == 0: none */
    struct weight positions;   /* learned ones; rows == 0: none */
    struct weight proj_in, proj_out; /* between the embedding's width and the layers' */
    float *embd_norm, *embd_norm_b, *out_norm, *out_norm_b, *head_b;
    struct layer *layers;
    struct kvshape *kv;       /* [n_layers] */
    struct stateshape *state; /* [n_layers] */
    uint64_t weight_bytes;    /* as they lie in the file */
    uint64_t n_params;
    double put_ms;         /* time the backend took to take the weights over */
    struct onnxpass *onnx; /* the graph that runs instead of layers; NULL: layers do */
    struct owned *owned;   /* copies of weights the backend could not read where they are */
};

/* The source must outlive the model: weights are read from its maps. A tensor that is missing
 * (E_NOTFOUND) or of another shape (E_FORMAT) is named with the shape it should have; numbers
 * that are not finite are a warning. */
int model_open(struct model **out, const struct source *src, struct backend *be, struct err *e);
/* The same over several devices (1 to MODEL_PARTS); the shares' layers are all of the model's. */
int model_open_over(struct model **out, const struct source *src,
                    const struct backend_share *shares, int n_shares, struct err *e);
void model_close(struct model *m); /* NULL is fine */

struct part *model_part(struct model *m, int l); /* the one with layer l */

/* The shape of its KV, layer by layer; lives as long as the model. */
const struct kvshape *model_kvshape(const struct model *m);
/* The shape of its recurrent state, layer by layer, likewise. */
const struct stateshape *model_stateshape(const struct model *m);
bool model_has_state(const struct model *m);
/* Is what is kept of a prefix the same whatever follows it? Not where attention looks both ways. */
bool model_can_share_prefix(const struct model *m);
#endif
