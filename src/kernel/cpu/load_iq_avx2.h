/* load_iq_avx2.h - unpacks the lattice formats (IQ1, IQ2, IQ3) and the ternary ones (TQ) to unsigned
 * bytes with scales and minima, by AVX2: for gemv and gemm.
 *
 * Signed points are offset by 64, so that no byte is negative and products of pairs with 7 bits fit
 * 16 bits: 2 * (64 + 62) * 127 < 2^15. The offset comes back as a minimum of -64 d. */
#ifndef TERN_KERNEL_CPU_LOAD_IQ_AVX2_H
#define TERN_KERNEL_CPU_LOAD_IQ_AVX2_H

#include "kernel/cpu/load_k_avx2.h"

enum kind_iq { IQ2_XXS = IQ4_XS + 1, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0 };
enum { IQ_OFFSET = 64 };

INLINE uint32_t load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
INLINE long long load_i64(const void *p)
{
    long long v;
    memcpy(&v, p, 8);
    return v;
}

/* 32 magnitudes, negated where the bit of `signs` is set, plus the offset. */
INLINE __m256i apply_signs(__m256i v, uint32_t signs)
{
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i s = _mm256_shuffle_epi8(_mm256_set1_epi32((int)signs), spread);
    s = _mm256_cmpeq_epi8(_mm256_and_si256(s, bit), bit);
    v = _mm256_sub_epi8(_mm256_xor_si256(v, s), s);
    return _mm256_add_epi8(v, _mm256_set1_epi8(IQ_OFFSET));
}

/* Four times 7 sign bits, of which the table makes four times 8. */
INLINE uint32_t four_signs(const struct iq_grid *g, uint32_t v)
{
    return g->signs[v & 127] | (uint32_t)g->signs[v >> 7 & 127] << 8 |
           (uint32_t)g->signs[v >> 14 & 127] << 16 | (uint32_t)g->signs[v >> 21 & 127] << 24;
}

INLINE __m256i four_points(const void *a, const void *b, const void *c, const void *d)
{
    return _mm256_setr_epi64x(load_i64(a), load_i64(b), load_i64(c), load_i64(d));
}

/* The scale of 16 elements j, and the minimum that undoes the offset. */
INLINE void set_scale(struct w256 *w, int j, float d, const int offset)
{
    w->d[j] = d;
    w->m[j] = (float)-offset * d;
}

INLINE void load_iq2_xxs(struct w256 *w, const struct block_iq2_xxs *b, const struct iq_grid *g)
{
    float d = _cvtsh_ss(b->d) * 0.25f;

    for (int i = 0; i < 8; i++) {
        const uint8_t *at = (const uint8_t *)(b->qs + 4 * i);
        uint32_t rest = load_u32(at + 4);
        __m256i v =
            four_points(g->iq2_xxs[at[0]], g->iq2_xxs[at[1]], g->iq2_xxs[at[2]], g->iq2_xxs[at[3]]);
        w->q[i] = apply_signs(v, four_signs(g, rest));
        set_scale(w, 2 * i, d * (0.5f + (float)(rest >> 28)), IQ_OFFSET);
        set_scale(w, 2 * i + 1, d * (0.5f + (float)(rest >> 28)), IQ_OFFSET);
    }
}

/* d (0.5 + s) / 4 for each 16 columns, with 4-bit s. */
INLINE void scales_iq2(struct w256 *w, uint16_t d16, const uint8_t *scales)
{
    float d = _cvtsh_ss(d16) * 0.25f;
    for (int j = 0; j < 16; j++)
        set_scale(w, j, d * (0.5f + (float)(scales[j / 2] >> (j % 2 * 4) & 15)), IQ_OFFSET);
}

INLINE void load_iq2_xs(struct w256 *w, const struct block_iq2_xs *b, const struct iq_grid *g)
{
    for (int i = 0; i < 8; i++) {
        const uint16_t *q = b->qs + 4 * i;
        __m256i v = four_points(g->iq2_xs[q[0] & 511], g->iq2_xs[q[1] & 511], g->iq2_xs[q[2] & 511],
                                g->iq2_xs[q[3] & 511]);
        uint32_t signs = g->signs[q[0] >> 9] | (uint32_t)g->signs[q[1] >> 9] << 8 |
                         (uint32_t)g->signs[q[2] >> 9] << 16 | (uint32_t)g->signs[q[3] >> 9] << 24;
        w->q[i] = apply_signs(v, signs);
    }
    scales_iq2(w, b->d, b->scales);
}

INLINE void load_iq2_s(struct w256 *w, const struct block_iq2_s *b, const struct iq_grid *g)
{
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b->qs + 4 * i;
        unsigned high = b->qh[i];
        __m256i v =
            four_points(g->iq2_s[q[0] | (high << 8 & 0x300)], g->iq2_s[q[1] | (high << 6 & 0x300)],
                        g->iq2_s[q[2] | (high << 4 & 0x300)], g->iq2_s[q[3] | (high << 2 & 0x300)]);
        w->q[i] = apply_signs(v, load_u32(b->signs + 4 * i));
    }
    scales_iq2(w, b->d, b->scales);
}

