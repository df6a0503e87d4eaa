/* unpack.h - rows of weights of any type as bf16, in the order the tile kernels read them.
 *
 * A panel holds up to UNPACK_ROWS rows, `stride` bytes apart; 32 columns of 16 of them are a tile.
 * Weights that bf16 does not hold exactly enough (F16, F32) get a second panel, `rest` bytes
 * behind, with what the first one left out. */
#ifndef TERN_KERNEL_CPU_UNPACK_H
#define TERN_KERNEL_CPU_UNPACK_H

#include "base/dtype.h"

#define UNPACK_ROWS 32

struct unpack {
    enum dtype type;
    const char *src; /* first row's first block */
    size_t row_bytes;
    int rows;            /* at most UNPACK_ROWS; the panel's other rows are left as they are */
    int cols;            /* whole blocks; zeros fill up the last 32 */
    const char *next;    /* what will be unpacked after this, same shape, to be fetched; or NULL */
    size_t stride, rest; /* rest: from the panel to the second one, for types that have it */
};

typedef void unpack_fn(const struct unpack *u, char *panel);

/* Never NULL for a type quant_decode knows. */
unpack_fn *unpack_find(enum dtype t);
#endif
