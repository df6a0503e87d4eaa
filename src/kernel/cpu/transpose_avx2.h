/* transpose_avx2.h - transposes 8 x 8 numbers of 32 bits: rows of weights become lanes. */
#ifndef TERN_KERNEL_CPU_TRANSPOSE_AVX2_H
#define TERN_KERNEL_CPU_TRANSPOSE_AVX2_H

#include "kernel/cpu/unroll.h"

#include <immintrin.h>
#include <stddef.h>

/* Afterwards v[i] has number i of each of the rows. */
INLINE void transpose8(__m256i v[8])
{
    __m256i a[8], b[8];

    UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

/* 16 bytes at src of each of 8 rows: v[i] has number i of each. The halves of a vector are loaded from
 * two rows, so a third of the shuffles of transpose8 is enough. */
INLINE void transpose_16_bytes(__m256i v[4], const char *src, size_t stride)
{
    __m256i a[4], b[4];

    UNROLL
    for (int r = 0; r < 4; r++) {
        const char *at = src + (size_t)r * stride;
        a[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at)),
                                       _mm_loadu_si128((const __m128i *)(at + 4 * stride)), 1);
    }
    UNROLL
    for (int i = 0; i < 4; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        v[2 * i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        v[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    }
}
#endif
