/* quant_ik.c - decoders of formats that come after ggml's classic ones: Q1_0, Q2_0, NVFP4, and the
 * IQ..._K formats of ik_llama.cpp (Iwan Kawrakow). Reading only.
 *
 * The IQ formats have 256 elements per block and look codes up in tables of levels that are denser
 * around zero; a bit of each sub-block chooses between two tables. The _KS and _KL formats have one
 * scale for a whole row, in front of its first block. Blocks are read byte by byte: a row may begin
 * anywhere. */
#include "kernel/quant_impl.h"

#include "kernel/iq_grid.h"

/* The second table of each pair is the first, shifted. */
static const int8_t levels3[2][8] = { { -63, -40, -23, -10, 1, 13, 28, 47 },
                                      { -59, -36, -19, -6, 5, 17, 32, 51 } };
static const int8_t levels5[2][32] = {
    { -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
      -1,   5,    11,   17,  23,  29,  36,  43,  51,  59,  68,  77,  87,  97,  109, 121 },
    { -124, -112, -101, -90, -81, -72, -63, -55, -48, -41, -34, -28, -22, -16, -10, -4,
      1,    7,    13,   19,  25,  31,  38,  45,  53,  61,  70,  79,  89,  99,  111, 123 },
};
/* Pairs of elements by a code of 5 bits. */
static const int8_t pairs2[32][2] = {
    { -63, -23 }, { -63, 13 }, { -40, -63 }, { -40, -10 }, { -40, 13 },  { -40, 47 }, { -23, -40 },
    { -23, -23 }, { -23, 1 },  { -23, 13 },  { -23, 28 },  { -10, -63 }, { -10, 1 },  { -10, 13 },
    { -10, 47 },  { 1, -23 },  { 1, -10 },   { 1, 1 },     { 1, 13 },    { 1, 28 },   { 13, -40 },
    { 13, -23 },  { 13, -10 }, { 13, 1 },    { 13, 13 },   { 28, -63 },  { 28, -23 }, { 28, 1 },
    { 28, 28 },   { 28, 47 },  { 47, -23 },  { 47, 13 },
};

/* IQ4_NL's levels, or these plus 4. */
static float level4(int code, bool shifted)
{
    return (float)(iq4_levels[code] + (shifted ? 4 : 0));
}

static uint16_t half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

QUANT_DECODER(q1_0)
{
    const uint8_t *b = block;
    float d = f16_to_f32(half_at(b));
    for (int j = 0; j < 128; j++) y[j] = b[2 + j / 8] >> j % 8 & 1 ? d : -d;
}

QUANT_DECODER(q2_0)
{
    const uint8_t *b = block;
    float d = f16_to_f32(half_at(b));
    for (int j = 0; j < 64; j++) y[j] = (float)((b[2 + j / 4] >> 2 * (j % 4) & 3) - 1) * d;
}

/* Four sub-blocks of 16, each with a scale in E4M3 without a sign; its NaN counts as 0. */
QUANT_DECODER(nvfp4)
{
    const uint8_t *b = block;
    for (int s = 0; s < 4; s++) {
        uint8_t e = b[s] & 0x7f;
        float d = 0;
        if (e != 0x7f) quant_decode(DT_F8_E4M3, &e, &d, 1);
        for (int j = 0; j < 16; j++) {
            uint8_t q = b[4 + s * 8 + j % 8] >> (j < 8 ? 0 : 4) & 15;
            y[s * 16 + j] = (float)mxfp4_levels[q] * (d * 0.5f);
        }
    }
}

/* d, extra: a table bit per 16 elements; scales_h[4], scales_l[8]: 6 bits per 16; qs[128]. */
QUANT_DECODER(iq4_k)
{
    const uint8_t *b = block, *high = b + 4, *low = b + 8, *qs = b + 16;
    float d = f16_to_f32(half_at(b));
    int extra = half_at(b + 2);
    for (int s = 0; s < 16; s++) {
        int sc = (low[s / 2] >> s % 2 * 4 & 15) | (high[s / 4] >> s % 4 * 2 & 3) << 4;
        float scale = d * (float)(sc - 32);
        for (int j = 0; j < 16; j++) {
            int q = qs[s / 2 * 16 + j] >> s % 2 * 4 & 15;
            y[s * 16 + j] = scale * level4(q, extra >> s & 1);
        }
    }
}

