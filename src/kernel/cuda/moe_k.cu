/* moe_k.cu - experts in blocks of 256 columns. */
#include "kernel/cuda/moe_run.cuh"

const struct moe_kernel *moe_kernel_k(int t)
{
    switch (t) {
    case DT_Q2_K: return moe_kernel_of<moe_tiles<DT_Q2_K>>("experts q2_k");
    case DT_Q3_K: return moe_kernel_of<moe_tiles<DT_Q3_K>>("experts q3_k");
    case DT_Q4_K: return moe_kernel_of<moe_tiles<DT_Q4_K>>("experts q4_k");
    case DT_Q5_K: return moe_kernel_of<moe_tiles<DT_Q5_K>>("experts q5_k");
    case DT_Q6_K: return moe_kernel_of<moe_tiles<DT_Q6_K>>("experts q6_k");
    case DT_IQ4_XS: return moe_kernel_of<moe_tiles<DT_IQ4_XS>>("experts iq4_xs");
    default: return NULL;
    }
}
