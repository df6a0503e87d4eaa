/* dot_k_avxvnni.c - AVX-VNNI gemv for Q2_K, Q3_K and IQ4_XS. */
#include "kernel/cpu/avxvnni.h"
#include "kernel/cpu/dot_k_avx2.c"
