/* quant_pack.h - packs quantized integers into the bit layouts of the block formats.
 *
 * q holds one unsigned integer per element; signed formats pass q with their offset added. The
 * functions are static inline, in C that compilers vectorize: the reference encoders (quant_*.c)
 * and the encoders of src/quant each compile them for their own instruction set. */
#ifndef TERN_KERNEL_QUANT_PACK_H
#define TERN_KERNEL_QUANT_PACK_H

#include "kernel/quantblocks.h"

#include <string.h>

#define PACK static inline __attribute__((unused))

/* 32 elements of four bits, and of five bits. */
PACK void pack_nibbles(uint8_t *restrict qs, const uint8_t *restrict q)
{
    for (int j = 0; j < 16; j++) qs[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
}

PACK void pack_fives(uint8_t *restrict qh, uint8_t *restrict qs, const uint8_t *restrict q)
{
    uint32_t high = 0;
    pack_nibbles(qs, q);
    for (int j = 0; j < 32; j++) high |= (uint32_t)(q[j] >> 4) << j;
    memcpy(qh, &high, 4);
}

/* The low two bits of 256 elements, in the order of Q2_K, Q3_K and TQ2_0. */
PACK void pack_pairs(uint8_t *restrict qs, const uint8_t *restrict q)
{
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *p = q + h * 128 + l;
            qs[h * 32 + l] =
                (uint8_t)((p[0] & 3) | (p[32] & 3) << 2 | (p[64] & 3) << 4 | (p[96] & 3) << 6);
        }
}

/* Bit `shift` of 256 elements, one byte for each position in 32: the high bits of Q3_K and Q5_K. */
PACK void pack_tops(uint8_t *restrict qh, const uint8_t *restrict q, int shift)
{
    for (int l = 0; l < 32; l++) {
        int bits = 0;
        for (int i = 0; i < 8; i++) bits |= (q[i * 32 + l] >> shift & 1) << i;
        qh[l] = (uint8_t)bits;
    }
}

/* The low four bits of 256 elements, in the order of Q4_K and Q5_K. */
PACK void pack_k_nibbles(uint8_t *restrict qs, const uint8_t *restrict q)
{
    for (int p = 0; p < 4; p++)
        for (int l = 0; l < 32; l++)
            qs[p * 32 + l] = (uint8_t)((q[p * 64 + l] & 15) | (q[p * 64 + 32 + l] & 15) << 4);
}

/* 256 elements of six bits: Q6_K. */
PACK void pack_sixes(uint8_t *restrict ql, uint8_t *restrict qh, const uint8_t *restrict q)
{
    for (int h = 0; h < 2; h++) {
        const uint8_t *p = q + h * 128;
        for (int l = 0; l < 64; l++)
            ql[h * 64 + l] = (uint8_t)((p[l] & 15) | (p[l + 64] & 15) << 4);
        for (int l = 0; l < 32; l++)
            qh[h * 32 + l] = (uint8_t)(p[l] >> 4 | p[l + 32] >> 4 << 2 | p[l + 64] >> 4 << 4 |
                                       p[l + 96] >> 4 << 6);
    }
}

/* Eight scales and eight minima of six bits in twelve bytes; quant_k4_scale reads them. */
PACK void pack_k4_scales(uint8_t *out, const int *sc, const int *m)
{
    for (int j = 0; j < 4; j++) {
        out[j] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        out[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        out[j + 8] = (uint8_t)((sc[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

/* Sixteen scales in [-32, 31], six bits each; quant_k3_scale reads them. */
PACK void pack_k3_scales(uint8_t *out, const int *sc)
{
    memset(out, 0, 12);
    for (int j = 0; j < 16; j++) {
        int s = sc[j] + 32;
        out[j % 8] |= (uint8_t)((s & 15) << (j / 8 * 4));
        out[8 + j % 4] |= (uint8_t)(s >> 4 << (j / 4 * 2));
    }
}

/* The eight scales of an IQ4_XS block, in [-32, 31]. */
PACK void pack_xs_scales(struct block_iq4_xs *b, const int *sc)
{
    b->scales_h = 0;
    memset(b->scales_l, 0, sizeof b->scales_l);
    for (int i = 0; i < 8; i++) {
        b->scales_l[i / 2] |= (uint8_t)(((sc[i] + 32) & 15) << (i % 2 * 4));
        b->scales_h = (uint16_t)(b->scales_h | (sc[i] + 32) >> 4 << 2 * i);
    }
}
#endif
