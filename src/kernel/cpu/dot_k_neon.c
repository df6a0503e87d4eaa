/* dot_k_neon.c - NEON gemv for super-blocks of 256. A super-block is unpacked to bytes and scales
 * once and then multiplied with each token. */
#include "kernel/cpu/load_iq_neon.h"

/* One row times T tokens: a super-block is unpacked once, then multiplied with each token in
 * steps of 32 columns. bytes: of a super-block. */
INLINE void row_k(const struct gemv *g, int r, int t0, const int T, const enum dtype type,
                  const int bytes)
{
    const char *p = gemv_row(g, r);
    const struct x8 *x[4];
    float32x4_t acc[4];
    float corr[4] = { 0 };

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = vdupq_n_f32(0);
    }
    for (int b = 0; b < g->cols / QK_K; b++, p += bytes) {
        struct w256 w;
        load_w256(&w, p, type);
        for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + 1024 + i);
        UNROLL
        for (int i = 0; i < 8; i++) {
            struct w32 v = { { w.q[2 * i], w.q[2 * i + 1] },
                             { w.d[2 * i], w.d[2 * i + 1] },
                             { 0 } };
            if (has_minima(type)) v.m[0] = w.m[2 * i], v.m[1] = w.m[2 * i + 1];
            UNROLL
            for (int t = 0; t < T; t++)
                dot_w32(&acc[t], &corr[t], &v, x[t] + 8 * b + i, !has_half_scales(type),
                        has_minima(type));
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = vaddvq_f32(acc[t]) + corr[t];
}

#define DEFINE_GEMV(name, type)                                                                  \
    INLINE void row_##name(const struct gemv *g, int r, int t0, const int T, const enum dtype t) \
    {                                                                                            \
        row_k(g, r, t0, T, t, (int)sizeof(struct block_##name));                                 \
    }                                                                                            \
    void gemv_##name##_neon(const struct gemv *g) { GEMV_EACH_ROW(row_##name, g, type) }

DEFINE_GEMV(q2_k, DT_Q2_K)
DEFINE_GEMV(q3_k, DT_Q3_K)
DEFINE_GEMV(q4_k, DT_Q4_K)
DEFINE_GEMV(q5_k, DT_Q5_K)
DEFINE_GEMV(q6_k, DT_Q6_K)
DEFINE_GEMV(iq4_xs, DT_IQ4_XS)
DEFINE_GEMV(tq1_0, DT_TQ1_0)
DEFINE_GEMV(tq2_0, DT_TQ2_0)
DEFINE_GEMV(iq2_xxs, DT_IQ2_XXS)
DEFINE_GEMV(iq2_xs, DT_IQ2_XS)
DEFINE_GEMV(iq2_s, DT_IQ2_S)
DEFINE_GEMV(iq3_xxs, DT_IQ3_XXS)
DEFINE_GEMV(iq3_s, DT_IQ3_S)
DEFINE_GEMV(iq1_s, DT_IQ1_S)
DEFINE_GEMV(iq1_m, DT_IQ1_M)
