/* dot_avx512.h - shared by the AVX-512 gemv kernels: forms of activations, tiles, prefetching.
 *
 * Integer products are vpdpbusd (AVX512_VNNI): unsigned weight bytes times signed activation bytes,
 * four products summed per 32-bit lane. Signed formats add an offset to the weights and subtract
 * offset * sum(x). Activations are laid out in the order in which weights come out of unpacking
 * nibbles, so that neither side is permuted. Lane sums are F32, scaled per block; lanes are added
 * at the end of a row. */
#ifndef TERN_KERNEL_CPU_DOT_AVX512_H
#define TERN_KERNEL_CPU_DOT_AVX512_H

#include "kernel/cpu/isa.h"
#include "kernel/cpu/unroll.h"

#include <immintrin.h>

/* Form 1, for formats with blocks of 32: four blocks, 128 columns. */
struct x32 {
    int8_t q[2][64]; /* the first halves (16) of the four blocks, then the second halves */
    float d[16];     /* the scale of each block, four times */
    int32_t n[16];   /* minus the sum of the q that one lane multiplies: for offsets and minima */
};

/* Form 2, for super-blocks of 256 columns. */
struct x256 {
    int8_t q[4][64];  /* q[i]: groups i, i + 4, i + 8, i + 12 of 16 columns */
    float d[8], s[8]; /* per 32 columns: scale, and scale * sum of q */
    float s16[16];    /* per 16 columns: scale * sum of q */
};

enum { FORM_F32, FORM_32, FORM_256 };

/* Prefetches weights: those needed soon into L1, those needed later into L2. The fill buffers of L1
 * alone cannot cover the latency of memory. bytes: weights read per call. */
enum { NEAR_BYTES = 2048, FAR_BYTES = 32768 };
INLINE void prefetch_weights(const char *p, const int bytes)
{
    UNROLL
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch(p + NEAR_BYTES + i, _MM_HINT_T0);
        _mm_prefetch(p + FAR_BYTES + i, _MM_HINT_T1);
    }
}

/* Writes out[t0 .. t0+T)[r0 .. r0+R): the sums over the lanes of acc. */
INLINE void gemv_store(const struct gemv *g, int r0, const int R, int t0, const int T,
                       const __m512 *acc)
{
    UNROLL
    for (int t = 0; t < T; t++) UNROLL
    for (int r = 0; r < R; r++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)(r0 + r)] =
            _mm512_reduce_add_ps(acc[r * T + t]);
}

/* Calls TILE(g, r0, R, t0, T, kind) for tiles of R rows x T tokens that cover the gemv; R, T and
 * kind are compile-time constants. R1 .. R8: rows per tile with 1, 2, 4 and 8 tokens. */
#define GEMV_ROWS(TILE, g, R, t0, T, kind)                                      \
    do {                                                                        \
        int r_ = 0;                                                             \
        for (; r_ + (R) <= (g)->n_rows; r_ += (R)) TILE(g, r_, R, t0, T, kind); \
        if ((R) > 1)                                                            \
            for (; r_ < (g)->n_rows; r_++) TILE(g, r_, 1, t0, T, kind);         \
    } while (0)

#define GEMV_TILES(TILE, g, kind, R1, R2, R4, R8)              \
    do {                                                       \
        int t_ = 0, n_ = (g)->n_tokens;                        \
        if (n_ - t_ >= 8) {                                    \
            GEMV_ROWS(TILE, g, R8, t_, 8, kind);               \
            t_ += 8;                                           \
        }                                                      \
        if (n_ - t_ >= 4) {                                    \
            GEMV_ROWS(TILE, g, R4, t_, 4, kind);               \
            t_ += 4;                                           \
        }                                                      \
        if (n_ - t_ >= 2) {                                    \
            GEMV_ROWS(TILE, g, R2, t_, 2, kind);               \
            t_ += 2;                                           \
        }                                                      \
        if (n_ - t_ >= 1) GEMV_ROWS(TILE, g, R1, t_, 1, kind); \
    } while (0)

/* dot_32_avx512.c */
size_t x32_bytes(int cols);
void x32_make(void *dst, const float *x, int cols);
gemv_fn gemv_q4_0_avx512, gemv_q4_1_avx512, gemv_q5_0_avx512, gemv_q5_1_avx512, gemv_q8_0_avx512,
    gemv_iq4_nl_avx512, gemv_mxfp4_avx512, gemv_iq4_xs_avx512;

/* dot_k_avx512.c */
size_t x256_bytes(int cols);
void x256_make(void *dst, const float *x, int cols);
gemv_fn gemv_q2_k_avx512, gemv_q3_k_avx512, gemv_q4_k_avx512, gemv_q5_k_avx512, gemv_q6_k_avx512;

/* dot_iq2_avx512.c */
gemv_fn gemv_iq2_xxs_avx512;

/* dot_iq_avx512.c */
gemv_fn gemv_iq2_xs_avx512, gemv_iq2_s_avx512, gemv_iq3_xxs_avx512, gemv_iq3_s_avx512,
    gemv_iq1_s_avx512, gemv_iq1_m_avx512;

/* dot_f_avx512.c */
gemv_fn gemv_f32_avx512, gemv_f16_avx512, gemv_bf16_avx512, gemv_any_avx512;

/* dot_group_avx512.c */
gemv_fn gemv_grouped_avx512;
#endif
