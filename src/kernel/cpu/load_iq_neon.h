/* load_iq_neon.h - unpacks super-blocks of the lattice formats (IQ1, IQ2, IQ3) to signed bytes with
 * scales, by NEON: for gemv and gemm. Lattice points are loaded one by one from the tables of
 * iq_grid.h; signs and scales are applied to whole vectors. */
#ifndef TERN_KERNEL_CPU_LOAD_IQ_NEON_H
#define TERN_KERNEL_CPU_LOAD_IQ_NEON_H

#include "kernel/cpu/load_k_neon.h"

INLINE uint32_t word_at(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* 16 magnitudes with the signs of bytes a and b. */
INLINE int8x16_t apply_signs(uint8x16_t mag, int a, int b)
{
    uint8x16_t neg = spread_bits((uint8_t)a, (uint8_t)b);
    return vreinterpretq_s8_u8(vsubq_u8(veorq_u8(mag, neg), neg));
}

INLINE uint8x16_t two_points(const uint8_t *a, const uint8_t *b)
{
    return vcombine_u8(vld1_u8(a), vld1_u8(b));
}

/* Four points of four elements. */
INLINE uint8x16_t four_points(const uint8_t (*grid)[4], const int index[4])
{
    uint32_t v[4];
    for (int i = 0; i < 4; i++) v[i] = word_at(grid[index[i]]);
    return vreinterpretq_u8_u32(vld1q_u32(v));
}

INLINE void load_iq2_xxs(struct w256 *w, const struct block_iq2_xxs *b)
{
    const struct iq_grid *g = iq_grid();
    float d = half_at(&b->d) * 0.25f;
    for (int j = 0; j < 16; j++) {
        const int shift = j % 2 * 2; /* of the four points of 32 elements */
        uint32_t index = word_at(b->qs + j / 2 * 4) >> 8 * shift,
                 rest = word_at(b->qs + j / 2 * 4 + 2);
        uint32_t signs = rest >> 7 * shift;
        w->q[j] = apply_signs(two_points(g->iq2_xxs[index & 255], g->iq2_xxs[index >> 8 & 255]),
                              g->signs[signs & 127], g->signs[signs >> 7 & 127]);
        w->d[j] = d * (0.5f + (float)(rest >> 28));
    }
}

INLINE float scale_iq2(float d, const uint8_t *scales, int j)
{
    return d * (0.5f + (float)(scales[j / 2] >> j % 2 * 4 & 15));
}

INLINE void load_iq2_xs(struct w256 *w, const struct block_iq2_xs *b)
{
    const struct iq_grid *g = iq_grid();
    float d = half_at(&b->d) * 0.25f;
    for (int j = 0; j < 16; j++) {
        int p0 = b->qs[2 * j], p1 = b->qs[2 * j + 1];
        w->q[j] = apply_signs(two_points(g->iq2_xs[p0 & 511], g->iq2_xs[p1 & 511]),
                              g->signs[p0 >> 9], g->signs[p1 >> 9]);
        w->d[j] = scale_iq2(d, b->scales, j);
    }
}

INLINE void load_iq2_s(struct w256 *w, const struct block_iq2_s *b)
{
    const struct iq_grid *g = iq_grid();
    float d = half_at(&b->d) * 0.25f;
    for (int j = 0; j < 16; j++) {
        int high = b->qh[j / 2] >> j % 2 * 4;
        int p0 = b->qs[2 * j] | (high & 3) << 8, p1 = b->qs[2 * j + 1] | (high >> 2 & 3) << 8;
        w->q[j] = apply_signs(two_points(g->iq2_s[p0], g->iq2_s[p1]), b->signs[2 * j],
                              b->signs[2 * j + 1]);
        w->d[j] = scale_iq2(d, b->scales, j);
    }
}

INLINE void load_iq3_xxs(struct w256 *w, const struct block_iq3_xxs *b)
{
    const struct iq_grid *g = iq_grid();
    float d = half_at(&b->d) * 0.5f;
    for (int j = 0; j < 16; j++) {
        uint32_t rest = word_at(b->signs + j / 2 * 4), signs = rest >> 14 * (j % 2);
        int index[4];
        for (int i = 0; i < 4; i++) index[i] = b->qs[4 * j + i];
        w->q[j] = apply_signs(four_points(g->iq3_xxs, index), g->signs[signs & 127],
                              g->signs[signs >> 7 & 127]);
        w->d[j] = d * (0.5f + (float)(rest >> 28));
    }
}

INLINE void load_iq3_s(struct w256 *w, const struct block_iq3_s *b)
{
    const struct iq_grid *g = iq_grid();
    float d = half_at(&b->d);
    for (int j = 0; j < 16; j++) {
        int index[4], high = b->qh[j / 2] >> j % 2 * 4;
        for (int i = 0; i < 4; i++) index[i] = b->qs[4 * j + i] | (high >> i & 1) << 8;
        w->q[j] = apply_signs(four_points(g->iq3_s, index), b->signs[2 * j], b->signs[2 * j + 1]);
        w->d[j] = d * (float)(1 + 2 * (b->scales[j / 4] >> j / 2 % 2 * 4 & 15));
    }
}

/* Two ternary points, shifted by +-1/8: 8 * point +- 1, for a scale of d / 8. */
INLINE int8x16_t shifted_points(const int8_t *a, const int8_t *b, bool down_a, bool down_b)
{
    int8x16_t v = vcombine_s8(vld1_s8(a), vld1_s8(b));
    int8x16_t shift = vcombine_s8(vdup_n_s8(down_a ? -1 : 1), vdup_n_s8(down_b ? -1 : 1));
    return vaddq_s8(vshlq_n_s8(v, 3), shift);
}

INLINE void load_iq1_s(struct w256 *w, const struct block_iq1_s *b)
{
    const struct iq_grid *g = iq_grid();
    float d = half_at(&b->d) * 0.125f;
    for (int j = 0; j < 16; j++) {
        int qh = b->qh[j / 2], high = qh >> 6 * (j % 2);
        bool down = qh >> 15;
        w->q[j] = shifted_points(g->iq1[b->qs[2 * j] | (high & 7) << 8],
                                 g->iq1[b->qs[2 * j + 1] | (high >> 3 & 7) << 8], down, down);
        w->d[j] = d * (float)(2 * (qh >> 12 & 7) + 1);
    }
}

INLINE void load_iq1_m(struct w256 *w, const struct block_iq1_m *b)
{
    const struct iq_grid *g = iq_grid();
    uint16_t sc[4], d16 = 0;
    memcpy(sc, b->scales, sizeof sc);
    for (int i = 0; i < 4; i++) d16 |= (uint16_t)(sc[i] >> 12 << 4 * i);
    float d = half_at(&d16) * 0.125f;
    for (int j = 0; j < 16; j++) {
        int qh = b->qh[j];
        w->q[j] =
            shifted_points(g->iq1[b->qs[2 * j] | (qh & 7) << 8],
                           g->iq1[b->qs[2 * j + 1] | (qh >> 4 & 7) << 8], qh >> 3 & 1, qh >> 7 & 1);
        w->d[j] = d * (float)(2 * (sc[j / 4] >> j % 4 * 3 & 7) + 1);
    }
}

/* One super-block of any format. */
INLINE void load_w256(struct w256 *w, const char *p, const enum dtype t)
{
#define LOAD(T, name) \
    case T: load_##name(w, (const void *)p); break
    switch (t) {
        LOAD(DT_Q2_K, q2_k);
        LOAD(DT_Q3_K, q3_k);
        LOAD(DT_Q4_K, q4_k);
        LOAD(DT_Q5_K, q5_k);
        LOAD(DT_Q6_K, q6_k);
        LOAD(DT_IQ4_XS, iq4_xs);
        LOAD(DT_TQ1_0, tq1_0);
        LOAD(DT_TQ2_0, tq2_0);
        LOAD(DT_IQ2_XXS, iq2_xxs);
        LOAD(DT_IQ2_XS, iq2_xs);
        LOAD(DT_IQ2_S, iq2_s);
        LOAD(DT_IQ3_XXS, iq3_xxs);
        LOAD(DT_IQ3_S, iq3_s);
        LOAD(DT_IQ1_S, iq1_s);
        LOAD(DT_IQ1_M, iq1_m);
    default: break;
    }
#undef LOAD
}

/* Scales belong to 16 elements, not 32. */
INLINE bool has_half_scales(const enum dtype t)
{
    return t == DT_Q2_K || t == DT_Q3_K || t == DT_Q6_K || t == DT_IQ2_XS || t == DT_IQ2_S ||
           t == DT_IQ1_M;
}

INLINE bool has_minima(const enum dtype t)
{
    return t == DT_Q4_1 || t == DT_Q5_1 || t == DT_Q2_K || t == DT_Q4_K || t == DT_Q5_K;
}
#endif
