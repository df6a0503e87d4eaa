/* dot_32_avx2.c - AVX2 gemv for formats with blocks of 32 (Q4_0 to Q8_0, IQ4_NL, MXFP4), and the
 * quantization of activations to 8 bits. */
#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_avx2.h"
#include "kernel/iq_grid.h"

#include <string.h>

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

enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4 };

/* Formats whose unpacked bytes are signed; the others have a constant minimum (-8 d, -16 d) or
 * one of their own. */
INLINE bool is_signed(const int kind) { return kind == Q8_0 || kind == IQ4_NL || kind == MXFP4; }

INLINE int block32_bytes(const int kind)
{
    return kind == Q4_0 || kind == IQ4_NL ? 18
           : kind == Q4_1                 ? 20
           : kind == Q5_0                 ? 22
           : kind == Q5_1                 ? 24
           : kind == Q8_0                 ? 34
                                          : 17;
}

/* An F16 at any alignment. */
INLINE float half_at(const char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _cvtsh_ss(h);
}

/* The low nibbles of 16 bytes, then the high ones. */
INLINE __m256i nibbles(const char *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
}

/* 16 in every byte whose bit in the 32 bits at p is set. */
INLINE __m256i fifth_bits(const char *p)
{
    int32_t bits;
    memcpy(&bits, p, 4);
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, bit), _mm256_set1_epi8(16));
}

/* 2^(e - 127), built as the exponent of a float. */
INLINE float scale_mxfp4(const char *p)
{
    uint32_t e = (uint32_t)(uint8_t)*p << 23;
    float f;
    memcpy(&f, &e, 4);
    return f * 0.5f; /* the table holds doubled values */
}

/* Unpacks one block. head: offset of the nibbles; table: levels for the formats that index some. */
INLINE struct w32 load_w32(const char *p, __m256i table, const int kind)
{
    const int head = kind == MXFP4 ? 1 : kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : kind == Q5_1 ? 8 : 2;
    float d = kind == MXFP4 ? scale_mxfp4(p) : half_at(p), m = 0;
    struct w32 w;

    w.q = kind == Q8_0 ? _mm256_loadu_si256((const __m256i *)(p + 2)) : nibbles(p + head);
    if (kind == IQ4_NL || kind == MXFP4) w.q = _mm256_shuffle_epi8(table, w.q);
    if (kind == Q5_0 || kind == Q5_1) w.q = _mm256_or_si256(w.q, fifth_bits(p + head - 4));
    if (kind == Q4_0) m = -8 * d;
    if (kind == Q5_0) m = -16 * d;
    if (kind == Q4_1 || kind == Q5_1) m = half_at(p + 2);
    w.d = _mm256_set1_ps(d);
    w.m = _mm_set1_ps(m);
    return w;
}

/* One row times T tokens: integer products per block, scaled and accumulated in F32. */
INLINE void row_32(const struct gemv *g, int r, int t0, const int T, const int kind)
{
    const char *p = gemv_row(g, r);
    const struct x8 *x[4];
    __m256 acc[4];
    __m128 corr[4];
    __m256i table = _mm256_setzero_si256();

    if (kind == IQ4_NL)
        table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)iq4_levels));
    if (kind == MXFP4)
        table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)mxfp4_levels));
    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = gemv_x(g, t0 + t);
        acc[t] = _mm256_setzero_ps();
        corr[t] = _mm_setzero_ps();
    }
    for (int b = 0; b < g->cols / QK; b++, p += block32_bytes(kind)) {
        struct w32 w = load_w32(p, table, kind);
        _mm_prefetch(p + 1024, _MM_HINT_T0);
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
