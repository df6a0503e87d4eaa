/* dot_int_avx2.c - AVX2 gemv for Q4_K, Q5_K and Q6_K.
 *
 * vpmaddubsw gives sums of two products in 16 bits: 2 * 63 * 127 < 2^15. vpmaddwd then multiplies them
 * by the weights' integer scales, which a byte shuffle spreads over the lanes: no scale is unpacked
 * one by one. The sums of 32 columns become F32, multiplied by d of the weights and of the token. */
#include "kernel/cpu/int_avx2.h"

size_t x256_bytes_avx2(int cols) { return (size_t)((cols + 255) / 256) * sizeof(struct x256); }

/* Takes over the blocks of form x8: 8 of them, or n at the end of a row. */
static void gather_blocks(struct x256 *o, const struct x8 *x, int n)
{
    for (int i = 0; i < n; i++) {
        memcpy(o->q + 32 * i, x[i].q, 32);
        o->d[i] = x[i].d;
        o->s16[2 * i] = x[i].s[0];
        o->s16[2 * i + 1] = x[i].s[1];
        o->s[i] = x[i].s[0] + x[i].s[1];
    }
}

void x256_make_avx2(void *dst, const float *x, int cols)
{
    struct x256 *o = dst;
    struct x8 part[8];

    for (int c = 0; c < cols; c += 256, o++) {
        int n = cols - c < 256 ? cols - c : 256;
        if (n < 256) memset(o, 0, sizeof *o);
        x8_make_avx2(part, x + c, n);
        gather_blocks(o, part, (n + 31) / 32);
    }
}

/* 16-bit scale i of the 8 in each half of v, in all lanes. */
INLINE __m256i pick_scale(__m256i v, const int i)
{
    return _mm256_shuffle_epi8(v, _mm256_set1_epi16((short)(2 * i | (2 * i + 1) << 8)));
}

/* The 6-bit scales and minima of Q4_K and Q5_K in 16 bits: eight scales, then eight minima. */
INLINE __m256i scales_16(const uint8_t *p)
{
    uint32_t a, b, c;
    memcpy(&a, p, 4);
    memcpy(&b, p + 4, 4);
    memcpy(&c, p + 8, 4);
    uint32_t high_sc = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    uint32_t high_m = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    __m128i v =
        _mm_setr_epi32((int)(a & 0x3f3f3f3f), (int)high_sc, (int)(b & 0x3f3f3f3f), (int)high_m);
    return _mm256_cvtepu8_epi16(v);
}

/* acc[t] += a super-block of Q4_K or Q5_K times its token; the minima go to corr[t]. */
INLINE void block_45(__m256 *acc, __m256 *corr, const char *p, const struct x256 *const *x, int b,
                     const int T, const int kind)
{
    const struct block_q5_k *b5 = (const void *)p;
    const struct block_q4_k *b4 = (const void *)p;
    const uint8_t *qs = kind == Q5_K ? b5->qs : b4->qs;
    __m256i sm = scales_16(kind == Q5_K ? b5->scales : b4->scales);
    __m256i sc = _mm256_permute4x64_epi64(sm, 0x44), h = _mm256_setzero_si256();
    __m256 d = _mm256_set1_ps(_cvtsh_ss(b4->d)), min = _mm256_set1_ps(_cvtsh_ss(b4->dmin));
    __m256 minima = _mm256_mul_ps(
        min, _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(sm, 1))));
    _Alignas(32) float dx[4][8];

    if (kind == Q5_K) h = load_ymm(b5->qh);
    UNROLL
    for (int t = 0; t < T; t++) {
        _mm256_store_ps(dx[t], _mm256_mul_ps(d, _mm256_loadu_ps(x[t][b].d)));
        corr[t] = _mm256_fnmadd_ps(minima, _mm256_loadu_ps(x[t][b].s), corr[t]);
    }
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i v = load_ymm(qs + 32 * j), lo = bits(v, 0, 4, 0), hi = bits(v, 4, 4, 0);
        if (kind == Q5_K) {
            lo = _mm256_or_si256(lo, bits(h, 2 * j, 1, 4));
            hi = _mm256_or_si256(hi, bits(h, 2 * j + 1, 1, 4));
        }
        __m256i sl = pick_scale(sc, 2 * j), sh = pick_scale(sc, 2 * j + 1);
        UNROLL
        for (int t = 0; t < T; t++) {
            acc[t] = add_product(acc[t], lo, x[t][b].q + 64 * j, sl, &dx[t][2 * j]);
            acc[t] = add_product(acc[t], hi, x[t][b].q + 64 * j + 32, sh, &dx[t][2 * j + 1]);
        }
    }
}

/* One row times T tokens. */
INLINE void row_int(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const char *p = gemv_row(g, r);
    const struct x256 *x[4];
    __m256 acc[4], corr[4];

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = corr[t] = _mm256_setzero_ps();
    }
    for (int b = 0; b < g->cols / QK_K; b++, p += block256_bytes(kind)) {
        prefetch_block(p, block256_bytes(kind));
        if (kind == Q6_K) block_16(acc, corr, p, x, b, T, kind);
        else block_45(acc, corr, p, x, b, T, kind);
    }
    UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = sum8(_mm256_add_ps(acc[t], corr[t]));
}

void gemv_q4_k_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_int, g, Q4_K) }
void gemv_q5_k_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_int, g, Q5_K) }
void gemv_q6_k_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_int, g, Q6_K) }
