/* ops_reduce.c - operators along dimensions: reductions, softmax, normalization, ArgMax, TopK,
 * CumSum.
 *
 * Sums are kept in double. Softmax and norms over the last dimension use the vector kernels.
 *
 *     Softmax             exp(x - max) / sum(exp(x - max))
 *     LogSoftmax          x - max - log(sum(exp(x - max)))
 *     LayerNormalization  (x - mean) / sqrt(variance + epsilon) * weight + bias
 *     RMSNormalization    x / sqrt(mean(x^2) + epsilon) * weight
 *
 * Axes may be negative. Operators along one axis see a tensor as [outer][len][inner]. */
#include "onnx/op.h"

#include <math.h>
#include <stdlib.h>

/* ---- reductions ---- */

enum reduce { R_SUM, R_MEAN, R_MAX, R_MIN, R_PROD, R_L2, R_SUMSQ, R_L1 };

/* The input is addressed by two index vectors: of the output and of the reduced dimensions. */
struct reduce_job {
    enum reduce op;
    enum onnx_type type;
    int n_out, n_in; /* dimensions of the output, and reduced ones */
    int64_t dims_out[ONNX_DIMS], step_out[ONNX_DIMS], dims_in[ONNX_DIMS], step_in[ONNX_DIMS];
    int64_t count; /* elements that are reduced to one */
    const void *x;
    void *out;
};

/* The element at flat index i of a shape with these steps. */
static int64_t offset_of(int64_t i, int n, const int64_t *dims, const int64_t *step)
{
    int64_t at = 0;
    for (int d = n - 1; d >= 0; d--) {
        at += i % dims[d] * step[d];
        i /= dims[d];
    }
    return at;
}

/* NaN wins in Max and Min. */
static double accumulate(enum reduce op, double sum, double v)
{
    switch (op) {
    case R_MAX: return v > sum || isnan(v) ? v : sum;
    case R_MIN: return v < sum || isnan(v) ? v : sum;
    case R_PROD: return sum * v;
    case R_L2:
    case R_SUMSQ: return sum + v * v;
    case R_L1: return sum + fabs(v);
    default: return sum + v;
    }
}

/* Elements [begin, end) of the output. Integers saturate: a double may exceed 64 bits. */
static void reduce_rows(const void *arg, int begin, int end)
{
    const struct reduce_job *j = arg;
    double first = j->op == R_MAX ? -INFINITY : j->op == R_MIN ? INFINITY : j->op == R_PROD;
    /* The last reduced dimension is the inner loop. */
    int64_t inner = j->n_in ? j->dims_in[j->n_in - 1] : 1,
            step = j->n_in ? j->step_in[j->n_in - 1] : 1;

    for (int64_t i = begin; i < end; i++) {
        int64_t at = offset_of(i, j->n_out, j->dims_out, j->step_out);
        double sum = first;
        for (int64_t k = 0; k < j->count; k += inner) {
            int64_t from = at + offset_of(k / inner, j->n_in - 1, j->dims_in, j->step_in);
            for (int64_t m = 0; m < inner; m++, from += step)
                sum = accumulate(j->op, sum,
                                 j->type == ONNX_F32 ? (double)((const float *)j->x)[from]
                                                     : (double)((const int64_t *)j->x)[from]);
        }
        if (j->op == R_MEAN) sum /= (double)j->count;
        if (j->op == R_L2) sum = sqrt(sum);
        if (j->type == ONNX_F32) ((float *)j->out)[i] = (float)sum;
        else
            ((int64_t *)j->out)[i] = sum >= 0x1p63                 ? INT64_MAX
                                     : sum < -0x1p63 || isnan(sum) ? INT64_MIN
                                                                   : (int64_t)sum;
    }
}

static const struct {
    const char *name;
    enum reduce op;
} reduce_names[] = {
    { "ReduceSum", R_SUM },         { "ReduceMean", R_MEAN }, { "ReduceMax", R_MAX },
    { "ReduceMin", R_MIN },         { "ReduceProd", R_PROD }, { "ReduceL2", R_L2 },
    { "ReduceSumSquare", R_SUMSQ }, { "ReduceL1", R_L1 },     { NULL, 0 },
};

