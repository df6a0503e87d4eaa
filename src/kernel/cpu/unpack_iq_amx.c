/* unpack_iq_amx.c - unpackers to bf16 for the lattice formats (IQ1, IQ2, IQ3) and TQ1_0. AVX-512
 * with BF16. Lattice points are gathered from the tables of kernel/iq_grid.h. */
#include "kernel/cpu/unpack_impl.h"

#include "kernel/quantblocks.h"
#include "kernel/iq_grid.h"

/* Little-endian, at any alignment. */
INLINE uint32_t load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

INLINE long long load64(const void *p)
{
    long long v;
    memcpy(&v, p, 8);
    return v;
}

/* 32 signed bytes; the first 16 are multiplied by s0, the others by s1. */
INLINE void store_bytes(char *dst, int step, __m256i v, float s0, float s1)
{
    __m512 a = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(v)));
    __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(v, 1)));
    store_step(dst, step,
               bf16x32(_mm512_mul_ps(a, _mm512_set1_ps(s0)), _mm512_mul_ps(b, _mm512_set1_ps(s1))));
}

/* Negates the bytes whose bit is set. */
INLINE __m256i with_signs(__m256i v, uint32_t signs)
{
    return _mm256_mask_sub_epi8(v, _cvtu32_mask32(signs), _mm256_setzero_si256(), v);
}

/* 4 x 7 sign bits to 4 x 8: the eighth of each makes the number of set bits even. */
INLINE uint32_t signs_of(const struct iq_grid *g, uint32_t v)
{
    return g->signs[v & 127] | (uint32_t)g->signs[v >> 7 & 127] << 8 |
           (uint32_t)g->signs[v >> 14 & 127] << 16 | (uint32_t)g->signs[v >> 21 & 127] << 24;
}

/* Per 32 elements: four 8-bit indices, 4 x 7 sign bits, a 4-bit scale. */
INLINE void row_iq2_xxs(const char *p, int n, char *dst)
{
    const struct iq_grid *g = iq_grid();
    for (int b = 0; b < n; b += 8, p += 66) {
        const struct block_iq2_xxs *q = (const void *)p;
        float d = 0.25f * f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            const uint8_t *x = (const uint8_t *)(q->qs + 4 * i);
            uint32_t rest = load32(x + 4);
            __m256i v = _mm256_setr_epi64x(load64(g->iq2_xxs[x[0]]), load64(g->iq2_xxs[x[1]]),
                                           load64(g->iq2_xxs[x[2]]), load64(g->iq2_xxs[x[3]]));
            float s = d * (0.5f + (float)(rest >> 28));
            store_bytes(dst, b + i, with_signs(v, signs_of(g, rest)), s, s);
        }
    }
}

/* Per 8 elements: a 9-bit index and 7 sign bits; a 4-bit scale per 16. */
INLINE void row_iq2_xs(const char *p, int n, char *dst)
{
    const struct iq_grid *g = iq_grid();
    for (int b = 0; b < n; b += 8, p += 74) {
        const struct block_iq2_xs *q = (const void *)p;
        float d = 0.25f * f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            const uint16_t *x = q->qs + 4 * i;
            uint32_t signs = g->signs[x[0] >> 9] | (uint32_t)g->signs[x[1] >> 9] << 8 |
                             (uint32_t)g->signs[x[2] >> 9] << 16 |
                             (uint32_t)g->signs[x[3] >> 9] << 24;
            __m256i v =
                _mm256_setr_epi64x(load64(g->iq2_xs[x[0] & 511]), load64(g->iq2_xs[x[1] & 511]),
                                   load64(g->iq2_xs[x[2] & 511]), load64(g->iq2_xs[x[3] & 511]));
            store_bytes(dst, b + i, with_signs(v, signs), d * (0.5f + (float)(q->scales[i] & 15)),
                        d * (0.5f + (float)(q->scales[i] >> 4)));
        }
    }
}

