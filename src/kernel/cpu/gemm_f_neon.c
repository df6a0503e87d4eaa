/* gemm_f_neon.c - matrix-matrix product of floats by NEON: 16 rows x 6 tokens at a time
 * (gemm_f_rows.h). */
#define LANES 4
#define VECS 4
#define TOKENS 6
#define GROUP_ROW grouped_decode

#include "kernel/quant.h"
#include "kernel/cpu/gemm_f_rows.h"

static int least_tokens(enum dtype t)
{
    (void)t;
    return 5; /* the gemv kernels take 4 tokens at a time */
}

GEMM_TABLE(gemm_f_neon, "neon", f, TOKENS, least_tokens);
