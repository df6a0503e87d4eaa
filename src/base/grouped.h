/* grouped.h - the layout of a matrix of type DT_GROUPED: small codes, a scale for every group of
 * columns.
 *
 * Quantized Hugging Face folders have many layouts, group sizes and types of scales. Loading packs
 * them into this one, which keeps every bit of codes and scales. A row is
 *
 *     codes     U2: 16 bytes hold 64 columns; byte j has columns j, j + 16, j + 32, j + 48
 *               U4, E2M1: 16 bytes hold 32 columns; byte j has columns j (low nibble), j + 16
 *               U8, E4M3, E5M2: a byte per column
 *     scales    one per group, in the type of the file
 *     zeros     one byte per group, where groups have zero points of their own
 *
 * and the value of a column is (code - zeros[group] - zero) * scale[group] * factor for integers,
 * code * scale[group] * factor for floats. Codes are padded to whole 16 bytes (U2, U4, E2M1). */
#ifndef TERN_BASE_GROUPED_H
#define TERN_BASE_GROUPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum group_code { CODE_U2, CODE_U4, CODE_U8, CODE_E2M1, CODE_E4M3, CODE_E5M2 };
enum group_scale {
    SCALE_NONE, /* only the factor */
    SCALE_F32,
    SCALE_F16,
    SCALE_BF16,
    SCALE_E8M0,
    SCALE_E4M3
};

struct grouped {
    enum group_code code;
    enum group_scale scale;
    bool zeros; /* zero points of groups are stored */
    int zero;   /* is subtracted from integer codes in any case */
    int cols;
    int group, n_groups; /* columns of a group; the last one may have fewer */
    float factor;
    size_t scales_at, zeros_at, row_bytes; /* in a row */
    /* [cols]: column c is column order[c] of the activations (GPTQ's act-order); NULL: column c. */
    const int32_t *order;
};

static inline int group_scale_bytes(enum group_scale s)
{
    static const uint8_t bytes[] = { 0, 4, 2, 2, 1, 1 };
    return bytes[s];
}

/* Columns that 16 bytes of codes hold; 0: a byte per column. */
static inline int group_chunk(enum group_code c)
{
    return c == CODE_U2 ? 64 : c == CODE_U4 || c == CODE_E2M1 ? 32 : 0;
}

static inline size_t group_code_bytes(enum group_code c, int cols)
{
    int chunk = group_chunk(c);
    return chunk ? (size_t)((cols + chunk - 1) / chunk) * 16 : (size_t)cols;
}

/* Rows are best cut between multiples of so many columns: codes and groups stay whole. */
static inline int grouped_unit(const struct grouped *g)
{
    int chunk = group_chunk(g->code) ? group_chunk(g->code) : 16;

    return g->n_groups > 1 && g->group > chunk ? g->group : chunk;
}

/* Fills n_groups and the offsets from the fields above them. */
static inline void grouped_measure(struct grouped *g)
{
    g->n_groups = (g->cols + g->group - 1) / g->group;
    g->scales_at = group_code_bytes(g->code, g->cols);
    g->zeros_at = g->scales_at + (size_t)g->n_groups * (size_t)group_scale_bytes(g->scale);
    g->row_bytes = g->zeros_at + (g->zeros ? (size_t)g->n_groups : 0);
}
#endif
