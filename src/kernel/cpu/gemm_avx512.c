/* gemm_avx512.c - matrix-matrix product by AVX-512 VNNI: 32 rows x 6 tokens at a time (gemm_rows.h). */
#include <immintrin.h>

#define LANES 16
#define VECS 2
#define TOKENS 6
#define FLOATS gemm_f_avx512
#define HAS_DOT4 1

typedef __m512i vi;
#define v_zero() _mm512_setzero_si512()
#define v_load(p) _mm512_load_si512(p)
#define v_broadcast4(p) _mm512_set1_epi32(four_bytes(p))
#define v_dot4(s, a, b) _mm512_dpbusd_epi32(s, a, b)
#define v_float(a) _mm512_cvtepi32_ps(a)

#include "kernel/cpu/gemm_rows.h"

/* Formats whose gemv kernel spends its time on looking up points. */
static bool is_lattice(enum dtype t)
{
    return t == DT_IQ2_XS || t == DT_IQ2_S || t == DT_IQ3_XXS || t == DT_IQ3_S || t == DT_IQ1_S ||
           t == DT_IQ1_M;
}

/* Measured: below, unpacking costs more than it saves. */
static int least_tokens(enum dtype t)
{
    if (is_float(t)) return FLOATS.min_tokens(t);
    return is_lattice(t) ? 5 : t == DT_Q6_K ? 6 : t == DT_Q8_0 ? 9 : 12;
}

GEMM_TABLE(gemm_avx512, "avx512", rows, 12, least_tokens);
