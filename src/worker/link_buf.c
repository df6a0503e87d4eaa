/* link_buf.c - buffers of a link, counted and recycled. Larger ones than LINK_BUF_BYTES, for rare
 * large frames, are freed after use. */
#include "worker/link_impl.h"

#include "base/mem.h"

struct link_bufs *bufs_open(void) { return mem_new(struct link_bufs); }

static void free_if_empty(struct link_bufs *b)
{
    if (b->closed && b->n_out == 0) mem_free(b);
}

void bufs_close(struct link_bufs *b)
{
    if (!b) return;
    while (b->free) {
        struct link_buf *x = b->free;
        b->free = x->next;
        mem_free(x);
    }
    b->n_free = 0;
    b->closed = true;
    free_if_empty(b);
}

struct link_buf *bufs_get(struct link_bufs *b, size_t cap)
{
    struct link_buf *x = cap <= LINK_BUF_BYTES ? b->free : NULL;

    if (x) {
        b->free = x->next;
        b->n_free--;
    } else {
        if (cap < LINK_BUF_BYTES) cap = LINK_BUF_BYTES;
        x = mem_grow(NULL, sizeof *x + cap);
        if (!x) return NULL;
        x->cap = cap;
        b->made++;
    }
    b->n_out++;
    x->home = b;
    x->next = NULL;
    x->refs = 1;
    x->start = x->end = 0;
    return x;
}

void link_buf_unref(struct link_buf *x)
{
    struct link_bufs *b = x->home;

    if (--x->refs > 0) return;
    b->n_out--;
    if (!b->closed && b->n_free < LINK_FREE_MAX && x->cap == LINK_BUF_BYTES) {
        x->next = b->free;
        b->free = x;
        b->n_free++;
        return;
    }
    mem_free(x);
    free_if_empty(b);
}
