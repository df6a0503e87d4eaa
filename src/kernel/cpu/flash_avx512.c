#define FLASH flash_avx512
#include "kernel/cpu/flash_impl.h"
