/* quant_k.c - the K formats: super-blocks of 256 elements with sub-blocks of 16 or 32. Each
 * sub-block has its own integer scale (and minimum), a multiple of one F16 per super-block.
 *
 * Encoding: quant_fit.c finds a real scale for every sub-block; these are rounded to integers; then
 * the elements are rounded again with the scales as stored. */
#include "kernel/quant_impl.h"
#include "kernel/quant_pack.h"

/* Decoders. j counts sub-blocks, l elements within one; see quantblocks.h for the bit layouts. */
QUANT_DECODER(q2_k)
{
    const struct block_q2_k *b = block;
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int j = 0; j < 16; j++) {
        const uint8_t *qs = b->qs + j / 8 * 32 + j % 2 * 16;
        float scale = d * (float)(b->scales[j] & 15), min = dmin * (float)(b->scales[j] >> 4);
        for (int l = 0; l < 16; l++)
            y[j * 16 + l] = scale * (float)(qs[l] >> (j / 2 % 4 * 2) & 3) - min;
    }
}

QUANT_DECODER(q3_k)
{
    const struct block_q3_k *b = block;
    float d = f16_to_f32(b->d);
    for (int j = 0; j < 16; j++) {
        const uint8_t *qs = b->qs + j / 8 * 32 + j % 2 * 16, *high = b->hmask + j % 2 * 16;
        float scale = d * (float)quant_k3_scale(b->scales, j);
        for (int l = 0; l < 16; l++) {
            int q = (qs[l] >> (j / 2 % 4 * 2) & 3) | (high[l] >> (j / 2) & 1) << 2;
            y[j * 16 + l] = scale * (float)(q - 4);
        }
    }
}

QUANT_DECODER(q4_k)
{
    const struct block_q4_k *b = block;
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int j = 0; j < 8; j++) {
        int sc, m;
        quant_k4_scale(b->scales, j, &sc, &m);
        float scale = d * (float)sc, min = dmin * (float)m;
        for (int l = 0; l < 32; l++)
            y[j * 32 + l] = scale * (float)(b->qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15) - min;
    }
}

QUANT_DECODER(q5_k)
{
    const struct block_q5_k *b = block;
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int j = 0; j < 8; j++) {
        int sc, m;
        quant_k4_scale(b->scales, j, &sc, &m);
        float scale = d * (float)sc, min = dmin * (float)m;
        for (int l = 0; l < 32; l++) {
            int q = (b->qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15) | (b->qh[l] >> j & 1) << 4;
            y[j * 32 + l] = scale * (float)q - min;
        }
    }
}

QUANT_DECODER(q6_k)
{
    const struct block_q6_k *b = block;
    float d = f16_to_f32(b->d);
    for (int j = 0; j < 16; j++) {
        const uint8_t *low = b->ql + j / 8 * 64 + j % 4 * 16,
                      *high = b->qh + j / 8 * 32 + j % 2 * 16;
        float scale = d * (float)b->scales[j];
        for (int l = 0; l < 16; l++) {
            int q = (low[l] >> (j % 8 / 4 * 4) & 15) | (high[l] >> (j / 2 % 4 * 2) & 3) << 4;
            y[j * 16 + l] = scale * (float)(q - 32);
        }
    }
}

QUANT_DECODER(q8_k)
{
    const struct block_q8_k *b = block;
    for (int i = 0; i < QK_K; i++) y[i] = b->d * (float)b->qs[i];
}

/* The d of which the sub-block scales are integer multiples: the largest becomes `top`. */
static float find_scale_step(const float *s, int n, float top) { return quant_extreme(s, n) / top; }

/* A super-block of Q2_K, Q4_K or Q5_K before packing: x = d sc q - dmin m. */
struct affine_block {
    uint16_t d, dmin;
    int sc[16], m[16];
    uint8_t q[QK_K];
};

/* sub: elements of a sub-block; top, scale_top: largest q, and largest sc and m. */
static void fit_affine_block(struct affine_block *b, const float *x, int sub, int top,
                             int scale_top)
{
    float s[16], m[16];
    int n = QK_K / sub;
    for (int j = 0; j < n; j++) {
        struct quant_affine a = quant_fit_affine(x + j * sub, sub, top);
        s[j] = a.s;
        m[j] = a.m;
    }
    b->d = quant_scale(find_scale_step(s, n, (float)scale_top));
    b->dmin = quant_scale(find_scale_step(m, n, (float)scale_top));
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    float id = quant_inverse(d), idmin = quant_inverse(dmin);
    for (int j = 0; j < n; j++) {
        b->sc[j] = quant_clamp(quant_round(fminf(s[j] * id, 255.0f)), 0, scale_top);
        b->m[j] = quant_clamp(quant_round(fminf(m[j] * idmin, 255.0f)), 0, scale_top);
        float step = quant_inverse(d * (float)b->sc[j]), min = dmin * (float)b->m[j];
        for (int i = j * sub; i < (j + 1) * sub; i++)
            b->q[i] = (uint8_t)quant_clamp(
                quant_round(fmaxf(fminf((x[i] + min) * step, 255.0f), -1.0f)), 0, top);
    }
}

