/* dot_f_avx512.c - AVX-512 gemv for unquantized weights (F32, F16, BF16), converted to F32 on the
 * fly, and for types that are decoded first. F32 sums in 16 lanes, columns ascending. */
#include "kernel/cpu/dot_avx512.h"

/* 16 weights from column c on as F32; columns outside mask k are 0. */
INLINE __m512 load_f(const char *row, int c, __mmask16 k, const enum dtype t)
{
    if (t == DT_F32) return _mm512_maskz_loadu_ps(k, row + (size_t)c * 4);
    __m256i h = _mm256_maskz_loadu_epi16(k, row + (size_t)c * 2);
    if (t == DT_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* acc += products of R rows x T tokens over columns [c, c + 16), of which mask k is valid. */
INLINE void step_f(__m512 *acc, const char *const *w, const int R, const float *const *x,
                   const int T, int c, __mmask16 k, const enum dtype type)
{
    __m512 v[4];
    UNROLL
    for (int r = 0; r < R; r++) v[r] = load_f(w[r], c, k, type);
    UNROLL
    for (int t = 0; t < T; t++) {
        __m512 a = _mm512_maskz_loadu_ps(k, x[t] + c);
        UNROLL
        for (int r = 0; r < R; r++) acc[r * T + t] = _mm512_fmadd_ps(v[r], a, acc[r * T + t]);
    }
}

/* R rows x T tokens. F32, F16 and BF16 differ only in the load. */
INLINE void tile_f(const struct gemv *g, int r0, const int R, int t0, const int T,
                   const enum dtype type)
{
    const char *w[4];
    const float *x[8];
    __m512 acc[16], more[4]; /* a second set of sums: with few, the latency of fma would bound */
    int c = 0;

    UNROLL
    for (int r = 0; r < R; r++) w[r] = gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = _mm512_setzero_ps();
    if (R * T <= 4) {
        UNROLL
        for (int i = 0; i < R * T; i++) more[i] = _mm512_setzero_ps();
        for (; c + 32 <= g->cols; c += 32) {
            UNROLL
            for (int r = 0; r < R; r++)
                prefetch_weights(w[r] + (size_t)c * (type == DT_F32 ? 4 : 2),
                                 type == DT_F32 ? 128 : 64);
            step_f(acc, w, R, x, T, c, 0xffff, type);
            step_f(more, w, R, x, T, c + 16, 0xffff, type);
        }
        UNROLL
        for (int i = 0; i < R * T; i++) acc[i] = _mm512_add_ps(acc[i], more[i]);
    }
    for (; c + 16 <= g->cols; c += 16) step_f(acc, w, R, x, T, c, 0xffff, type);
    if (c < g->cols) step_f(acc, w, R, x, T, c, (__mmask16)((1u << (g->cols - c)) - 1), type);
    gemv_store(g, r0, R, t0, T, acc);
}

void gemv_f32_avx512(const struct gemv *g) { GEMV_TILES(tile_f, g, DT_F32, 2, 2, 4, 2); }
void gemv_f16_avx512(const struct gemv *g) { GEMV_TILES(tile_f, g, DT_F16, 2, 2, 4, 2); }
void gemv_bf16_avx512(const struct gemv *g) { GEMV_TILES(tile_f, g, DT_BF16, 2, 2, 4, 2); }
void gemv_any_avx512(const struct gemv *g) { gemv_decoded(g, gemv_f32_avx512); }
