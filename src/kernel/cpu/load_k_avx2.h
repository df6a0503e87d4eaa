/* load_k_avx2.h - unpacks super-blocks of 256 to bytes with scales, by AVX2: for gemv and gemm. */
#ifndef TERN_KERNEL_CPU_LOAD_K_AVX2_H
#define TERN_KERNEL_CPU_LOAD_K_AVX2_H

#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_avx2.h"
#include "kernel/iq_grid.h"

#include <string.h>

enum kind256 { Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS };

/* An unpacked super-block. */
struct w256 {
    __m256i q[8];       /* 32 elements each, in order */
    float d[16], m[16]; /* per 16 elements: value = d * q + m */
};

/* 32 bytes at any alignment. */
INLINE __m256i load_ymm(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Bits [at, at + n) of every byte, moved to bit `to`. at + n <= 8. */
INLINE __m256i bits(__m256i v, const int at, const int n, const int to)
{
    const __m256i mask = _mm256_set1_epi8((char)(((1 << n) - 1) << to));
    v = at > to ? _mm256_srli_epi16(v, at - to) : _mm256_slli_epi16(v, to - at);
    return _mm256_and_si256(v, mask);
}

/* Eight bytes as numbers, times `by`. */
INLINE __m256 scale_bytes(uint64_t v, float by)
{
    __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)v));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(by));
}

/* A number for 32 elements becomes two for 16. */
INLINE void store_twice(float to[16], __m256 v)
{
    __m256 a = _mm256_unpacklo_ps(v, v), b = _mm256_unpackhi_ps(v, v);
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(a, b, 0x20));
    _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(a, b, 0x31));
}

/* Scales *d and minima *m of Q4_K and Q5_K for 32 elements each (quant_k4_scale, four at a time). */
INLINE void read_scales_45(__m256 *d, __m256 *m, uint16_t d16, uint16_t min16,
                           const uint8_t *scales)
{
    const uint32_t six = 0x3f3f3f3f, high = 0x30303030, low = 0x0f0f0f0f;
    uint32_t s[3];

    memcpy(s, scales, sizeof s);
    *d = scale_bytes((s[0] & six) | (uint64_t)((s[2] & low) | (s[0] >> 2 & high)) << 32,
                     _cvtsh_ss(d16));
    *m = scale_bytes((s[1] & six) | (uint64_t)((s[2] >> 4 & low) | (s[1] >> 2 & high)) << 32,
                     -_cvtsh_ss(min16));
}

INLINE void scales_45(struct w256 *w, uint16_t d16, uint16_t min16, const uint8_t *scales)
{
    __m256 d, m;

    read_scales_45(&d, &m, d16, min16, scales);
    store_twice(w->d, d);
    store_twice(w->m, m);
}

/* Each 32 bytes hold two sub-blocks: low and high nibbles. */
INLINE void load_q4_k(struct w256 *w, const struct block_q4_k *b)
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i v = load_ymm(b->qs + 32 * j);
        w->q[2 * j] = bits(v, 0, 4, 0);
        w->q[2 * j + 1] = bits(v, 4, 4, 0);
    }
    scales_45(w, b->d, b->dmin, b->scales);
}

/* As Q4_K; bit j of qh[l] is bit 4 of element l of sub-block j. */
INLINE void load_q5_k(struct w256 *w, const struct block_q5_k *b)
{
    __m256i h = load_ymm(b->qh);
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i v = load_ymm(b->qs + 32 * j);
        w->q[2 * j] = _mm256_or_si256(bits(v, 0, 4, 0), bits(h, 2 * j, 1, 4));
        w->q[2 * j + 1] = _mm256_or_si256(bits(v, 4, 4, 0), bits(h, 2 * j + 1, 1, 4));
    }
    scales_45(w, b->d, b->dmin, b->scales);
}

