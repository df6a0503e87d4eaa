/* moe_small.cu - experts in formats with blocks of 32 columns. */
#include "kernel/cuda/moe_one.cuh"
#include "kernel/cuda/moe_some.cuh"
#include "kernel/cuda/moe_wide.cuh"

template <int T> static const struct moe_kernel *small_of(const char *name)
{
    static const struct moe_kernel k = { moe_few<moe_tiles<T>>,
                                         moe_few_sum<moe_tiles<T>>,
                                         NULL,
                                         moe_wide_run<packed_small<T>>,
                                         moe_some_run<mv_tiles<T>>,
                                         moe_one<one_tiles<T>>,
                                         moe_one_sum<one_tiles<T>>,
                                         moe_tiles<T>::UNIT,
                                         MOE_LANES,
                                         name };
    return &k;
}

const struct moe_kernel *moe_kernel_small(int t)
{
    switch (t) {
    case DT_Q4_0: return small_of<DT_Q4_0>("experts q4_0");
    case DT_Q4_1: return small_of<DT_Q4_1>("experts q4_1");
    case DT_Q5_0: return small_of<DT_Q5_0>("experts q5_0");
    case DT_Q5_1: return small_of<DT_Q5_1>("experts q5_1");
    case DT_Q8_0: return small_of<DT_Q8_0>("experts q8_0");
    case DT_IQ4_NL: return small_of<DT_IQ4_NL>("experts iq4_nl");
    case DT_MXFP4: return small_of<DT_MXFP4>("experts mxfp4");
    default: return NULL;
    }
}
