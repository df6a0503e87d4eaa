#include "sample/logprob.h"

#include "sample/filter.h"

#include <math.h>
#include <stddef.h>

enum { BLOCKS = 64 }; /* block maxima that are looked at together */

/* The best so far, best first. Ids come in rising order, so an equal one goes behind. */
struct list {
    struct top *v; /* logprob holds the logit meanwhile */
    int n, max;
};

static float list_least(const struct list *l)
{
    return l->n < l->max ? -INFINITY : l->v[l->n - 1].logprob;
}

static void list_put(struct list *l, int32_t id, float x)
{
    int i = l->n < l->max ? l->n++ : l->n - 1;

    for (; i > 0 && l->v[i - 1].logprob < x; i--) l->v[i] = l->v[i - 1];
    l->v[i] = (struct top){ id, x };
}

static void block_search(struct list *l, const float *x, int n, int32_t first)
{
    for (int i = 0; i < n; i++)
        if (x[i] > list_least(l)) list_put(l, first + i, x[i]);
}

/* The largest logit; most blocks have nothing for the list and are read once, for their maximum. */
static float search(const float *x, int n, struct list *l)
{
    float block_max[BLOCKS], max = -INFINITY;

    for (int at = 0; at < n; at += BLOCKS * FILTER_BLOCK) {
        int len = n - at < BLOCKS * FILTER_BLOCK ? n - at : BLOCKS * FILTER_BLOCK;
        float m = filter_max(x + at, len, block_max);
        if (m > max) max = m;
        for (int b = 0; l->max && b < filter_n_blocks(len); b++) {
            int from = b * FILTER_BLOCK,
                left = len - from < FILTER_BLOCK ? len - from : FILTER_BLOCK;
            if (block_max[b] > list_least(l)) block_search(l, x + at + from, left, at + from);
        }
    }
    return max;
}

/* Infinite logits leave nothing for the others. */
static float log_share(float x, float max, double log_sum)
{
    if (isnan(x) || max == -INFINITY) return -INFINITY;
    return (float)((x == max ? 0 : (double)x - (double)max) - log_sum);
}

float logprob_of(const float *logits, int n, int32_t id, struct top *top, int n_top)
{
    struct list l = { top, 0, n_top < 0 ? 0 : n_top > TOP_MAX ? TOP_MAX : n_top };
    float max = search(logits, n, &l);
    double sum = filter_exp_all(logits, n, max, 1, NULL);
    double log_sum = log(sum >= 1 ? sum : 1);

    for (int i = 0; i < l.n; i++) top[i].logprob = log_share(top[i].logprob, max, log_sum);
    for (int i = l.n; i < l.max; i++) top[i] = (struct top){ -1, -INFINITY };
    return id >= 0 && id < n ? log_share(logits[id], max, log_sum) : -INFINITY;
}
