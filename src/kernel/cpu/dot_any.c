/* dot_any.c - gemv for types without a kernel of their own: decoded piece by piece, then multiplied
 * as F32. */
#include "kernel/cpu/isa.h"
#include "kernel/quant.h"

enum {
    PIECE = 1024
}; /* columns decoded at a time: a multiple of every block size, and within L1 */

void gemv_decoded(const struct gemv *g, gemv_fn *f32)
{
    float w[PIECE], part[ISA_TOKENS];

    for (int r = 0; r < g->n_rows; r++) {
        const char *row = (const char *)g->w + (size_t)r * g->w_stride;
        float sum[ISA_TOKENS] = { 0 };
        for (int c = 0; c < g->cols; c += PIECE) {
            int n = g->cols - c < PIECE ? g->cols - c : PIECE;
            quant_decode_part(g->type, g->group, row, c, n, w);
            struct gemv p = { .type = DT_F32,
                              .cols = n,
                              .n_rows = 1,
                              .n_tokens = g->n_tokens,
                              .w = w,
                              .x = (const float *)g->x + c,
                              .x_stride = g->x_stride,
                              .out = part,
                              .out_stride = 1 };
            f32(&p);
            for (int t = 0; t < g->n_tokens; t++) sum[t] += part[t];
        }
        for (int t = 0; t < g->n_tokens; t++)
            g->out[(size_t)t * g->out_stride + (size_t)r] = sum[t];
    }
}
