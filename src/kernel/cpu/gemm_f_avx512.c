/* gemm_f_avx512.c - matrix-matrix product of floats by AVX-512: 32 rows x 12 tokens at a time
 * (gemm_f_rows.h). */
#define LANES 16
#define VECS 2
#define TOKENS 12
#define GROUP_ROW group_row_avx512

#include "kernel/cpu/gemm_f_rows.h"

/* Measured: below, the gemv kernels are at the speed of memory. */
static int least_tokens(enum dtype t)
{
    (void)t;
    return 7;
}

GEMM_TABLE(gemm_f_avx512, "avx512", f, TOKENS, least_tokens);
