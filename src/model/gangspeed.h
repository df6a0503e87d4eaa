/* gangspeed.h - how fast a device is, by a short measurement with the kernels of the forward pass.
 *
 * Two numbers: weights read per second by a matvec, which bounds decoding, and operations per second
 * of a matrix product of many rows, which bounds prefill. It takes some tens of milliseconds; a
 * process measures a device once. */
#ifndef TERN_MODEL_GANGSPEED_H
#define TERN_MODEL_GANGSPEED_H

#include "kernel/backend.h"

struct gangspeed {
    double read_gb_s;      /* 0: not measured */
    double product_gflops; /* 10^9 multiplications and additions per second */
    uint64_t free_bytes;   /* of a GPU's memory; 0: a CPU */
};

/* One thread at a time. */
int gangspeed_measure(struct gangspeed *out, const struct backend_opt *opt, struct err *e);

/* speeds[i] of n members from their measurements, relative to the fastest of them: half of the work
 * counts as decoding, half as prefill. */
void gangspeed_compare(double *speeds, const struct gangspeed *of, int n);
#endif
