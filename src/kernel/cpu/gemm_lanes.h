/* gemm_lanes.h - what the matrix products with weight rows in the lanes share (gemm_rows.h,
 * gemm_f_rows.h): F32 vectors of LANES numbers, how sums become output, and the entry in the table.
 *
 * A file defines LANES and VECS, then includes one of those two headers. */
#ifndef TERN_KERNEL_CPU_GEMM_LANES_H
#define TERN_KERNEL_CPU_GEMM_LANES_H

#include "kernel/cpu/gemm.h"
#include "kernel/cpu/unroll.h"

#if LANES == 16
#include <immintrin.h>
typedef __m512 vf;
#define v_zerof() _mm512_setzero_ps()
#define v_loadf(p) _mm512_loadu_ps(p)
#define v_storef(p, a) _mm512_storeu_ps(p, a)
#define v_setf(f) _mm512_set1_ps(f)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_add(a, b) _mm512_add_ps(a, b)
#elif LANES == 8
#include <immintrin.h>
typedef __m256 vf;
#define v_zerof() _mm256_setzero_ps()
#define v_loadf(p) _mm256_loadu_ps(p)
#define v_storef(p, a) _mm256_storeu_ps(p, a)
#define v_setf(f) _mm256_set1_ps(f)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_add(a, b) _mm256_add_ps(a, b)
#else
#include <arm_neon.h>
typedef float32x4_t vf;
#define v_zerof() vdupq_n_f32(0)
#define v_loadf(p) vld1q_f32(p)
#define v_storef(p, a) vst1q_f32(p, a)
#define v_setf(f) vdupq_n_f32(f)
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_mul(a, b) vmulq_f32(a, b)
#define v_add(a, b) vaddq_f32(a, b)
#endif

enum { ROWS = LANES * VECS };

/* Scale, bias and residual addition of rows [row, row + n_rows) of one token; whole vectors if all
 * ROWS rows exist. */
INLINE void write_token(const struct gemm_job *j, const float *sums, float *out, int row,
                        int n_rows)
{
    int r = 0;

    for (; n_rows == ROWS && r < ROWS; r += LANES) {
        vf y = v_mul(v_setf(j->scale), v_loadf(sums + r));
        if (j->bias) y = v_add(y, v_loadf(j->bias + row + r));
        if (j->add) y = v_add(y, v_loadf(out + r));
        v_storef(out + r, y);
    }
    for (; r < n_rows; r++) {
        float y = j->scale * sums[r] + (j->bias ? j->bias[row + r] : 0);
        out[r] = j->add ? out[r] + y : y;
    }
}

/* The table of a gemm whose functions begin with `prefix`. least: the fewest tokens for which it is
 * used instead of gemv kernels. */
#define GEMM_TABLE(symbol, label, prefix, unit, least)                    \
    const struct gemm symbol = { .name = label,                           \
                                 .token_unit = unit,                      \
                                 .row_unit = ROWS,                        \
                                 .can = prefix##_can,                     \
                                 .min_tokens = least,                     \
                                 .x_bytes = prefix##_x_bytes,             \
                                 .scratch_bytes = prefix##_scratch_bytes, \
                                 .pack = prefix##_pack,                   \
                                 .rows = prefix##_run }
#endif
