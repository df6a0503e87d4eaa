/* weightlist.h - which tensors of a source the model uses, and what they cost in memory.
 *
 * The list is made once, from the architecture's table of rows and the directory of the source;
 * no tensor data is read. Placement, the memory plan and the loader (weights.h) all work from the
 * same list, so what was planned is what is loaded. Lists live in the arena they were made in and
 * borrow the source. */
#ifndef TERN_MODEL_WEIGHTLIST_H
#define TERN_MODEL_WEIGHTLIST_H

#include "model/cut.h"
#include "model/expertplace.h"
#include "model/layout.h"

/* A tensor of the source that fills a row of the architecture's table. */
struct weight_item {
    const struct source_tensor *t;
    const struct tensor_row *r;
    int layer;         /* 0 for rows outside the layers */
    int index;         /* among tensors with a '#' in their name */
    struct layout lay; /* of the whole tensor; but count and tensors are the member's */
    /* The part that a member of a gang uses (shard.h): */
    bool is_cut;
    struct cut rows[3]; /* of each part of lay */
    struct span cols;
    int mat_at; /* the first of the stacked matrices */
};

/* Rows of a part, and columns, that are used. */
static inline int64_t weight_rows(const struct weight_item *w, int part)
{
    return w->is_cut ? cut_rows(&w->rows[part]) : w->lay.part[part];
}
static inline int64_t weight_cols(const struct weight_item *w, int part)
{
    return w->is_cut && layout_cols(&w->lay, part) == w->lay.cols ? w->cols.n
                                                                  : layout_cols(&w->lay, part);
}
/* Are only some of the columns used? */
static inline bool weight_is_narrow(const struct weight_item *w)
{
    return w->is_cut && w->cols.n < w->lay.cols && !w->lay.vector;
}

struct weight_list {
    struct weight_item *items; /* [n] */
    int n;
    uint64_t file_bytes; /* of all items, as they are stored */
    uint64_t n_params;
};

/* Memory of the weights on one device. */
struct weight_memory {
    uint64_t mapped;    /* matrices that are read where the file has them */
    uint64_t allocated; /* vectors, converted matrices; on a GPU all matrices */
};

/* A tensor that is missing (E_NOTFOUND), has another shape (E_FORMAT) or a type that is no weight
 * type (E_UNSUPPORTED) is named, with the shape it should have. */
int weights_find(struct weight_list *out, struct arena *a, const struct hparams *hp,
                 const struct source *src, struct err *e);

/* Does the item belong to the first device (the embedding side) when it is in no layer? Otherwise
 * it belongs to the last (the head's side). */
bool weight_is_first(const struct weight_item *w);

/* Which matrix of routed experts the item is, or the bias of: 0 gate (or gate and up), 1 up, 2 down;
 * -1: none. */
int weight_expert_matrix(const struct weight_item *w);

/* Must the matrix be copied, because the backend cannot read its type, its alignment or its order
 * of rows? */
bool weight_is_copied(const struct weight_item *w, struct backend *be);
/* The type of the copy of a part, and the bytes of each of its rows. */
enum dtype weight_copy_type(const struct weight_item *w, struct backend *be, int part,
                            uint64_t *row_bytes);
/* Floats that the item's vectors take in a device's block of vectors; 0: it is a matrix. */
size_t weight_vector_floats(const struct weight_item *w);
/* Floats of vectors that no tensor holds: rotary frequencies, ALiBi slopes. Every device has them. */
size_t weights_made_floats(const struct hparams *hp);

/* Is the backend's memory the host's own, so that mapped files and results are read in place? */
bool backend_is_host(const struct backend *be);

/* Memory of each share's weights, exactly as weights_load takes it on the CPU. A share without layers,
 * before the others, has experts only. */
void weights_measure(struct weight_memory *out, const struct weight_list *list,
                     const struct hparams *hp, const struct backend_share *shares, int n_shares,
                     const struct expert_place *experts);

static inline size_t weight_padded(int64_t n) { return ((size_t)n + 15) / 16 * 16; }
#endif
