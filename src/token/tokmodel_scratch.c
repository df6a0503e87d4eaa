#include "token/tokmodel.h"

#include "base/mem.h"

struct scratch *scratch_open(void)
{
    struct scratch *s = mem_new(struct scratch);

    s->matcher = matcher_open();
    s->words = mem_array(WORD_SLOTS, sizeof *s->words);
    return s;
}

void scratch_close(struct scratch *s)
{
    if (!s) return;
    buf_release(&s->text);
    buf_release(&s->tmp);
    for (int i = 0; i < 2; i++) {
        buf_release(&s->normal[i]);
        buf_release(&s->split[i]);
        mem_free(s->pieces[i].p);
    }
    matcher_close(s->matcher);
    mem_free(s->words);
    mem_free(s->ids);
    mem_free(s->next);
    mem_free(s->prev);
    mem_free(s->ranks);
    mem_free(s->heap);
    mem_free(s->scores);
    mem_free(s);
}

void spans_grow(struct span_list *v)
{
    v->cap = v->cap ? v->cap * 2 : 256;
    v->p = mem_grow(v->p, v->cap * sizeof *v->p);
}

void scratch_symbols(struct scratch *s, size_t n)
{
    if (n <= s->cap_symbols) return;
    s->cap_symbols = n < 256 ? 256 : n + n / 2;
    s->ids = mem_grow(s->ids, s->cap_symbols * sizeof *s->ids);
    s->next = mem_grow(s->next, s->cap_symbols * sizeof *s->next);
    s->prev = mem_grow(s->prev, s->cap_symbols * sizeof *s->prev);
    s->ranks = mem_grow(s->ranks, s->cap_symbols * sizeof *s->ranks);
}

void scratch_scores(struct scratch *s, size_t n)
{
    if (n <= s->cap_scores) return;
    s->cap_scores = n < 256 ? 256 : n + n / 2;
    s->scores = mem_grow(s->scores, s->cap_scores * sizeof *s->scores);
}

static void heap_room(struct scratch *s)
{
    if (s->n_heap < s->cap_heap) return;
    s->cap_heap = s->cap_heap ? s->cap_heap * 2 : 256;
    s->heap = mem_grow(s->heap, s->cap_heap * sizeof *s->heap);
}

void heap_append(struct scratch *s, uint64_t v)
{
    heap_room(s);
    s->heap[s->n_heap++] = v;
}

/* Four children each: half as deep as with two, and they share a cache line. */
void heap_push(struct scratch *s, uint64_t v)
{
    heap_room(s);
    size_t i = s->n_heap++;
    while (i && s->heap[(i - 1) / 4] > v) {
        s->heap[i] = s->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    s->heap[i] = v;
}

static inline size_t least(const uint64_t *h, size_t c, size_t n)
{
    size_t best = c;

    if (c + 4 <= n) {
        size_t a = c + (h[c + 1] < h[c]), b = c + 2 + (h[c + 3] < h[c + 2]);
        return h[b] < h[a] ? b : a;
    }
    for (size_t i = c + 1; i < n; i++)
        if (h[i] < h[best]) best = i;
    return best;
}

static void sift(uint64_t *h, size_t n, size_t i)
{
    uint64_t v = h[i];

    for (size_t c; (c = 4 * i + 1) < n; i = c) {
        c = least(h, c, n);
        if (h[c] >= v) break;
        h[i] = h[c];
    }
    h[i] = v;
}

void heap_make(struct scratch *s)
{
    for (size_t i = s->n_heap / 4 + 1; i-- > 0;)
        if (i < s->n_heap) sift(s->heap, s->n_heap, i);
}

uint64_t heap_pop(struct scratch *s)
{
    uint64_t top = s->heap[0];

    s->heap[0] = s->heap[--s->n_heap];
    if (s->n_heap) sift(s->heap, s->n_heap, 0);
    return top;
}
