/* int_avx2.h - shared by the AVX2 gemv kernels that multiply 256 columns at a time: the form of
 * activations, prefetching, and super-blocks with a scale per 16 columns (Q2_K, Q3_K, Q6_K).
 *
 * The scales of a token's blocks of 32 are multiples of a common unit, at most 255 of it. So a super-block
 * is summed in integers: vpmaddubsw gives sums of two products in 16 bits, vpmaddwd multiplies them by
 * the weights' scale times the token's multiple, and one conversion to F32 follows, with d of the weights
 * and the unit of the token. Minima and offsets are multiplied with integer sums of the token's bytes.
 * What a lane sums up at most, over 256 columns, is below 2^31:
 *
 *     Q4_K  2 *  15 * 127 * 2 *  63 * 255 * 8 = 0.98e9     Q2_K  2 * 3 * 127 * 2 * 15 * 255 * 8
 *     Q5_K  2 *  31 * 127 * 2 *  63 * 255 * 8 = 2.02e9     Q3_K  2 * 7 * 127 * 2 * 32 * 255 * 8
 *     Q6_K  2 *  63 * 127 * 2 * 128 * 255 * 2 = 2.09e9, over 64 columns */
#ifndef TERN_KERNEL_CPU_INT_AVX2_H
#define TERN_KERNEL_CPU_INT_AVX2_H

#include "kernel/cpu/load_k_avx2.h"

enum { X256_UNITS = 255 }; /* the largest multiple */

/* 256 columns of a token, rounded per 32 columns: x = unit * k * q. */
struct x256 {
    _Alignas(64) int8_t q[256];
    int16_t k32[16]; /* multiples of the 8 blocks, twice */
    int16_t k16[16]; /* multiples of the 16 half blocks */
    int16_t n16[16]; /* sums of q over 16 columns */
    int16_t n32[8];  /* and over 32 */
    float d[8];      /* scale of 32 columns: unit * k */
    float s[8];      /* d * sum of q over 32 columns */
    float unit;
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

/* Sums of 32 products, each multiplied by its scale. */
INLINE __m256i scaled_products(__m256i q, const int8_t *x, __m256i scale)
{
    __m256i p = _mm256_maddubs_epi16(q, _mm256_load_si256((const __m256i *)x));
    return _mm256_madd_epi16(p, scale);
}

INLINE __m256i load_16(const int16_t *p) { return _mm256_load_si256((const __m256i *)p); }

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

/* What is subtracted from the products of a super-block, over its d: minima of Q2_K, and offsets (4 of
 * Q3_K, 32 of Q6_K) as minima of offset * scale. by: the factor of the returned sums. */
INLINE __m256i minima_16th(const char *p, __m256i sc, float *by, const int kind)
{
    *by = kind == Q2_K   ? half_at(p + 82)
          : kind == Q3_K ? 4 * half_at(p + 108)
                         : 32 * half_at(p + 208);
    if (kind != Q2_K) return sc;
    return _mm256_cvtepu8_epi16(
        _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4), _mm_set1_epi8(15)));
}

/* acc[t] += a super-block times its token. */
INLINE void block_16(__m256 *acc, const char *p, const struct x256 *const *x, int b, const int T,
                     const int kind)
{
    const int d_at = kind == Q2_K ? 80 : kind == Q3_K ? 108 : 208;
    __m256i sc = _mm256_cvtepi8_epi16(scales_16th(p, kind)), s[4][2], q[4];
    __m256 sum[4];
    float d = half_at(p + d_at), by;
    __m256i minima = minima_16th(p, sc, &by, kind);

    UNROLL
    for (int t = 0; t < T; t++) {
        const struct x256 *o = &x[t][b];
        __m256i v = _mm256_mullo_epi16(sc, load_16(o->k16));
        __m256i m = kind == Q2_K ? _mm256_mullo_epi16(minima, load_16(o->k16)) : v;
        /* Scales 0 to 7, then 8 to 15, in both halves. */
        s[t][0] = _mm256_permute4x64_epi64(v, 0x44);
        s[t][1] = _mm256_permute4x64_epi64(v, 0xee);
        acc[t] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(m, load_16(o->n16))),
                                  _mm256_set1_ps(by * o->unit), acc[t]);
        sum[t] = _mm256_setzero_ps();
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        unpack_16th(q, p, i, kind);
        UNROLL
        for (int k = 0; k < 4; k += 2) UNROLL
        for (int t = 0; t < T; t++) {
            const int8_t *o = x[t][b].q + 128 * i + 32 * k;
            __m256i v = _mm256_add_epi32(
                scaled_products(q[k], o, pick_two_scales(s[t][i], 2 * k)),
                scaled_products(q[k + 1], o + 32, pick_two_scales(s[t][i], 2 * k + 2)));
            sum[t] = _mm256_add_ps(sum[t], _mm256_cvtepi32_ps(v));
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        acc[t] = _mm256_fmadd_ps(sum[t], _mm256_set1_ps(d * x[t][b].unit), acc[t]);
}

/* As GEMV_EACH_ROW, with ROWS(g, r, R, t0, T, kind): one token is multiplied with two rows at a time. */
#define GEMV_EACH_TILE(ROWS, g, kind)                                          \
    do {                                                                       \
        int r_ = 0, n_ = (g)->n_tokens;                                        \
        if (n_ == 1)                                                           \
            for (; r_ + 2 <= (g)->n_rows; r_ += 2) ROWS(g, r_, 2, 0, 1, kind); \
        for (; r_ < (g)->n_rows; r_++) {                                       \
            int t_ = 0;                                                        \
            for (; n_ - t_ >= 4; t_ += 4) ROWS(g, r_, 1, t_, 4, kind);         \
            if (n_ - t_ >= 2) {                                                \
                ROWS(g, r_, 1, t_, 2, kind);                                   \
                t_ += 2;                                                       \
            }                                                                  \
            if (n_ - t_ >= 1) ROWS(g, r_, 1, t_, 1, kind);                     \
        }                                                                      \
    } while (0)
#endif
