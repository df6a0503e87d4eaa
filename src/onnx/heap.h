/* heap.h - reference-counted blocks in one range of memory, for the live tensors of a run.
 *
 * First fit: a block goes into the first gap that is large enough. The blocks in use are few (the
 * values that are live at once), so the list is searched linearly. After heap_open nothing is
 * allocated. One thread uses a heap. */
#ifndef TERN_ONNX_HEAP_H
#define TERN_ONNX_HEAP_H

#include "base/err.h"

#include <stddef.h>

struct heap_block {
    size_t at, n; /* offset and bytes, multiples of 64 */
    int refs;     /* 0: not in use */
};

struct heap {
    char *base;
    size_t cap;
    size_t peak;               /* end of the highest block that was ever in use, in bytes */
    struct heap_block *blocks; /* [max] */
    int *order;                /* [max] indexes of the n blocks in use, by offset */
    int n, max;
};

/* Reserves address space for cap bytes; the system provides pages when they are first written. */
int heap_open(struct heap *h, size_t cap, int max_blocks, struct err *e);
void heap_release(struct heap *h);          /* a zeroed heap is allowed */
int heap_get(struct heap *h, size_t bytes); /* a block with one reference; -1: no room */
void *heap_at(const struct heap *h, int block);
void heap_ref(struct heap *h, int block);   /* -1 is allowed */
void heap_unref(struct heap *h, int block); /* the last one frees the block; -1 is allowed */
void heap_clear(struct heap *h);            /* frees all blocks */

/* ---- aligned memory outside of a heap, in a list that is freed at once ---- */

struct heap_owned {
    struct heap_owned *next;
    void *p;
    size_t bytes;
};

void *heap_own(struct heap_owned **list, size_t bytes); /* not zeroed; NULL: no memory */
void heap_release_owned(struct heap_owned **list);
#endif
