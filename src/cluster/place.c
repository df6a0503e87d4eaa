#include "cluster/place.h"

#include <stddef.h>
#include <string.h>

/* Loaded models first: a load takes longer than most queues. If every worker with the model has a
 * queue, one that has to load it is as good: that is how a model gets a further replica. */
enum { REPLICA_QUEUE = 8 };

bool place_policy_by_name(const char *name, enum place_policy *out)
{
    static const char *const names[] = { "prefix", "least", "weighted", "round-robin" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum place_policy)i;
            return true;
        }
    return false;
}

static double weight_of(const struct place_worker *w) { return w->weight > 0 ? w->weight : 1e-6; }

/* Candidates are workers that have the model in memory, and workers whose load of it evicts at most `worst`
 * (enum place_evicts). */
enum worst { ONLY_LOADED = -1 };

static bool is_candidate(const struct place_worker *w, int worst)
{
    return w->usable && w->weight > 0 && (w->loaded || (int)w->evicts <= worst);
}

static int find_worst(const struct place_worker *w, int n)
{
    bool loaded = false;
    int least = EVICTS_USED;

    for (int i = 0; i < n; i++) {
        if (!is_candidate(&w[i], EVICTS_USED)) continue;
        if (w[i].loaded && w[i].waiting < REPLICA_QUEUE) return ONLY_LOADED;
        loaded |= w[i].loaded;
        if (!w[i].loaded && (int)w[i].evicts < least) least = (int)w[i].evicts;
    }
    return loaded && least == EVICTS_USED ? ONLY_LOADED : least;
}

/* Work that is on its way decides; of equals the one that got less so far; then the one with more KV
 * memory. */
static bool is_less_loaded(const struct place_worker *a, const struct place_worker *b, double grain)
{
    double ao = a->outstanding / weight_of(a), bo = b->outstanding / weight_of(b);
    double aa = a->assigned / weight_of(a), ba = b->assigned / weight_of(b);

    if (ao + grain < bo || bo + grain < ao) return ao < bo;
    if (aa != ba) return aa < ba;
    return a->kv_free > b->kv_free;
}

static int choose_least(const struct place_worker *w, int n, int worst, double grain)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (is_candidate(&w[i], worst) && (best < 0 || is_less_loaded(&w[i], &w[best], grain)))
            best = i;
    return best;
}

/* Smooth weighted round-robin (as in nginx): every worker gains its weight, the first in the sum is
 * chosen and pays the sum of all weights. */
static int choose_weighted(const struct place_worker *w, int n, int worst, struct place_state *st,
                           bool equal)
{
    double sum = 0;
    int best = -1;

    for (int i = 0; i < n; i++) {
        double gain = equal ? 1 : weight_of(&w[i]);
        if (!is_candidate(&w[i], worst)) continue;
        sum += gain;
        st->turn[i] += gain;
        if (best < 0 || st->turn[i] > st->turn[best]) best = i;
    }
    if (best >= 0) st->turn[best] -= sum;
    return best;
}

/* Mean of the work per weight, over the candidates. */
static double mean_assigned(const struct place_worker *w, int n, int worst)
{
    double sum = 0, weights = 0;

    for (int i = 0; i < n; i++)
        if (is_candidate(&w[i], worst)) sum += w[i].assigned, weights += weight_of(&w[i]);
    return weights > 0 ? sum / weights : 0;
}

/* May the request go to w? It has not got more than its share, and its queue is not much longer. */
static bool keeps_balance(const struct place_job *job, const struct place_worker *w,
                          const struct place_worker *least, double mean)
{
    double share = w->assigned / weight_of(w);
    double queue = w->outstanding / weight_of(w), shortest = least->outstanding / weight_of(least);
    double grain = job->cost;

    return share <= mean * (1 + PLACE_SLACK) + grain && queue <= shortest + 6 * job->cost;
}

/* The least loaded of those that have not got more than their share. */
static int choose_balanced(const struct place_job *job, const struct place_worker *w, int n,
                           int worst, int least, double mean)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (is_candidate(&w[i], worst) && keeps_balance(job, &w[i], &w[least], mean) &&
            (best < 0 || is_less_loaded(&w[i], &w[best], job->cost / 2)))
            best = i;
    return best < 0 ? least : best;
}

static int choose_prefix(const struct place_job *job, const struct place_worker *w, int n,
                         int worst, bool *by_prefix)
{
    int least = choose_least(w, n, worst, job->cost / 2), best = -1;
    double mean = mean_assigned(w, n, worst);

    if (least < 0) return -1;
    for (int i = 0; i < n; i++) {
        if (!is_candidate(&w[i], worst) || w[i].match == 0) continue;
        if (!keeps_balance(job, &w[i], &w[least], mean)) continue;
        if (best < 0 || w[i].match > w[best].match ||
            (w[i].match == w[best].match && is_less_loaded(&w[i], &w[best], job->cost / 2)))
            best = i;
    }
    *by_prefix = best >= 0;
    return best >= 0 ? best : choose_balanced(job, w, n, worst, least, mean);
}

int place_choose(const struct place_job *job, const struct place_worker *w, int n,
                 struct place_state *st, bool *by_prefix)
{
    bool prefix = false;
    int worst = find_worst(w, n), chosen = -1;

    switch (job->policy) {
    case PLACE_PREFIX: chosen = choose_prefix(job, w, n, worst, &prefix); break;
    case PLACE_LEAST: chosen = choose_least(w, n, worst, 0); break;
    case PLACE_WEIGHTED: chosen = choose_weighted(w, n, worst, st, false); break;
    case PLACE_ROUND_ROBIN: chosen = choose_weighted(w, n, worst, st, true); break;
    }
    if (by_prefix) *by_prefix = prefix;
    return chosen;
}

double place_imbalance(const struct place_worker *w, int n)
{
    double mean = mean_assigned(w, n, EVICTS_USED), most = 0;

    for (int i = 0; i < n; i++)
        if (is_candidate(&w[i], EVICTS_USED) && w[i].assigned / weight_of(&w[i]) > most)
            most = w[i].assigned / weight_of(&w[i]);
    return mean > 0 ? most / mean - 1 : 0;
}
