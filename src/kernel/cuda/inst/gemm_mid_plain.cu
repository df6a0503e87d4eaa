/* gemm_mid_plain.cu - products with weights that are numbers: F16, BF16. */
#include "kernel/cuda/gemm_hop.cuh"
#include "kernel/cuda/gemm_types.cuh"

MID_TYPE(f16, mid_f16, void)
MID_TYPE(bf16, mid_bf16, void)
