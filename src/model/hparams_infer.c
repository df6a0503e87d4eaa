/* hparams_infer.c - shapes that no key gives, inferred from the shapes of tensors.
 *
 *     vocabulary size     rows of the embedding
 *     head_dim            rows of q / heads
 *     KV heads            rows of k / head_dim
 *     feed-forward width  columns of the down projection (of the dense block, or of an expert)
 *
 * Folders often lack head_dim and num_key_value_heads; GGUF files may lack the vocabulary size. */
#include "model/hparams.h"

#include "model/model.h"

#include <stdio.h>

/* A row of kind ROW_QKV or ROW_GATE_UP covers three or two consecutive members. */
bool hparams_covered(const struct hparams *hp, const struct source *src, const struct tensor_row *r,
                     int l)
{
    size_t size = r->cols == DIM_NONE || r->count ? sizeof(void *) : sizeof(struct weight);
    char name[256];
    int it = 0;

    for (const struct tensor_row *g = arch_row(hp->info, &it); r->flags & ROW_SPLIT && g;
         g = arch_row(hp->info, &it)) {
        size_t parts = g->kind == ROW_QKV ? 3 : g->kind == ROW_GATE_UP ? 2 : 1;
        if (g != r && g->flags & ROW_OPTIONAL && row_in_layer(g) == row_in_layer(r) &&
            g->at <= r->at && r->at < g->at + parts * size && hparams_has(hp, g, l) &&
            hparams_name(hp, g, l, 0, hp->from, name, sizeof name) && source_find(src, name))
            return true;
    }
    return false;
}

/* A matrix of a layer as found in the file. */
struct found_matrix {
    const struct tensor_row *row;  /* its row; NULL: the architecture has no such tensor */
    const struct source_tensor *t; /* NULL: not in the file */
    int64_t rows, cols;            /* of the matrix; of one matrix if they are stacked */
};

/* Finds the matrix for member `at` of layer l: the first row of the table whose tensor exists. */
static struct found_matrix find_matrix(const struct hparams *hp, const struct source *src,
                                       size_t at, int l)
{
    struct found_matrix s = { 0 };
    char name[256];
    int it = 0;

    for (const struct tensor_row *r = arch_row(hp->info, &it); r && !s.t;
         r = arch_row(hp->info, &it)) {
        const struct source_tensor *t;
        bool transposed = r->flags & ROW_TRANSPOSED && hp->from == SOURCE_HF;
        if (!row_in_layer(r) || r->at != at || r->cols == DIM_NONE || !hparams_has(hp, r, l) ||
            !hparams_name(hp, r, l, 0, hp->from, name, sizeof name))
            continue;
        t = source_find(src, name);
        if (!s.row || t) s.row = r;
        if (!t || t->n_dims < 2 || t->n_dims > 3) continue;
        s.t = t;
        s.rows = t->dims[t->n_dims - (transposed ? 1 : 2)];
        s.cols = t->dims[t->n_dims - (transposed ? 2 : 1)];
    }
    return s;
}

/* v as an int; 0 if it is out of range. */
static int as_size(int64_t v) { return v > 0 && v < (1 << 24) ? (int)v : 0; }

/* GGUF files of some families have 4 * n_embd as the feed-forward length, whatever the tensors are.
 * Two tensors that agree override it. */
static void infer_ff(struct hparams *hp, const struct source *src, int l)
{
    struct layer_hp *w = &hp->layers[l];
    struct found_matrix down = find_matrix(hp, src, offsetof(struct layer, down), l);
    struct found_matrix up = find_matrix(hp, src, offsetof(struct layer, up), l);

    if (!w->n_ff || (hp->from == SOURCE_GGUF && w->n_ff == 4 * hp->n_embd && up.rows == down.cols))
        w->n_ff = as_size(down.cols);
}

