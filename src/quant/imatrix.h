/* imatrix.h - an importance matrix: statistics of the activations that each weight matrix
 * multiplies.
 *
 * For every weight matrix (and every expert of it) it holds the mean square of each input column
 * over a calibration text. The quantizer weights the errors of a column by it: an error in a column
 * whose activations are small changes the output little. The file formats are llama.cpp's: GGUF
 * with tensors NAME.in_sum2 and NAME.counts, and the older binary form (.dat). Both are read and
 * written. Names are those of the GGUF tensors.
 *
 * A struct imatrix owns everything in it, in its arena. A zeroed one is valid and empty. */
#ifndef TERN_QUANT_IMATRIX_H
#define TERN_QUANT_IMATRIX_H

#include "base/arena.h"
#include "base/err.h"
#include "base/map.h"
#include "base/str.h"

struct imatrix_entry {
    struct str name;
    int n_mats; /* number of experts; 1 for other matrices */
    int64_t cols;
    float *sums;   /* [n_mats][cols] sums of squares */
    float *counts; /* [n_mats] number of rows summed */
};

struct imatrix {
    struct arena arena;
    struct map by_name;            /* name -> index into entries */
    struct imatrix_entry *entries; /* [n] */
    int n, cap;
    const char *path;           /* the file it was read from */
    const char *dataset;        /* name of the calibration text; "" if unknown */
    int n_chunks, chunk_tokens; /* windows of the text, and tokens per window */
};

/* On failure m may hold a part of the file; the caller releases it either way. */
int imatrix_read(struct imatrix *m, const char *path, struct err *e);
int imatrix_parse(struct imatrix *m, struct str bytes, const char *name, struct err *e);
/* Writes GGUF, or the older form if path ends with ".dat". */
int imatrix_write(const struct imatrix *m, const char *path, struct err *e);
void imatrix_release(struct imatrix *m);

/* The entry of that name; NULL: there is none. Valid until the next imatrix_add. */
struct imatrix_entry *imatrix_find(const struct imatrix *m, struct str name);
/* The entry of that name, or a new zeroed one of this shape. NULL: no memory. */
struct imatrix_entry *imatrix_add(struct imatrix *m, struct str name, int64_t cols, int n_mats);

/* *out: the error weights [n_mats][cols] of a matrix, allocated from a: mean squares, scaled to an
 * average of 1 per matrix, all positive. NULL: the imatrix has no entry of that name. E_FORMAT: it
 * has one of another shape. */
int imatrix_weights(const struct imatrix *m, struct arena *a, struct str name, int64_t cols,
                    int n_mats, const float **out, struct err *e);
#endif