/* Per 8 elements: a 10-bit index and 8 sign bits. */
INLINE void row_iq2_s(const char *p, int n, char *dst)
{
    const struct iq_grid *g = iq_grid();
    for (int b = 0; b < n; b += 8, p += 82) {
        const struct block_iq2_s *q = (const void *)p;
        float d = 0.25f * f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            const uint8_t *x = q->qs + 4 * i;
            int h = q->qh[i];
            __m256i v = _mm256_setr_epi64x(load64(g->iq2_s[x[0] | (h << 8 & 0x300)]),
                                           load64(g->iq2_s[x[1] | (h << 6 & 0x300)]),
                                           load64(g->iq2_s[x[2] | (h << 4 & 0x300)]),
                                           load64(g->iq2_s[x[3] | (h << 2 & 0x300)]));
            store_bytes(dst, b + i, with_signs(v, load32(q->signs + 4 * i)),
                        d * (0.5f + (float)(q->scales[i] & 15)),
                        d * (0.5f + (float)(q->scales[i] >> 4)));
        }
    }
}

/* Eight lattice points of four elements. */
INLINE __m256i points4(const uint8_t grid[][4], __m256i index)
{
    return _mm256_i32gather_epi32((const int *)(const void *)grid, index, 4);
}

/* Per 4 elements an 8-bit index: eight points are gathered at once. */
INLINE void row_iq3_xxs(const char *p, int n, char *dst)
{
    const struct iq_grid *g = iq_grid();
    for (int b = 0; b < n; b += 8, p += 98) {
        const struct block_iq3_xxs *q = (const void *)p;
        float d = 0.5f * f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            uint32_t rest = load32(q->signs + 4 * i);
            __m256i v = points4(
                g->iq3_xxs, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(q->qs + 8 * i))));
            float s = d * (0.5f + (float)(rest >> 28));
            store_bytes(dst, b + i, with_signs(v, signs_of(g, rest)), s, s);
        }
    }
}

/* Per 4 elements a 9-bit index; the ninth bits of eight indices are a byte of qh. */
INLINE void row_iq3_s(const char *p, int n, char *dst)
{
    const struct iq_grid *g = iq_grid();
    const __m256i shift = _mm256_setr_epi32(8, 7, 6, 5, 4, 3, 2, 1), ninth = _mm256_set1_epi32(256);
    for (int b = 0; b < n; b += 8, p += 110) {
        const struct block_iq3_s *q = (const void *)p;
        float d = f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            __m256i high =
                _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(q->qh[i]), shift), ninth);
            __m256i low = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(q->qs + 8 * i)));
            float s = d * (float)(1 + 2 * (q->scales[i / 2] >> 4 * (i % 2) & 15));
            store_bytes(
                dst, b + i,
                with_signs(points4(g->iq3_s, _mm256_or_si256(low, high)), load32(q->signs + 4 * i)),
                s, s);
        }
    }
}

/* Ternary lattice points shifted up or down by 1/8, in units of 1/8: 8 v + 1 or 8 v - 1. */
INLINE __m256i eighths(const struct iq_grid *g, const int index[4], __m256i move)
{
    __m256i v = _mm256_setr_epi64x(load64(g->iq1[index[0]]), load64(g->iq1[index[1]]),
                                   load64(g->iq1[index[2]]), load64(g->iq1[index[3]]));
    v = _mm256_add_epi8(v, v);
    v = _mm256_add_epi8(v, v);
    return _mm256_add_epi8(_mm256_add_epi8(v, v), move);
}

/* Per 8 elements an 11-bit index; scale and shift per 32. */
INLINE void row_iq1_s(const char *p, int n, char *dst)
{
    const struct iq_grid *g = iq_grid();
    for (int b = 0; b < n; b += 8, p += 50) {
        const struct block_iq1_s *q = (const void *)p;
        float d = 0.125f * f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            int h = q->qh[i], index[4];
            for (int l = 0; l < 4; l++) index[l] = q->qs[4 * i + l] | (h >> 3 * l & 7) << 8;
            float s = d * (float)(2 * (h >> 12 & 7) + 1);
            store_bytes(dst, b + i, eighths(g, index, _mm256_set1_epi8(h >> 15 ? -1 : 1)), s, s);
        }
    }
}

