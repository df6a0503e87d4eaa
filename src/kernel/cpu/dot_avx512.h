/* dot_avx512.h - what the AVX-512 kernels share: the forms of activations, sums, tiles.
 *
 * Eight-bit products are vpdpbusd's: unsigned weights times signed activations, four to a lane.
 * Activations are laid out so that one load meets what falls out of a weight's nibbles. */
#ifndef TERN_KERNEL_CPU_DOT_AVX512_H
#define TERN_KERNEL_CPU_DOT_AVX512_H

#include "kernel/cpu/isa.h"

#include <immintrin.h>

/* Form 1, for formats in blocks of 32: four blocks. q holds the first halves of the four, then the
 * second ones. */
struct x32 {
    int8_t q[2][64];
    float d[16];   /* each block's scale four times */
    int32_t n[16]; /* minus the sum of what meets in a lane of q */
};

/* Form 2, for super-blocks of 256: q[i] holds groups i, i + 4, i + 8, i + 12 of 16 numbers. */
struct x256 {
    int8_t q[4][64];
    float d[8], s[8]; /* of each 32: scale, scale * sum */
    float s16[16];    /* of each 16: scale * sum */
};

enum { FORM_F32, FORM_32, FORM_256 };

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE const char *gemv_row(const struct gemv *g, int r)
{
    return (const char *)g->w + (size_t)r * g->w_stride;
}
INLINE const void *gemv_x(const struct gemv *g, int t)
{
    return (const char *)g->x + (size_t)t * g->x_stride;
}

/* Fetches what a row after row stream needs soon, and from memory what it needs later: the L1's
 * few fill buffers alone do not cover the way to memory. `bytes` of weights are read with each
 * call. */
enum { NEAR_BYTES = 2048, FAR_BYTES = 16384 };
INLINE void fetch_ahead(const char *p, const int bytes)
{
    UNROLL
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch(p + NEAR_BYTES + i, _MM_HINT_T0);
        _mm_prefetch(p + FAR_BYTES + i, _MM_HINT_T1);
    }
}

/* out[t0 .. t0+T)[r0 .. r0+R) from the sums of lanes. */
INLINE void gemv_store(const struct gemv *g, int r0, const int R, int t0, const int T,
                       const __m512 *acc)
{
    UNROLL
    for (int t = 0; t < T; t++) UNROLL
    for (int r = 0; r < R; r++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)(r0 + r)] =
            _mm512_reduce_add_ps(acc[r * T + t]);
}

/* Cuts a gemv into tiles of rows × tokens with constant sizes: TILE(g, r0, R, t0, T, kind). */
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
gemv_fn gemv_q2_k_avx512, gemv_q3_k_avx512, gemv_q4_k_avx512, gemv_q5_k_avx512, gemv_q6_k_avx512,
    gemv_tq2_0_avx512;

/* dot_iq2_avx512.c */
gemv_fn gemv_iq2_xxs_avx512;

/* dot_iq_avx512.c */
gemv_fn gemv_iq2_xs_avx512, gemv_iq2_s_avx512, gemv_iq3_xxs_avx512, gemv_iq3_s_avx512,
    gemv_iq1_s_avx512, gemv_iq1_m_avx512, gemv_tq1_0_avx512;

/* dot_f_avx512.c */
gemv_fn gemv_f32_avx512, gemv_f16_avx512, gemv_bf16_avx512, gemv_any_avx512;
#endif
