#include "kernel/cpu/simd.h"

#define RTN rtn_avx512
#include "quant/rtn_impl.h"
