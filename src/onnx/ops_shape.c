/* ops_shape.c - operators that change the shape, order or type of elements, not their values.
 *
 * Operators that only change the shape share the memory of their input (op_view). Transpose, Slice,
 * Expand and Split are one strided copy.
 *
 *     operator    steps of the copy, for an input with the steps {s0, s1}
 *     Transpose   the same steps in another order: {s1, s0}
 *     Slice       multiplied by the step of the slice, perhaps negative; first: where it starts
 *     Expand      0 for dimensions that repeat
 *     Split       the same; first: where the part begins */
#include "onnx/op.h"

#include <math.h>

static int run_identity(struct onnx_run *r, const struct onnx_node *n,
                        const struct onnx_tensor **in, struct onnx_tensor **out)
{
    (void)n;
    return op_view(r, out[0], in[0], in[0]->n_dims, in[0]->dims);
}

/* The identity: only training drops elements. */
static int run_dropout(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                       struct onnx_tensor **out)
{
    int rc;

    if (in[2] && (in[2]->type != ONNX_BOOL || in[2]->n != 1 || op_u8(in[2])[0]))
        return op_fail(r, n, "training mode is not supported");
    if (n->n_out > 1) {
        if ((rc = op_new(r, out[1], ONNX_BOOL, in[0]->n_dims, in[0]->dims)) != OK) return rc;
        if (out[1]->n) memset(out[1]->data, 1, out[1]->n);
    }
    return op_view(r, out[0], in[0], in[0]->n_dims, in[0]->dims);
}

/* ---- shape ---- */

/* 0 keeps a dimension (unless allowzero), -1 is inferred. */
static int run_reshape(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                       struct onnx_tensor **out)
{
    int64_t to[ONNX_DIMS], known = 1;
    int n_to, open = -1, rc = op_read_ints(r, n, in[1], in[1] ? NULL : "shape", to, &n_to);
    bool zeros = onnx_int(n, "allowzero", 0) != 0;

    if (rc != OK) return rc;
    if (n_to < 0) return op_fail(r, n, "no shape is given");
    for (int d = 0; d < n_to; d++) {
        /* 0 copies the dimension of the input. */
        if (to[d] == 0 && !zeros) {
            if (d >= in[0]->n_dims)
                return op_fail(
                    r, n, "dimension %d of the new shape is 0, but the input has no such dimension",
                    d);
            to[d] = in[0]->dims[d];
        }
        if (to[d] < -1 || to[d] > INT32_MAX || (to[d] == -1 && open >= 0))
            return op_fail(r, n, "dimension %d of the new shape is %lld", d, (long long)to[d]);
        if (to[d] == -1) open = d;
        else if (known > INT64_MAX / (INT32_MAX + INT64_C(1)))
            return op_fail(r, n, "the new shape has too many elements");
        else known *= to[d];
    }
    /* The -1 dimension gets what is left. */
    if (open >= 0) to[open] = known ? (int64_t)in[0]->n / known : 0;
    if ((open >= 0 ? known * to[open] : known) != (int64_t)in[0]->n)
        return op_fail(r, n, "%zu elements do not fit the new shape", in[0]->n);
    return op_view(r, out[0], in[0], n_to, to);
}

/* A matrix: dimensions before the axis, and from it on. */
static int run_flatten(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                       struct onnx_tensor **out)
{
    int64_t axis = onnx_int(n, "axis", 1), to[2];

    if (axis < -in[0]->n_dims || axis > in[0]->n_dims)
        return op_fail(r, n, "axis %lld is out of range for %d dimensions", (long long)axis,
                       in[0]->n_dims);
    if (axis < 0) axis += in[0]->n_dims;
    to[0] = op_count(in[0]->dims, 0, (int)axis);
    to[1] = op_count(in[0]->dims, (int)axis, in[0]->n_dims);
    return op_view(r, out[0], in[0], 2, to);
}

