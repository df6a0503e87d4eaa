/* moe_plain.cu - experts of plain numbers. */
#include "kernel/cuda/moe_run.cuh"

const struct moe_kernel *moe_kernel_plain(int t)
{
    switch (t) {
    case DT_F16: return moe_kernel_of<moe_rows<DT_F16>>("experts f16");
    case DT_BF16: return moe_kernel_of<moe_rows<DT_BF16>>("experts bf16");
    case DT_F32: return moe_kernel_of<moe_rows<DT_F32>>("experts f32");
    default: return NULL;
    }
}
