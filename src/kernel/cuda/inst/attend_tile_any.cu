/* attend_tile_any.cu - attention in tiles over any KV type, converted to F16 when loaded. */
#include "kernel/cuda/attend_tile.cuh"

void attend_tiles_any(struct cuda *c, const struct attend_dev *a, dim3 grid)
{
    tile_dispatch<false>(c, a, grid, "attend tiles any");
}