/* scales[8]: 7 bits and a table bit per 32 elements; qs[128] as in IQ4_NL. */
static void decode_iq4_ks(const uint8_t *b, float d, float *y)
{
    for (int s = 0; s < 8; s++) {
        float scale = d * (float)((b[s] & 254) - 127);
        for (int j = 0; j < 32; j++) {
            int q = b[8 + s * 16 + j % 16] >> j / 16 * 4 & 15;
            y[s * 32 + j] = scale * level4(q, b[s] & 1);
        }
    }
}

/* scales[8] as above; qs[128]: byte j of 32 has elements j and j + 32 of 64; qh[32]: bit s of byte
 * j is bit 4 of element j of sub-block s. */
static void decode_iq5_ks(const uint8_t *b, float d, float *y)
{
    const uint8_t *qs = b + 8, *qh = b + 136;
    for (int s = 0; s < 8; s++) {
        float scale = d * (float)((b[s] & 254) - 127);
        for (int j = 0; j < 32; j++) {
            int q = (qs[s / 2 * 32 + j] >> s % 2 * 4 & 15) | (qh[j] >> s & 1) << 4;
            y[s * 32 + j] = scale * (float)levels5[b[s] & 1][q];
        }
    }
}

/* extra: bit s is bit 4 of the scale of sub-block s, bit 8 + s its table; scales[4]: low bits of
 * sub-blocks s and s + 4; qs[64]: 2 bits, qh[32]: bit 2 of element j of sub-block s. */
static void decode_iq3_ks(const uint8_t *b, float d, float *y)
{
    const uint8_t *scales = b + 2, *qs = b + 6, *qh = b + 70;
    int extra = half_at(b);
    for (int s = 0; s < 8; s++) {
        int sc = (scales[s % 4] >> s / 4 * 4 & 15) | (extra >> s & 1) << 4;
        float scale = d * (float)(sc - 16);
        for (int j = 0; j < 32; j++) {
            int q = (qs[s / 4 * 32 + j] >> s % 4 * 2 & 3) | (qh[j] >> s & 1) << 2;
            y[s * 32 + j] = scale * (float)levels3[extra >> (8 + s) & 1][q];
        }
    }
}

/* scales_h, scales_l[4]: 6 bits per 32 elements; qs[64], qh[16]: codes of 5 bits for pairs. */
static void decode_iq2_kl(const uint8_t *b, float d, float *y)
{
    const uint8_t *low = b + 2, *qs = b + 6, *qh = b + 70;
    int high = half_at(b);
    for (int s = 0; s < 8; s++) {
        int sc = (low[s % 4] >> s / 4 * 4 & 15) | (high >> 2 * s & 3) << 4;
        float scale = d * (float)(sc - 32);
        for (int j = 0; j < 16; j++) {
            int q = (qs[s / 2 * 16 + j] >> s % 2 * 4 & 15) | (qh[j] >> s & 1) << 4;
            y[s * 32 + 2 * j] = scale * (float)pairs2[q][0];
            y[s * 32 + 2 * j + 1] = scale * (float)pairs2[q][1];
        }
    }
}

void quant_decode_row(enum dtype t, const void *row, int64_t first, int64_t n, float *y)
{
    const struct dtype_info *info = dtype_info((int)t);
    const uint8_t *p = row;
    int head = dtype_head(t);
    float d;

    if (head == 4) memcpy(&d, p, 4);
    else d = f16_to_f32(half_at(p));
    p += head + first / info->block * info->bytes;
    for (int64_t i = 0; i < n; i += info->block, p += info->bytes, y += info->block) {
        switch (t) {
        case DT_IQ4_KS: decode_iq4_ks(p, d, y); break;
        case DT_IQ5_KS: decode_iq5_ks(p, d, y); break;
        case DT_IQ3_KS: decode_iq3_ks(p, d, y); break;
        default: decode_iq2_kl(p, d, y);
        }
    }
}
