/* gemm_packed_58.cu - packed GEMM for blocks of 32 columns with five or eight bits. */
#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/gemm_types.cuh"

PACKED_TYPE(q5_0, packed_small<DT_Q5_0>, hopper_small<DT_Q5_0>)
PACKED_TYPE(q5_1, packed_small<DT_Q5_1>, hopper_small<DT_Q5_1>)
PACKED_TYPE(q8_0, packed_small<DT_Q8_0>, hopper_small<DT_Q8_0>)
