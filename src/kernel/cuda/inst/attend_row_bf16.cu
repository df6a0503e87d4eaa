/* attend_row_bf16.cu - row attention over BF16 keys and values. */
#include "kernel/cuda/attend_row.cuh"

void attend_rows_bf16(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    row_dispatch<row_bf16>(c, a, grid, warps, "attend rows bf16");
}
