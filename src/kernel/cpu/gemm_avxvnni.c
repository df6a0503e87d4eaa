/* gemm_avxvnni.c - matrix-matrix product by AVX-VNNI: 16 rows x 6 tokens at a time (gemm_rows.h). */
#include "kernel/cpu/avxvnni.h"

#define LANES 8
#define VECS 2
#define TOKENS 6
#define FLOATS gemm_f_avx2
#define HAS_DOT4 1

typedef __m256i vi;
typedef __m256 vf;
#define v_zero() _mm256_setzero_si256()
#define v_load(p) _mm256_load_si256((const __m256i *)(p))
#define v_broadcast4(p) _mm256_set1_epi32(four_bytes(p))
#define v_dot4(s, a, b) DOT4(s, a, b)
#define v_float(a) _mm256_cvtepi32_ps(a)
#define v_zerof() _mm256_setzero_ps()
#define v_loadf(p) _mm256_loadu_ps(p)
#define v_storef(p, a) _mm256_storeu_ps(p, a)
#define v_setf(f) _mm256_set1_ps(f)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_add(a, b) _mm256_add_ps(a, b)

#include "kernel/cpu/gemm_rows.h"

/* As for AVX2, whose unpacking it shares. */
static int least_tokens(enum dtype t) { return is_float(t) ? FLOATS.min_tokens(t) : 5; }

const struct gemm VNNI(gemm) = { .name = "avxvnni",
                                 .token_unit = 6,
                                 .row_unit = ROWS,
                                 .can = rows_can,
                                 .min_tokens = least_tokens,
                                 .x_bytes = rows_x_bytes,
                                 .scratch_bytes = rows_scratch_bytes,
                                 .pack = rows_pack,
                                 .rows = rows_run };
