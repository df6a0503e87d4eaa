/* tuned.h - up to how many tokens our own products are faster than the library's, by type; kept in
 * a file for each card.
 *
 * Lines of a type, the most tokens where x goes into one or two products, and where into more:
 * "Q4_K 768 768". A file that holds anything else counts as none: it is measured again and written
 * anew. */
#ifndef TERN_KERNEL_CUDA_TUNED_H
#define TERN_KERNEL_CUDA_TUNED_H

#include "base/buf.h"
#include "base/dtype.h"

#include <stdbool.h>

#define TUNED_MOST (1 << 16)

struct tuned {
    int most[DT_COUNT][2];
}; /* 0: not known */

/* $XDG_CACHE_HOME/tern/products-KEY, ~/.cache where that is not set, KEY a number made of `of` (the
 * card, its driver, the library, tern's version). Empty: neither is set. */
void tuned_path(struct buf *path, const char *of);
/* false: there is none, or one that cannot be read; t is all zeros then. */
bool tuned_read(struct tuned *t, const char *path);
/* Whole or not at all; makes the folder. false: it could not be written, and nothing is lost by
 * that. */
bool tuned_write(const struct tuned *t, const char *path);
#endif
