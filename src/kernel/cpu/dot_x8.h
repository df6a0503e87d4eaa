/* dot_x8.h - activations in 8 bits as they come: 32 numbers, their scale, their sums. The form of
 * the instruction sets whose dot products take any order. */
#ifndef TERN_KERNEL_CPU_DOT_X8_H
#define TERN_KERNEL_CPU_DOT_X8_H

#include "kernel/cpu/isa.h"

struct x8 {
    int8_t q[32];
    float d;
    float s[2]; /* d * sum of each half */
    float pad;
};

enum { FORM_F32, FORM_X8 };

static inline size_t x8_bytes(int cols)
{
    return ((size_t)((cols + 31) / 32) * sizeof(struct x8) + 63) & ~(size_t)63;
}

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

/* Cuts a gemv into rows × 4, 2 and 1 tokens, constants all: ROW(g, r, t0, T, kind). */
#define GEMV_EACH_ROW(ROW, g, kind)                            \
    for (int r_ = 0; r_ < (g)->n_rows; r_++) {                 \
        int t_ = 0, n_ = (g)->n_tokens;                        \
        for (; n_ - t_ >= 4; t_ += 4) ROW(g, r_, t_, 4, kind); \
        if (n_ - t_ >= 2) {                                    \
            ROW(g, r_, t_, 2, kind);                           \
            t_ += 2;                                           \
        }                                                      \
        if (n_ - t_ >= 1) ROW(g, r_, t_, 1, kind);             \
    }
#endif
