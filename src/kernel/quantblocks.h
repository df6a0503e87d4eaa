/* quantblocks.h - how the block formats lie in memory, byte for byte.
 *
 * Every field is naturally aligned (2 bytes at most, 4 in Q8_K), so none needs packing. A
 * uint16_t named d, m, dmin or s is an F16. In the 32-element formats byte j of qs holds
 * element j in its low nibble and element j + 16 in its high one. quant.c says in plain C
 * what each format means. */
#ifndef TERN_KERNEL_QUANTBLOCKS_H
#define TERN_KERNEL_QUANTBLOCKS_H

#include <assert.h>
#include <stdint.h>

#define QK 32    /* elements of a small block */
#define QK_K 256 /* elements of a super-block */

/* x = d (q - 8) */
struct block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
};
/* x = d q + m */
struct block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
};
/* x = d (q - 16); bit j of qh, little-endian, is bit 4 of element j */
struct block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
};
/* x = d q + m */
struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
};
/* x = d q */
struct block_q8_0 {
    uint16_t d;
    int8_t qs[32];
};
/* x = d q; s = d sum(q): activations only */
struct block_q8_1 {
    uint16_t d, s;
    int8_t qs[32];
};

/* 16 sub-blocks of 16: x = d (sc & 15) q - dmin (sc >> 4). Two bits: of each half of 128, byte l
 * (0..31) holds elements l, l+32, l+64, l+96. */
struct block_q2_k {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, dmin;
};
/* 16 sub-blocks of 16: x = d (sc - 32) (q - 4). Low two bits like Q2_K; bit 2 of elements l + 32 i
 * in bit i of hmask[l]. Six-bit scales: low nibbles in scales[0..7], high pairs in scales[8..11].
 */
struct block_q3_k {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
};
/* 8 sub-blocks of 32: x = d sc q - dmin m; sc and m six bits each (quant_k4_scale). Of each 64,
 * byte l (0..31) holds element l low and l + 32 high. */
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
};
/* The same with bit 4 of elements l + 32 i in bit i of qh[l]. */
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};
/* 16 sub-blocks of 16: x = d sc (q - 32). Of each half of 128, ql[l] (0..63) holds the low nibbles
 * of l and l + 64; qh[l] (0..31) the high pairs of l, l+32, l+64, l+96. */
struct block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
};
/* x = d q; bsums: sums of 16: activations only */
struct block_q8_k {
    float d;
    int8_t qs[256];
    int16_t bsums[16];
};

struct block_iq2_xxs {
    uint16_t d;
    uint16_t qs[32];
};
struct block_iq2_xs {
    uint16_t d;
    uint16_t qs[32];
    uint8_t scales[8];
};
struct block_iq2_s {
    uint16_t d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
};
struct block_iq3_xxs {
    uint16_t d;
    uint8_t qs[64];
    uint8_t signs[32];
};
struct block_iq3_s {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
};
struct block_iq1_s {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
};
struct block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];
    uint8_t scales[8];
};
/* x = d table[q], nibbles like Q4_0 */
struct block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
};
/* 8 sub-blocks of 32, nibbles like Q4_0 in each: x = d (sc - 32) table[q]; sc: nibble of scales_l,
 * two bits of scales_h */
struct block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
};

/* ternary, x = d (q - 1): five to a byte as base-3 fractions of 256; four to a byte */
struct block_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
};
struct block_tq2_0 {
    uint8_t qs[64];
    uint16_t d;
};
/* x = 2^(e - 127) * E2M1, nibbles like Q4_0 */
struct block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
};

#define BLOCK_BYTES(name, n) static_assert(sizeof(struct block_##name) == (n), "bytes of " #name)
BLOCK_BYTES(q4_0, 18);
BLOCK_BYTES(q4_1, 20);
BLOCK_BYTES(q5_0, 22);
BLOCK_BYTES(q5_1, 24);
BLOCK_BYTES(q8_0, 34);
BLOCK_BYTES(q8_1, 36);
BLOCK_BYTES(q2_k, 84);
BLOCK_BYTES(q3_k, 110);
BLOCK_BYTES(q4_k, 144);
BLOCK_BYTES(q5_k, 176);
BLOCK_BYTES(q6_k, 210);
BLOCK_BYTES(q8_k, 292);
BLOCK_BYTES(iq2_xxs, 66);
BLOCK_BYTES(iq2_xs, 74);
BLOCK_BYTES(iq2_s, 82);
BLOCK_BYTES(iq3_xxs, 98);
BLOCK_BYTES(iq3_s, 110);
BLOCK_BYTES(iq1_s, 50);
BLOCK_BYTES(iq1_m, 56);
BLOCK_BYTES(iq4_nl, 18);
BLOCK_BYTES(iq4_xs, 136);
BLOCK_BYTES(tq1_0, 54);
BLOCK_BYTES(tq2_0, 66);
BLOCK_BYTES(mxfp4, 17);
#undef BLOCK_BYTES

/* Scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K block. */
static inline void quant_k4_scale(const uint8_t *scales, int j, int *sc, int *m)
{
    if (j < 4) {
        *sc = scales[j] & 63;
        *m = scales[j + 4] & 63;
    } else {
        *sc = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        *m = scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
    }
}

/* Scale of sub-block j (0..15) of a Q3_K block, -32..31. */
static inline int quant_k3_scale(const uint8_t *scales, int j)
{
    int low = scales[j & 7] >> (j < 8 ? 0 : 4) & 15;
    return (low | (scales[8 + (j & 3)] >> (2 * (j >> 2)) & 3) << 4) - 32;
}
#endif
