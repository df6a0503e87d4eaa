/* quant_iq.c - the IQ formats (indices into lattices or tables of levels) and the ternary formats.
 *
 * The lattice formats (IQ1, IQ2, IQ3) are decoded only: encoding them needs a nearest-point search
 * that tern does not have. IQ4_NL, IQ4_XS and the ternary formats are also encoded. */
#include "kernel/quant_impl.h"

#include "kernel/iq_grid.h"
#include "kernel/quant_pack.h"

/* Little-endian, at any alignment. */
static uint32_t load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* Eight elements: magnitudes from the lattice point, signs as bits. */
static void decode_point8(float *y, float d, const uint8_t *mag, int signs)
{
    for (int j = 0; j < 8; j++) y[j] = d * (float)mag[j] * (signs >> j & 1 ? -1.0f : 1.0f);
}

static void decode_point4(float *y, float d, const uint8_t *mag, int signs)
{
    for (int j = 0; j < 4; j++) y[j] = d * (float)mag[j] * (signs >> j & 1 ? -1.0f : 1.0f);
}

/* For each 32 elements: four index bytes, then 4 x 7 sign bits and a four-bit scale. */
QUANT_DECODER(iq2_xxs)
{
    const struct block_iq2_xxs *b = block;
    const struct iq_grid *g = iq_grid();
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 8; i++) {
        uint32_t index = load32(b->qs + i * 4), rest = load32(b->qs + i * 4 + 2);
        float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
        for (int l = 0; l < 4; l++)
            decode_point8(y + i * 32 + l * 8, scale, g->iq2_xxs[index >> 8 * l & 255],
                          g->signs[rest >> 7 * l & 127]);
    }
}

/* For each 8 elements: a nine-bit index and seven sign bits; a four-bit scale for 16. */
QUANT_DECODER(iq2_xs)
{
    const struct block_iq2_xs *b = block;
    const struct iq_grid *g = iq_grid();
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 32; i++) {
        float scale = d * (0.5f + (float)(b->scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25f;
        decode_point8(y + i * 8, scale, g->iq2_xs[b->qs[i] & 511], g->signs[b->qs[i] >> 9]);
    }
}

/* A ten-bit index: eight bits in qs, two in qh. */
QUANT_DECODER(iq2_s)
{
    const struct block_iq2_s *b = block;
    const struct iq_grid *g = iq_grid();
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 32; i++) {
        float scale = d * (0.5f + (float)(b->scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25f;
        int index = b->qs[i] | (b->qh[i / 4] >> (i % 4 * 2) & 3) << 8;
        decode_point8(y + i * 8, scale, g->iq2_s[index], b->signs[i]);
    }
}

/* Points of four elements; signs and scale as in IQ2_XXS. */
QUANT_DECODER(iq3_xxs)
{
    const struct block_iq3_xxs *b = block;
    const struct iq_grid *g = iq_grid();
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 8; i++) {
        uint32_t rest = load32(b->signs + i * 4);
        float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
        for (int l = 0; l < 8; l++)
            decode_point4(y + i * 32 + l * 4, scale, g->iq3_xxs[b->qs[i * 8 + l]],
                          g->signs[rest >> 7 * (l / 2) & 127] >> (l % 2 * 4));
    }
}

/* A nine-bit index per four elements; scales are odd: 1 + 2 s. */
QUANT_DECODER(iq3_s)
{
    const struct block_iq3_s *b = block;
    const struct iq_grid *g = iq_grid();
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 64; i++) {
        float scale = d * (float)(1 + 2 * (b->scales[i / 16] >> (i / 8 % 2 * 4) & 15));
        int index = b->qs[i] | (b->qh[i / 8] >> i % 8 & 1) << 8;
        decode_point4(y + i * 4, scale, g->iq3_s[index], b->signs[i / 2] >> (i % 2 * 4));
    }
}

/* Eight elements of a ternary lattice point, all shifted up or down by 1/8. */
static void decode_ternary8(float *y, float d, const int8_t *point, bool down)
{
    for (int j = 0; j < 8; j++) y[j] = d * ((float)point[j] + (down ? -0.125f : 0.125f));
}

/* qh per 32 elements: 4 x 3 index bits, a 3-bit scale, and the sign of the shift. */
QUANT_DECODER(iq1_s)
{
    const struct block_iq1_s *b = block;
    const struct iq_grid *g = iq_grid();
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 8; i++) {
        int qh = b->qh[i];
        float scale = d * (float)(2 * (qh >> 12 & 7) + 1);
        for (int l = 0; l < 4; l++) {
            int index = b->qs[i * 4 + l] | (qh >> 3 * l & 7) << 8;
            decode_ternary8(y + i * 32 + l * 8, scale, g->iq1[index], qh >> 15);
        }
    }
}

