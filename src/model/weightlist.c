/* weightlist.c - rows of the architecture's table matched with tensors of the source, and their
 * memory.
 *
 * Nothing here reads tensor data: types, shapes and addresses decide. The loader asks the same
 * functions (weight_is_copied, weight_copy_type, weight_vector_floats), so the measured bytes are
 * the allocated ones. */
#include "model/weightlist.h"

#include "kernel/quant.h"
#include "model/model.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- finding ---- */

/* Most rows are one tensor. Rows with a '#' in their name are one tensor per expert or head. */
static int find_row(struct weight_list *out, const struct hparams *hp, const struct source *src,
                    const struct tensor_row *r, int l, struct err *e)
{
    struct weight_item w = { .r = r, .layer = l };
    char name[256], want[64];
    int rc;

    if (!hparams_has(hp, r, l) || !hparams_name(hp, r, l, 0, hp->from, name, sizeof name))
        return OK;
    layout_of(&w.lay, hp, r, l, hp->from);
    for (struct layout y = w.lay; w.index < y.tensors; w.index++, w.lay = y) {
        hparams_name(hp, r, l, w.index, hp->from, name, sizeof name);
        w.t = source_find(src, name);
        if (!w.t && w.index == 0 && (!hparams_needs(hp, r, l) || hparams_covered(hp, src, r, l)))
            return OK;
        if (!w.t) {
            layout_text(&w.lay, want, sizeof want);
            return err_set(e, E_NOTFOUND, "%s: tensor %s is missing, expected %s", source_path(src),
                           name, want);
        }
        /* Some files store the embedding transposed. */
        if ((rc = layout_check(&w.lay, src, w.t, r->rows == DIM_VOCAB, e)) != OK) return rc;
        out->items[out->n++] = w;
        out->file_bytes += w.t->bytes;
        out->n_params += (uint64_t)w.lay.count * (uint64_t)w.lay.rows * (uint64_t)w.lay.cols;
    }
    return OK;
}

