/* simd.h - vectors of floats, as wide as the including file was compiled for.
 *
 * vf holds W floats; + - * / work on it. Every other operation has one name here and a body per
 * instruction set (simd_128.h NEON, simd_256.h AVX2, simd_512.h AVX-512). Loads and stores need no
 * alignment. Suffix _n: only the first n < W lanes; the others load as 0.
 *
 *     v_set(x)                  x in all lanes            v_iota()         0, 1, 2, ...
 *     v_set_quad(p)             4 floats from p, repeated
 *     v_load, v_store           F32; _f16, _bf16, _f8 (E4M3), _i8 convert from and to F32
 *     v_load2(p, &e, &o)        2 W elements, even and odd ones apart
 *     v_fma(a, b, c)            a * b + c, rounded once
 *     v_max, v_min, v_abs, v_round (to nearest, ties to even), v_copysign
 *     v_sel_gt(a, b, yes, no)   a > b ? yes : no, lane by lane
 *     v_sum, v_hmax             sum and maximum of the lanes
 *     v_sums(p)                 lane i: the sum of the lanes of p[i], for W vectors
 *     v_quads(r)                transposes W / 4 vectors as a matrix of groups of 4 lanes
 *     v_quad_sums(a, b, c, d)   lanes 4 i to 4 i + 3: the sums of group i of a, b, c and d
 *     v_pow2(x, n)              x * 2^n for integers n
 *     v_rotate, v_transpose     see there
 *     f16_scale(h)              one F16 as a float
 *
 * With HAS_DOT16, vi holds W integers of 32 bits, or 2 W of 16 bits:
 *     vi_set, vi_load           all lanes alike, and from memory
 *     v_from_int(a)             to F32                    v_sqrt(a)
 *     v_dot16(c, a, b)          c + a0 b0 + a1 b1 for the 16-bit pairs of each lane
 *     v_store_i16(p, v)         W integers of 16 bits
 *     v_store_pairs(p, e, o)    2 W integers of 16 bits, taken from e and o in turn */
#ifndef TERN_KERNEL_CPU_SIMD_H
#define TERN_KERNEL_CPU_SIMD_H

#include "kernel/cpu/unroll.h"

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include "kernel/cpu/simd_512.h"
#elif defined(__AVX2__)
#include "kernel/cpu/simd_256.h"
#elif defined(__aarch64__)
#include "kernel/cpu/simd_128.h"
#endif

INLINE vf v_abs(vf x) { return v_max(x, -x); }

/* e^x to about 1 ulp; 0 below -87.7 and for -inf; x above 88.3 is clamped to it. */
INLINE vf v_exp(vf x)
{
    x = v_min(v_max(x, v_set(-88)), v_set(88.3f));
    vf n = v_round(x * v_set(1.44269504f));
    vf r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_set(1.989098087e-4f);
    p = v_fma(p, r, v_set(1.3933641032e-3f));
    p = v_fma(p, r, v_set(8.3333109344e-3f));
    p = v_fma(p, r, v_set(4.1666465006e-2f));
    p = v_fma(p, r, v_set(1.6666666682e-1f));
    p = v_fma(p, r, v_set(5.0000000135e-1f));
    p = v_fma(p, r * r, r) + v_set(1);
    return v_pow2(p, n);
}

/* 2^x for x <= 0, relative error 1e-7; 0 below -126.5 and for -inf. */
INLINE vf v_exp2(vf x)
{
    x = v_max(x, v_set(-127));
    vf n = v_round(x), r = x - n;
    vf p = v_set(1.3390863365e-3f);
    p = v_fma(p, r, v_set(9.6760319183e-3f));
    p = v_fma(p, r, v_set(5.5503571142e-2f));
    p = v_fma(p, r, v_set(2.4022107485e-1f));
    p = v_fma(p, r, v_set(6.9314718803e-1f));
    p = v_fma(p, r, v_set(1.0000000755f));
    return v_pow2(p, n);
}

/* A polynomial near 0, where the difference of exponentials would cancel. */
INLINE vf v_tanh(vf x)
{
    vf a = v_abs(x), s = x * x;
    vf e = v_exp(a * v_set(-2));
    vf far = (v_set(1) - e) / (v_set(1) + e);
    vf p = v_set(-6.0967141659e-3f);
    p = v_fma(p, s, v_set(2.0997178999e-2f));
    p = v_fma(p, s, v_set(-5.3850909579e-2f));
    p = v_fma(p, s, v_set(1.3332769737e-1f));
    p = v_fma(p, s, v_set(-3.3333328944e-1f));
    return v_sel_gt(a, v_set(0.625f), v_copysign(far, x), v_fma(p * s, x, x));
}

/* erfc(z) for z >= 0: t exp(P(t) - z^2) with t = 1 / (1 + z/2); error a few 1e-7. */
INLINE vf v_erfc(vf z)
{
    vf t = v_set(1) / v_fma(z, v_set(0.5f), v_set(1));
    vf p = v_set(0.148046054f);
    p = v_fma(p, t, v_set(-0.6975365907f));
    p = v_fma(p, t, v_set(1.195327675f));
    p = v_fma(p, t, v_set(-0.7464698947f));
    p = v_fma(p, t, v_set(-0.03986631755f));
    p = v_fma(p, t, v_set(-0.0195080035f));
    p = v_fma(p, t, v_set(0.04139596419f));
    p = v_fma(p, t, v_set(0.3852836336f));
    p = v_fma(p, t, v_set(0.9987824596f));
    p = v_fma(p, t, v_set(-1.26545493f));
    return t * v_exp(v_fma(-z, z, p));
}
#endif
