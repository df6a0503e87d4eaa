/* unpack8_amx.h - unpacks 256 columns of 16 rows of weights to signed bytes and scales, for
 * gemm8_amx.c. AVX-512.
 *
 * value = s[sub] * q (+ s[8 + sub] if the format has minima) for each sub-block of 32 columns.
 * Formats with a scale per 16 columns have 16 sub-blocks and no minima. The order of the sub-blocks
 * in a row of the panel is the one that is cheapest to unpack (sub_offset gives it). */
#ifndef TERN_KERNEL_CPU_UNPACK8_AMX_H
#define TERN_KERNEL_CPU_UNPACK8_AMX_H

#include "kernel/cpu/load_k_avx512.h"

/* The stride is one cache line more than the columns need; without it the rows would map to few
 * sets of the cache. */
enum { P8_ROWS = 16, P8_STRIDE = 256 + 64 };

struct panel8 {
    _Alignas(64) int8_t q[P8_ROWS][P8_STRIDE];
    _Alignas(64) float s[P8_ROWS][16];
};

/* A format: compile-time constants of the kernels. */
struct kind8 {
    enum dtype type;
    int block_bytes; /* bytes of a block */
    int block;       /* columns of a block: 256 or 32 */
    int subs;        /* sub-blocks in 256 columns: 8 or 16 */
    bool minima;
};

/* Where the bytes of a sub-block begin in a row of the panel. */
INLINE int sub_offset(const enum dtype t, int sub)
{
    if (t == DT_Q4_K || t == DT_Q5_K) return sub / 4 * 128 + sub % 2 * 64 + sub / 2 % 2 * 32;
    if (t == DT_Q6_K || t == DT_Q3_K) return sub % 4 * 64 + sub / 4 * 16;
    return 32 * sub;
}

INLINE void p8_put(int8_t *q, int at, __m512i v) { _mm512_store_si512(q + at, v); }

/* The low nibbles of 64 bytes are sub-blocks 4 i and 4 i + 2, the high ones 4 i + 1 and 4 i + 3. */
INLINE void p8_q4_k(const struct block_q4_k *b, int8_t *q, float *s)
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m512i v = _mm512_loadu_si512(b->qs + 64 * i);
        p8_put(q, 128 * i, _mm512_and_si512(v, low));
        p8_put(q, 128 * i + 64, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
    }
    _mm512_store_ps(s, scales_45(&b->d));
}

/* As Q4_K, with bit 4 from qh. */
INLINE void p8_q5_k(const struct block_q5_k *b, int8_t *q, float *s)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)b->qh));
    const __m512i even[2] = { lanes(60, 60, 62, 62), lanes(0, 0, 2, 2) };
    const __m512i odd[2] = { lanes(61, 61, 63, 63), lanes(1, 1, 3, 3) };
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m512i v = _mm512_loadu_si512(b->qs + 64 * i);
        p8_put(q, 128 * i, join(_mm512_and_si512(v, low), h, even[i], 16));
        p8_put(q, 128 * i + 64,
               join(_mm512_and_si512(_mm512_srli_epi16(v, 4), low), h, odd[i], 16));
    }
    _mm512_store_ps(s, scales_45(&b->d));
}

/* Formats that load_k_avx512.h unpacks; zero: their offset. */
INLINE void p8_w256(struct w256 w, const int zero, int8_t *q, float *s)
{
    UNROLL
    for (int i = 0; i < 4; i++)
        p8_put(q, 64 * i, _mm512_sub_epi8(w.q[i], _mm512_set1_epi8((char)zero)));
    _mm512_store_ps(s, w.d);
}

/* ---- formats with blocks of 32: n blocks, at most 8 ---- */

/* The first four bytes of each block; 0 beyond the n-th. */
INLINE __m256i p8_heads(const char *p, const int bytes, int n)
{
    const __m256i at =
        _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(bytes));
    __m256i live =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), (const int *)(const void *)p, at,
                                       live, 1);
}
INLINE __m256 p8_f16(__m256i v) { return _mm256_cvtph_ps(_mm256_cvtepi32_epi16(v)); }
INLINE void p8_scales(float *s, __m256 d, __m256 m)
{
    _mm256_store_ps(s, d);
    _mm256_store_ps(s + 8, m);
}