/* A super-block of Q3_K or Q6_K before packing: x = d sc (q - top), 16 sub-blocks of 16, scales of
 * both signs. */
struct signed_block {
    uint16_t d;
    int sc[16];
    uint8_t q[QK_K];
};

/* top, scale_top: q in [-top, top - 1], sc in [-scale_top, scale_top - 1]. */
static void fit_signed_block(struct signed_block *b, const float *x, int top, int scale_top)
{
    float s[16];
    for (int j = 0; j < 16; j++) s[j] = quant_fit_signed(x + j * 16, 16, top);
    b->d = quant_scale(find_scale_step(s, 16, (float)-scale_top));
    float d = f16_to_f32(b->d), id = quant_inverse(d);
    for (int j = 0; j < 16; j++) {
        float sc = fmaxf(fminf(s[j] * id, 255.0f), -255.0f);
        b->sc[j] = quant_clamp(quant_round(sc), -scale_top, scale_top - 1);
        float step = quant_inverse(d * (float)b->sc[j]);
        for (int i = j * 16; i < (j + 1) * 16; i++) {
            int q = quant_round(fmaxf(fminf(x[i] * step, 255.0f), -255.0f));
            b->q[i] = (uint8_t)(quant_clamp(q, -top, top - 1) + top);
        }
    }
}

/* Encoders: fit, then pack. */
QUANT_ENCODER(q2_k)
{
    struct block_q2_k *b = block;
    struct affine_block f;
    fit_affine_block(&f, x, 16, 3, 15);
    b->d = f.d;
    b->dmin = f.dmin;
    for (int j = 0; j < 16; j++) b->scales[j] = (uint8_t)(f.sc[j] | f.m[j] << 4);
    pack_pairs(b->qs, f.q);
}

QUANT_ENCODER(q3_k)
{
    struct block_q3_k *b = block;
    struct signed_block f;
    fit_signed_block(&f, x, 4, 32);
    b->d = f.d;
    pack_k3_scales(b->scales, f.sc);
    pack_tops(b->hmask, f.q, 2);
    pack_pairs(b->qs, f.q);
}

QUANT_ENCODER(q4_k)
{
    struct block_q4_k *b = block;
    struct affine_block f;
    fit_affine_block(&f, x, 32, 15, 63);
    b->d = f.d;
    b->dmin = f.dmin;
    pack_k4_scales(b->scales, f.sc, f.m);
    pack_k_nibbles(b->qs, f.q);
}

QUANT_ENCODER(q5_k)
{
    struct block_q5_k *b = block;
    struct affine_block f;
    fit_affine_block(&f, x, 32, 31, 63);
    b->d = f.d;
    b->dmin = f.dmin;
    pack_k4_scales(b->scales, f.sc, f.m);
    pack_k_nibbles(b->qs, f.q);
    pack_tops(b->qh, f.q, 4);
}

QUANT_ENCODER(q6_k)
{
    struct block_q6_k *b = block;
    struct signed_block f;
    fit_signed_block(&f, x, 32, 128);
    b->d = f.d;
    for (int j = 0; j < 16; j++) b->scales[j] = (int8_t)f.sc[j];
    pack_sixes(b->ql, b->qh, f.q);
}

/* The element of largest magnitude becomes -127, as in ggml. */
QUANT_ENCODER(q8_k)
{
    struct block_q8_k *b = block;
    float max = quant_extreme(x, QK_K), id = quant_inverse(max) != 0 ? -127.0f / max : 0;
    for (int i = 0; i < QK_K; i++)
        b->qs[i] = (int8_t)quant_clamp(quant_round(x[i] * id), -128, 127);
    for (int j = 0; j < 16; j++) {
        int sum = 0;
        for (int i = 0; i < 16; i++) sum += b->qs[j * 16 + i];
        b->bsums[j] = (int16_t)sum;
    }
    b->d = quant_inverse(id);
}
