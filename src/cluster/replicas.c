#include "cluster/replicas.h"

static int count_wanted(const struct replica_opt *opt, int demand, int n_usable)
{
    int wanted = demand / REPLICA_REQUESTS + (demand % REPLICA_REQUESTS != 0);
    int most = opt->max > 0 && opt->max < n_usable ? opt->max : n_usable;

    if (wanted < opt->min) wanted = opt->min;
    return wanted < most ? wanted : most;
}

/* The worker with the most room; -1: none may load it. */
static int choose_load(int demand, const struct replica_worker *w, int n)
{
    enum place_evicts worst = demand > 0 ? EVICTS_IDLE : EVICTS_NONE;
    int best = -1;

    for (int i = 0; i < n; i++) {
        if (!w[i].usable || w[i].loaded || w[i].loading || w[i].evicts > worst) continue;
        if (best < 0 || w[i].evicts < w[best].evicts ||
            (w[i].evicts == w[best].evicts && w[i].free_bytes > w[best].free_bytes))
            best = i;
    }
    return best;
}

/* The worker with the least room of those where nobody uses it; -1: none. */
static int choose_unload(const struct replica_worker *w, int n)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (w[i].usable && w[i].loaded && w[i].requests == 0 &&
            (best < 0 || w[i].free_bytes < w[best].free_bytes))
            best = i;
    return best;
}

struct replica_choice replicas_choose(const struct replica_opt *opt, int demand, bool is_late,
                                      const struct replica_worker *w, int n)
{
    struct replica_choice c = { .worker = -1 };
    int n_usable = 0, there;

    for (int i = 0; i < n; i++) {
        n_usable += w[i].usable;
        c.loaded += w[i].usable && w[i].loaded;
        c.loading += w[i].usable && w[i].loading;
    }
    c.wanted = count_wanted(opt, demand, n_usable);
    there = c.loaded + c.loading;
    c.surplus = c.loaded > 1 && c.loaded > c.wanted;
    /* The first replica of a model without a minimum is loaded by the request that needs it. */
    if (there < c.wanted && (there > 0 || opt->min > 0)) c.worker = choose_load(demand, w, n);
    if (c.worker >= 0) {
        c.step = REPLICA_LOAD;
    } else if (c.surplus && is_late && (c.worker = choose_unload(w, n)) >= 0) {
        c.step = REPLICA_UNLOAD;
    }
    return c;
}
