/* membudget.h - the memory limit over all models of a pool. */
#ifndef TERN_POOL_MEMBUDGET_H
#define TERN_POOL_MEMBUDGET_H

#include "base/err.h"

#include <stdint.h>

struct loadplan;

/* Memory of one model, in bytes, from its load plan. */
struct membudget {
    uint64_t weights, kv, scratch;
};

struct membudget membudget_of(const struct loadplan *plan);
/* E_MEMORY with the numbers if the model, beside `taken` bytes of others, exceeds the limit; limit
 * 0: there is none. */
int membudget_check(const struct membudget *b, uint64_t taken, uint64_t limit, struct err *e);
static inline uint64_t membudget_total(const struct membudget *b)
{
    return b->weights + b->kv + b->scratch;
}
#endif