/* Eight points of four elements. */
INLINE __m256i eight_points(const uint8_t (*table)[4], const unsigned at[8])
{
    return _mm256_setr_epi32((int)load_u32(table[at[0]]), (int)load_u32(table[at[1]]),
                             (int)load_u32(table[at[2]]), (int)load_u32(table[at[3]]),
                             (int)load_u32(table[at[4]]), (int)load_u32(table[at[5]]),
                             (int)load_u32(table[at[6]]), (int)load_u32(table[at[7]]));
}

INLINE void load_iq3_xxs(struct w256 *w, const struct block_iq3_xxs *b, const struct iq_grid *g)
{
    float d = _cvtsh_ss(b->d) * 0.5f;

    for (int i = 0; i < 8; i++) {
        uint32_t rest = load_u32(b->signs + 4 * i);
        unsigned at[8];
        UNROLL
        for (int l = 0; l < 8; l++) at[l] = b->qs[8 * i + l];
        w->q[i] = apply_signs(eight_points(g->iq3_xxs, at), four_signs(g, rest));
        set_scale(w, 2 * i, d * (0.5f + (float)(rest >> 28)), IQ_OFFSET);
        set_scale(w, 2 * i + 1, d * (0.5f + (float)(rest >> 28)), IQ_OFFSET);
    }
}

INLINE void load_iq3_s(struct w256 *w, const struct block_iq3_s *b, const struct iq_grid *g)
{
    float d = _cvtsh_ss(b->d);

    for (int i = 0; i < 8; i++) {
        unsigned at[8], high = b->qh[i];
        float scale = d * (float)(1 + 2 * (b->scales[i / 2] >> (i % 2 * 4) & 15));
        UNROLL
        for (int l = 0; l < 8; l++) at[l] = b->qs[8 * i + l] | (high >> l & 1) << 8;
        w->q[i] = apply_signs(eight_points(g->iq3_s, at), load_u32(b->signs + 4 * i));
        set_scale(w, 2 * i, scale, IQ_OFFSET);
        set_scale(w, 2 * i + 1, scale, IQ_OFFSET);
    }
}

/* Points of -1, 0, 1 with a shift of 1/8 up, or down where `down` is -1, in units of 1/8 above -9/8:
 * 8 (p + 1) + 2, or 8 (p + 1). */
INLINE __m256i shift_ternary(__m256i p, __m256i down)
{
    __m256i v = _mm256_add_epi8(p, _mm256_set1_epi8(1));
    v = _mm256_slli_epi16(v, 3);
    return _mm256_or_si256(v, _mm256_andnot_si256(down, _mm256_set1_epi8(2)));
}

INLINE void load_iq1_s(struct w256 *w, const struct block_iq1_s *b, const struct iq_grid *g)
{
    float d = _cvtsh_ss(b->d) * 0.125f;

    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b->qs + 4 * i;
        unsigned qh = b->qh[i];
        __m256i p = four_points(g->iq1[q[0] | (qh << 8 & 0x700)], g->iq1[q[1] | (qh << 5 & 0x700)],
                                g->iq1[q[2] | (qh << 2 & 0x700)], g->iq1[q[3] | (qh >> 1 & 0x700)]);
        w->q[i] = shift_ternary(p, _mm256_set1_epi8((char)-(int)(qh >> 15)));
        set_scale(w, 2 * i, d * (float)(2 * (qh >> 12 & 7) + 1), 9);
        set_scale(w, 2 * i + 1, d * (float)(2 * (qh >> 12 & 7) + 1), 9);
    }
}

INLINE void load_iq1_m(struct w256 *w, const struct block_iq1_m *b, const struct iq_grid *g)
{
    unsigned sc[4], d_bits = 0;

    UNROLL
    for (int j = 0; j < 4; j++) {
        sc[j] = b->scales[2 * j] | (unsigned)b->scales[2 * j + 1] << 8;
        d_bits |= sc[j] >> 12 << 4 * j;
    }
    float d = _cvtsh_ss((uint16_t)d_bits) * 0.125f;
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b->qs + 4 * i;
        unsigned lo = b->qh[2 * i], hi = b->qh[2 * i + 1];
        __m256i p = four_points(g->iq1[q[0] | (lo << 8 & 0x700)], g->iq1[q[1] | (lo << 4 & 0x700)],
                                g->iq1[q[2] | (hi << 8 & 0x700)], g->iq1[q[3] | (hi << 4 & 0x700)]);
        __m256i down = _mm256_setr_epi64x(-(long long)(lo >> 3 & 1), -(long long)(lo >> 7),
                                          -(long long)(hi >> 3 & 1), -(long long)(hi >> 7));
        w->q[i] = shift_ternary(p, down);
        for (int j = 2 * i; j < 2 * i + 2; j++)
            set_scale(w, j, d * (float)(2 * (sc[j / 4] >> (j % 4 * 3) & 7) + 1), 9);
    }
}

