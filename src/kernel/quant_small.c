/* quant_small.c - formats with one scale for 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1,
 * IQ4_NL (decoding), MXFP4. Encoders round with the scale given by the largest element, as ggml's
 * reference quantizers do. */
#include "kernel/quant_impl.h"

#include "kernel/iq_grid.h"
#include "kernel/quant_pack.h"

QUANT_DECODER(q4_0)
{
    const struct block_q4_0 *b = block;
    float d = f16_to_f32(b->d);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)((b->qs[j] & 15) - 8) * d;
        y[j + 16] = (float)((b->qs[j] >> 4) - 8) * d;
    }
}

QUANT_DECODER(q4_1)
{
    const struct block_q4_1 *b = block;
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)(b->qs[j] & 15) * d + m;
        y[j + 16] = (float)(b->qs[j] >> 4) * d + m;
    }
}

/* The 32 five-bit integers of a Q5 block. */
static void unpack_fives(const uint8_t *qh, const uint8_t *qs, int *q)
{
    for (int j = 0; j < 16; j++) {
        q[j] = (qs[j] & 15) | (qh[j / 8] >> j % 8 & 1) << 4;
        q[j + 16] = qs[j] >> 4 | (qh[2 + j / 8] >> j % 8 & 1) << 4;
    }
}

QUANT_DECODER(q5_0)
{
    const struct block_q5_0 *b = block;
    float d = f16_to_f32(b->d);
    int q[QK];
    unpack_fives(b->qh, b->qs, q);
    for (int j = 0; j < QK; j++) y[j] = (float)(q[j] - 16) * d;
}

QUANT_DECODER(q5_1)
{
    const struct block_q5_1 *b = block;
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
    int q[QK];
    unpack_fives(b->qh, b->qs, q);
    for (int j = 0; j < QK; j++) y[j] = (float)q[j] * d + m;
}

QUANT_DECODER(q8_0)
{
    const struct block_q8_0 *b = block;
    float d = f16_to_f32(b->d);
    for (int j = 0; j < QK; j++) y[j] = (float)b->qs[j] * d;
}

QUANT_DECODER(q8_1)
{
    const struct block_q8_1 *b = block;
    float d = f16_to_f32(b->d);
    for (int j = 0; j < QK; j++) y[j] = (float)b->qs[j] * d;
}

QUANT_DECODER(iq4_nl)
{
    const struct block_iq4_nl *b = block;
    float d = f16_to_f32(b->d);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)iq4_levels[b->qs[j] & 15];
        y[j + 16] = d * (float)iq4_levels[b->qs[j] >> 4];
    }
}

/* mxfp4_levels holds doubled E2M1 values, so that they are integers; the scale is halved for it:
 * 2^(e - 128). */
static float mxfp4_half_scale(uint8_t e) { return ldexpf(1.0f, e - 128); }

QUANT_DECODER(mxfp4)
{
    const struct block_mxfp4 *b = block;
    float d = mxfp4_half_scale(b->e);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)mxfp4_levels[b->qs[j] & 15] * d;
        y[j + 16] = (float)mxfp4_levels[b->qs[j] >> 4] * d;
    }
}

/* Rounds to levels 0 .. 2 * middle - 1 around `middle` and returns the scale. The element of
 * largest magnitude becomes level 0, because the range below the middle has one level more than the
 * range above. x is shifted to be positive, so that truncation rounds. */
static float round_signed(const float *x, uint8_t *q, int middle)
{
    float d = quant_extreme(x, QK) / (float)-middle, id = quant_inverse(d);
    for (int j = 0; j < QK; j++)
        q[j] = (uint8_t)quant_clamp((int)(x[j] * id + ((float)middle + 0.5f)), 0, 2 * middle - 1);
    return d;
}

