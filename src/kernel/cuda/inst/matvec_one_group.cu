/* matvec_one_group.cu - matvec of one token for matrices of quantized folders. */
#include "kernel/cuda/matvec_bytes_group.cuh"
#include "kernel/cuda/matvec_one.cuh"

#define ALONE(form, t) \
    case LAYOUT_##t: return mv_one_of<form<LAYOUT_##t>, form<LAYOUT_##t>>();

struct mv_kernel *mv_one_group(int a, int b)
{
    if (a != b) return NULL;
    switch (a) {
        ALONE(one_tiles, U4)
        ALONE(one_tiles, U4_64)
        ALONE(one_tiles, U4_32)
        ALONE(one_tiles, U8)
        ALONE(one_tiles, U2)
        ALONE(one_tiles, U2_ONE)
        ALONE(one_tiles, E2M1_16)
        ALONE(one_halves, E4M3)
        ALONE(one_halves, E4M3_64)
    default: return NULL;
    }
}
