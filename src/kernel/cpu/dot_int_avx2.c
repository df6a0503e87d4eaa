/* dot_int_avx2.c - AVX2 gemv for Q4_K, Q5_K and Q6_K, summed in integers (int_avx2.h), and its form of
 * activations. */
#include "kernel/cpu/int_avx2.h"

size_t x256_bytes_avx2(int cols) { return (size_t)((cols + 255) / 256) * sizeof(struct x256); }

/* The largest of the eight lanes, in all of them. */
INLINE __m256 max_lanes(__m256 v)
{
    v = _mm256_max_ps(v, _mm256_permute2f128_ps(v, v, 1));
    v = _mm256_max_ps(v, _mm256_permute_ps(v, 0x4e));
    return _mm256_max_ps(v, _mm256_permute_ps(v, 0xb1));
}

/* The largest |x| of 32. */
INLINE float max_abs_32(const float *x)
{
    __m256 top = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++)
        top =
            _mm256_max_ps(top, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + 8 * i)));
    return _mm256_cvtss_f32(max_lanes(top));
}

INLINE int sum_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* Block i: q = round(x / d), and its sums. */
INLINE void quantize_32(struct x256 *o, const float *x, int i)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 up = _mm256_set1_ps(o->d[i] > 0 ? 1 / o->d[i] : 0);
    __m256i v[4], a, b, ones = _mm256_set1_epi16(1);

    for (int j = 0; j < 4; j++)
        v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * j), up));
    a = _mm256_packs_epi32(v[0], v[1]), b = _mm256_packs_epi32(v[2], v[3]);
    /* Packing works per 128-bit lane: groups of four are out of order. */
    a = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
    _mm256_store_si256((__m256i *)(o->q + 32 * i), a);
    for (int h = 0; h < 2; h++) {
        __m128i half = h ? _mm256_extracti128_si256(a, 1) : _mm256_castsi256_si128(a);
        o->n16[2 * i + h] = (int16_t)sum_lanes(_mm256_madd_epi16(_mm256_cvtepi8_epi16(half), ones));
    }
    o->n32[i] = (int16_t)(o->n16[2 * i] + o->n16[2 * i + 1]);
    o->s[i] = o->d[i] * (float)o->n32[i];
}

/* 256 columns. A block's multiple is rounded up, so that its largest number is at most 127. */
static void quantize_256(struct x256 *o, const float *x)
{
    _Alignas(32) float top[8];
    _Alignas(32) int32_t k[8];
    const __m256 units = _mm256_set1_ps(X256_UNITS);

    UNROLL
    for (int i = 0; i < 8; i++) top[i] = max_abs_32(x + 32 * i);
    __m256 all = _mm256_load_ps(top), most = max_lanes(all);
    /* min takes its second operand in place of NaN: of zeros, or numbers that are not finite. */
    __m256 n = _mm256_min_ps(_mm256_ceil_ps(_mm256_mul_ps(units, _mm256_div_ps(all, most))), units);
    n = _mm256_max_ps(n, _mm256_set1_ps(1));
    __m256 unit = _mm256_div_ps(most, _mm256_set1_ps(127 * X256_UNITS));
    o->unit = _mm256_cvtss_f32(unit);
    _mm256_storeu_ps(o->d, _mm256_mul_ps(n, unit));
    _mm256_store_si256((__m256i *)k, _mm256_cvtps_epi32(n));
    for (int i = 0; i < 8; i++) {
        o->k32[i] = o->k32[8 + i] = o->k16[2 * i] = o->k16[2 * i + 1] = (int16_t)k[i];
        quantize_32(o, x + 32 * i, i);
    }
}

void x256_make_avx2(void *dst, const float *x, int cols)
{
    struct x256 *o = dst;
    float end[256] = { 0 };
    int n = cols / 256;

    for (int b = 0; b < n; b++) quantize_256(o + b, x + 256 * b);
    if (cols % 256) {
        memcpy(end, x + 256 * n, (size_t)(cols % 256) * sizeof *x);
        quantize_256(o + n, end);
    }
}

/* The 6-bit scales and minima of Q4_K and Q5_K, which follow d and dmin at p, in 16 bits: eight scales,
 * then eight minima. */
INLINE __m256i scales_16(const void *p)
{
    /* The low bits of all, and bits 4 and 5 of the last four of each eight. */
    const __m256i at_a =
        _mm256_setr_epi8(4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1, 8, -1, 9, -1,
                         10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    const __m256i at_b =
        _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 4, -1, 5, -1, 6, -1, 7, -1, -1, -1, -1, -1,
                         -1, -1, -1, -1, 8, -1, 9, -1, 10, -1, 11, -1);
    const __m256i down = _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 4, 4);
    const int six = 0x3f003f, four = 0xf000f;
    const __m256i cut = _mm256_setr_epi32(six, six, four, four, six, six, four, four);
    __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    __m256i a = _mm256_srlv_epi32(_mm256_shuffle_epi8(v, at_a), down);
    __m256i b = _mm256_srli_epi16(_mm256_shuffle_epi8(v, at_b), 2);
    return _mm256_or_si256(_mm256_and_si256(a, cut), _mm256_and_si256(b, _mm256_set1_epi16(0x30)));
}

