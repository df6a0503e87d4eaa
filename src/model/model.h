/* model.h - config + weights: what a forward pass reads, shared by everyone who runs it. */
#ifndef TERN_MODEL_MODEL_H
#define TERN_MODEL_MODEL_H

#include "base/arena.h"
#include "kernel/backend.h"
#include "kv/block.h"
#include "model/hparams.h"

/* One layer's weights. A member with rows == 0 (weight) or NULL (vector) is not there. */
struct layer {
    float *attn_norm, *attn_norm_b, *attn_post_norm, *ffn_norm, *ffn_norm_b, *ffn_post_norm;
    float *q_norm, *k_norm, *attn_sub_norm, *ffn_sub_norm;
    struct weight wq, wk, wv, wo;
    float *bq, *bk, *bv, *bo;
    struct weight gate, up, down;
    float *b_gate, *b_up, *b_down;
    float *sinks;
};

struct model {
    struct arena arena;              /* everything small */
    struct hparams hp;
    struct backend *be;              /* borrowed */
    struct weight embd, head;        /* head.rows == 0: embd is used for both */
    float *out_norm, *out_norm_b, *head_b;
    struct layer *layers;
    float *rope_freq[2];             /* [n_rot/2], scalings applied, in the backend's memory */
    float rope_mscale[2];
    uint64_t weight_bytes;           /* as they lie in the file */
    uint64_t n_params;
    double put_ms;                   /* time the backend took to take the weights over */
    void *owned;                     /* converted copies of weights (transposed, sliced) */
};

/* The source must outlive the model: weights are read from its maps. */
int  model_open(struct model **out, const struct source *src, struct backend *be, struct err *e);
void model_close(struct model *m);                       /* NULL is fine */

/* The shape of its KV, layer by layer; lives as long as the model. */
const struct kvshape *model_kvshape(const struct model *m);
#endif
