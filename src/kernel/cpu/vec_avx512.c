#define VEC vec_avx512
#include "kernel/cpu/vec_impl.h"
