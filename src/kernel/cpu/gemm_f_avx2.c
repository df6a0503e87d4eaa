/* gemm_f_avx2.c - matrix-matrix product of floats by AVX2: 16 rows x 6 tokens at a time
 * (gemm_f_rows.h). */
#define LANES 8
#define VECS 2
#define TOKENS 6
#define GROUP_ROW group_row_avx2

#include "kernel/cpu/gemm_f_rows.h"

/* Measured: below, the gemv kernels are at the speed of memory. */
static int least_tokens(enum dtype t)
{
    (void)t;
    return 5;
}

GEMM_TABLE(gemm_f_avx2, "avx2", f, TOKENS, least_tokens);
