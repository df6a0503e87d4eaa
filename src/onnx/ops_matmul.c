/* ops_matmul.c - MatMul, MatMulInteger, QLinearMatMul, Gemm, Einsum.
 *
 * All but Einsum end in op_gemm. Products of 8-bit integers are exact (onnx_gemm.c). Einsum
 * supports one or two inputs with letters only; it sums in double, without blocking: exports use it
 * for small shapes.
 *
 *     MatMul         a[..][m][k] b[..][k][n] -> [..][m][n], batch dimensions broadcast
 *     Gemm           alpha A B + beta C, A and B transposed on request, C broadcast to [m][n]
 *     MatMulInteger  exact sums as I64, or as F32 where only a cast to float reads them
 *     QLinearMatMul  the same, rescaled to 8 bits */
#include "onnx/op.h"

#include <math.h>

/* ---- MatMul ---- */

enum { MAX_BATCH = 1 << 16 };

struct matmul_shape { /* of a[batch][m][k] b[batch][k][n] */
    int64_t m, k, n, batch;
    int n_dims;
    int64_t dims[ONNX_DIMS]; /* of the result */
    struct op_walk outer;    /* the batch dimensions, broadcast */
};

/* numpy.matmul: a vector is a row on the left, a column on the right; batch dimensions are
 * broadcast. */
static int find_shape(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *a,
                      const struct onnx_tensor *b, struct matmul_shape *s)
{
    struct onnx_tensor x = *a, y = *b;
    const struct onnx_tensor *both[2] = { &x, &y };
    int rc;

    if (a->n_dims < 1 || b->n_dims < 1) return op_fail(r, n, "an input is a scalar, not a matrix");
    s->m = a->n_dims > 1 ? a->dims[a->n_dims - 2] : 1;
    s->k = a->dims[a->n_dims - 1];
    s->n = b->n_dims > 1 ? b->dims[b->n_dims - 1] : 1;
    if ((b->n_dims > 1 ? b->dims[b->n_dims - 2] : b->dims[0]) != s->k)
        return op_fail(r, n, "the inner dimensions %lld and %lld differ", (long long)s->k,
                       (long long)(b->n_dims > 1 ? b->dims[b->n_dims - 2] : b->dims[0]));
    x.n_dims = a->n_dims > 2 ? a->n_dims - 2 : 0;
    y.n_dims = b->n_dims > 2 ? b->n_dims - 2 : 0;
    if ((rc = op_walk(r, n, &s->outer, both, 2)) != OK) return rc;
    s->batch = op_count(s->outer.dims, 0, s->outer.n_dims);
    s->n_dims = s->outer.n_dims;
    /* Before dims is written. */
    if (s->n_dims + 2 > ONNX_DIMS) return op_fail(r, n, "more than 8 dimensions");
    memcpy(s->dims, s->outer.dims, sizeof s->dims);
    if (a->n_dims > 1) s->dims[s->n_dims++] = s->m;
    if (b->n_dims > 1) s->dims[s->n_dims++] = s->n;
    return OK;
}

/* The first element of a and b in each batch: t is [2][batch], in the heap. */
static int find_batches(struct onnx_run *r, const struct onnx_node *n, const struct matmul_shape *s,
                        struct onnx_tensor *t)
{
    int64_t len = 2 * s->batch, *at;
    int rc;

    if (s->batch > MAX_BATCH)
        return op_fail(r, n, "a batch of %lld products is larger than %d", (long long)s->batch,
                       MAX_BATCH);
    if ((rc = op_new(r, t, ONNX_I64, 1, &len)) != OK) return rc;
    at = t->data;
    for (int64_t i = 0; i < s->batch; i++) {
        int64_t rest = i, a = 0, b = 0;
        for (int d = s->outer.n_dims - 1; d >= 0; d--) {
            int64_t p = rest % s->outer.dims[d];
            rest /= s->outer.dims[d];
            a += p * s->outer.step[0][d];
            b += p * s->outer.step[1][d];
        }
        at[i] = a * s->m * s->k;
        at[s->batch + i] = b * s->k * s->n;
    }
    return OK;
}

