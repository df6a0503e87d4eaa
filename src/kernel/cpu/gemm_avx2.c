/* gemm_avx2.c - matrix-matrix product by AVX2: 16 rows x 4 tokens at a time (gemm_rows.h). */
#include <immintrin.h>

#define LANES 8
#define VECS 2
#define TOKENS 4
#define FLOATS gemm_f_avx2
#define HAS_DOT4 0

typedef __m256i vi;
typedef __m256 vf;

/* gcc would reassociate a chain of integer sums, compute all products first and spill them. */
static inline vi keep_order(vi sum)
{
    __asm__("" : "+x"(sum));
    return sum;
}

#define v_zero() _mm256_setzero_si256()
#define v_load(p) _mm256_load_si256((const __m256i *)(p))
#define v_broadcast4(p) _mm256_set1_epi32(four_bytes(p))
#define v_maddubs(a, b) _mm256_maddubs_epi16(a, b)
#define v_madd(a, b) _mm256_madd_epi16(a, b)
#define v_add16(a, b) keep_order(_mm256_add_epi16(a, b))
#define v_add32(a, b) keep_order(_mm256_add_epi32(a, b))
#define v_ones16() _mm256_set1_epi16(1)
#define v_float(a) _mm256_cvtepi32_ps(a)
#define v_zerof() _mm256_setzero_ps()
#define v_loadf(p) _mm256_loadu_ps(p)
#define v_storef(p, a) _mm256_storeu_ps(p, a)
#define v_setf(f) _mm256_set1_ps(f)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_add(a, b) _mm256_add_ps(a, b)

#include "kernel/cpu/gemm_rows.h"

/* Measured: below, unpacking costs more than it saves; the gemv kernel of TQ2_0 is as fast. */
static int least_tokens(enum dtype t)
{
    if (is_float(t)) return FLOATS.min_tokens(t);
    return t == DT_TQ2_0 ? 12 : 5;
}

const struct gemm gemm_avx2 = { .name = "avx2",
                                .token_unit = 6,
                                .row_unit = ROWS,
                                .can = rows_can,
                                .min_tokens = least_tokens,
                                .x_bytes = rows_x_bytes,
                                .scratch_bytes = rows_scratch_bytes,
                                .pack = rows_pack,
                                .rows = rows_run };
