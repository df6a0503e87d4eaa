/* gemm_packed_plain.cu - packed GEMM for F16 and BF16 weights. */
#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/gemm_types.cuh"

PACKED_TYPE(f16, packed_f16, void)
PACKED_TYPE(bf16, packed_bf16, void)
