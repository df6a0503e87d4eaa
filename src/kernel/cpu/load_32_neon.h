/* load_32_neon.h - unpacks blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4) to signed bytes, by NEON: for
 * gemv and gemm. */
#ifndef TERN_KERNEL_CPU_LOAD_32_NEON_H
#define TERN_KERNEL_CPU_LOAD_32_NEON_H

#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_neon.h"
#include "kernel/iq_grid.h"

INLINE int block32_bytes(const enum dtype t)
{
    return t == DT_Q4_0 || t == DT_IQ4_NL ? 18
           : t == DT_Q4_1                 ? 20
           : t == DT_Q5_0                 ? 22
           : t == DT_Q5_1                 ? 24
           : t == DT_Q8_0                 ? 34
                                          : 17;
}

/* All ones in every byte whose bit of the 16 in the bytes a and b is set. */
INLINE uint8x16_t spread_bits(uint8_t a, uint8_t b)
{
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    return vtstq_u8(vcombine_u8(vdup_n_u8(a), vdup_n_u8(b)), bit);
}

/* 16 in every byte whose bit of the 16 at p is set. */
INLINE int8x16_t fifth_bits(const uint8_t *p)
{
    return vreinterpretq_s8_u8(vandq_u8(spread_bits(p[0], p[1]), vdupq_n_u8(16)));
}

/* 2^(e - 127), built as the exponent of a float. */
INLINE float scale_mxfp4(uint8_t e)
{
    uint32_t u = (uint32_t)e << 23;
    float f;
    memcpy(&f, &u, 4);
    return f * 0.5f; /* the table holds doubled values */
}

/* The levels that the nibbles of IQ4_NL and MXFP4 index; unused by the others. */
INLINE int8x16_t levels_of(const enum dtype t)
{
    if (t == DT_IQ4_NL) return vld1q_s8(iq4_levels);
    return t == DT_MXFP4 ? vld1q_s8(mxfp4_levels) : vdupq_n_s8(0);
}

/* Unpacks one block. Q4_0 and Q5_0 subtract their offset; Q4_1 and Q5_1 have a minimum. */
INLINE struct w32 load_w32(const char *p, int8x16_t levels, const enum dtype t)
{
    const int head = t == DT_MXFP4 ? 1 : t == DT_Q4_1 ? 4 : t == DT_Q5_0 ? 6 : t == DT_Q5_1 ? 8 : 2;
    struct w32 w = { .d = { t == DT_MXFP4 ? scale_mxfp4((uint8_t)*p) : half_at(p) } };

    w.d[1] = w.d[0];
    if (t == DT_Q8_0) {
        w.q[0] = vld1q_s8((const int8_t *)p + 2);
        w.q[1] = vld1q_s8((const int8_t *)p + 18);
        return w;
    }
    uint8x16_t v = vld1q_u8((const uint8_t *)p + head);
    w.q[0] = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
    w.q[1] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
    UNROLL
    for (int h = 0; h < 2; h++) {
        if (t == DT_Q5_0 || t == DT_Q5_1)
            w.q[h] = vorrq_s8(w.q[h], fifth_bits((const uint8_t *)p + head - 4 + 2 * h));
        if (t == DT_Q4_0) w.q[h] = vsubq_s8(w.q[h], vdupq_n_s8(8));
        if (t == DT_Q5_0) w.q[h] = vsubq_s8(w.q[h], vdupq_n_s8(16));
        if (t == DT_IQ4_NL || t == DT_MXFP4)
            w.q[h] = vqtbl1q_s8(levels, vreinterpretq_u8_s8(w.q[h]));
    }
    if (t == DT_Q4_1 || t == DT_Q5_1) w.m[0] = w.m[1] = half_at(p + 2);
    return w;
}
#endif
