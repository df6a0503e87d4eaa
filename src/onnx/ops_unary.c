/* ops_unary.c - elementwise operators of one tensor: roots, exponentials, activations, rounding,
 * Clip.
 *
 * One function serves all of them; the operator's name selects the loop. Functions that a vector
 * kernel has (erf, tanh, GELU, SiLU, sigmoid) use it, the others the C library. Round is to even,
 * as ONNX defines it. */
#include "onnx/op.h"

#include <math.h>

enum unary {
    U_SQRT,
    U_NEG,
    U_ABS,
    U_EXP,
    U_LOG,
    U_ERF,
    U_TANH,
    U_SIGMOID,
    U_RELU,
    U_GELU,
    U_GELU_TANH,
    U_COS,
    U_SIN,
    U_RECIPROCAL,
    U_FLOOR,
    U_CEIL,
    U_ROUND,
    U_SOFTPLUS,
    U_LEAKY,
    U_ELU,
    U_SILU,
    U_SIGN,
    U_CLIP,
    U_HARDSIG,
    U_COPY
};

struct unary_job {
    const struct vec *vec;
    enum unary op;
    const float *x;
    float *out;
    float low, high; /* bounds of Clip; alpha and beta of other operators */
};

#define EACH(expr)                    \
    for (int64_t i = 0; i < n; i++) { \
        float v = x[i];               \
        out[i] = (expr);              \
    }                                 \
    break

/* x and out are contiguous, so the steps of the walk are not needed. */
static void map_piece(const void *arg, int64_t at, const int64_t from[3], const int64_t step[3],
                      int64_t n)
{
    const struct unary_job *a = arg;
    const float *x = a->x + at;
    float *out = a->out + at;

    (void)from;
    (void)step;
    switch (a->op) {
    case U_ERF: a->vec->erf(out, x, (int)n); break;
    case U_TANH: a->vec->tanh(out, x, (int)n); break;
    case U_SIGMOID: a->vec->act[ACT_SIGMOID](out, x, NULL, (int)n); break;
    case U_GELU: a->vec->act[ACT_GELU](out, x, NULL, (int)n); break;
    case U_GELU_TANH: a->vec->act[ACT_GELU_TANH](out, x, NULL, (int)n); break;
    case U_SILU: a->vec->act[ACT_SILU](out, x, NULL, (int)n); break;
    case U_RELU: EACH(v > 0 || isnan(v) ? v : 0);
    case U_SQRT: EACH(sqrtf(v));
    case U_NEG: EACH(-v);
    case U_ABS: EACH(fabsf(v));
    case U_EXP: EACH(expf(v));
    case U_LOG: EACH(logf(v));
    case U_COS: EACH(cosf(v));
    case U_SIN: EACH(sinf(v));
    case U_RECIPROCAL: EACH(1 / v);
    case U_FLOOR: EACH(floorf(v));
    case U_CEIL: EACH(ceilf(v));
    case U_ROUND: EACH(rintf(v));
    case U_SOFTPLUS: /* beyond 20, exp(-v) is below half an ulp of v */
        EACH(v > 20 ? v : log1pf(expf(v)));
    case U_LEAKY: EACH(v < 0 ? a->low * v : v);
    case U_ELU: EACH(v < 0 ? a->low * expm1f(v) : v);
    case U_SIGN: EACH((float)((v > 0) - (v < 0)));
    case U_CLIP: EACH(v < a->low ? a->low : v > a->high ? a->high : v);
    case U_HARDSIG: EACH(fmaxf(0, fminf(1, a->low * v + a->high)));
    case U_COPY: EACH(v);
    }
}

/* One row of all elements; op_walk_run cuts it into pieces. */
static int map_floats(struct onnx_run *r, const struct onnx_tensor *x, struct onnx_tensor *out,
                      struct unary_job a)
{
    struct op_walk w = {
        .n_dims = 1, .dims = { (int64_t)x->n }, .rows = 1, .inner = (int64_t)x->n
    };
    int rc = op_new(r, out, ONNX_F32, x->n_dims, x->dims);

    if (rc != OK || op_skips(r, out)) return rc;
    a.vec = r->host.vec;
    a.x = x->data;
    a.out = out->data;
    op_walk_run(r, &w, map_piece, &a);
    return OK;
}

/* The operators that ONNX defines for integers too; negation wraps around. */
static int map_ints(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *x,
                    struct onnx_tensor *out, enum unary op)
{
    int rc = op_new(r, out, ONNX_I64, x->n_dims, x->dims);

    for (size_t i = 0; rc == OK && i < x->n; i++) {
        int64_t v = op_i64(x)[i], *y = (int64_t *)out->data + i;
        switch (op) {
        case U_NEG: *y = (int64_t)(0 - (uint64_t)v); break;
        case U_ABS: *y = v < 0 ? (int64_t)(0 - (uint64_t)v) : v; break;
        case U_RELU: *y = v > 0 ? v : 0; break;
        case U_SIGN: *y = (v > 0) - (v < 0); break;
        default: return op_check_type(r, n, x, ONNX_F32);
        }
    }
    return rc;
}