/* head_dim from the rows of q, KV heads from the rows of k; with packed tensors, from the sum. */
static void infer_layer(struct hparams *hp, const struct source *src, int l)
{
    struct layer_hp *w = &hp->layers[l];
    struct found_matrix q = find_matrix(hp, src, offsetof(struct layer, wq), l);
    bool packed = q.row && q.row->kind == ROW_QKV;
    int64_t n_q = packed ? find_matrix(hp, src, offsetof(struct layer, wo), l).cols : q.rows;

    bool gated = q.row && q.row->kind == ROW_Q_GATE;

    if (!layer_caches(w)) n_q = 0; /* wq may be a mixer's */
    if (gated) n_q /= 2;
    if (!w->head_dim && w->n_heads && n_q % w->n_heads == 0)
        w->head_dim = as_size(n_q / w->n_heads);
    if (!w->head_dim_v) w->head_dim_v = w->head_dim;
    if (!w->n_kv_heads && w->head_dim) {
        int64_t n_kv =
            packed ? (q.rows - n_q) / 2 : find_matrix(hp, src, offsetof(struct layer, wk), l).rows;
        if (n_kv % w->head_dim == 0) w->n_kv_heads = as_size(n_kv / w->head_dim);
    }
    if (!w->moe && !w->no_ffn) infer_ff(hp, src, l);
    if (w->moe && !hp->moe.n_ff)
        hp->moe.n_ff = as_size(find_matrix(hp, src, offsetof(struct layer, x_down), l).cols);
}

/* The embedding is [vocab, hidden]; some files have [hidden, vocab]. */
static void infer_vocab(struct hparams *hp, const struct source *src)
{
    char name[256];
    int it = 0;
    const struct tensor_row *r = arch_row(hp->info, &it);
    const struct source_tensor *t;

    if (!hp->n_word) hp->n_word = hp->n_embd;
    if (!hparams_name(hp, r, 0, 0, hp->from, name, sizeof name) || !(t = source_find(src, name)))
        return;
    if (hp->n_vocab || t->n_dims != 2) return;
    if (t->dims[1] == hp->n_word) hp->n_vocab = as_size(t->dims[0]);
    else if (t->dims[0] == hp->n_word) hp->n_vocab = as_size(t->dims[1]);
}

/* The error for a shape that could not be inferred: a tensor is missing, or has an odd shape. */
static int fail_to_infer(const struct hparams *hp, const struct source *src, int l, struct err *e)
{
    const struct layer_hp *w = &hp->layers[l];
    bool attends = layer_caches(w);
    size_t at = attends && !w->head_dim     ? offsetof(struct layer, wq)
                : attends && !w->n_kv_heads ? offsetof(struct layer, wk)
                : w->moe                    ? offsetof(struct layer, x_down)
                                            : offsetof(struct layer, down);
    struct found_matrix s = find_matrix(hp, src, at, l);
    char name[256];

    if (s.row && !s.t && hparams_name(hp, s.row, l, 0, hp->from, name, sizeof name))
        return err_set(e, E_NOTFOUND, "%s: the tensor '%s' is missing (the model has %d layers)",
                       source_path(src), name, hp->n_layers);
    return err_set(e, E_FORMAT, "%s: layer %d: no key gives %s, and the tensors do not show it",
                   source_path(src), l,
                   attends && !w->head_dim     ? "the size of a head"
                   : attends && !w->n_kv_heads ? "the number of KV heads"
                   : w->moe                    ? "the width of the experts"
                                               : "the width of the feed-forward block");
}

/* Values that keys gave are not changed, except the feed-forward width (infer_ff). */
int hparams_infer(struct hparams *hp, const struct source *src, struct err *e)
{
    infer_vocab(hp, src);
    if (!hp->n_vocab)
        return err_set(
            e, E_FORMAT,
            "%s: no key gives the vocabulary size, and there is no embedding of width %d",
            source_path(src), hp->n_word);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        bool attends = layer_caches(w);
        infer_layer(hp, src, l);
        if ((attends && (!w->head_dim || !w->n_kv_heads)) ||
            (!w->no_ffn && (w->moe ? !hp->moe.n_ff : !w->n_ff)))
            return fail_to_infer(hp, src, l, e);
    }
    return OK;
}
