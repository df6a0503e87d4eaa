/* layout.h - how a tensor of the table is stored in a file: its shape there, and where its rows
 * are.
 *
 * tern uses matrices [out, in] with rows in order, and so do GGUF files. Folders store some tensors
 * differently, as each library does: transposed, with the rows of q, k and v grouped by head, with
 * alternating rows of gate and up, or several matrices packed into one tensor. A struct layout maps
 * the rows that tern uses (row r of part p of matrix i) to the stored ones. */
#ifndef TERN_MODEL_LAYOUT_H
#define TERN_MODEL_LAYOUT_H

#include "format/hfquant.h"
#include "model/hparams.h"

enum row_order {
    ORDER_PLAIN,     /* parts one after the other */
    ORDER_GROUPS,    /* q, k, v by KV head: its queries, its key, its value */
    ORDER_ALTERNATE, /* one row of each part in turn */
    ORDER_PLANE,     /* elements of a matrix, used as a vector in column-major order */
    ORDER_HEADS,     /* `each` rows of each part in turn */
    ORDER_QKVZ, /* by key head: q, k, its values, its gates; part 0: all q, k, v; part 1: gates */
    ORDER_KV_B  /* by head: rows of keys, rows of values; part 0: keys, transposed; 1: values */
};

struct layout {
    int n_dims; /* as stored, slowest dimension first */
    int64_t dims[4];
    int count;          /* matrices (or vectors) in one tensor */
    int tensors;        /* number of tensors, for names with '#' */
    int64_t rows, cols; /* of one matrix as tern uses it, all parts; a vector has cols 1 */
    bool transposed;    /* stored as [in, out] */
    bool vector;
    bool ids;                           /* integers */
    bool mx;                            /* MXFP4: nibbles here, block scales in another tensor: */
    const struct source_tensor *scales; /* found by layout_scales */
    const struct hfquant_tensor *quant; /* a quantized layer (format/hfquant.h) */
    const struct grouped *group;        /* its rows: layout_prepare; NULL before */
    bool loose;                         /* dimensions of 1 may be added, rows may be grouped */
    enum row_order order;
    int n_parts;
    int64_t part[3];     /* rows of each part */
    int heads, kv_heads; /* ORDER_GROUPS */
    int64_t each;   /* ORDER_HEADS: see there; ORDER_PLANE: rows of the matrix; ORDER_QKVZ: of a
                     * key head; ORDER_KV_B: key rows of a head */
    int64_t values; /* ORDER_QKVZ, ORDER_KV_B: value rows of a head */
    int per_weight; /* matrices that become one struct weight; 0: one */
};

/* The layout of row r in layer l. The row must exist in that file format (hparams_has, a name). */
void layout_of(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l,
               enum source_kind world);

/* The tensor has this shape. *flipped: it is a matrix [in, out], as some files store the embedding. */
bool layout_fits(const struct layout *y, const struct source_tensor *t, bool *flipped);
/* Can t be the tensor of this layout? Everything that reads a tensor through a layout calls it
 * first: a tensor that passes can be read whole, whatever else the file says. Finds the scales of
 * an MXFP4 tensor, too. may_flip: a matrix may be stored as [in, out], and y becomes transposed.
 * E_FORMAT: another shape; E_UNSUPPORTED: a type that this layout cannot have. */
int layout_check(struct layout *y, const struct source *src, const struct source_tensor *t,
                 bool may_flip, struct err *e);
/* Does the order lead every row of every part to a stored row? Orders by head need heads of one
 * size, which a file may not have. layout_check asks it, too. */
bool layout_rows_fit(const struct layout *y);
/* The type of the tensor in memory and in GGUF files. */
enum dtype layout_type(const struct layout *y, const struct source_tensor *t);
/* The stored shape as text: "[4, 320, 64]". */
void layout_text(const struct layout *y, char *out, size_t cap);

/* Elements in a row of a part. */
int64_t layout_cols(const struct layout *y, int part);
/* Changes y to the stored order where GGUF keeps it (one part, rows as stored). */
void layout_plain(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l);

/* The stored row that row r of a part is. */
int64_t layout_row(const struct layout *y, int part, int64_t r);
/* The stored rows can be used as they are, without a copy. */
bool layout_in_place(const struct layout *y);

/* Reads what rows of matrix i of a quantized layer need before they can be read; memory comes
 * from a. order: of hfquant_order_len elements, NULL: from a, too. Does nothing for other
 * tensors. */
int layout_prepare(struct layout *y, int i, const struct source *src, struct arena *a,
                   int32_t *order, struct err *e);

/* Floats of scratch memory for layout_read. */
static inline size_t layout_room(const struct layout *y)
{
    size_t quant = y->quant ? 3 * (size_t)y->cols + 64 : 0; /* a packed row, and its codes */
    return (size_t)(y->cols + y->each) + quant;
}
/* Reads row r of a part of matrix i as type `to`. tmp: scratch of layout_room floats; dst may be
 * tmp for F32. The tensor must fit y. */
void layout_read(const struct layout *y, const struct source_tensor *t, int i, int part, int64_t r,
                 enum dtype to, void *dst, float *tmp);
/* Reads rows [r, r + n), n <= LAYOUT_ROWS, into rows of row_bytes. tmp: scratch of layout_tmp
 * floats. Much faster than single rows for transposed tensors. */
enum { LAYOUT_ROWS = 32 };
size_t layout_tmp(const struct layout *y);
void layout_read_rows(const struct layout *y, const struct source_tensor *t, int i, int part,
                      int64_t r, int n, enum dtype to, void *dst, size_t row_bytes, float *tmp);
#endif
