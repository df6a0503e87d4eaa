/* quant_impl.h - shared by the files of quant: decoder and encoder of one block of each format.
 *
 * quant_X_decode(block, y) writes the block's elements to y; quant_X_encode(x, block) encodes them.
 * The floats passed to an encoder are finite: quant_encode replaces others. */
#ifndef TERN_KERNEL_QUANT_IMPL_H
#define TERN_KERNEL_QUANT_IMPL_H

#include "kernel/quantblocks.h"
#include "kernel/quant.h"

#include <math.h>

/* The same bits on every machine: no fused multiply-add. (gcc: -ffp-contract is off by default in
 * ISO C mode.) */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define QUANT_DECODER(name) void quant_##name##_decode(const void *block, float *y)
#define QUANT_ENCODER(name) void quant_##name##_encode(const float *x, void *block)
#define QUANT_CODEC(name) \
    QUANT_DECODER(name);  \
    QUANT_ENCODER(name)

QUANT_CODEC(q4_0);
QUANT_CODEC(q4_1);
QUANT_CODEC(q5_0);
QUANT_CODEC(q5_1);
QUANT_CODEC(q8_0);
QUANT_CODEC(q8_1);
QUANT_CODEC(iq4_nl);
QUANT_CODEC(mxfp4);

QUANT_CODEC(q2_k);
QUANT_CODEC(q3_k);
QUANT_CODEC(q4_k);
QUANT_CODEC(q5_k);
QUANT_CODEC(q6_k);
QUANT_CODEC(q8_k);

QUANT_DECODER(iq1_s);
QUANT_DECODER(iq1_m);
QUANT_DECODER(iq2_xxs);
QUANT_DECODER(iq2_xs);
QUANT_DECODER(iq2_s);
QUANT_DECODER(iq3_xxs);
QUANT_DECODER(iq3_s);
QUANT_CODEC(iq4_xs);
QUANT_DECODER(q1_0);
QUANT_DECODER(q2_0);
QUANT_DECODER(nvfp4);
QUANT_DECODER(iq4_k);
/* Types with a head: columns [first, first + n) of a row. */
void quant_decode_row(enum dtype t, const void *row, int64_t first, int64_t n, float *y);
QUANT_CODEC(tq1_0);
QUANT_CODEC(tq2_0);

/* The scale s that minimizes the weighted squared error of s * q against n elements (16 or 32),
 * with q in [-top, top - 1]. See quant_fit.c. */
float quant_fit_signed(const float *x, int n, int top);

/* The scale s and minimum m >= 0 that do the same for s * q - m, with q in [0, top]. */
struct quant_affine {
    float s, m;
};
struct quant_affine quant_fit_affine(const float *x, int n, int top);

/* The scale s that does the same for s * iq4_levels[q] and 32 elements; and the q for 1/s = id. */
float quant_fit_levels(const float *x);
void quant_round_levels(const float *x, float id, int *q);

/* A scale as F16; beyond the range it becomes the largest finite F16, not infinity. */
static inline uint16_t quant_scale(float d)
{
    return f32_to_f16(fminf(fmaxf(d, -65504.0f), 65504.0f));
}

/* 1/d, or 0 if d is so small that 1/d overflows: all q of the block are then 0. */
static inline float quant_inverse(float d) { return fabsf(d) > 1e-38f ? 1.0f / d : 0.0f; }

/* Rounds to nearest, ties away from zero, for |x| < 2^31. Plain C that compilers vectorize; roundf
 * is a library call. */
static inline int quant_round(float x)
{
    int i = (int)x;
    float rest = x - (float)i;
    return i + (rest >= 0.5f) - (rest <= -0.5f);
}

static inline int quant_clamp(int v, int lo, int hi) { return v < lo ? lo : v > hi ? hi : v; }

/* The element of largest magnitude, with its sign; the first one if several are equal. */
static inline float quant_extreme(const float *x, int n)
{
    float amax = 0, max = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            max = x[i];
        }
    }
    return max;
}
#endif
