/* dot_iq_avx2.c - AVX2 gemv for the lattice formats IQ1, IQ2 and IQ3: points by table lookup, 32 signs
 * at a time. */
#include "kernel/cpu/row_k_avx2.h"

void gemv_iq2_xxs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ2_XXS) }
void gemv_iq2_xs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ2_XS) }
void gemv_iq2_s_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ2_S) }
void gemv_iq3_xxs_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ3_XXS) }
void gemv_iq3_s_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ3_S) }
void gemv_iq1_s_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ1_S) }
void gemv_iq1_m_avx2(const struct gemv *g) { GEMV_EACH_ROW(row_k, g, IQ1_M) }
