/* load_k_neon.h - unpacks super-blocks of 256 (Q2_K to Q6_K, IQ4_XS, ternary) to signed bytes with
 * scales, by NEON: for gemv and gemm. */
#ifndef TERN_KERNEL_CPU_LOAD_K_NEON_H
#define TERN_KERNEL_CPU_LOAD_K_NEON_H

#include "kernel/cpu/load_32_neon.h"

/* An unpacked super-block. */
struct w256 {
    int8x16_t q[16];    /* 16 elements each, in order */
    float d[16], m[16]; /* per 16 elements: value = d * q + m; m only of formats with minima */
};

/* Bits [at, at + n) of every byte, moved to bit `to`. */
INLINE uint8x16_t bits(uint8x16_t v, const int at, const int n, const int to)
{
    v = vshlq_u8(v, vdupq_n_s8((int8_t)(to - at)));
    return vandq_u8(v, vdupq_n_u8((uint8_t)(((1 << n) - 1) << to)));
}

INLINE int8x16_t subtract(uint8x16_t v, const int n)
{
    return vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8((int8_t)n));
}

/* Scales and minima of Q4_K and Q5_K: eight of each, for 32 elements; stored twice, for 16. */
INLINE void scales_45(struct w256 *w, const void *d16, const void *min16, const uint8_t *scales)
{
    float d = half_at(d16), min = half_at(min16);
    for (int j = 0; j < 8; j++) {
        int sc, m;
        quant_k4_scale(scales, j, &sc, &m);
        w->d[2 * j] = w->d[2 * j + 1] = d * (float)sc;
        w->m[2 * j] = w->m[2 * j + 1] = -min * (float)m;
    }
}

/* The elements of Q4_K; with qh, of Q5_K. */
INLINE void load_45(struct w256 *w, const uint8_t *qs, const uint8_t *qh)
{
    UNROLL
    for (int i = 0; i < 8; i++) { /* 16 bytes: half i % 2 of blocks 2j and 2j + 1 */
        const int j = i / 2, h = i % 2;
        uint8x16_t v = vld1q_u8(qs + 16 * i), lo = bits(v, 0, 4, 0), hi = bits(v, 4, 4, 0);
        if (qh) {
            uint8x16_t b = vld1q_u8(qh + 16 * h);
            lo = vorrq_u8(lo, bits(b, 2 * j, 1, 4));
            hi = vorrq_u8(hi, bits(b, 2 * j + 1, 1, 4));
        }
        w->q[4 * j + h] = vreinterpretq_s8_u8(lo);
        w->q[4 * j + 2 + h] = vreinterpretq_s8_u8(hi);
    }
}

INLINE void load_q4_k(struct w256 *w, const struct block_q4_k *b)
{
    load_45(w, b->qs, NULL);
    scales_45(w, &b->d, &b->dmin, b->scales);
}

INLINE void load_q5_k(struct w256 *w, const struct block_q5_k *b)
{
    load_45(w, b->qs, b->qh);
    scales_45(w, &b->d, &b->dmin, b->scales);
}

/* Nibbles of ql and pairs of bits of qh, minus 32. */
INLINE void load_q6_k(struct w256 *w, const struct block_q6_k *b)
{
    float d = half_at(&b->d);
    UNROLL
    for (int j = 0; j < 16; j++) { /* of its half: 32-block j % 8 / 2, 16 bytes at j % 2 */
        const int half = j / 8, k = j % 8 / 2, h = j % 2;
        uint8x16_t l = vld1q_u8(b->ql + 64 * half + 32 * (k % 2) + 16 * h);
        uint8x16_t u = vld1q_u8(b->qh + 32 * half + 16 * h);
        w->q[j] = subtract(vorrq_u8(bits(l, k / 2 * 4, 4, 0), bits(u, 2 * k, 2, 4)), 32);
        w->d[j] = d * b->scales[j];
    }
}

