/* tensor.h - what an operation works on: activations and weights. */
#ifndef TERN_KERNEL_TENSOR_H
#define TERN_KERNEL_TENSOR_H

#include "base/dtype.h"

/* Rows of activations in a backend's memory: one row a token (or a head of a token). */
struct tensor {
    enum dtype type; /* DT_F32 on the CPU */
    int rows, cols;
    size_t stride; /* elements from one row to the next, >= cols */
    void *data;
};

static inline struct tensor tensor_f32(float *data, int rows, int cols)
{
    return (struct tensor){ DT_F32, rows, cols, (size_t)cols, data };
}
static inline struct tensor tensor_rows(struct tensor t, int rows)
{
    t.rows = rows;
    return t;
}
/* Columns [first, first+n) of every row. F32 only. */
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

/* A matrix of weights, y = W x with W [rows = out][cols = in], in its file's format. n > 1: that
 * many matrices of this shape behind each other (experts). `data` borrows the mapped file until
 * a backend's weight_put takes the weight over. */
struct weight {
    enum dtype type;
    int rows, cols, n;
    const void *data; /* rows of dtype_row_bytes(type, cols), no gaps */
    void *packed;     /* the backend's own copy or layout; NULL: it reads data */
    size_t packed_bytes;
    int layout; /* the backend's own */
};
#endif
