/* finite.h - is every number of a tensor finite? Much faster than decoding it.
 *
 * Of quantized blocks only the scales can be NaN or infinite, so only they are read; of floats only
 * the exponents. The speed is that of memory. Any thread may call; nothing allocates. */
#ifndef TERN_KERNEL_FINITE_H
#define TERN_KERNEL_FINITE_H

#include "base/dtype.h"

/* Are all n elements finite, a multiple of the block? Integers are. p needs no alignment. */
bool finite_all(enum dtype t, const void *p, int64_t n);
/* The scale of MXFP4 is 2^(e - 127): 255 means NaN, and with 253 the largest elements overflow. */
static inline bool finite_mx_scale(uint8_t e) { return e < 253; }
#endif
