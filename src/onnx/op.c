/* op.c - the toolbox of operators: lookup, memory, checks, broadcasting.
 *
 * Broadcasting: shapes are aligned at the end, and a dimension of 1 repeats. op_walk turns this
 * into steps: for a[2][1] and b[3] the output is [2][3], a has the steps {1, 0} and b {0, 1}.
 * op_walk_join then merges dimensions, so that two tensors of one shape become a single row, and
 * op_walk_run hands out pieces of rows to the worker threads. */
#include "onnx/op.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SMALL = 4096, /* elements of an output that planning computes, whatever its type */
    PIECE = 8192  /* elements that one call of an op_piece_fn gets at most */
};

/* ---- the table ---- */

static bool is_default_domain(struct str domain)
{
    return domain.n == 0 || str_is(domain, "ai.onnx");
}

/* Of several versions of an operator, the newest that the opset of the file includes. */
const struct onnx_op *op_find(const struct onnx_node *n, int opset)
{
    static const struct onnx_op *const tables[] = { ops_unary,  ops_binary, ops_shape, ops_gather,
                                                    ops_reduce, ops_matmul, ops_quant };
    const struct onnx_op *best = NULL;

    if (!is_default_domain(n->domain)) return NULL;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct onnx_op *o = tables[i]; o->name; o++)
            if (str_is(n->op, o->name) && o->since <= opset && (!best || o->since > best->since))
                best = o;
    return best;
}

