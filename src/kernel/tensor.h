/* tensor.h - operands of the backend's operations: activations and weights.
 *
 * Both structs describe memory and do not own it. A struct tensor is a view that is copied freely:
 * a range of rows or columns of another tensor is a tensor again. */
#ifndef TERN_KERNEL_TENSOR_H
#define TERN_KERNEL_TENSOR_H

#include "base/dtype.h"
#include "base/grouped.h"

/* Activations [rows][cols] in device memory, one row per token. */
struct tensor {
    enum dtype type; /* DT_F32 */
    int rows, cols;
    size_t stride; /* elements from one row to the next; >= cols */
    void *data;
};

static inline struct tensor tensor_f32(float *data, int rows, int cols)
{
    return (struct tensor){ DT_F32, rows, cols, (size_t)cols, data };
}
/* The first `rows` rows. */
static inline struct tensor tensor_rows(struct tensor t, int rows)
{
    t.rows = rows;
    return t;
}
/* Columns [first, first + n) of every row; the stride stays. */
static inline struct tensor tensor_cols(struct tensor t, int first, int n)
{
    t.data = (float *)t.data + first;
    t.cols = n;
    return t;
}
static inline float *tensor_row(const struct tensor *t, int r)
{
    return (float *)t->data + (size_t)r * t->stride;
}

/* A weight matrix W [rows = outputs][cols = inputs] of y = W x, in the data type of its file.
 * n > 1: n matrices of this shape, one after the other (experts, heads). */
struct weight {
    enum dtype type;
    int rows, cols, n;
    const void *data; /* rows of weight_row_bytes without gaps; borrowed, usually from the mapped
                       * file */
    void *packed;     /* the backend's copy in its own layout; NULL: it reads data */
    size_t packed_bytes;
    int layout;                  /* which layout `packed` has; meaning private to the backend */
    const struct grouped *group; /* the layout of DT_GROUPED; else NULL */
};

/* 0: a matrix of this width cannot have this type. */
static inline size_t weight_row_bytes(const struct weight *w)
{
    uint64_t n = 0;

    if (w->group) return w->group->row_bytes;
    return dtype_row_bytes(w->type, (uint64_t)w->cols, &n) ? (size_t)n : 0;
}
#endif