/* 16-bit number i of the 8 in each half of v, in all lanes. */
INLINE __m256i spread(__m256i v, const int i)
{
    return _mm256_shuffle_epi8(v, _mm256_set1_epi16((short)(2 * i | (2 * i + 1) << 8)));
}

/* acc[t] += a super-block of Q4_K or Q5_K times its token; the minima go to corr[t]. */
INLINE void block_45(__m256 *acc, __m128 *corr, const char *p, const struct x256 *const *x, int b,
                     const int T, const int kind)
{
    const struct block_q5_k *b5 = (const void *)p;
    const struct block_q4_k *b4 = (const void *)p;
    const uint8_t *qs = kind == Q5_K ? b5->qs : b4->qs;
    __m256i sm = scales_16(p), h = _mm256_setzero_si256(), sum[4];
    __m128 d = _mm_cvtph_ps(_mm_loadu_si32(p)); /* d, dmin */
    __m256i s[4];

    if (kind == Q5_K) h = load_ymm(b5->qh);
    UNROLL
    for (int t = 0; t < T; t++) {
        const struct x256 *o = &x[t][b];
        __m256i v = _mm256_mullo_epi16(sm, load_16(o->k32));
        __m128i sc = _mm256_castsi256_si128(v), m = _mm256_extracti128_si256(v, 1);
        s[t] = _mm256_broadcastsi128_si256(sc);
        m = _mm_madd_epi16(m, _mm_load_si128((const __m128i *)o->n32));
        __m128 min = _mm_mul_ps(_mm_movehdup_ps(d), _mm_load_ss(&o->unit));
        corr[t] = _mm_fnmadd_ps(_mm_cvtepi32_ps(m), _mm_broadcastss_ps(min), corr[t]);
        sum[t] = _mm256_setzero_si256();
    }
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i v = load_ymm(qs + 32 * j), lo = bits(v, 0, 4, 0), hi = bits(v, 4, 4, 0);
        if (kind == Q5_K) {
            lo = _mm256_or_si256(lo, bits(h, 2 * j, 1, 4));
            hi = _mm256_or_si256(hi, bits(h, 2 * j + 1, 1, 4));
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            const int8_t *o = x[t][b].q + 64 * j;
            sum[t] = _mm256_add_epi32(sum[t], scaled_products(lo, o, spread(s[t], 2 * j)));
            sum[t] = _mm256_add_epi32(sum[t], scaled_products(hi, o + 32, spread(s[t], 2 * j + 1)));
        }
    }
    UNROLL
    for (int t = 0; t < T; t++) {
        __m128 by = _mm_mul_ss(d, _mm_load_ss(&x[t][b].unit));
        acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), _mm256_broadcastss_ps(by), acc[t]);
    }
}

/* R rows times T tokens. */
INLINE void rows_int(const struct gemv *g, int r0, const int R, int t0, const int T, const int kind)
{
    const char *p[4];
    const struct x256 *x[4];
    __m256 acc[4];
    __m128 corr[4];

    UNROLL
    for (int r = 0; r < R; r++) p[r] = gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = _mm256_setzero_ps(), corr[i] = _mm_setzero_ps();
    for (int b = 0; b < g->cols / QK_K; b++) {
        UNROLL
        for (int r = 0; r < R; r++) {
            prefetch_block(p[r], block256_bytes(kind));
            if (kind == Q6_K) block_16(acc + r * T, p[r], x, b, T, kind);
            else block_45(acc + r * T, corr + r * T, p[r], x, b, T, kind);
            p[r] += block256_bytes(kind);
        }
    }
    UNROLL
    for (int r = 0; r < R; r++) UNROLL
    for (int t = 0; t < T; t++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)(r0 + r)] =
            sum8(_mm256_add_ps(acc[r * T + t], _mm256_zextps128_ps256(corr[r * T + t])));
}

void gemv_q4_k_avx2(const struct gemv *g) { GEMV_EACH_TILE(rows_int, g, Q4_K); }
void gemv_q5_k_avx2(const struct gemv *g) { GEMV_EACH_TILE(rows_int, g, Q5_K); }
void gemv_q6_k_avx2(const struct gemv *g) { GEMV_EACH_TILE(rows_int, g, Q6_K); }
