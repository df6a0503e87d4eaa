/* decoder.h - the forward pass: a flat batch through all layers.
 *
 * A decoder is a model and the scratch for its largest step, taken once when it opens: a step
 * allocates nothing. It reads and writes KV blocks through the batch's table; it does not own
 * them. Model and pool must outlive it. */
#ifndef TERN_MODEL_DECODER_H
#define TERN_MODEL_DECODER_H

#include "model/batch.h"
#include "model/model.h"

struct decoder;

struct decoder_opt {
    int max_tokens; /* of a batch */
    int max_seqs;   /* rows of a batch's table */
    int max_table;  /* its stride at most */
    int max_out;    /* rows of logits at most */
};

int decoder_open(struct decoder **out, struct model *m, struct block_pool *kv,
                 struct decoder_opt opt, struct err *e);
void decoder_close(struct decoder *d); /* NULL is fine */

bool decoder_can_pick(const struct decoder *d);  /* false: batches have no picks */
int decoder_max_adjust(const struct decoder *d); /* adjustments of a batch's picks at most */

/* Where the state of sequences lies, one slot a row of a batch's table; NULL: the model has none.
 * The decoder's. */
struct state_pool *decoder_states(struct decoder *d);

/* Begins a pass. The batch is checked against the limits above (E_INVALID). What it points to stays
 * in place until decoder_wait, which comes next, unless this failed. A device works from here on;
 * the CPU does in decoder_wait. */
int decoder_start(struct decoder *d, const struct batch *b, struct err *e);
/* Returns when logits are there: *logits is [n_out][n_vocab], the decoder's, valid until the next
 * start; rows that were picked from are not filled. */
int decoder_wait(struct decoder *d, const float **logits, struct err *e);
/* Both. */
int decoder_run(struct decoder *d, const struct batch *b, const float **logits, struct err *e);
#endif
