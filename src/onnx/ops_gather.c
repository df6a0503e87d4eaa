/* ops_gather.c - operators that address elements by index (Gather, Scatter and variants, NonZero,
 * Trilu) or create tensors (Constant, ConstantOfShape, Range).
 *
 * Indexes come from the input of a request: every one is checked before it is used. Negative ones
 * count from the end.
 *
 *     Gather           out = x[ids], rows along an axis: the shape of ids replaces the axis
 *     GatherElements   ids has as many dimensions as x; one element per index
 *     GatherND         the last dimension of ids is a tuple of indexes; elements or rows
 *     ScatterElements, ScatterND   the same places, written instead of read */
#include "onnx/op.h"

#include <math.h>

/* An index that may count from the end, as one from the front; -1: out of range. */
static int64_t normalize_index(int64_t i, int64_t size)
{
    if (i < 0) i += size;
    return i >= 0 && i < size ? i : -1;
}

static int fail_index(struct onnx_run *r, const struct onnx_node *n, int64_t i, int64_t size)
{
    return op_fail(r, n, "index %lld is out of range for a dimension of %lld", (long long)i,
                   (long long)size);
}

/* numpy.take along an axis: rows of x by index. The lookup of token embeddings is one. x may be
 * unaligned: only memcpy reads it. */
static int run_gather(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    const struct onnx_tensor *x = in[0], *ids = in[1];
    int64_t dims[2 * ONNX_DIMS], outer, at;
    size_t size = onnx_size(x->type), row;
    int axis, nd = x->n_dims - 1 + ids->n_dims, rc = op_check_type(r, n, ids, ONNX_I64);

    if (rc != OK || (rc = op_read_axis(r, n, onnx_int(n, "axis", 0), x->n_dims, &axis)) != OK)
        return rc;
    if (nd > ONNX_DIMS) return op_fail(r, n, "more than 8 dimensions");
    /* The shape of the output: x before the axis, ids, x behind it. */
    memcpy(dims, x->dims, (size_t)axis * sizeof *dims);
    memcpy(dims + axis, ids->dims, (size_t)ids->n_dims * sizeof *dims);
    memcpy(dims + axis + ids->n_dims, x->dims + axis + 1,
           (size_t)(x->n_dims - axis - 1) * sizeof *dims);
    for (size_t k = 0; k < ids->n; k++)
        if (normalize_index(op_i64(ids)[k], x->dims[axis]) < 0)
            return fail_index(r, n, op_i64(ids)[k], x->dims[axis]);
    if ((rc = op_new(r, out[0], x->type, nd, dims)) != OK || op_skips(r, out[0])) return rc;
    outer = op_count(x->dims, 0, axis);
    row = (size_t)op_count(x->dims, axis + 1, x->n_dims) * size;
    for (int64_t o = 0; row && o < outer; o++)
        for (size_t k = 0; k < ids->n; k++) {
            at = o * x->dims[axis] + normalize_index(op_i64(ids)[k], x->dims[axis]);
            memcpy((char *)out[0]->data + ((size_t)o * ids->n + k) * row,
                   (const char *)x->data + (size_t)at * row, row);
        }
    return OK;
}

/* The element of x that the i-th element of ids addresses: the same indexes as in ids, but on the
 * axis the value of ids. -1: out of range. */
static int64_t find_element(const struct onnx_tensor *x, const struct onnx_tensor *ids, int axis,
                            size_t i)
{
    int64_t at = 0, step = 1, rest = (int64_t)i;

    for (int d = x->n_dims - 1; d >= 0; d--) {
        int64_t p = rest % ids->dims[d];
        if (d == axis && (p = normalize_index(op_i64(ids)[i], x->dims[d])) < 0) return -1;
        at += p * step;
        step *= x->dims[d];
        rest /= ids->dims[d];
    }
    return at;
}

