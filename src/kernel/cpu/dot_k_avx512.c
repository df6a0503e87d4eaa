/* dot_k_avx512.c - super-blocks of 256: Q2_K to Q6_K, and TQ2_0.
 *
 * A super-block becomes four registers of unsigned numbers, the i-th holding groups i, i + 4, i + 8
 * and i + 12 of 16: so the four lanes of 128 bits always differ by the same step in the bits they
 * are taken from, and formats with a scale for 32 may add registers 0 and 1, 2 and 3. */
#include "kernel/blocks.h"
#include "kernel/cpu/dot_avx512.h"

#include <string.h>

size_t x256_bytes(int cols) { return (size_t)((cols + 255) / 256) * sizeof(struct x256); }

void x256_make(void *dst, const float *x, int cols)
{
    struct x256 *out = dst;

    for (int b = 0; b < cols / 32; b++) {
        struct x256 *o = &out[b / 8];
        int j = b % 8, g = 2 * j;                        /* g, g + 1: its groups of 16 */
        __m512 a = _mm512_loadu_ps(x + b * 32), c = _mm512_loadu_ps(x + b * 32 + 16);
        float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(c))), d = top / 127;
        __m512 up = _mm512_set1_ps(top > 0 ? 127 / top : 0);
        __m512i ia = _mm512_cvtps_epi32(_mm512_mul_ps(a, up)), ic = _mm512_cvtps_epi32(_mm512_mul_ps(c, up));
        float s0 = (float)_mm512_reduce_add_epi32(ia), s1 = (float)_mm512_reduce_add_epi32(ic);

        _mm_store_si128((__m128i *)(o->q[g % 4] + 16 * (g / 4)), _mm512_cvtepi32_epi8(ia));
        _mm_store_si128((__m128i *)(o->q[g % 4 + 1] + 16 * (g / 4)), _mm512_cvtepi32_epi8(ic));
        o->d[j] = d;
        o->s[j] = d * (s0 + s1);
        o->s16[g] = d * s0;
        o->s16[g + 1] = d * s1;
    }
}

enum { Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ2_0 };

/* value = scale * q - minimum. Scales for 32: d has {scale[8], -minimum[8]}. Scales for 16: d has
 * scale[16], m what a unit of each group's sum adds. */
struct w256 {
    __m512i q[4];
    __m512 d, m;
};

INLINE __m512i lanes(const long long a, const long long b, const long long c, const long long d)
{
    return _mm512_setr_epi64(a, a, b, b, c, c, d, d);
}

/* The bits of `mask` in v rotated right by n bits in every lane, joined to `low`. */
INLINE __m512i join(__m512i low, __m512i v, __m512i n, const int mask)
{
    return _mm512_ternarylogic_epi64(low, _mm512_rorv_epi64(v, n), _mm512_set1_epi8((char)mask), 0xf8);
}

/* d in lanes 0-7, -dmin in lanes 8-15, of two F16 that lie side by side */
INLINE __m512 d_dmin(const uint16_t *p)
{
    const __m512i at = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m128 d = _mm_cvtph_ps(_mm_loadu_si32(p));
    d = _mm_xor_ps(d, _mm_setr_ps(0.0f, -0.0f, 0.0f, 0.0f));
    return _mm512_permutexvar_ps(at, _mm512_castps128_ps512(d));
}

/* The 6-bit scales and minima of Q4_K and Q5_K, behind d and dmin: lanes {sc[8], m[8]}. */
INLINE __m512 scales_45(const uint16_t *p)
{
    /* Bytes of the 16 at p, zeros above them: scales begin at 4. Low bits are a's, bits 4 and 5 of the
     * latter four b's. */
    const int z = (int)0x80808000u, no = (int)0x80808080u;
    const __m512i at_a =
        _mm512_setr_epi32(z | 4, z | 5, z | 6, z | 7, z | 12, z | 13, z | 14, z | 15, z | 8, z | 9,
                          z | 10, z | 11, z | 12, z | 13, z | 14, z | 15);
    const __m512i at_b = _mm512_setr_epi32(no, no, no, no, z | 4, z | 5, z | 6, z | 7, no, no, no, no,
                                           z | 8, z | 9, z | 10, z | 11);
    const __m512i cut = _mm512_setr_epi32(63, 63, 63, 63, 15, 15, 15, 15, 63, 63, 63, 63, 15, 15, 15, 15);
    const __m512i down = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4);
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
    __m512i a = _mm512_shuffle_epi8(v, at_a);
    __m512i b = _mm512_shuffle_epi8(v, at_b);
    a = _mm512_and_si512(_mm512_srlv_epi32(a, down), cut);
    a = _mm512_ternarylogic_epi64(a, _mm512_srli_epi32(b, 2), _mm512_set1_epi32(0x30), 0xf8);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(a), d_dmin(p));
}