/* The node is named with its operator: names of exported nodes alone say little. */
int op_fail(struct onnx_run *r, const struct onnx_node *n, const char *fmt, ...)
{
    char what[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(r->e, E_FORMAT, "%s: node '%.*s' (%.*s): %s", r->m->path,
                   STR_ARG(str_take(n->name, 80)), STR_ARG(str_take(n->op, 40)), what);
}

/* ---- memory ---- */

void *op_alloc(struct onnx_run *r, size_t bytes)
{
    void *p;

    if (bytes > r->max_bytes - r->owned_bytes || !(p = heap_own(&r->owned, bytes))) return NULL;
    r->owned_bytes += bytes;
    return p;
}

/* While constants are folded, outputs outlive the run's heap; otherwise they are blocks of it. */
int op_new(struct onnx_run *r, struct onnx_tensor *t, enum onnx_type type, int n_dims,
           const int64_t *dims)
{
    size_t n = 1, bytes;

    *t = (struct onnx_tensor){ .type = type, .n_dims = n_dims, .block = -1 };
    for (int d = 0; d < n_dims; d++) {
        t->dims[d] = dims[d];
        /* A dimension out of range makes the tensor too large for any heap. */
        if (dims[d] < 0 || dims[d] > INT32_MAX || !mem_mul(n, (size_t)dims[d], &n))
            n = SIZE_MAX / 16;
    }
    t->n = n;
    /* Kernels count with int, so a tensor has at most 2^31 elements. SIZE_MAX fits nowhere. */
    if (n > INT32_MAX || !mem_mul(n, onnx_size(type), &bytes)) bytes = SIZE_MAX;
    if (r->folding) t->data = op_alloc(r, bytes);
    else if ((t->block = heap_get(&r->heap, bytes)) >= 0) t->data = heap_at(&r->heap, t->block);
    if (t->data) return OK;
    *t = (struct onnx_tensor){ .block = -1 };
    return err_set(r->e, E_NOMEM, "%s: out of memory: no room for a tensor of %zu elements",
                   r->m->path, n);
}

/* Counts another reference of the block, so either tensor may be dropped first. */
int op_view(struct onnx_run *r, struct onnx_tensor *t, const struct onnx_tensor *x, int n_dims,
            const int64_t *dims)
{
    *t = (struct onnx_tensor){ .type = x->type,
                               .n_dims = n_dims,
                               .n = x->n,
                               .data = x->data,
                               .is_file = x->is_file,
                               .block = x->block };
    memcpy(t->dims, dims, (size_t)n_dims * sizeof *dims);
    heap_ref(&r->heap, t->block);
    return OK;
}

/* Small outputs are always computed: they may be operands of shape arithmetic. */
bool op_skips(const struct onnx_run *r, const struct onnx_tensor *t)
{
    return r->dry && t->type != ONNX_I64 && t->type != ONNX_BOOL && t->n > SMALL;
}

void op_share_rows(struct onnx_run *r, int64_t rows, int64_t work, onnx_rows_fn *fn,
                   const void *arg)
{
    if (rows <= 0) return;
    if (r->host.rows) r->host.rows(r->host.team, (int)rows, work, fn, arg);
    else fn(arg, 0, (int)rows);
}

/* ---- checks ---- */

int op_check_type(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *t,
                  enum onnx_type type)
{
    if (t->type == type) return OK;
    return op_fail(r, n, "an input has type %s, but must be %s", onnx_type_name(t->type),
                   onnx_type_name(type));
}

int op_read_axis(struct onnx_run *r, const struct onnx_node *n, int64_t axis, int n_dims, int *out)
{
    if (axis < -n_dims || axis >= n_dims)
        return op_fail(r, n, "axis %lld is out of range for %d dimensions", (long long)axis,
                       n_dims);
    *out = (int)(axis < 0 ? axis + n_dims : axis);
    return OK;
}

/* Shapes and axes were attributes in old opsets and are inputs in new ones. */
int op_read_ints(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *t,
                 const char *attr, int64_t *out, int *n_out)
{
    const struct onnx_attr *a = attr ? onnx_attr(n, attr) : NULL;
    const int64_t *from = a ? a->ints : NULL;
    size_t count = a ? (size_t)a->n : 0;
    int rc;

    *n_out = -1;
    if (t) {
        if ((rc = op_check_type(r, n, t, ONNX_I64)) != OK) return rc;
        from = t->data;
        count = t->n;
    } else if (!a) {
        return OK;
    } else if (count && !from) {
        return op_fail(r, n, "the attribute %s must be a list of integers", attr);
    }
    if (count > ONNX_DIMS)
        return op_fail(r, n, "a list has %zu elements; at most 8 are allowed", count);
    for (size_t i = 0; i < count; i++) out[i] = from[i];
    *n_out = (int)count;
    return OK;
}

/* ---- broadcasting ---- */

/* Shapes are aligned at their last dimension; a dimension of 1 repeats. */
int op_walk(struct onnx_run *r, const struct onnx_node *n, struct op_walk *w,
            const struct onnx_tensor **in, int n_in)
{
    *w = (struct op_walk){ .n_in = n_in };
    for (int i = 0; i < n_in; i++)
        if (in[i]->n_dims > w->n_dims) w->n_dims = in[i]->n_dims;
    for (int d = 0; d < w->n_dims; d++) {
        int64_t size = 1;
        for (int i = 0; i < n_in; i++) {
            int at = d - (w->n_dims - in[i]->n_dims);
            int64_t s = at < 0 ? 1 : in[i]->dims[at];
            /* 1 broadcasts to anything. */
            if (s == 1) continue;
            if (size != 1 && s != size)
                return op_fail(r, n, "dimension %d is %lld in one input and %lld in another", d,
                               (long long)size, (long long)s);
            size = s;
        }
        w->dims[d] = size;
    }
    for (int i = 0; i < n_in; i++) {
        int64_t step = 1;
        for (int d = w->n_dims - 1; d >= w->n_dims - in[i]->n_dims; d--) {
            int64_t s = in[i]->dims[d - (w->n_dims - in[i]->n_dims)];
            w->step[i][d] = s == 1 ? 0 : step;
            step *= s;
        }
    }
    return OK;
}

/* Dimensions of size 1 are dropped. Dimension d joins the one before it if for every input a step
 * of the latter equals a whole pass over d. */
void op_walk_join(struct op_walk *w)
{
    int to = -1;

    for (int d = 0; d < w->n_dims; d++) {
        int64_t size = w->dims[d];
        bool joins = to >= 0;
        if (size == 1) continue;
        for (int i = 0; i < w->n_in && joins; i++) joins = w->step[i][to] == w->step[i][d] * size;
        if (!joins) to++;
        w->dims[to] = joins ? w->dims[to] * size : size;
        for (int i = 0; i < w->n_in; i++) w->step[i][to] = w->step[i][d];
    }
    /* Only dimensions of size 1: a single element. */
    if (to < 0) {
        to = 0;
        w->dims[0] = 1;
        for (int i = 0; i < w->n_in; i++) w->step[i][0] = 0;
    }
    w->n_dims = to + 1;
    w->inner = w->dims[to];
    w->rows = op_count(w->dims, 0, to);
}

struct walk_job {
    const struct op_walk *w;
    op_piece_fn *fn;
    const void *arg;
    int64_t pieces; /* that a row is cut into */
};

/* Each piece finds its offsets from its index, so pieces can run on any thread. */
static void walk_pieces(const void *arg, int begin, int end)
{
    const struct walk_job *j = arg;
    const struct op_walk *w = j->w;

    for (int64_t p = begin; p < end; p++) {
        int64_t row = p / j->pieces, col = p % j->pieces * PIECE, rest = row, from[3] = { 0 },
                step[3] = { 0 };
        int64_t n = w->inner - col < PIECE ? w->inner - col : PIECE;
        for (int d = w->n_dims - 2; d >= 0; d--) {
            int64_t at = rest % w->dims[d];
            rest /= w->dims[d];
            for (int i = 0; i < w->n_in; i++) from[i] += at * w->step[i][d];
        }
        for (int i = 0; i < w->n_in; i++) {
            step[i] = w->step[i][w->n_dims - 1];
            from[i] += col * step[i];
        }
        j->fn(j->arg, row * w->inner + col, from, step, n);
    }
}

void op_walk_run(struct onnx_run *r, const struct op_walk *w, op_piece_fn *fn, const void *arg)
{
    struct walk_job j = { w, fn, arg, (w->inner + PIECE - 1) / PIECE };

    op_share_rows(r, w->rows * j.pieces, w->rows * w->inner, walk_pieces, &j);
}
