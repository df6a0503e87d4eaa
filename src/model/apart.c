/* apart.c - see apart.h. */
#include "model/apart.h"

#include "base/mem.h"
#include "model/hparams.h"

/* Hands out the next part of a block, aligned to 64 bytes. base NULL: only counts. */
static void *take(char *base, size_t *used, size_t n, size_t size)
{
    void *p = base ? base + *used : NULL;

    *used += (n * size + 63) / 64 * 64;
    return p;
}

/* Divides the block in the experts' memory; returns its bytes. scratch NULL: only counts. */
static size_t divide_scratch(struct apart *a, const struct hparams *hp, int max_tokens)
{
    const struct moe_hp *m = &hp->moe;
    size_t in = (size_t)hparams_dim(hp, DIM_EXP_IN, 0), ff = (size_t)m->n_ff,
           n = (size_t)max_tokens * (size_t)m->n_used, used = 0;

    a->xs = take(a->scratch, &used, n * in, sizeof *a->xs);
    a->hs = take(a->scratch, &used, n * ff, sizeof *a->hs);
    a->us = take(a->scratch, &used, n * ff, sizeof *a->us);
    a->ys = take(a->scratch, &used, n * in, sizeof *a->ys);
    a->order = take(a->scratch, &used, 2 * n + (size_t)(m->n + m->n_zero) + 1, sizeof *a->order);
    return used;
}

static size_t divide_host(struct apart *a, const struct hparams *hp, int max_tokens)
{
    size_t n = (size_t)max_tokens, in = (size_t)hparams_dim(hp, DIM_EXP_IN, 0),
           k = (size_t)hp->moe.n_used, used = 0;

    a->x = take(a->host, &used, n * in, sizeof *a->x);
    a->y = take(a->host, &used, n * in, sizeof *a->y);
    a->weights = take(a->host, &used, n * k, sizeof *a->weights);
    a->ids = take(a->host, &used, n * k, sizeof *a->ids);
    return used;
}

uint64_t apart_scratch_bytes(const struct hparams *hp, int max_tokens)
{
    struct apart count = { 0 };

    return divide_scratch(&count, hp, max_tokens);
}

uint64_t apart_host_bytes(const struct hparams *hp, int max_tokens)
{
    struct apart count = { 0 };

    return divide_host(&count, hp, max_tokens);
}

int apart_open(struct apart *a, struct backend *be, struct backend *of, const struct hparams *hp,
               int max_tokens, struct err *e)
{
    int rc;

    a->of = of;
    a->host_bytes = divide_host(a, hp, max_tokens);
    a->scratch_bytes = divide_scratch(a, hp, max_tokens);
    if (of->host_alloc) {
        if ((rc = of->host_alloc(of, (void **)&a->host, a->host_bytes, e)) != OK) return rc;
    } else if (!(a->host = mem_aligned(a->host_bytes))) {
        return err_nomem(e, "the rows that go to experts on another device");
    }
    if ((rc = be->alloc(be, (void **)&a->scratch, a->scratch_bytes, MEM_SCRATCH, e)) != OK)
        return rc;
    a->be = be;
    divide_host(a, hp, max_tokens);
    divide_scratch(a, hp, max_tokens);
    return OK;
}

void apart_close(struct apart *a)
{
    if (a->host && a->of->host_free) a->of->host_free(a->of, a->host, a->host_bytes);
    else if (a->host) mem_free_aligned(a->host, a->host_bytes);
    if (a->scratch) a->be->free(a->be, a->scratch, a->scratch_bytes, MEM_SCRATCH);
    *a = (struct apart){ 0 };
}

static void keep_failure(struct apart *a, int rc, const struct err *e)
{
    if (rc != OK && a->failed.code == OK) a->failed = *e;
}

/* Parts that come again in every step are given to flush as whole ones: a GPU replays them. */
void apart_send(struct apart *a, const struct tensor *x, const int32_t *ids, const float *weights,
                int n_used)
{
    size_t n = (size_t)x->rows, chosen = n * (size_t)n_used;

    a->tx = tensor_f32(a->x, x->rows, x->cols);
    a->ty = tensor_f32(a->y, x->rows, x->cols);
    a->n_after = 0;
    if (!n) return;
    a->of->get(a->of, a->x, x->data, n * (size_t)x->cols * sizeof *a->x);
    a->of->get(a->of, a->ids, ids, chosen * sizeof *a->ids);
    a->of->get(a->of, a->weights, weights, chosen * sizeof *a->weights);
    if (a->of->flush) a->of->flush(a->of, true);
}

void apart_start_more(struct apart *a)
{
    if (!a->of->flush || a->n_after) return;
    a->of->flush(a->of, true);
    a->n_after++;
}

/* After a failure of the device the host's memory may hold anything: no id leads outside the lists. */
static void bound_ids(struct apart *a, int n)
{
    int all = a->opt.n + a->opt.n_zero;

    for (int i = 0; i < n; i++)
        if (a->ids[i] < 0 || a->ids[i] >= all) a->ids[i] = 0;
}

void apart_run(struct apart *a, const struct experts_opt *o)
{
    int n_all = a->tx.rows * o->n_used, in = a->tx.cols, ff = o->hs.cols;
    struct err e = { 0 };

    if (a->of->flush) a->of->throttle(a->of, a->n_after);
    a->opt = *o;
    a->opt.add = false;
    a->opt.xs = tensor_f32(a->xs, n_all, in);
    a->opt.hs = tensor_f32(a->hs, n_all, ff);
    a->opt.us = tensor_f32(a->us, n_all, ff);
    a->opt.ys = tensor_f32(a->ys, n_all, in);
    a->opt.order = a->order;
    bound_ids(a, n_all);
    a->be->experts(a->be, &a->ty, &a->tx, a->ids, a->weights, &a->opt);
    keep_failure(a, a->be->sync(a->be, &e), &e);
}

void apart_return(struct apart *a, const struct tensor *out)
{
    a->of->put(a->of, out->data, a->y, (size_t)a->ty.rows * (size_t)a->ty.cols * sizeof *a->y);
}
