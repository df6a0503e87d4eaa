/* gemm_packed_kk.cu - packed GEMM for two types in one launch, as files of mixed types have them
 * (Hopper). */
#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/gemm_types.cuh"

PACKED_TYPE(q46_k, void, hopper_k<DT_Q4_K>, hopper_k<DT_Q6_K>)
PACKED_TYPE(q56_k, void, hopper_k<DT_Q5_K>, hopper_k<DT_Q6_K>)
