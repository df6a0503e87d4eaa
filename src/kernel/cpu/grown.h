/* grown.h - a 64-byte aligned buffer that only grows: scratch memory kept between calls.
 *
 * Its contents are lost when it grows. A zeroed one is valid and empty. */
#ifndef TERN_KERNEL_CPU_GROWN_H
#define TERN_KERNEL_CPU_GROWN_H

#include "base/mem.h"

struct grown {
    void *p;
    size_t n; /* bytes */
};

/* Room for n bytes. false: no memory; the buffer is unchanged. */
static inline bool grown_reserve(struct grown *g, size_t n)
{
    void *p;

    if (n <= g->n) return true;
    if (!(p = mem_aligned(n))) return false;
    if (g->p) mem_free_aligned(g->p, g->n);
    *g = (struct grown){ p, n };
    return true;
}

static inline void grown_release(struct grown *g)
{
    if (g->p) mem_free_aligned(g->p, g->n);
    *g = (struct grown){ 0 };
}
#endif
