/* pooler.c - sums are kept in double precision: a mean over thousands of rows must not depend on
 * how the text was cut into batches. */
#include "model/pooler.h"

#include <math.h>

bool pooler_wants(const struct pooler *p, int pos, int n)
{
    switch (p->pooling) {
    case POOL_CLS: return pos == 0;
    case POOL_LAST: return pos + 1 == n;
    default: return true;
    }
}

int pooler_max_rows(const struct pooler *p, int max_tokens, int max_seqs)
{
    return p->pooling == POOL_MEAN ? max_tokens : max_seqs;
}

void pooler_add(const struct pooler *p, double *sum, const float *row)
{
    for (int i = 0; i < p->width; i++) sum[i] += (double)row[i];
}

static void divide_sum(const struct pooler *p, const double *sum, double by, float *out)
{
    for (int i = 0; i < p->width; i++) out[i] = (float)(sum[i] / by);
}

/* A zero vector stays zero. */
static void make_unit(const struct pooler *p, const double *sum, float *out)
{
    double squares = 0, scale;

    for (int i = 0; i < p->width; i++) squares += sum[i] * sum[i];
    scale = squares > 0 ? 1 / sqrt(squares) : 0;
    for (int i = 0; i < p->width; i++) out[i] = (float)(sum[i] * scale);
}

/* The largest score is subtracted first, so that exp cannot overflow. */
static void make_softmax(const struct pooler *p, const double *x, float *out)
{
    double most = x[0], sum = 0;

    for (int i = 0; i < p->width; i++) most = x[i] > most ? x[i] : most;
    for (int i = 0; i < p->width; i++) sum += exp(x[i] - most);
    for (int i = 0; i < p->width; i++) out[i] = (float)(exp(x[i] - most) / sum);
}

void pooler_finish(const struct pooler *p, const double *sum, int n, float *out)
{
    switch (p->form) {
    case VEC_UNIT: make_unit(p, sum, out); break;
    case VEC_MEAN: divide_sum(p, sum, p->pooling == POOL_MEAN ? n : 1, out); break;
    case VEC_SOFTMAX: make_softmax(p, sum, out); break;
    case VEC_SIGMOID:
        for (int i = 0; i < p->width; i++) out[i] = (float)(1 / (1 + exp(-sum[i])));
        break;
    case VEC_RAW: divide_sum(p, sum, 1, out); break;
    }
}
