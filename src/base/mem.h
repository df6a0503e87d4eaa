/* mem.h - memory allocation. Every call can fail, and failing ends one operation, never the
 * process.
 *
 * A NULL result means that the system has no memory left, or that the size does not fit into a
 * size_t. The caller releases what it has built so far and returns E_NOMEM (err_nomem in err.h
 * writes the message). Code that builds something in many small steps uses an object that remembers
 * the first failure (struct buf, struct arena, struct ids) and checks it once at the end.
 *
 * Every function here may be called from any thread. */
#ifndef TERN_BASE_MEM_H
#define TERN_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#define MEM_CHECKED __attribute__((warn_unused_result))

MEM_CHECKED void *mem_alloc(size_t n);              /* n zeroed bytes, or NULL */
MEM_CHECKED void *mem_array(size_t n, size_t size); /* n zeroed items, or NULL */
/* Resizes the allocation p to n bytes. New bytes are not zeroed. NULL: p is still valid and has its
 * old size. */
MEM_CHECKED void *mem_grow(void *p, size_t n);
MEM_CHECKED void *mem_dup(const void *p, size_t n); /* a copy of n bytes, or NULL */
MEM_CHECKED char *mem_strdup(const char *s);
void mem_free(void *p); /* NULL is allowed */

/* Blocks aligned to 64 bytes (2 MiB and huge pages from 4 MiB on), not zeroed, or NULL. Freed with
 * mem_free_aligned only. */
MEM_CHECKED void *mem_aligned(size_t n);
/* Blocks of 1 MiB and more go back to the system when they are freed. For programs, at their start. */
void mem_return_large(void);
/* As mem_aligned, but never on huge pages: for large arrays of which only scattered parts are used. */
MEM_CHECKED void *mem_aligned_thin(size_t n);
void mem_free_aligned(void *p, size_t n);

#define mem_new(type) ((type *)mem_alloc(sizeof(type)))

/* Grows the array that the pointer variable at `pp` names to at least `need` items of `size` bytes,
 * at least doubling it, and updates *cap. false: no memory; array and *cap are unchanged. */
MEM_CHECKED bool mem_ensure_size(void *pp, size_t *cap, size_t need, size_t size);
MEM_CHECKED bool mem_ensure_int(void *pp, int *cap, int need, size_t size);

#ifndef __cplusplus
/* mem_ensure(v->items, v->cap, v->n + 1): room for one more item. cap is an int or a size_t. */
#define mem_ensure(p, cap, need) \
    _Generic(&(cap), int * : mem_ensure_int, size_t * : mem_ensure_size)(&(p), &(cap), (need), \
                                                                         sizeof *(p))
#endif

/* Overflow-checked size arithmetic. false: the result does not fit. */
bool mem_mul(size_t a, size_t b, size_t *out);
bool mem_add(size_t a, size_t b, size_t *out);
#endif