/* GatherElements and ScatterElements: indices may be smaller than the input except on the axis. */
static int check_elements(struct onnx_run *r, const struct onnx_node *n,
                          const struct onnx_tensor *x, const struct onnx_tensor *ids, int *axis)
{
    int rc = op_check_type(r, n, ids, ONNX_I64);

    if (rc != OK || (rc = op_read_axis(r, n, onnx_int(n, "axis", 0), x->n_dims, axis)) != OK)
        return rc;
    if (ids->n_dims != x->n_dims)
        return op_fail(r, n, "the indices have %d dimensions, the input has %d", ids->n_dims,
                       x->n_dims);
    for (int d = 0; d < x->n_dims; d++)
        if (d != *axis && ids->dims[d] > x->dims[d])
            return op_fail(r, n, "the indices are larger than the input in dimension %d", d);
    return OK;
}

/* out[i][j] = x[ids[i][j]][j] for axis 0. */
static int run_gather_elements(struct onnx_run *r, const struct onnx_node *n,
                               const struct onnx_tensor **in, struct onnx_tensor **out)
{
    size_t size = onnx_size(in[0]->type);
    int axis, rc = check_elements(r, n, in[0], in[1], &axis);

    if (rc != OK || (rc = op_new(r, out[0], in[0]->type, in[1]->n_dims, in[1]->dims)) != OK)
        return rc;
    for (size_t i = 0; i < in[1]->n; i++) {
        int64_t at = find_element(in[0], in[1], axis, i);
        if (at < 0) return fail_index(r, n, op_i64(in[1])[i], in[0]->dims[axis]);
        memcpy((char *)out[0]->data + i * size, (const char *)in[0]->data + (size_t)at * size,
               size);
    }
    return OK;
}

/* out becomes a copy of x. */
static int copy_tensor(struct onnx_run *r, const struct onnx_tensor *x, struct onnx_tensor *out)
{
    int rc = op_new(r, out, x->type, x->n_dims, x->dims);

    if (rc == OK && x->n) memcpy(out->data, x->data, x->n * onnx_size(x->type));
    return rc;
}

/* The inverse of GatherElements, into a copy of x. */
static int run_scatter_elements(struct onnx_run *r, const struct onnx_node *n,
                                const struct onnx_tensor **in, struct onnx_tensor **out)
{
    const struct onnx_attr *how = onnx_attr(n, "reduction");
    size_t size = onnx_size(in[0]->type);
    int axis, rc = check_elements(r, n, in[0], in[1], &axis);

    if (rc != OK || (rc = op_check_type(r, n, in[2], in[0]->type)) != OK) return rc;
    if (how && !str_is(how->s, "none")) return op_fail(r, n, "reduction is not supported");
    if (in[2]->n != in[1]->n)
        return op_fail(r, n, "%zu updates for %zu indices", in[2]->n, in[1]->n);
    if ((rc = copy_tensor(r, in[0], out[0])) != OK) return rc;
    for (size_t i = 0; i < in[1]->n; i++) {
        int64_t at = find_element(in[0], in[1], axis, i);
        if (at < 0) return fail_index(r, n, op_i64(in[1])[i], in[0]->dims[axis]);
        memcpy((char *)out[0]->data + (size_t)at * size, (const char *)in[2]->data + i * size,
               size);
    }
    return OK;
}

/* ---- GatherND, ScatterND: tuples of indexes ---- */

struct tuples {
    const struct onnx_tensor *x, *ids;
    int batch;         /* leading dimensions that x and ids share */
    int width;         /* indexes of a tuple */
    int64_t n;         /* tuples */
    int64_t per_batch; /* tuples of one batch */
    int64_t inner;     /* elements that a tuple addresses */
};

