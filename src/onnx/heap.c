/* heap.c - the first-fit heap of a graph run.
 *
 * First fit is enough here: tensors of a graph live in a nearly stack-like order, and every run
 * makes nearly the same sequence of requests, whose peak the plan has measured. Offsets are
 * multiples of 64, the size of a cache line and of the widest vector register. */
#include "onnx/heap.h"

#include "base/mem.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 64 };

/* MAP_NORESERVE: the reservation costs address space, not memory. */
int heap_open(struct heap *h, size_t cap, int max, struct err *e)
{
    void *p;

    *h = (struct heap){ .cap = (cap + 4095) / 4096 * 4096, .max = max };
    if (h->cap == 0) h->cap = 4096;
    p = mmap(NULL, h->cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    if (p == MAP_FAILED) {
        h->cap = 0;
        return err_set(e, E_NOMEM, "out of memory: no address space for %zu MiB of tensors",
                       cap >> 20);
    }
    h->base = p;
    h->blocks = mem_array((size_t)max, sizeof *h->blocks);
    h->order = mem_array((size_t)max, sizeof *h->order);
    if (h->blocks && h->order) return OK;
    heap_release(h);
    return err_nomem(e, "the tensors of a graph");
}

void heap_release(struct heap *h)
{
    if (h->base) munmap(h->base, h->cap);
    mem_free(h->blocks);
    mem_free(h->order);
    *h = (struct heap){ 0 };
}

/* Walks the blocks in use by offset and takes the first gap. The list of offsets stays sorted. */
int heap_get(struct heap *h, size_t bytes)
{
    size_t at = 0, n = bytes > h->cap ? SIZE_MAX : (bytes + ALIGN - 1) / ALIGN * ALIGN;
    int i, id = 0; /* i: position in `order`, id: index of a free entry of `blocks` */

    if (n == 0) n = ALIGN;
    if (n > h->cap || h->n == h->max) return -1;
    for (i = 0; i < h->n; i++) {
        const struct heap_block *b = &h->blocks[h->order[i]];
        if (b->at - at >= n) break;
        at = b->at + b->n;
    }
    if (i == h->n && h->cap - at < n) return -1;
    while (h->blocks[id].refs) id++;
    memmove(h->order + i + 1, h->order + i, (size_t)(h->n - i) * sizeof *h->order);
    h->order[i] = id;
    h->n++;
    h->blocks[id] = (struct heap_block){ at, n, 1 };
    if (at + n > h->peak) h->peak = at + n;
    return id;
}

void *heap_at(const struct heap *h, int block) { return h->base + h->blocks[block].at; }

void heap_ref(struct heap *h, int block)
{
    if (block >= 0) h->blocks[block].refs++;
}

/* The gap that a freed block leaves is found by the next heap_get. */
void heap_unref(struct heap *h, int block)
{
    int i = 0;

    if (block < 0 || --h->blocks[block].refs > 0) return;
    while (h->order[i] != block) i++;
    memmove(h->order + i, h->order + i + 1, (size_t)(h->n - i - 1) * sizeof *h->order);
    h->n--;
}

void heap_clear(struct heap *h)
{
    for (int i = 0; i < h->n; i++) h->blocks[h->order[i]].refs = 0;
    h->n = 0;
}

void *heap_own(struct heap_owned **list, size_t bytes)
{
    struct heap_owned *o = mem_new(struct heap_owned);

    if (!o) return NULL;
    o->bytes = bytes ? bytes : 1;
    if (!(o->p = mem_aligned(o->bytes))) {
        mem_free(o);
        return NULL;
    }
    o->next = *list;
    *list = o;
    return o->p;
}

void heap_release_owned(struct heap_owned **list)
{
    while (*list) {
        struct heap_owned *o = *list;
        *list = o->next;
        mem_free_aligned(o->p, o->bytes);
        mem_free(o);
    }
}
