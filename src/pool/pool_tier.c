/* pool_tier.c - models by what they are for: "tier:light", "tier:balanced", "tier:quality" as the name of a
 * model. The settings of models say which tier each belongs to. Any thread. */
#include "pool/pool_impl.h"

#include "pool/modelbytes.h"
#include "pool/registry.h"

enum { RANK_READY, RANK_LOADING, RANK_SLEEPING, RANK_COLD, RANK_FAILED };

static int rank_of(enum pool_state s)
{
    switch (s) {
    case POOL_READY: return RANK_READY;
    case POOL_LOADING: return RANK_LOADING;
    case POOL_SLEEPING: return RANK_SLEEPING;
    case POOL_FAILED: return RANK_FAILED;
    default: return RANK_COLD;
    }
}

static bool is_in_tier(struct pool *p, int i, struct str tier)
{
    const struct registry_model *x = p->slots[i]->m.entry;

    return x && pool_is_listed(p, i) && model_has(&x->opt, MODEL_TIER) && str_is(tier, x->opt.tier);
}

/* Bytes that have to be read to load it. */
static double cost_of(const struct slot *s)
{
    int cached = atomic_load(&s->cached_1000);
    double bytes = (double)model_file_bytes(pool_path(&s->m));

    return cached > 0 ? bytes * (1 - 0.9 * cached / 1000) : bytes;
}

int pool_find_tier(struct pool *p, struct str tier)
{
    int best = -1, best_rank = 0;
    double best_cost = 0;

    for (int i = 0; i < pool_n(p); i++) {
        int rank = is_in_tier(p, i, tier) ? rank_of(state_of(p->slots[i])) : -1;
        double cost = rank == RANK_READY || rank < 0 ? 0 : cost_of(p->slots[i]);
        if (rank < 0 || (best >= 0 && rank > best_rank)) continue;
        if (best >= 0 && rank == best_rank && cost >= best_cost) continue;
        best = i, best_rank = rank, best_cost = cost;
    }
    return best;
}
