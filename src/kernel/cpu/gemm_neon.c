/* gemm_neon.c - matrix-matrix product by NEON with dot products (gemm_neon.h). */
#define HAS_MMLA 0
#include "kernel/cpu/gemm_neon.h"

const struct gemm gemm_neon = GEMM_ROWS("neon");
