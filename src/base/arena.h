/* arena.h - many allocations that end together.
 *
 * A zeroed arena is a valid empty one. Everything handed out lives until arena_release (or
 * arena_reset, which keeps the first chunk for reuse). Allocations return NULL when there is no
 * memory, and `failed` stays set from then on: code that stores results without using them may
 * check it once with arena_check. */
#ifndef TERN_BASE_ARENA_H
#define TERN_BASE_ARENA_H

#include "base/err.h"
#include "base/str.h"

#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *head;
    size_t used_bytes;
    bool failed; /* an allocation found no memory */
};

void *arena_alloc(struct arena *a, size_t n); /* zeroed, 16-byte aligned, or NULL */
void *arena_array(struct arena *a, size_t n, size_t size);
char *arena_cstr(struct arena *a, struct str s); /* NUL-terminated copy, or NULL */
struct str arena_str(struct arena *a, struct str s);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int arena_check(const struct arena *a, struct err *e); /* OK, or E_NOMEM after a failure */
void arena_reset(struct arena *a);
void arena_release(struct arena *a);

#define arena_new(a, type) ((type *)arena_alloc(a, sizeof(type)))
#endif