/* Removes dimensions of size 1: the given ones, or all. */
static int run_squeeze(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                       struct onnx_tensor **out)
{
    int64_t axes[ONNX_DIMS], to[ONNX_DIMS];
    bool gone[ONNX_DIMS] = { false };
    int n_axes, at, n_to = 0, rc = op_read_ints(r, n, in[1], "axes", axes, &n_axes);

    if (rc != OK) return rc;
    for (int i = 0; i < n_axes; i++) {
        if ((rc = op_read_axis(r, n, axes[i], in[0]->n_dims, &at)) != OK) return rc;
        if (in[0]->dims[at] != 1)
            return op_fail(r, n, "dimension %d is %lld and cannot be removed", at,
                           (long long)in[0]->dims[at]);
        gone[at] = true;
    }
    for (int d = 0; d < in[0]->n_dims; d++)
        if (n_axes < 0 ? in[0]->dims[d] != 1 : !gone[d]) to[n_to++] = in[0]->dims[d];
    return op_view(r, out[0], in[0], n_to, to);
}

/* Axes refer to the dimensions of the output. */
static int run_unsqueeze(struct onnx_run *r, const struct onnx_node *n,
                         const struct onnx_tensor **in, struct onnx_tensor **out)
{
    int64_t axes[ONNX_DIMS], to[ONNX_DIMS];
    bool is_new[ONNX_DIMS] = { false };
    int n_axes, at, n_to, from = 0, rc = op_read_ints(r, n, in[1], "axes", axes, &n_axes);

    if (rc != OK) return rc;
    if (n_axes < 0) return op_fail(r, n, "no axes are given");
    if ((n_to = in[0]->n_dims + n_axes) > ONNX_DIMS) return op_fail(r, n, "more than 8 dimensions");
    for (int i = 0; i < n_axes; i++) {
        if ((rc = op_read_axis(r, n, axes[i], n_to, &at)) != OK) return rc;
        if (is_new[at]) return op_fail(r, n, "axis %d is given twice", at);
        is_new[at] = true;
    }
    for (int d = 0; d < n_to; d++) to[d] = is_new[d] ? 1 : in[0]->dims[from++];
    return op_view(r, out[0], in[0], n_to, to);
}

static int64_t clamp_int(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* The dimensions as integers, from start to end. */
static int run_shape(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    int64_t nd = in[0]->n_dims, from = onnx_int(n, "start", 0), to = onnx_int(n, "end", nd), count;
    int rc;

    from = clamp_int(from < 0 ? from + nd : from, 0, nd);
    to = clamp_int(to < 0 ? to + nd : to, 0, nd);
    count = to > from ? to - from : 0;
    if ((rc = op_new(r, out[0], ONNX_I64, 1, &count)) != OK) return rc;
    for (int64_t i = 0; i < count; i++) ((int64_t *)out[0]->data)[i] = in[0]->dims[from + i];
    return OK;
}

static int run_size(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                    struct onnx_tensor **out)
{
    int rc = op_new(r, out[0], ONNX_I64, 0, NULL);

    (void)n;
    if (rc == OK) *(int64_t *)out[0]->data = (int64_t)in[0]->n;
    return rc;
}

/* ---- strided copies ---- */

/* A copy with steps; the last dimension is the inner loop. */
struct stride_job {
    size_t size; /* bytes of an element */
    int n_dims;
    int64_t dims[ONNX_DIMS]; /* of the output */
    int64_t step[ONNX_DIMS]; /* elements of the input from one index to the next; may be negative */
    const char *in;
    char *out;
};

/* n elements with a step; contiguous ones in one memcpy. */
static void copy_row(char *out, const char *in, int64_t n, int64_t step, size_t size)
{
    if (step == 1) {
        memcpy(out, in, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++, out += size, in += step * (int64_t)size) switch (size) {
        case 1: *out = *in; break;
        case 4: memcpy(out, in, 4); break;
        default: memcpy(out, in, 8);
        }
}

static void copy_rows(const void *arg, int begin, int end)
{
    const struct stride_job *j = arg;
    int64_t inner = j->dims[j->n_dims - 1];

    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row, at = 0;
        for (int d = j->n_dims - 2; d >= 0; d--) {
            at += rest % j->dims[d] * j->step[d];
            rest /= j->dims[d];
        }
        copy_row(j->out + (size_t)(row * inner) * j->size, j->in + at * (int64_t)j->size, inner,
                 j->step[j->n_dims - 1], j->size);
    }
}

/* Fills out, which is allocated, from x: element `first`, then a step for each dimension of out.
 * Neighbouring dimensions with matching steps are merged. */
static int copy_strided(struct onnx_run *r, struct onnx_tensor *out, const struct onnx_tensor *x,
                        const int64_t *step, int64_t first)
{
    struct stride_job j = { .size = onnx_size(x->type), .out = out->data };

    if (op_skips(r, out) || out->n == 0) return OK;
    j.in = (const char *)x->data + first * (int64_t)j.size;
    for (int d = 0; d < out->n_dims; d++) {
        if (out->dims[d] == 1) continue;
        /* A pass over this dimension is one step of the last: both are one. */
        if (j.n_dims && j.step[j.n_dims - 1] == step[d] * out->dims[d]) {
            j.dims[j.n_dims - 1] *= out->dims[d];
            j.step[j.n_dims - 1] = step[d];
            continue;
        }
        j.dims[j.n_dims] = out->dims[d];
        j.step[j.n_dims++] = step[d];
    }
    if (!j.n_dims) j.dims[j.n_dims] = 1, j.step[j.n_dims++] = 1;
    op_share_rows(r, op_count(j.dims, 0, j.n_dims - 1), (int64_t)out->n, copy_rows, &j);
    return OK;
}

/* The steps of a contiguous tensor. */
static void fill_steps(const struct onnx_tensor *t, int64_t *step)
{
    int64_t s = 1;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        step[d] = s;
        s *= t->dims[d];
    }
}

