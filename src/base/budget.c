/* budget.c - the slow path of counting, and the words for what was exceeded. */
#include "base/budget.h"

#include "base/clock.h"
#include "base/mem.h"

/* Keeps the first reason. `next` is 0 from then on, so that every step comes here. */
static bool stop(struct budget *b, enum budget_end why)
{
    if (b->end == BUDGET_OPEN) b->end = why;
    b->next = 0;
    return false;
}

/* Steps are looked at exactly: where the limit is nearer than the next look, that comes sooner. */
bool budget_look(struct budget *b)
{
    uint64_t now;

    if (!b) return true;
    if (b->end != BUDGET_OPEN) return false;
    if (b->max_steps && b->steps > b->max_steps) return stop(b, BUDGET_STEPS);
    if (b->cancelled && atomic_load_explicit(b->cancelled, memory_order_relaxed))
        return stop(b, BUDGET_CANCELLED);
    if (b->stop && atomic_load_explicit(b->stop, memory_order_relaxed))
        return stop(b, BUDGET_CANCELLED);
    if (b->deadline_ns && clock_ns() >= b->deadline_ns) return stop(b, BUDGET_DEADLINE);
    if (b->max_cpu_ns) {
        now = clock_thread_ns();
        if (!b->begin_ns) b->begin_ns = now;
        if (now - b->begin_ns > b->max_cpu_ns) return stop(b, BUDGET_TIME);
    }
    b->next = b->steps + BUDGET_LOOK;
    if (b->max_steps && b->next > b->max_steps + 1) b->next = b->max_steps + 1;
    return true;
}

bool budget_take(struct budget *b, size_t bytes)
{
    if (!b) return true;
    if (b->end != BUDGET_OPEN) return false;
    if (b->max_bytes && (bytes > b->max_bytes || b->bytes > b->max_bytes - bytes))
        return stop(b, BUDGET_BYTES);
    b->bytes += bytes;
    if (b->bytes > b->peak_bytes) b->peak_bytes = b->bytes;
    return true;
}

void budget_give(struct budget *b, size_t bytes)
{
    if (b) b->bytes -= bytes < b->bytes ? bytes : b->bytes;
}

int budget_error(const struct budget *b, struct err *e)
{
    unsigned long long steps = b->steps;
    double mib = 1 << 20, held = (double)b->peak_bytes / mib;

    switch (b->end) {
    case BUDGET_STEPS:
        return err_set(e, E_INVALID,
                       "%s takes more than %llu steps, which is the limit; it had "
                       "taken %.1f MiB of memory until then",
                       b->what, (unsigned long long)b->max_steps, held);
    case BUDGET_BYTES:
        return err_set(e, E_INVALID,
                       "%s takes more than %.1f MiB of memory, which is the limit; "
                       "it had taken %llu steps until then",
                       b->what, (double)b->max_bytes / mib, steps);
    case BUDGET_TIME:
        return err_set(e, E_INVALID,
                       "%s takes more than %.1f seconds of processor time, which is the limit; "
                       "it had taken %llu steps and %.1f MiB of memory until then",
                       b->what, (double)b->max_cpu_ns / 1e9, steps, held);
    case BUDGET_CANCELLED:
        return err_set(e, E_CANCELLED,
                       "%s was stopped after %llu steps: nobody waits for it any "
                       "more",
                       b->what, steps);
    case BUDGET_DEADLINE:
        return err_set(e, E_DEADLINE, "the deadline passed after %llu steps of %s", steps, b->what);
    case BUDGET_OPEN: break;
    }
    return err_set(e, E_INTERNAL, "%s is within its limits", b->what);
}

/* ---- arrays and maps ---- */

/* Counted before it is allocated, as mem_ensure will grow it. */
bool budget_ensure_int(struct budget *b, void *pp, int *cap, int need, size_t size)
{
    size_t more = *cap ? (size_t)*cap : 8, bytes;

    while (more < (size_t)need) more *= 2;
    bytes = (more - (size_t)*cap) * size;
    if (!budget_take(b, bytes)) return false;
    if (mem_ensure_int(pp, cap, need, size)) return true;
    budget_give(b, bytes);
    return false;
}

int budget_map_put(struct budget *b, struct map *m, struct str key, uint64_t value)
{
    size_t before = map_bytes(m);
    int rc = map_put(m, key, value);

    return budget_take(b, map_bytes(m) - before) ? rc : E_NOMEM;
}

void budget_map_release(struct budget *b, struct map *m)
{
    budget_give(b, map_bytes(m));
    map_release(m);
}
