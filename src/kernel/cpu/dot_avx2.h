/* dot_avx2.h - shared by the AVX2 gemv kernels.
 *
 * Integer products are vpmaddubsw: unsigned weight bytes times signed activation bytes, two summed
 * to 16 bits, then pairs to 32 bits. 2 * 128 * 127 < 2^15, so the first step does not saturate.
 * With AVX-VNNI (DOT4) one instruction does both. Signed formats move the sign to the activations.
 * Sums are F32, scaled per block of 32, in eight lanes. */
#ifndef TERN_KERNEL_CPU_DOT_AVX2_H
#define TERN_KERNEL_CPU_DOT_AVX2_H

#include "kernel/cpu/dot_x8.h"

#include <immintrin.h>
#include <string.h>

/* The sum of eight lanes. */
INLINE float sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* An F16 at any alignment. */
INLINE float half_at(const char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _cvtsh_ss(h);
}

/* 32 weights: value = d * q + m. q is unsigned, or signed bytes for signed formats. */
struct w32 {
    __m256i q;
    __m256 d;
    __m128 m; /* two lanes: the minimum of each half, multiplied with the half's sum of x */
};

/* acc += products of 32 columns; corr += minima times sums of x. */
INLINE void dot_w32(__m256 *acc, __m128 *corr, const struct w32 *w, const struct x8 *x,
                    const bool is_signed, const bool has_min)
{
    __m256i q = w->q, v = _mm256_loadu_si256((const __m256i *)x->q), p;
    if (is_signed) q = _mm256_abs_epi8(w->q), v = _mm256_sign_epi8(v, w->q);
#ifdef DOT4
    p = DOT4(_mm256_setzero_si256(), q, v);
#else
    p = _mm256_madd_epi16(_mm256_maddubs_epi16(q, v), _mm256_set1_epi16(1));
#endif
    *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(p), _mm256_mul_ps(w->d, _mm256_broadcast_ss(&x->d)),
                           *acc);
    if (has_min)
        *corr = _mm_fmadd_ps(w->m, _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)x->s)), *corr);
}

/* dot_32_avx2.c */
void x8_make_avx2(void *dst, const float *x, int cols);
gemv_fn gemv_q4_0_avx2, gemv_q4_1_avx2, gemv_q5_0_avx2, gemv_q5_1_avx2, gemv_q8_0_avx2,
    gemv_iq4_nl_avx2, gemv_mxfp4_avx2, gemv_iq4_xs_avx2;

/* dot_k_avx2.c */
gemv_fn gemv_q2_k_avx2, gemv_q3_k_avx2;

/* dot_int_avx2.c */
enum { FORM_X256 = FORM_X8 + 1 }; /* as x8, arranged for 256 columns */
size_t x256_bytes_avx2(int cols);
void x256_make_avx2(void *dst, const float *x, int cols);
gemv_fn gemv_q4_k_avx2, gemv_q5_k_avx2, gemv_q6_k_avx2;

/* dot_iq_avx2.c */
gemv_fn gemv_iq2_xxs_avx2, gemv_iq2_xs_avx2, gemv_iq2_s_avx2, gemv_iq3_xxs_avx2, gemv_iq3_s_avx2,
    gemv_iq1_s_avx2, gemv_iq1_m_avx2;

/* dot_f_avx2.c */
gemv_fn gemv_f32_avx2, gemv_f16_avx2, gemv_bf16_avx2, gemv_any_avx2;

/* dot_group_avx2.c */
gemv_fn gemv_grouped_avx2;
#endif
