/* arena.h - many allocations that are freed together.
 *
 * A zeroed arena is a valid empty one. Everything allocated from it lives until arena_release or
 * arena_reset. Memory comes in chunks that double up to 1 MiB, so an allocation is an addition
 * to an offset. Allocations return NULL when there is no memory, and `failed` stays set from then
 * on: code that stores results without using them may check it once with arena_check.
 * An arena is used by one thread at a time. */
#ifndef TERN_BASE_ARENA_H
#define TERN_BASE_ARENA_H

#include "base/err.h"
#include "base/str.h"

#include <stddef.h>

struct budget;
struct arena_chunk;
struct arena {
    struct arena_chunk *head; /* the newest and largest chunk */
    size_t used_bytes;        /* sum of all allocations, rounded up to 16 bytes each */
    bool failed;              /* an allocation found no memory, or the budget ended */
    struct budget *budget;    /* counts the chunks; NULL: nobody does */
};

void *arena_alloc(struct arena *a, size_t n);              /* zeroed, 16-byte aligned, or NULL */
void *arena_array(struct arena *a, size_t n, size_t size); /* n zeroed items, or NULL */
char *arena_cstr(struct arena *a, struct str s);           /* NUL-terminated copy, or NULL */
struct str arena_str(struct arena *a, struct str s);       /* the copy; { NULL, 0 } on failure */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int arena_check(const struct arena *a, struct err *e); /* OK, or E_NOMEM after a failure */
void arena_reset(struct arena *a); /* frees everything except the newest chunk, which it reuses */
void arena_release(struct arena *a);

#define arena_new(a, type) ((type *)arena_alloc(a, sizeof(type)))
#endif
