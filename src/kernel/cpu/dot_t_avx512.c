/* dot_t_avx512.c - gemv for the ternary formats TQ1_0 and TQ2_0 by AVX-512 VNNI: the AVX2 kernels with
 * vpdpbusd, on 256 bits, because three ports compare and add these and only two those of 512. */
#include <immintrin.h>

#define DOT4(sum, w, x) _mm256_dpbusd_epi32(sum, w, x)
#define xt_make_avx2 xt_make_avx512
#define gemv_tq1_0_avx2 gemv_tq1_0_avx512
#define gemv_tq2_0_avx2 gemv_tq2_0_avx512

#include "kernel/cpu/dot_t_avx2.c"
