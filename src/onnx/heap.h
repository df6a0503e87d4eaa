/* heap.h - counted blocks inside one stretch of memory, for the tensors that are alive.
 *
 * The first gap that is large enough is taken. Blocks are few (the values alive at once), so lists
 * are walked. */
#ifndef TERN_ONNX_HEAP_H
#define TERN_ONNX_HEAP_H

#include "base/err.h"

#include <stddef.h>

struct heap_block {
    size_t at, n;
    int refs; /* 0: not in use */
};

struct heap {
    char *base;
    size_t cap, peak; /* peak: the highest byte that was ever in use */
    struct heap_block *blocks;
    int *order; /* of those in use, by place */
    int n, max;
};

/* Address space for cap bytes: pages are taken when they are first written. */
int heap_open(struct heap *h, size_t cap, int max_blocks, struct err *e);
void heap_release(struct heap *h);          /* a zeroed one is fine */
int heap_get(struct heap *h, size_t bytes); /* a block with one reference; -1: no room */
void *heap_at(const struct heap *h, int block);
void heap_ref(struct heap *h, int block);
void heap_unref(struct heap *h, int block);
void heap_clear(struct heap *h); /* nothing is in use any more */
#endif
