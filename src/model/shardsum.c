/* shardsum.c - sums over the members of a stage, in the middle of a forward pass. */
#include "model/shard.h"

#include "base/mem.h"

#include <math.h>

enum { WIRE_COLS = 64 }; /* narrower sums are exact: they are short, and steer the layer */

/* A step whose sum failed goes on to its end with wrong numbers; its wait then fails. */
static bool can_sum(struct shard *s) { return s->group && s->failed.code == OK; }

void shard_sum(const struct hparams *hp, const struct tensor *x)
{
    struct shard *s = (struct shard *)hp->shard;

    if (!shard_divides(hp) || !can_sum(s)) return;
    comm_all_reduce(s->group, x->data, (size_t)x->rows * (size_t)x->cols,
                    x->cols >= WIRE_COLS ? s->wire : COMM_F32, &s->failed);
}

int shard_reserve(struct shard *s, int max_tokens, struct err *e)
{
    s->sums = mem_array(2 * (size_t)max_tokens, sizeof *s->sums);
    return s->sums ? OK : err_nomem(e, "the sums of a norm");
}

void shard_release(struct shard *s)
{
    mem_free(s->sums);
    s->sums = NULL;
}

static float square_sum(const struct tensor *x, int row)
{
    const float *p = tensor_row(x, row);
    double sum = 0;

    for (int i = 0; i < x->cols; i++) sum += (double)p[i] * p[i];
    return (float)sum;
}

static void scale_row(const struct shard_norm *m, int row, float sum, float eps)
{
    float *p = tensor_row(m->x, row), by = 1 / sqrtf(sum / (float)m->n + eps);

    for (int i = 0; i < m->x->cols; i++) p[i] *= by * (m->w ? m->w[i] : 1);
}

/* The sums of all norms and rows travel together. */
void shard_norms(const struct hparams *hp, struct shard_norm *list, int n_list, float eps)
{
    struct shard *s = (struct shard *)hp->shard;
    int rows = list[0].x->rows, n = rows * n_list;

    if (!can_sum(s)) return;
    for (int k = 0; k < n_list; k++)
        for (int r = 0; r < rows; r++)
            s->sums[k * rows + r] = list[k].counts ? square_sum(list[k].x, r) : 0;
    if (comm_all_reduce(s->group, s->sums, (size_t)n, COMM_F32, &s->failed) != OK) return;
    for (int k = 0; k < n_list; k++)
        for (int r = 0; r < rows; r++) scale_row(&list[k], r, s->sums[k * rows + r], eps);
}
