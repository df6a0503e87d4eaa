/* state.h - slots of recurrent state: what a sequence carries on beside its KV blocks.
 *
 * A slot holds the state of every layer that has one, for one sequence. All memory is taken when
 * the pool opens; a sequence takes a slot when it begins and gives it back when it ends or is
 * preempted. A new owner's first token starts from zeros (see stateview.h), so slots are never
 * cleared. State is behind the last token only: it cannot be cut back, nor shared like a block, but
 * copied (kv/snap.h). The engine's thread owns the pool; nothing here locks. */
#ifndef TERN_KV_STATE_H
#define TERN_KV_STATE_H

#include "kernel/backend.h"

struct state_pool;

struct stateshape {
    int conv_rows, conv_cols; /* inputs of a convolution that are kept; 0: the layer has none */
    int rec;                  /* numbers of the recurrence */
};

/* Each layer's state lies on the device that has the layer. No layer has state: *out is NULL, which
 * every call below takes for a pool of no slots. */
int state_pool_open(struct state_pool **out, const struct backend_share *shares, int n_shares,
                    const struct stateshape *layers, int n_slots, struct err *e);
void state_pool_close(struct state_pool *p); /* NULL is fine */

/* Bytes of one slot of such layers: what admission and plans count with. */
uint64_t state_bytes(const struct stateshape *layers, int n_layers);

int state_get(struct state_pool *p);            /* a slot, or -1: none free */
void state_put(struct state_pool *p, int slot); /* -1 is fine */
int state_n(const struct state_pool *p);
int state_n_free(const struct state_pool *p);
void state_copy(struct state_pool *p, int to, int from); /* after the last call on the backend */
/* The same between pools of one shape. */
void state_copy_from(struct state_pool *p, int to, const struct state_pool *q, int from);

/* The memory part of a stateview; the caller fills in the batch's part. */
void state_view(const struct state_pool *p, struct stateview *out);
#endif
