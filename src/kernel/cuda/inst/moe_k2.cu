/* moe_k2.cu - experts in the other formats with blocks of 256 columns. */
#include "kernel/cuda/moe_one.cuh"

template <int T> static const struct moe_kernel *k2_of(const char *name)
{
    return moe_kernel_of<moe_tiles<T>>(name, moe_one<one_tiles<T>>, moe_one_sum<one_tiles<T>>);
}

const struct moe_kernel *moe_kernel_k2(int t)
{
    switch (t) {
    case DT_Q2_K: return k2_of<DT_Q2_K>("experts q2_k");
    case DT_Q3_K: return k2_of<DT_Q3_K>("experts q3_k");
    case DT_IQ4_XS: return k2_of<DT_IQ4_XS>("experts iq4_xs");
    default: return NULL;
    }
}
