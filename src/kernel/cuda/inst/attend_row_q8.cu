/* attend_row_q8.cu - row attention over Q8_0 keys and values. */
#include "kernel/cuda/attend_row.cuh"

void attend_rows_q8(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    row_dispatch<row_q8>(c, a, grid, warps, "attend rows q8");
}
