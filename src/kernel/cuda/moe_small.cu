/* moe_small.cu - experts in blocks of 32 columns. */
#include "kernel/cuda/moe_run.cuh"

const struct moe_kernel *moe_kernel_small(int t)
{
    switch (t) {
    case DT_Q4_0: return moe_kernel_of<moe_tiles<DT_Q4_0>>("experts q4_0");
    case DT_Q4_1: return moe_kernel_of<moe_tiles<DT_Q4_1>>("experts q4_1");
    case DT_Q5_0: return moe_kernel_of<moe_tiles<DT_Q5_0>>("experts q5_0");
    case DT_Q5_1: return moe_kernel_of<moe_tiles<DT_Q5_1>>("experts q5_1");
    case DT_Q8_0: return moe_kernel_of<moe_tiles<DT_Q8_0>>("experts q8_0");
    case DT_IQ4_NL: return moe_kernel_of<moe_tiles<DT_IQ4_NL>>("experts iq4_nl");
    case DT_MXFP4: return moe_kernel_of<moe_tiles<DT_MXFP4>>("experts mxfp4");
    default: return NULL;
    }
}
