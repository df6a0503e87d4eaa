/* dot_32_avx512.c - AVX-512 gemv for formats with blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4) and
 * for IQ4_XS: four blocks, 128 columns, at a time, with form 1 of the activations. */
#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_avx512.h"
#include "kernel/iq_grid.h"

#include <string.h>

size_t x32_bytes(int cols) { return (size_t)((cols + 127) / 128) * sizeof(struct x32); }

/* Quantizes a row of activations to form 1: q = round(x * 127 / max|x|) per block of 32. Columns
 * beyond the end count as zeros. */
void x32_make(void *dst, const float *x, int cols)
{
    struct x32 *out = dst;

    for (int b = 0; b < (cols + 127) / 128 * 4; b++) {
        struct x32 *o = &out[b / 4];
        int i = b % 4, left = cols - b * 32;
        __mmask16 k0 = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
        __mmask16 k1 = left >= 32 ? 0xffff : left > 16 ? (__mmask16)((1u << (left - 16)) - 1) : 0;
        __m512 a = _mm512_maskz_loadu_ps(k0, x + b * 32),
               c = _mm512_maskz_loadu_ps(k1, x + b * 32 + 16);
        float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(c)));
        __m512 up = _mm512_set1_ps(top > 0 ? 127 / top : 0);
        __m128i lo = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, up)));
        __m128i hi = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(c, up)));
        __m128i one = _mm_set1_epi8(1), sum = _mm_setzero_si128();

        sum = _mm_dpbusd_epi32(_mm_dpbusd_epi32(sum, one, lo), one, hi);
        _mm_store_si128((__m128i *)(o->q[0] + 16 * i), lo);
        _mm_store_si128((__m128i *)(o->q[1] + 16 * i), hi);
        _mm_store_ps(o->d + 4 * i, _mm_set1_ps(top / 127));
        _mm_store_si128((__m128i *)(o->n + 4 * i), _mm_sub_epi32(_mm_setzero_si128(), sum));
    }
}

/* Four blocks of weights, unsigned: value = d * (q - offset) + m. */
struct w32 {
    __m512i lo, hi; /* first halves (16) of the four blocks, second halves */
    __m512 d, m;
};

enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, IQ4_XS };

INLINE int block32_bytes(const int kind)
{
    return kind == Q4_0 || kind == IQ4_NL ? 18
           : kind == Q4_1                 ? 20
           : kind == Q5_0                 ? 22
           : kind == Q5_1                 ? 24
           : kind == Q8_0                 ? 34
           : kind == MXFP4                ? 17
                                          : 17;
}

/* log2 of the offset that makes the weights unsigned. */
INLINE int offset_log(const int kind)
{
    return kind == Q4_0 ? 3 : kind == Q5_0 || kind == MXFP4 ? 4 : 7;
}

/* The 16 bytes at p, p + step, p + 2 step and p + 3 step: one 128-bit lane per block. */
INLINE __m512i load16x4(const char *p, const int step)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + step)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 2 * step)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 3 * step)), 3);
}

/* The F16 at word indices a, b, c, d of 64 bytes, four times each, as floats. */
INLINE __m512 halves(__m512i v, const int a, const int b, const int c, const int d)
{
    const __m512i at = _mm512_zextsi256_si512(_mm256_setr_epi16(
        (short)a, (short)a, (short)a, (short)a, (short)b, (short)b, (short)b, (short)b, (short)c,
        (short)c, (short)c, (short)c, (short)d, (short)d, (short)d, (short)d));
    return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(at, v)));
}

/* The same, with the lanes in mask k taken from the next 64 bytes, v1. */
INLINE __m512 halves2(__m512i v0, __m512i v1, __mmask32 k, const int a, const int b, const int c,
                      const int d)
{
    const __m512i at = _mm512_zextsi256_si512(_mm256_setr_epi16(
        (short)a, (short)a, (short)a, (short)a, (short)b, (short)b, (short)b, (short)b, (short)c,
        (short)c, (short)c, (short)c, (short)d, (short)d, (short)d, (short)d));
    __m512i w = _mm512_permutexvar_epi16(at, v0);
    w = _mm512_mask_permutexvar_epi16(w, k, at, v1);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(w));
}

