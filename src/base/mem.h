/* mem.h - allocation that cannot fail quietly.
 *
 * Small allocations do not fail: if the system has none left, the process says
 * so in one line and ends with exit code 1. Sizes that come from a file, a flag
 * or a client go through mem_try*, which return NULL and leave the decision to
 * the caller. */
#ifndef TERN_BASE_MEM_H
#define TERN_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *mem_alloc(size_t n);              /* zeroed; never NULL */
void *mem_array(size_t n, size_t size); /* zeroed; never NULL; n * size is checked */
void *mem_grow(void *p, size_t n);      /* realloc; never NULL; new bytes are not zeroed */
void *mem_dup(const void *p, size_t n);
char *mem_strdup(const char *s);
void mem_free(void *p); /* NULL is fine */

void *mem_try(size_t n);                    /* zeroed, or NULL */
void *mem_try_array(size_t n, size_t size); /* zeroed, or NULL, also when n * size overflows */

/* Blocks aligned to 64 bytes (2 MiB and huge pages from 4 MiB on), not zeroed;
 * NULL when there is no memory. Freed with mem_free_aligned only. */
void *mem_try_aligned(size_t n);
void mem_free_aligned(void *p, size_t n);

#define mem_new(type) ((type *)mem_alloc(sizeof(type)))

/* Overflow-checked size arithmetic: false when the result does not fit. */
bool mem_mul(size_t a, size_t b, size_t *out);
bool mem_add(size_t a, size_t b, size_t *out);
#endif