/* As IQ1_S, with a scale per 16 elements and a shift per 8. */
INLINE void row_iq1_m(const char *p, int n, char *dst)
{
    const struct iq_grid *g = iq_grid();
    const long long up = 0x0101010101010101;
    for (int b = 0; b < n; b += 8, p += 56) {
        const struct block_iq1_m *q = (const void *)p;
        uint64_t sc = (uint64_t)load64(q->scales);
        uint16_t whole = (uint16_t)((sc >> 12 & 0xf) | (sc >> 24 & 0xf0) | (sc >> 36 & 0xf00) |
                                    (sc >> 48 & 0xf000));
        float d = 0.125f * f16_at(&whole);
        for (int i = 0; i < 8; i++) {
            int h = q->qh[2 * i] | q->qh[2 * i + 1] << 8, index[4];
            uint64_t s = sc >> (16 * (i / 2) + 6 * (i % 2));
            for (int l = 0; l < 4; l++) index[l] = q->qs[4 * i + l] | (h >> 4 * l & 7) << 8;
            __m256i move = _mm256_setr_epi64x(h & 8 ? -1 : up, h & 0x80 ? -1 : up,
                                              h & 0x800 ? -1 : up, h & 0x8000 ? -1 : up);
            store_bytes(dst, b + i, eighths(g, index, move), d * (float)(2 * (s & 7) + 1),
                        d * (float)(2 * (s >> 3 & 7) + 1));
        }
    }
}

/* Digit n of bytes that are base-3 fractions of 256; power is 3^n. */
INLINE __m512i digits(__m512i bytes, __m512i power)
{
    __m512i frac = _mm512_and_si512(_mm512_mullo_epi16(bytes, power), _mm512_set1_epi16(255));
    return _mm512_srli_epi16(_mm512_mullo_epi16(frac, _mm512_set1_epi16(3)), 8);
}

/* A word in the lower half of the lanes, another in the upper half. */
INLINE __m512i halves(short low, short high)
{
    return _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1);
}

/* Steps 0 to 4 are the digits of bytes 0-31; steps 5 to 7 are the digits of bytes 32-47, two per
 * step, and the four digits of the last four bytes. */
INLINE void row_tq1_0(const char *p, int n, char *dst)
{
    static const short power[5] = { 1, 3, 9, 27, 81 };
    const __m512 value = _mm512_setr_ps(-1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2);
    const __m256i last = _mm256_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    for (int b = 0; b < n; b += 8, p += 54) {
        const struct block_tq1_0 *q = (const void *)p;
        __m512 t = _mm512_mul_ps(value, _mm512_set1_ps(f16_at(&q->d)));
        __m512i table = bf16x32(t, t), w = widen(q->qs), v = load16x2(q->qs + 32);
        for (int i = 0; i < 5; i++)
            store_step(dst, b + i, lookup(digits(w, _mm512_set1_epi16(power[i])), table));
        store_step(dst, b + 5, lookup(digits(v, halves(1, 3)), table));
        store_step(dst, b + 6, lookup(digits(v, halves(9, 27)), table));
        __m256i tail = _mm256_cvtepu8_epi16(_mm_set1_epi32((int)load32(q->qh)));
        v = _mm512_inserti64x4(v, tail, 1);
        store_step(dst, b + 7,
                   lookup(digits(v, _mm512_inserti64x4(_mm512_set1_epi16(81), last, 1)), table));
    }
}

PANEL(panel_iq2_xxs, row_iq2_xxs(src, n, dst))
PANEL(panel_iq2_xs, row_iq2_xs(src, n, dst))
PANEL(panel_iq2_s, row_iq2_s(src, n, dst))
PANEL(panel_iq3_xxs, row_iq3_xxs(src, n, dst))
PANEL(panel_iq3_s, row_iq3_s(src, n, dst))
PANEL(panel_iq1_s, row_iq1_s(src, n, dst))
PANEL(panel_iq1_m, row_iq1_m(src, n, dst))
PANEL(panel_tq1_0, row_tq1_0(src, n, dst))

/* A switch and not a table: most types have no entry. */
unpack_fn *unpack_find_iq(enum dtype t)
{
    switch (t) {
    case DT_IQ2_XXS: return panel_iq2_xxs;
    case DT_IQ2_XS: return panel_iq2_xs;
    case DT_IQ2_S: return panel_iq2_s;
    case DT_IQ3_XXS: return panel_iq3_xxs;
    case DT_IQ3_S: return panel_iq3_s;
    case DT_IQ1_S: return panel_iq1_s;
    case DT_IQ1_M: return panel_iq1_m;
    case DT_TQ1_0: return panel_tq1_0;
    default: return NULL;
    }
}