/* The last dimension of ids is a tuple of indexes into x, behind the batch dimensions. */
static int read_tuples(struct onnx_run *r, const struct onnx_node *n, struct tuples *t,
                       const struct onnx_tensor *x, const struct onnx_tensor *ids)
{
    int64_t batch = onnx_int(n, "batch_dims", 0);
    int rc = op_check_type(r, n, ids, ONNX_I64);

    if (rc != OK) return rc;
    if (ids->n_dims < 1 || batch < 0 || batch >= ids->n_dims || batch > x->n_dims ||
        ids->dims[ids->n_dims - 1] > x->n_dims - batch)
        return op_fail(r, n, "the indices do not fit an input of %d dimensions", x->n_dims);
    *t = (struct tuples){
        .x = x, .ids = ids, .batch = (int)batch, .width = (int)ids->dims[ids->n_dims - 1]
    };
    for (int d = 0; d < t->batch; d++)
        if (x->dims[d] != ids->dims[d])
            return op_fail(r, n, "the batch dimension %d of input and indices differs", d);
    t->n = op_count(ids->dims, 0, ids->n_dims - 1);
    t->per_batch = op_count(ids->dims, t->batch, ids->n_dims - 1);
    t->inner = op_count(x->dims, t->batch + t->width, x->n_dims);
    return OK;
}

/* The first element that tuple i addresses; -1: one of its indexes is out of range. */
static int64_t find_tuple(const struct tuples *t, int64_t i)
{
    const int64_t *id = op_i64(t->ids) + i * t->width;
    int64_t at = t->per_batch ? i / t->per_batch : 0;

    for (int k = 0; k < t->width; k++) {
        int64_t size = t->x->dims[t->batch + k], p = normalize_index(id[k], size);
        if (p < 0) return -1;
        at = at * size + p;
    }
    return at * t->inner;
}

/* The elements that each tuple addresses. */
static int run_gather_nd(struct onnx_run *r, const struct onnx_node *n,
                         const struct onnx_tensor **in, struct onnx_tensor **out)
{
    int64_t dims[2 * ONNX_DIMS];
    size_t size = onnx_size(in[0]->type);
    struct tuples t;
    int nd, rc = read_tuples(r, n, &t, in[0], in[1]);

    if (rc != OK) return rc;
    nd = in[1]->n_dims - 1;
    memcpy(dims, in[1]->dims, (size_t)nd * sizeof *dims);
    for (int d = t.batch + t.width; d < in[0]->n_dims; d++) dims[nd++] = in[0]->dims[d];
    if (nd > ONNX_DIMS) return op_fail(r, n, "more than 8 dimensions");
    if ((rc = op_new(r, out[0], in[0]->type, nd, dims)) != OK) return rc;
    for (int64_t i = 0; i < t.n; i++) {
        int64_t at = find_tuple(&t, i);
        if (at < 0) return op_fail(r, n, "an index is out of range");
        if (t.inner)
            memcpy((char *)out[0]->data + (size_t)(i * t.inner) * size,
                   (const char *)in[0]->data + (size_t)at * size, (size_t)t.inner * size);
    }
    return OK;
}

/* Writes updates to the elements that each tuple addresses, in a copy of x. Later updates win. */
static int run_scatter_nd(struct onnx_run *r, const struct onnx_node *n,
                          const struct onnx_tensor **in, struct onnx_tensor **out)
{
    const struct onnx_attr *how = onnx_attr(n, "reduction");
    size_t size = onnx_size(in[0]->type);
    struct tuples t;
    int rc = read_tuples(r, n, &t, in[0], in[1]);

    if (rc != OK || (rc = op_check_type(r, n, in[2], in[0]->type)) != OK) return rc;
    if (how && !str_is(how->s, "none")) return op_fail(r, n, "reduction is not supported");
    if ((int64_t)in[2]->n != t.n * t.inner)
        return op_fail(r, n, "%zu updates for %lld addressed elements", in[2]->n,
                       (long long)(t.n * t.inner));
    if ((rc = copy_tensor(r, in[0], out[0])) != OK) return rc;
    for (int64_t i = 0; i < t.n; i++) {
        int64_t at = find_tuple(&t, i);
        if (at < 0) return op_fail(r, n, "an index is out of range");
        if (t.inner)
            memcpy((char *)out[0]->data + (size_t)at * size,
                   (const char *)in[2]->data + (size_t)(i * t.inner) * size,
                   (size_t)t.inner * size);
    }
    return OK;
}

/* ---- creating tensors ---- */

