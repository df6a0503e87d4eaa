/* load_32_avx2.h - unpacks blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4) to bytes, by AVX2: for gemv and
 * gemm. */
#ifndef TERN_KERNEL_CPU_LOAD_32_AVX2_H
#define TERN_KERNEL_CPU_LOAD_32_AVX2_H

#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_avx2.h"
#include "kernel/iq_grid.h"

#include <string.h>

enum kind32 { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4 };

/* Formats whose unpacked bytes are signed; the others have a constant minimum (-8 d, -16 d) or
 * one of their own. */
INLINE bool is_signed(const int kind) { return kind == Q8_0 || kind == IQ4_NL || kind == MXFP4; }

INLINE int block32_bytes(const int kind)
{
    return kind == Q4_0 || kind == IQ4_NL ? 18
           : kind == Q4_1                 ? 20
           : kind == Q5_0                 ? 22
           : kind == Q5_1                 ? 24
           : kind == Q8_0                 ? 34
                                          : 17;
}

/* The low nibbles of 16 bytes, then the high ones. */
INLINE __m256i nibbles(const char *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
}

/* 16 in every byte whose bit in the 32 bits at p is set. */
INLINE __m256i fifth_bits(const char *p)
{
    int32_t bits;
    memcpy(&bits, p, 4);
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, bit), _mm256_set1_epi8(16));
}

/* 2^(e - 127), built as the exponent of a float. */
INLINE float scale_mxfp4(const char *p)
{
    uint32_t e = (uint32_t)(uint8_t)*p << 23;
    float f;
    memcpy(&f, &e, 4);
    return f * 0.5f; /* the table holds doubled values */
}

/* 32 weights: value = d * q + m. q is unsigned, or signed for the formats of is_signed. */
struct b32 {
    __m256i q;
    float d, m;
};

/* The levels that the nibbles of IQ4_NL and MXFP4 index; unused by the others. */
INLINE __m256i levels_of(const int kind)
{
    const int8_t *p = kind == IQ4_NL ? iq4_levels : mxfp4_levels;
    if (kind != IQ4_NL && kind != MXFP4) return _mm256_setzero_si256();
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

/* Unpacks one block. head: offset of the nibbles; levels: of levels_of. */
INLINE struct b32 load_b32(const char *p, __m256i levels, const int kind)
{
    const int head = kind == MXFP4 ? 1 : kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : kind == Q5_1 ? 8 : 2;
    struct b32 w = { .d = kind == MXFP4 ? scale_mxfp4(p) : half_at(p), .m = 0 };

    w.q = kind == Q8_0 ? _mm256_loadu_si256((const __m256i *)(p + 2)) : nibbles(p + head);
    if (kind == IQ4_NL || kind == MXFP4) w.q = _mm256_shuffle_epi8(levels, w.q);
    if (kind == Q5_0 || kind == Q5_1) w.q = _mm256_or_si256(w.q, fifth_bits(p + head - 4));
    if (kind == Q4_0) w.m = -8 * w.d;
    if (kind == Q5_0) w.m = -16 * w.d;
    if (kind == Q4_1 || kind == Q5_1) w.m = half_at(p + 2);
    return w;
}
#endif
