/* int_avx2.h - shared by the AVX2 gemv kernels that multiply 256 columns at a time: the form of
 * activations, prefetching, and super-blocks with a scale per 16 columns (Q2_K, Q3_K, Q6_K).
 *
 * Products of vpmaddubsw are multiplied by the weights' integer scales in vpmaddwd; d of the weights and
 * of the token follow in F32. */
#ifndef TERN_KERNEL_CPU_INT_AVX2_H
#define TERN_KERNEL_CPU_INT_AVX2_H

#include "kernel/cpu/load_k_avx2.h"

/* 256 columns of a token, rounded per 32 columns. */
struct x256 {
    _Alignas(64) int8_t q[256];
    float d[8];    /* scale of 32 columns */
    float s[8];    /* d * sum of q over 32 columns */
    float s16[16]; /* and over 16 */
};

/* Prefetches weights: those needed soon into L1, those needed later into L2, whose hardware
 * prefetcher does not cross a page. */
INLINE void prefetch_block(const char *p, const int bytes)
{
    UNROLL
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch(p + 2048 + i, _MM_HINT_T0);
        _mm_prefetch(p + 12288 + i, _MM_HINT_T1);
    }
}

/* acc += d * (scale * (q x)) for 32 columns; scale: integers. */
INLINE __m256 add_product(__m256 acc, __m256i q, const int8_t *x, __m256i scale, const float *d)
{
    __m256i p = _mm256_maddubs_epi16(q, _mm256_load_si256((const __m256i *)x));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(p, scale)), _mm256_broadcast_ss(d),
                           acc);
}

/* 16-bit scales i and i + 1 of the 8 in each half of v: the first in the low half, the second in the
 * high half. */
INLINE __m256i pick_two_scales(__m256i v, const int i)
{
    const short a = (short)(2 * i | (2 * i + 1) << 8), b = (short)((2 * i + 2) | (2 * i + 3) << 8);
    return _mm256_shuffle_epi8(v, _mm256_set_m128i(_mm_set1_epi16(b), _mm_set1_epi16(a)));
}

/* The scales of 16 columns as bytes. */
INLINE __m128i scales_16th(const char *p, const int kind)
{
    const struct block_q3_k *b3 = (const void *)p;
    uint32_t s[3], sc[4];

    if (kind == Q2_K) return _mm_and_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(15));
    if (kind == Q6_K)
        return _mm_loadu_si128(
            (const __m128i *)((const struct block_q6_k *)(const void *)p)->scales);
    memcpy(s, b3->scales, 12);
    for (int i = 0; i < 4; i++)
        sc[i] = (s[i & 1] >> (i < 2 ? 0 : 4) & 0x0f0f0f0f) | (s[2] >> 2 * i & 0x03030303) << 4;
    __m128i v = _mm_setr_epi32((int)sc[0], (int)sc[1], (int)sc[2], (int)sc[3]);
    return _mm_sub_epi8(v, _mm_set1_epi8(32));
}

/* The 128 columns of half i, as unsigned bytes. */
INLINE void unpack_16th(__m256i q[4], const char *p, const int i, const int kind)
{
    const struct block_q2_k *b2 = (const void *)p;
    const struct block_q3_k *b3 = (const void *)p;
    const struct block_q6_k *b6 = (const void *)p;

    if (kind == Q6_K) {
        __m256i l0 = load_ymm(b6->ql + 64 * i), l1 = load_ymm(b6->ql + 64 * i + 32),
                h = load_ymm(b6->qh + 32 * i);
        q[0] = _mm256_or_si256(bits(l0, 0, 4, 0), bits(h, 0, 2, 4));
        q[1] = _mm256_or_si256(bits(l1, 0, 4, 0), bits(h, 2, 2, 4));
        q[2] = _mm256_or_si256(bits(l0, 4, 4, 0), bits(h, 4, 2, 4));
        q[3] = _mm256_or_si256(bits(l1, 4, 4, 0), bits(h, 6, 2, 4));
        return;
    }
    __m256i v = load_ymm((kind == Q2_K ? b2->qs : b3->qs) + 32 * i);
    UNROLL
    for (int k = 0; k < 4; k++) {
        q[k] = bits(v, 2 * k, 2, 0);
        if (kind == Q3_K) q[k] = _mm256_or_si256(q[k], bits(load_ymm(b3->hmask), 4 * i + k, 1, 2));
    }
}

/* The low eight bytes of v as F32. */
INLINE __m256 bytes_f32(__m128i v) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)); }

/* acc[t] += a super-block times its token; minima, and offsets (4 of Q3_K, 32 of Q6_K) as minima of
 * offset * scale, go to corr[t]. */
INLINE void block_16(__m256 *acc, __m256 *corr, const char *p, const struct x256 *const *x, int b,
                     const int T, const int kind)
{
    const int d_at = kind == Q2_K ? 80 : kind == Q3_K ? 108 : 208;
    __m128i s8 = scales_16th(p, kind), m8 = s8;
    __m256i sc = _mm256_cvtepi8_epi16(s8);
    __m256 d = _mm256_set1_ps(half_at(p + d_at)), md;
    _Alignas(32) float dx[4][8];

    if (kind == Q2_K) {
        m8 = _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4),
                           _mm_set1_epi8(15));
        md = _mm256_set1_ps(half_at(p + d_at + 2));
    } else {
        md = _mm256_mul_ps(d, _mm256_set1_ps(kind == Q3_K ? 4 : 32));
    }
    __m256 m0 = _mm256_mul_ps(md, bytes_f32(m8));
    __m256 m1 = _mm256_mul_ps(md, bytes_f32(_mm_srli_si128(m8, 8)));
    UNROLL
    for (int t = 0; t < T; t++) {
        _mm256_store_ps(dx[t], _mm256_mul_ps(d, _mm256_loadu_ps(x[t][b].d)));
        corr[t] = _mm256_fnmadd_ps(m0, _mm256_loadu_ps(x[t][b].s16), corr[t]);
        corr[t] = _mm256_fnmadd_ps(m1, _mm256_loadu_ps(x[t][b].s16 + 8), corr[t]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        /* Scales 8 i to 8 i + 7, in both halves. */
        __m256i s = i ? _mm256_permute4x64_epi64(sc, 0xee) : _mm256_permute4x64_epi64(sc, 0x44);
        __m256i q[4];
        unpack_16th(q, p, i, kind);
        UNROLL
        for (int k = 0; k < 4; k++) {
            __m256i scale = pick_two_scales(s, 2 * k);
            UNROLL
            for (int t = 0; t < T; t++)
                acc[t] = add_product(acc[t], q[k], x[t][b].q + 128 * i + 32 * k, scale,
                                     &dx[t][4 * i + k]);
        }
    }
}
#endif
