/* load_f_neon.h - 8 weights that are floats (F32, F16, BF16) as F32, and 8 x 8 of them transposed, by
 * NEON: for gemm_f_rows.h. */
#ifndef TERN_KERNEL_CPU_LOAD_F_NEON_H
#define TERN_KERNEL_CPU_LOAD_F_NEON_H

#include "base/dtype.h"
#include "kernel/cpu/transpose_neon.h"

typedef struct {
    int32x4_t h[2];
} f8;

INLINE f8 f8_zero(void) { return (f8){ { vdupq_n_s32(0), vdupq_n_s32(0) } }; }

INLINE f8 f8_load(const char *p, const enum dtype t)
{
    f8 v;

    UNROLL
    for (int h = 0; h < 2; h++) {
        if (t == DT_F32) {
            v.h[h] = vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p + 16 * h));
            continue;
        }
        uint16x4_t u = vreinterpret_u16_u8(vld1_u8((const uint8_t *)p + 8 * h));
        v.h[h] = t == DT_F16 ? vreinterpretq_s32_f32(vcvt_f32_f16(vreinterpret_f16_u16(u)))
                             : vreinterpretq_s32_u32(vshll_n_u16(u, 16));
    }
    return v;
}

INLINE void f8_store(float *p, f8 v)
{
    vst1q_f32(p, vreinterpretq_f32_s32(v.h[0]));
    vst1q_f32(p + 4, vreinterpretq_f32_s32(v.h[1]));
}

/* In quarters of 4 x 4; those off the diagonal change places. */
INLINE void f8_transpose(f8 v[8])
{
    int32x4_t q[2][2][4]; /* half of the rows, half of the columns */

    UNROLL
    for (int i = 0; i < 8; i++) q[i / 4][0][i % 4] = v[i].h[0], q[i / 4][1][i % 4] = v[i].h[1];
    UNROLL
    for (int i = 0; i < 4; i++) transpose4(q[i / 2][i % 2]);
    UNROLL
    for (int i = 0; i < 8; i++) v[i] = (f8){ { q[0][i / 4][i % 4], q[1][i / 4][i % 4] } };
}
#endif