/* The dimensions to reduce: those given, or all. *none: no dimension, the input is the result. */
static int read_axes(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     bool *reduced, bool *none)
{
    int64_t axes[ONNX_DIMS];
    int n_axes, at, rc = op_read_ints(r, n, in[1], "axes", axes, &n_axes);

    *none = n_axes <= 0 && onnx_int(n, "noop_with_empty_axes", 0);
    for (int i = 0; rc == OK && i < n_axes; i++)
        if ((rc = op_read_axis(r, n, axes[i], in[0]->n_dims, &at)) == OK) reduced[at] = true;
    for (int d = 0; n_axes <= 0 && d < in[0]->n_dims; d++) reduced[d] = true;
    return rc;
}

/* Splits the dimensions into kept and reduced ones, each with its steps. */
static int run_reduce(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    struct reduce_job j = { .type = in[0]->type, .count = 1, .x = in[0]->data };
    bool reduced[ONNX_DIMS] = { false }, none, keep = onnx_int(n, "keepdims", 1) != 0;
    int64_t dims[ONNX_DIMS], step = (int64_t)in[0]->n;
    int i = 0, nd = 0, rc;

    while (reduce_names[i].name && !str_is(n->op, reduce_names[i].name)) i++;
    j.op = reduce_names[i].op;
    if (in[0]->type != ONNX_F32 && in[0]->type != ONNX_I64)
        return op_check_type(r, n, in[0], ONNX_F32);
    if ((rc = read_axes(r, n, in, reduced, &none)) != OK) return rc;
    if (none) return op_view(r, out[0], in[0], in[0]->n_dims, in[0]->dims);
    for (int d = 0; d < in[0]->n_dims; d++) {
        int64_t size = in[0]->dims[d];
        /* Elements from one index of this dimension to the next. */
        step = size ? step / size : 0;
        if (reduced[d]) {
            j.dims_in[j.n_in] = size;
            j.step_in[j.n_in++] = step;
            j.count *= size;
        } else {
            j.dims_out[j.n_out] = size;
            j.step_out[j.n_out++] = step;
        }
        if (keep || !reduced[d]) dims[nd++] = reduced[d] ? 1 : size;
    }
    if ((rc = op_new(r, out[0], in[0]->type, nd, dims)) != OK || op_skips(r, out[0])) return rc;
    if (j.count == 0 && in[0]->type == ONNX_I64)
        return op_fail(r, n, "an empty dimension of integers cannot be reduced");
    j.out = out[0]->data;
    op_share_rows(r, (int64_t)out[0]->n, (int64_t)in[0]->n, reduce_rows, &j);
    return OK;
}

/* ---- softmax ---- */

struct softmax_job {
    const struct vec *vec;
    bool log;
    int64_t len;   /* of the dimension */
    int64_t inner; /* elements from one index of it to the next */
    const float *x;
    float *out;
};

/* A dimension that is not the last, or the logarithm. */
static void softmax_strided(const struct softmax_job *j, const float *x, float *out)
{
    double sum = 0, most = -INFINITY;

    for (int64_t i = 0; i < j->len; i++) most = fmax(most, (double)x[i * j->inner]);
    for (int64_t i = 0; i < j->len; i++) sum += exp((double)x[i * j->inner] - most);
    for (int64_t i = 0; i < j->len; i++) {
        double v = (double)x[i * j->inner] - most;
        out[i * j->inner] = (float)(j->log ? v - log(sum) : exp(v) / sum);
    }
}

/* The vector kernel needs contiguous rows. */
static void softmax_rows(const void *arg, int begin, int end)
{
    const struct softmax_job *j = arg;

    for (int64_t i = begin; i < end; i++) {
        int64_t at = i / j->inner * j->len * j->inner + i % j->inner;
        if (j->inner == 1 && !j->log) j->vec->softmax(j->out + at, j->x + at, (int)j->len);
        else softmax_strided(j, j->x + at, j->out + at);
    }
}

