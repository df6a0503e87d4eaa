#include "engine/outbox.h"

#include "base/mem.h"

#include <assert.h>

/* What lies in the ring: this, the alternatives, the text. */
struct record {
    int32_t id, n_top, finish;
    uint32_t n_text;
    float logprob;
    uint64_t at_ns;
};

enum {
    EVENT_MAX = sizeof(struct record) + TOP_MAX * sizeof(struct top) + OUTBOX_TEXT,
    STEP_EVENTS = 8 /* of two steps, for one is told of while the next runs: a token, more of its
                     * text twice, the end */
};

void outbox_init(struct outbox *o)
{
    *o = (struct outbox){ .cap = OUTBOX_BYTES };
    o->ring = mem_alloc(OUTBOX_BYTES + OUTBOX_TEXT);
    o->text = o->ring + OUTBOX_BYTES;
}

void outbox_release(struct outbox *o)
{
    mem_free(o->ring);
    o->ring = o->text = NULL;
}

bool outbox_has_room(const struct outbox *o)
{
    uint32_t head = atomic_load_explicit(&o->head, memory_order_relaxed);
    uint32_t tail = atomic_load_explicit(&o->tail, memory_order_acquire);
    return o->cap - (head - tail) >= STEP_EVENTS * EVENT_MAX;
}

static uint32_t put(struct outbox *o, uint32_t at, const void *p, size_t n)
{
    size_t i = at % o->cap, first = o->cap - i < n ? o->cap - i : n;

    if (n == 0) return at;
    memcpy(o->ring + i, p, first);
    memcpy(o->ring, (const char *)p + first, n - first);
    return at + (uint32_t)n;
}

static uint32_t get(const struct outbox *o, uint32_t at, void *p, size_t n)
{
    size_t i = at % o->cap, first = o->cap - i < n ? o->cap - i : n;

    if (n == 0) return at;
    memcpy(p, o->ring + i, first);
    memcpy((char *)p + first, o->ring, n - first);
    return at + (uint32_t)n;
}

void outbox_push(struct outbox *o, const struct event *ev)
{
    uint32_t at = atomic_load_explicit(&o->head, memory_order_relaxed);
    struct record r = { .id = ev->id,
                        .n_top = ev->n_top,
                        .finish = ev->finish,
                        .n_text = (uint32_t)ev->text.n,
                        .logprob = ev->logprob,
                        .at_ns = ev->at_ns };

    assert(ev->n_top <= TOP_MAX && ev->text.n <= OUTBOX_TEXT);
    at = put(o, at, &r, sizeof r);
    at = put(o, at, ev->top, (size_t)ev->n_top * sizeof *ev->top);
    at = put(o, at, ev->text.p, ev->text.n);
    assert(at - atomic_load_explicit(&o->tail, memory_order_acquire) <= o->cap);
    atomic_store_explicit(&o->head, at, memory_order_release);
}

bool outbox_pop(struct outbox *o, struct event *ev)
{
    uint32_t at = atomic_load_explicit(&o->tail, memory_order_relaxed);
    struct record r;

    if (at == atomic_load_explicit(&o->head, memory_order_acquire)) return false;
    at = get(o, at, &r, sizeof r);
    ev->id = r.id;
    ev->logprob = r.logprob;
    ev->n_top = r.n_top;
    ev->finish = r.finish;
    ev->at_ns = r.at_ns;
    at = get(o, at, ev->top, (size_t)r.n_top * sizeof *ev->top);
    at = get(o, at, o->text, r.n_text);
    ev->text = str_of(o->text, r.n_text);
    atomic_store_explicit(&o->tail, at, memory_order_release);
    return true;
}