/* 16 elements of two bits in the order of Q2_K: part j of 16. */
INLINE uint8x16_t two_bits(const uint8_t *qs, const int j)
{
    return bits(vld1q_u8(qs + 32 * (j / 8) + 16 * (j % 2)), j % 8 / 2 * 2, 2, 0);
}

/* Two bits per element; 4-bit scales and minima. */
INLINE void load_q2_k(struct w256 *w, const struct block_q2_k *b)
{
    float d = half_at(&b->d), min = half_at(&b->dmin);
    UNROLL
    for (int j = 0; j < 16; j++) {
        w->q[j] = vreinterpretq_s8_u8(two_bits(b->qs, j));
        w->d[j] = d * (float)(b->scales[j] & 15);
        w->m[j] = -min * (float)(b->scales[j] >> 4);
    }
}

/* Two bits of qs and one of hmask, minus 4. */
INLINE void load_q3_k(struct w256 *w, const struct block_q3_k *b)
{
    float d = half_at(&b->d);
    UNROLL
    for (int j = 0; j < 16; j++) {
        uint8x16_t h = bits(vld1q_u8(b->hmask + 16 * (j % 2)), j / 2, 1, 2);
        w->q[j] = subtract(vorrq_u8(two_bits(b->qs, j), h), 4);
        w->d[j] = d * (float)quant_k3_scale(b->scales, j);
    }
}

/* Nibbles index the level table. */
INLINE void load_iq4_xs(struct w256 *w, const struct block_iq4_xs *b)
{
    int8x16_t table = vld1q_s8(iq4_levels);
    float d = half_at(&b->d);
    for (int j = 0; j < 8; j++) {
        uint8x16_t v = vld1q_u8(b->qs + 16 * j);
        int sc = (b->scales_l[j / 2] >> 4 * (j % 2) & 15) | (b->scales_h >> 2 * j & 3) << 4;
        w->q[2 * j] = vqtbl1q_s8(table, vandq_u8(v, vdupq_n_u8(15)));
        w->q[2 * j + 1] = vqtbl1q_s8(table, vshrq_n_u8(v, 4));
        w->d[2 * j] = w->d[2 * j + 1] = d * (float)(sc - 32);
    }
}

INLINE void load_tq2_0(struct w256 *w, const struct block_tq2_0 *b)
{
    float d = half_at(&b->d);
    UNROLL
    for (int j = 0; j < 16; j++) {
        w->q[j] = subtract(two_bits(b->qs, j), 1);
        w->d[j] = d;
    }
}

/* The first digit of base-3 fractions of 256, minus 1; *v: the fractions that remain. */
INLINE int8x16_t next_digit(uint8x16_t *v)
{
    uint8x16_t lo = vreinterpretq_u8_u16(vmull_u8(vget_low_u8(*v), vdup_n_u8(3)));
    uint8x16_t hi = vreinterpretq_u8_u16(vmull_high_u8(*v, vdupq_n_u8(3)));
    *v = vuzp1q_u8(lo, hi);
    return subtract(vuzp2q_u8(lo, hi), 1);
}

/* 32 and 16 bytes of five digits, then 4 bytes of four. */
INLINE void load_tq1_0(struct w256 *w, const struct block_tq1_0 *b)
{
    static const uint8_t powers[16] = { 1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27 };
    uint8x16_t v[3], last;
    uint32_t qh;
    float d = half_at(&b->d);

    memcpy(&qh, b->qh, sizeof qh);
    last = vmulq_u8(vreinterpretq_u8_u32(vdupq_n_u32(qh)), vld1q_u8(powers));
    UNROLL
    for (int i = 0; i < 3; i++) v[i] = vld1q_u8(b->qs + 16 * i);
    UNROLL
    for (int n = 0; n < 5; n++) {
        w->q[2 * n] = next_digit(&v[0]);
        w->q[2 * n + 1] = next_digit(&v[1]);
        w->q[10 + n] = next_digit(&v[2]);
    }
    w->q[15] = next_digit(&last);
    for (int j = 0; j < 16; j++) w->d[j] = d;
}
#endif
