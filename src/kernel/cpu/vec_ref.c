/* vec_ref.c - the reference of the row operations: plain C, sums in double. */
#include "kernel/cpu/vec.h"

#include "kernel/quant.h"

#include <math.h>

/* x / sqrt(mean(x^2) + eps) * w */
static void ref_rmsnorm(float *out, const float *x, const float *w, int n, float eps)
{
    double sum = 0;

    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    float s = (float)(1 / sqrt(sum / n + (double)eps));
    for (int i = 0; i < n; i++) out[i] = w ? x[i] * s * w[i] : x[i] * s;
}

/* (x - mean) / sqrt(var + eps) * w + b, with the variance around the mean. */
static void ref_layernorm(float *out, const float *x, const float *w, const float *b, int n,
                          float eps)
{
    double sum = 0, var = 0;

    for (int i = 0; i < n; i++) sum += (double)x[i];
    double mean = sum / n;
    for (int i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean);
    double s = 1 / sqrt(var / n + (double)eps);
    for (int i = 0; i < n; i++) {
        double y = (x[i] - mean) * s;
        out[i] = (float)((w ? y * w[i] : y) + (b ? b[i] : 0));
    }
}

/* Activation functions, see enum act. */
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
/* x Phi(x), with erfc because 1 + erf cancels for negative x. */
static double gelu(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752); }
static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}
static double gelu_quick(double x) { return x * sigmoid(1.702 * x); }
static double relu(double x) { return x > 0 ? x : 0; }
static double relu2(double x) { return relu(x) * relu(x); }
static double identity(double x) { return x; }

/* out = f(gate) * up */
#define ROW(f)                                                                             \
    static void f##_row(float *out, const float *gate, const float *up, int n)             \
    {                                                                                      \
        for (int i = 0; i < n; i++) out[i] = (float)f((double)gate[i]) * (up ? up[i] : 1); \
    }
ROW(silu)
ROW(gelu)
ROW(gelu_tanh)
ROW(gelu_quick)
ROW(relu)
ROW(relu2)
ROW(sigmoid)
ROW(identity)

/* gpt-oss: gate at most 7, up in [-7, 7]. */
static void swiglu_clip_row(float *out, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++) {
        double g = fmin((double)gate[i], 7), u = up ? fmax(fmin((double)up[i], 7), -7) : 0;
        out[i] = (float)(gelu_quick(g) * (u + 1));
    }
}

static void ref_add(float *x, const float *y, float scale, int n)
{
    for (int i = 0; i < n; i++) x[i] += scale * y[i];
}

static void ref_scale(float *out, const float *x, float s, int n)
{
    for (int i = 0; i < n; i++) out[i] = x[i] * s;
}

static void ref_softcap(float *x, float cap, int n)
{
    for (int i = 0; i < n; i++) x[i] = (float)(cap * tanh((double)x[i] / cap));
}

/* Rotates (a, b) by the angle whose cos and sin are cs. */
static void rotate_pair(float *a, float *b, const float *cs)
{
    float x = *a, y = *b;

    *a = x * cs[0] - y * cs[1];
    *b = x * cs[1] + y * cs[0];
}

/* Pairs (i, i + n_rot/2). */
static void ref_rope_half(float *x, const float *table, int n_rot)
{
    for (int i = 0; i < n_rot / 2; i++) rotate_pair(x + i, x + i + n_rot / 2, table + 2 * i);
}

/* Pairs (2i, 2i + 1). */
static void ref_rope_pair(float *x, const float *table, int n_rot)
{
    for (int i = 0; i < n_rot / 2; i++) rotate_pair(x + 2 * i, x + 2 * i + 1, table + 2 * i);
}

static void ref_load(enum dtype t, float *dst, const void *src, int n)
{
    quant_decode(t, src, dst, n);
}
static void ref_store(enum dtype t, void *dst, const float *src, int n)
{
    quant_encode(t, src, dst, n);
}

/* out = a op b for arrays, and (name1) for an array and a scalar. */
#define BIN(name, op)                                                   \
    static void name(float *out, const float *a, const float *b, int n) \
    {                                                                   \
        for (int i = 0; i < n; i++) out[i] = a[i] op b[i];              \
    }                                                                   \
    static void name##1(float *out, const float *a, float b, int n)     \
    {                                                                   \
        for (int i = 0; i < n; i++) out[i] = a[i] op b;                 \
    }
BIN(bin_add, +)
BIN(bin_sub, -)
BIN(bin_mul, *)
BIN(bin_div, /)

static void ref_softmax(float *out, const float *x, int n)
{
    double sum = 0;
    float most = -INFINITY;

    for (int i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - (double)most);
    for (int i = 0; i < n; i++) out[i] = (float)(exp((double)x[i] - (double)most) / sum);
}

static void erf_row(float *out, const float *x, int n)
{
    for (int i = 0; i < n; i++) out[i] = (float)erf((double)x[i]);
}

static void tanh_row(float *out, const float *x, int n)
{
    for (int i = 0; i < n; i++) out[i] = (float)tanh((double)x[i]);
}

/* One output element at a time, k ascending. */
static void ref_panel(const struct vec_panel *p)
{
    for (int i = 0; i < p->m; i++)
        for (int j = 0; j < p->n; j++) {
            float *c = &p->c[(size_t)i * p->ldc + (size_t)j];
            double sum = p->add ? (double)*c : 0;
            for (int k = 0; k < p->k; k++)
                sum +=
                    (double)p->a[(size_t)i * p->lda + (size_t)k] * (double)p->b[k * VEC_PANEL + j];
            *c = (float)sum;
        }
}

const struct vec vec_ref = {
    .name = "reference",
    .rmsnorm = ref_rmsnorm,
    .layernorm = ref_layernorm,
    .act = { [ACT_SILU] = silu_row,
             [ACT_GELU] = gelu_row,
             [ACT_GELU_TANH] = gelu_tanh_row,
             [ACT_RELU] = relu_row,
             [ACT_RELU2] = relu2_row,
             [ACT_GELU_QUICK] = gelu_quick_row,
             [ACT_SIGMOID] = sigmoid_row,
             [ACT_SWIGLU_CLIP] = swiglu_clip_row,
             [ACT_NONE] = identity_row },
    .add = ref_add,
    .scale = ref_scale,
    .softcap = ref_softcap,
    .rope = { [ROPE_HALF] = ref_rope_half, [ROPE_PAIR] = ref_rope_pair },
    .load = ref_load,
    .store = ref_store,
    .bin = { bin_add, bin_sub, bin_mul, bin_div },
    .bin1 = { bin_add1, bin_sub1, bin_mul1, bin_div1 },
    .softmax = ref_softmax,
    .erf = erf_row,
    .tanh = tanh_row,
    .panel = ref_panel,
};