/* Before opset 13 all dimensions from the axis on are taken as one. */
static int run_softmax(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                       struct onnx_tensor **out)
{
    struct softmax_job j = { .vec = r->host.vec,
                             .log = str_is(n->op, "LogSoftmax"),
                             .x = in[0]->data };
    bool old = n->info->since < 13;
    int axis, rc = op_check_type(r, n, in[0], ONNX_F32);

    if (rc != OK ||
        (rc = op_read_axis(r, n, onnx_int(n, "axis", old ? 1 : -1), in[0]->n_dims, &axis)) != OK)
        return rc;
    if ((rc = op_new(r, out[0], ONNX_F32, in[0]->n_dims, in[0]->dims)) != OK || op_skips(r, out[0]))
        return rc;
    j.len = old ? op_count(in[0]->dims, axis, in[0]->n_dims) : in[0]->dims[axis];
    j.inner = old ? 1 : op_count(in[0]->dims, axis + 1, in[0]->n_dims);
    j.out = out[0]->data;
    if (out[0]->n)
        op_share_rows(r, (int64_t)out[0]->n / j.len, (int64_t)out[0]->n * 4, softmax_rows, &j);
    return OK;
}

/* ---- layer norm ---- */

struct norm_job {
    const struct vec *vec;
    bool rms;
    int64_t len;
    float eps;
    const float *x, *w, *b;
    float *out;
};

static void norm_rows(const void *arg, int begin, int end)
{
    const struct norm_job *j = arg;

    for (int64_t i = begin; i < end; i++) {
        if (j->rms)
            j->vec->rmsnorm(j->out + i * j->len, j->x + i * j->len, j->w, (int)j->len, j->eps);
        else
            j->vec->layernorm(j->out + i * j->len, j->x + i * j->len, j->w, j->b, (int)j->len,
                              j->eps);
    }
}

/* LayerNormalization and RMSNormalization over all dimensions from the axis on. */
static int run_layer_norm(struct onnx_run *r, const struct onnx_node *n,
                          const struct onnx_tensor **in, struct onnx_tensor **out)
{
    struct norm_job j = { .vec = r->host.vec,
                          .rms = str_is(n->op, "RMSNormalization"),
                          .eps = onnx_float(n, "epsilon", 1e-5f),
                          .x = in[0]->data,
                          .w = in[1]->data,
                          .b = in[2] ? in[2]->data : NULL };
    int axis, rc = op_check_type(r, n, in[0], ONNX_F32);

    if (rc != OK || (rc = op_check_type(r, n, in[1], ONNX_F32)) != OK ||
        (in[2] && (rc = op_check_type(r, n, in[2], ONNX_F32)) != OK))
        return rc;
    if ((n->n_out > 1 && n->out[1] >= 0) || (n->n_out > 2 && n->out[2] >= 0))
        return op_fail(r, n, "the outputs Mean and InvStdDev are not supported");
    if ((rc = op_read_axis(r, n, onnx_int(n, "axis", -1), in[0]->n_dims, &axis)) != OK) return rc;
    j.len = op_count(in[0]->dims, axis, in[0]->n_dims);
    if ((int64_t)in[1]->n != j.len || (in[2] && (int64_t)in[2]->n != j.len))
        return op_fail(r, n, "%zu weights do not fit rows of %lld elements", in[1]->n,
                       (long long)j.len);
    if ((rc = op_new(r, out[0], ONNX_F32, in[0]->n_dims, in[0]->dims)) != OK || op_skips(r, out[0]))
        return rc;
    j.out = out[0]->data;
    if (out[0]->n)
        op_share_rows(r, (int64_t)out[0]->n / j.len, (int64_t)out[0]->n * 2, norm_rows, &j);
    return OK;
}

/* ---- order ---- */

static double number_at(const struct onnx_tensor *t, int64_t i)
{
    return t->type == ONNX_F32 ? (double)op_f32(t)[i] : (double)op_i64(t)[i];
}