/* Without perm the dimensions are reversed. */
static int run_transpose(struct onnx_run *r, const struct onnx_node *n,
                         const struct onnx_tensor **in, struct onnx_tensor **out)
{
    int64_t perm[ONNX_DIMS], dims[ONNX_DIMS], from[ONNX_DIMS], step[ONNX_DIMS];
    unsigned seen = 0;
    int n_perm, nd = in[0]->n_dims, rc = op_read_ints(r, n, NULL, "perm", perm, &n_perm);

    if (rc != OK) return rc;
    if (n_perm >= 0 && n_perm != nd)
        return op_fail(r, n, "perm has %d entries for %d dimensions", n_perm, nd);
    fill_steps(in[0], from);
    for (int d = 0; d < nd; d++) {
        int64_t p = n_perm < 0 ? nd - 1 - d : perm[d];
        if (p < 0 || p >= nd || seen & 1u << p)
            return op_fail(r, n, "perm is not a permutation of the dimensions");
        seen |= 1u << p;
        dims[d] = in[0]->dims[p];
        step[d] = from[p];
    }
    if ((rc = op_new(r, out[0], in[0]->type, nd, dims)) != OK) return rc;
    return copy_strided(r, out[0], in[0], step, 0);
}

/* The first index and the number of indexes of start:end:step on a dimension, as in Python: bounds
 * out of range are clamped. */
static int slice_axis(struct onnx_run *r, const struct onnx_node *n, int64_t size, int64_t *start,
                      int64_t end, int64_t step, int64_t *count)
{
    if (step == 0 || step < -INT32_MAX || step > INT32_MAX) {
        if (step == 0) return op_fail(r, n, "a step is 0");
        step = step < 0 ? -INT32_MAX : INT32_MAX;
    }
    if (*start < 0) *start = *start < -size ? -1 : *start + size;
    else if (*start > size) *start = size;
    if (end < 0) end = end < -size ? -1 : end + size;
    else if (end > size) end = size;
    if (step > 0) {
        *start = clamp_int(*start, 0, size);
        end = clamp_int(end, 0, size);
        *count = end > *start ? (end - *start + step - 1) / step : 0;
    } else {
        *start = clamp_int(*start, 0, size - 1);
        end = clamp_int(end, -1, size - 1);
        *count = size > 0 && *start > end ? (*start - end + -step - 1) / -step : 0;
    }
    return OK;
}

