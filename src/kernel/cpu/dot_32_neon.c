/* dot_32_neon.c - NEON gemv for formats with blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4), and the
 * quantization of activations to 8 bits. */
#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_neon.h"
#include "kernel/iq_grid.h"

/* Quantizes 32 activations: q = round(x * 127 / max|x|), d = max|x| / 127, with scaled sums of
 * both halves. */
static void quantize_block(struct x8 *o, const float *x)
{
    float32x4_t top = vdupq_n_f32(0);
    for (int i = 0; i < 8; i++) top = vmaxq_f32(top, vabsq_f32(vld1q_f32(x + 4 * i)));
    float most = vmaxvq_f32(top), up = most > 0 ? 127 / most : 0;

    o->d = most / 127;
    o->pad = 0;
    for (int h = 0; h < 2; h++) {
        int32x4_t q[4];
        for (int i = 0; i < 4; i++)
            q[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + 4 * i), up));
        int16x8_t a = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
        int16x8_t b = vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]));
        int8x16_t v = vcombine_s8(vmovn_s16(a), vmovn_s16(b));
        vst1q_s8(o->q + 16 * h, v);
        o->s[h] = o->d * (float)vaddlvq_s8(v);
    }
}

/* A row of activations; the last block is padded with zeros. */
void x8_make_neon(void *dst, const float *x, int cols)
{
    struct x8 *out = dst;
    int b = 0;
    for (; (b + 1) * 32 <= cols; b++) quantize_block(&out[b], x + b * 32);
    if (b * 32 < cols) {
        float end[32] = { 0 };
        memcpy(end, x + b * 32, (size_t)(cols - b * 32) * sizeof *x);
        quantize_block(&out[b], end);
    }
}

enum { Q4_0, Q4_1, Q5_0, Q8_0, IQ4_NL, MXFP4 };

INLINE int block32_bytes(const int kind)
{
    return kind == Q4_0 || kind == IQ4_NL ? 18
           : kind == Q4_1                 ? 20
           : kind == Q5_0                 ? 22
           : kind == Q8_0                 ? 34
                                          : 17;
}

/* 16 in every byte whose bit of the 16 at p is set. */
INLINE int8x16_t fifth_bits(const uint8_t *p)
{
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    uint8x16_t v = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
    return vreinterpretq_s8_u8(vandq_u8(vtstq_u8(v, bit), vdupq_n_u8(16)));
}

/* 2^(e - 127), built as the exponent of a float. */
INLINE float scale_mxfp4(uint8_t e)
{
    uint32_t u = (uint32_t)e << 23;
    float f;
    memcpy(&f, &u, 4);
    return f * 0.5f; /* the table holds doubled values */
}

/* Unpacks one block to signed bytes. Q4_0 and Q5_0 subtract their offset; Q4_1 has a minimum. */
INLINE struct w32 load_w32(const char *p, int8x16_t table, const int kind)
{
    const int head = kind == MXFP4 ? 1 : kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : 2;
    struct w32 w = { .d = { kind == MXFP4 ? scale_mxfp4((uint8_t)*p) : half_at(p) } };

    if (kind == Q8_0) {
        w.q[0] = vld1q_s8((const int8_t *)p + 2);
        w.q[1] = vld1q_s8((const int8_t *)p + 18);
        return w;
    }
    uint8x16_t v = vld1q_u8((const uint8_t *)p + head);
    w.q[0] = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
    w.q[1] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
    UNROLL
    for (int h = 0; h < 2; h++) {
        if (kind == Q4_0) w.q[h] = vsubq_s8(w.q[h], vdupq_n_s8(8));
        if (kind == Q5_0) {
            w.q[h] = vorrq_s8(w.q[h], fifth_bits((const uint8_t *)p + 2 + 2 * h));
            w.q[h] = vsubq_s8(w.q[h], vdupq_n_s8(16));
        }
        if (kind == IQ4_NL || kind == MXFP4)
            w.q[h] = vqtbl1q_s8(table, vreinterpretq_u8_s8(w.q[h]));
    }
    if (kind == Q4_1) w.m[0] = w.m[1] = half_at(p + 2);
    return w;
}

/* One row times T tokens: integer products per block, scaled and accumulated in F32. */
INLINE void row_32(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const char *p = gemv_row(g, r);
    const struct x8 *x[4];
    float32x4_t acc[4];
    float corr[4] = { 0 };
    int8x16_t table = vdupq_n_s8(0);

    if (kind == IQ4_NL) table = vld1q_s8(iq4_levels);
    if (kind == MXFP4) table = vld1q_s8(mxfp4_levels);
    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = vdupq_n_f32(0);
    }
    for (int b = 0; b < g->cols / QK; b++, p += block32_bytes(kind)) {
        struct w32 w = load_w32(p, table, kind);
        __builtin_prefetch(p + 1024);
        UNROLL
        for (int t = 0; t < T; t++) dot_w32(&acc[t], &corr[t], &w, x[t] + b, true, kind == Q4_1);
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = vaddvq_f32(acc[t]) + corr[t];
}

void gemv_q4_0_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q4_0) }
void gemv_q4_1_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q4_1) }
void gemv_q5_0_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q5_0) }
void gemv_q8_0_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q8_0) }
void gemv_iq4_nl_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, IQ4_NL) }
void gemv_mxfp4_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, MXFP4) }
