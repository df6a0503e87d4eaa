/* quantblocks.h - memory layout of the quantized block formats, byte for byte.
 *
 * The formats are those of ggml, the library behind llama.cpp, which defines GGUF's tensor types:
 * Q4_0 to Q8_1 (Georgi Gerganov), the K formats and the IQ formats (Iwan Kawrakow), TQ1_0 and
 * TQ2_0 (compilade). MXFP4 is the OCP Microscaling format. The layouts must not change.
 *
 * A row of a weight matrix is a sequence of blocks; x is the real value of an element and q its
 * stored integer. Every field is naturally aligned (2 bytes at most, 4 in Q8_K), so the structs
 * have no padding. A uint16_t named d, m, dmin or s is an F16. In the 32-element formats byte j of
 * qs holds element j in its low nibble and element j + 16 in its high nibble. quant*.c decode and
 * encode each format in plain C. Numbers after the name: bits per element. */
#ifndef TERN_KERNEL_QUANTBLOCKS_H
#define TERN_KERNEL_QUANTBLOCKS_H

#include <assert.h>
#include <stdint.h>

#define QK 32    /* elements of a block of the simple formats */
#define QK_K 256 /* elements of a super-block of the K, IQ and TQ formats */

/* Q4_0, 4.5: x = d (q - 8) */
struct block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
};
/* Q4_1, 5: x = d q + m */
struct block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
};
/* Q5_0, 5.5: x = d (q - 16); bit j of qh, little-endian, is bit 4 of element j */
struct block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
};
/* Q5_1, 6: x = d q + m */
struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
};
/* Q8_0, 8.5: x = d q */
struct block_q8_0 {
    uint16_t d;
    int8_t qs[32];
};
/* Q8_1, 9: x = d q; s = d sum(q). For activations, never in files. */
struct block_q8_1 {
    uint16_t d, s;
    int8_t qs[32];
};

/* Q2_K, 2.625. 16 sub-blocks of 16 elements: x = d (sc & 15) q - dmin (sc >> 4). q has two bits: in
 * each half of 128 elements, byte l (0..31) of qs holds elements l, l+32, l+64, l+96. */
struct block_q2_k {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, dmin;
};
/* Q3_K, 3.4375. 16 sub-blocks of 16 elements: x = d (sc - 32) (q - 4). The low two bits of q are
 * stored as in Q2_K; bit 2 of element l + 32 i is bit i of hmask[l]. Scales have six bits: low
 * nibbles in scales[0..7], high two bits in scales[8..11] (quant_k3_scale). */
struct block_q3_k {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
};
/* Q4_K, 4.5. 8 sub-blocks of 32 elements: x = d sc q - dmin m; sc and m have six bits each
 * (quant_k4_scale). In each 64 elements, byte l (0..31) of qs holds element l in its low nibble and
 * element l + 32 in its high nibble. */
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
};
/* Q5_K, 5.5. As Q4_K; bit 4 of element l + 32 i is bit i of qh[l]. */
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};
/* Q6_K, 6.5625. 16 sub-blocks of 16 elements: x = d sc (q - 32). In each half of 128 elements,
 * ql[l] (0..63) holds the low nibbles of elements l and l + 64, and qh[l] (0..31) the high two bits
 * of elements l, l+32, l+64, l+96. */
struct block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
};
/* Q8_K, 9.125: x = d q; bsums: sums of 16 q each. For activations, never in files. */
struct block_q8_k {
    float d;
    int8_t qs[256];
    int16_t bsums[16];
};

/* The IQ formats store groups of 8 (IQ3: 4) magnitudes as one index into a fixed table of lattice
 * points (kernel/iq_grid.h). The 8 signs of a group are stored in 7 bits, because the encoder makes
 * their number even; the _S formats store all 8.
 *
 * IQ2_XXS, 2.0625. For each 32 elements 4 words of qs: four 8-bit indices, then 4 x 7 sign bits and
 * a 4-bit scale s: x = d (0.5 + s) / 4 * point. */
struct block_iq2_xxs {
    uint16_t d;
    uint16_t qs[32];
};
/* IQ2_XS, 2.3125. qs: 9-bit index and 7 sign bits of 8 elements; scales: 4 bits for 16 elements. */
struct block_iq2_xs {
    uint16_t d;
    uint16_t qs[32];
    uint8_t scales[8];
};
/* IQ2_S, 2.5625. 10-bit index: qs, and two bits of qh; scales as in IQ2_XS. */
struct block_iq2_s {
    uint16_t d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
};
/* IQ3_XXS, 3.0625. qs: 8-bit index of 4 elements; signs: for each 32 elements a 32-bit word of
 * 4 x 7 sign bits and a 4-bit scale s: x = d (0.5 + s) / 2 * point. */
struct block_iq3_xxs {
    uint16_t d;
    uint8_t qs[64];
    uint8_t signs[32];
};
/* IQ3_S, 3.4375. 9-bit index: qs, and a bit of qh; scales: 4 bits s for 32 elements:
 * x = d (1 + 2 s) * point. */
struct block_iq3_s {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
};
/* IQ1_S, 1.5625. Ternary lattice points. 11-bit index of 8 elements: qs, and 3 bits of qh. Bits
 * 12-14 of qh are a scale s, bit 15 the sign of a shift: x = d (2 s + 1) (point +- 1/8). */
struct block_iq1_s {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
};
/* IQ1_M, 1.75. As IQ1_S, with a 3-bit scale for 16 elements and a shift for 8. The F16 d is spread
 * over the top nibbles of the four 16-bit words of scales. */
struct block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];
    uint8_t scales[8];
};
/* IQ4_NL, 4.5: x = d iq4_levels[q]; nibbles as in Q4_0. Non-linear levels. */
struct block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
};
/* IQ4_XS, 4.25. 8 sub-blocks of 32 elements, each with nibbles as in Q4_0:
 * x = d (sc - 32) iq4_levels[q]; sc: a nibble of scales_l and two bits of scales_h. */
struct block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
};

/* Ternary, x = d (q - 1). TQ1_0, 1.6875: five digits per byte as a base-3 fraction of 256 (qs),
 * four in qh. TQ2_0, 2.0625: four digits of two bits per byte, in the order of Q2_K. */
struct block_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
};
struct block_tq2_0 {
    uint8_t qs[64];
    uint16_t d;
};
/* MXFP4, 4.25: x = 2^(e - 127) * E2M1(q); nibbles as in Q4_0. */
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
