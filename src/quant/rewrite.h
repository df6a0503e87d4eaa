/* rewrite.h - writes a GGUF file with its tensors in the data types of a plan.
 *
 * Tensors are converted one after the other, in pieces of rows that are divided among threads.
 * While one piece is written to disk the next one is encoded. Metadata keys are copied. A file (or
 * each part of a split one) gets its name when it is complete; after a failure nothing is left
 * behind. At the end the file is read back and compared with checksums of what was encoded. */
#ifndef TERN_QUANT_REWRITE_H
#define TERN_QUANT_REWRITE_H

#include "quant/imatrix.h"
#include "quant/plan.h"

#include <signal.h>

struct ggufw;

struct rewrite_progress {
    const char *name;           /* the current tensor */
    uint64_t done_bytes, bytes; /* of the source: done, and in all */
    double seconds;
};

struct rewrite_opt {
    const struct source *src; /* a GGUF file; with `read` and `keys`, any source */
    const char *dst;          /* path of the new file */
    const struct plan *plan;
    const struct plan_mix *mix;
    const struct imatrix *imatrix; /* NULL: none */
    int n_threads;
    uint64_t split_bytes; /* most bytes of tensor data per part; 0: one file */
    bool measure;         /* measure the quantization error of every tensor */
    /* Reads a row of item i of the plan, whose tensor has no data in memory, as type `to`. tmp:
     * scratch, a row of F32 and read_room floats more. Called by several threads. */
    void (*read)(void *arg, int i, int64_t row, enum dtype to, void *dst, float *tmp);
    int (*keys)(void *arg, struct ggufw *w,
                struct err *e); /* writes the metadata; NULL: copies that of src */
    void *source_arg;           /* of read and keys */
    size_t read_room;
    void (*progress)(void *arg, const struct rewrite_progress *p); /* may be NULL */
    void *progress_arg;
    const volatile sig_atomic_t *stop; /* cancel when it becomes nonzero; may be NULL */
};

/* Quantization error of a tensor. */
struct rewrite_loss {
    double square, error; /* sums of x^2 and (x' - x)^2 */
    double worst;         /* the largest |x' - x| */
};

struct rewrite_result {
    struct rewrite_loss
        *loss;           /* [plan->n], freed by the caller with mem_free; NULL: not measured */
    int n_files;         /* parts written */
    int n_weighted;      /* tensors for which the importance matrix has an entry */
    uint64_t file_bytes; /* size of all files */
    double seconds;
};

/* E_IO if the file system of path has less than this many bytes free. */
int rewrite_room(const char *path, uint64_t bytes, struct err *e);

/* On failure *out is zeroed. */
int rewrite_run(const struct rewrite_opt *opt, struct rewrite_result *out, struct err *e);

/* The name of part i (from 0) of n; n == 1: dst itself. Freed with mem_free; NULL: no memory. */
char *rewrite_part_name(const char *dst, int i, int n);
#endif
