/* dot_k_neon.c - NEON gemv for super-blocks of 256. A super-block is unpacked to bytes and scales
 * once and then multiplied with each token. */
#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_neon.h"
#include "kernel/iq_grid.h"

enum { Q4_K, Q5_K, Q6_K, IQ4_XS };

/* An unpacked super-block. */
struct w256 {
    int8x16_t q[16];    /* 16 elements each, in order */
    float d[16], m[16]; /* per 16 elements: value = d * q + m */
};

/* Bits [at, at + n) of every byte, moved to bit `to`. */
INLINE uint8x16_t bits(uint8x16_t v, const int at, const int n, const int to)
{
    v = vshlq_u8(v, vdupq_n_s8((int8_t)(to - at)));
    return vandq_u8(v, vdupq_n_u8((uint8_t)(((1 << n) - 1) << to)));
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

/* Nibbles of ql and pairs of bits of qh, minus 32. */
INLINE void load_q6_k(struct w256 *w, const struct block_q6_k *b)
{
    float d = half_at(&b->d);
    UNROLL
    for (int j = 0; j < 16; j++) { /* of its half: 32-block j % 8 / 2, 16 bytes at j % 2 */
        const int half = j / 8, k = j % 8 / 2, h = j % 2;
        uint8x16_t l = vld1q_u8(b->ql + 64 * half + 32 * (k % 2) + 16 * h);
        uint8x16_t u = vld1q_u8(b->qh + 32 * half + 16 * h);
        l = vorrq_u8(bits(l, k / 2 * 4, 4, 0), bits(u, 2 * k, 2, 4));
        w->q[j] = vsubq_s8(vreinterpretq_s8_u8(l), vdupq_n_s8(32));
        w->d[j] = d * b->scales[j];
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

INLINE void load_w256(struct w256 *w, const char *p, const int kind)
{
    const struct block_q4_k *k4 = (const void *)p;
    const struct block_q5_k *k5 = (const void *)p;
    switch (kind) {
    case Q4_K:
        load_45(w, k4->qs, NULL);
        scales_45(w, &k4->d, &k4->dmin, k4->scales);
        break;
    case Q5_K:
        load_45(w, k5->qs, k5->qh);
        scales_45(w, &k5->d, &k5->dmin, k5->scales);
        break;
    case Q6_K: load_q6_k(w, (const void *)p); break;
    default: load_iq4_xs(w, (const void *)p);
    }
}

INLINE int block256_bytes(const int kind)
{
    return kind == Q4_K ? 144 : kind == Q5_K ? 176 : kind == Q6_K ? 210 : 136;
}

/* One row times T tokens: a super-block is unpacked once, then multiplied with each token in
 * steps of 32 columns. */
INLINE void row_k(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const bool has_min = kind == Q4_K || kind == Q5_K;
    const char *p = gemv_row(g, r);
    const struct x8 *x[4];
    float32x4_t acc[4];
    float corr[4] = { 0 };

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = vdupq_n_f32(0);
    }
    for (int b = 0; b < g->cols / QK_K; b++, p += block256_bytes(kind)) {
        struct w256 w;
        load_w256(&w, p, kind);
        for (int i = 0; i < block256_bytes(kind); i += 64) __builtin_prefetch(p + 1024 + i);
        UNROLL
        for (int i = 0; i < 8; i++) {
            struct w32 v = { { w.q[2 * i], w.q[2 * i + 1] },
                             { w.d[2 * i], w.d[2 * i + 1] },
                             { 0 } };
            if (has_min) v.m[0] = w.m[2 * i], v.m[1] = w.m[2 * i + 1];
            UNROLL
            for (int t = 0; t < T; t++)
                dot_w32(&acc[t], &corr[t], &v, x[t] + 8 * b + i, kind != Q6_K, has_min);
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = vaddvq_f32(acc[t]) + corr[t];
}

void gemv_q4_k_neon(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, Q4_K) }
void gemv_q5_k_neon(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, Q5_K) }
void gemv_q6_k_neon(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, Q6_K) }
void gemv_iq4_xs_neon(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ4_XS) }
