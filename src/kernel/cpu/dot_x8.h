/* dot_x8.h - activations quantized to 8 bits in their natural order: the form of AVX2 and NEON.
 *
 * 32 columns share a scale. The sums of the halves serve formats with minima: W = d q + m gives
 * W x = d (q x) + m sum(x). Q8_0's rounding: to nearest, by 127 / max|x|. */
#ifndef TERN_KERNEL_CPU_DOT_X8_H
#define TERN_KERNEL_CPU_DOT_X8_H

#include "kernel/cpu/isa.h"
#include "kernel/cpu/unroll.h"

struct x8 {
    int8_t q[32];
    float d;    /* scale */
    float s[2]; /* d * sum of q, of each half */
    float pad;  /* to 48 bytes */
};

enum { FORM_F32, FORM_X8 };

static inline size_t x8_bytes(int cols)
{
    return ((size_t)((cols + 31) / 32) * sizeof(struct x8) + 63) & ~(size_t)63;
}

/* Calls ROW(g, r, t0, T, kind) for every row and groups of T = 4, 2 and 1 tokens; T and kind are
 * compile-time constants. */
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
