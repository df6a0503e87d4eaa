#define VEC vec_avx2
#include "kernel/cpu/vec_impl.h"
