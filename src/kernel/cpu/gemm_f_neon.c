/* gemm_f_neon.c - matrix-matrix product of floats by NEON: 16 rows x 6 tokens at a time
 * (gemm_f_rows.h). */
#include <arm_neon.h>

#define LANES 4
#define VECS 4
#define TOKENS 6

typedef float32x4_t vf;

#define v_zerof() vdupq_n_f32(0)
#define v_loadf(p) vld1q_f32(p)
#define v_storef(p, a) vst1q_f32(p, a)
#define v_setf(f) vdupq_n_f32(f)
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_mul(a, b) vmulq_f32(a, b)
#define v_add(a, b) vaddq_f32(a, b)

#include "kernel/cpu/gemm_f_rows.h"

static int least_tokens(enum dtype t)
{
    (void)t;
    return 5; /* the gemv kernels take 4 tokens at a time */
}

const struct gemm gemm_f_neon = { .name = "neon",
                                  .token_unit = TOKENS,
                                  .row_unit = ROWS,
                                  .can = f_can,
                                  .min_tokens = least_tokens,
                                  .x_bytes = f_x_bytes,
                                  .scratch_bytes = f_scratch_bytes,
                                  .pack = f_pack,
                                  .rows = f_rows };
