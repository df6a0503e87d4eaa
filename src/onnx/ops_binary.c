/* ops_binary.c - elementwise operators of two or more broadcast tensors: arithmetic, comparisons,
 * logic, Min, Max, Sum, Where; and the predicates Not, IsNaN, IsInf.
 *
 * Integer arithmetic wraps around on overflow. Division by zero of integers is refused before the
 * loop; of floats it follows IEEE 754. */
#include "onnx/op.h"

#include <math.h>

/* Ranges of this enum are tested: arithmetic, logic (AND to XOR), comparisons (EQ to GE). */
enum binary {
    B_ADD,
    B_SUB,
    B_MUL,
    B_DIV,
    B_POW,
    B_MOD,
    B_FMOD,
    B_MIN,
    B_MAX,
    B_AND,
    B_OR,
    B_XOR,
    B_EQ,
    B_LT,
    B_GT,
    B_LE,
    B_GE,
    B_PRELU,
    B_BITS_AND,
    B_BITS_OR
};

/* One operation over broadcast operands; binary_piece computes parts of it. */
struct binary_job {
    const struct vec *vec;
    enum binary op;
    enum onnx_type type; /* of the inputs */
    const void *a, *b;
    void *out;
};

#define PAIR(expr)                                \
    for (int64_t i = 0; i < n; i++) {             \
        const float x = a[i * sa], y = b[i * sb]; \
        out[i] = (expr);                          \
    }                                             \
    break

/* Python's %: the result has the sign of the divisor. */
static float mod_float(float x, float y)
{
    float m = fmodf(x, y);
    return m != 0 && (m < 0) != (y < 0) ? m + y : m;
}

/* sa and sb are the steps of the operands; 0 repeats one element. */
static void apply_floats(const struct binary_job *p, float *out, const float *a, int64_t sa,
                         const float *b, int64_t sb, int64_t n)
{
    if (p->op <= B_DIV && sa == 1) { /* enum binary begins in the order of enum vec_bin */
        if (sb == 1) p->vec->bin[p->op](out, a, b, (int)n);
        else p->vec->bin1[p->op](out, a, *b, (int)n);
        return;
    }
    switch (p->op) {
    case B_ADD: PAIR(x + y);
    case B_SUB: PAIR(x - y);
    case B_MUL: PAIR(x * y);
    case B_DIV: PAIR(x / y);
    case B_POW: /* common exponents; 0 * y passes on a NaN */
        if (sb == 0 && *b == 2) {
            PAIR(x * x + 0 * y);
        }
        if (sb == 0 && *b == 3) {
            PAIR(x * x * x + 0 * y);
        }
        if (sb == 0 && *b == 0.5f) {
            PAIR(sqrtf(x) + 0 * y);
        }
        PAIR(powf(x, y));
    case B_FMOD: PAIR(fmodf(x, y));
    case B_MOD: PAIR(mod_float(x, y));
    case B_MIN: PAIR(isnan(x) || x < y ? x : y);
    case B_MAX: PAIR(isnan(x) || x > y ? x : y);
    case B_PRELU: PAIR(x < 0 ? x * y : x);
    default: break;
    }
}

/* By repeated squaring, modulo 2^64. Negative exponents give 0 except for 1 and -1. */
static int64_t pow_int(int64_t x, int64_t y)
{
    uint64_t v = 1, base = (uint64_t)x;

    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    for (; y; y >>= 1, base *= base)
        if (y & 1) v *= base;
    return (int64_t)v;
}

/* The caller has checked that a divisor is not 0. */
static int64_t apply_int(enum binary op, int64_t x, int64_t y)
{
    switch (op) {
    case B_ADD: return (int64_t)((uint64_t)x + (uint64_t)y);
    case B_SUB: return (int64_t)((uint64_t)x - (uint64_t)y);
    case B_MUL: return (int64_t)((uint64_t)x * (uint64_t)y);
    case B_DIV: return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
    case B_POW: return pow_int(x, y);
    case B_FMOD: return y == -1 ? 0 : x % y;
    case B_MOD: {
        int64_t m = y == -1 ? 0 : x % y;
        return m != 0 && (m < 0) != (y < 0) ? m + y : m;
    }
    case B_MIN: return x < y ? x : y;
    case B_MAX: return x > y ? x : y;
    case B_BITS_AND: return x & y;
    case B_BITS_OR: return x | y;
    default: return 0;
    }
}

