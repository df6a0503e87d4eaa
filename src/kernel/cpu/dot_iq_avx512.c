/* dot_iq_avx512.c - AVX-512 gemv for the lattice formats with super-blocks of 256 (IQ1, IQ2, IQ3).
 *
 * Each super-block is expanded to bytes in memory, in the order of form 2 of the activations, and
 * read back into registers. Signs stay a mask and are applied to the activations. */
#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_avx512.h"
#include "kernel/iq_grid.h"

#include <string.h>

enum { IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M };

/* Formats with sign bits; the others have a minimum. */
INLINE bool has_signs(const int kind) { return kind <= IQ3_S; }

/* An expanded super-block: value = d * q, negated where the bit of neg is set; or d * q + m. */
struct spread {
    uint8_t q[4][64] __attribute__((aligned(64)));
    uint16_t neg[4][4];
    float d[16] __attribute__((aligned(64))); /* per 16 columns */
    float m[16] __attribute__((aligned(64)));
};

/* Stores eight elements: half h of group g. */
INLINE void store8(struct spread *s, int g, int h, const void *eight)
{
    memcpy(s->q[g % 4] + 16 * (g / 4) + 8 * h, eight, 8);
}
/* Stores four elements: quarter h of group g. */
INLINE void store4(struct spread *s, int g, int h, const void *four)
{
    memcpy(s->q[g % 4] + 16 * (g / 4) + 4 * h, four, 4);
}
/* The 16 sign bits of group g. */
INLINE void store_signs(struct spread *s, int g, unsigned bits)
{
    s->neg[g % 4][g / 4] = (uint16_t)bits;
}

INLINE uint32_t load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* d (0.5 + s) / 4 for each 16 columns, with 4-bit s. */
INLINE void scales_iq2(struct spread *s, uint16_t d16, const uint8_t *scales)
{
    float d = _cvtsh_ss(d16) * 0.25f;
    for (int j = 0; j < 16; j++) s->d[j] = d * (0.5f + (float)(scales[j / 2] >> (j % 2 * 4) & 15));
}

/* 9-bit index and 7 sign bits per 8 columns. */
INLINE void spread_iq2_xs(struct spread *s, const struct block_iq2_xs *b, const struct iq_grid *g)
{
    UNROLL
    for (int j = 0; j < 16; j++) {
        unsigned a = b->qs[2 * j], c = b->qs[2 * j + 1];
        store8(s, j, 0, g->iq2_xs[a & 511]);
        store8(s, j, 1, g->iq2_xs[c & 511]);
        store_signs(s, j, g->signs[a >> 9] | (unsigned)g->signs[c >> 9] << 8);
    }
    scales_iq2(s, b->d, b->scales);
}

/* 10-bit index (8 bits in qs, 2 in qh) and 8 sign bits per 8 columns. */
INLINE void spread_iq2_s(struct spread *s, const struct block_iq2_s *b, const struct iq_grid *g)
{
    UNROLL
    for (int j = 0; j < 16; j++) {
        unsigned high = b->qh[j / 2] >> (j % 2 * 4);
        store8(s, j, 0, g->iq2_s[b->qs[2 * j] | (high & 3) << 8]);
        store8(s, j, 1, g->iq2_s[b->qs[2 * j + 1] | (high >> 2 & 3) << 8]);
        store_signs(s, j, b->signs[2 * j] | (unsigned)b->signs[2 * j + 1] << 8);
    }
    scales_iq2(s, b->d, b->scales);
}

/* 8-bit index per 4 columns; 4 x 7 sign bits and a 4-bit scale per 32. */
INLINE void spread_iq3_xxs(struct spread *s, const struct block_iq3_xxs *b, const struct iq_grid *g)
{
    float d = _cvtsh_ss(b->d) * 0.5f;
    UNROLL
    for (int i = 0; i < 8; i++) {
        uint32_t rest = load32(b->signs + i * 4);
        UNROLL
        for (int l = 0; l < 8; l++) store4(s, 2 * i + l / 4, l % 4, g->iq3_xxs[b->qs[i * 8 + l]]);
        store_signs(s, 2 * i, g->signs[rest & 127] | (unsigned)g->signs[rest >> 7 & 127] << 8);
        store_signs(s, 2 * i + 1,
                    g->signs[rest >> 14 & 127] | (unsigned)g->signs[rest >> 21 & 127] << 8);
        s->d[2 * i] = s->d[2 * i + 1] = d * (0.5f + (float)(rest >> 28));
    }
}

