/* outbox.c - the ring: a single-producer, single-consumer queue of variable-size records.
 *
 * head is written by the engine thread only, tail by the reader only; each stores its own with
 * release order after it has written or read the bytes, and loads the other's with acquire order. */
#include "engine/outbox.h"

#include "base/mem.h"
#include "engine/finish.h"

#include <assert.h>
#include <string.h>

/* The head of an event in the ring; its alternatives and its text follow. */
struct record {
    int32_t id, n_top, finish;
    uint32_t n_text;
    float logprob;
    uint64_t at_ns;
};

enum {
    TEXT_EVENTS = OUTBOX_STEP_TEXT / (OUTBOX_TEXT - 4) + 2, /* splitting keeps characters whole */
    /* Two steps: while one computes, the events of the one before are pushed. */
    STEPS_BYTES = 2 * (TOP_MAX * (int)sizeof(struct top) +
                       TEXT_EVENTS * (int)sizeof(struct record) + OUTBOX_STEP_TEXT),
    RING_BYTES = 16384
};
_Static_assert(STEPS_BYTES <= RING_BYTES, "the ring holds the events of two steps");

/* In hard mode the ring seems smaller than it is: two steps and nothing more. */
static uint32_t usable_bytes(const struct outbox *o) { return HARD ? STEPS_BYTES : o->cap; }

bool outbox_init(struct outbox *o)
{
    *o = (struct outbox){ .ring = mem_alloc(RING_BYTES + OUTBOX_TEXT) };
    if (!o->ring) return false;
    o->cap = RING_BYTES;
    o->text = o->ring + RING_BYTES;
    return true;
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

    return usable_bytes(o) - (head - tail) >= STEPS_BYTES;
}

/* Copies n bytes into the ring at position `at`, around its end; returns the position behind. */
static uint32_t write_bytes(struct outbox *o, uint32_t at, const void *p, size_t n)
{
    size_t i = at % o->cap, first = o->cap - i < n ? o->cap - i : n;

    if (n == 0) return at;
    memcpy(o->ring + i, p, first);
    memcpy(o->ring, (const char *)p + first, n - first);
    return at + (uint32_t)n;
}

/* The opposite. */
static uint32_t read_bytes(const struct outbox *o, uint32_t at, void *p, size_t n)
{
    size_t i = at % o->cap, first = o->cap - i < n ? o->cap - i : n;

    if (n == 0) return at;
    memcpy(p, o->ring + i, first);
    memcpy((char *)p + first, o->ring, n - first);
    return at + (uint32_t)n;
}

/* The event becomes visible with the last store, all at once. */
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
    at = write_bytes(o, at, &r, sizeof r);
    at = write_bytes(o, at, ev->top, (size_t)ev->n_top * sizeof *ev->top);
    at = write_bytes(o, at, ev->text.p, ev->text.n);
    assert(at - atomic_load_explicit(&o->tail, memory_order_acquire) <= o->cap);
    atomic_store_explicit(&o->head, at, memory_order_release);
}

/* The text is copied out: the writer may overwrite the ring as soon as tail moves. */
bool outbox_pop(struct outbox *o, struct event *ev)
{
    uint32_t at = atomic_load_explicit(&o->tail, memory_order_relaxed);
    struct record r;

    if (at == atomic_load_explicit(&o->head, memory_order_acquire)) return false;
    at = read_bytes(o, at, &r, sizeof r);
    ev->id = r.id;
    ev->logprob = r.logprob;
    ev->n_top = r.n_top;
    ev->finish = r.finish;
    ev->at_ns = r.at_ns;
    at = read_bytes(o, at, ev->top, (size_t)r.n_top * sizeof *ev->top);
    at = read_bytes(o, at, o->text, r.n_text);
    ev->text = str_of(o->text, r.n_text);
    atomic_store_explicit(&o->tail, at, memory_order_release);
    return true;
}

/* Walks over the unread records, as the reader will. */
int outbox_check(const struct outbox *o, struct err *e)
{
    uint32_t at = atomic_load_explicit(&o->tail, memory_order_acquire);
    uint32_t head = atomic_load_explicit(&o->head, memory_order_relaxed);
    bool over = false;

    if (!o->ring || (o->cap & (o->cap - 1)) || head - at > o->cap)
        return err_set(e, E_INTERNAL, "%u of %u bytes are in the outbox", head - at, o->cap);
    while (at != head) {
        struct record r;
        uint32_t left = head - at, n;
        if (over) return err_set(e, E_INTERNAL, "an event follows the last one in the outbox");
        if (left < sizeof r) return err_set(e, E_INTERNAL, "%u bytes are no event", left);
        /* The reader may free these bytes meanwhile, but only the writer, here, overwrites them. */
        read_bytes(o, at, &r, sizeof r);
        n = (uint32_t)sizeof r + (uint32_t)r.n_top * (uint32_t)sizeof(struct top) + r.n_text;
        if (r.n_top < 0 || r.n_top > TOP_MAX || r.n_text > OUTBOX_TEXT || n > left ||
            r.finish < 0 || r.finish >= N_FINISH)
            return err_set(e, E_INTERNAL, "an event of %u bytes, where the outbox has %u", n, left);
        over = r.finish != FINISH_NONE;
        at += n;
    }
    return OK;
}
