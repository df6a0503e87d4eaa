/* limit.h - rate and concurrency limits of tenants: a token bucket and a count each.
 *
 * The loop's thread owns it. Tenants are known by their index (auth.h). */
#ifndef TERN_SERVER_LIMIT_H
#define TERN_SERVER_LIMIT_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct limit;

int limit_open(struct limit **out, struct err *e);
void limit_close(struct limit *l);
/* Would limit_take refuse a request of the tenant now? Nothing is counted. */
int limit_check(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency,
                uint64_t now_ns, struct err *e);
/* Counts a request of the tenant. OK: limit_give must follow at its end. E_RATE and E_CONCURRENCY
 * name both numbers and set retry_ms; E_NOMEM. A limit of 0 is none. */
int limit_take(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency, uint64_t now_ns,
               struct err *e);
/* For jobs, which wait instead of being refused: has the tenant room for another one now? `spare` places,
 * and requests of its rate, are left to live requests, where the limit is above that. rate_per_min < 0:
 * the job was counted before. false also without memory. */
bool limit_has_room(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency, int spare,
                    uint64_t now_ns);
/* Counts a job that limit_has_room found room for, as limit_take does. */
void limit_take_room(struct limit *l, uint32_t tenant, int rate_per_min);
/* Counts a refused request of the tenant. How many there were in the current second, with this one. */
int limit_count_refusal(struct limit *l, uint32_t tenant, uint64_t now_ns);
void limit_give(struct limit *l, uint32_t tenant);
int limit_running(const struct limit *l, uint32_t tenant);
#endif
