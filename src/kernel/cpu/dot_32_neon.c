/* dot_32_neon.c - NEON gemv for formats with blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4), and the
 * quantization of activations to 8 bits. */
#include "kernel/cpu/load_32_neon.h"

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

/* One row times T tokens: integer products per block, scaled and accumulated in F32. */
INLINE void row_32(const struct gemv *g, int r, int t0, const int T, const enum dtype type)
{
    const bool has_min = type == DT_Q4_1 || type == DT_Q5_1;
    const char *p = gemv_row(g, r);
    const struct x8 *x[4];
    float32x4_t acc[4];
    float corr[4] = { 0 };
    int8x16_t levels = levels_of(type);

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = vdupq_n_f32(0);
    }
    for (int b = 0; b < g->cols / QK; b++, p += block32_bytes(type)) {
        struct w32 w = load_w32(p, levels, type);
        __builtin_prefetch(p + 1024);
        UNROLL
        for (int t = 0; t < T; t++) dot_w32(&acc[t], &corr[t], &w, x[t] + b, true, has_min);
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = vaddvq_f32(acc[t]) + corr[t];
}

void gemv_q4_0_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, DT_Q4_0) }
void gemv_q4_1_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, DT_Q4_1) }
void gemv_q5_0_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, DT_Q5_0) }
void gemv_q5_1_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, DT_Q5_1) }
void gemv_q8_0_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, DT_Q8_0) }
void gemv_iq4_nl_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, DT_IQ4_NL) }
void gemv_mxfp4_neon(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, DT_MXFP4) }