/* With one matrix b for all batches, the batches of a are more rows of one product. */
static void flatten_batch(struct matmul_shape *s, const struct onnx_tensor *b)
{
    if (b->n_dims > 2) return;
    s->m *= s->batch;
    s->batch = 1;
}

/* c = a b in floats. A constant b was packed when the run opened. */
static int run_matmul(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    struct onnx_tensor at = { .block = -1 };
    struct matmul_shape s;
    int rc;

    if ((rc = op_check_type(r, n, in[0], ONNX_F32)) != OK ||
        (rc = op_check_type(r, n, in[1], ONNX_F32)) != OK)
        return rc;
    if ((rc = find_shape(r, n, in[0], in[1], &s)) != OK ||
        (rc = op_new(r, out[0], ONNX_F32, s.n_dims, s.dims)) != OK)
        return rc;
    flatten_batch(&s, in[1]);
    if (s.batch > 1 && (rc = find_batches(r, n, &s, &at)) != OK) return rc;
    if (!op_skips(r, out[0]))
        op_gemm(r, &(struct op_gemm){ .m = s.m,
                                      .n = s.n,
                                      .k = s.k,
                                      .a = in[0]->data,
                                      .lda = s.k,
                                      .b = in[1]->data,
                                      .bk = s.n,
                                      .bn = 1,
                                      .packed = n->packed,
                                      .c = out[0]->data,
                                      .batch = s.batch,
                                      .a_at = s.batch > 1 ? op_i64(&at) : NULL,
                                      .b_at = s.batch > 1 ? op_i64(&at) + s.batch : NULL });
    heap_unref(&r->heap, at.block);
    return OK;
}

/* ---- 8-bit integers ---- */

/* x less its zero point, as floats. */
static int subtract_zero(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *x,
                         const struct onnx_tensor *zero, struct onnx_tensor *out)
{
    bool is_signed = x->type == ONNX_I8;
    float z = 0;
    int rc;

    if (zero && (zero->type != x->type || zero->n != 1))
        return op_fail(r, n, "a must have one zero point of its type");
    if (zero) z = is_signed ? *(const int8_t *)zero->data : op_u8(zero)[0];
    if ((rc = op_new(r, out, ONNX_F32, x->n_dims, x->dims)) != OK || op_skips(r, out)) return rc;
    for (size_t i = 0; i < x->n; i++)
        ((float *)out->data)[i] =
            (is_signed ? (float)((const int8_t *)x->data)[i] : (float)op_u8(x)[i]) - z;
    return OK;
}

static bool is_8bit(const struct onnx_tensor *t)
{
    return t->type == ONNX_U8 || t->type == ONNX_I8;
}

/* (a - a_zero) (b - b_zero) of 8-bit integers. a is converted to floats as a whole, b panel by
 * panel. */
static int run_matmul_integer(struct onnx_run *r, const struct onnx_node *n,
                              const struct onnx_tensor **in, struct onnx_tensor **out)
{
    struct onnx_tensor at = { .block = -1 }, a = { .block = -1 }, zero = { .block = -1 };
    struct matmul_shape s;
    int rc;

    if (!is_8bit(in[0]) || !is_8bit(in[1]))
        return op_fail(r, n, "the inputs must be uint8 or int8");
    if ((rc = find_shape(r, n, in[0], in[1], &s)) != OK) return rc;
    if (in[3] && (in[3]->type != in[1]->type || (in[3]->n != 1 && (int64_t)in[3]->n != s.n)))
        return op_fail(r, n, "%zu zero points do not fit %lld columns", in[3]->n, (long long)s.n);
    if ((rc = op_new(r, out[0], n->as_float ? ONNX_F32 : ONNX_I64, s.n_dims, s.dims)) != OK)
        return rc;
    flatten_batch(&s, in[1]);
    if (s.batch > 1) rc = find_batches(r, n, &s, &at);
    if (rc == OK) rc = subtract_zero(r, n, in[0], in[2], &a);
    /* Zero points of b as floats, one or one per column. */
    if (rc == OK && in[3]) {
        struct onnx_tensor none = *in[3];
        rc = subtract_zero(r, n, &none, NULL, &zero);
    }
    if (rc == OK && !r->dry)
        op_gemm(r, &(struct op_gemm){ .m = s.m,
                                      .n = s.n,
                                      .k = s.k,
                                      .a = a.data,
                                      .lda = s.k,
                                      .b8 = in[1]->data,
                                      .b8_signed = in[1]->type == ONNX_I8,
                                      .bk = s.n,
                                      .bn = 1,
                                      .b_zero = in[3] ? op_f32(&zero) : NULL,
                                      .zero_each = in[3] && in[3]->n > 1,
                                      .packed = n->packed,
                                      .c = n->as_float ? out[0]->data : NULL,
                                      .c64 = n->as_float ? NULL : out[0]->data,
                                      .batch = s.batch,
                                      .a_at = s.batch > 1 ? op_i64(&at) : NULL,
                                      .b_at = s.batch > 1 ? op_i64(&at) + s.batch : NULL });
    heap_unref(&r->heap, at.block);
    heap_unref(&r->heap, a.block);
    heap_unref(&r->heap, zero.block);
    return rc;
}

