/* group_rows.h - rows of DT_GROUPED as floats, for the matrix products of many tokens. */
#ifndef TERN_KERNEL_CPU_GROUP_ROWS_H
#define TERN_KERNEL_CPU_GROUP_ROWS_H

#include "base/grouped.h"

/* Columns [first, first + n) of a row; first is a multiple of 64. */
typedef void group_row_fn(const struct grouped *q, const char *row, int first, int n, float *dst);
group_row_fn group_row_avx2, group_row_avx512;
#endif