/* A tensor shares its memory with the file; numbers become tensors of rank 0 or 1. */
static int run_constant(struct onnx_run *r, const struct onnx_node *n,
                        const struct onnx_tensor **in, struct onnx_tensor **out)
{
    const struct onnx_attr *a = n->n_attrs == 1 ? &n->attrs[0] : NULL;
    int64_t len = a ? a->n : 0;
    bool is_float, is_list;
    int rc;

    (void)in;
    if (!a) return op_fail(r, n, "it needs exactly one attribute");
    if (a->kind == ONNX_ATTR_TENSOR) return op_view(r, out[0], &a->t, a->t.n_dims, a->t.dims);
    is_float = a->kind == ONNX_ATTR_FLOAT || a->kind == ONNX_ATTR_FLOATS;
    is_list = a->kind == ONNX_ATTR_FLOATS || a->kind == ONNX_ATTR_INTS;
    if (!is_float && !is_list && a->kind != ONNX_ATTR_INT)
        return op_fail(r, n, "the value is not a tensor or a number");
    if ((a->kind == ONNX_ATTR_FLOATS && len && !a->floats) ||
        (a->kind == ONNX_ATTR_INTS && len && !a->ints))
        return op_fail(r, n, "the value does not match its type");
    rc = op_new(r, out[0], is_float ? ONNX_F32 : ONNX_I64, is_list, &len);
    if (rc != OK) return rc;
    if (a->kind == ONNX_ATTR_FLOAT) *(float *)out[0]->data = a->f;
    else if (a->kind == ONNX_ATTR_INT) *(int64_t *)out[0]->data = a->i;
    else if (len && is_float) memcpy(out[0]->data, a->floats, (size_t)len * sizeof *a->floats);
    else if (len) memcpy(out[0]->data, a->ints, (size_t)len * sizeof *a->ints);
    return OK;
}

/* A tensor of the given shape, filled with one value (default 0.0). */
static int run_constant_of_shape(struct onnx_run *r, const struct onnx_node *n,
                                 const struct onnx_tensor **in, struct onnx_tensor **out)
{
    const struct onnx_attr *a = onnx_attr(n, "value");
    int64_t dims[ONNX_DIMS];
    enum onnx_type type = a ? a->t.type : ONNX_F32;
    size_t size = onnx_size(type);
    int nd, rc = op_read_ints(r, n, in[0], NULL, dims, &nd);

    if (rc != OK) return rc;
    if (a && (a->kind != ONNX_ATTR_TENSOR || a->t.n != 1))
        return op_fail(r, n, "the value must be a tensor of one element");
    if ((rc = op_new(r, out[0], type, nd, dims)) != OK || op_skips(r, out[0])) return rc;
    for (size_t i = 0; i < out[0]->n; i++) {
        if (a) memcpy((char *)out[0]->data + i * size, a->t.data, size);
        else ((float *)out[0]->data)[i] = 0;
    }
    return OK;
}

/* start, limit, delta. The number of elements is computed in double, as the specification does. */
static int run_range(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    double v[3], count;
    int64_t len;
    int rc;

    for (int i = 0; i < 3; i++) {
        if (in[i]->n != 1 || in[i]->type != in[0]->type ||
            (in[i]->type != ONNX_F32 && in[i]->type != ONNX_I64))
            return op_fail(r, n, "start, limit and delta must be numbers of one type");
        v[i] = in[i]->type == ONNX_F32 ? (double)op_f32(in[i])[0] : (double)op_i64(in[i])[0];
    }
    /* Division by a zero step gives inf or NaN, which is refused below. */
    count = ceil((v[1] - v[0]) / v[2]);
    if (v[2] == 0 || !isfinite(count) || count > INT32_MAX)
        return op_fail(r, n, "no finite range from %g to %g by %g", v[0], v[1], v[2]);
    len = count > 0 ? (int64_t)count : 0;
    if ((rc = op_new(r, out[0], in[0]->type, 1, &len)) != OK) return rc;
    for (int64_t i = 0; i < len; i++) {
        if (in[0]->type == ONNX_F32) ((float *)out[0]->data)[i] = (float)(v[0] + (double)i * v[2]);
        else
            ((int64_t *)out[0]->data)[i] =
                (int64_t)((uint64_t)op_i64(in[0])[0] + (uint64_t)i * (uint64_t)op_i64(in[2])[0]);
    }
    return OK;
}

