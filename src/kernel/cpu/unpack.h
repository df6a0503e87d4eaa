/* unpack.h - converts rows of weights of any type to bf16, for the AMX kernels.
 *
 * A panel holds up to UNPACK_ROWS rows, `stride` bytes apart; 32 columns of 16 rows are a tile.
 * Weights that need more precision than bf16 has (F16, F32) get a second panel, `rest` bytes after
 * the first, with the remainders x - bf16(x). */
#ifndef TERN_KERNEL_CPU_UNPACK_H
#define TERN_KERNEL_CPU_UNPACK_H

#include "base/dtype.h"

#define UNPACK_ROWS 32

struct unpack {
    enum dtype type;
    const char *src; /* first block of the first row */
    size_t row_bytes;
    int rows;         /* at most UNPACK_ROWS; other rows of the panel stay unchanged */
    int cols;         /* a multiple of the block size; the last 32 are padded with zeros */
    const char *next; /* weights that are unpacked next, of the same shape, to prefetch; or NULL */
    size_t stride, rest; /* bytes between rows; from the panel to the second one */
};

typedef void unpack_fn(const struct unpack *u, char *panel);

/* Never NULL for a type that quant_decode supports. */
unpack_fn *unpack_find(enum dtype t);
#endif