/* The value of a scale or zero point, which has one element. */
static float scalar_of(const struct onnx_tensor *t)
{
    return t->type == ONNX_F32  ? op_f32(t)[0]
           : t->type == ONNX_I8 ? *(const int8_t *)t->data
                                : op_u8(t)[0];
}

/* Inputs: a, its scale and zero point; b, its scale and zero point; those of the result. */
static int run_qlinear_matmul(struct onnx_run *r, const struct onnx_node *n,
                              const struct onnx_tensor **in, struct onnx_tensor **out)
{
    static const int ones[] = { 1, 4, 6, 2, 7 }; /* inputs of one element; the first 3 scales */
    const struct onnx_tensor *ints[4] = { in[0], in[3], in[2], in[5] };
    struct onnx_tensor sum = { .block = -1 }, *to[1] = { &sum };
    enum onnx_type type = in[7]->type;
    float scale, low = type == ONNX_I8 ? -128 : 0, high = type == ONNX_I8 ? 127 : 255;
    int rc;

    for (int i = 0; i < 5; i++)
        if (in[ones[i]]->n != 1) return op_fail(r, n, "a scale per row or column is not supported");
    for (int i = 0; i < 3; i++)
        if ((rc = op_check_type(r, n, in[ones[i]], ONNX_F32)) != OK) return rc;
    if (!is_8bit(in[7])) return op_fail(r, n, "the result must be uint8 or int8");
    if ((rc = run_matmul_integer(r, n, ints, to)) != OK) return rc;
    if ((rc = op_new(r, out[0], type, sum.n_dims, sum.dims)) != OK) goto out;
    if (op_skips(r, out[0])) goto out;
    scale = scalar_of(in[1]) * scalar_of(in[4]) / scalar_of(in[6]);
    for (size_t i = 0; i < sum.n; i++) {
        float v = rintf((float)op_i64(&sum)[i] * scale) + scalar_of(in[7]);
        v = isnan(v) || v < low ? low : v > high ? high : v;
        ((uint8_t *)out[0]->data)[i] = (uint8_t)(int)v;
    }
out:
    heap_unref(&r->heap, sum.block);
    return rc;
}

/* ---- Gemm ---- */

/* out += beta * c, with c broadcast to [m][n]. */
static void add_bias(const struct onnx_tensor *c, float beta, float *out, int64_t m, int64_t n)
{
    int64_t cols = c->n_dims ? c->dims[c->n_dims - 1] : 1, rows = (int64_t)c->n / (cols ? cols : 1);

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] += beta * op_f32(c)[(rows > 1 ? i * cols : 0) + (cols > 1 ? j : 0)];
}

/* A transposed copy of a matrix, in the heap. */
static int transpose_matrix(struct onnx_run *r, const struct onnx_tensor *x,
                            struct onnx_tensor *out)
{
    int64_t dims[2] = { x->dims[1], x->dims[0] };
    int rc = op_new(r, out, ONNX_F32, 2, dims);

    if (rc != OK || op_skips(r, out)) return rc;
    for (int64_t i = 0; i < dims[0]; i++)
        for (int64_t j = 0; j < dims[1]; j++)
            ((float *)out->data)[i * dims[1] + j] = op_f32(x)[j * dims[0] + i];
    return OK;
}

