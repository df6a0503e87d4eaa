/* dot_k_avx2.c - AVX2 gemv for Q2_K, Q3_K and IQ4_XS. */
#include "kernel/cpu/row_k_avx2.h"

void gemv_q2_k_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, Q2_K) }
void gemv_q3_k_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, Q3_K) }
void gemv_iq4_xs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ4_XS) }
