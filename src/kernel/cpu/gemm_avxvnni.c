/* gemm_avxvnni.c - matrix-matrix product by AVX-VNNI: 16 rows x 6 tokens at a time (gemm_rows.h). */
#include "kernel/cpu/avxvnni.h"

#define LANES 8
#define VECS 2
#define TOKENS 6
#define FLOATS gemm_f_avx2
#define HAS_DOT4 1

typedef __m256i vi;
#define v_zero() _mm256_setzero_si256()
#define v_load(p) _mm256_load_si256((const __m256i *)(p))
#define v_broadcast4(p) _mm256_set1_epi32(four_bytes(p))
#define v_dot4(s, a, b) DOT4(s, a, b)
#define v_float(a) _mm256_cvtepi32_ps(a)

#include "kernel/cpu/gemm_rows.h"

/* As for AVX2, whose unpacking it shares. */
static int least_tokens(enum dtype t) { return is_float(t) ? FLOATS.min_tokens(t) : 5; }

GEMM_TABLE(VNNI(gemm), "avxvnni", rows, 6, least_tokens);
