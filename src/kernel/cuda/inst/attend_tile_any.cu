#include "kernel/cuda/attend_tile.cuh"

void attend_tiles_any(struct cuda *c, const struct attend_dev *a, dim3 grid)
{
    tile_dispatch<false>(c, a, grid, "attend tiles any");
}
