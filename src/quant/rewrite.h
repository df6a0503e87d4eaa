/* rewrite.h - a GGUF file written again, its matrices in other types: what a plan says.
 *
 * Tensor after tensor in pieces of rows, shared out over threads; while one piece is written the
 * next is encoded. Keys are carried over. The file (or each of its parts) appears under its name
 * when it is whole; nothing is left of one that is not. What was written is read back. */
#ifndef TERN_QUANT_REWRITE_H
#define TERN_QUANT_REWRITE_H

#include "quant/imatrix.h"
#include "quant/plan.h"

#include <signal.h>

struct ggufw;

struct rewrite_progress {
    const char *name;           /* of the tensor under way */
    uint64_t done_bytes, bytes; /* of the source */
    double seconds;
};

struct rewrite_opt {
    const struct source *src; /* GGUF, or with `read` and `keys` anything */
    const char *dst;
    const struct plan *plan;
    const struct plan_mix *mix;
    const struct imatrix *imatrix; /* NULL: none */
    int n_threads;
    uint64_t split_bytes; /* of tensors in a part at most; 0: one file */
    bool measure;         /* fill what is lost by tensor */
    /* Row of the plan's item i, whose tensor has no data, as `to`; tmp has room for a row as F32
     * and read_room numbers more. */
    void (*read)(void *arg, int i, int64_t row, enum dtype to, void *dst, float *tmp);
    int (*keys)(void *arg, struct ggufw *w, struct err *e); /* NULL: those of src */
    void *source_arg;
    size_t read_room;
    void (*progress)(void *arg, const struct rewrite_progress *p); /* NULL: nobody looks */
    void *progress_arg;
    const volatile sig_atomic_t *stop; /* NULL, or: end when it is not 0 */
};

/* What rounding did to a tensor. */
struct rewrite_loss {
    double square, error; /* sums of x^2 and (x' - x)^2 */
    double worst;         /* the largest |x' - x| */
};

struct rewrite_result {
    struct rewrite_loss *loss; /* [plan->n], from mem_array; NULL unless measured */
    int n_files, n_weighted;   /* tensors that the imatrix knew */
    uint64_t file_bytes;       /* as they lie on the disk */
    double seconds;
};

/* Is there room for so many bytes where path is to be? E_IO says how much is missing. */
int rewrite_room(const char *path, uint64_t bytes, struct err *e);

int rewrite_run(const struct rewrite_opt *opt, struct rewrite_result *out, struct err *e);

/* The name of part i (from 0) of n; n == 1: dst itself. From mem_alloc. */
char *rewrite_part_name(const char *dst, int i, int n);
#endif