#define COMPARE(ctype)                                                        \
    for (int64_t i = 0; i < n; i++) {                                         \
        ctype x = ((const ctype *)a)[i * sa], y = ((const ctype *)b)[i * sb]; \
        out[i] = op == B_EQ   ? x == y                                        \
                 : op == B_LT ? x < y                                         \
                 : op == B_GT ? x > y                                         \
                 : op == B_LE ? x <= y                                        \
                              : x >= y;                                       \
    }

static void compare_elements(enum binary op, enum onnx_type type, uint8_t *out, const void *a,
                             int64_t sa, const void *b, int64_t sb, int64_t n)
{
    if (type == ONNX_F32) COMPARE(float)
    else if (type == ONNX_I64) COMPARE(int64_t)
    else if (type == ONNX_I8) COMPARE(int8_t)
    else COMPARE(uint8_t)
}

static void apply_logic(enum binary op, uint8_t *out, const uint8_t *a, int64_t sa,
                        const uint8_t *b, int64_t sb, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        bool x = a[i * sa], y = b[i * sb];
        out[i] = op == B_AND ? x && y : op == B_OR ? x || y : x != y;
    }
}

/* Selects the loop for the operator and type. */
static void binary_piece(const void *arg, int64_t at, const int64_t from[3], const int64_t step[3],
                         int64_t n)
{
    const struct binary_job *p = arg;
    size_t size = onnx_size(p->type);
    const char *a = (const char *)p->a + (size_t)from[0] * size,
               *b = (const char *)p->b + (size_t)from[1] * size;

    if (p->op >= B_EQ && p->op <= B_GE)
        compare_elements(p->op, p->type, (uint8_t *)p->out + at, a, step[0], b, step[1], n);
    else if (p->op >= B_AND && p->op <= B_XOR)
        apply_logic(p->op, (uint8_t *)p->out + at, (const uint8_t *)a, step[0], (const uint8_t *)b,
                    step[1], n);
    else if (p->type == ONNX_F32)
        apply_floats(p, (float *)p->out + at, (const float *)a, step[0], (const float *)b, step[1],
                     n);
    else
        for (int64_t i = 0; i < n; i++)
            ((int64_t *)p->out)[at + i] = apply_int(p->op, ((const int64_t *)a)[i * step[0]],
                                                    ((const int64_t *)b)[i * step[1]]);
}

static const struct {
    const char *name;
    enum binary op;
} binary_names[] = {
    { "Add", B_ADD },
    { "Sub", B_SUB },
    { "Mul", B_MUL },
    { "Div", B_DIV },
    { "Pow", B_POW },
    { "Mod", B_MOD },
    { "Min", B_MIN },
    { "Max", B_MAX },
    { "And", B_AND },
    { "Or", B_OR },
    { "Xor", B_XOR },
    { "Equal", B_EQ },
    { "Less", B_LT },
    { "Greater", B_GT },
    { "LessOrEqual", B_LE },
    { "GreaterOrEqual", B_GE },
    { "PRelu", B_PRELU },
    { "BitwiseAnd", B_BITS_AND },
    { "BitwiseOr", B_BITS_OR },
    { "Sum", B_ADD },
    { NULL, 0 },
};

/* Types must be equal and fit the operator; integer divisors must not be 0. */
static int check_operands(struct onnx_run *r, const struct onnx_node *n, enum binary op,
                          const struct onnx_tensor **in)
{
    enum onnx_type t = in[0]->type;
    bool compares = op >= B_EQ && op <= B_GE, is_logic = op >= B_AND && op <= B_XOR;

    /* ONNX has no implicit conversion. */
    if (in[1]->type != t)
        return op_fail(r, n, "the inputs have different types %s and %s", onnx_type_name(t),
                       onnx_type_name(in[1]->type));
    if (is_logic) return op_check_type(r, n, in[0], ONNX_BOOL);
    if (compares) return OK;
    if (op == B_BITS_AND || op == B_BITS_OR) return op_check_type(r, n, in[0], ONNX_I64);
    if (t != ONNX_I64 || op == B_PRELU) return op_check_type(r, n, in[0], ONNX_F32);
    /* Integers only: the check reads the divisors, which are small tensors of shape arithmetic. */
    for (size_t i = 0; (op == B_DIV || op == B_MOD || op == B_FMOD) && i < in[1]->n; i++)
        if (op_i64(in[1])[i] == 0) return op_fail(r, n, "an integer is divided by 0");
    return OK;
}

