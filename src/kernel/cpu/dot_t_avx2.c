/* dot_t_avx2.c - AVX2 gemv for the ternary formats TQ1_0 and TQ2_0. */
#include "kernel/cpu/dot_t.h"
#include "kernel/cpu/load_iq_avx2.h"

/* max|x| of 256 numbers. */
static float find_top(const float *x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 top = _mm256_setzero_ps();

    for (int i = 0; i < QK_K; i += 8)
        top = _mm256_max_ps(top, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* 32 numbers times `up`, rounded to bytes. */
INLINE __m256i round_32(const float *x, __m256 up)
{
    __m256i q[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), up));
    /* Packing works per 128-bit lane: groups of four are out of order. */
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static void quantize_256(struct xt *o, const float *x)
{
    float top = find_top(x);
    __m256 up = _mm256_set1_ps(top > 0 ? 127 / top : 0);
    __m256i sum = _mm256_setzero_si256();

    for (int i = 0; i < QK_K; i += 32) {
        __m256i v = round_32(x + i, up);
        _mm256_store_si256((__m256i *)(o->q + i), v);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), v));
    }
    sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(-1));
    _mm256_storeu_si256((__m256i *)o->n, sum);
    o->d = top / 127;
}

/* A row of activations; the last block is padded with zeros. */
void xt_make_avx2(void *dst, const float *x, int cols)
{
    struct xt *o = dst;

    for (int c = 0; c < cols; c += QK_K, o++) {
        float end[QK_K] = { 0 };
        if (cols - c < QK_K) memcpy(end, x + c, (size_t)(cols - c) * sizeof *x);
        quantize_256(o, cols - c < QK_K ? end : x + c);
    }
}

/* The integer sums of 256 columns: 8 * 2 * 3 * 127 < 2^15. */
INLINE __m256i dot_t(const __m256i q[8], const struct xt *x)
{
    __m256i n = _mm256_loadu_si256((const __m256i *)x->n);
#ifdef DOT4
    UNROLL
    for (int i = 0; i < 8; i++) n = DOT4(n, q[i], _mm256_load_si256((const __m256i *)x->q + i));
    return n;
#else
    __m256i s = _mm256_maddubs_epi16(q[0], _mm256_load_si256((const __m256i *)x->q));
    UNROLL
    for (int i = 1; i < 8; i++)
        s = _mm256_add_epi16(
            s, _mm256_maddubs_epi16(q[i], _mm256_load_si256((const __m256i *)x->q + i)));
    return _mm256_add_epi32(n, _mm256_madd_epi16(s, _mm256_set1_epi16(1)));
#endif
}

/* One row times T tokens. */
INLINE void row_t(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const char *p = gemv_row(g, r);
    const struct xt *x[4];
    __m256 acc[4];

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = _mm256_setzero_ps();
    }
    for (int b = 0; b < g->cols / QK_K; b++, p += any256_bytes(kind)) {
        __m256i q[8];
        float d = half_at(p + any256_bytes(kind) - 2);
        if (kind == TQ1_0) unpack_tq1_0(q, (const void *)p);
        else unpack_tq2_0(q, (const void *)p);
        _mm_prefetch(p + 2048, _MM_HINT_T0);
        _mm_prefetch(p + 12288, _MM_HINT_T1);
        UNROLL
        for (int t = 0; t < T; t++)
            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot_t(q, x[t] + b)),
                                     _mm256_set1_ps(d * x[t][b].d), acc[t]);
    }
    UNROLL
    for (int t = 0; t < T; t++) g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = sum8(acc[t]);
}

void gemv_tq1_0_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_t, g, TQ1_0) }
void gemv_tq2_0_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_t, g, TQ2_0) }
