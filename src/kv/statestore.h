/* statestore.h - the memory of recurrent state: slots on the devices that run the layers.
 *
 * Models with convolutions or recurrences (state space models, gated delta nets) carry a state from
 * token to token beside their KV blocks. A slot holds that state of every layer, for one sequence.
 * State describes a sequence up to its last token only: it cannot be truncated or shared like a KV
 * block, but it can be copied to another slot (snapshots, kv/snap.h). A sequence whose first token
 * is at position 0 starts from zeros (kernel/stateview.h), so slots are never cleared.
 *
 * All memory is allocated when the store opens. Which slot belongs to whom is not known here: ids
 * come from kv/slots.h. A runner owns the store. */
#ifndef TERN_KV_STATESTORE_H
#define TERN_KV_STATESTORE_H

#include "kernel/backend.h"

struct state_store;

/* What one layer keeps of a sequence. */
struct stateshape {
    int conv_rows, conv_cols; /* inputs of a convolution that are kept; 0: the layer has none */
    int rec;                  /* numbers of the recurrence */
};

/* Each layer's state lies on the device that has the layer. If no layer has state, *out is NULL,
 * and every call below treats NULL as a store of no slots. */
int state_store_open(struct state_store **out, const struct backend_share *shares, int n_shares,
                     const struct stateshape *layers, int n_slots, struct err *e);
void state_store_close(struct state_store *s); /* NULL is allowed */

/* Bytes of one slot of these layers. A store of n slots allocates n times as many. */
uint64_t state_bytes(const struct stateshape *layers, int n_layers);

int state_store_n(const struct state_store *s);
/* Copies the state of slot `from` to slot `to`. Queued on the backends behind their last call. */
void state_store_copy(struct state_store *s, int to, int from);

/* The memory part of a stateview; the caller fills in the batch's part. */
void state_store_view(const struct state_store *s, struct stateview *out);
#endif
