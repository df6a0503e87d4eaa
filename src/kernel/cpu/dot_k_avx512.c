/* dot_k_avx512.c - AVX-512 gemv for super-blocks of 256: Q2_K to Q6_K. Weights are
 * unpacked to unsigned bytes (load_k_avx512.h) and multiplied with form 2 of the activations. */
#include "kernel/cpu/load_k_avx512.h"

size_t x256_bytes(int cols) { return (size_t)((cols + 255) / 256) * sizeof(struct x256); }

/* Quantizes a row of activations to form 2, per 32 columns. The two groups of 16 of a block go
 * to registers g % 4 and g % 4 + 1, lane g / 4. */
void x256_make(void *dst, const float *x, int cols)
{
    struct x256 *out = dst;

    for (int b = 0; b < cols / 32; b++) {
        struct x256 *o = &out[b / 8];
        int j = b % 8, g = 2 * j; /* g, g + 1: the groups of 16 of block b */
        __m512 a = _mm512_loadu_ps(x + b * 32), c = _mm512_loadu_ps(x + b * 32 + 16);
        float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(c))),
              d = top / 127;
        __m512 up = _mm512_set1_ps(top > 0 ? 127 / top : 0);
        __m512i ia = _mm512_cvtps_epi32(_mm512_mul_ps(a, up)),
                ic = _mm512_cvtps_epi32(_mm512_mul_ps(c, up));
        /* As floats, exactly: NaN became INT_MIN above, and two of them overflow. */
        float s0 = _mm512_reduce_add_ps(_mm512_cvtepi32_ps(ia)),
              s1 = _mm512_reduce_add_ps(_mm512_cvtepi32_ps(ic));

        _mm_store_si128((__m128i *)(o->q[g % 4] + 16 * (g / 4)), _mm512_cvtepi32_epi8(ia));
        _mm_store_si128((__m128i *)(o->q[g % 4 + 1] + 16 * (g / 4)), _mm512_cvtepi32_epi8(ic));
        o->d[j] = d;
        o->s[j] = d * (s0 + s1);
        o->s16[g] = d * s0;
        o->s16[g + 1] = d * s1;
    }
}

enum { Q2_K, Q3_K, Q4_K, Q5_K, Q6_K };

INLINE __m512i dot(__m512i acc, __m512i w, const int8_t *x)
{
    return _mm512_dpbusd_epi32(acc, w, _mm512_load_si512(x));
}

/* Formats with a scale per 32 columns. */
INLINE __m512 dot_w32s(__m512 acc, const struct w256 *w, const struct x256 *x)
{
    const __m512i even = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i odd = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
    const __m512i zero = _mm512_setzero_si512();
    __m512 p = _mm512_mul_ps(w->d, _mm512_load_ps(x->d)); /* {d scale[8], -minimum s[8]} */
    __m512i a = dot(dot(zero, w->q[0], x->q[0]), w->q[1], x->q[1]);
    __m512i b = dot(dot(zero, w->q[2], x->q[2]), w->q[3], x->q[3]);

    acc = _mm512_mask_add_ps(acc, 0xff00, acc, p);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_permutexvar_ps(even, p), acc);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), _mm512_permutexvar_ps(odd, p), acc);
}

/* Formats with a scale per 16 columns. */
INLINE __m512 dot_w16s(__m512 acc, const struct w256 *w, const struct x256 *x)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i group = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m512 p = _mm512_mul_ps(w->d, _mm512_permutexvar_ps(twice, _mm512_load_ps(x->d)));

    acc = _mm512_fmadd_ps(w->m, _mm512_load_ps(x->s16), acc);
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512 s = _mm512_permutexvar_ps(_mm512_add_epi32(group, _mm512_set1_epi32(i)), p);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot(_mm512_setzero_si512(), w->q[i], x->q[i])), s,
                              acc);
    }
    return acc;
}

/* Formats with a scale per 32 columns; the others have one per 16. */
INLINE bool scale_for_32(const int kind) { return kind == Q4_K || kind == Q5_K; }

INLINE int block256_bytes(const int kind)
{
    return kind == Q2_K ? 84 : kind == Q3_K ? 110 : kind == Q4_K ? 144 : kind == Q5_K ? 176 : 210;
}

/* Unpacks the super-block at p. */
INLINE struct w256 load_w256(const char *p, const int kind)
{
    switch (kind) {
    case Q2_K: return load_q2_k((const void *)p);
    case Q3_K: return load_q3_k((const void *)p);
    case Q4_K: return load_q4_k((const void *)p);
    case Q5_K: return load_q5_k((const void *)p);
    default: return load_q6_k((const void *)p);
    }
}

/* R rows x T tokens: a super-block is unpacked once and multiplied with all T tokens. */
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
            const char *p = w[r] + c * block256_bytes(kind);
            struct w256 v = load_w256(p, kind);
            prefetch_weights(p, block256_bytes(kind));
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