/* 9-bit index (8 bits in qs, 1 in qh) per 4 columns; 8 sign bits per 8. */
INLINE void spread_iq3_s(struct spread *s, const struct block_iq3_s *b, const struct iq_grid *g)
{
    float d = _cvtsh_ss(b->d);
    UNROLL
    for (int j = 0; j < 16; j++) {
        unsigned high = (unsigned)b->qh[j / 2] >> (j % 2 * 4);
        UNROLL
        for (int l = 0; l < 4; l++)
            store4(s, j, l, g->iq3_s[b->qs[4 * j + l] | (high >> l & 1) << 8]);
        store_signs(s, j, b->signs[2 * j] | (unsigned)b->signs[2 * j + 1] << 8);
        s->d[j] = d * (float)(1 + 2 * (b->scales[j / 4] >> (j / 2 % 2 * 4) & 15));
    }
}

/* Eight elements of {-1, 0, 1} shifted up or down by 1/8, in units of 1/8 above -9/8. */
INLINE void store8_ternary(struct spread *s, int g, int h, const int8_t *point, bool down)
{
    const uint64_t ones = 0x0101010101010101u, top = ones << 7;
    uint64_t v;
    memcpy(&v, point, 8);
    v = ((v & ~top) + ones) ^ (v & top); /* 0, 1, 2 */
    v = v << 3 | (down ? 0 : ones << 1);
    store8(s, g, h, &v);
}

/* 11-bit index per 8 columns; 3-bit scale and the sign of the shift per 32. m = -9 d undoes the
 * offset of store8_ternary. */
INLINE void spread_iq1_s(struct spread *s, const struct block_iq1_s *b, const struct iq_grid *g)
{
    float d = _cvtsh_ss(b->d) * 0.125f;
    UNROLL
    for (int i = 0; i < 8; i++) {
        unsigned qh = b->qh[i];
        UNROLL
        for (int l = 0; l < 4; l++)
            store8_ternary(s, 2 * i + l / 2, l % 2,
                           g->iq1[b->qs[4 * i + l] | (qh >> 3 * l & 7) << 8], qh >> 15);
        s->d[2 * i] = s->d[2 * i + 1] = d * (float)(2 * (qh >> 12 & 7) + 1);
        s->m[2 * i] = s->m[2 * i + 1] = -9 * s->d[2 * i];
    }
}

/* As IQ1_S, with a scale per 16 columns, a shift per 8, and d spread over the scale words. */
INLINE void spread_iq1_m(struct spread *s, const struct block_iq1_m *b, const struct iq_grid *g)
{
    unsigned sc[4], d_bits = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        sc[j] = b->scales[2 * j] | (unsigned)b->scales[2 * j + 1] << 8;
        d_bits |= sc[j] >> 12 << 4 * j;
    }
    float d = _cvtsh_ss((uint16_t)d_bits) * 0.125f;
    UNROLL
    for (int j = 0; j < 16; j++) {
        unsigned qh = b->qh[j];
        store8_ternary(s, j, 0, g->iq1[b->qs[2 * j] | (qh & 7) << 8], qh >> 3 & 1);
        store8_ternary(s, j, 1, g->iq1[b->qs[2 * j + 1] | (qh >> 4 & 7) << 8], qh >> 7);
        s->d[j] = d * (float)(2 * (sc[j / 4] >> (j % 4 * 3) & 7) + 1);
        s->m[j] = -9 * s->d[j];
    }
}

