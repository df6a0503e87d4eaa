/* decoder_impl.h - the inside of a decoder, for decoder.c and stage.c only. */
#ifndef TERN_MODEL_DECODER_IMPL_H
#define TERN_MODEL_DECODER_IMPL_H

#include "model/decoder.h"
#include "model/pass.h"

/* Hidden rows on their way from one device to the next, in host memory. */
struct crossing {
    float *x; /* [max_tokens][n_embd] */
    size_t bytes;
    struct backend *owner; /* allocated by its host_alloc; NULL: by mem_aligned */
};

struct decoder {
    struct runner r; /* first: a runner is cast to its decoder */
    struct model *m;
    bool owns_model;
    struct kvstore *kv;
    struct state_store *states; /* NULL: the model has no recurrent state */
    struct pass passes[MODEL_PARTS];
    int n_passes;
    struct crossing cross[MODEL_PARTS]; /* into each pass but the first */
    struct crossing inlet, outlet;      /* of a stage among several */
    int32_t *seq_end;                   /* [max_seqs] length of each sequence after this batch */
    int32_t *n_of;                      /* [max_seqs] scratch of batch_check */
    struct state_run *runs;             /* [max_seqs] of this batch; NULL: no recurrent state */
    int n_runs;

    /* the batch that was started */
    struct batch b;
    bool gathered;      /* only the wanted rows go on behind the last layer's attention */
    int at;             /* the pass it is in */
    bool begun, queued; /* that pass was begun; all of its operations were queued */
    int layer;          /* the next layer to queue */
};

/* Copies a batch's arrays to the pass's device (stage.c). */
void stage_batch(struct pass *p, const struct decoder *d, const struct batch *b);
#endif
