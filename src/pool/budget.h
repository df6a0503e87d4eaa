/* budget.h - the memory limit over all models of a pool. */
#ifndef TERN_POOL_BUDGET_H
#define TERN_POOL_BUDGET_H

#include "base/err.h"

#include <stdint.h>

struct loadplan;

/* Memory of one model, in bytes, from its load plan. */
struct budget {
    uint64_t weights, kv, scratch;
};

struct budget budget_of(const struct loadplan *plan);
/* E_MEMORY with the numbers if the model, beside `taken` bytes of others, exceeds the limit; limit
 * 0: there is none. */
int budget_check(const struct budget *b, uint64_t taken, uint64_t limit, struct err *e);
static inline uint64_t budget_total(const struct budget *b)
{
    return b->weights + b->kv + b->scratch;
}
#endif
