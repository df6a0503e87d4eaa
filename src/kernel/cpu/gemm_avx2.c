/* gemm_avx2.c - matrix-matrix product by AVX2: 16 rows x 4 tokens at a time (gemm_rows.h). */
#include <immintrin.h>

#define LANES 8
#define VECS 2
#define TOKENS 4
#define FLOATS gemm_f_avx2
#define HAS_DOT4 0

typedef __m256i vi;

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

#include "kernel/cpu/gemm_rows.h"

/* Measured: below, unpacking costs more than it saves; the gemv kernel of TQ2_0 is as fast. */
static int least_tokens(enum dtype t)
{
    if (is_float(t)) return FLOATS.min_tokens(t);
    return t == DT_TQ2_0 ? 12 : 5;
}

GEMM_TABLE(gemm_avx2, "avx2", rows, 6, least_tokens);
