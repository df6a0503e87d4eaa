/* membudget.h - does a model fit into memory: beside the other models of a pool into a given limit,
 * or into what the machine has. */
#ifndef TERN_POOL_MEMBUDGET_H
#define TERN_POOL_MEMBUDGET_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct loadplan;
struct memavail;

/* Memory of one model, in bytes, from its load plan. */
struct membudget {
    uint64_t weights, kv, scratch; /* on all devices */
    /* The parts of weights, kv and scratch that lie in the memory of the host: */
    uint64_t mapped; /* weights that stay in the file: pages that can be given up and read again */
    uint64_t copied, host_kv, host_scratch; /* allocated */
};

struct membudget membudget_of(const struct loadplan *plan);
/* E_MEMORY with the numbers if the model, beside `taken` bytes of others, exceeds the limit. */
int membudget_check(const struct membudget *b, uint64_t taken, uint64_t limit, struct err *e);
/* E_MEMORY with the numbers and what to lower if the machine has not enough: what is allocated must
 * be free now, with some room left for others; mapped weights must fit beside it into the whole
 * memory. Where they do not fit into what is free now, a warning says that they will be slow. */
int membudget_check_machine(const struct membudget *b, const struct memavail *m, struct err *e);
/* Is the KV cache more than a small share of what is free? Then its pages are taken before the model
 * is ready: otherwise they would be missing when they are needed. */
bool membudget_is_kv_large(const struct membudget *b, const struct memavail *m);

static inline uint64_t membudget_total(const struct membudget *b)
{
    return b->weights + b->kv + b->scratch;
}
#endif
