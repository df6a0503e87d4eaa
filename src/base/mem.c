#include "base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20)

static void *or_die(void *p)
{
    static const char msg[] = "tern: out of memory\n";
    if (p) return p;
    if (write(2, msg, sizeof msg - 1) < 0) { /* nothing left to tell it with */
    }
    _exit(1);
}

bool mem_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
bool mem_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

void *mem_try(size_t n) { return n > PTRDIFF_MAX ? NULL : calloc(1, n ? n : 1); }

void *mem_try_array(size_t n, size_t size)
{
    size_t bytes;
    return mem_mul(n, size, &bytes) ? mem_try(bytes) : NULL;
}

void *mem_alloc(size_t n) { return or_die(mem_try(n)); }
void *mem_array(size_t n, size_t size) { return or_die(mem_try_array(n, size)); }
void *mem_grow(void *p, size_t n) { return or_die(realloc(p, n ? n : 1)); }

void *mem_dup(const void *p, size_t n)
{
    void *q = or_die(malloc(n ? n : 1));
    if (n) memcpy(q, p, n);
    return q;
}

char *mem_strdup(const char *s) { return mem_dup(s, strlen(s) + 1); }
void mem_free(void *p) { free(p); }

void *mem_try_aligned(size_t n)
{
    size_t align = n >= 2 * HUGE ? HUGE : 64;
    void *p;

    if (n > PTRDIFF_MAX - HUGE) return NULL;
    n = (n + 63) & ~(size_t)63;
    if (posix_memalign(&p, align, n ? n : 64) != 0) return NULL;
    if (align == HUGE) madvise(p, n & ~(HUGE - 1), MADV_HUGEPAGE);
    return p;
}

void mem_free_aligned(void *p, size_t n)
{
    (void)n;
    free(p);
}
