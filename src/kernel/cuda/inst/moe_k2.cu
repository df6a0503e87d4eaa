/* moe_k2.cu - experts in the other formats with blocks of 256 columns. */
#include "kernel/cuda/moe_run.cuh"

const struct moe_kernel *moe_kernel_k2(int t)
{
    switch (t) {
    case DT_Q2_K: return moe_kernel_of<moe_tiles<DT_Q2_K>>("experts q2_k");
    case DT_Q3_K: return moe_kernel_of<moe_tiles<DT_Q3_K>>("experts q3_k");
    case DT_IQ4_XS: return moe_kernel_of<moe_tiles<DT_IQ4_XS>>("experts iq4_xs");
    default: return NULL;
    }
}