/* The F16 scales of four consecutive blocks, each in the four lanes of its block. The word
 * indices follow from the size of a block. */
INLINE __m512 scales(const char *p, const int kind)
{
    __m512i v = _mm512_loadu_si512(p);
    switch (kind) {
    case Q4_0:
    case IQ4_NL: return halves(v, 0, 9, 18, 27);
    case Q4_1: return halves(v, 0, 10, 20, 30);
    case Q5_0: return halves2(v, _mm512_loadu_si512(p + 24), 0xf000, 0, 11, 22, 33 - 12);
    case Q5_1: return halves2(v, _mm512_loadu_si512(p + 32), 0xf000, 0, 12, 24, 36 - 16);
    default:
        return halves2(v, _mm512_loadu_si512(p + 64), 0xff00, 0, 17, 34 - 32, 51 - 32); /* Q8_0 */
    }
}

/* The F16 minima of four consecutive blocks of Q4_1 or Q5_1. */
INLINE __m512 minima(const char *p, const int kind)
{
    __m512i v = _mm512_loadu_si512(p);
    if (kind == Q4_1) return halves(v, 1, 11, 21, 31);
    return halves2(v, _mm512_loadu_si512(p + 32), 0xf000, 1, 13, 25, 37 - 16);
}

/* 2^(e - 128): the table holds doubled values. */
INLINE __m512 scales_mxfp4(const char *p)
{
    const __m512i at =
        _mm512_setr_epi32(0, 0, 0, 0, 17, 17, 17, 17, 34, 34, 34, 34, 51, 51, 51, 51);
    __m512i e = _mm512_maskz_permutexvar_epi8(0x1111111111111111u, at, _mm512_loadu_si512(p));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(e, 23)), _mm512_set1_ps(0.5f));
}

/* Bit 4 of the first 16 (half 0) or last 16 (half 1) elements of four blocks. */
INLINE __m512i fifth_bits(const char *p, const int step, const int qh, const int half)
{
    const uint64_t w0 = (uint64_t)(unsigned)(qh + half * 2), s = (uint64_t)(unsigned)step;
    /* Each byte of qh, repeated for its eight elements; the last block ends beyond 64 bytes. */
    const long long a = (long long)(w0 * 0x0101010101010101u),
                    b = (long long)((w0 + 1) * 0x0101010101010101u);
    const long long n = (long long)(s * 0x0101010101010101u),
                    back = (long long)(24 * 0x0101010101010101u);
    const __m512i at = _mm512_setr_epi64(a, b, a + n, b + n, a + 2 * n, b + 2 * n, a + 3 * n - back,
                                         b + 3 * n - back);
    __m512i bytes = _mm512_permutexvar_epi8(at, _mm512_loadu_si512(p));
    bytes =
        _mm512_mask_permutexvar_epi8(bytes, 0xffff000000000000u, at, _mm512_loadu_si512(p + 24));
    __mmask64 k = _mm512_test_epi8_mask(bytes, _mm512_set1_epi64((long long)0x8040201008040201u));
    return _mm512_maskz_mov_epi8(k, _mm512_set1_epi8(16));
}

/* The 16 levels of a 4-bit table, plus 1 << up, so that none is negative. */
INLINE __m512i levels(const int8_t *table, const int up)
{
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return _mm512_add_epi8(v, _mm512_set1_epi8((char)(1 << up)));
}

