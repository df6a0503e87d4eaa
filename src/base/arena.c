#include "base/arena.h"

#include "base/budget.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A block of memory from which allocations are cut, front to back. */
struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap; /* bytes of data */
    _Alignas(16) char data[];
};

/* The newest chunk if n more bytes fit into it, otherwise a new one; NULL: no memory. The rest of
 * the old chunk stays unused. */
static struct arena_chunk *find_or_add_chunk(struct arena *a, size_t n)
{
    struct arena_chunk *c = a->head;
    size_t cap = c ? c->cap * 2 : 4096;

    if (c && c->cap - c->used >= n) return c;
    if (cap > (1u << 20)) cap = 1u << 20;
    if (cap < n) cap = n;
    if (n > SIZE_MAX / 2 || !budget_take(a->budget, sizeof *c + cap)) return NULL;
    if (!(c = mem_alloc(sizeof *c + cap))) {
        budget_give(a->budget, sizeof *c + cap);
        return NULL;
    }
    c->cap = cap;
    c->next = a->head;
    a->head = c;
    return c;
}

/* Zeroed: chunks come from calloc, and arena_reset clears what was used. */
void *arena_alloc(struct arena *a, size_t n)
{
    struct arena_chunk *c;
    void *p;

    n = n > SIZE_MAX - 15 ? SIZE_MAX : (n + 15) & ~(size_t)15;
    if (!(c = find_or_add_chunk(a, n))) {
        a->failed = true;
        return NULL;
    }
    p = c->data + c->used;
    c->used += n;
    a->used_bytes += n;
    return p;
}

/* An overflow of n * size becomes a size that cannot be allocated. */
void *arena_array(struct arena *a, size_t n, size_t size)
{
    size_t bytes;
    return arena_alloc(a, mem_mul(n, size, &bytes) ? bytes : SIZE_MAX);
}

char *arena_cstr(struct arena *a, struct str s)
{
    char *p = arena_alloc(a, s.n + 1);
    if (p && s.n) memcpy(p, s.p, s.n);
    return p;
}

struct str arena_str(struct arena *a, struct str s)
{
    char *p = arena_cstr(a, s);
    return str_of(p, p ? s.n : 0);
}

/* Formats twice: once to measure, once to write. */
char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    char *p;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    p = arena_alloc(a, (size_t)(n < 0 ? 0 : n) + 1);
    if (p) vsnprintf(p, (size_t)(n < 0 ? 0 : n) + 1, fmt, again);
    va_end(again);
    return p;
}

int arena_check(const struct arena *a, struct err *e)
{
    return a->failed ? err_nomem(e, "many small objects") : OK;
}

static void free_chunk(struct arena *a, struct arena_chunk *c)
{
    budget_give(a->budget, sizeof *c + c->cap);
    mem_free(c);
}

void arena_reset(struct arena *a)
{
    struct arena_chunk *newest = a->head;

    a->failed = false;
    if (!newest) return;
    while (newest->next) {
        struct arena_chunk *old = newest->next;
        newest->next = old->next;
        free_chunk(a, old);
    }
    memset(newest->data, 0, newest->used); /* arena_alloc promises zeroed bytes */
    newest->used = 0;
    a->used_bytes = 0;
}

void arena_release(struct arena *a)
{
    while (a->head) {
        struct arena_chunk *next = a->head->next;
        free_chunk(a, a->head);
        a->head = next;
    }
    a->used_bytes = 0;
    a->failed = false;
}