/* ArgMax and ArgMin: of equal elements the first, or the last with select_last_index. */
static int run_arg_extreme(struct onnx_run *r, const struct onnx_node *n,
                           const struct onnx_tensor **in, struct onnx_tensor **out)
{
    bool least = str_is(n->op, "ArgMin"), keep = onnx_int(n, "keepdims", 1) != 0,
         late = onnx_int(n, "select_last_index", 0);
    int64_t dims[ONNX_DIMS], outer, inner, len;
    int axis, nd = 0, rc = op_read_axis(r, n, onnx_int(n, "axis", 0), in[0]->n_dims, &axis);

    if (rc != OK) return rc;
    if (in[0]->type != ONNX_I64 && (rc = op_check_type(r, n, in[0], ONNX_F32)) != OK) return rc;
    len = in[0]->dims[axis];
    outer = op_count(in[0]->dims, 0, axis);
    inner = op_count(in[0]->dims, axis + 1, in[0]->n_dims);
    for (int d = 0; d < in[0]->n_dims; d++)
        if (keep || d != axis) dims[nd++] = d == axis ? 1 : in[0]->dims[d];
    if (len == 0) return op_fail(r, n, "the dimension is empty");
    if ((rc = op_new(r, out[0], ONNX_I64, nd, dims)) != OK) return rc;
    for (int64_t i = 0; i < outer * inner; i++) {
        int64_t at = i / inner * len * inner + i % inner, best = 0;
        for (int64_t k = 1; k < len; k++) {
            double a = number_at(in[0], at + k * inner), b = number_at(in[0], at + best * inner);
            if ((least ? a < b : a > b) || (late && a == b)) best = k;
        }
        ((int64_t *)out[0]->data)[i] = best;
    }
    return OK;
}

struct ranked {
    double v;
    int64_t at;
};

/* Descending; of equal elements the first comes first. */
static int compare_ranks(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->v != y->v ? (x->v < y->v ? 1 : -1) : x->at > y->at ? 1 : -1;
}

/* The sort needs scratch memory of the heap: a struct ranked per element of the dimension. */
static int run_top_k(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    double sign = onnx_int(n, "largest", 1) ? 1 : -1;
    int64_t dims[ONNX_DIMS], k, len, inner, outer, room;
    struct onnx_tensor work = { .block = -1 };
    struct ranked *rank;
    int axis, rc = op_read_axis(r, n, onnx_int(n, "axis", -1), in[0]->n_dims, &axis);

    if (rc != OK || (rc = op_check_type(r, n, in[1], ONNX_I64)) != OK) return rc;
    if (in[0]->type != ONNX_I64 && (rc = op_check_type(r, n, in[0], ONNX_F32)) != OK) return rc;
    k = in[1]->n == 1 ? op_i64(in[1])[0] : -1;
    len = in[0]->dims[axis];
    if (k < 0 || k > len)
        return op_fail(r, n, "k is %lld, but the dimension has %lld elements", (long long)k,
                       (long long)len);
    memcpy(dims, in[0]->dims, sizeof dims);
    dims[axis] = k;
    outer = op_count(dims, 0, axis);
    inner = op_count(dims, axis + 1, in[0]->n_dims);
    room = 2 * len;
    if ((rc = op_new(r, out[0], in[0]->type, in[0]->n_dims, dims)) != OK ||
        (rc = op_new(r, out[1], ONNX_I64, in[0]->n_dims, dims)) != OK ||
        (rc = op_new(r, &work, ONNX_I64, 1, &room)) != OK)
        return rc;
    rank = work.data;
    for (int64_t i = 0; i < outer * inner; i++) {
        int64_t from = i / inner * len * inner + i % inner, to = i / inner * k * inner + i % inner;
        for (int64_t m = 0; m < len; m++)
            /* The smallest elements are the largest of the negated ones. */
            rank[m] = (struct ranked){ sign * number_at(in[0], from + m * inner), m };
        qsort(rank, (size_t)len, sizeof *rank, compare_ranks);
        for (int64_t m = 0; m < k; m++, to += inner) {
            if (in[0]->type == ONNX_F32)
                ((float *)out[0]->data)[to] = op_f32(in[0])[from + rank[m].at * inner];
            else ((int64_t *)out[0]->data)[to] = op_i64(in[0])[from + rank[m].at * inner];
            ((int64_t *)out[1]->data)[to] = rank[m].at;
        }
    }
    heap_unref(&r->heap, work.block);
    return OK;
}

