/* attend_ref.c - attention as defined: scores, softmax and weighted values in double, one query
 * head at a time. The flash_* kernels are tested against it. */
#include "kernel/cpu/attend.h"

#include <math.h>

static float score_key(const struct attend_job *j, const float *q, const int32_t *blocks, int head,
                       int pos, int key)
{
    const struct attend_opt *o = j->opt;
    float k[MAX_HEAD_DIM];
    double s = 0;

    j->vec->load(j->k.type, k, kvrows_at(&j->k, blocks, head / j->group, key), o->head_dim);
    for (int i = 0; i < o->head_dim; i++) s += (double)q[i] * k[i];
    s *= (double)o->scale;
    if (o->softcap > 0) s = o->softcap * tanh(s / o->softcap);
    if (o->slopes) s += (double)o->slopes[head] * (key - pos);
    return (float)s;
}

void attend_ref(const struct attend_job *j, int token, int head, float *scores)
{
    const struct attend_opt *o = j->opt;
    const int32_t *blocks = attend_blocks(j, j->kv->seq[token]);
    int pos = j->kv->pos[token], first = attend_first(j, pos), end = attend_end(j, token);
    const float *q = tensor_row(j->q, token) + (size_t)head * o->head_dim;
    float *out = tensor_row(j->out, token) + (size_t)head * o->head_dim_v;
    float max = o->sinks ? o->sinks[head] : -INFINITY, v[MAX_HEAD_DIM];
    double sum, acc[MAX_HEAD_DIM] = { 0 };

    for (int k = first; k < end; k++) {
        scores[k] =
            attend_chosen(j, token, head, k) ? score_key(j, q, blocks, head, pos, k) : -INFINITY;
        if (scores[k] > max) max = scores[k];
    }
    sum = o->sinks ? exp((double)o->sinks[head] - max) : 0;
    for (int k = first; k < end; k++) {
        double p = exp((double)scores[k] - max);
        if (!(p > 0)) continue;
        sum += p;
        j->vec->load(j->v.type, v, kvrows_at(&j->v, blocks, head / j->group, k), o->head_dim_v);
        for (int i = 0; i < o->head_dim_v; i++) acc[i] += p * v[i];
    }
    for (int i = 0; i < o->head_dim_v; i++) out[i] = (float)(acc[i] / sum);
}
