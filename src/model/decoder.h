/* decoder.h - the forward pass of a transformer or state space model, as a runner.
 *
 * A decoder owns the memory of its largest step, of the KV blocks and of the recurrent state, all
 * allocated when it opens: a step allocates nothing. The name covers encoders too: a model with
 * bidirectional attention runs the same layers and has no logits. */
#ifndef TERN_MODEL_DECODER_H
#define TERN_MODEL_DECODER_H

#include "model/model.h"
#include "model/runner.h"

struct decoder_opt {
    int max_tokens; /* of a batch */
    int max_seqs;   /* rows of a batch's block table */
    int max_table;  /* its stride at most */
    int max_out;    /* rows of logits at most */
    int n_blocks;   /* KV blocks */
    enum dtype kv_type;
    int n_slots;     /* of recurrent state, if the model has any; 0: max_seqs */
    bool owns_model; /* closing the decoder closes the model too */
};

/* Closed by runner_close. The model outlives it, unless it owns the model (also then a failed open
 * leaves the model to the caller). */
int decoder_open(struct runner **out, struct model *m, const struct decoder_opt *opt,
                 struct err *e);

/* The model behind a runner that decoder_open made, for tools that look at its weights. */
struct model *decoder_model(const struct runner *r);

/* A stage of several (shard.h) has rows [max_tokens][n_embd] in host memory that a batch begins with
 * instead of embeddings, and those it ends with instead of logits. NULL: the first stage, the last. */
float *decoder_inlet(const struct runner *r);
float *decoder_outlet(const struct runner *r);
/* Checks a batch as runner_start does, without starting. */
int decoder_check(struct runner *r, const struct batch *b, struct err *e);
#endif
