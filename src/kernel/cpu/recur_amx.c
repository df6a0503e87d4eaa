#define RECUR recur_tiles
#define RECUR_NAME "amx"
#define RECUR_TILES
#include "kernel/cpu/recur_impl.h"

const struct recur *recur_amx(void) { return tiles_here() ? &recur_tiles : NULL; }
