/* load_k_avx512.h - unpacks a super-block of 256 to unsigned bytes in four registers, with its
 * scales.
 *
 * Register i holds groups i, i + 4, i + 8 and i + 12 of 16 columns. In this order the four 128-bit
 * lanes of a register take their bits with the same shift distance between lanes, and formats with
 * a scale per 32 columns may sum registers 0 and 1, and 2 and 3. */
#ifndef TERN_KERNEL_CPU_LOAD_K_AVX512_H
#define TERN_KERNEL_CPU_LOAD_K_AVX512_H

#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_avx512.h"

#include <string.h>

/* value = scale * q - minimum. With scales per 32 columns, d is { scale[8], -minimum[8] }. With
 * scales per 16, d is scale[16] and m the factor of each group's sum of x. */
struct w256 {
    __m512i q[4];
    __m512 d, m;
};

/* A 64-bit value per 128-bit lane, twice. */
INLINE __m512i lanes(const long long a, const long long b, const long long c, const long long d)
{
    return _mm512_setr_epi64(a, a, b, b, c, c, d, d);
}

/* low | (v rotated right by n bits per 64-bit lane & mask). */
INLINE __m512i join(__m512i low, __m512i v, __m512i n, const int mask)
{
    return _mm512_ternarylogic_epi64(low, _mm512_rorv_epi64(v, n), _mm512_set1_epi8((char)mask),
                                     0xf8);
}

/* Two consecutive F16, d and dmin: d in lanes 0-7, -dmin in lanes 8-15. */
INLINE __m512 d_dmin(const uint16_t *p)
{
    const __m512i at = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m128 d = _mm_cvtph_ps(_mm_loadu_si32(p));
    d = _mm_xor_ps(d, _mm_setr_ps(0.0f, -0.0f, 0.0f, 0.0f));
    return _mm512_permutexvar_ps(at, _mm512_castps128_ps512(d));
}

/* The 6-bit scales and minima of Q4_K and Q5_K, which follow d and dmin: lanes { sc[8], m[8] }. */
INLINE __m512 scales_45(const uint16_t *p)
{
    /* Byte indices into the 16 bytes at p, zero-extended to 32 bits; the scales begin at byte 4.
     * at_a selects the low bits, at_b bits 4 and 5 of the last four. */
    const int z = (int)0x80808000u, no = (int)0x80808080u;
    const __m512i at_a =
        _mm512_setr_epi32(z | 4, z | 5, z | 6, z | 7, z | 12, z | 13, z | 14, z | 15, z | 8, z | 9,
                          z | 10, z | 11, z | 12, z | 13, z | 14, z | 15);
    const __m512i at_b = _mm512_setr_epi32(no, no, no, no, z | 4, z | 5, z | 6, z | 7, no, no, no,
                                           no, z | 8, z | 9, z | 10, z | 11);
    const __m512i cut =
        _mm512_setr_epi32(63, 63, 63, 63, 15, 15, 15, 15, 63, 63, 63, 63, 15, 15, 15, 15);
    const __m512i down = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4);
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
    __m512i a = _mm512_shuffle_epi8(v, at_a);
    __m512i b = _mm512_shuffle_epi8(v, at_b);
    a = _mm512_and_si512(_mm512_srlv_epi32(a, down), cut);
    a = _mm512_ternarylogic_epi64(a, _mm512_srli_epi32(b, 2), _mm512_set1_epi32(0x30), 0xf8);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(a), d_dmin(p));
}

/* The nibbles of Q4_K and Q5_K in the order of form 2: 128-bit lanes of even and odd index, low
 * and high halves. */
INLINE void nibbles_45(__m512i q[4], const uint8_t *qs)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i v = _mm512_loadu_si512(qs), w = _mm512_loadu_si512(qs + 64);
    __m512i a = _mm512_shuffle_i64x2(v, w, 0x88), b = _mm512_shuffle_i64x2(v, w, 0xdd);
    q[0] = _mm512_and_si512(a, low);
    q[1] = _mm512_and_si512(b, low);
    q[2] = _mm512_and_si512(_mm512_srli_epi16(a, 4), low);
    q[3] = _mm512_and_si512(_mm512_srli_epi16(b, 4), low);
}

/* d serves as both, scales and minima; m is not used. */
INLINE struct w256 load_q4_k(const struct block_q4_k *b)
{
    struct w256 w;
    nibbles_45(w.q, b->qs);
    w.d = w.m = scales_45(&b->d);
    return w;
}