/* Checks, allocates and computes one operation. */
static int apply_binary(struct onnx_run *r, const struct onnx_node *n, enum binary op,
                        const struct onnx_tensor **in, struct onnx_tensor *out)
{
    struct binary_job p = { .vec = r->host.vec, .op = op };
    const struct onnx_tensor *ab[2] = { in[0], in[1] };
    struct onnx_tensor exponent;
    struct op_walk w;
    int rc;

    /* Pow alone may have operands of two types. */
    if (op == B_POW && ab[0]->type == ONNX_F32 && ab[1]->type == ONNX_I64 && ab[1]->n == 1) {
        float v = (float)op_i64(ab[1])[0];
        exponent = *ab[1];
        exponent.type = ONNX_F32;
        exponent.data = &v;
        ab[1] = &exponent;
        return apply_binary(r, n, op, ab, out);
    }
    if ((rc = check_operands(r, n, op, ab)) != OK || (rc = op_walk(r, n, &w, ab, 2)) != OK)
        return rc;
    /* Logic and comparisons give booleans. */
    rc = op_new(r, out, op >= B_AND && op <= B_GE ? ONNX_BOOL : ab[0]->type, w.n_dims, w.dims);
    if (rc != OK || op_skips(r, out)) return rc;
    op_walk_join(&w);
    p.type = ab[0]->type;
    p.a = ab[0]->data;
    p.b = ab[1]->data;
    p.out = out->data;
    /* The vector kernels want a repeating operand second; these operators commute. */
    if ((op == B_ADD || op == B_MUL) && w.step[0][w.n_dims - 1] == 0 &&
        w.step[1][w.n_dims - 1] == 1) {
        struct op_walk v = w;
        memcpy(w.step[0], v.step[1], sizeof w.step[0]);
        memcpy(w.step[1], v.step[0], sizeof w.step[0]);
        p.a = ab[1]->data;
        p.b = ab[0]->data;
    }
    op_walk_run(r, &w, binary_piece, &p);
    return OK;
}

/* The name of the node selects the operator. */
static int run_binary(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    int i = 0;

    while (binary_names[i].name && !str_is(n->op, binary_names[i].name)) i++;
    if (binary_names[i].op == B_MOD && onnx_int(n, "fmod", 0))
        return apply_binary(r, n, B_FMOD, in, out[0]);
    return apply_binary(r, n, binary_names[i].op, in, out[0]);
}

/* Min, Max and Sum of any number of inputs: a chain of binary operations. */
static int run_variadic(struct onnx_run *r, const struct onnx_node *n,
                        const struct onnx_tensor **in, struct onnx_tensor **out)
{
    enum binary op = str_is(n->op, "Min") ? B_MIN : str_is(n->op, "Max") ? B_MAX : B_ADD;
    struct onnx_tensor sum = *in[0], next = { .block = -1 };
    int rc = OK;

    if (n->n_in == 1) return op_view(r, out[0], in[0], in[0]->n_dims, in[0]->dims);
    /* The first input stays alive until the first operation is done. */
    heap_ref(&r->heap, sum.block);
    for (int i = 1; i < n->n_in && rc == OK; i++) {
        const struct onnx_tensor *ab[2] = { &sum, in[i] };
        if (!in[i]) rc = op_fail(r, n, "the required input %d is absent", i);
        else rc = apply_binary(r, n, op, ab, &next);
        heap_unref(&r->heap, sum.block);
        sum = next;
        next = (struct onnx_tensor){ .block = -1 };
    }
    if (rc == OK) *out[0] = sum;
    return rc;
}

/* ---- predicates and Where ---- */