/* Whether c broadcasts to [m][n]. */
static bool fits_result(const struct onnx_tensor *c, int64_t m, int64_t n)
{
    int64_t cols = c->n_dims ? c->dims[c->n_dims - 1] : 1, rows = c->n_dims > 1 ? c->dims[0] : 1;
    return c->n_dims <= 2 && (cols == n || cols == 1) && (rows == m || rows == 1);
}

/* alpha a b + beta c */
static int run_gemm(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                    struct onnx_tensor **out)
{
    bool ta = onnx_int(n, "transA", 0) != 0, tb = onnx_int(n, "transB", 0) != 0;
    float alpha = onnx_float(n, "alpha", 1), beta = onnx_float(n, "beta", 1);
    struct onnx_tensor a = { .block = -1 };
    int64_t dims[2], k;
    int rc;

    for (int i = 0; i < 3; i++)
        if (in[i] && (rc = op_check_type(r, n, in[i], ONNX_F32)) != OK) return rc;
    if (in[0]->n_dims != 2 || in[1]->n_dims != 2)
        return op_fail(r, n, "the inputs must be matrices");
    dims[0] = in[0]->dims[ta];
    k = in[0]->dims[!ta];
    dims[1] = in[1]->dims[!tb];
    if (in[1]->dims[tb] != k)
        return op_fail(r, n, "the inner dimensions %lld and %lld differ", (long long)k,
                       (long long)in[1]->dims[tb]);
    if (in[2] && !fits_result(in[2], dims[0], dims[1]))
        return op_fail(r, n, "C does not broadcast to the shape of the result");
    if ((rc = op_new(r, out[0], ONNX_F32, 2, dims)) != OK) return rc;
    if (ta && (rc = transpose_matrix(r, in[0], &a)) != OK) return rc;
    if (!op_skips(r, out[0])) {
        float *c = out[0]->data;
        op_gemm(r, &(struct op_gemm){ .m = dims[0],
                                      .n = dims[1],
                                      .k = k,
                                      .a = ta ? a.data : in[0]->data,
                                      .lda = k,
                                      .b = in[1]->data,
                                      .bk = tb ? 1 : dims[1],
                                      .bn = tb ? k : 1,
                                      .packed = n->packed,
                                      .c = c,
                                      .batch = 1 });
        for (size_t i = 0; alpha != 1 && i < out[0]->n; i++) c[i] *= alpha;
        if (in[2] && beta != 0) add_bias(in[2], beta, c, dims[0], dims[1]);
    }
    heap_unref(&r->heap, a.block);
    return OK;
}

/* ---- Einsum ---- */

struct einsum { /* letters are dimensions; the first n_out are those of the output */
    int n, n_out;
    char name[2 * ONNX_DIMS];
    int64_t size[2 * ONNX_DIMS];
    int64_t step[2][2 * ONNX_DIMS]; /* elements of an input from one index to the next */
    int64_t summed;                 /* products that are summed for one element */
    const float *x[2];
    float *out;
};

/* The index of a letter; add: a new one if it is not there. -1: absent, or too many. */
static int find_letter(struct einsum *l, char c, bool add)
{
    for (int i = 0; i < l->n; i++)
        if (l->name[i] == c) return i;
    if (!add || l->n == 2 * ONNX_DIMS) return -1;
    l->name[l->n] = c;
    l->size[l->n] = -1;
    return l->n++;
}

/* Ellipsis ("...") is not supported. */
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* For each element of the output, sums the products over all indexes that the output does not
 * have. */
static void sum_products(const void *arg, int begin, int end)
{
    const struct einsum *l = arg;

    for (int64_t i = begin; i < end; i++) {
        int64_t rest = i, from[2] = { 0, 0 };
        double sum = 0;
        for (int d = l->n_out - 1; d >= 0; d--) {
            for (int t = 0; t < 2; t++) from[t] += rest % l->size[d] * l->step[t][d];
            rest /= l->size[d];
        }
        for (int64_t k = 0; k < l->summed; k++) {
            int64_t at[2] = { from[0], from[1] };
            rest = k;
            for (int d = l->n - 1; d >= l->n_out; d--) {
                for (int t = 0; t < 2; t++) at[t] += rest % l->size[d] * l->step[t][d];
                rest /= l->size[d];
            }
            sum += (double)l->x[0][at[0]] * (l->x[1] ? (double)l->x[1][at[1]] : 1);
        }
        l->out[i] = (float)sum;
    }
}

