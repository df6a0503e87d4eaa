/* gemm_i8mm.c - matrix-matrix product by NEON with 8-bit matrix products (gemm_neon.h). */
#define HAS_MMLA 1
#include "kernel/cpu/gemm_neon.h"

const struct gemm gemm_i8mm = GEMM_ROWS("i8mm");
