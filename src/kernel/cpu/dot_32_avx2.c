/* dot_32_avx2.c - AVX2 gemv for formats with blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4) and for
 * IQ4_XS, eight blocks at a time, and the quantization of activations to 8 bits. */
#include "kernel/cpu/int_avx2.h"
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

/* Kinds of this file: those of load_32_avx2.h, and IQ4_XS as eight blocks with a common head. */
enum { XS = MXFP4 + 1 };

INLINE bool has_levels(const int kind) { return kind == IQ4_NL || kind == MXFP4 || kind == XS; }
INLINE int step_bytes(const int kind) { return kind == XS ? 16 : block32_bytes(kind); }

/* The F16 at p + at of n blocks, as F32; zeros for others. */
INLINE __m256 gather_halves(const char *p, const int at, int n, const int kind)
{
    uint16_t h[8] = { 0 };
    UNROLL
    for (int i = 0; i < 8; i++)
        if (i < n) memcpy(&h[i], p + i * block32_bytes(kind) + at, 2);
    __m128i v = _mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3], (short)h[4],
                               (short)h[5], (short)h[6], (short)h[7]);
    return _mm256_cvtph_ps(v);
}

INLINE __m256 gather_mxfp4(const char *p, int n)
{
    float d[8];
    UNROLL
    for (int i = 0; i < 8; i++) d[i] = i < n ? scale_mxfp4(p + 17 * i) : 0;
    return _mm256_loadu_ps(d);
}

/* Six bits each: a nibble of scales_l and two bits of scales_h. */
INLINE __m256 scales_xs(const struct block_iq4_xs *b)
{
    int32_t l;
    memcpy(&l, b->scales_l, 4);
    __m256i lo = _mm256_srlv_epi32(_mm256_set1_epi32(l),
                                   _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
            hi = _mm256_srlv_epi32(_mm256_set1_epi32(b->scales_h << 4),
                                   _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    lo = _mm256_or_si256(_mm256_and_si256(lo, _mm256_set1_epi32(15)),
                         _mm256_and_si256(hi, _mm256_set1_epi32(0x30)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(lo, _mm256_set1_epi32(32))),
                         _mm256_set1_ps(_cvtsh_ss(b->d)));
}

/* The scales of eight blocks, of which n exist. */
INLINE __m256 gather_scales(const char *p, int n, const int kind)
{
    if (kind == XS) return scales_xs((const void *)p);
    return kind == MXFP4 ? gather_mxfp4(p, n) : gather_halves(p, 0, n, kind);
}

/* The minima of eight blocks; not for signed kinds. */
INLINE __m256 gather_minima(const char *p, __m256 d, int n, const int kind)
{
    if (kind == Q4_1 || kind == Q5_1) return gather_halves(p, 2, n, kind);
    return _mm256_mul_ps(d, _mm256_set1_ps(kind == Q4_0 ? -8 : -16));
}

/* 32 weights as bytes. */
INLINE __m256i unpack_b32(const char *p, __m256i levels, const int kind)
{
    if (kind == XS) return _mm256_shuffle_epi8(levels, nibbles(p));
    return load_b32(p, levels, kind).q;
}

/* The integer sums of 32 columns. */
INLINE __m256i dot_32(__m256i q, const int8_t *x, const bool is_signed)
{
    __m256i v = _mm256_load_si256((const __m256i *)x), a = q;
    if (is_signed) a = _mm256_abs_epi8(q), v = _mm256_sign_epi8(v, q);
#ifdef DOT4
    return DOT4(_mm256_setzero_si256(), a, v);
#else
    return _mm256_madd_epi16(_mm256_maddubs_epi16(a, v), _mm256_set1_epi16(1));
#endif
}

/* Sums that a token has: several for few tokens, because a sum can be added to once in four cycles. */
INLINE int sums_of(const int T) { return T == 1 ? 4 : T == 2 ? 2 : 1; }

/* acc[t * sums ...] += eight blocks (n of them exist) times 256 columns of T tokens; minima go to
 * corr[t]. */
INLINE void group_32(__m256 *acc, __m256 *corr, const char *p, const struct x256 *const *x, int b,
                     int n, __m256i levels, const int T, const int kind)
{
    const bool sign = kind == Q8_0 || has_levels(kind);
    const char *q = p + (kind == XS ? 8 : 0);
    const int sums = sums_of(T);
    __m256 d = gather_scales(p, n, kind), m = _mm256_setzero_ps();
    _Alignas(32) float dx[4][8];

    if (!sign) m = gather_minima(p, d, n, kind);
    UNROLL
    for (int t = 0; t < T; t++) {
        _mm256_store_ps(dx[t], _mm256_mul_ps(d, _mm256_loadu_ps(x[t][b].d)));
        if (!sign) corr[t] = _mm256_fmadd_ps(m, _mm256_loadu_ps(x[t][b].s), corr[t]);
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        if (i >= n) break;
        __m256i w = unpack_b32(q + i * step_bytes(kind), levels, kind);
        UNROLL
        for (int t = 0; t < T; t++) {
            const int to = t * sums + i % sums;
            acc[to] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot_32(w, x[t][b].q + 32 * i, sign)),
                                      _mm256_broadcast_ss(&dx[t][i]), acc[to]);
        }
    }
}

/* Two blocks of Q4_0 or Q4_1 at p: integer sums of the first in the low half, of the second in the high
 * half. x[0], x[1]: the first and the second 16 columns of both. */
