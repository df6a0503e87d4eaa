/* gemm_mid_kk.cu - products with weights of two types side by side: files of mixed types have such.
 */
#include "kernel/cuda/gemm_hop.cuh"
#include "kernel/cuda/gemm_types.cuh"

MID_TYPE(q46_k, void, hop_k<DT_Q4_K>, hop_k<DT_Q6_K>)
MID_TYPE(q56_k, void, hop_k<DT_Q5_K>, hop_k<DT_Q6_K>)
