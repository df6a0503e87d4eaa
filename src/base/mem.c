#include "base/mem.h"

#include <limits.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
enum { LARGE_BLOCK = 1 << 20 };

/* Sizes above PTRDIFF_MAX are refused before malloc sees them: pointer differences inside such a
 * block would overflow, and gcc and ASan warn about the call. A size of 0 allocates one byte, so
 * that NULL always means failure. */

bool mem_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
bool mem_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

void *mem_alloc(size_t n) { return n > PTRDIFF_MAX ? NULL : calloc(1, n ? n : 1); }

void *mem_array(size_t n, size_t size)
{
    size_t bytes;
    return mem_mul(n, size, &bytes) ? mem_alloc(bytes) : NULL;
}

void *mem_grow(void *p, size_t n) { return n > PTRDIFF_MAX ? NULL : realloc(p, n ? n : 1); }

void *mem_dup(const void *p, size_t n)
{
    void *q = n > PTRDIFF_MAX ? NULL : malloc(n ? n : 1);
    if (q && n) memcpy(q, p, n);
    return q;
}

char *mem_strdup(const char *s) { return mem_dup(s, strlen(s) + 1); }
void mem_free(void *p) { free(p); }

void *mem_aligned(size_t n)
{
    /* 64 bytes is a cache line and an AVX-512 vector. Weights and KV caches are large and read
     * sequentially: on 2 MiB pages they need far fewer TLB entries. The kernel may ignore the
     * advice, which costs speed only. */
    size_t align = n >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    void *p;

    if (n > PTRDIFF_MAX - HUGE_PAGE) return NULL;
    n = (n + 63) & ~(size_t)63;
    if (posix_memalign(&p, align, n ? n : 64) != 0) return NULL;
    if (align == HUGE_PAGE) madvise(p, n & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    return p;
}

/* Also where the system gives huge pages to all memory. */
void *mem_aligned_thin(size_t n)
{
    void *p = NULL;

    if (n > PTRDIFF_MAX - HUGE_PAGE) return NULL;
    if (n < 2 * HUGE_PAGE) return mem_aligned(n);
    if (posix_memalign(&p, HUGE_PAGE, (n + 63) & ~(size_t)63) != 0) return NULL;
    madvise(p, n & ~(HUGE_PAGE - 1), MADV_NOHUGEPAGE);
    return p;
}

/* glibc raises the size from which blocks are mapped with each one that is freed, up to 32 MiB, and keeps
 * the ends of its heaps up to twice that size: the scratch memory of a model would stay with the
 * process after the model. Fixed limits end both. */
void mem_return_large(void)
{
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
    mallopt(M_TRIM_THRESHOLD, LARGE_BLOCK);
}

/* n is not needed by this allocator; it is in the interface for one that needs it. */
void mem_free_aligned(void *p, size_t n)
{
    (void)n;
    free(p);
}

/* Doubles until it is enough; where doubling overflows, takes exactly what is needed. */
bool mem_ensure_size(void *pp, size_t *cap, size_t need, size_t size)
{
    size_t more = *cap ? *cap : 8, bytes;
    void *p;

    if (need <= *cap) return true;
    /* pp points to a pointer of any object type; memcpy reads and writes it without aliasing. */
    while (more < need && more <= SIZE_MAX / 2) more *= 2;
    if (more < need) more = need;
    memcpy(&p, pp, sizeof p);
    if (!mem_mul(more, size, &bytes) || !(p = mem_grow(p, bytes))) return false;
    memcpy(pp, &p, sizeof p);
    *cap = more;
    return true;
}

/* For counters of type int. */
bool mem_ensure_int(void *pp, int *cap, int need, size_t size)
{
    size_t wide = (size_t)*cap;

    if (need <= *cap) return true;
    if (!mem_ensure_size(pp, &wide, (size_t)need, size)) return false;
    *cap = wide > INT_MAX ? INT_MAX : (int)wide;
    return true;
}