/* The upper or lower triangle of matrices; the rest becomes 0. */
static int run_trilu(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    bool upper = onnx_int(n, "upper", 1) != 0;
    int nd = in[0]->n_dims, rc;
    int64_t k = 0, rows, cols;
    size_t size = onnx_size(in[0]->type);

    if (nd < 2) return op_fail(r, n, "the input has %d dimensions, but must be a matrix", nd);
    if (in[1] && ((rc = op_check_type(r, n, in[1], ONNX_I64)) != OK || in[1]->n != 1))
        return op_fail(r, n, "k must be one integer");
    if (in[1]) k = op_i64(in[1])[0];
    /* Diagonals that far outside are all alike. */
    if (k > INT32_MAX || k < -INT32_MAX) k = k < 0 ? -INT32_MAX : INT32_MAX;
    rows = in[0]->dims[nd - 2];
    cols = in[0]->dims[nd - 1];
    if ((rc = copy_tensor(r, in[0], out[0])) != OK) return rc;
    for (size_t i = 0; i < out[0]->n; i++) {
        int64_t col = (int64_t)i % cols, row = (int64_t)i / cols % rows;
        if (upper ? col - row < k : col - row > k) memset((char *)out[0]->data + i * size, 0, size);
    }
    return OK;
}

static bool is_zero(const struct onnx_tensor *t, size_t i)
{
    switch (t->type) {
    case ONNX_F32: return op_f32(t)[i] == 0; /* also -0.0 */
    case ONNX_I64: return op_i64(t)[i] == 0;
    default: return op_u8(t)[i] == 0;
    }
}

/* The indexes of elements that are not zero, as a matrix [dimensions][elements]. */
static int run_non_zero(struct onnx_run *r, const struct onnx_node *n,
                        const struct onnx_tensor **in, struct onnx_tensor **out)
{
    size_t count = 0, at = 0;
    int64_t dims[2];
    int rc;

    (void)n;
    for (size_t i = 0; i < in[0]->n; i++) count += !is_zero(in[0], i);
    dims[0] = in[0]->n_dims;
    dims[1] = (int64_t)count;
    if ((rc = op_new(r, out[0], ONNX_I64, 2, dims)) != OK) return rc;
    for (size_t i = 0; i < in[0]->n; i++) {
        int64_t rest = (int64_t)i;
        if (is_zero(in[0], i)) continue;
        for (int d = in[0]->n_dims - 1; d >= 0; d--) {
            ((int64_t *)out[0]->data)[(size_t)d * count + at] = rest % in[0]->dims[d];
            rest /= in[0]->dims[d];
        }
        at++;
    }
    return OK;
}

/* Name, opset since, inputs from and to, outputs, attributes, function. */
const struct onnx_op ops_gather[] = {
    { "Gather", 1, 2, 2, 1, "axis", run_gather },
    { "GatherElements", 11, 2, 2, 1, "axis", run_gather_elements },
    { "GatherND", 11, 2, 2, 1, "batch_dims", run_gather_nd },
    { "ScatterElements", 11, 3, 3, 1, "axis reduction", run_scatter_elements },
    { "ScatterND", 11, 3, 3, 1, "reduction", run_scatter_nd },
    { "Constant", 1, 0, 0, 1, "value value_int value_ints value_float value_floats", run_constant },
    { "ConstantOfShape", 9, 1, 1, 1, "value", run_constant_of_shape },
    { "Range", 11, 3, 3, 1, "", run_range },
    { "Trilu", 14, 1, 2, 1, "upper", run_trilu },
    { "NonZero", 9, 1, 1, 1, "", run_non_zero },
    { 0 },
};
