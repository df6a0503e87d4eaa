#define VEC vec_neon
#include "kernel/cpu/vec_impl.h"
