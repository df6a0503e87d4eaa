/* gemm_packed_group8.cu - packed GEMM for the other matrices of quantized folders, on Hopper only:
 * elsewhere they become F16 first. Layouts that are rare become F16 everywhere. */
#include "kernel/cuda/tile_group.cuh"
#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/gemm_types.cuh"

PACKED_TYPE(u8, void, hopper_k<LAYOUT_U8>)
PACKED_TYPE(e2m1_16, void, hopper_k<LAYOUT_E2M1_16>)
PACKED_TYPE(e4m3, void, hopper_k<LAYOUT_E4M3>)
