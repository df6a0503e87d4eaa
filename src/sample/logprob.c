/* logprob.c - log-softmax of single tokens, and the largest logits, in one pass over the blocks. */
#include "sample/logprob.h"

#include "sample/filter.h"

#include <math.h>
#include <stddef.h>

enum { BLOCKS = 64 }; /* block maxima on the stack at a time */

/* The largest logits so far, largest first. Ids are added in ascending order, so of equal logits
 * the smaller id stays in front. */
struct top_list {
    struct top *v; /* logprob holds the logit until the end */
    int n, max;
};

/* A logit must be above it to enter the list. */
static float list_bound(const struct top_list *l)
{
    return l->n < l->max ? -INFINITY : l->v[l->n - 1].logprob;
}

static void list_insert(struct top_list *l, int32_t id, float x)
{
    int i = l->n < l->max ? l->n++ : l->n - 1;

    for (; i > 0 && l->v[i - 1].logprob < x; i--) l->v[i] = l->v[i - 1];
    l->v[i] = (struct top){ id, x };
}

static void search_block(struct top_list *l, const float *x, int n, int32_t first)
{
    for (int i = 0; i < n; i++)
        if (x[i] > list_bound(l)) list_insert(l, first + i, x[i]);
}

/* Returns the largest logit and fills the list. Only blocks whose maximum enters the list are read
 * a second time. */
static float search_logits(const float *x, int n, struct top_list *l)
{
    float block_max[BLOCKS], max = -INFINITY;

    for (int at = 0; at < n; at += BLOCKS * FILTER_BLOCK) {
        int len = n - at < BLOCKS * FILTER_BLOCK ? n - at : BLOCKS * FILTER_BLOCK;
        float m = filter_max(x + at, len, block_max);
        if (m > max) max = m;
        for (int b = 0; l->max && b < filter_n_blocks(len); b++) {
            int from = b * FILTER_BLOCK,
                left = len - from < FILTER_BLOCK ? len - from : FILTER_BLOCK;
            if (block_max[b] > list_bound(l)) search_block(l, x + at + from, left, at + from);
        }
    }
    return max;
}

/* log softmax of the logit x. If max is +Inf, the logits that equal it share all probability. */
static float log_softmax(float x, float max, double log_sum)
{
    if (isnan(x) || max == -INFINITY) return -INFINITY;
    return (float)((x == max ? 0 : (double)x - (double)max) - log_sum);
}

float logprob_of(const float *logits, int n, int32_t id, struct top *top, int n_top)
{
    struct top_list l = { top, 0, n_top < 0 ? 0 : n_top > TOP_MAX ? TOP_MAX : n_top };
    float max = search_logits(logits, n, &l);
    double sum = filter_exp_all(logits, n, max, 1, NULL);
    double log_sum = log(sum >= 1 ? sum : 1);

    for (int i = 0; i < l.n; i++) top[i].logprob = log_softmax(top[i].logprob, max, log_sum);
    for (int i = l.n; i < l.max; i++) top[i] = (struct top){ -1, -INFINITY };
    return id >= 0 && id < n ? log_softmax(logits[id], max, log_sum) : -INFINITY;
}
