/* unpack_impl.h - shared by the unpackers: bf16 tables, scales, the loop over the rows of a panel.
 *
 * For files compiled with AVX-512 and AVX512_BF16. */
#ifndef TERN_KERNEL_CPU_UNPACK_IMPL_H
#define TERN_KERNEL_CPU_UNPACK_IMPL_H

#include "kernel/cpu/unpack.h"
#include "kernel/cpu/unroll.h"

#include <immintrin.h>

/* 32 floats, rounded to bf16. */
INLINE __m512i bf16x32(__m512 lo, __m512 hi) { return (__m512i)_mm512_cvtne2ps_pbh(hi, lo); }
/* vpermw: table entries by the low 5 bits of each index word. */
INLINE __m512i lookup(__m512i index, __m512i table)
{
    return _mm512_permutexvar_epi16(index, table);
}
/* 32 bytes as words. */
INLINE __m512i widen(const void *p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256(p)); }
/* 16 bytes as words, twice. */
INLINE __m512i load16x2(const void *p)
{
    return _mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(_mm_loadu_si128(p)));
}
/* Bits of a where mask is set, else of b. */
INLINE __m512i blend(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

INLINE __m512 widen_bf16(__m256i v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

INLINE __m512 iota(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

INLINE float f16_at(const uint16_t *h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*h)));
}

/* Two consecutive F16: the first in lanes 0-7, the second in lanes 8-15. */
INLINE __m512 f16_pair(const uint16_t *h)
{
    uint32_t both;
    memcpy(&both, h, 4);
    __m512i twice = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return _mm512_permutexvar_ps(
        twice, _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int)both))));
}

/* The first four bytes of each of up to 16 blocks (their scales). */
INLINE __m512i heads(const char *p, int block_bytes, int n)
{
    __m512i at =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(block_bytes));
    __mmask16 live = (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), live, at, p, 1);
}
INLINE __m512 heads_f16(__m512i heads) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(heads)); }

/* 32 columns of a row of the panel. */
INLINE void store_step(char *panel, int step, __m512i v)
{
    _mm512_store_si512(panel + (size_t)step * 64, v);
}

/* 16 signed bytes times a scale. */
INLINE __m512 bytes16(const void *p, __m512 scale)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))), scale);
}

/* Prefetches the bytes of `next` that correspond to a row. */
INLINE void prefetch_next(const struct unpack *u, int row, size_t bytes)
{
    if (!u->next) return;
    const char *p = u->next + (size_t)row * u->row_bytes;
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
}

/* Defines an unpack_fn: the loop over the rows of a panel. seg: bytes read per row. */
#define PANEL(name, call)                                                   \
    static void name(const struct unpack *u, char *panel)                   \
    {                                                                       \
        const struct dtype_info *info = dtype_info((int)u->type);           \
        size_t seg = (size_t)(u->cols / info->block) * (size_t)info->bytes; \
        int n = u->cols / 32;                                               \
        (void)n;                                                            \
        for (int r = 0; r < u->rows; r++) {                                 \
            const char *src = u->src + (size_t)r * u->row_bytes;            \
            char *dst = panel + (size_t)r * u->stride;                      \
            prefetch_next(u, r, seg);                                       \
            call;                                                           \
        }                                                                   \
    }

/* The formats of unpack_iq_amx.c; NULL: not one of them. */
unpack_fn *unpack_find_iq(enum dtype t);
#endif
