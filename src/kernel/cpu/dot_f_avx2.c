/* dot_f_avx2.c - AVX2 gemv for unquantized weights (F32, F16, BF16), converted to F32 on the fly,
 * and for types that are decoded first. F32 sums per lane, columns ascending. */
#include "kernel/cpu/dot_avx2.h"

INLINE __m256 load_f(const char *p, const enum dtype t)
{
    if (t == DT_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    if (t == DT_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* One row times T tokens. The last columns are copied and padded with zeros to a vector. */
INLINE void row_f(const struct gemv *g, int r, int t0, const int T, const enum dtype type)
{
    const size_t size = type == DT_F32 ? 4 : 2;
    const char *w = gemv_row(g, r);
    const float *x[4];
    __m256 acc[8]; /* two sums per token hide the latency of fma */
    int c = 0;

    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < 2 * T; i++) acc[i] = _mm256_setzero_ps();
    for (; c + 16 <= g->cols; c += 16) {
        __m256 a = load_f(w + (size_t)c * size, type), b = load_f(w + (size_t)(c + 8) * size, type);
        _mm_prefetch(w + (size_t)c * size + 1024, _MM_HINT_T0);
        UNROLL
        for (int t = 0; t < T; t++) {
            acc[2 * t] = _mm256_fmadd_ps(a, _mm256_loadu_ps(x[t] + c), acc[2 * t]);
            acc[2 * t + 1] = _mm256_fmadd_ps(b, _mm256_loadu_ps(x[t] + c + 8), acc[2 * t + 1]);
        }
    }
    for (; c < g->cols; c += 8) {
        int n = g->cols - c < 8 ? g->cols - c : 8;
        char end[32] = { 0 };
        memcpy(end, w + (size_t)c * size, (size_t)n * size);
        __m256 a = load_f(end, type);
        UNROLL
        for (int t = 0; t < T; t++) {
            float xe[8] = { 0 };
            memcpy(xe, x[t] + c, (size_t)n * sizeof(float));
            acc[2 * t] = _mm256_fmadd_ps(a, _mm256_loadu_ps(xe), acc[2 * t]);
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] =
            sum8(_mm256_add_ps(acc[2 * t], acc[2 * t + 1]));
}

void gemv_f32_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_f, g, DT_F32) }
void gemv_f16_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_f, g, DT_F16) }
void gemv_bf16_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_f, g, DT_BF16) }
void gemv_any_avx2(const struct gemv *g) { gemv_decoded(g, gemv_f32_avx2); }
