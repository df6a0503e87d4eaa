/* dot_t.h - activations for ternary weights: 8 bits with one scale per 256 columns.
 *
 * Products with weights of 0, 1, 2 are so small that 256 columns are summed in 16 bits before they are
 * widened and scaled; a scale per 32 columns would cost as much as the products. */
#ifndef TERN_KERNEL_CPU_DOT_T_H
#define TERN_KERNEL_CPU_DOT_T_H

#include "kernel/cpu/isa.h"

struct xt {
    _Alignas(64) int8_t q[256];
    int32_t n[8]; /* minus the sum of q, then zeros: makes weights of 0, 1, 2 those of -1, 0, 1 */
    float d;
};

enum { FORM_XT = 3 };

static inline size_t xt_bytes(int cols) { return (size_t)((cols + 255) / 256) * sizeof(struct xt); }
void xt_make_avx2(void *dst, const float *x, int cols);
void xt_make_avx512(void *dst, const float *x, int cols);

gemv_fn gemv_tq1_0_avx2, gemv_tq2_0_avx2, gemv_tq1_0_avx512, gemv_tq2_0_avx512;
#endif
