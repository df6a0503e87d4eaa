/* moe_k.cu - experts in the K formats that the packed GEMM reads. */
#include "kernel/cuda/moe_one.cuh"
#include "kernel/cuda/moe_some.cuh"
#include "kernel/cuda/moe_wide.cuh"

template <int T> static const struct moe_kernel *k_of(const char *name)
{
    static const struct moe_kernel k = { moe_few<moe_tiles<T>>,
                                         moe_few_sum<moe_tiles<T>>,
                                         NULL,
                                         moe_wide_run<packed_k<T>>,
                                         moe_some_run<mv_tiles<T>>,
                                         moe_one<one_tiles<T>>,
                                         moe_one_sum<one_tiles<T>>,
                                         moe_tiles<T>::UNIT,
                                         MOE_LANES,
                                         name };
    return &k;
}

const struct moe_kernel *moe_kernel_k(int t)
{
    switch (t) {
    case DT_Q4_K: return k_of<DT_Q4_K>("experts q4_k");
    case DT_Q5_K: return k_of<DT_Q5_K>("experts q5_k");
    case DT_Q6_K: return k_of<DT_Q6_K>("experts q6_k");
    default: return NULL;
    }
}