/* Nibbles of ql and pairs of bits of qh; the offset 32 becomes a minimum of -32 d. */
INLINE void load_q6_k(struct w256 *w, const struct block_q6_k *b)
{
    float d = _cvtsh_ss(b->d);
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i l0 = load_ymm(b->ql + 64 * i), l1 = load_ymm(b->ql + 64 * i + 32),
                h = load_ymm(b->qh + 32 * i);
        w->q[4 * i] = _mm256_or_si256(bits(l0, 0, 4, 0), bits(h, 0, 2, 4));
        w->q[4 * i + 1] = _mm256_or_si256(bits(l1, 0, 4, 0), bits(h, 2, 2, 4));
        w->q[4 * i + 2] = _mm256_or_si256(bits(l0, 4, 4, 0), bits(h, 4, 2, 4));
        w->q[4 * i + 3] = _mm256_or_si256(bits(l1, 4, 4, 0), bits(h, 6, 2, 4));
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m128i sc = _mm_loadl_epi64((const __m128i *)(b->scales + 8 * i));
        __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc)), _mm256_set1_ps(d));
        _mm256_storeu_ps(w->d + 8 * i, v);
        _mm256_storeu_ps(w->m + 8 * i, _mm256_mul_ps(v, _mm256_set1_ps(-32)));
    }
}

/* Two bits per element; 4-bit scales and minima. */
INLINE void load_q2_k(struct w256 *w, const struct block_q2_k *b)
{
    float d = _cvtsh_ss(b->d), min = _cvtsh_ss(b->dmin);
    UNROLL
    for (int i = 0; i < 8; i++) w->q[i] = bits(load_ymm(b->qs + 32 * (i / 4)), 2 * (i % 4), 2, 0);
    for (int j = 0; j < 16; j++) {
        w->d[j] = d * (float)(b->scales[j] & 15);
        w->m[j] = -min * (float)(b->scales[j] >> 4);
    }
}

/* Two bits of qs and one of hmask; the offset 4 becomes a minimum of -4 d. */
INLINE void load_q3_k(struct w256 *w, const struct block_q3_k *b)
{
    float d = _cvtsh_ss(b->d);
    __m256i h = load_ymm(b->hmask);
    UNROLL
    for (int i = 0; i < 8; i++)
        w->q[i] = _mm256_or_si256(bits(load_ymm(b->qs + 32 * (i / 4)), 2 * (i % 4), 2, 0),
                                  bits(h, i, 1, 2));
    for (int j = 0; j < 16; j++) {
        w->d[j] = d * (float)quant_k3_scale(b->scales, j);
        w->m[j] = -4 * w->d[j];
    }
}

/* Nibbles index the level table; the result is signed and has no minimum. */
INLINE void load_iq4_xs(struct w256 *w, const struct block_iq4_xs *b)
{
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)iq4_levels));
    float d = _cvtsh_ss(b->d);
    for (int j = 0; j < 8; j++) {
        __m128i v = _mm_loadu_si128((const __m128i *)(b->qs + 16 * j));
        __m256i n =
            _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
        int sc = (b->scales_l[j / 2] >> 4 * (j % 2) & 15) | (b->scales_h >> 2 * j & 3) << 4;
        w->q[j] = _mm256_shuffle_epi8(table, n);
        w->d[2 * j] = w->d[2 * j + 1] = d * (float)(sc - 32);
    }
}

INLINE void load_w256(struct w256 *w, const char *p, const int kind)
{
    switch (kind) {
    case Q2_K: load_q2_k(w, (const void *)p); break;
    case Q3_K: load_q3_k(w, (const void *)p); break;
    case Q4_K: load_q4_k(w, (const void *)p); break;
    case Q5_K: load_q5_k(w, (const void *)p); break;
    case Q6_K: load_q6_k(w, (const void *)p); break;
    default: load_iq4_xs(w, (const void *)p);
    }
}

INLINE int block256_bytes(const int kind)
{
    return kind == Q2_K   ? 84
           : kind == Q3_K ? 110
           : kind == Q4_K ? 144
           : kind == Q5_K ? 176
           : kind == Q6_K ? 210
                          : 136;
}
#endif
