/* gemm_packed_group.cu - packed GEMM for matrices of quantized folders, on Hopper only: elsewhere
 * they become F16 first. */
#include "kernel/cuda/tile_group.cuh"
#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/gemm_types.cuh"

PACKED_TYPE(u4, void, hopper_k<LAYOUT_U4>)
PACKED_TYPE(u4_64, void, hopper_k<LAYOUT_U4_64>)
PACKED_TYPE(u4_32, void, hopper_k<LAYOUT_U4_32>)
