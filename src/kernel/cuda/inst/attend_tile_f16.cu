/* attend_tile_f16.cu - attention in tiles over F16 keys and values, copied as they are. */
#include "kernel/cuda/attend_tile.cuh"

void attend_tiles_f16(struct cuda *c, const struct attend_dev *a, dim3 grid)
{
    tile_dispatch<true>(c, a, grid, "attend tiles f16");
}