/* Unpacks four blocks to unsigned bytes. Q8_0 flips the sign bit, which adds 128. */
INLINE struct w32 load_w32(const char *p, __m512i table, const int kind)
{
    const __m512i low = _mm512_set1_epi8(15);
    struct w32 w = { .m = _mm512_setzero_ps() };

    if (kind == Q8_0) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        w.lo = _mm512_xor_si512(load16x4(p + 2, 34), flip);
        w.hi = _mm512_xor_si512(load16x4(p + 18, 34), flip);
        w.d = scales(p, kind);
        return w;
    }
    const int head = kind == MXFP4 ? 1 : kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : kind == Q5_1 ? 8 : 2;
    __m512i q = load16x4(p + head, block32_bytes(kind));
    w.lo = _mm512_and_si512(q, low);
    w.hi = _mm512_and_si512(_mm512_srli_epi16(q, 4), low);
    if (kind == IQ4_NL || kind == MXFP4) {
        w.lo = _mm512_shuffle_epi8(table, w.lo);
        w.hi = _mm512_shuffle_epi8(table, w.hi);
    }
    if (kind == Q5_0 || kind == Q5_1) {
        w.lo = _mm512_or_si512(w.lo, fifth_bits(p, block32_bytes(kind), head - 4, 0));
        w.hi = _mm512_or_si512(w.hi, fifth_bits(p, block32_bytes(kind), head - 4, 1));
    }
    w.d = kind == MXFP4 ? scales_mxfp4(p) : scales(p, kind);
    if (kind == Q4_1 || kind == Q5_1) w.m = minima(p, kind);
    return w;
}

/* acc += 128 columns. The sum starts at -offset * sum(x), which undoes the offset of the
 * unsigned weights; formats with minima add m * sum(x) instead. */
INLINE __m512 dot_w32(__m512 acc, struct w32 w, const struct x32 *x, const int kind)
{
    const bool has_min = kind == Q4_1 || kind == Q5_1;
    __m512i n = _mm512_load_si512(x->n);
    __m512 d = _mm512_load_ps(x->d);
    __m512i i = has_min ? _mm512_setzero_si512() : _mm512_slli_epi32(n, (unsigned)offset_log(kind));

    i = _mm512_dpbusd_epi32(i, w.lo, _mm512_load_si512(x->q[0]));
    i = _mm512_dpbusd_epi32(i, w.hi, _mm512_load_si512(x->q[1]));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), _mm512_mul_ps(w.d, d), acc);
    return has_min ? _mm512_fnmadd_ps(w.m, _mm512_mul_ps(_mm512_cvtepi32_ps(n), d), acc) : acc;
}

/* R rows x T tokens. Weights of a row are unpacked once for all T tokens. */
INLINE void tile_32(const struct gemv *g, int r0, const int R, int t0, const int T, const int kind)
{
    const int bytes = 4 * block32_bytes(kind);
    const __m512i table = kind == IQ4_NL  ? levels(iq4_levels, 7)
                          : kind == MXFP4 ? levels(mxfp4_levels, 4)
                                          : _mm512_setzero_si512();
    const int n = g->cols / 128, rest = g->cols % 128 / 32;
    const char *w[4];
    const struct x32 *x[8];
    __m512 acc[16];

    UNROLL
    for (int r = 0; r < R; r++) w[r] = gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = _mm512_setzero_ps();
    for (int c = 0; c < n; c++) {
        UNROLL
        for (int r = 0; r < R; r++) {
            const char *p = w[r] + (size_t)c * (size_t)bytes;
            struct w32 v = load_w32(p, table, kind);
            prefetch_weights(p, bytes);
            UNROLL
            for (int t = 0; t < T; t++) acc[r * T + t] = dot_w32(acc[r * T + t], v, x[t] + c, kind);
        }
    }
    if (rest) /* fewer than four blocks are left: padded with zeros */
        UNROLL
    for (int r = 0; r < R; r++) {
        char end[4 * 34] = { 0 };
        memcpy(end, w[r] + (size_t)n * (size_t)bytes, (size_t)(rest * block32_bytes(kind)));
        struct w32 v = load_w32(end, table, kind);
        UNROLL
        for (int t = 0; t < T; t++) acc[r * T + t] = dot_w32(acc[r * T + t], v, x[t] + n, kind);
    }
    gemv_store(g, r0, R, t0, T, acc);
}

