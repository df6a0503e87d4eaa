/* isa_avx512.c - the table for x86 with AVX-512 F, BW, DQ, VL, VBMI and VNNI. Types without a
 * kernel (ANY) are decoded to F32 first. */
#include "kernel/cpu/dot_avx512.h"
#include "kernel/cpu/dot_t.h"
#include "kernel/cpu/isa_tables.h"

#define ANY(t) [t] = { gemv_any_avx512, FORM_F32 }

const struct isa isa_avx512 = {
    .name = "avx512",
    .form = { [FORM_32] = { x32_bytes, x32_make },
              [FORM_256] = { x256_bytes, x256_make },
              [FORM_XT] = { xt_bytes, xt_make_avx512 } },
    .gemv = {
        [DT_F32] = { gemv_f32_avx512, FORM_F32 },
        [DT_F16] = { gemv_f16_avx512, FORM_F32 },
        [DT_BF16] = { gemv_bf16_avx512, FORM_F32 },
        [DT_Q4_0] = { gemv_q4_0_avx512, FORM_32 },
        [DT_Q4_1] = { gemv_q4_1_avx512, FORM_32 },
        [DT_Q5_0] = { gemv_q5_0_avx512, FORM_32 },
        [DT_Q5_1] = { gemv_q5_1_avx512, FORM_32 },
        [DT_Q8_0] = { gemv_q8_0_avx512, FORM_32 },
        [DT_IQ4_NL] = { gemv_iq4_nl_avx512, FORM_32 },
        [DT_MXFP4] = { gemv_mxfp4_avx512, FORM_32 },
        [DT_IQ4_XS] = { gemv_iq4_xs_avx512, FORM_32 },
        [DT_Q2_K] = { gemv_q2_k_avx512, FORM_256 },
        [DT_Q3_K] = { gemv_q3_k_avx512, FORM_256 },
        [DT_Q4_K] = { gemv_q4_k_avx512, FORM_256 },
        [DT_Q5_K] = { gemv_q5_k_avx512, FORM_256 },
        [DT_Q6_K] = { gemv_q6_k_avx512, FORM_256 },
        [DT_TQ2_0] = { gemv_tq2_0_avx512, FORM_XT },
        [DT_TQ1_0] = { gemv_tq1_0_avx512, FORM_XT },
        [DT_IQ2_XXS] = { gemv_iq2_xxs_avx512, FORM_256 },
        [DT_IQ2_XS] = { gemv_iq2_xs_avx512, FORM_256 },
        [DT_IQ2_S] = { gemv_iq2_s_avx512, FORM_256 },
        [DT_IQ3_XXS] = { gemv_iq3_xxs_avx512, FORM_256 },
        [DT_IQ3_S] = { gemv_iq3_s_avx512, FORM_256 },
        [DT_IQ1_S] = { gemv_iq1_s_avx512, FORM_256 },
        [DT_IQ1_M] = { gemv_iq1_m_avx512, FORM_256 },
        [DT_GROUPED] = { gemv_grouped_avx512, FORM_F32 },
        ANY(DT_F64), ANY(DT_F8_E4M3), ANY(DT_F8_E5M2), ANY(DT_Q8_K),
        ANY(DT_Q1_0), ANY(DT_Q2_0), ANY(DT_NVFP4),
        ANY(DT_IQ4_K), ANY(DT_IQ4_KS), ANY(DT_IQ5_KS), ANY(DT_IQ3_KS), ANY(DT_IQ2_KL),
    },
};
