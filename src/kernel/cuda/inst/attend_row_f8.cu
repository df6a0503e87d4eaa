#include "kernel/cuda/attend_row.cuh"

void attend_rows_f8(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    row_dispatch<row_f8>(c, a, grid, warps, "attend rows f8");
}