/* Rows outside the layers first (l = -1), then layer by layer: the order of the items. */
int weights_find(struct weight_list *out, struct arena *a, const struct hparams *hp,
                 const struct source *src, struct err *e)
{
    const struct tensor_row *r;
    size_t n_rows = 0;
    int it = 0, rc;

    *out = (struct weight_list){ 0 };
    while (arch_row(hp->info, &it)) n_rows++;
    out->items = arena_array(a, n_rows * (size_t)(hp->n_layers + 1) + source_n_tensors(src),
                             sizeof *out->items);
    if (!out->items) return err_nomem(e, "the list of tensors");
    for (int l = -1; l < hp->n_layers; l++)
        for (it = 0, r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
            if (row_in_layer(r) == (l >= 0) &&
                (rc = find_row(out, hp, src, r, l < 0 ? 0 : l, e)) != OK)
                return rc;
    return OK;
}

/* ---- memory ---- */

/* The members of struct layer that routed experts fill are neighbours: matrices, then biases. */
int weight_expert_matrix(const struct weight_item *w)
{
    static const size_t at[] = { offsetof(struct layer, x_gate), offsetof(struct layer, x_up),
                                 offsetof(struct layer, x_down), offsetof(struct layer, xb_gate),
                                 offsetof(struct layer, xb_up),  offsetof(struct layer, xb_down) };

    for (int i = 0; row_in_layer(w->r) && i < 6; i++)
        if (w->r->at == at[i]) return i % 3;
    return -1;
}

bool weight_is_first(const struct weight_item *w) { return (w->r->flags & ROW_FIRST) != 0; }

bool backend_is_host(const struct backend *be) { return strcmp(be->name, "cpu") == 0; }

/* A safetensors file may begin a tensor at any byte; kernels want numbers aligned to their size. */
static bool is_aligned(const struct source_tensor *t)
{
    const struct dtype_info *d = dtype_info((int)t->type);
    size_t n = d->quantized ? 2 : (size_t)d->bytes;

    if (t->quant) return true;

    return (uintptr_t)t->data % n == 0;
}

/* Rows of a member that lie in several places, or parts of rows, are put together in a copy. */
static bool is_scattered(const struct weight_item *w)
{
    bool many = weight_is_narrow(w);

    for (int p = 0; w->is_cut && p < w->lay.n_parts; p++)
        many |= w->rows[p].n_spans != 1 || w->rows[p].times != 1;
    return many;
}

bool weight_is_copied(const struct weight_item *w, struct backend *be)
{
    return !be->weight_supported(be, layout_type(&w->lay, w->t)) || !is_aligned(w->t) ||
           !layout_in_place(&w->lay) || is_scattered(w);
}

/* Do the member's columns begin and end between blocks of the type? */
static bool cuts_between_blocks(const struct weight_item *w, enum dtype t,
                                const struct dtype_info *d)
{
    /* Types with a head have one scale at the start of a row: columns have none of their own. */
    if (weight_is_narrow(w) && dtype_head(t)) return false;
    return !weight_is_narrow(w) || !d->quantized ||
           (w->cols.at % d->block == 0 && w->cols.n % d->block == 0);
}

/* The layout of the member's columns of a quantized layer. false: they are not kept as groups. */
static bool find_groups(const struct weight_item *w, struct grouped *out)
{
    const struct grouped *g = hfquant_layout(w->lay.quant);

    *out = *g;
    if (!weight_is_narrow(w)) return true;
    return hfquant_is_ordered(w->lay.quant) && grouped_cut(g, w->cols.at, w->cols.n, out);
}

/* The tensor's own type where the backend reads it and tern can write it, else F16 for quantized
 * blocks and F32 for plain numbers. */
enum dtype weight_copy_type(const struct weight_item *w, struct backend *be, int part,
                            uint64_t *row_bytes)
{
    enum dtype from = layout_type(&w->lay, w->t), to = DT_F32;
    const struct dtype_info *d = dtype_info((int)from);
    uint64_t cols = (uint64_t)weight_cols(w, part);
    struct grouped g;

    if (from == DT_GROUPED && be->weight_supported(be, from) && w->lay.order != ORDER_KV_B &&
        find_groups(w, &g)) {
        *row_bytes = g.row_bytes;
        return from;
    }
    if (d->quantized) to = DT_F16;
    /* A quantized layer is kept exactly where its groups cannot be: turned, or cut by columns that have
     * an order of their own. */
    if (from == DT_GROUPED && backend_is_host(be)) to = DT_F32;
    /* ORDER_KV_B transposes the keys: quantized blocks cannot be kept. */
    if (be->weight_supported(be, from) && (quant_can_encode(from) || layout_in_place(&w->lay)) &&
        cuts_between_blocks(w, from, d) && !(w->lay.order == ORDER_KV_B && d->quantized))
        to = from;
    if (dtype_row_bytes(to, cols, row_bytes)) return to;
    *row_bytes = cols * sizeof(float);
    return DT_F32;
}

size_t weight_vector_floats(const struct weight_item *w)
{
    size_t n = 0;

    if (!row_is_vector(w->r) || w->index > 0) return 0; /* the first of several counts for all */
    for (int p = 0; p < w->lay.n_parts; p++)
        n += weight_padded(weight_rows(w, p) * w->lay.count * w->lay.tensors);
    return n;
}

size_t weights_made_floats(const struct hparams *hp)
{
    size_t n = hp->alibi != 0 ? weight_padded(hp->layers[0].n_heads) : 0;

    for (int i = 0; i < hp->n_rope; i++) n += weight_padded(hp->rope[i].n_rot / 2);
    return n;
}

/* In place, or converted part by part. */
static void measure_matrix(struct weight_memory *out, const struct weight_item *w,
                           struct backend *be)
{
    uint64_t bytes = 0, row = 0;

    if (!weight_is_copied(w, be)) {
        dtype_row_bytes(w->t->type, (uint64_t)w->lay.cols, &row);
        for (int p = 0; w->is_cut && p < w->lay.n_parts; p++)
            bytes += row * (uint64_t)weight_rows(w, p) * (uint64_t)w->lay.count;
        *(backend_is_host(be) ? &out->mapped : &out->allocated) += w->is_cut ? bytes : w->t->bytes;
        return;
    }
    for (int p = 0; p < w->lay.n_parts; p++) {
        weight_copy_type(w, be, p, &row);
        bytes += row * (uint64_t)weight_rows(w, p) * (uint64_t)w->lay.count;
    }
    if (w->lay.quant) bytes += hfquant_order_len(w->lay.quant) * sizeof(int32_t);
    out->allocated += bytes;
}

/* The first share with layers: those before it have experts only. */
static int first_share(const struct backend_share *shares, int n)
{
    int i = 0;

    while (i < n - 1 && shares[i].n_layers == 0) i++;
    return i;
}

/* The device that the item goes to. */
static int share_of(const struct weight_item *w, const struct backend_share *shares, int n,
                    const struct expert_place *x)
{
    int i = first_share(shares, n), end = shares[i].n_layers;

    if (!row_in_layer(w->r)) return weight_is_first(w) ? i : n - 1;
    while (w->layer >= end && i < n - 1) end += shares[++i].n_layers;
    if (weight_expert_matrix(w) < 0 || !experts_lie_apart(x, shares[i].be, w->layer)) return i;
    for (int k = 0; k < n; k++)
        if (shares[k].be == x->be) return k;
    return i;
}

void weights_measure(struct weight_memory *out, const struct weight_list *list,
                     const struct hparams *hp, const struct backend_share *shares, int n_shares,
                     const struct expert_place *experts)
{
    int first = first_share(shares, n_shares), last = n_shares - 1;

    for (int i = 0; i < n_shares; i++)
        out[i] =
            (struct weight_memory){ .allocated =
                                        i < first ? 0 : weights_made_floats(hp) * sizeof(float) };
    for (int i = 0; i < list->n; i++) {
        const struct weight_item *w = &list->items[i];
        int at = share_of(w, shares, n_shares, experts);
        if (row_is_vector(w->r)) out[at].allocated += weight_vector_floats(w) * sizeof(float);
        else if (w->r->kind != ROW_SCALE) measure_matrix(&out[at], w, shares[at].be);
        /* A tied embedding is also the head: both devices have it. */
        if (first < last && hp->tied && !hp->shard && w->r->rows == DIM_VOCAB &&
            weight_is_first(w) && !row_is_vector(w->r))
            measure_matrix(&out[last], w, shares[last].be);
    }
}