void gemv_q4_0_avx512(const struct gemv *g) { GEMV_TILES(tile_32, g, Q4_0, 4, 4, 4, 2); }
void gemv_q4_1_avx512(const struct gemv *g) { GEMV_TILES(tile_32, g, Q4_1, 4, 4, 4, 2); }
void gemv_q5_0_avx512(const struct gemv *g) { GEMV_TILES(tile_32, g, Q5_0, 4, 4, 4, 2); }
void gemv_q5_1_avx512(const struct gemv *g) { GEMV_TILES(tile_32, g, Q5_1, 4, 4, 4, 2); }
void gemv_q8_0_avx512(const struct gemv *g) { GEMV_TILES(tile_32, g, Q8_0, 1, 4, 4, 2); }
void gemv_iq4_nl_avx512(const struct gemv *g) { GEMV_TILES(tile_32, g, IQ4_NL, 4, 4, 4, 2); }
void gemv_mxfp4_avx512(const struct gemv *g) { GEMV_TILES(tile_32, g, MXFP4, 4, 4, 4, 2); }

/* IQ4_XS: eight sub-blocks of 32, as two groups of four; nibbles as in IQ4_NL. */
INLINE void load_iq4_xs(struct w32 w[2], const struct block_iq4_xs *b, __m512i table)
{
    const __m512i low = _mm512_set1_epi8(15);
    /* Scales of six bits: a nibble of scales_l, two bits of scales_h. */
    uint32_t l;
    memcpy(&l, b->scales_l, 4);
    const __m256i at4 = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i at2 = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    __m256i sl =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)l), at4), _mm256_set1_epi32(15));
    __m256i sh = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(b->scales_h), at2),
                                  _mm256_set1_epi32(3));
    __m256i sc =
        _mm256_sub_epi32(_mm256_or_si256(sl, _mm256_slli_epi32(sh, 4)), _mm256_set1_epi32(32));
    __m256 d = _mm256_mul_ps(_mm256_cvtepi32_ps(sc), _mm256_set1_ps(_cvtsh_ss(b->d)));

    for (int i = 0; i < 2; i++) {
        const __m512i at =
            _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                             _mm512_set1_epi32(4 * i));
        __m512i q = _mm512_loadu_si512(b->qs + 64 * i);
        w[i].lo = _mm512_shuffle_epi8(table, _mm512_and_si512(q, low));
        w[i].hi = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(q, 4), low));
        w[i].d = _mm512_permutexvar_ps(at, _mm512_castps256_ps512(d));
        w[i].m = _mm512_setzero_ps();
    }
}

/* As tile_32, with one super-block (two groups of four sub-blocks) per step. */
INLINE void tile_iq4_xs(const struct gemv *g, int r0, const int R, int t0, const int T,
                        const int kind)
{
    const __m512i table = levels(iq4_levels, 7);
    const struct block_iq4_xs *w[4];
    const struct x32 *x[8];
    __m512 acc[16];

    UNROLL
    for (int r = 0; r < R; r++) w[r] = (const void *)gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = _mm512_setzero_ps();
    for (int c = 0; c < g->cols / QK_K; c++) {
        UNROLL
        for (int r = 0; r < R; r++) {
            struct w32 v[2];
            load_iq4_xs(v, w[r] + c, table);
            prefetch_weights((const char *)(w[r] + c), (int)sizeof *w[r]);
            UNROLL
            for (int t = 0; t < T; t++) {
                acc[r * T + t] = dot_w32(acc[r * T + t], v[0], x[t] + 2 * c, kind);
                acc[r * T + t] = dot_w32(acc[r * T + t], v[1], x[t] + 2 * c + 1, kind);
            }
        }
    }
    gemv_store(g, r0, R, t0, T, acc);
}

void gemv_iq4_xs_avx512(const struct gemv *g) { GEMV_TILES(tile_iq4_xs, g, IQ4_XS, 4, 4, 4, 2); }
