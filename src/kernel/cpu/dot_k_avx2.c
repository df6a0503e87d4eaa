/* dot_k_avx2.c - AVX2 gemv for Q2_K and Q3_K. */
#include "kernel/cpu/int_avx2.h"

/* One row times T tokens. */
INLINE void row_16(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const char *p = gemv_row(g, r);
    const struct x256 *x[4];
    __m256 acc[4];

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = _mm256_setzero_ps();
    }
    for (int b = 0; b < g->cols / QK_K; b++, p += block256_bytes(kind)) {
        prefetch_block(p, block256_bytes(kind));
        block_16(acc, p, x, b, T, kind);
    }
    UNROLL
    for (int t = 0; t < T; t++) g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = sum8(acc[t]);
}

void gemv_q2_k_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_16, g, Q2_K) }
void gemv_q3_k_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_16, g, Q3_K) }
