/* budget.h - memory a model will take, told from its files before anything is loaded. */
#ifndef TERN_POOL_BUDGET_H
#define TERN_POOL_BUDGET_H

#include "engine/engine.h"

struct budget {
    uint64_t weights, kv, scratch; /* bytes; scratch is an estimate */
};

/* With what engine_open would make of opt. */
int budget_plan(struct budget *out, const char *path, const struct engine_opt *opt, struct err *e);
/* E_MEMORY with the numbers if so much beside `taken` is over the limit; 0: no limit. */
int budget_check(const struct budget *b, uint64_t taken, uint64_t limit, struct err *e);
static inline uint64_t budget_total(const struct budget *b)
{
    return b->weights + b->kv + b->scratch;
}
#endif
