/* exact.c - which block type holds a quantized layer, and its rows as these blocks. */
#include "convert/exact.h"

#include "base/mem.h"
#include "kernel/quant.h"
#include "kernel/quantblocks.h"
#include "kernel/quant_pack.h"

/* Range of the integers of a layer, zero points subtracted. */
struct range {
    int low, high;
    bool f16; /* all scales are F16 numbers */
};

static const struct grouped *group_of(const struct gguf_item *it, int64_t r)
{
    int64_t each = it->rows / (it->lay.count * it->lay.tensors);

    return it->groups[r / each / it->lay.count];
}

size_t exact_room(const struct gguf_item *it)
{
    return naming_room(it) +
           (it->groups && it->groups[0] ? it->groups[0]->row_bytes / sizeof(float) + 16 : 0);
}

static char *packed_of(const struct gguf_item *it, float *tmp)
{
    return (char *)(tmp + naming_room(it));
}

static void widen(struct range *x, const struct grouped *g, const void *row)
{
    int top = g->code == CODE_U2 ? 3 : g->code == CODE_U4 ? 15 : 255;

    for (int i = 0; i < g->n_groups; i++) {
        int zero = grouped_zero(g, row, i);
        float s = grouped_scale(g, row, i);
        if (-zero < x->low) x->low = -zero;
        if (top - zero > x->high) x->high = top - zero;
        x->f16 = x->f16 && f16_to_f32(f32_to_f16(s)) == s;
    }
}

/* Blocks of 32 columns have one group each. */
static bool groups_fit(const struct gguf_item *it)
{
    for (int k = 0; k < it->lay.tensors; k++) {
        const struct grouped *g = it->groups[k], *first = it->groups[0];
        if (!g || g->order || g->cols % QK || (g->n_groups > 1 && g->group % QK)) return false;
        if (g->code != first->code || g->scale != first->scale || g->row_bytes != first->row_bytes)
            return false;
    }
    return true;
}

/* tiled: blocks of 32 columns are moved. */
static enum dtype choose(const struct range *x, int64_t cols, bool tiled, const struct grouped *g)
{
    if (!x->f16) return DT_NONE;
    if (x->low >= -1 && x->high <= 2 && cols % QK_K == 0 && !tiled &&
        (g->n_groups == 1 || g->group % QK_K == 0))
        return DT_TQ2_0;
    if (x->low >= -8 && x->high <= 7) return DT_Q4_0;
    if (x->low >= -16 && x->high <= 15) return DT_Q5_0;
    return x->low >= -128 && x->high <= 127 ? DT_Q8_0 : DT_NONE;
}

enum { NV_BLOCK = 64, NV_GROUP = 16 }; /* columns of a block of NVFP4 and of one of its scales */

/* The layer is NVFP4 in both formats, except for scales that GGUF cannot hold: has_plain_scales. */
static bool is_nvfp4(const struct gguf_item *it)
{
    for (int k = 0; k < it->lay.tensors; k++) {
        const struct grouped *g = it->groups[k];
        if (!g || g->order || g->code != CODE_E2M1 || g->scale != SCALE_E4M3 ||
            g->group != NV_GROUP || g->cols % NV_BLOCK)
            return false;
    }
    return it->tile_cols.dim % NV_BLOCK == 0;
}

/* Scales of GGUF's blocks have no sign and are no NaN. */
static bool has_plain_scales(const struct gguf_item *it, float *tmp)
{
    for (int64_t r = 0; r < it->rows; r++) {
        const struct grouped *g = group_of(it, r);
        const char *row = packed_of(it, tmp);
        naming_row(it, r, DT_GROUPED, packed_of(it, tmp), tmp);
        for (int i = 0; i < g->n_groups; i++)
            if ((uint8_t)row[g->scales_at + (size_t)i] >= 0x7f) return false;
    }
    return true;
}

int exact_scales(const float **out, int *n, const struct gguf_item *it, struct arena *a,
                 struct err *e)
{
    float *scale;

    *n = it->lay.tensors * it->lay.count;
    scale = arena_array(a, (size_t)*n, sizeof *scale);
    if (!scale) return err_nomem(e, "the scales of a layer");
    for (int i = 0; i < *n; i++) scale[i] = it->groups[i / it->lay.count]->factor;
    *out = scale;
    return OK;
}

