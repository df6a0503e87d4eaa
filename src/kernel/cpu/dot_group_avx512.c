/* dot_group_avx512.c - AVX-512 gemv for DT_GROUPED, and its rows as floats. */
#include "kernel/cpu/group_avx512.h"

#include "kernel/cpu/dot_group.h"
#include "kernel/cpu/group_rows.h"

#define GEMV_GROUP(code) GEMV_TILES(tile_group, g, code, 4, 4, 2, 2)

void gemv_grouped_avx512(const struct gemv *g)
{
    if (!is_regular(g->group)) {
        gemv_any_avx512(g);
        return;
    }
    BY_CODE(g->group->code, GEMV_GROUP)
}

#define DECODE(code) decode_columns(q, row, first, n, dst, code)

void group_row_avx512(const struct grouped *q, const char *row, int first, int n, float *dst)
{
    if (!is_regular(q)) {
        grouped_decode(q, row, first, n, dst);
        return;
    }
    BY_CODE(q->code, DECODE)
}
