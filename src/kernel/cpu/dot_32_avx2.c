/* dot_32_avx2.c - AVX2 gemv for formats with blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4), and the
 * quantization of activations to 8 bits. */
#include "kernel/cpu/load_32_avx2.h"

INLINE __m256 abs8(__m256 v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }

/* Quantizes 32 activations: q = round(x * 127 / max|x|), d = max|x| / 127. The scaled sums of
 * both halves are kept for formats with minima. */
static void quantize_block(struct x8 *o, const float *x)
{
    __m256 v[4], top = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) top = _mm256_max_ps(top, abs8(v[i] = _mm256_loadu_ps(x + 8 * i)));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    float most = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    __m256 up = _mm256_set1_ps(most > 0 ? 127 / most : 0);

    __m256i q[4];
    for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], up));
    __m256i a = _mm256_packs_epi32(q[0], q[1]), b = _mm256_packs_epi32(q[2], q[3]);
    a = _mm256_packs_epi16(a,
                           b); /* packing works per 128-bit lane: groups of four are out of order */
    a = _mm256_permutevar8x32_epi32(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)o->q, a);
    o->d = most / 127;
    o->s[0] = o->d * sum8(_mm256_cvtepi32_ps(_mm256_add_epi32(q[0], q[1])));
    o->s[1] = o->d * sum8(_mm256_cvtepi32_ps(_mm256_add_epi32(q[2], q[3])));
    o->pad = 0;
}

/* A row of activations; the last block is padded with zeros. */
void x8_make_avx2(void *dst, const float *x, int cols)
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
INLINE void row_32(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const char *p = gemv_row(g, r);
    const struct x8 *x[4];
    __m256 acc[4];
    __m128 corr[4];
    __m256i levels = levels_of(kind);

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = _mm256_setzero_ps();
        corr[t] = _mm_setzero_ps();
    }
    for (int b = 0; b < g->cols / QK; b++, p += block32_bytes(kind)) {
        struct b32 v = load_b32(p, levels, kind);
        struct w32 w = { v.q, _mm256_set1_ps(v.d), _mm_set1_ps(v.m) };
        _mm_prefetch(p + 2048, _MM_HINT_T0);
        _mm_prefetch(p + 12288, _MM_HINT_T1);
        UNROLL
        for (int t = 0; t < T; t++)
            dot_w32(&acc[t], &corr[t], &w, x[t] + b, is_signed(kind), !is_signed(kind));
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] =
            sum8(_mm256_add_ps(acc[t], _mm256_zextps128_ps256(corr[t])));
}

void gemv_q4_0_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q4_0) }
void gemv_q4_1_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q4_1) }
void gemv_q5_0_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q5_0) }
void gemv_q5_1_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q5_1) }
void gemv_q8_0_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q8_0) }
void gemv_iq4_nl_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, IQ4_NL) }
void gemv_mxfp4_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, MXFP4) }
