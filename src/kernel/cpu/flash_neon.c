#define FLASH flash_neon
#include "kernel/cpu/flash_impl.h"
