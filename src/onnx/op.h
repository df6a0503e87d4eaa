/* op.h - the toolbox that operators are written with. Inside src/onnx only.
 *
 * An operator is an op_fn, by convention named run_<operator>. It checks types and shapes of its
 * inputs, allocates its outputs with op_new (or shares an input's memory with op_view), and fills
 * them. All checks come before the arithmetic, since sizes come from the file and the request.
 *
 * While a run is planned, the elements of large F32 and byte outputs are not computed (op_skips).
 * Integers and booleans always are: shapes are made of them. */
#ifndef TERN_ONNX_OP_H
#define TERN_ONNX_OP_H

#include "onnx/heap.h"
#include "onnx/run.h"

enum {
    OP_IN = 8,  /* an op_fn may read in[0..7] whatever the node has; absent ones are NULL */
    OP_OUT = 3, /* and out[0..2] */
    OP_PANEL = VEC_PANEL
};

struct onnx_run {
    struct onnx *m;
    struct onnx_host host;
    int output;
    struct onnx_tensor *vals; /* [n_values] */
    bool *fixed;              /* [n_values] constant: of the file, or computed by onnx_run_open */
    int *last; /* [n_values] the last step that reads it; -1: none, INT_MAX: it stays */
    const struct onnx_node **steps; /* the nodes to run, in order */
    int n_steps;
    struct heap heap; /* tensors of the current execution */
    size_t max_bytes;
    bool dry;                 /* planning: large outputs are not computed */
    bool folding;             /* opening: outputs are constants, allocated with op_alloc */
    struct heap_owned *owned; /* memory that lives as long as the run */
    size_t owned_bytes;
    const struct onnx_tensor **ins; /* scratch of run_node: most inputs of any node */
    struct onnx_tensor **outs;
    bool (*stop)(void *arg); /* of onnx_run_execute */
    void *stop_arg;
    struct err *e; /* of the call that is under way */
};

/* in[i] is NULL where the input is absent. out has one tensor for each output of the node, also for
 * those that nothing reads. */
typedef int op_fn(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                  struct onnx_tensor **out);

struct onnx_op {
    const char *name;
    int since;                 /* the opset version that defined this behaviour */
    int min_in, max_in, n_out; /* max_in -1: any number; n_out: at most */
    const char *attrs;         /* known attributes, separated by spaces; others are refused */
    op_fn *fn;
};

/* The operator of a node for an opset version; NULL: not supported. */
const struct onnx_op *op_find(const struct onnx_node *n, int opset);
/* Each ends with a NULL name. */
extern const struct onnx_op ops_unary[], ops_binary[], ops_shape[], ops_gather[], ops_reduce[],
    ops_matmul[], ops_quant[];

op_fn op_if; /* in run.c: it runs a branch */

/* E_FORMAT with the name and operator of the node. */
int op_fail(struct onnx_run *r, const struct onnx_node *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Memory for an output, not zeroed. E_NOMEM: more than the run may use. */
int op_new(struct onnx_run *r, struct onnx_tensor *t, enum onnx_type type, int n_dims,
           const int64_t *dims);
/* t shares the elements of x, with other dimensions of the same product. */
int op_view(struct onnx_run *r, struct onnx_tensor *t, const struct onnx_tensor *x, int n_dims,
            const int64_t *dims);
/* Memory that lives as long as the run; NULL: none, or more than the run may use. */
void *op_alloc(struct onnx_run *r, size_t bytes);
bool op_skips(const struct onnx_run *r, const struct onnx_tensor *t);
/* Calls fn for parts of [0, rows), on any threads. work: elements touched. */
void op_share_rows(struct onnx_run *r, int64_t rows, int64_t work, onnx_rows_fn *fn,
                   const void *arg);

/* ---- checks: OK, or op_fail's error ---- */

int op_check_type(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *t,
                  enum onnx_type type);
/* An axis that may count from the end, as an index of n_dims dimensions. */
int op_read_axis(struct onnx_run *r, const struct onnx_node *n, int64_t axis, int n_dims, int *out);
/* The elements of a small I64 tensor, at most ONNX_DIMS, or where t is NULL those of an attribute.
 * *n_out -1: neither is given. */
int op_read_ints(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *t,
                 const char *attr, int64_t *out, int *n_out);

static inline const float *op_f32(const struct onnx_tensor *t) { return t->data; }
static inline const int64_t *op_i64(const struct onnx_tensor *t) { return t->data; }
static inline const uint8_t *op_u8(const struct onnx_tensor *t) { return t->data; }
/* The product of dims[begin .. end). */
static inline int64_t op_count(const int64_t *dims, int begin, int end)
{
    int64_t n = 1;
    for (int i = begin; i < end; i++) n *= dims[i];
    return n;
}

/* ---- broadcasting as in numpy: up to three tensors read in the shape that covers all ---- */

struct op_walk {
    int n_dims, n_in;
    int64_t dims[ONNX_DIMS];    /* of the output */
    int64_t step[3][ONNX_DIMS]; /* elements of an input from one index to the next; 0: it repeats */
    int64_t rows, inner;        /* set by op_walk_join; inner: the last dimension */
};

/* Fills dims and step; fails where shapes do not broadcast. */
int op_walk(struct onnx_run *r, const struct onnx_node *n, struct op_walk *w,
            const struct onnx_tensor **in, int n_in);
/* Merges neighbouring dimensions that all inputs walk through evenly: longer inner loops. After it
 * dims are not those of the output any more. */
void op_walk_join(struct op_walk *w);

/* Computes n elements of the output from element `at` on. The i-th input begins at element from[i]
 * and advances by step[i]. */
typedef void op_piece_fn(const void *arg, int64_t at, const int64_t from[3], const int64_t step[3],
                         int64_t n);
void op_walk_run(struct onnx_run *r, const struct op_walk *w, op_piece_fn *fn, const void *arg);

/* ---- matrix products (onnx_gemm.c) ---- */

/* A batch of matrix products c[m][n] = a[m][k] b[k][n]; b may have any strides. */
struct op_gemm {
    int64_t m, n, k;
    const float *a;
    int64_t lda; /* elements from one row of a to the next */
    const float *b;
    int64_t bk, bn;      /* elements of b from one k, one n to the next */
    const float *packed; /* b in panels, by op_pack; NULL: b or b8 is read */
    const void *b8;      /* in place of b: 8-bit integers */
    bool b8_signed;
    const float *b_zero; /* zero points of b8: [n], or one where !zero_each; NULL: 0 */
    bool zero_each;
    float *c;     /* [batch][m][n] */
    int64_t *c64; /* in place of c, for integers in a and b8: exact sums */
    int64_t batch;
    const int64_t *a_at, *b_at; /* [batch] element where each a and b begins; NULL: 0 */
};
void op_gemm(struct onnx_run *r, const struct op_gemm *g);
/* b in panels [n / OP_PANEL, rounded up][k][OP_PANEL], from op_alloc. NULL: no memory. */
float *op_pack(struct onnx_run *r, const void *b, int64_t k, int64_t n, int64_t bk, int64_t bn);
#endif
