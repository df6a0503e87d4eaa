/* limit.h - rate and concurrency of a tenant: a token bucket and a count. */
#ifndef TERN_SERVER_LIMIT_H
#define TERN_SERVER_LIMIT_H

#include "base/err.h"

#include <stdint.h>

struct limit;

int limit_open(struct limit **out, struct err *e);
void limit_close(struct limit *l);
/* OK: counted, to be given back by limit_give. E_RATE and E_CONCURRENCY say both numbers and set
 * retry_ms. */
int limit_take(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency, uint64_t now_ns,
               struct err *e);
void limit_give(struct limit *l, uint32_t tenant);
int limit_running(const struct limit *l, uint32_t tenant);
#endif
