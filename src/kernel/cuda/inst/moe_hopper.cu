/* moe_hopper.cu - experts with many choices each, on Hopper. */
#include "kernel/cuda/moe_hopper.cuh"

#define TILES(t, w) \
    case DT_##t: return moe_hopper_run<w<DT_##t>>;

moe_tiles_run *moe_tiles_of(int t)
{
    switch (t) {
        TILES(Q4_K, hopper_k)
        TILES(Q5_K, hopper_k)
        TILES(Q6_K, hopper_k)
        TILES(Q4_0, hopper_small)
        TILES(Q4_1, hopper_small)
        TILES(Q5_0, hopper_small)
        TILES(Q5_1, hopper_small)
        TILES(Q8_0, hopper_small)
        TILES(IQ4_NL, hopper_small)
        TILES(MXFP4, hopper_small)
    default: return NULL;
    }
}
