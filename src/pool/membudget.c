/* membudget.c - the plan's bytes against the pool's limit. */
#include "pool/membudget.h"

#include "model/loadplan.h"

struct membudget membudget_of(const struct loadplan *plan)
{
    struct load_bytes b = loadplan_bytes(plan);

    return (struct membudget){ b.weights, b.kv, b.scratch };
}

int membudget_check(const struct membudget *b, uint64_t taken, uint64_t limit, struct err *e)
{
    const double mib = 1024.0 * 1024.0;

    if (limit == 0 || taken + membudget_total(b) <= limit) return OK;
    return err_set(e, E_MEMORY,
                   "the model needs %.1f MiB (weights %.1f, KV %.1f, scratch %.1f), other models "
                   "take %.1f MiB, and memory-limit is %.1f MiB: a smaller ctx, kv-tokens or "
                   "max-batch needs less",
                   (double)membudget_total(b) / mib, (double)b->weights / mib, (double)b->kv / mib,
                   (double)b->scratch / mib, (double)taken / mib, (double)limit / mib);
}
