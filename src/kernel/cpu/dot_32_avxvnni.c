/* dot_32_avxvnni.c - AVX-VNNI gemv for formats with blocks of 32. */
#include "kernel/cpu/avxvnni.h"
#include "kernel/cpu/dot_32_avx2.c"
