/* attend_row_any.cu - row attention over F32 keys and values, and over any type whose rows are not
 * aligned. */
#include "kernel/cuda/attend_row.cuh"

void attend_rows_any(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    row_dispatch<row_any>(c, a, grid, warps, "attend rows any");
}
