/* vec_impl.h - the row operations (vec.h) in the vectors of simd.h. Included by vec_avx2.c,
 * vec_avx512.c and vec_neon.c, each of which defines VEC, the name of its table.
 *
 * Sums are accumulated per lane in F32 and added across lanes at the end. */
#include "kernel/cpu/kvload.h"
#include "kernel/cpu/simd.h"
#include "kernel/cpu/vec.h"

#include <math.h>

/* Two accumulators hide the latency of fma. */
static void simd_rmsnorm(float *out, const float *x, const float *w, int n, float eps)
{
    vf a = v_set(0), b = a;
    int i = 0;

    for (; i + 2 * W <= n; i += 2 * W) {
        vf p = v_load(x + i), q = v_load(x + i + W);
        a = v_fma(p, p, a);
        b = v_fma(q, q, b);
    }
    for (; i < n; i += W) {
        vf p = v_load_n(x + i, n - i < W ? n - i : W);
        a = v_fma(p, p, a);
    }
    vf s = v_set(1 / sqrtf(v_sum(a + b) / (float)n + eps));
    for (i = 0; i + W <= n; i += W) {
        vf y = v_load(x + i) * s;
        if (w) y *= v_load(w + i);
        v_store(out + i, y);
    }
    if (i < n) {
        vf y = v_load_n(x + i, n - i) * s;
        if (w) y *= v_load_n(w + i, n - i);
        v_store_n(out + i, y, n - i);
    }
}

/* Two passes: the mean first, then the variance around it. */
static void simd_layernorm(float *out, const float *x, const float *w, const float *b, int n,
                           float eps)
{
    vf sum = v_set(0), var = sum;
    int i;

    for (i = 0; i + W <= n; i += W) sum += v_load(x + i);
    if (i < n) sum += v_load_n(x + i, n - i);
    float middle = v_sum(sum) / (float)n, rest = 0;
    vf mean = v_set(middle);
    for (i = 0; i + W <= n; i += W) {
        vf d = v_load(x + i) - mean;
        var = v_fma(d, d, var);
    }
    for (; i < n; i++) rest += (x[i] - middle) * (x[i] - middle);
    vf s = v_set(1 / sqrtf((v_sum(var) + rest) / (float)n + eps));
    for (i = 0; i < n; i += W) {
        int m = n - i < W ? n - i : W;
        vf y = (v_load_n(x + i, m) - mean) * s;
        if (w) y *= v_load_n(w + i, m);
        if (b) y += v_load_n(b + i, m);
        v_store_n(out + i, y, m);
    }
}

/* Activation functions of one vector; v_exp is clamped, so none of them overflows. */
INLINE vf sigmoid(vf x) { return v_set(1) / (v_set(1) + v_exp(-x)); }
INLINE vf silu(vf x) { return x / (v_set(1) + v_exp(-x)); }
/* x Phi(x) by erfc of |x|, which keeps full precision for negative x. */
INLINE vf gelu(vf x)
{
    vf half = x * v_set(0.5f), tail = half * v_erfc(v_abs(x) * v_set(0.70710678118654752f));
    return v_sel_gt(x, v_set(0), x - tail, tail);
}
INLINE vf gelu_tanh(vf x) /* (1 + tanh u) / 2 = sigmoid 2u */
{
    vf u = v_fma(x * x * x, v_set(0.044715f), x);
    return x * sigmoid(u * v_set(2 * 0.79788456080286536f));
}
INLINE vf gelu_quick(vf x) { return x * sigmoid(x * v_set(1.702f)); }
INLINE vf relu(vf x) { return v_max(x, v_set(0)); }
INLINE vf relu2(vf x) { return relu(x) * relu(x); }
INLINE vf identity(vf x) { return x; }