/* Rounds to levels 0 .. top from the minimum, and returns the scale. */
static float round_from_min(const float *x, uint8_t *q, int top, float *min_out)
{
    float min = x[0], max = x[0];
    for (int j = 1; j < QK; j++) {
        min = x[j] < min ? x[j] : min;
        max = x[j] > max ? x[j] : max;
    }
    /* max - min may overflow although both are finite: then divide before subtracting. */
    float d = isfinite(max - min) ? (max - min) / (float)top : max / (float)top - min / (float)top;
    float id = quant_inverse(d);
    for (int j = 0; j < QK; j++)
        q[j] = (uint8_t)quant_clamp((int)fminf((x[j] - min) * id + 0.5f, 255.0f), 0, top);
    *min_out = min;
    return d;
}

/* Encoders: round, then pack. */
QUANT_ENCODER(q4_0)
{
    struct block_q4_0 *b = block;
    uint8_t q[QK];
    b->d = quant_scale(round_signed(x, q, 8));
    pack_nibbles(b->qs, q);
}

QUANT_ENCODER(q4_1)
{
    struct block_q4_1 *b = block;
    uint8_t q[QK];
    float min;
    b->d = quant_scale(round_from_min(x, q, 15, &min));
    b->m = quant_scale(min);
    pack_nibbles(b->qs, q);
}

QUANT_ENCODER(q5_0)
{
    struct block_q5_0 *b = block;
    uint8_t q[QK];
    b->d = quant_scale(round_signed(x, q, 16));
    pack_fives(b->qh, b->qs, q);
}

QUANT_ENCODER(q5_1)
{
    struct block_q5_1 *b = block;
    uint8_t q[QK];
    float min;
    b->d = quant_scale(round_from_min(x, q, 31, &min));
    b->m = quant_scale(min);
    pack_fives(b->qh, b->qs, q);
}

/* Rounds to [-127, 127] and returns the scale. */
static float round_to_int8(const float *x, int8_t *q)
{
    int32_t top = 0; /* the bits of non-negative floats compare as the floats do */
    for (int j = 0; j < QK; j++) {
        int32_t u;
        memcpy(&u, x + j, 4);
        u &= 0x7fffffff;
        top = u > top ? u : top;
    }
    float amax;
    memcpy(&amax, &top, 4);
    float d = amax / 127.0f, id = quant_inverse(d);
    for (int j = 0; j < QK; j++) q[j] = (int8_t)quant_round(x[j] * id);
    return d;
}

QUANT_ENCODER(q8_0)
{
    struct block_q8_0 *b = block;
    b->d = quant_scale(round_to_int8(x, b->qs));
}

/* s is the scaled sum of the block, which saves work in dot products with minima. */
QUANT_ENCODER(q8_1)
{
    struct block_q8_1 *b = block;
    float d = round_to_int8(x, b->qs);
    int sum = 0;
    for (int j = 0; j < QK; j++) sum += b->qs[j];
    b->d = quant_scale(d);
    b->s = quant_scale((float)sum * d);
}

/* The block exponent brings the largest element into [4, 8); E2M1 ends at 6. */
QUANT_ENCODER(mxfp4)
{
    struct block_mxfp4 *b = block;
    float amax = fabsf(quant_extreme(x, QK));
    uint8_t q[QK];
    int exp;
    frexpf(amax, &exp); /* amax = [0.5, 1) 2^exp */
    b->e = (uint8_t)(amax > 0 ? quant_clamp(exp - 1 - 2 + 127, 0, 254) : 0);
    float id = ldexpf(1.0f, -(b->e - 128) / 2),
          id2 = ldexpf(1.0f, -(b->e - 128) - -(b->e - 128) / 2);
    for (int j = 0; j < QK; j++) {
        static const float between[7] = { 0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10 };
        float mag = fabsf(x[j]) * id * id2; /* in two steps: 2^128 does not fit a float */
        int level = 0;
        for (int l = 0; l < 7; l++) level += mag > between[l];
        q[j] = (uint8_t)(x[j] < 0 && level ? level | 8 : level);
    }
    pack_nibbles(b->qs, q);
}
