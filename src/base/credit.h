/* credit.h - processor time that a tenant may use at its usual priority.
 *
 * A leaky bucket: what was used counts against CREDIT_MAX_NS and drains at CREDIT_REFILL. While more
 * has been used than that, the tenant's work is done by threads of the lowest useful priority: on an
 * idle machine it is as fast as ever, on a busy one the compute threads lose almost nothing to it. A
 * request of a few megabytes now and then stays within the credit; a stream of them does not.
 *
 * A zeroed one has used nothing. Whoever owns it locks. */
#ifndef TERN_BASE_CREDIT_H
#define TERN_BASE_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#define CREDIT_MAX_NS UINT64_C(500000000)
#define CREDIT_REFILL 100 /* one nanosecond drains in so many: 1 % of a processor */
#define CREDIT_NICE 15    /* of threads for spent credit: 3 % of a busy processor, not starved */

struct credit {
    uint64_t used_ns, at_ns; /* used as of that time of clock_ns */
};

static inline uint64_t credit_used(const struct credit *c, uint64_t now_ns)
{
    uint64_t drained = now_ns > c->at_ns ? (now_ns - c->at_ns) / CREDIT_REFILL : 0;

    return c->used_ns > drained ? c->used_ns - drained : 0;
}

static inline bool credit_is_spent(const struct credit *c, uint64_t now_ns)
{
    return credit_used(c, now_ns) > CREDIT_MAX_NS;
}

static inline void credit_charge(struct credit *c, uint64_t ns, uint64_t now_ns)
{
    *c = (struct credit){ .used_ns = credit_used(c, now_ns) + ns, .at_ns = now_ns };
}
#endif