/* The letters of input t, like "bhid". A letter that occurs twice walks along a diagonal. */
static int read_term(struct onnx_run *r, const struct onnx_node *n, struct einsum *l,
                     struct str term, int t, const struct onnx_tensor *x)
{
    int64_t step = 1;
    int at;

    if ((int)term.n != x->n_dims)
        return op_fail(r, n, "the term has %zu letters for %d dimensions", term.n, x->n_dims);
    for (int d = x->n_dims - 1; d >= 0; d--) {
        if (!is_letter(term.p[d]) || (at = find_letter(l, term.p[d], true)) < 0)
            return op_fail(r, n, "'%c' is not a letter, or there are too many", term.p[d]);
        if (l->size[at] >= 0 && l->size[at] != x->dims[d])
            return op_fail(r, n, "'%c' has two sizes", term.p[d]);
        l->size[at] = x->dims[d];
        /* Added up: a letter that occurs twice advances both dimensions. */
        l->step[t][at] += step;
        step *= x->dims[d];
    }
    return OK;
}

/* Reads the equation, gives every letter a size and steps, then sums. */
static int run_einsum(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    const struct onnx_attr *a = onnx_attr(n, "equation");
    char text[64];
    struct einsum l = { .summed = 1 };
    struct str terms[2] = { 0 }, rest;
    size_t len = 0;
    ptrdiff_t arrow, comma;
    int rc = OK;

    for (size_t i = 0; a && i < a->s.n && len < sizeof text; i++)
        if (a->s.p[i] != ' ') text[len++] = a->s.p[i];
    rest = str_of(text, len);
    arrow = str_find(rest, STR("->"));
    if (!a || len == sizeof text || arrow < 0)
        return op_fail(r, n, "the equation has no -> or is too long");
    terms[0] = str_take(rest, (size_t)arrow);
    rest = str_skip(rest, (size_t)arrow + 2);
    if ((comma = str_find(terms[0], STR(","))) >= 0) {
        terms[1] = str_skip(terms[0], (size_t)comma + 1);
        terms[0] = str_take(terms[0], (size_t)comma);
    }
    if ((comma >= 0) != (n->n_in == 2) || rest.n > ONNX_DIMS)
        return op_fail(r, n, "the equation does not have %d inputs", n->n_in);
    for (size_t i = 0; i < rest.n; i++) {
        if (!is_letter(rest.p[i]) || find_letter(&l, rest.p[i], false) >= 0)
            return op_fail(r, n, "the output of the equation must be different letters");
        find_letter(&l, rest.p[i], true);
    }
    l.n_out = l.n;
    for (int t = 0; t < n->n_in && rc == OK; t++)
        if ((rc = op_check_type(r, n, in[t], ONNX_F32)) == OK)
            rc = read_term(r, n, &l, terms[t], t, in[t]);
    if (rc != OK) return rc;
    for (int d = 0; d < l.n; d++) {
        if (l.size[d] < 0) return op_fail(r, n, "'%c' is in no input", l.name[d]);
        if (d >= l.n_out) l.summed *= l.size[d];
    }
    if ((rc = op_new(r, out[0], ONNX_F32, l.n_out, l.size)) != OK || op_skips(r, out[0])) return rc;
    l.x[0] = in[0]->data;
    l.x[1] = n->n_in == 2 ? in[1]->data : NULL;
    l.out = out[0]->data;
    op_share_rows(r, (int64_t)out[0]->n, (int64_t)out[0]->n * (l.summed + 1), sum_products, &l);
    return OK;
}

/* Name, opset since, inputs from and to, outputs, attributes, function. */
const struct onnx_op ops_matmul[] = {
    { "MatMul", 1, 2, 2, 1, "", run_matmul },
    { "MatMulInteger", 10, 2, 4, 1, "", run_matmul_integer },
    { "QLinearMatMul", 10, 8, 8, 1, "", run_qlinear_matmul },
    { "Gemm", 7, 2, 3, 1, "alpha beta transA transB", run_gemm },
    { "Einsum", 12, 1, 2, 1, "equation", run_einsum },
    { 0 },
};