INLINE void nibbles_45(__m512i q[4], const uint8_t *qs)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i v = _mm512_loadu_si512(qs), w = _mm512_loadu_si512(qs + 64);
    __m512i a = _mm512_shuffle_i64x2(v, w, 0x88), b = _mm512_shuffle_i64x2(v, w, 0xdd);
    q[0] = _mm512_and_si512(a, low);
    q[1] = _mm512_and_si512(b, low);
    q[2] = _mm512_and_si512(_mm512_srli_epi16(a, 4), low);
    q[3] = _mm512_and_si512(_mm512_srli_epi16(b, 4), low);
}

INLINE struct w256 load_q4_k(const struct block_q4_k *b)
{
    struct w256 w;
    nibbles_45(w.q, b->qs);
    w.d = w.m = scales_45(&b->d);
    return w;
}

INLINE struct w256 load_q5_k(const struct block_q5_k *b)
{
    struct w256 w;
    __m512i h0 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)b->qh));
    __m512i h1 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(b->qh + 16)));
    const __m512i even = lanes(60, 62, 0, 2), odd = lanes(61, 63, 1, 3);

    nibbles_45(w.q, b->qs);
    w.q[0] = join(w.q[0], h0, even, 16);
    w.q[1] = join(w.q[1], h1, even, 16);
    w.q[2] = join(w.q[2], h0, odd, 16);
    w.q[3] = join(w.q[3], h1, odd, 16);
    w.d = w.m = scales_45(&b->d);
    return w;
}

/* 16 bytes at p in lanes 0 and 1, 16 bytes at p + step in lanes 2 and 3. */
INLINE __m512i pairs(const uint8_t *p, const int step)
{
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
    return _mm512_mask_broadcast_i32x4(v, 0xff00, _mm_loadu_si128((const __m128i *)(p + step)));
}

INLINE struct w256 load_q6_k(const struct block_q6_k *b)
{
    const __m512i low = _mm512_set1_epi8(15), nib = lanes(0, 4, 0, 4);
    const __m512i first = lanes(60, 0, 60, 0), second = lanes(62, 2, 62, 2);
    __m512i h0 = pairs(b->qh, 32), h1 = pairs(b->qh + 16, 32);
    struct w256 w;

    UNROLL
    for (int i = 0; i < 4; i++)
        w.q[i] = _mm512_and_si512(_mm512_srlv_epi64(pairs(b->ql + 16 * i, 64), nib), low);
    w.q[0] = join(w.q[0], h0, first, 0x30);
    w.q[1] = join(w.q[1], h1, first, 0x30);
    w.q[2] = join(w.q[2], h0, second, 0x30);
    w.q[3] = join(w.q[3], h1, second, 0x30);
    w.d = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)b->scales)));
    w.d = _mm512_mul_ps(w.d, _mm512_set1_ps(_cvtsh_ss(b->d)));
    w.m = _mm512_mul_ps(w.d, _mm512_set1_ps(-32));
    return w;
}

INLINE void pairs_23(__m512i q[4], const uint8_t *qs)
{
    const __m512i low = _mm512_set1_epi8(3), even = lanes(0, 4, 0, 4), odd = lanes(2, 6, 2, 6);
    __m512i a = pairs(qs, 32), b = pairs(qs + 16, 32);
    q[0] = _mm512_and_si512(_mm512_srlv_epi64(a, even), low);
    q[1] = _mm512_and_si512(_mm512_srlv_epi64(b, even), low);
    q[2] = _mm512_and_si512(_mm512_srlv_epi64(a, odd), low);
    q[3] = _mm512_and_si512(_mm512_srlv_epi64(b, odd), low);
}

INLINE struct w256 load_q2_k(const struct block_q2_k *b)
{
    struct w256 w;
    __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)b->scales));

    pairs_23(w.q, b->qs);
    w.d = _mm512_cvtepi32_ps(_mm512_and_si512(s, _mm512_set1_epi32(15)));
    w.d = _mm512_mul_ps(w.d, _mm512_set1_ps(_cvtsh_ss(b->d)));
    w.m = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(s, 4)), _mm512_set1_ps(-_cvtsh_ss(b->dmin)));
    return w;
}

INLINE struct w256 load_q3_k(const struct block_q3_k *b)
{
    const __m512i even = lanes(62, 0, 2, 4), odd = lanes(63, 1, 3, 5);
    __m512i h0 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)b->hmask));
    __m512i h1 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(b->hmask + 16)));
    uint32_t s[3], sc[4];
    struct w256 w;

    pairs_23(w.q, b->qs);
    w.q[0] = join(w.q[0], h0, even, 4);
    w.q[1] = join(w.q[1], h1, even, 4);
    w.q[2] = join(w.q[2], h0, odd, 4);
    w.q[3] = join(w.q[3], h1, odd, 4);
    memcpy(s, b->scales, 12);
    for (int i = 0; i < 4; i++)
        sc[i] = (s[i & 1] >> (i < 2 ? 0 : 4) & 0x0f0f0f0f) | (s[2] >> 2 * i & 0x03030303) << 4;
    __m512i k = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)sc));
    w.d = _mm512_cvtepi32_ps(_mm512_sub_epi32(k, _mm512_set1_epi32(32)));
    w.d = _mm512_mul_ps(w.d, _mm512_set1_ps(_cvtsh_ss(b->d)));
    w.m = _mm512_mul_ps(w.d, _mm512_set1_ps(-4));
    return w;
}

