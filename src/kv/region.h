/* region.h - device memory for per-layer data: one allocation per device.
 *
 * The KV store and the state store each have one region per device that runs layers. The owner sets
 * `bytes` before region_take; regions_close frees everything that was allocated. */
#ifndef TERN_KV_REGION_H
#define TERN_KV_REGION_H

#include "kernel/backend.h"

struct region {
    struct backend *be; /* borrowed */
    void *mem;          /* NULL: not allocated */
    size_t bytes;
    int first, end; /* the device's layers: [first, end) */
};

/* One region per share, in order, or NULL: no memory. *n_layers: of all shares together. */
struct region *regions_open(const struct backend_share *shares, int n_shares, int *n_layers);
void regions_close(struct region *r, int n); /* NULL is allowed */

/* Allocates r->bytes of the device's memory, counted as MEM_KV. */
int region_take(struct region *r, struct err *e);
#endif
