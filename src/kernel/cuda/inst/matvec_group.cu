/* matvec_group.cu - matvec for matrices of quantized folders. */
#include "kernel/cuda/tile_group.cuh"
#include "kernel/cuda/matvec_run.cuh"

#define ALONE(t) \
    case LAYOUT_##t: return mv_kernel_of<mv_tiles<LAYOUT_##t>, mv_tiles<LAYOUT_##t>>();

struct mv_kernel *mv_kernel_group(int a, int b)
{
    if (a != b) return NULL;
    switch (a) {
        ALONE(U4)
        ALONE(U4_64)
        ALONE(U4_32)
        ALONE(U8)
        ALONE(U2)
        ALONE(U2_ONE)
        ALONE(E2M1_16)
        ALONE(E4M3)
        ALONE(E4M3_64)
    default: return NULL;
    }
}
