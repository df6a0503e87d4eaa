/* load_f_avx2.h - 8 weights that are floats (F32, F16, BF16) as F32, and 8 x 8 of them transposed, by
 * AVX2: for gemm_f_rows.h. */
#ifndef TERN_KERNEL_CPU_LOAD_F_AVX2_H
#define TERN_KERNEL_CPU_LOAD_F_AVX2_H

#include "kernel/cpu/transpose_avx2.h"

typedef __m256i f8;

INLINE f8 f8_zero(void) { return _mm256_setzero_si256(); }

INLINE f8 f8_load(const char *p, const enum dtype t)
{
    if (t == DT_F32) return _mm256_loadu_si256((const __m256i *)p);
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    if (t == DT_F16) return _mm256_castps_si256(_mm256_cvtph_ps(h));
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
}

INLINE void f8_store(float *p, f8 v) { _mm256_storeu_si256((__m256i *)p, v); }
INLINE void f8_transpose(f8 v[8]) { transpose8(v); }
#endif
