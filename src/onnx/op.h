/* op.h - what operators are written with; seen inside src/onnx only.
 *
 * An operator checks what it is given, asks for its outputs by op_new (or hands an input on by
 * op_view), and fills them. While a run is planned large outputs are not filled (op_skips): only
 * shapes and whole numbers, which shapes are made of, are worked out. */
#ifndef TERN_ONNX_OP_H
#define TERN_ONNX_OP_H

#include "onnx/heap.h"
#include "onnx/run.h"

enum {
    OP_IN = 8,
    OP_PANEL = VEC_PANEL
}; /* inputs that operators with a fixed number have at most */

struct onnx_run {
    struct onnx *m;
    struct onnx_host host;
    int output;
    struct onnx_tensor *vals; /* [n_values] */
    bool *fixed;              /* [n_values] it is the file's, or was computed when the run opened */
    int *last;                /* [n_values] the step whose node reads it last; INT_MAX: it stays */
    const struct onnx_node **steps; /* the nodes that run */
    int n_steps;
    struct heap heap;
    size_t max_bytes;
    bool dry;     /* planning */
    bool folding; /* opening: what is made stays */
    struct op_kept {
        struct op_kept *next;
        void *p;
        size_t bytes;
    } * kept;
    size_t kept_bytes;
    const struct onnx_tensor **ins; /* [most inputs or outputs of a node], twice */
    struct onnx_tensor **outs;
    bool (*stop)(void *arg);
    void *stop_arg;
    struct err *e;
};

/* in: of what is not given NULL. out: one for each of the node's outputs, also those nobody reads.
 */
typedef int op_fn(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                  struct onnx_tensor **out);

struct onnx_op {
    const char *name;
    int since;                 /* the opset from which on this is how it works */
    int min_in, max_in, n_out; /* max_in -1: any number; n_out: at most */
    const char *attrs;         /* those it knows: "axis keepdims" */
    op_fn *fn;
};

const struct onnx_op *op_find(const struct onnx_node *n, int opset);
extern const struct onnx_op ops_math[], ops_pair[], ops_shape[], ops_pick[], ops_reduce[],
    ops_product[], ops_quant[];

op_fn op_if;

/* The failure of a node, named with it: E_FORMAT. */
int op_fail(struct onnx_run *r, const struct onnx_node *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int op_new(struct onnx_run *r, struct onnx_tensor *t, enum onnx_type type, int n_dims,
           const int64_t *dims);
/* t is x, its numbers seen with these dimensions; they must be as many. */
int op_view(struct onnx_run *r, struct onnx_tensor *t, const struct onnx_tensor *x, int n_dims,
            const int64_t *dims);
/* Memory that stays while the run is open; NULL: there is none. */
void *op_keep(struct onnx_run *r, size_t bytes);
bool op_skips(const struct onnx_run *r, const struct onnx_tensor *t);
/* Some of [0, rows) at a time, on any thread. */
void op_rows(struct onnx_run *r, int64_t rows, int64_t work, onnx_rows_fn *fn, const void *arg);

/* Checks with a sentence. */
int op_want(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *t,
            enum onnx_type type);
int op_axis(struct onnx_run *r, const struct onnx_node *n, int64_t axis, int n_dims, int *out);
/* The numbers of a small I64 tensor, at most ONNX_DIMS of them; t NULL: the attribute's. *n_out -1:
 * neither. */
int op_ints(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *t,
            const char *attr, int64_t *out, int *n_out);

static inline const float *op_f32(const struct onnx_tensor *t) { return t->data; }
static inline const int64_t *op_i64(const struct onnx_tensor *t) { return t->data; }
static inline const uint8_t *op_u8(const struct onnx_tensor *t) { return t->data; }
static inline int64_t op_count(const int64_t *dims, int begin, int end)
{
    int64_t n = 1;
    for (int i = begin; i < end; i++) n *= dims[i];
    return n;
}

/* ---- numpy's broadcasting: up to three tensors walked over by the shape that covers all ---- */

struct op_walk {
    int n_dims, n_in;
    int64_t dims[ONNX_DIMS];
    int64_t step[3][ONNX_DIMS]; /* 0 where it repeats */
    int64_t rows, inner;        /* inner: the last dimension, walked in pieces */
};

int op_walk(struct onnx_run *r, const struct onnx_node *n, struct op_walk *w,
            const struct onnx_tensor **in, int n_in);
/* Dimensions as they are before op_walk_join makes fewer of them: for the output. */
void op_walk_join(struct op_walk *w);

/* n numbers of the output from `at` on, of inputs from `from` on with their steps. */
typedef void op_piece_fn(const void *arg, int64_t at, const int64_t from[3], const int64_t step[3],
                         int64_t n);
void op_walk_run(struct onnx_run *r, const struct op_walk *w, op_piece_fn *fn, const void *arg);

/* A product: c[m][n] = a[m][k] b[k][n], batches of it, strides of b free. */
struct op_gemm {
    int64_t m, n, k;
    const float *a;
    int64_t lda;
    const float *b;
    int64_t bk, bn;      /* numbers from one k, n to the next */
    const float *packed; /* b in panels (op_pack); NULL: b is read */
    const void *b8;      /* instead of b: bytes */
    bool b8_signed;
    const float *b_zero; /* of b8: [n], or one where !zero_each */
    bool zero_each;
    float *c;     /* [m][n] */
    int64_t *c64; /* of b8, and whole numbers in a: instead of c, exactly */
    int64_t batch;
    const int64_t *a_at, *b_at; /* [batch] where its a and b begin; NULL: 0 */
};
void op_gemm(struct onnx_run *r, const struct op_gemm *g);
/* b's panels: [n / OP_PANEL, up][k][OP_PANEL], kept. NULL: no memory. */
float *op_pack(struct onnx_run *r, const void *b, int64_t k, int64_t n, int64_t bk, int64_t bn);
#endif
