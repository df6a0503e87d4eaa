/* moe_group.cu - experts of quantized folders. */
#include "kernel/cuda/tile_group.cuh"
#include "kernel/cuda/moe_run.cuh"

#define EXPERTS(t, name) \
    case LAYOUT_##t: return moe_kernel_of<moe_tiles<LAYOUT_##t>>("experts " name);

const struct moe_kernel *moe_kernel_group(int t)
{
    switch (t) {
        EXPERTS(U4, "u4")
        EXPERTS(U4_64, "u4/64")
        EXPERTS(U4_32, "u4/32")
        EXPERTS(U8, "u8")
        EXPERTS(U2, "u2")
        EXPERTS(U2_ONE, "u2/all")
        EXPERTS(E2M1_16, "e2m1/16")
        EXPERTS(E4M3, "e4m3")
        EXPERTS(E4M3_64, "e4m3/64")
    default: return NULL;
    }
}
