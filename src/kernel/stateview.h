/* stateview.h - recurrent state of a batch as the kernels see it: one slot per sequence.
 *
 * Layers with a recurrence (Mamba, gated delta net, short convolution) keep in every slot the last
 * inputs of their convolution (rows, oldest first) and the matrix state of the recurrence. The
 * tokens of a sequence are consecutive rows of the batch, called a run. An operation loads the
 * state of a run's slot, processes its tokens in order and stores the state after the last one.
 * The view borrows everything; kv/statestore.c fills it. */
#ifndef TERN_KERNEL_STATEVIEW_H
#define TERN_KERNEL_STATEVIEW_H

#include <stddef.h>
#include <stdint.h>

struct state_run {
    int32_t slot;
    int32_t first, n; /* rows [first, first + n) of the batch */
    int32_t fresh;    /* 1: the sequence starts here; the slot's contents count as zeros */
};

struct statelayer {
    float *conv, *rec;              /* device memory of slot 0; NULL: the layer has none */
    size_t conv_floats, rec_floats; /* size of one slot */
};

struct stateview {
    const struct statelayer *layers; /* [n_layers] */
    int n_layers;
    /* The current batch, in device memory: */
    const struct state_run *runs; /* [n_runs], in the order of their rows */
    int n_runs, n_tokens;
};
#endif
