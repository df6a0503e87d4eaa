/* gemm_mid_58.cu - products with weights in blocks of 32 with five or eight bits. */
#include "kernel/cuda/gemm_hop.cuh"
#include "kernel/cuda/gemm_types.cuh"

MID_TYPE(q5_0, mid_small<DT_Q5_0>, hop_small<DT_Q5_0>)
MID_TYPE(q5_1, mid_small<DT_Q5_1>, hop_small<DT_Q5_1>)
MID_TYPE(q8_0, mid_small<DT_Q8_0>, hop_small<DT_Q8_0>)