INLINE __m256i dot_pair(const char *p, const __m256i x[2], const int kind)
{
    const int head = kind == Q4_1 ? 4 : 2;
    const __m256i low = _mm256_set1_epi8(15);
    __m256i v = _mm256_loadu2_m128i((const __m128i *)(p + block32_bytes(kind) + head),
                                    (const __m128i *)(p + head));
    __m256i a = _mm256_and_si256(v, low), b = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
#ifdef DOT4
    return DOT4(DOT4(_mm256_setzero_si256(), a, x[0]), b, x[1]);
#else
    v = _mm256_add_epi16(_mm256_maddubs_epi16(a, x[0]), _mm256_maddubs_epi16(b, x[1]));
    return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); /* 4 * 15 * 127 < 2^15 */
#endif
}

/* acc[0, 1] += eight blocks of Q4_0 or Q4_1 times 256 columns of a token; x: in the order of dot_pair. */
INLINE void group_pairs(__m256 acc[2], __m256 *corr, const char *p, const struct x256 *o,
                        const __m256i x[4][2], const int kind)
{
    const __m256i two = _mm256_set1_epi32(2);
    __m256 d = gather_halves(p, 0, 8, kind), dx = _mm256_mul_ps(d, _mm256_loadu_ps(o->d));
    __m256i at = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);

    *corr = _mm256_fmadd_ps(gather_minima(p, d, 8, kind), _mm256_loadu_ps(o->s), *corr);
    UNROLL
    for (int i = 0; i < 4; i++, at = _mm256_add_epi32(at, two)) {
        __m256i v = dot_pair(p + 2 * i * block32_bytes(kind), x[i], kind);
        acc[i % 2] =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(v), _mm256_permutevar8x32_ps(dx, at), acc[i % 2]);
    }
}

/* Two rows of Q4_0 or Q4_1 times one token. Columns: a multiple of 256. */
INLINE void two_rows(const struct gemv *g, int r, const int kind)
{
    const int bytes = 8 * block32_bytes(kind);
    const char *p = gemv_row(g, r), *q = gemv_row(g, r + 1);
    const struct x256 *o = gemv_x(g, 0);
    __m256 acc[4], corr[2];

    UNROLL
    for (int i = 0; i < 4; i++) acc[i] = corr[i / 2] = _mm256_setzero_ps();
    for (int b = 0; b < g->cols / QK_K; b++, p += bytes, q += bytes) {
        __m256i x[4][2];
        UNROLL
        for (int i = 0; i < 8; i++) {
            const int8_t *at = o[b].q + 64 * (i / 2) + 16 * (i % 2);
            x[i / 2][i % 2] = _mm256_loadu2_m128i((const __m128i *)(at + 32), (const __m128i *)at);
        }
        prefetch_block(p, bytes);
        prefetch_block(q, bytes);
        group_pairs(acc, corr, p, o + b, x, kind);
        group_pairs(acc + 2, corr + 1, q, o + b, x, kind);
    }
    UNROLL
    for (int i = 0; i < 2; i++)
        g->out[r + i] = sum8(_mm256_add_ps(_mm256_add_ps(acc[2 * i], acc[2 * i + 1]), corr[i]));
}

/* One row times T tokens: integer products per block, scaled and accumulated in F32. */
INLINE void row_32(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const int bytes = kind == XS ? 136 : 8 * block32_bytes(kind);
    const char *p = gemv_row(g, r);
    const struct x256 *x[4];
    __m256 acc[4], corr[4];
    __m256i levels = levels_of(kind == XS ? IQ4_NL : kind);
    int b = 0, rest = g->cols % QK_K / QK;

    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        corr[t] = _mm256_setzero_ps();
    }
    UNROLL
    for (int i = 0; i < 4; i++) acc[i] = _mm256_setzero_ps();
    for (; b < g->cols / QK_K; b++, p += bytes) {
        prefetch_block(p, bytes);
        group_32(acc, corr, p, x, b, 8, levels, T, kind);
    }
    if (rest) group_32(acc, corr, p, x, b, rest, levels, T, kind);
    UNROLL
    for (int t = 0; t < T; t++) {
        UNROLL
        for (int i = 0; i < sums_of(T); i++)
            corr[t] = _mm256_add_ps(corr[t], acc[t * sums_of(T) + i]);
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)r] = sum8(corr[t]);
    }
}

/* Formats of two_rows. */
INLINE void gemv_pairs(const struct gemv *g, const int kind)
{
    int r = 0;

    if (g->n_tokens == 1 && g->cols % QK_K == 0) {
        for (; r + 2 <= g->n_rows; r += 2) two_rows(g, r, kind);
        if (r < g->n_rows) row_32(g, r, 0, 1, kind);
        return;
    }
    GEMV_EACH_ROW(row_32, g, kind)
}

void gemv_q4_0_avx2(const struct gemv *g) { gemv_pairs(g, Q4_0); }
void gemv_q4_1_avx2(const struct gemv *g) { gemv_pairs(g, Q4_1); }
void gemv_q5_0_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q5_0) }
void gemv_q5_1_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q5_1) }
void gemv_q8_0_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, Q8_0) }
void gemv_iq4_nl_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, IQ4_NL) }
void gemv_mxfp4_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, MXFP4) }
void gemv_iq4_xs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_32, g, XS) }
