/* pass.h - what a layer is made of, and both ends: backend calls on a pass's tensors.
 *
 * A block that a model does not have is a weight that is not there, or a flag of its hparams. */
#ifndef TERN_MODEL_PASS_H
#define TERN_MODEL_PASS_H

#include "model/scratch.h"

/* The layers that one device has. */
struct pass {
    struct model *m;
    const struct part *part;
    struct backend *be;
    struct scratch s;
    struct kvview kv;
    struct stateview st;
    const int32_t *seq_end;        /* the decoder's */
    const int32_t *ids, *out_rows; /* of this batch, in the backend's memory */
    const int32_t *types;          /* of tokens, where the model has them */
    const struct sample_row *samples;
    const struct logit_adjust *adjust;
};

/* Embeddings and what is added to them, into the first layer's x. */
void blocks_embed(struct pass *d);
/* Queries, keys and values of layer l, the latter two into the cache; or all of the layer's mixer
 * (wanted: also what it leaves for the rest of the layer). */
void blocks_attention(struct pass *d, int l, bool wanted);
void blocks_attend(struct pass *d, int l);
/* From what attend made: the end of attention and the feed-forward block, into the residual. */
void blocks_rest(struct pass *d, int l);
/* The last norm; what it made. */
const struct tensor *blocks_last(struct pass *d);
/* Logits of it. */
void blocks_head(struct pass *d, const struct tensor *x);

/* Has the device every operation that the model needs? E_UNSUPPORTED names the one it lacks. */
int blocks_check(const struct hparams *hp, const struct backend *be, struct err *e);
#endif