/* 16 bytes to 32: the low nibbles, then the high ones. */
INLINE __m256i p8_nibbles(const void *qs)
{
    const __m256i down = _mm256_setr_epi64x(0, 0, 4, 4);
    __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(qs));
    return _mm256_and_si256(_mm256_srlv_epi64(v, down), _mm256_set1_epi8(15));
}
/* Adds 16 where the bit of qh is set. */
INLINE __m256i p8_fifth(__m256i v, const void *qh)
{
    uint32_t bits;
    memcpy(&bits, qh, 4);
    return _mm256_mask_add_epi8(v, _cvtu32_mask32(bits), v, _mm256_set1_epi8(16));
}
/* Levels of IQ4 or MXFP4. */
INLINE __m256i p8_table(__m256i v, const enum dtype t)
{
    const __m128i iq4 =
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    const __m128i fp4 = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t == DT_MXFP4 ? fp4 : iq4), v);
}

/* One block of 32 as signed bytes. */
INLINE __m256i p8_block(const enum dtype t, const char *p)
{
    switch (t) {
    case DT_Q4_0: return _mm256_sub_epi8(p8_nibbles(p + 2), _mm256_set1_epi8(8));
    case DT_Q4_1: return p8_nibbles(p + 4);
    case DT_Q5_0: return _mm256_sub_epi8(p8_fifth(p8_nibbles(p + 6), p + 2), _mm256_set1_epi8(16));
    case DT_Q5_1: return p8_fifth(p8_nibbles(p + 8), p + 4);
    case DT_IQ4_NL: return p8_table(p8_nibbles(p + 2), t);
    default: return p8_table(p8_nibbles(p + 1), DT_MXFP4);
    }
}

/* n blocks of a 32-element format. */
INLINE void p8_small(const enum dtype t, const int bytes, const char *p, int n, int8_t *q, float *s)
{
    __m256i h = p8_heads(p, bytes, n);
    __m256 d = p8_f16(h), m = _mm256_setzero_ps();

    if (t == DT_Q4_1 || t == DT_Q5_1) m = p8_f16(_mm256_srli_epi32(h, 16));
    if (t == DT_MXFP4) { /* half of 2^(e - 127): the table holds doubled values */
        h = _mm256_and_si256(h, _mm256_set1_epi32(255));
        d = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(h, 23)), _mm256_set1_ps(0.5f));
    }
    p8_scales(s, d, m);
    for (int i = 0; i < n; i++)
        _mm256_store_si256((__m256i *)(q + 32 * i), p8_block(t, p + i * bytes));
}

/* Eight sub-blocks with 6-bit scales. */
INLINE void p8_iq4_xs(const struct block_iq4_xs *b, int8_t *q, float *s)
{
    uint32_t low, high = b->scales_h;
    const __m256i nib = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    memcpy(&low, b->scales_l, 4);
    __m256i l = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)low), nib),
                                 _mm256_set1_epi32(15));
    __m256i h = _mm256_srlv_epi32(_mm256_set1_epi32((int)high), _mm256_srli_epi32(nib, 1));
    h = _mm256_slli_epi32(_mm256_and_si256(h, _mm256_set1_epi32(3)), 4);
    l = _mm256_sub_epi32(_mm256_or_si256(l, h), _mm256_set1_epi32(32));
    p8_scales(s, _mm256_mul_ps(_mm256_cvtepi32_ps(l), _mm256_set1_ps(_cvtsh_ss(b->d))),
              _mm256_setzero_ps());
    UNROLL
    for (int i = 0; i < 8; i++)
        _mm256_store_si256((__m256i *)(q + 32 * i),
                           p8_table(p8_nibbles(b->qs + 16 * i), DT_IQ4_XS));
}

/* 256 columns of one row; n: number of blocks, for formats with blocks of 32. */
INLINE void p8_row(const enum dtype t, const int bytes, const char *p, int n, int8_t *q, float *s)
{
    switch (t) {
    case DT_Q4_K: p8_q4_k((const void *)p, q, s); break;
    case DT_Q5_K: p8_q5_k((const void *)p, q, s); break;
    case DT_Q6_K: p8_w256(load_q6_k((const void *)p), 32, q, s); break;
    case DT_Q3_K: p8_w256(load_q3_k((const void *)p), 4, q, s); break;
    case DT_IQ4_XS: p8_iq4_xs((const void *)p, q, s); break;
    default: p8_small(t, bytes, p, n, q, s);
    }
}
#endif
