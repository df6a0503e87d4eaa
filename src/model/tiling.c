/* tiling.c - which rows belong to value heads, and where a head is in the other order. */
#include "model/tiling.h"

bool tiling_written(const struct hparams *hp, int l)
{
    const struct mix_hp *h = &hp->layers[l].mix;

    return hp->info->flags & ARCH_TILED && h->kind == MIX_DELTA && h->n_heads != h->n_k_heads;
}

void tiling_of(struct tiling *rows, struct tiling *cols, const struct hparams *hp,
               const struct tensor_row *r, int l)
{
    const struct mix_hp *h = &hp->layers[l].mix;
    struct tiling t = { .dim = h->head_dim, .keys = h->n_k_heads };

    *rows = *cols = (struct tiling){ 0 };
    if (!row_in_layer(r) || !(r->flags & ROW_MIXER) || h->kind != MIX_DELTA) return;
    t.per = h->n_heads / h->n_k_heads;
    if (r->cols == DIM_O) *cols = t;
    if (r->rows == DIM_O) *rows = t;
    if (r->rows == DIM_MIX_CONV) *rows = t, rows->first = 2ll * h->n_k_heads * h->k_dim;
    if (r->rows == DIM_MIX_HEADS) *rows = t, rows->dim = 1;
}

/* Exchanges the two indices of a head: head a * n + b becomes head b * (heads / n) + a. */
static int64_t exchange(const struct tiling *t, int64_t r, int n, int other)
{
    int64_t head;

    if (!t->keys || r < t->first) return r;
    head = (r - t->first) / t->dim;
    return t->first + (head % n * other + head / n) * t->dim + (r - t->first) % t->dim;
}

int64_t tiling_to_folder(const struct tiling *t, int64_t r)
{
    return exchange(t, r, t->keys, t->per);
}

int64_t tiling_from_folder(const struct tiling *t, int64_t r)
{
    return exchange(t, r, t->per, t->keys);
}
