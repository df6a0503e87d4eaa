/* dot_neon.h - shared by the NEON gemv kernels (ARMv8.2 with dot products: vdotq_s32, signed times
 * signed, four products per 32-bit lane). Sums are F32, scaled per block of 32 or 16. */
#ifndef TERN_KERNEL_CPU_DOT_NEON_H
#define TERN_KERNEL_CPU_DOT_NEON_H

#include "kernel/cpu/dot_x8.h"

#include <arm_neon.h>
#include <string.h>

INLINE float half_at(const void *p)
{
    __fp16 h;
    memcpy(&h, p, 2);
    return (float)h;
}

/* 32 signed weights in two halves: value = d * q + m, with d and m per half. */
struct w32 {
    int8x16_t q[2];
    float d[2], m[2];
};

/* acc += products of 32 columns; corr += minima times sums of x. */
INLINE void dot_w32(float32x4_t *acc, float *corr, const struct w32 *w, const struct x8 *x,
                    const bool one_scale, const bool has_min)
{
    int32x4_t a = vdotq_s32(vdupq_n_s32(0), w->q[0], vld1q_s8(x->q));
    if (one_scale) {
        a = vdotq_s32(a, w->q[1], vld1q_s8(x->q + 16));
        *acc = vfmaq_n_f32(*acc, vcvtq_f32_s32(a), w->d[0] * x->d);
    } else {
        int32x4_t b = vdotq_s32(vdupq_n_s32(0), w->q[1], vld1q_s8(x->q + 16));
        *acc = vfmaq_n_f32(*acc, vcvtq_f32_s32(a), w->d[0] * x->d);
        *acc = vfmaq_n_f32(*acc, vcvtq_f32_s32(b), w->d[1] * x->d);
    }
    if (has_min) *corr += w->m[0] * x->s[0] + w->m[1] * x->s[1];
}

/* dot_32_neon.c */
void x8_make_neon(void *dst, const float *x, int cols);
gemv_fn gemv_q4_0_neon, gemv_q4_1_neon, gemv_q5_0_neon, gemv_q5_1_neon, gemv_q8_0_neon,
    gemv_iq4_nl_neon, gemv_mxfp4_neon;

/* dot_k_neon.c */
gemv_fn gemv_q2_k_neon, gemv_q3_k_neon, gemv_q4_k_neon, gemv_q5_k_neon, gemv_q6_k_neon,
    gemv_iq4_xs_neon, gemv_tq1_0_neon, gemv_tq2_0_neon, gemv_iq2_xxs_neon, gemv_iq2_xs_neon,
    gemv_iq2_s_neon, gemv_iq3_xxs_neon, gemv_iq3_s_neon, gemv_iq1_s_neon, gemv_iq1_m_neon;

/* dot_f_neon.c */
gemv_fn gemv_f32_neon, gemv_f16_neon, gemv_bf16_neon, gemv_any_neon;
#endif