INLINE struct w256 load_tq2_0(const struct block_tq2_0 *b)
{
    struct w256 w;
    pairs_23(w.q, b->qs);
    w.d = _mm512_set1_ps(_cvtsh_ss(b->d));
    w.d = w.m = _mm512_mask_sub_ps(w.d, 0xff00, _mm512_setzero_ps(), w.d);
    return w;
}

INLINE __m512i dot(__m512i acc, __m512i w, const int8_t *x)
{
    return _mm512_dpbusd_epi32(acc, w, _mm512_load_si512(x));
}

/* A scale for 32. */
INLINE __m512 dot_w32s(__m512 acc, const struct w256 *w, const struct x256 *x)
{
    const __m512i even = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i odd = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
    const __m512i zero = _mm512_setzero_si512();
    __m512 p = _mm512_mul_ps(w->d, _mm512_load_ps(x->d));        /* {d scale[8], -minimum s[8]} */
    __m512i a = dot(dot(zero, w->q[0], x->q[0]), w->q[1], x->q[1]);
    __m512i b = dot(dot(zero, w->q[2], x->q[2]), w->q[3], x->q[3]);

    acc = _mm512_mask_add_ps(acc, 0xff00, acc, p);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_permutexvar_ps(even, p), acc);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), _mm512_permutexvar_ps(odd, p), acc);
}

/* A scale for 16. */
INLINE __m512 dot_w16s(__m512 acc, const struct w256 *w, const struct x256 *x)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i group = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m512 p = _mm512_mul_ps(w->d, _mm512_permutexvar_ps(twice, _mm512_load_ps(x->d)));

    acc = _mm512_fmadd_ps(w->m, _mm512_load_ps(x->s16), acc);
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512 s = _mm512_permutexvar_ps(_mm512_add_epi32(group, _mm512_set1_epi32(i)), p);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot(_mm512_setzero_si512(), w->q[i], x->q[i])), s, acc);
    }
    return acc;
}

INLINE bool scale_for_32(const int kind) { return kind == Q4_K || kind == Q5_K || kind == TQ2_0; }

INLINE int block_bytes(const int kind)
{
    return kind == Q2_K ? 84 : kind == Q3_K ? 110 : kind == Q4_K ? 144 : kind == Q5_K ? 176 :
           kind == Q6_K ? 210 : 66;
}

INLINE struct w256 load_w256(const char *p, const int kind)
{
    switch (kind) {
    case Q2_K: return load_q2_k((const void *)p);
    case Q3_K: return load_q3_k((const void *)p);
    case Q4_K: return load_q4_k((const void *)p);
    case Q5_K: return load_q5_k((const void *)p);
    case Q6_K: return load_q6_k((const void *)p);
    default: return load_tq2_0((const void *)p);
    }
}

INLINE void tile_k(const struct gemv *g, int r0, const int R, int t0, const int T, const int kind)
{
    const char *w[4];
    const struct x256 *x[8];
    __m512 acc[16];

    UNROLL
    for (int r = 0; r < R; r++) w[r] = gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = _mm512_setzero_ps();
    for (int c = 0; c < g->cols / QK_K; c++) {
        UNROLL
        for (int r = 0; r < R; r++) {
            const char *p = w[r] + c * block_bytes(kind);
            struct w256 v = load_w256(p, kind);
            fetch_ahead(p, block_bytes(kind));
            UNROLL
            for (int t = 0; t < T; t++)
                acc[r * T + t] = scale_for_32(kind) ? dot_w32s(acc[r * T + t], &v, x[t] + c)
                                                    : dot_w16s(acc[r * T + t], &v, x[t] + c);
        }
    }
    gemv_store(g, r0, R, t0, T, acc);
}

void gemv_q2_k_avx512(const struct gemv *g) { GEMV_TILES(tile_k, g, Q2_K, 4, 2, 2, 2); }
void gemv_q3_k_avx512(const struct gemv *g) { GEMV_TILES(tile_k, g, Q3_K, 4, 2, 2, 2); }
void gemv_q4_k_avx512(const struct gemv *g) { GEMV_TILES(tile_k, g, Q4_K, 4, 2, 2, 2); }
void gemv_q5_k_avx512(const struct gemv *g) { GEMV_TILES(tile_k, g, Q5_K, 4, 2, 2, 2); }
void gemv_q6_k_avx512(const struct gemv *g) { GEMV_TILES(tile_k, g, Q6_K, 4, 2, 2, 2); }
void gemv_tq2_0_avx512(const struct gemv *g) { GEMV_TILES(tile_k, g, TQ2_0, 4, 2, 2, 2); }
