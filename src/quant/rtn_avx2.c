#include "kernel/cpu/simd.h"

#define RTN rtn_avx2
#include "quant/rtn_impl.h"
