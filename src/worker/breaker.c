#include "worker/breaker.h"

static uint64_t ns_of(int ms) { return (uint64_t)ms * 1000000; }

bool breaker_allows(struct breaker *b, uint64_t now, int *retry_ms)
{
    if (!b->open_until) return true;
    if (now >= b->open_until) {
        b->open_until = 0;
        b->on_trial = true;
        return true;
    }
    *retry_ms = (int)((b->open_until - now) / 1000000) + 1;
    return false;
}

void breaker_note_start(struct breaker *b, uint64_t now) { b->began_ns = now; }

/* The oldest of the last BREAKER_DEATHS decides. */
void breaker_note_death(struct breaker *b, uint64_t now)
{
    uint64_t oldest;

    if (b->on_trial && now - b->began_ns >= ns_of(BREAKER_GOOD_MS)) b->on_trial = false;
    b->deaths[b->n_deaths++ % BREAKER_DEATHS] = now;
    oldest = b->n_deaths < BREAKER_DEATHS ? 0 : b->deaths[b->n_deaths % BREAKER_DEATHS];
    if (!b->on_trial && (b->n_deaths < BREAKER_DEATHS || now - oldest > ns_of(BREAKER_WINDOW_MS)))
        return;
    b->open_until = now + ns_of(BREAKER_OPEN_MS);
    b->n_deaths = 0;
}

void breaker_reset(struct breaker *b) { *b = (struct breaker){ .began_ns = b->began_ns }; }
