/* shardsum.c - sums over the members of a stage, in the middle of a forward pass.
 *
 * Where the host reads the device's memory, the communicator sums in place. Other devices sum by
 * themselves, in the way that the stage's members have chosen (devgroup.h). */
#include "model/shard.h"

#include "base/mem.h"
#include "kernel/backend.h"

enum { WIRE_COLS = 64 }; /* narrower sums are exact: they are short, and steer the layer */

/* A step whose sum failed goes on to its end with wrong numbers; its wait then fails. */
static bool can_sum(struct shard *s) { return s->group && s->failed.code == OK; }

static void sum_numbers(struct shard *s, struct backend *be, const struct tensor *x,
                        enum comm_wire wire)
{
    size_t n = (size_t)x->rows * (size_t)x->cols;

    if (!be->all_reduce) {
        comm_all_reduce(s->group, x->data, n, wire, &s->failed);
        return;
    }
    be->all_reduce(be, x, (int)wire);
    if (s->way == GROUP_HOST) return; /* the communicator counts them */
    s->group->stats.n_ops++;
    s->group->stats.bytes += n * sizeof(float) * (size_t)(s->group->size - 1);
}

void shard_sum(struct backend *be, const struct hparams *hp, const struct tensor *x)
{
    struct shard *s = (struct shard *)hp->shard;

    if (!shard_divides(hp) || !can_sum(s)) return;
    sum_numbers(s, be, x, x->cols >= WIRE_COLS ? s->wire : COMM_F32);
}

size_t shard_largest_sum(const struct shard *s, int max_tokens)
{
    int cols = s->hp.n_embd;

    for (int l = 0; l < s->hp.n_layers; l++) {
        const struct mix_hp *m = &s->hp.layers[l].mix;
        if (m->dt_rank + 2 * m->n_state > cols) cols = m->dt_rank + 2 * m->n_state;
    }
    return (size_t)max_tokens * (size_t)(cols > 2 ? cols : 2);
}

/* ---- norms ---- */

int shard_reserve(struct shard *s, struct backend *be, int max_tokens, struct err *e)
{
    struct shard_sums *to = s->sums;

    while (to->be && to < s->sums + SHARD_DEVICES - 1) to++;
    to->bytes = 2 * (size_t)max_tokens * sizeof *to->p;
    to->be = be;
    if (be->all_reduce) return be->alloc(be, (void **)&to->p, to->bytes, MEM_SCRATCH, e);
    to->p = mem_alloc(to->bytes);
    return to->p ? OK : err_nomem(e, "the sums of a norm");
}

void shard_release(struct shard *s)
{
    for (int i = 0; i < SHARD_DEVICES; i++) {
        struct shard_sums *m = &s->sums[i];
        if (m->p && m->be->all_reduce) m->be->free(m->be, m->p, m->bytes, MEM_SCRATCH);
        else mem_free(m->p);
        *m = (struct shard_sums){ 0 };
    }
}

static float *sums_of(const struct shard *s, const struct backend *be)
{
    for (int i = 0; i < SHARD_DEVICES; i++)
        if (s->sums[i].be == be) return s->sums[i].p;
    return NULL;
}

/* The sums of all norms and rows travel together. */
void shard_norms(struct backend *be, const struct hparams *hp, const struct shard_norm *list,
                 int n_list, float eps)
{
    struct shard *s = (struct shard *)hp->shard;
    float *sums = sums_of(s, be);
    int rows = list[0].x->rows;
    struct tensor all = tensor_f32(sums, 1, rows * n_list);

    if (!can_sum(s) || rows <= 0) return;
    for (int k = 0; k < n_list; k++)
        be->square_sums(be, sums + k * rows, list[k].x, list[k].counts);
    sum_numbers(s, be, &all, COMM_F32);
    if (s->failed.code != OK) return;
    for (int k = 0; k < n_list; k++)
        be->norm_by_sums(be, list[k].out, list[k].x, sums + k * rows, list[k].n, list[k].w, eps);
}
