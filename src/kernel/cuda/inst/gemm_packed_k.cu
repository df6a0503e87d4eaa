/* gemm_packed_k.cu - packed GEMM for blocks of 256 columns. */
#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/gemm_types.cuh"

PACKED_TYPE(q4_k, packed_k<DT_Q4_K>, hopper_k<DT_Q4_K>)
PACKED_TYPE(q5_k, packed_k<DT_Q5_K>, hopper_k<DT_Q5_K>)
PACKED_TYPE(q6_k, packed_k<DT_Q6_K>, hopper_k<DT_Q6_K>)
