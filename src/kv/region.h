/* region.h - memory that layers of a model have on several devices: one block of it a device.
 *
 * The owner says how many bytes each takes before region_take; closing gives all of it back. */
#ifndef TERN_KV_REGION_H
#define TERN_KV_REGION_H

#include "kernel/backend.h"

struct region {
    struct backend *be; /* borrowed */
    void *mem;
    size_t bytes;
    int first, end; /* its layers */
};

/* One for each share, in order; *n_layers: of all together. */
struct region *regions_open(const struct backend_share *shares, int n_shares, int *n_layers);
void regions_close(struct region *r, int n); /* NULL is fine */

/* Takes r->bytes of the device's KV memory. */
int region_take(struct region *r, struct err *e);
#endif
