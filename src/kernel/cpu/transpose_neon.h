/* transpose_neon.h - transposes 4 x 4 numbers of 32 bits in NEON registers. */
#ifndef TERN_KERNEL_CPU_TRANSPOSE_NEON_H
#define TERN_KERNEL_CPU_TRANSPOSE_NEON_H

#include "kernel/cpu/unroll.h"

#include <arm_neon.h>

/* Afterwards r[i] has number i of each of the rows. */
INLINE void transpose4(int32x4_t r[4])
{
    int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(r[0], r[1])),
              b = vreinterpretq_s64_s32(vtrn2q_s32(r[0], r[1])),
              c = vreinterpretq_s64_s32(vtrn1q_s32(r[2], r[3])),
              d = vreinterpretq_s64_s32(vtrn2q_s32(r[2], r[3]));

    r[0] = vreinterpretq_s32_s64(vtrn1q_s64(a, c));
    r[1] = vreinterpretq_s32_s64(vtrn1q_s64(b, d));
    r[2] = vreinterpretq_s32_s64(vtrn2q_s64(a, c));
    r[3] = vreinterpretq_s32_s64(vtrn2q_s64(b, d));
}
#endif
