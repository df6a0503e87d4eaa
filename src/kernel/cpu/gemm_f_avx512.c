/* gemm_f_avx512.c - matrix-matrix product of floats by AVX-512: 32 rows x 12 tokens at a time
 * (gemm_f_rows.h). */
#include <immintrin.h>

#define LANES 16
#define VECS 2
#define TOKENS 12

typedef __m512 vf;

#define v_zerof() _mm512_setzero_ps()
#define v_loadf(p) _mm512_loadu_ps(p)
#define v_storef(p, a) _mm512_storeu_ps(p, a)
#define v_setf(f) _mm512_set1_ps(f)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_add(a, b) _mm512_add_ps(a, b)

#include "kernel/cpu/gemm_f_rows.h"

/* Measured: below, the gemv kernels are at the speed of memory. */
static int least_tokens(enum dtype t)
{
    (void)t;
    return 7;
}

const struct gemm gemm_f_avx512 = { .name = "avx512",
                                    .token_unit = TOKENS,
                                    .row_unit = ROWS,
                                    .can = f_can,
                                    .min_tokens = least_tokens,
                                    .x_bytes = f_x_bytes,
                                    .scratch_bytes = f_scratch_bytes,
                                    .pack = f_pack,
                                    .rows = f_rows };
