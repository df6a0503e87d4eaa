/* layout.h - how a tensor of the table lies in a file: its shape there, and where its rows are.
 *
 * GGUF files have matrices [out, in] with rows in order. Folders have what each library made of it:
 * turned matrices, rows of q, k and v by head, gate and up in turn. */
#ifndef TERN_MODEL_LAYOUT_H
#define TERN_MODEL_LAYOUT_H

#include "model/hparams.h"

enum row_order {
    ORDER_PLAIN,
    ORDER_GROUPS,    /* q, k, v by KV head: its queries, its key, its value */
    ORDER_ALTERNATE, /* parts in turn */
    ORDER_PLANE,     /* numbers of a matrix, columns first */
    ORDER_HEADS,     /* parts in turn, so many rows (`each`) of each at a time */
    ORDER_QKVZ, /* by key head: q, k, its values, its gates; parts: q, k, v one behind the other;
                   gates */
    ORDER_KV_B  /* by head: rows of keys, of values; parts: keys turned, values */
};

struct layout {
    int n_dims; /* as stored, slowest first */
    int64_t dims[4];
    int count;          /* matrices (or vectors) in one tensor */
    int tensors;        /* of the name with '#': so many of them */
    int64_t rows, cols; /* of a matrix as it is used, all parts; a vector has cols 1 */
    bool turned, vector;
    bool mx; /* nibbles of MXFP4, their scales in a tensor of their own: */
    const struct source_tensor *scales; /* filled by layout_scales */
    bool loose; /* dimensions of 1 may stand between, rows may be in groups */
    enum row_order order;
    int n_parts;
    int64_t part[3];     /* rows of each */
    int heads, kv_heads; /* ORDER_GROUPS */
    int64_t each; /* ORDER_HEADS; ORDER_PLANE: rows of the matrix; ORDER_QKVZ: of a key; ORDER_KV_B:
                     of keys */
    int64_t values; /* ORDER_QKVZ, ORDER_KV_B: of a head's values */
    int per_weight; /* matrices that make one weight */
};

/* The row must be there in that world (hparams_has, a name). */
void layout_of(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l,
               enum source_kind world);

/* Has the tensor this shape? *flipped: an embedding [in, out], which some files have. */
bool layout_fits(const struct layout *y, const struct source_tensor *t, bool *flipped);
/* The type a tensor of this layout has in memory and in GGUF files. */
enum dtype layout_type(const struct layout *y, const struct source_tensor *t);
/* Finds what belongs to the tensor t; false: it is not there, or has another shape. */
bool layout_scales(struct layout *y, const struct source *src, const struct source_tensor *t);
/* "[4, 320, 64]" */
void layout_text(const struct layout *y, char *out, size_t cap);

/* Numbers in a row of a part. */
int64_t layout_cols(const struct layout *y, int part);
/* As the tensor lies, for formats that keep its order: one part, rows as they come. */
void layout_plain(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l);

/* Where row r of a part is among the stored rows. */
int64_t layout_row(const struct layout *y, int part, int64_t r);
/* Are the parts where they are used: whole rows behind each other? Then nothing has to be copied.
 */
bool layout_in_place(const struct layout *y);

static inline size_t layout_room(const struct layout *y) { return (size_t)(y->cols + y->each); }
/* Reads row r of a part of matrix i as type `to`; tmp has room for layout_room numbers (and dst is
 * no part of it, but for F32). The tensor fits y. */
void layout_read(const struct layout *y, const struct source_tensor *t, int i, int part, int64_t r,
                 enum dtype to, void *dst, float *tmp);
/* The same for rows [r, r + n) of a part, into rows of row_bytes each; tmp has room for layout_tmp
 * numbers. Turned tensors are much faster to read so. */
enum { LAYOUT_ROWS = 32 }; /* n at most */
size_t layout_tmp(const struct layout *y);
void layout_read_rows(const struct layout *y, const struct source_tensor *t, int i, int part,
                      int64_t r, int n, enum dtype to, void *dst, size_t row_bytes, float *tmp);
#endif
