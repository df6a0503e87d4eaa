/* dot_iq_avx2.c - AVX2 gemv for the lattice formats IQ1, IQ2 and IQ3: points by table lookup, 32 signs
 * at a time. */
#include "kernel/cpu/load_iq_avx2.h"

/* One row times T tokens: a super-block is unpacked once, then multiplied with each token in
 * steps of 32 columns, whose halves have their own scales. */
INLINE void row_k(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const struct iq_grid *grid = iq_grid();
    const char *p = gemv_row(g, r);
    const struct x8 *x[4];
    __m256 acc[4];
    __m128 corr[4];

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = _mm256_setzero_ps();
        corr[t] = _mm_setzero_ps();
    }
    for (int b = 0; b < g->cols / QK_K; b++, p += any256_bytes(kind)) {
        struct w256 w;
        load_any256(&w, p, grid, kind);
        UNROLL
        for (int i = 0; i < any256_bytes(kind); i += 64) _mm_prefetch(p + 1024 + i, _MM_HINT_T0);
        UNROLL
        for (int i = 0; i < 8; i++) {
            struct w32 v = { .q = w.q[i] };
            v.d = _mm256_set_m128(_mm_broadcast_ss(&w.d[2 * i + 1]), _mm_broadcast_ss(&w.d[2 * i]));
            v.m = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)&w.m[2 * i]));
            UNROLL
            for (int t = 0; t < T; t++)
                dot_w32(&acc[t], &corr[t], &v, x[t] + 8 * b + i, false, true);
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] =
            sum8(_mm256_add_ps(acc[t], _mm256_zextps128_ps256(corr[t])));
}
void gemv_iq2_xxs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ2_XXS) }
void gemv_iq2_xs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ2_XS) }
void gemv_iq2_s_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ2_S) }
void gemv_iq3_xxs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ3_XXS) }
void gemv_iq3_s_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ3_S) }
void gemv_iq1_s_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ1_S) }
void gemv_iq1_m_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ1_M) }
