/* pass.h - the blocks of a model as sequences of backend calls: embedding, attention, feed-forward,
 * head.
 *
 * One description covers every architecture: a block that a model does not have is a weight with no
 * rows, a NULL vector, or a flag of its hparams. Calls are queued on the backend and may run
 * asynchronously; nothing here waits. */
#ifndef TERN_MODEL_PASS_H
#define TERN_MODEL_PASS_H

#include "model/apart.h"
#include "model/scratch.h"

/* One device's part of the forward pass. */
struct pass {
    struct model *m;
    const struct part *part;
    struct backend *be;
    struct scratch s;
    struct apart apart; /* of layers whose experts lie on another device; be NULL: none */
    struct kvview kv;
    struct stateview st;
    const int32_t *seq_end; /* [max_seqs] the decoder's, in host memory */
    /* of this batch, in the backend's memory (stage.c) */
    const int32_t *ids, *out_rows;
    const int32_t *types;   /* token types, if the model has them */
    const int32_t *ple_ids; /* ids whose per-layer inputs are read, if the model has them */
    const struct sample_row *samples;
    const struct logit_adjust *adjust;
};

/* Token, position and type embeddings, into the first layer's x. */
void pass_embed(struct pass *d);
/* Queries, keys and values of layer l; keys and values go into the KV cache. For a layer with
 * another mixer: all of the mixer. wanted false: only KV or state is updated, no output is needed. */
void pass_attention(struct pass *d, int l, bool wanted);
/* The attention of layer l, into a. */
void pass_attend(struct pass *d, int l);
/* Copies the rows of the last layer that results are wanted of (pass.out_rows) to where its rest
 * works on them. */
void pass_gather(struct pass *d, int l);
/* The output projection of attention and the feed-forward block, added to the residual. */
void pass_rest(struct pass *d, int l);
/* The final norm; returns its rows. */
const struct tensor *pass_last(struct pass *d);
/* Logits of the rows x. */
void pass_head(struct pass *d, const struct tensor *x);

/* Do the members of a stage sum the outputs of both blocks of the layer in one go? In parallel models
 * nothing comes between. */
bool pass_sums_once(const struct model *m, const struct layer *w);

/* E_UNSUPPORTED names an operation that the model needs and the device lacks. */
int pass_check(const struct hparams *hp, const struct backend *be, struct err *e);
#endif