/* starts, ends, axes and steps are attributes before opset 10, then inputs. */
static int run_slice(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    int64_t start[ONNX_DIMS], end[ONNX_DIMS], axes[ONNX_DIMS], by[ONNX_DIMS], dims[ONNX_DIMS],
        step[ONNX_DIMS], first = 0;
    int n_start, n_end, n_axes, n_by, rc;
    unsigned seen = 0;

    if ((rc = op_read_ints(r, n, in[1], "starts", start, &n_start)) != OK ||
        (rc = op_read_ints(r, n, in[2], "ends", end, &n_end)) != OK ||
        (rc = op_read_ints(r, n, in[3], "axes", axes, &n_axes)) != OK ||
        (rc = op_read_ints(r, n, in[4], NULL, by, &n_by)) != OK)
        return rc;
    if (n_start < 0 || n_start != n_end || (n_axes >= 0 && n_axes != n_start) ||
        (n_by >= 0 && n_by != n_start) || n_start > in[0]->n_dims)
        return op_fail(r, n, "%d starts, %d ends, %d axes and %d steps do not match", n_start,
                       n_end, n_axes, n_by);
    memcpy(dims, in[0]->dims, sizeof dims);
    fill_steps(in[0], step);
    for (int i = 0; i < n_start; i++) {
        int d;
        if ((rc = op_read_axis(r, n, n_axes < 0 ? i : axes[i], in[0]->n_dims, &d)) != OK) return rc;
        /* Bit d: dimension d has been sliced. */
        if (seen & 1u << d) return op_fail(r, n, "axis %d is given twice", d);
        seen |= 1u << d;
        if ((rc = slice_axis(r, n, in[0]->dims[d], &start[i], end[i], n_by < 0 ? 1 : by[i],
                             &dims[d])) != OK)
            return rc;
        first += dims[d] ? start[i] * step[d] : 0;
        if (dims[d] > 1) step[d] *= n_by < 0 ? 1 : by[i];
    }
    if ((rc = op_new(r, out[0], in[0]->type, in[0]->n_dims, dims)) != OK) return rc;
    return copy_strided(r, out[0], in[0], step, first);
}

/* Broadcasts the input to a shape: steps of 0 repeat. */
static int run_expand(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    int64_t to[ONNX_DIMS], step[ONNX_DIMS];
    struct onnx_tensor like = { .type = in[0]->type };
    const struct onnx_tensor *both[2] = { in[0], &like };
    struct op_walk w;
    int n_to, rc = op_read_ints(r, n, in[1], NULL, to, &n_to);

    if (rc != OK) return rc;
    like.n_dims = n_to;
    for (int d = 0; d < n_to; d++) {
        if (to[d] < 0 || to[d] > INT32_MAX)
            return op_fail(r, n, "dimension %d of the shape is %lld", d, (long long)to[d]);
        like.dims[d] = to[d];
    }
    if ((rc = op_walk(r, n, &w, both, 2)) != OK) return rc;
    memcpy(step, w.step[0], sizeof step);
    if ((rc = op_new(r, out[0], in[0]->type, w.n_dims, w.dims)) != OK) return rc;
    return copy_strided(r, out[0], in[0], step, 0);
}

/* Repeats the input along each dimension. */
static int run_tile(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                    struct onnx_tensor **out)
{
    int64_t times[ONNX_DIMS], dims[ONNX_DIMS], from[ONNX_DIMS];
    int n_times, nd = in[0]->n_dims, rc = op_read_ints(r, n, in[1], NULL, times, &n_times);
    size_t size = onnx_size(in[0]->type);

    if (rc != OK) return rc;
    if (n_times != nd) return op_fail(r, n, "%d repeats for %d dimensions", n_times, nd);
    for (int d = 0; d < nd; d++) {
        if (times[d] < 0 || times[d] > INT32_MAX || in[0]->dims[d] * times[d] > INT32_MAX)
            return op_fail(r, n, "%lld repeats of dimension %d are out of range",
                           (long long)times[d], d);
        dims[d] = in[0]->dims[d] * times[d];
    }
    if ((rc = op_new(r, out[0], in[0]->type, nd, dims)) != OK || op_skips(r, out[0])) return rc;
    fill_steps(in[0], from);
    for (size_t i = 0; i < out[0]->n; i++) {
        int64_t rest = (int64_t)i, at = 0;
        for (int d = nd - 1; d >= 0; d--) {
            at += rest % dims[d] % in[0]->dims[d] * from[d];
            rest /= dims[d];
        }
        memcpy((char *)out[0]->data + i * size, (const char *)in[0]->data + (size_t)at * size,
               size);
    }
    return OK;
}

/* ---- Concat, Split ---- */