/* The F16 scale of the block is spread over the top nibbles of the four 16-bit words of scales. */
QUANT_DECODER(iq1_m)
{
    const struct block_iq1_m *b = block;
    const struct iq_grid *g = iq_grid();
    int sc[4], d_bits = 0;
    for (int j = 0; j < 4; j++) {
        sc[j] = b->scales[2 * j] | b->scales[2 * j + 1] << 8;
        d_bits |= sc[j] >> 12 << 4 * j;
    }
    float d = f16_to_f32((uint16_t)d_bits);
    for (int i = 0; i < 32; i++) {
        float scale = d * (float)(2 * (sc[i / 8] >> (i / 2 % 4 * 3) & 7) + 1);
        int qh = b->qh[i / 2] >> (i % 2 * 4);
        decode_ternary8(y + i * 8, scale, g->iq1[b->qs[i] | (qh & 7) << 8], qh >> 3 & 1);
    }
}

/* A six-bit scale per 32 elements, with offset 32. */
QUANT_DECODER(iq4_xs)
{
    const struct block_iq4_xs *b = block;
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 8; i++) {
        int sc = (b->scales_l[i / 2] >> (i % 2 * 4) & 15) | (b->scales_h >> 2 * i & 3) << 4;
        float scale = d * (float)(sc - 32);
        for (int j = 0; j < 16; j++) {
            y[i * 32 + j] = scale * (float)iq4_levels[b->qs[i * 16 + j] & 15];
            y[i * 32 + j + 16] = scale * (float)iq4_levels[b->qs[i * 16 + j] >> 4];
        }
    }
}

/* Rounds 32 elements to the nearest level and packs the indices. */
static void pack_levels(uint8_t *qs, const float *x, float id)
{
    int q[QK];
    uint8_t small[QK];
    quant_round_levels(x, id, q);
    for (int j = 0; j < QK; j++) small[j] = (uint8_t)q[j];
    pack_nibbles(qs, small);
}

QUANT_ENCODER(iq4_nl)
{
    struct block_iq4_nl *b = block;
    b->d = quant_scale(quant_fit_levels(x));
    pack_levels(b->qs, x, quant_inverse(f16_to_f32(b->d)));
}

QUANT_ENCODER(iq4_xs)
{
    struct block_iq4_xs *b = block;
    float s[8];
    int sc[8];
    for (int i = 0; i < 8; i++) s[i] = quant_fit_levels(x + i * 32);
    b->d = quant_scale(quant_extreme(s, 8) / -32.0f);
    float d = f16_to_f32(b->d), id = quant_inverse(d);
    for (int i = 0; i < 8; i++) {
        sc[i] = quant_clamp(quant_round(fmaxf(fminf(s[i] * id, 255.0f), -255.0f)), -32, 31);
        pack_levels(b->qs + i * 16, x + i * 32, quant_inverse(d * (float)sc[i]));
    }
    pack_xs_scales(b, sc);
}

/* TQ1_0: the element that digit n of byte j stands for, and the number of digits of byte j. The 52
 * bytes are 32 and 16 bytes of five digits, and 4 bytes of four. */
static int tq1_index(int j, int n)
{
    return j < 32 ? n * 32 + j : j < 48 ? 160 + n * 16 + j - 32 : 240 + n * 4 + j - 48;
}
static int tq1_digits(int j) { return j < 48 ? 5 : 4; }

/* A byte is a base-3 fraction of 256; multiplying by 3 moves one digit after the other above the
 * point. */
QUANT_DECODER(tq1_0)
{
    const struct block_tq1_0 *b = block;
    float d = f16_to_f32(b->d);
    for (int j = 0; j < 52; j++) {
        uint8_t frac = j < 48 ? b->qs[j] : b->qh[j - 48];
        for (int n = 0; n < tq1_digits(j); n++) {
            y[tq1_index(j, n)] = (float)((frac * 3 >> 8) - 1) * d;
            frac = (uint8_t)(frac * 3);
        }
    }
}

/* Two bits per digit, in the order of Q2_K. */
QUANT_DECODER(tq2_0)
{
    const struct block_tq2_0 *b = block;
    float d = f16_to_f32(b->d);
    for (int i = 0; i < QK_K; i++)
        y[i] = (float)((b->qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) - 1) * d;
}

/* The scale is the largest magnitude: for weights that are ternary already. */
QUANT_ENCODER(tq1_0)
{
    struct block_tq1_0 *b = block;
    float d = fabsf(quant_extreme(x, QK_K)), id = quant_inverse(d);
    b->d = quant_scale(d);
    for (int j = 0; j < 52; j++) {
        int v = 0;
        for (int n = 0; n < 5; n++)
            v = v * 3 + (n < tq1_digits(j) ? quant_round(x[tq1_index(j, n)] * id) + 1 : 0);
        uint8_t frac = (uint8_t)((v * 256 + 242) /
                                 243); /* rounded up, so that decoding gives the same digits */
        if (j < 48) b->qs[j] = frac;
        else b->qh[j - 48] = frac;
    }
}

QUANT_ENCODER(tq2_0)
{
    struct block_tq2_0 *b = block;
    float d = fabsf(quant_extreme(x, QK_K)), id = quant_inverse(d);
    b->d = quant_scale(d);
    memset(b->qs, 0, sizeof b->qs);
    for (int i = 0; i < QK_K; i++)
        b->qs[i / 128 * 32 + i % 32] |= (uint8_t)((quant_round(x[i] * id) + 1) << (i / 32 % 4 * 2));
}