static const struct {
    const char *name;
    enum unary op;
} unary_names[] = {
    { "Sqrt", U_SQRT },   { "Neg", U_NEG },
    { "Abs", U_ABS },     { "Exp", U_EXP },
    { "Log", U_LOG },     { "Erf", U_ERF },
    { "Tanh", U_TANH },   { "Sigmoid", U_SIGMOID },
    { "Relu", U_RELU },   { "Cos", U_COS },
    { "Sin", U_SIN },     { "Reciprocal", U_RECIPROCAL },
    { "Floor", U_FLOOR }, { "Ceil", U_CEIL },
    { "Round", U_ROUND }, { "Softplus", U_SOFTPLUS },
    { "Sign", U_SIGN },   { "LeakyRelu", U_LEAKY },
    { "Elu", U_ELU },     { "HardSigmoid", U_HARDSIG },
    { NULL, 0 },
};

/* The name of the node selects the operator. */
static int run_unary(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    struct unary_job a = { .op = U_COPY };
    int i = 0;

    /* The table of operators has only these names. */
    while (unary_names[i].name && !str_is(n->op, unary_names[i].name)) i++;
    a.op = unary_names[i].op;
    if (in[0]->type == ONNX_I64) return map_ints(r, n, in[0], out[0], a.op);
    if (in[0]->type != ONNX_F32) return op_check_type(r, n, in[0], ONNX_F32);
    a.low = onnx_float(n, "alpha", a.op == U_LEAKY ? 0.01f : a.op == U_HARDSIG ? 0.2f : 1);
    a.high = onnx_float(n, "beta", 0.5f);
    return map_floats(r, in[0], out[0], a);
}

/* GELU with erf, or its tanh approximation. */
static int run_gelu(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                    struct onnx_tensor **out)
{
    const struct onnx_attr *how = onnx_attr(n, "approximate");
    bool tanh = how && str_is(how->s, "tanh");
    int rc = op_check_type(r, n, in[0], ONNX_F32);

    if (rc != OK) return rc;
    if (how && !tanh && !str_is(how->s, "none"))
        return op_fail(r, n, "approximate '%.*s' must be none or tanh",
                       STR_ARG(str_take(how->s, 40)));
    return map_floats(r, in[0], out[0], (struct unary_job){ .op = tanh ? U_GELU_TANH : U_GELU });
}

/* Bounds are attributes before opset 11, then inputs. */
static int run_clip(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                    struct onnx_tensor **out)
{
    struct unary_job a = { .op = U_CLIP,
                           .low = onnx_float(n, "min", -INFINITY),
                           .high = onnx_float(n, "max", INFINITY) };
    int rc;

    for (int i = 1; i < 3; i++)
        if (in[i] && (in[i]->type != in[0]->type || in[i]->n != 1))
            return op_fail(r, n, "a bound must be one number of the type of the input");
    if (in[0]->type == ONNX_F32) {
        if (in[1]) a.low = op_f32(in[1])[0];
        if (in[2]) a.high = op_f32(in[2])[0];
        return map_floats(r, in[0], out[0], a);
    }
    if ((rc = op_check_type(r, n, in[0], ONNX_I64)) != OK ||
        (rc = op_new(r, out[0], ONNX_I64, in[0]->n_dims, in[0]->dims)) != OK)
        return rc;
    for (size_t i = 0; i < in[0]->n; i++) {
        int64_t v = op_i64(in[0])[i];
        if (in[1] && v < op_i64(in[1])[0]) v = op_i64(in[1])[0];
        if (in[2] && v > op_i64(in[2])[0]) v = op_i64(in[2])[0];
        ((int64_t *)out[0]->data)[i] = v;
    }
    return OK;
}

/* Name, opset since, inputs from and to, outputs, attributes, function. */
const struct onnx_op ops_unary[] = {
    { "Sqrt", 1, 1, 1, 1, "", run_unary },
    { "Neg", 1, 1, 1, 1, "", run_unary },
    { "Abs", 1, 1, 1, 1, "", run_unary },
    { "Exp", 1, 1, 1, 1, "", run_unary },
    { "Log", 1, 1, 1, 1, "", run_unary },
    { "Erf", 9, 1, 1, 1, "", run_unary },
    { "Tanh", 1, 1, 1, 1, "", run_unary },
    { "Sigmoid", 1, 1, 1, 1, "", run_unary },
    { "Relu", 1, 1, 1, 1, "", run_unary },
    { "Cos", 7, 1, 1, 1, "", run_unary },
    { "Sin", 7, 1, 1, 1, "", run_unary },
    { "Reciprocal", 1, 1, 1, 1, "", run_unary },
    { "Floor", 1, 1, 1, 1, "", run_unary },
    { "Ceil", 1, 1, 1, 1, "", run_unary },
    { "Round", 11, 1, 1, 1, "", run_unary },
    { "Softplus", 1, 1, 1, 1, "", run_unary },
    { "Sign", 9, 1, 1, 1, "", run_unary },
    { "LeakyRelu", 1, 1, 1, 1, "alpha", run_unary },
    { "Elu", 1, 1, 1, 1, "alpha", run_unary },
    { "HardSigmoid", 1, 1, 1, 1, "alpha beta", run_unary },
    { "Gelu", 20, 1, 1, 1, "approximate", run_gelu },
    { "Clip", 1, 1, 1, 1, "min max", run_clip },
    { "Clip", 11, 1, 3, 1, "", run_clip },
    { 0 },
};
