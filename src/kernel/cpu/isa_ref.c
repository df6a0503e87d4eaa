/* isa_ref.c - the reference: every type is decoded by quant_decode and summed in double, column by
 * column. All other instruction sets are tested against it. */
#include "kernel/cpu/isa.h"

#include "kernel/quant.h"

enum { PIECE = 1024 }; /* columns decoded at a time; a multiple of every block size */

static void gemv_ref(const struct gemv *g)
{
    for (int r = 0; r < g->n_rows; r++) {
        const char *row = (const char *)g->w + (size_t)r * g->w_stride;
        double sum[ISA_TOKENS] = { 0 };

        for (int c = 0; c < g->cols; c += PIECE) {
            int n = g->cols - c < PIECE ? g->cols - c : PIECE;
            float w[PIECE];
            quant_decode_part(g->type, g->group, row, c, n, w);
            for (int t = 0; t < g->n_tokens; t++) {
                const float *x = (const float *)((const char *)g->x + (size_t)t * g->x_stride) + c;
                for (int i = 0; i < n; i++) sum[t] += (double)w[i] * (double)x[i];
            }
        }
        for (int t = 0; t < g->n_tokens; t++)
            g->out[(size_t)t * g->out_stride + (size_t)r] = (float)sum[t];
    }
}

#define REF(t) [t] = { gemv_ref, 0 }

const struct isa isa_ref = {
    .name = "ref",
    .gemv = {
        REF(DT_F32), REF(DT_F16), REF(DT_BF16), REF(DT_F64), REF(DT_F8_E4M3), REF(DT_F8_E5M2),
        REF(DT_Q4_0), REF(DT_Q4_1), REF(DT_Q5_0), REF(DT_Q5_1), REF(DT_Q8_0),
        REF(DT_Q2_K), REF(DT_Q3_K), REF(DT_Q4_K), REF(DT_Q5_K), REF(DT_Q6_K), REF(DT_Q8_K),
        REF(DT_IQ2_XXS), REF(DT_IQ2_XS), REF(DT_IQ2_S), REF(DT_IQ3_XXS), REF(DT_IQ3_S), REF(DT_IQ1_S),
        REF(DT_IQ1_M), REF(DT_IQ4_NL), REF(DT_IQ4_XS), REF(DT_TQ1_0), REF(DT_TQ2_0), REF(DT_MXFP4),
        REF(DT_GROUPED), REF(DT_Q1_0), REF(DT_Q2_0), REF(DT_NVFP4), REF(DT_IQ4_K), REF(DT_IQ4_KS),
        REF(DT_IQ5_KS), REF(DT_IQ3_KS), REF(DT_IQ2_KL),
    },
};