/* ---- ternary ---- */

/* One scale for all; the offset 1 is a minimum of -d. */
INLINE void scales_tq(struct w256 *w, uint16_t d16)
{
    float d = _cvtsh_ss(d16);
    UNROLL
    for (int j = 0; j < 16; j++) set_scale(w, j, d, 1);
}

INLINE void unpack_tq2_0(__m256i q[8], const struct block_tq2_0 *b)
{
    UNROLL
    for (int i = 0; i < 8; i++) q[i] = bits(load_ymm(b->qs + 32 * (i / 4)), 2 * (i % 4), 2, 0);
}

/* Three times every byte, modulo 256. */
INLINE __m256i times_3(__m256i v) { return _mm256_add_epi8(_mm256_add_epi8(v, v), v); }

/* The first base-3 digit of the fraction q / 256, from q - 128: it is at least 1 from q = 86 on and 2
 * from 171 on. */
INLINE __m256i first_digit(__m256i v)
{
    __m256i one = _mm256_cmpgt_epi8(v, _mm256_set1_epi8(85 - 128)),
            two = _mm256_cmpgt_epi8(v, _mm256_set1_epi8(170 - 128));
    return _mm256_abs_epi8(_mm256_add_epi8(one, two));
}

/* 32 bytes give five digits, 16 bytes five, 4 bytes four; their columns follow one another. Bytes are
 * kept minus 128, which multiplication by 3 does not change: 3 * 128 = 128 modulo 256. */
INLINE void unpack_tq1_0(__m256i q[8], const struct block_tq1_0 *b)
{
    const __m256i half = _mm256_set1_epi8((char)0x80);
    __m256i v = _mm256_xor_si256(load_ymm(b->qs), half);
    UNROLL
    for (int n = 0; n < 5; n++, v = times_3(v)) q[n] = first_digit(v);

    __m256i u = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(b->qs + 32)));
    u = _mm256_xor_si256(u, half);
    v = _mm256_blend_epi32(u, times_3(u), 0xf0); /* digits 0 and 1 */
    q[5] = first_digit(v);
    v = times_3(times_3(v));
    q[6] = first_digit(v);
    v = times_3(times_3(v)); /* its low half is digit 4 */
    u = _mm256_xor_si256(_mm256_set1_epi32((int)load_u32(b->qh)), half);
    __m256i u3 = times_3(u), u9 = times_3(u3);
    u = _mm256_blend_epi32(_mm256_blend_epi32(u, u3, 0x20),
                           _mm256_blend_epi32(u9, times_3(u9), 0x80), 0xc0);
    q[7] = first_digit(_mm256_blend_epi32(v, u, 0xf0));
}

INLINE void load_tq(struct w256 *w, const char *p, const int kind)
{
    const struct block_tq1_0 *b1 = (const void *)p;
    const struct block_tq2_0 *b2 = (const void *)p;

    if (kind == TQ1_0) unpack_tq1_0(w->q, b1);
    else unpack_tq2_0(w->q, b2);
    scales_tq(w, kind == TQ1_0 ? b1->d : b2->d);
}

/* The super-block at p of any kind, also of load_k_avx2.h; grid is not used by those. */
INLINE void load_any256(struct w256 *w, const char *p, const struct iq_grid *grid, const int kind)
{
    switch (kind) {
    case IQ2_XXS: load_iq2_xxs(w, (const void *)p, grid); break;
    case IQ2_XS: load_iq2_xs(w, (const void *)p, grid); break;
    case IQ2_S: load_iq2_s(w, (const void *)p, grid); break;
    case IQ3_XXS: load_iq3_xxs(w, (const void *)p, grid); break;
    case IQ3_S: load_iq3_s(w, (const void *)p, grid); break;
    case IQ1_S: load_iq1_s(w, (const void *)p, grid); break;
    case IQ1_M: load_iq1_m(w, (const void *)p, grid); break;
    case TQ1_0:
    case TQ2_0: load_tq(w, p, kind); break;
    default: load_w256(w, p, kind);
    }
}

INLINE int any256_bytes(const int kind)
{
    return kind == IQ2_XXS   ? 66
           : kind == IQ2_XS  ? 74
           : kind == IQ2_S   ? 82
           : kind == IQ3_XXS ? 98
           : kind == IQ3_S   ? 110
           : kind == IQ1_S   ? 50
           : kind == IQ1_M   ? 56
           : kind == TQ1_0   ? 54
           : kind == TQ2_0   ? 66
                             : block256_bytes(kind);
}
#endif
