/* run.h - a graph at work: the nodes that an output needs, one after the other, in memory planned
 * ahead.
 *
 * Opening finds every operator (one that is not known is refused by name), computes what depends on
 * nothing but the file's own tensors, and brings matrices into the order the kernels read. Shapes
 * are those of the inputs of each run: onnx_run_plan walks the graph with the largest ones without
 * doing the arithmetic, and takes memory for what was alive at once. After it a run takes none.
 *
 * One thread drives a run; rows are shared out over the host's team. The graph must outlive it. */
#ifndef TERN_ONNX_RUN_H
#define TERN_ONNX_RUN_H

#include "kernel/cpu/vec.h"
#include "onnx/graph.h"

typedef void onnx_rows_fn(const void *arg, int begin, int end);

/* Who does the arithmetic. */
struct onnx_host {
    const struct vec *vec;
    /* fn for pieces of [0, rows); work: numbers touched. NULL: the caller's thread does all. */
    void (*rows)(void *team, int rows, long long work, onnx_rows_fn *fn, const void *arg);
    void *team;
};

struct onnx_run_opt {
    struct onnx_host host;
    int output;       /* of the graph's: the one that is wanted */
    size_t max_bytes; /* that may be alive at once; 0: 64 GiB */
};

struct onnx_run;

int onnx_run_open(struct onnx_run **out, struct onnx *m, const struct onnx_run_opt *opt,
                  struct err *e);
/* Are all operators that the output needs known? E_UNSUPPORTED names one that is not. */
int onnx_run_check(struct onnx *m, int output, struct err *e);
void onnx_run_close(struct onnx_run *r); /* NULL is fine */

/* The graph's i-th input. data stays the caller's, until the run is over; of the type the graph
 * names. */
void onnx_run_set(struct onnx_run *r, int i, int n_dims, const int64_t *dims, const void *data);
/* With inputs set to the largest that will come: takes the memory. *shape is the output's. */
int onnx_run_plan(struct onnx_run *r, struct onnx_tensor *shape, struct err *e);
/* *out is the run's, until the next one. stop is asked between nodes; true: E_CANCELLED. NULL:
 * nobody asks. */
int onnx_run_go(struct onnx_run *r, bool (*stop)(void *arg), void *arg,
                const struct onnx_tensor **out, struct err *e);

size_t onnx_run_bytes(const struct onnx_run *r); /* planned */
size_t onnx_run_kept(const struct onnx_run *r);  /* of tensors it made when it opened */
int onnx_run_n_nodes(const struct onnx_run *r);  /* that run */
bool onnx_run_uses(const struct onnx_run *r, const char *op);
#endif