/* Sums of floats are kept in double, of integers they wrap around. */
static int run_cum_sum(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                       struct onnx_tensor **out)
{
    bool after = onnx_int(n, "exclusive", 0) != 0, back = onnx_int(n, "reverse", 0) != 0;
    int64_t len, inner, outer;
    int axis, rc = op_check_type(r, n, in[1], ONNX_I64);

    if (rc != OK) return rc;
    if (in[0]->type != ONNX_I64 && (rc = op_check_type(r, n, in[0], ONNX_F32)) != OK) return rc;
    if (in[1]->n != 1) return op_fail(r, n, "the axis must be one integer");
    if ((rc = op_read_axis(r, n, op_i64(in[1])[0], in[0]->n_dims, &axis)) != OK) return rc;
    if ((rc = op_new(r, out[0], in[0]->type, in[0]->n_dims, in[0]->dims)) != OK) return rc;
    len = in[0]->dims[axis];
    outer = op_count(in[0]->dims, 0, axis);
    inner = op_count(in[0]->dims, axis + 1, in[0]->n_dims);
    for (int64_t i = 0; i < outer * inner; i++) {
        int64_t first = i / inner * len * inner + i % inner;
        double sum = 0;
        uint64_t whole = 0;
        for (int64_t m = 0; m < len; m++) {
            int64_t at = first + (back ? len - 1 - m : m) * inner;
            bool is_float = in[0]->type == ONNX_F32;
            double v = is_float ? (double)op_f32(in[0])[at] : 0;
            uint64_t w = is_float ? 0 : (uint64_t)op_i64(in[0])[at];
            if (is_float) ((float *)out[0]->data)[at] = (float)(after ? sum : sum + v);
            else ((int64_t *)out[0]->data)[at] = (int64_t)(after ? whole : whole + w);
            sum += v;
            whole += w;
        }
    }
    return OK;
}

/* Name, opset since, inputs from and to, outputs, attributes, function. */
const struct onnx_op ops_reduce[] = {
    { "ReduceSum", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceSum", 13, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "ReduceMean", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceMean", 18, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "ReduceMax", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceMax", 18, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "ReduceMin", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceMin", 18, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "ReduceProd", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceProd", 18, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "ReduceL2", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceL2", 18, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "ReduceL1", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceL1", 18, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "ReduceSumSquare", 1, 1, 1, 1, "axes keepdims", run_reduce },
    { "ReduceSumSquare", 18, 1, 2, 1, "keepdims noop_with_empty_axes", run_reduce },
    { "Softmax", 1, 1, 1, 1, "axis", run_softmax },
    { "Softmax", 13, 1, 1, 1, "axis", run_softmax },
    { "LogSoftmax", 1, 1, 1, 1, "axis", run_softmax },
    { "LogSoftmax", 13, 1, 1, 1, "axis", run_softmax },
    { "LayerNormalization", 17, 2, 3, 3, "axis epsilon stash_type", run_layer_norm },
    { "RMSNormalization", 23, 2, 2, 1, "axis epsilon stash_type", run_layer_norm },
    { "ArgMax", 1, 1, 1, 1, "axis keepdims select_last_index", run_arg_extreme },
    { "ArgMin", 1, 1, 1, 1, "axis keepdims select_last_index", run_arg_extreme },
    { "TopK", 10, 2, 2, 2, "axis largest sorted", run_top_k },
    { "CumSum", 11, 2, 2, 1, "exclusive reverse", run_cum_sum },
    { 0 },
};
