/* dot_f_neon.c - NEON gemv for unquantized weights (F32, F16, BF16), converted to F32 on the fly,
 * and for types that are decoded first. F32 sums per lane, columns ascending. */
#include "kernel/cpu/dot_neon.h"

INLINE float32x4_t load_f(const char *p, const enum dtype t)
{
    if (t == DT_F32) return vld1q_f32((const float *)(const void *)p);
    uint16x4_t h = vld1_u16((const uint16_t *)(const void *)p);
    if (t == DT_F16) return vcvt_f32_f16(vreinterpret_f16_u16(h));
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

/* One row times T tokens. The last columns are copied and padded with zeros to a vector. */
INLINE void row_f(const struct gemv *g, int r, int t0, const int T, const enum dtype type)
{
    const size_t size = type == DT_F32 ? 4 : 2;
    const char *w = gemv_row(g, r);
    const float *x[4];
    float32x4_t acc[8]; /* two sums per token hide the latency of fma */
    int c = 0;

    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < 2 * T; i++) acc[i] = vdupq_n_f32(0);
    for (; c + 8 <= g->cols; c += 8) {
        float32x4_t a = load_f(w + (size_t)c * size, type),
                    b = load_f(w + (size_t)(c + 4) * size, type);
        UNROLL
        for (int t = 0; t < T; t++) {
            acc[2 * t] = vfmaq_f32(acc[2 * t], a, vld1q_f32(x[t] + c));
            acc[2 * t + 1] = vfmaq_f32(acc[2 * t + 1], b, vld1q_f32(x[t] + c + 4));
        }
    }
    for (; c < g->cols; c += 4) {
        int n = g->cols - c < 4 ? g->cols - c : 4;
        char end[16] = { 0 };
        memcpy(end, w + (size_t)c * size, (size_t)n * size);
        float32x4_t a = load_f(end, type);
        UNROLL
        for (int t = 0; t < T; t++) {
            float xe[4] = { 0 };
            memcpy(xe, x[t] + c, (size_t)n * sizeof(float));
            acc[2 * t] = vfmaq_f32(acc[2 * t], a, vld1q_f32(xe));
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] =
            vaddvq_f32(vaddq_f32(acc[2 * t], acc[2 * t + 1]));
}

void gemv_f32_neon(const struct gemv *g) { GEMV_EACH_ROW(row_f, g, DT_F32) }
void gemv_f16_neon(const struct gemv *g) { GEMV_EACH_ROW(row_f, g, DT_F16) }
void gemv_bf16_neon(const struct gemv *g) { GEMV_EACH_ROW(row_f, g, DT_BF16) }
void gemv_any_neon(const struct gemv *g) { gemv_decoded(g, gemv_f32_neon); }