/* Copies, for each index before the axis, the part of every input. */
static int run_concat(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    int64_t dims[ONNX_DIMS], outer, inner, at = 0;
    size_t size = onnx_size(in[0]->type);
    int axis, nd = in[0]->n_dims, rc = op_read_axis(r, n, onnx_int(n, "axis", 0), nd, &axis);

    if (rc != OK) return rc;
    memcpy(dims, in[0]->dims, sizeof dims);
    dims[axis] = 0;
    for (int i = 0; i < n->n_in; i++) {
        if (!in[i] || in[i]->type != in[0]->type || in[i]->n_dims != nd)
            return op_fail(r, n, "input %d differs from input 0 in type or number of dimensions",
                           i);
        for (int d = 0; d < nd; d++)
            if (d != axis && in[i]->dims[d] != dims[d])
                return op_fail(r, n, "input %d differs from input 0 in dimension %d", i, d);
        dims[axis] += in[i]->dims[axis];
    }
    if ((rc = op_new(r, out[0], in[0]->type, nd, dims)) != OK || op_skips(r, out[0])) return rc;
    outer = op_count(dims, 0, axis);
    inner = op_count(dims, axis + 1, nd);
    for (int i = 0; i < n->n_in; i++) {
        size_t part = (size_t)(in[i]->dims[axis] * inner) * size,
               row = (size_t)(dims[axis] * inner) * size;
        for (int64_t o = 0; part && o < outer; o++)
            memcpy((char *)out[0]->data + (size_t)o * row + (size_t)at,
                   (const char *)in[i]->data + (size_t)o * part, part);
        /* Bytes from the beginning of a row of the output. */
        at += (int64_t)part;
    }
    return OK;
}

/* The sizes of the parts: given, or equal ones where the last may be smaller. */
static int read_split_sizes(struct onnx_run *r, const struct onnx_node *n,
                            const struct onnx_tensor *given, int64_t size, int64_t *out)
{
    const struct onnx_attr *a = onnx_attr(n, "split");
    const int64_t *from = a ? a->ints : NULL;
    int64_t count = a ? a->n : -1, sum = 0, parts = n->n_out, each;
    int rc;

    if (given) {
        if ((rc = op_check_type(r, n, given, ONNX_I64)) != OK) return rc;
        from = given->data;
        count = (int64_t)given->n;
    }
    if (count < 0) {
        if (onnx_int(n, "num_outputs", parts) != parts || parts == 0)
            return op_fail(r, n, "num_outputs differs from the number of outputs");
        /* Equal parts, the last one smaller. */
        each = (size + parts - 1) / parts;
        for (int64_t i = 0; i < parts; i++) sum += out[i] = clamp_int(size - i * each, 0, each);
        return OK;
    }
    if (count && !from) return op_fail(r, n, "the attribute split must be a list of integers");
    if (count != parts)
        return op_fail(r, n, "%lld parts for %lld outputs", (long long)count, (long long)parts);
    for (int64_t i = 0; i < parts; i++) {
        if (from[i] < 0 || from[i] > size)
            return op_fail(r, n, "a part of size %lld is out of range", (long long)from[i]);
        sum += out[i] = from[i];
    }
    return sum == size ? OK
                       : op_fail(r, n, "the parts add up to %lld, but the dimension is %lld",
                                 (long long)sum, (long long)size);
}

/* Each part is a strided copy. */
static int run_split(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    enum { MAX_PARTS = 64 };
    int64_t sizes[MAX_PARTS], dims[ONNX_DIMS], step[ONNX_DIMS], first = 0;
    int axis, rc = op_read_axis(r, n, onnx_int(n, "axis", 0), in[0]->n_dims, &axis);

    if (rc != OK) return rc;
    if (n->n_out > MAX_PARTS) return op_fail(r, n, "more than %d parts", MAX_PARTS);
    if ((rc = read_split_sizes(r, n, in[1], in[0]->dims[axis], sizes)) != OK) return rc;
    memcpy(dims, in[0]->dims, sizeof dims);
    fill_steps(in[0], step);
    for (int i = 0; i < n->n_out && rc == OK; i++) {
        dims[axis] = sizes[i];
        if ((rc = op_new(r, out[i], in[0]->type, in[0]->n_dims, dims)) == OK)
            rc = copy_strided(r, out[i], in[0], step, first);
        first += sizes[i] * step[axis];
    }
    return rc;
}

/* ---- types ---- */

/* Truncation that is defined for every float: saturated, and NaN is 0. */
static int64_t truncate_float(float v)
{
    return isnan(v) ? 0 : v >= 0x1p63f ? INT64_MAX : v <= -0x1p63f ? INT64_MIN : (int64_t)v;
}

