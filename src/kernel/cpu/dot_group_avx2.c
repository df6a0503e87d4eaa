/* dot_group_avx2.c - AVX2 gemv for DT_GROUPED, and its rows as floats. */
#include "kernel/cpu/group_avx2.h"

#include "kernel/quant.h"
#include "kernel/cpu/dot_group.h"
#include "kernel/cpu/group_rows.h"

/* Two rows hide the latency of fma; with more tokens the sums fill the registers. */
#define GEMV_GROUP(code)                                                         \
    for (int t = 0; t < g->n_tokens;) {                                          \
        int left = g->n_tokens - t, r = 0;                                       \
        if (left >= 4)                                                           \
            for (; r + 2 <= g->n_rows; r += 2) tile_group(g, r, 2, t, 4, code);  \
        for (; left >= 4 && r < g->n_rows; r++) tile_group(g, r, 1, t, 4, code); \
        if (left < 4)                                                            \
            for (; r + 4 <= g->n_rows; r += 4) tile_group(g, r, 4, t, 1, code);  \
        for (; left < 4 && r < g->n_rows; r++) tile_group(g, r, 1, t, 1, code);  \
        t += left >= 4 ? 4 : 1;                                                  \
    }

void gemv_grouped_avx2(const struct gemv *g)
{
    if (!is_regular(g->group)) {
        gemv_any_avx2(g);
        return;
    }
    BY_CODE(g->group->code, GEMV_GROUP)
}

#define DECODE(code) decode_columns(q, row, first, n, dst, code)

void group_row_avx2(const struct grouped *q, const char *row, int first, int n, float *dst)
{
    if (!is_regular(q)) {
        grouped_decode(q, row, first, n, dst);
        return;
    }
    BY_CODE(q->code, DECODE)
}
