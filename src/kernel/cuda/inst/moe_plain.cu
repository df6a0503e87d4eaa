/* moe_plain.cu - experts of F16, BF16 and F32 weights. */
#include "kernel/cuda/moe_wide.cuh"

template <int T, class W> static const struct moe_kernel *plain_of(const char *name)
{
    static const struct moe_kernel k = { moe_few<moe_rows<T>>,
                                         moe_few_sum<moe_rows<T>>,
                                         moe_many<moe_rows<T>>,
                                         moe_wide_run<W>,
                                         NULL,
                                         NULL,
                                         NULL,
                                         moe_rows<T>::UNIT,
                                         MOE_ROWS,
                                         name };
    return &k;
}

const struct moe_kernel *moe_kernel_plain(int t)
{
    switch (t) {
    case DT_F16: return plain_of<DT_F16, packed_f16>("experts f16");
    case DT_BF16: return plain_of<DT_BF16, packed_bf16>("experts bf16");
    case DT_F32: return moe_kernel_of<moe_rows<DT_F32>>("experts f32");
    default: return NULL;
    }
}
