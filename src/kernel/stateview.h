/* stateview.h - where a batch's recurrent state lies: one slot a sequence, beside its KV blocks.
 *
 * A layer with state keeps, in every slot, the last inputs of its convolution (rows, oldest first)
 * and what its recurrence carries on. Tokens of a sequence stand beside each other in a batch: a
 * run. An operation reads a run's slot, goes through its tokens in order and leaves the state
 * behind the last one. */
#ifndef TERN_KERNEL_STATEVIEW_H
#define TERN_KERNEL_STATEVIEW_H

#include <stddef.h>
#include <stdint.h>

struct state_run {
    int32_t slot;
    int32_t first, n; /* tokens of the batch */
    int32_t fresh;    /* the sequence begins here: from zeros, whatever the slot holds */
};

struct statelayer {
    float *conv, *rec;              /* of slot 0; NULL: this layer has none */
    size_t conv_floats, rec_floats; /* from one slot to the next */
};

struct stateview {
    const struct statelayer *layers;
    int n_layers;
    /* of this batch, in the backend's memory: */
    const struct state_run *runs; /* in the order of their tokens */
    int n_runs, n_tokens;
};
#endif