int exact_type(enum dtype *out, const struct gguf_item *it, struct err *e)
{
    struct range x = { .f16 = true };
    const struct grouped *g = it->groups ? it->groups[0] : NULL;
    float *tmp;

    *out = DT_NONE;
    if (!g || it->add != 0 || it->neg_exp || it->scale.n || it->lay.order == ORDER_KV_B) return OK;
    if (is_nvfp4(it)) {
        if (!(tmp = mem_array(exact_room(it), sizeof *tmp))) return err_nomem(e, "a row");
        if (has_plain_scales(it, tmp)) *out = DT_NVFP4;
        mem_free(tmp);
        return OK;
    }
    if (!groups_fit(it) || it->tile_cols.dim % QK) return OK;
    if (g->code == CODE_E2M1 && g->scale == SCALE_E8M0 && g->factor == 1) *out = DT_MXFP4;
    if (g->code > CODE_U8) return OK;
    if (!(tmp = mem_array(exact_room(it), sizeof *tmp))) return err_nomem(e, "a row");
    for (int64_t r = 0; r < it->rows && x.f16; r++) {
        naming_row(it, r, DT_GROUPED, packed_of(it, tmp), tmp);
        widen(&x, group_of(it, r), packed_of(it, tmp));
    }
    *out = choose(&x, it->cols, it->tile_cols.keys > 0, g);
    mem_free(tmp);
    return OK;
}

/* ---- rows ---- */

static void put_block(const struct grouped *g, const char *row, int c, enum dtype to, void *dst)
{
    int group = c / g->group, zero = grouped_zero(g, row, group);
    uint16_t d = to == DT_MXFP4 ? 0 : f32_to_f16(grouped_scale(g, row, group));
    uint8_t q[QK];
    struct block_q4_0 *q4 = dst;
    struct block_q5_0 *q5 = dst;
    struct block_q8_0 *q8 = dst;
    struct block_mxfp4 *mx = dst;

    for (int j = 0; j < QK; j++) {
        int v = grouped_code(g, row, c + j);
        q[j] = (uint8_t)(to == DT_MXFP4 ? v
                                        : v - zero +
                                              (to == DT_Q4_0   ? 8
                                               : to == DT_Q5_0 ? 16
                                                               : 0));
    }
    switch (to) {
    case DT_Q4_0:
        q4->d = d;
        pack_nibbles(q4->qs, q);
        break;
    case DT_Q5_0:
        q5->d = d;
        pack_fives(q5->qh, q5->qs, q);
        break;
    case DT_Q8_0:
        q8->d = d;
        memcpy(q8->qs, q, QK);
        break;
    default: mx->e = (uint8_t)row[g->scales_at + (size_t)group]; pack_nibbles(mx->qs, q);
    }
}

/* In each 128 columns byte l has columns l, l + 32, l + 64, l + 96. */
static void put_ternary(const struct grouped *g, const char *row, int c, struct block_tq2_0 *dst)
{
    int group = c / g->group, zero = grouped_zero(g, row, group);

    dst->d = f32_to_f16(grouped_scale(g, row, group));
    memset(dst->qs, 0, sizeof dst->qs);
    for (int j = 0; j < QK_K; j++)
        dst->qs[j / 128 * 32 + j % 32] |=
            (uint8_t)((grouped_code(g, row, c + j) - zero + 1) << 2 * (j % 128 / 32));
}

/* Four scales, then 8 bytes per 16 columns: byte j has columns j and j + 8. */
static void put_nvfp4(const struct grouped *g, const char *row, int c, uint8_t *dst)
{
    memset(dst, 0, NV_BLOCK / NV_GROUP + NV_BLOCK / 2);
    memcpy(dst, row + g->scales_at + c / NV_GROUP, NV_BLOCK / NV_GROUP);
    for (int j = 0; j < NV_BLOCK; j++)
        dst[4 + j / 16 * 8 + j % 8] |=
            (uint8_t)(grouped_code(g, row, c + j) << (j % 16 < 8 ? 0 : 4));
}

void exact_row(const struct gguf_item *it, int64_t r, enum dtype to, void *dst, float *tmp)
{
    const struct grouped *g = group_of(it, r);
    const struct dtype_info *d = dtype_info((int)to);
    char *row = packed_of(it, tmp), *out = dst;

    naming_row(it, r, DT_GROUPED, row, tmp);
    for (int c = 0; c < g->cols; c += d->block, out += d->bytes) {
        int from = (int)tiling_to_folder(&it->tile_cols, c);
        if (to == DT_TQ2_0) put_ternary(g, row, c, (struct block_tq2_0 *)(void *)out);
        else if (to == DT_NVFP4) put_nvfp4(g, row, from, (uint8_t *)out);
        else put_block(g, row, from, to, out);
    }
}