static double element_at(const struct onnx_tensor *t, size_t i)
{
    switch (t->type) {
    case ONNX_F32: return (double)op_f32(t)[i];
    case ONNX_I64: return (double)op_i64(t)[i];
    case ONNX_I8: return ((const int8_t *)t->data)[i];
    case ONNX_BOOL: return op_u8(t)[i] != 0;
    default: return op_u8(t)[i];
    }
}

/* Integers pass through int64, so large ones keep all bits; narrowing wraps around. */
static void cast_element(const struct onnx_tensor *x, struct onnx_tensor *out, size_t i)
{
    int64_t v = x->type == ONNX_I64   ? op_i64(x)[i]
                : x->type == ONNX_F32 ? truncate_float(op_f32(x)[i])
                                      : (int64_t)element_at(x, i);

    switch (out->type) {
    case ONNX_F32: ((float *)out->data)[i] = (float)element_at(x, i); break;
    case ONNX_I64: ((int64_t *)out->data)[i] = v; break;
    case ONNX_BOOL:
        ((uint8_t *)out->data)[i] = x->type == ONNX_F32 ? op_f32(x)[i] != 0 : v != 0;
        break;
    default: ((uint8_t *)out->data)[i] = (uint8_t)v;
    }
}

/* A cast to the same type shares the memory. */
static int cast_tensor(struct onnx_run *r, const struct onnx_tensor *x, enum onnx_type type,
                       struct onnx_tensor *out)
{
    int rc;

    if (type == x->type) return op_view(r, out, x, x->n_dims, x->dims);
    if ((rc = op_new(r, out, type, x->n_dims, x->dims)) != OK || op_skips(r, out)) return rc;
    for (size_t i = 0; i < x->n; i++) cast_element(x, out, i);
    return OK;
}

static int run_cast(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                    struct onnx_tensor **out)
{
    enum onnx_type type = onnx_type_of(onnx_int(n, "to", 0));

    if (type == ONNX_NONE)
        return op_fail(r, n, "a cast to data type %lld is not supported",
                       (long long)onnx_int(n, "to", 0));
    return cast_tensor(r, in[0], type, out[0]);
}

/* The type is that of the second input. */
static int run_cast_like(struct onnx_run *r, const struct onnx_node *n,
                         const struct onnx_tensor **in, struct onnx_tensor **out)
{
    (void)n;
    return cast_tensor(r, in[0], in[1]->type, out[0]);
}

/* Name, opset since, inputs from and to, outputs, attributes, function. */
const struct onnx_op ops_shape[] = {
    { "Identity", 1, 1, 1, 1, "", run_identity },
    { "Dropout", 7, 1, 1, 2, "ratio", run_dropout },
    { "Dropout", 12, 1, 3, 2, "seed", run_dropout },
    { "Reshape", 5, 2, 2, 1, "allowzero", run_reshape },
    { "Flatten", 1, 1, 1, 1, "axis", run_flatten },
    { "Squeeze", 1, 1, 1, 1, "axes", run_squeeze },
    { "Squeeze", 13, 1, 2, 1, "", run_squeeze },
    { "Unsqueeze", 1, 1, 1, 1, "axes", run_unsqueeze },
    { "Unsqueeze", 13, 2, 2, 1, "", run_unsqueeze },
    { "Shape", 1, 1, 1, 1, "start end", run_shape },
    { "Size", 1, 1, 1, 1, "", run_size },
    { "Transpose", 1, 1, 1, 1, "perm", run_transpose },
    { "Slice", 1, 1, 1, 1, "starts ends axes", run_slice },
    { "Slice", 10, 3, 5, 1, "", run_slice },
    { "Expand", 8, 2, 2, 1, "", run_expand },
    { "Tile", 6, 2, 2, 1, "", run_tile },
    { "Concat", 4, 1, -1, 1, "axis", run_concat },
    { "Split", 2, 1, 1, 4096, "axis split", run_split },
    { "Split", 13, 1, 2, 4096, "axis num_outputs", run_split },
    { "Cast", 6, 1, 1, 1, "to saturate", run_cast },
    { "CastLike", 15, 2, 2, 1, "saturate", run_cast_like },
    { "If", 1, 1, 1, 16, "then_branch else_branch", op_if },
    { 0 },
};
