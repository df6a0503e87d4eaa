/* imatrix.h - an importance matrix: how large a text makes the inputs of every product.
 *
 * For each weight the mean square of each of its input columns (of each expert's): an error in a
 * column that is never large costs little. Read from GGUF form (as current tools write it) and
 * from the older .dat; written in either. Names are GGUF's. */
#ifndef TERN_QUANT_IMATRIX_H
#define TERN_QUANT_IMATRIX_H

#include "base/arena.h"
#include "base/err.h"
#include "base/map.h"
#include "base/str.h"

struct imatrix_entry {
    struct str name;
    int n_mats; /* experts; 1 otherwise */
    int64_t cols;
    float *sums;   /* [n_mats][cols] of squares */
    float *counts; /* [n_mats] rows that were summed */
};

struct imatrix {
    struct arena arena;
    struct map by_name;
    struct imatrix_entry *entries;
    int n, cap;
    const char *path;    /* where it was read from */
    const char *dataset; /* the text it was made of; "" if unknown */
    int n_chunks, chunk_tokens;
};

/* A zeroed imatrix is a valid empty one. */
int imatrix_read(struct imatrix *m, const char *path, struct err *e);
int imatrix_parse(struct imatrix *m, struct str bytes, const char *name, struct err *e);
/* GGUF form, or the older one where path ends with .dat. */
int imatrix_write(const struct imatrix *m, const char *path, struct err *e);
void imatrix_release(struct imatrix *m);

/* The entry of that name, made (zeroed) if there is none and cols > 0; NULL otherwise. */
struct imatrix_entry *imatrix_entry(struct imatrix *m, struct str name, int64_t cols, int n_mats);

/* Weights for a matrix of n_mats times cols columns in a's memory: means, scaled to 1 on the
 * average, none of them 0. NULL: the imatrix says nothing of it. E_FORMAT, by name, if it says it
 * of another shape. */
int imatrix_weights(const struct imatrix *m, struct arena *a, struct str name, int64_t cols,
                    int n_mats, const float **out, struct err *e);
#endif
