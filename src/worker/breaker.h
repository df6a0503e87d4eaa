/* breaker.h - may a process that died be started again? After too many deaths in a time it may not,
 * for a while.
 *
 * BREAKER_DEATHS deaths within BREAKER_WINDOW_MS open the breaker for BREAKER_OPEN_MS. Then one start
 * is allowed: a further death before BREAKER_GOOD_MS of service opens it again, at once. Times are
 * those of clock_ns, passed in: nothing here looks at a clock. */
#ifndef TERN_WORKER_BREAKER_H
#define TERN_WORKER_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    BREAKER_DEATHS = 5,
    BREAKER_WINDOW_MS = 60000,
    BREAKER_OPEN_MS = 10000,
    BREAKER_GOOD_MS = 10000
};

struct breaker {                     /* zeroed: closed, no deaths */
    uint64_t deaths[BREAKER_DEATHS]; /* a ring */
    unsigned n_deaths;
    uint64_t open_until; /* 0: closed */
    bool on_trial;       /* it was open: the next death opens it again */
    uint64_t began_ns;   /* of the process that runs now, or ran last */
};

static inline bool breaker_is_open(const struct breaker *b, uint64_t now)
{
    return b->open_until > now;
}
bool breaker_allows(struct breaker *b, uint64_t now, int *retry_ms); /* retry_ms: if it does not */
void breaker_note_start(struct breaker *b, uint64_t now);
void breaker_note_death(struct breaker *b, uint64_t now);
void breaker_reset(struct breaker *b); /* an operator asks for the model */
#endif