/* Bit i of qh is bit 4 of sub-block i: rotations bring it to bit 4 in every lane. */
INLINE struct w256 load_q5_k(const struct block_q5_k *b)
{
    struct w256 w;
    __m512i h0 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)b->qh));
    __m512i h1 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(b->qh + 16)));
    const __m512i even = lanes(60, 62, 0, 2), odd = lanes(61, 63, 1, 3);

    nibbles_45(w.q, b->qs);
    w.q[0] = join(w.q[0], h0, even, 16);
    w.q[1] = join(w.q[1], h1, even, 16);
    w.q[2] = join(w.q[2], h0, odd, 16);
    w.q[3] = join(w.q[3], h1, odd, 16);
    w.d = w.m = scales_45(&b->d);
    return w;
}

/* 16 bytes at p in 128-bit lanes 0 and 1, 16 bytes at p + step in lanes 2 and 3. */
INLINE __m512i pairs(const uint8_t *p, const int step)
{
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
    return _mm512_mask_broadcast_i32x4(v, 0xff00, _mm_loadu_si128((const __m128i *)(p + step)));
}

/* Nibbles of ql, and two bits of qh at bits 4 and 5. */
INLINE struct w256 load_q6_k(const struct block_q6_k *b)
{
    const __m512i low = _mm512_set1_epi8(15), nib = lanes(0, 4, 0, 4);
    const __m512i first = lanes(60, 0, 60, 0), second = lanes(62, 2, 62, 2);
    __m512i h0 = pairs(b->qh, 32), h1 = pairs(b->qh + 16, 32);
    struct w256 w;

    UNROLL
    for (int i = 0; i < 4; i++)
        w.q[i] = _mm512_and_si512(_mm512_srlv_epi64(pairs(b->ql + 16 * i, 64), nib), low);
    w.q[0] = join(w.q[0], h0, first, 0x30);
    w.q[1] = join(w.q[1], h1, first, 0x30);
    w.q[2] = join(w.q[2], h0, second, 0x30);
    w.q[3] = join(w.q[3], h1, second, 0x30);
    w.d = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)b->scales)));
    w.d = _mm512_mul_ps(w.d, _mm512_set1_ps(_cvtsh_ss(b->d)));
    w.m = _mm512_mul_ps(w.d, _mm512_set1_ps(-32));
    return w;
}

/* The two-bit elements of Q2_K and Q3_K. */
INLINE void pairs_23(__m512i q[4], const uint8_t *qs)
{
    const __m512i low = _mm512_set1_epi8(3), even = lanes(0, 4, 0, 4), odd = lanes(2, 6, 2, 6);
    __m512i a = pairs(qs, 32), b = pairs(qs + 16, 32);
    q[0] = _mm512_and_si512(_mm512_srlv_epi64(a, even), low);
    q[1] = _mm512_and_si512(_mm512_srlv_epi64(b, even), low);
    q[2] = _mm512_and_si512(_mm512_srlv_epi64(a, odd), low);
    q[3] = _mm512_and_si512(_mm512_srlv_epi64(b, odd), low);
}

/* 4-bit scales and minima per 16 columns. */
INLINE struct w256 load_q2_k(const struct block_q2_k *b)
{
    struct w256 w;
    __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)b->scales));

    pairs_23(w.q, b->qs);
    w.d = _mm512_cvtepi32_ps(_mm512_and_si512(s, _mm512_set1_epi32(15)));
    w.d = _mm512_mul_ps(w.d, _mm512_set1_ps(_cvtsh_ss(b->d)));
    w.m = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(s, 4)),
                        _mm512_set1_ps(-_cvtsh_ss(b->dmin)));
    return w;
}

/* Bit i of hmask is bit 2 of elements 32 i to 32 i + 31. The offset 4 becomes a minimum of -4 d. */
INLINE struct w256 load_q3_k(const struct block_q3_k *b)
{
    const __m512i even = lanes(62, 0, 2, 4), odd = lanes(63, 1, 3, 5);
    __m512i h0 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)b->hmask));
    __m512i h1 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(b->hmask + 16)));
    uint32_t s[3], sc[4];
    struct w256 w;

    pairs_23(w.q, b->qs);
    w.q[0] = join(w.q[0], h0, even, 4);
    w.q[1] = join(w.q[1], h1, even, 4);
    w.q[2] = join(w.q[2], h0, odd, 4);
    w.q[3] = join(w.q[3], h1, odd, 4);
    memcpy(s, b->scales, 12);
    for (int i = 0; i < 4; i++)
        sc[i] = (s[i & 1] >> (i < 2 ? 0 : 4) & 0x0f0f0f0f) | (s[2] >> 2 * i & 0x03030303) << 4;
    __m512i k = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)sc));
    w.d = _mm512_cvtepi32_ps(_mm512_sub_epi32(k, _mm512_set1_epi32(32)));
    w.d = _mm512_mul_ps(w.d, _mm512_set1_ps(_cvtsh_ss(b->d)));
    w.m = _mm512_mul_ps(w.d, _mm512_set1_ps(-4));
    return w;
}
#endif
