/* gemm_avx512.c - matrix-matrix product by AVX-512 VNNI: 32 rows x 6 tokens at a time (gemm_rows.h). */
#include <immintrin.h>

#define LANES 16
#define VECS 2
#define TOKENS 6
#define FLOATS gemm_f_avx512
#define HAS_DOT4 1

typedef __m512i vi;
typedef __m512 vf;
#define v_zero() _mm512_setzero_si512()
#define v_load(p) _mm512_load_si512(p)
#define v_broadcast4(p) _mm512_set1_epi32(four_bytes(p))
#define v_dot4(s, a, b) _mm512_dpbusd_epi32(s, a, b)
#define v_float(a) _mm512_cvtepi32_ps(a)
#define v_zerof() _mm512_setzero_ps()
#define v_loadf(p) _mm512_loadu_ps(p)
#define v_storef(p, a) _mm512_storeu_ps(p, a)
#define v_setf(f) _mm512_set1_ps(f)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_add(a, b) _mm512_add_ps(a, b)

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
    return is_lattice(t) ? 5 : t == DT_TQ2_0 ? 12 : 9;
}

const struct gemm gemm_avx512 = { .name = "avx512",
                                  .token_unit = 12,
                                  .row_unit = ROWS,
                                  .can = rows_can,
                                  .min_tokens = least_tokens,
                                  .x_bytes = rows_x_bytes,
                                  .scratch_bytes = rows_scratch_bytes,
                                  .pack = rows_pack,
                                  .rows = rows_run };
