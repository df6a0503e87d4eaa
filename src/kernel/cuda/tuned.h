/* tuned.h - up to how many tokens the packed GEMM is faster than cuBLASLt, by weight type; a cache
 * file for each GPU.
 *
 * A line has a dtype, the most tokens where x has one or two matrix products, and the most tokens
 * where it has more: "Q4_K 768 768". A file with any other content is ignored: gemm_tune.cu
 * measures again and overwrites it. Plain C, tested without a device (tests/test_tuned.c). */
#ifndef TERN_KERNEL_CUDA_TUNED_H
#define TERN_KERNEL_CUDA_TUNED_H

#include "base/buf.h"
#include "base/dtype.h"

#include <stdbool.h>

#define TUNED_MAX_TOKENS (1 << 16)

struct tuned {
    int max_tokens_packed[DT_COUNT][2];
}; /* [dtype][0: one or two products of x, 1: more]; 0: not measured */

/* $XDG_CACHE_HOME/tern/products-KEY, or ~/.cache/tern/products-KEY. KEY is the FNV-1a hash of `of`,
 * which names the GPU, its driver, the library and tern's version. Empty: neither variable is set. */
void tuned_path(struct buf *path, const char *of);
/* false: there is no readable file; then t is all zeros. */
bool tuned_read(struct tuned *t, const char *path);
/* Replaces the file atomically and creates its directory. false: it could not be written, and the
 * old file, if any, is unchanged. */
bool tuned_write(const struct tuned *t, const char *path);
#endif
