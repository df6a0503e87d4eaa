/* run.h - executing a graph: the nodes that one output needs, in memory that is planned ahead.
 *
 * onnx_run_open looks up every operator (an unknown one is refused by name), computes the nodes
 * whose inputs are all constant, and packs constant matrices into the layout that the kernels read.
 *
 * Shapes depend on the inputs of each run. onnx_run_plan walks the graph with the largest inputs
 * without doing the arithmetic, and reserves memory for the tensors that were live at once. After
 * it, onnx_run_execute allocates nothing.
 *
 * One thread drives a run; rows of an operator are shared out over the host's worker threads. The
 * graph must outlive the run and has one open run at a time, since nodes refer to its packed
 * matrices. */
#ifndef TERN_ONNX_RUN_H
#define TERN_ONNX_RUN_H

#include "kernel/cpu/vec.h"
#include "onnx/graph.h"

typedef void onnx_rows_fn(const void *arg, int begin, int end);

struct onnx_host { /* what does the arithmetic */
    const struct vec *vec;
    /* Calls fn for parts of [0, rows), on any threads, and returns when all are done. `work` is the
     * number of elements touched, for deciding how many threads are worth it. NULL: the caller's
     * thread does everything. */
    void (*rows)(void *team, int rows, long long work, onnx_rows_fn *fn, const void *arg);
    void *team;
};

struct onnx_run_opt {
    struct onnx_host host;
    int output;       /* index of the graph's output to compute */
    size_t max_bytes; /* limit of tensors that are live at once; 0: 64 GiB */
};

struct onnx_run;

int onnx_run_open(struct onnx_run **out, struct onnx *m, const struct onnx_run_opt *opt,
                  struct err *e);
/* Whether all operators that the output needs are known; E_UNSUPPORTED names one that is not. Not
 * while a run of m is open. */
int onnx_run_check(struct onnx *m, int output, struct err *e);
void onnx_run_close(struct onnx_run *r); /* NULL is allowed */

/* Sets the i-th input of the graph. data has the type that the graph names; it stays the caller's
 * and must stay in place until the execution is over. */
void onnx_run_set(struct onnx_run *r, int i, int n_dims, const int64_t *dims, const void *data);
/* Reserves memory for inputs up to the size of those that are set. *shape is that of the output. */
int onnx_run_plan(struct onnx_run *r, struct onnx_tensor *shape, struct err *e);
/* Computes the output. *out belongs to the run and is valid until the next execution. stop is
 * called between nodes and ends the execution with E_CANCELLED by returning true; NULL: never. */
int onnx_run_execute(struct onnx_run *r, bool (*stop)(void *arg), void *arg,
                     const struct onnx_tensor **out, struct err *e);

size_t onnx_run_bytes(const struct onnx_run *r);       /* planned memory of live tensors */
size_t onnx_run_const_bytes(const struct onnx_run *r); /* folded constants and packed matrices */
int onnx_run_n_nodes(const struct onnx_run *r);        /* that an execution runs */
bool onnx_run_uses(const struct onnx_run *r, const char *op);
#endif
