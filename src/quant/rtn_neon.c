#include "kernel/cpu/simd.h"

#define RTN rtn_neon
#include "quant/rtn_impl.h"
