/* attend_row_f16.cu - row attention over F16 keys and values. */
#include "kernel/cuda/attend_row.cuh"

void attend_rows_f16(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    row_dispatch<row_f16>(c, a, grid, warps, "attend rows f16");
}
