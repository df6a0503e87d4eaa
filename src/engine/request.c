/* request.c - opening, counting and cancelling of requests. The first cancel wins by a compare and
 * exchange, so its reason and its time belong together. */
#include "engine/request.h"

#include "base/clock.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "sample/sampler.h"

#include <string.h>

struct request *request_open(void)
{
    struct request *r = mem_new(struct request);

    if (!r) return NULL;
    if (!outbox_init(&r->out)) {
        mem_free(r);
        return NULL;
    }
    r->sample = sample_defaults();
    r->n_top = -1;
    r->priority = PRIORITY_INTERACTIVE;
    atomic_init(&r->refs, 1);
    return r;
}

void request_ref(struct request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

/* The last reference may be dropped by either thread. */
void request_unref(struct request *r)
{
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    ids_release(&r->prompt);
    ids_release(&r->resume);
    buf_release(&r->resumed);
    outbox_release(&r->out);
    mem_free(r->vec);
    grammar_unref(r->grammar);
    mem_free(r->stops);
    mem_free((void *)r->sample.bias);
    mem_free(r->shown);
    if (r->release) r->release(r->owner);
    mem_free(r);
}

/* One allocation for the array and the bytes behind it. */
bool request_set_stops(struct request *r, const struct str *stops, int n)
{
    size_t bytes = 0;
    char *at;

    for (int i = 0; i < n; i++) bytes += stops[i].n;
    mem_free(r->stops);
    r->n_stops = 0;
    r->stops = mem_alloc((size_t)n * sizeof *r->stops + bytes + 1);
    if (!r->stops) return false;
    at = (char *)(r->stops + n);
    for (int i = 0; i < n; i++) {
        if (stops[i].n) memcpy(at, stops[i].p, stops[i].n);
        r->stops[i] = str_of(at, stops[i].n);
        at += stops[i].n;
    }
    r->n_stops = n;
    return true;
}

void request_set_borders(struct request *r, const int *at, int n)
{
    r->n_borders = 0;
    while (r->n_borders < n && r->n_borders < REQUEST_BORDERS) {
        r->borders[r->n_borders] = at[r->n_borders];
        r->n_borders++;
    }
}

/* Only atomic operations and clock_gettime: safe in a signal handler. */
bool request_cancel(struct request *r, enum cancel why)
{
    int no = CANCEL_NO;

    if (!atomic_compare_exchange_strong_explicit(&r->cancel, &no, (int)why, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return false;
    atomic_store_explicit(&r->cancel_ns, clock_ns(), memory_order_release);
    return true;
}

bool request_next(struct request *r, struct event *ev)
{
    /* Cleared before the outbox is read: an event that is pushed after that notifies again. */
    atomic_exchange_explicit(&r->notified, 0, memory_order_acq_rel);
    return outbox_pop(&r->out, ev);
}

const char *finish_name(enum finish f)
{
    switch (f) {
    case FINISH_STOP: return "stop";
    case FINISH_LENGTH: return "length";
    case FINISH_CANCELLED: return "cancelled";
    case FINISH_DEADLINE: return "deadline";
    case FINISH_ERROR: return "error";
    default: return "";
    }
}
