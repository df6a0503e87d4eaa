/* slots.h - ids of recurrent-state slots.
 *
 * A sequence takes a slot when it begins and gives it back when it ends or is preempted. The memory
 * behind an id belongs to the runner (kv/statestore.h). The engine thread owns the slots. */
#ifndef TERN_KV_SLOTS_H
#define TERN_KV_SLOTS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* A zeroed one has no slots. */
struct slots {
    int32_t *free; /* [n] a stack: free[n_free - 1] is handed out next */
    bool *taken;   /* [n] */
    int n, n_free;
};

int slots_init(struct slots *s, int n, struct err *e); /* ids 0 to n - 1; n may be 0 */
void slots_release(struct slots *s);
int slots_get(struct slots *s);            /* an id, or -1: none is free */
void slots_put(struct slots *s, int slot); /* -1 is allowed and does nothing */
#endif
