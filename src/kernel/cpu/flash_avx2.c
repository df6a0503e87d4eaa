#define FLASH flash_avx2
#include "kernel/cpu/flash_impl.h"
