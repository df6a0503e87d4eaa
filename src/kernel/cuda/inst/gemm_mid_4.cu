/* gemm_mid_4.cu - products with weights in blocks of 32 with four bits. */
#include "kernel/cuda/gemm_hop.cuh"
#include "kernel/cuda/gemm_types.cuh"

MID_TYPE(q4_0, mid_small<DT_Q4_0>, hop_small<DT_Q4_0>)
MID_TYPE(q4_1, mid_small<DT_Q4_1>, hop_small<DT_Q4_1>)
MID_TYPE(iq4_nl, mid_small<DT_IQ4_NL>, hop_small<DT_IQ4_NL>)
MID_TYPE(mxfp4, mid_small<DT_MXFP4>, hop_small<DT_MXFP4>)
