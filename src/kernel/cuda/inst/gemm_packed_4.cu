/* gemm_packed_4.cu - packed GEMM for blocks of 32 columns with four bits. */
#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/gemm_types.cuh"

PACKED_TYPE(q4_0, packed_small<DT_Q4_0>, hopper_small<DT_Q4_0>)
PACKED_TYPE(q4_1, packed_small<DT_Q4_1>, hopper_small<DT_Q4_1>)
PACKED_TYPE(iq4_nl, packed_small<DT_IQ4_NL>, hopper_small<DT_IQ4_NL>)
PACKED_TYPE(mxfp4, packed_small<DT_MXFP4>, hopper_small<DT_MXFP4>)
