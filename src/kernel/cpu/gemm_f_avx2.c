/* gemm_f_avx2.c - matrix-matrix product of floats by AVX2: 16 rows x 6 tokens at a time
 * (gemm_f_rows.h). */
#include <immintrin.h>

#define LANES 8
#define VECS 2
#define TOKENS 6

typedef __m256 vf;

#define v_zerof() _mm256_setzero_ps()
#define v_loadf(p) _mm256_loadu_ps(p)
#define v_storef(p, a) _mm256_storeu_ps(p, a)
#define v_setf(f) _mm256_set1_ps(f)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_add(a, b) _mm256_add_ps(a, b)

#include "kernel/cpu/gemm_f_rows.h"

/* Measured: below, the gemv kernels are at the speed of memory. */
static int least_tokens(enum dtype t)
{
    (void)t;
    return 5;
}

const struct gemm gemm_f_avx2 = { .name = "avx2",
                                  .token_unit = TOKENS,
                                  .row_unit = ROWS,
                                  .can = f_can,
                                  .min_tokens = least_tokens,
                                  .x_bytes = f_x_bytes,
                                  .scratch_bytes = f_scratch_bytes,
                                  .pack = f_pack,
                                  .rows = f_rows };