/* Not, IsNaN, IsInf. */
static int run_predicate(struct onnx_run *r, const struct onnx_node *n,
                         const struct onnx_tensor **in, struct onnx_tensor **out)
{
    bool is_nan = str_is(n->op, "IsNaN"), is_inf = str_is(n->op, "IsInf");
    int rc = op_check_type(r, n, in[0], is_nan || is_inf ? ONNX_F32 : ONNX_BOOL);

    if (rc != OK || (rc = op_new(r, out[0], ONNX_BOOL, in[0]->n_dims, in[0]->dims)) != OK)
        return rc;
    for (size_t i = 0; i < in[0]->n; i++)
        ((uint8_t *)out[0]->data)[i] = is_nan   ? isnan(op_f32(in[0])[i]) != 0
                                       : is_inf ? isinf(op_f32(in[0])[i]) != 0
                                                : !op_u8(in[0])[i];
    return OK;
}

struct where_job {
    size_t size;
    const void *c, *a, *b;
    void *out;
};

#define SELECT(ctype)                                                                         \
    for (int64_t i = 0; i < n; i++)                                                           \
    ((ctype *)p->out)[at + i] = c[i * step[0]] ? ((const ctype *)p->a)[from[1] + i * step[1]] \
                                               : ((const ctype *)p->b)[from[2] + i * step[2]]

static void where_piece(const void *arg, int64_t at, const int64_t from[3], const int64_t step[3],
                        int64_t n)
{
    const struct where_job *p = arg;
    const uint8_t *c = (const uint8_t *)p->c + from[0];

    if (p->size == 4) SELECT(float);
    else if (p->size == 8) SELECT(int64_t);
    else SELECT(uint8_t);
}

/* Where(condition, x, y), all three broadcast. */
static int run_where(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                     struct onnx_tensor **out)
{
    struct where_job p = {
        .size = onnx_size(in[1]->type), .c = in[0]->data, .a = in[1]->data, .b = in[2]->data
    };
    struct op_walk w;
    int rc = op_check_type(r, n, in[0], ONNX_BOOL);

    if (rc != OK || (rc = op_check_type(r, n, in[2], in[1]->type)) != OK) return rc;
    if ((rc = op_walk(r, n, &w, in, 3)) != OK) return rc;
    rc = op_new(r, out[0], in[1]->type, w.n_dims, w.dims);
    if (rc != OK || op_skips(r, out[0])) return rc;
    p.out = out[0]->data;
    op_walk_join(&w);
    op_walk_run(r, &w, where_piece, &p);
    return OK;
}

/* Name, opset since, inputs from and to, outputs, attributes, function. */
const struct onnx_op ops_binary[] = {
    { "Add", 7, 2, 2, 1, "", run_binary },
    { "Sub", 7, 2, 2, 1, "", run_binary },
    { "Mul", 7, 2, 2, 1, "", run_binary },
    { "Div", 7, 2, 2, 1, "", run_binary },
    { "Pow", 7, 2, 2, 1, "", run_binary },
    { "Mod", 10, 2, 2, 1, "fmod", run_binary },
    { "And", 7, 2, 2, 1, "", run_binary },
    { "Or", 7, 2, 2, 1, "", run_binary },
    { "Xor", 7, 2, 2, 1, "", run_binary },
    { "Equal", 7, 2, 2, 1, "", run_binary },
    { "Less", 7, 2, 2, 1, "", run_binary },
    { "Greater", 7, 2, 2, 1, "", run_binary },
    { "LessOrEqual", 12, 2, 2, 1, "", run_binary },
    { "GreaterOrEqual", 12, 2, 2, 1, "", run_binary },
    { "PRelu", 7, 2, 2, 1, "", run_binary },
    { "BitwiseAnd", 18, 2, 2, 1, "", run_binary },
    { "BitwiseOr", 18, 2, 2, 1, "", run_binary },
    { "Min", 8, 1, -1, 1, "", run_variadic },
    { "Max", 8, 1, -1, 1, "", run_variadic },
    { "Sum", 8, 1, -1, 1, "", run_variadic },
    { "Not", 1, 1, 1, 1, "", run_predicate },
    { "IsNaN", 9, 1, 1, 1, "", run_predicate },
    { "IsInf", 10, 1, 1, 1, "", run_predicate },
    { "Where", 9, 3, 3, 1, "", run_where },
    { 0 },
};
