/* attend_row_f8.cu - row attention over F8 (E4M3) keys and values. */
#include "kernel/cuda/attend_row.cuh"

void attend_rows_f8(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    row_dispatch<row_f8>(c, a, grid, warps, "attend rows f8");
}
