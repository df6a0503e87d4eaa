/* pooler.c - sums are kept in double precision: a mean over thousands of rows must not depend on
 * how the text was cut into batches. */
#include "model/pooler.h"

#include "model/vechead.h"

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

int pooler_out(const struct pooler *p) { return p->head ? vechead_out(p->head) : p->width; }

int pooler_room(const struct pooler *p) { return p->head ? 2 * vechead_wide(p->head) : p->width; }

static void divide_sum(const double *sum, int n, double by, float *out)
{
    for (int i = 0; i < n; i++) out[i] = (float)(sum[i] / by);
}

/* A zero vector stays zero. */
static void make_unit(const double *sum, int n, float *out)
{
    double squares = 0, scale;

    for (int i = 0; i < n; i++) squares += sum[i] * sum[i];
    scale = squares > 0 ? 1 / sqrt(squares) : 0;
    for (int i = 0; i < n; i++) out[i] = (float)(sum[i] * scale);
}

/* The largest score is subtracted first, so that exp cannot overflow. */
static void make_softmax(const double *x, int n, float *out)
{
    double most = x[0], sum = 0;

    for (int i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++) sum += exp(x[i] - most);
    for (int i = 0; i < n; i++) out[i] = (float)(exp(x[i] - most) / sum);
}

/* The head takes the mean of the rows, not their sum. */
static void apply_head(const struct pooler *p, double *sum, int n)
{
    if (p->pooling == POOL_MEAN)
        for (int i = 0; i < p->width; i++) sum[i] /= n;
    vechead_run(p->head, sum, sum + vechead_wide(p->head));
}

void pooler_finish(const struct pooler *p, double *sum, int n, float *out)
{
    int wide = pooler_out(p);

    if (p->head) apply_head(p, sum, n);
    switch (p->form) {
    case VEC_UNIT: make_unit(sum, wide, out); break;
    case VEC_MEAN: divide_sum(sum, wide, p->pooling == POOL_MEAN && !p->head ? n : 1, out); break;
    case VEC_SOFTMAX: make_softmax(sum, wide, out); break;
    case VEC_SIGMOID:
        for (int i = 0; i < wide; i++) out[i] = (float)(1 / (1 + exp(-sum[i])));
        break;
    case VEC_RAW: divide_sum(sum, wide, 1, out); break;
    }
}
