/* tokmodel_scratch.c - growing scratch memory, and the heap of pairs that may merge.
 *
 * The heap has four children per node: it is half as deep as a binary heap, and the children share
 * a cache line. */
#include "token/tokmodel.h"

void model_scratch_release(struct model_scratch *w)
{
    buf_release(&w->tmp);
    mem_free(w->ids);
    mem_free(w->next);
    mem_free(w->prev);
    mem_free(w->ranks);
    mem_free(w->heap);
    mem_free(w->scores);
    *w = (struct model_scratch){ 0 };
}

/* Resizes the array that the pointer variable at pp names. false: no memory, it is unchanged. */
static bool resize_array(void *pp, size_t n, size_t size)
{
    void *old, *grown;
    size_t bytes;

    memcpy(&old, pp, sizeof old);
    if (!mem_mul(n, size, &bytes) || !(grown = mem_grow(old, bytes))) return false;
    memcpy(pp, &grown, sizeof grown);
    return true;
}

static size_t round_capacity(size_t n) { return n < 256 ? 256 : n + n / 2; }

bool model_scratch_reserve_symbols(struct model_scratch *w, size_t n)
{
    size_t cap = round_capacity(n);

    if (n <= w->cap_symbols) return true;
    /* a failure in the middle leaves arrays that are larger than cap_symbols says */
    if (!resize_array(&w->ids, cap, sizeof *w->ids) ||
        !resize_array(&w->next, cap, sizeof *w->next) ||
        !resize_array(&w->prev, cap, sizeof *w->prev) ||
        !resize_array(&w->ranks, cap, sizeof *w->ranks))
        return false;
    w->cap_symbols = cap;
    return true;
}

bool model_scratch_reserve_heap(struct model_scratch *w, size_t n)
{
    size_t cap = round_capacity(n);

    if (n <= w->cap_heap) return true;
    if (!resize_array(&w->heap, cap, sizeof *w->heap)) return false;
    w->cap_heap = cap;
    return true;
}

bool model_scratch_reserve_scores(struct model_scratch *w, size_t n)
{
    size_t cap = round_capacity(n);

    if (n <= w->cap_scores) return true;
    if (!resize_array(&w->scores, cap, sizeof *w->scores)) return false;
    w->cap_scores = cap;
    return true;
}

void heap_append(struct model_scratch *w, uint64_t v) { w->heap[w->n_heap++] = v; }

void heap_push(struct model_scratch *w, uint64_t v)
{
    size_t i = w->n_heap++;

    while (i && w->heap[(i - 1) / 4] > v) {
        w->heap[i] = w->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    w->heap[i] = v;
}

/* The smallest of the children h[c] to h[c + 3]. */
static inline size_t find_least_child(const uint64_t *h, size_t c, size_t n)
{
    size_t best = c;

    if (c + 4 <= n) { /* without branches: the order is random */
        size_t a = c + (h[c + 1] < h[c]), b = c + 2 + (h[c + 3] < h[c + 2]);
        return h[b] < h[a] ? b : a;
    }
    for (size_t i = c + 1; i < n; i++)
        if (h[i] < h[best]) best = i;
    return best;
}

static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t v = h[i];

    for (size_t c; (c = 4 * i + 1) < n; i = c) {
        c = find_least_child(h, c, n);
        if (h[c] >= v) break;
        h[i] = h[c];
    }
    h[i] = v;
}

/* Floyd's construction, in linear time. */
void heap_order(struct model_scratch *w)
{
    for (size_t i = w->n_heap / 4 + 1; i-- > 0;)
        if (i < w->n_heap) sift_down(w->heap, w->n_heap, i);
}

uint64_t heap_pop(struct model_scratch *w)
{
    uint64_t top = w->heap[0];

    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap) sift_down(w->heap, w->n_heap, 0);
    return top;
}
