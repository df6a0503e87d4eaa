/* gemm_mid_k.cu - products with weights in blocks of 256. */
#include "kernel/cuda/gemm_hop.cuh"
#include "kernel/cuda/gemm_types.cuh"

MID_TYPE(q4_k, mid_k<DT_Q4_K>, hop_k<DT_Q4_K>)
MID_TYPE(q5_k, mid_k<DT_Q5_K>, hop_k<DT_Q5_K>)
MID_TYPE(q6_k, mid_k<DT_Q6_K>, hop_k<DT_Q6_K>)