INLINE void spread_block(struct spread *s, const char *p, const struct iq_grid *g, const int kind)
{
    switch (kind) {
    case IQ2_XS: spread_iq2_xs(s, (const void *)p, g); break;
    case IQ2_S: spread_iq2_s(s, (const void *)p, g); break;
    case IQ3_XXS: spread_iq3_xxs(s, (const void *)p, g); break;
    case IQ3_S: spread_iq3_s(s, (const void *)p, g); break;
    case IQ1_S: spread_iq1_s(s, (const void *)p, g); break;
    default: spread_iq1_m(s, (const void *)p, g);
    }
}

INLINE int iq_block_bytes(const int kind)
{
    return kind == IQ2_XS    ? 74
           : kind == IQ2_S   ? 82
           : kind == IQ3_XXS ? 98
           : kind == IQ3_S   ? 110
           : kind == IQ1_S   ? 50
                             : 56;
}

/* acc += 256 columns. Negative weights are multiplied as positive ones with negated activations,
 * because vpdpbusd takes unsigned weights. */
INLINE __m512 dot_spread(__m512 acc, const struct spread *s, const struct x256 *x, const int kind)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i group = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m512i zero = _mm512_setzero_si512();
    __m512 p =
        _mm512_mul_ps(_mm512_load_ps(s->d), _mm512_permutexvar_ps(twice, _mm512_load_ps(x->d)));

    if (!has_signs(kind)) acc = _mm512_fmadd_ps(_mm512_load_ps(s->m), _mm512_load_ps(x->s16), acc);
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512i v = _mm512_load_si512(x->q[i]);
        if (has_signs(kind)) {
            uint64_t neg;
            memcpy(&neg, s->neg[i], 8);
            v = _mm512_mask_sub_epi8(v, neg, zero, v);
        }
        __m512i y = _mm512_dpbusd_epi32(zero, _mm512_load_si512(s->q[i]), v);
        __m512 f = _mm512_permutexvar_ps(_mm512_add_epi32(group, _mm512_set1_epi32(i)), p);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(y), f, acc);
    }
    return acc;
}

/* R rows x T tokens: all R super-blocks are expanded first, then multiplied with all T tokens. */
INLINE void tile_iq(const struct gemv *g, int r0, const int R, int t0, const int T, const int kind)
{
    const struct iq_grid *grid = iq_grid();
    const struct x256 *x[8];
    const char *w[4];
    struct spread s[4]; /* one per row, so that one is read while the next is written */
    __m512 acc[16];

    UNROLL
    for (int r = 0; r < R; r++) w[r] = gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = _mm512_setzero_ps();
    for (int c = 0; c < g->cols / QK_K; c++) {
        UNROLL
        for (int r = 0; r < R; r++)
            spread_block(&s[r], w[r] + c * iq_block_bytes(kind), grid, kind);
        UNROLL
        for (int r = 0; r < R; r++) UNROLL
        for (int t = 0; t < T; t++)
            acc[r * T + t] = dot_spread(acc[r * T + t], &s[r], x[t] + c, kind);
    }
    gemv_store(g, r0, R, t0, T, acc);
}

void gemv_iq2_xs_avx512(const struct gemv *g) { GEMV_TILES(tile_iq, g, IQ2_XS, 4, 2, 2, 1); }
void gemv_iq2_s_avx512(const struct gemv *g) { GEMV_TILES(tile_iq, g, IQ2_S, 4, 2, 2, 1); }
void gemv_iq3_xxs_avx512(const struct gemv *g) { GEMV_TILES(tile_iq, g, IQ3_XXS, 4, 2, 2, 1); }
void gemv_iq3_s_avx512(const struct gemv *g) { GEMV_TILES(tile_iq, g, IQ3_S, 4, 2, 2, 1); }
void gemv_iq1_s_avx512(const struct gemv *g) { GEMV_TILES(tile_iq, g, IQ1_S, 4, 2, 2, 1); }
void gemv_iq1_m_avx512(const struct gemv *g) { GEMV_TILES(tile_iq, g, IQ1_M, 4, 2, 2, 1); }