/* out = f(gate) * up. f is a constant at every call and is inlined. */
INLINE void act_row(vf (*f)(vf), float *out, const float *gate, const float *up, int n)
{
    int i = 0;

    for (; i + W <= n; i += W) {
        vf y = f(v_load(gate + i));
        if (up) y *= v_load(up + i);
        v_store(out + i, y);
    }
    if (i < n) {
        vf y = f(v_load_n(gate + i, n - i));
        if (up) y *= v_load_n(up + i, n - i);
        v_store_n(out + i, y, n - i);
    }
}

#define ROW(f)                                                                 \
    static void f##_row(float *out, const float *gate, const float *up, int n) \
    {                                                                          \
        act_row(f, out, gate, up, n);                                          \
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
INLINE vf swiglu_clip(vf gate, vf up)
{
    vf g = v_sel_gt(gate, v_set(7), v_set(7), gate);
    vf u = v_max(v_sel_gt(up, v_set(7), v_set(7), up), v_set(-7));
    return gelu_quick(g) * (u + v_set(1));
}

static void swiglu_clip_row(float *out, const float *gate, const float *up, int n)
{
    int i = 0;

    for (; i + W <= n; i += W)
        v_store(out + i, swiglu_clip(v_load(gate + i), up ? v_load(up + i) : v_set(0)));
    if (i < n)
        v_store_n(out + i,
                  swiglu_clip(v_load_n(gate + i, n - i), up ? v_load_n(up + i, n - i) : v_set(0)),
                  n - i);
}

static void simd_add(float *x, const float *y, float scale, int n)
{
    vf s = v_set(scale);
    int i = 0;

    for (; i + W <= n; i += W) v_store(x + i, v_fma(v_load(y + i), s, v_load(x + i)));
    if (i < n) v_store_n(x + i, v_fma(v_load_n(y + i, n - i), s, v_load_n(x + i, n - i)), n - i);
}

static void simd_scale(float *out, const float *x, float scale, int n)
{
    vf s = v_set(scale);
    int i = 0;

    for (; i + W <= n; i += W) v_store(out + i, v_load(x + i) * s);
    if (i < n) v_store_n(out + i, v_load_n(x + i, n - i) * s, n - i);
}

static void simd_softcap(float *x, float cap, int n)
{
    vf c = v_set(cap), inv = v_set(1 / cap);
    int i = 0;

    for (; i + W <= n; i += W) v_store(x + i, c * v_tanh(v_load(x + i) * inv));
    if (i < n) v_store_n(x + i, c * v_tanh(v_load_n(x + i, n - i) * inv), n - i);
}

/* Pairs (i, i + n_rot/2): both halves are contiguous, cos and sin are de-interleaved. */
static void simd_rope_half(float *x, const float *table, int n_rot)
{
    int half = n_rot / 2, i = 0;
    float *y = x + half;

    for (; i + W <= half; i += W) {
        vf c, s, a = v_load(x + i), b = v_load(y + i);
        v_load2(table + 2 * i, &c, &s);
        v_store(x + i, a * c - b * s);
        v_store(y + i, a * s + b * c);
    }
    for (; i < half; i++) {
        float a = x[i], b = y[i], c = table[2 * i], s = table[2 * i + 1];
        x[i] = a * c - b * s;
        y[i] = a * s + b * c;
    }
}

/* Pairs (2i, 2i + 1) match the layout of the table. */
static void simd_rope_pair(float *x, const float *table, int n_rot)
{
    int i = 0;

    n_rot &= ~1;
    for (; i + W <= n_rot; i += W) v_store(x + i, v_rotate(v_load(x + i), v_load(table + i)));
    if (i < n_rot)
        v_store_n(x + i, v_rotate(v_load_n(x + i, n_rot - i), v_load_n(table + i, n_rot - i)),
                  n_rot - i);
}

/* Q8_0: round(x / d) with d = max|x| / 127. Blocks whose scale is out of range go through
 * quant_encode. */
static void store_q8(char *dst, const float *src, int n)
{
    for (int i = 0; i < n; i += Q8, dst += Q8_BYTES) {
        vf most = v_set(0);
        for (int k = 0; k < Q8; k += W) most = v_max(most, v_abs(v_load(src + i + k)));
        float d = v_hmax(most) / 127;
        if (!(d < 500)) { /* the scale overflows F16, or is NaN */
            quant_encode(DT_Q8_0, src + i, dst, Q8);
            continue;
        }
        uint16_t h = f32_to_f16(d);
        vf inv = v_set(d > 0 ? 1 / d : 0);
        memcpy(dst, &h, sizeof h);
        for (int k = 0; k < Q8; k += W)
            v_store_i8((int8_t *)dst + 2 + k, v_round(v_load(src + i + k) * inv));
    }
}

/* The inner loop has a constant count and no branch: the compiler vectorizes it. */
static void store_f8(uint8_t *dst, const float *src, int n)
{
    int i = 0;

    for (; i + W <= n; i += W) {
        UNROLL
        for (int k = 0; k < W; k++) dst[i + k] = f32_to_f8_e4m3(src[i + k]);
    }
    for (; i < n; i++) dst[i] = f32_to_f8_e4m3(src[i]);
}

/* t is a constant at every call. */
INLINE void load_row(enum dtype t, float *dst, const void *src, int n)
{
    int i = 0;

    for (; i + W <= n; i += W) v_store(dst + i, kv_load(t, src, i));
    if (i < n) v_store_n(dst + i, kv_load_n(t, src, i, n - i), n - i);
}

static void simd_load(enum dtype t, float *dst, const void *src, int n)
{
    switch (t) {
    case DT_F32: load_row(DT_F32, dst, src, n); break;
    case DT_F16: load_row(DT_F16, dst, src, n); break;
    case DT_BF16: load_row(DT_BF16, dst, src, n); break;
    case DT_F8_E4M3: load_row(DT_F8_E4M3, dst, src, n); break;
    default: load_row(DT_Q8_0, dst, src, n); break;
    }
}

/* The rest of a row, less than a vector, goes through quant_encode. */
static void simd_store(enum dtype t, void *dst, const float *src, int n)
{
    uint16_t *h = dst;
    int i = 0;

    switch (t) {
    case DT_F32: memcpy(dst, src, (size_t)n * sizeof *src); return;
    case DT_Q8_0: store_q8(dst, src, n); return;
    case DT_F8_E4M3: store_f8(dst, src, n); return;
    case DT_F16:
        for (; i + W <= n; i += W) v_store_f16(h + i, v_load(src + i));
        break;
    case DT_BF16:
        for (; i + W <= n; i += W) v_store_bf16(h + i, v_load(src + i));
        break;
    default: break;
    }
    if (i < n) quant_encode(t, src + i, h + i, n - i);
}

#include "kernel/cpu/vec_graph.h"

const struct vec VEC = {
    .name = SIMD_NAME,
    .rmsnorm = simd_rmsnorm,
    .layernorm = simd_layernorm,
    .act = { [ACT_SILU] = silu_row,
             [ACT_GELU] = gelu_row,
             [ACT_GELU_TANH] = gelu_tanh_row,
             [ACT_RELU] = relu_row,
             [ACT_RELU2] = relu2_row,
             [ACT_GELU_QUICK] = gelu_quick_row,
             [ACT_SIGMOID] = sigmoid_row,
             [ACT_SWIGLU_CLIP] = swiglu_clip_row,
             [ACT_NONE] = identity_row },
    .add = simd_add,
    .scale = simd_scale,
    .softcap = simd_softcap,
    .rope = { [ROPE_HALF] = simd_rope_half, [ROPE_PAIR] = simd_rope_pair },
    .load = simd_load,
    .store = simd_store,
    .bin = { bin_add, bin_sub, bin_mul, bin_div },
    .bin1 = { bin_add1, bin_sub1, bin_mul1, bin_div1 },
    .softmax = simd_softmax,
    .erf = erf_row,
    .tanh = tanh_row,
    .panel = simd_panel,
};
