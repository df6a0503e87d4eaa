/* pack_group.cu - packs matrices of quantized folders (DT_GROUPED, base/grouped.h) on the host: the
 * choice of a layout, and rows to the tiles of tile_group.cuh.
 *
 * Codes keep their bits. Scales are stored with the factor of the matrix applied, as F32 where 64
 * or more columns share one; smaller groups keep F16 or E4M3 scales and have the factor beside
 * them. Matrices that no layout holds are decoded to F16. Any thread may call these functions. */
#include "base/minmax.h"
#include "kernel/cuda/cu_layout.cuh"

extern "C" {
#include "kernel/quant.h"
}

#include <math.h>
#include <string.h>

/* ---- choice of a layout ---- */

/* Do groups of columns begin at multiples of n columns only? */
static bool starts_at(const struct grouped *g, int n)
{
    return g->n_groups == 1 || g->group % n == 0;
}

/* The largest zero point fits into a byte, and none is negative. */
static bool zeros_fit(const struct weight *w)
{
    const struct grouped *g = w->group;
    size_t rows = (size_t)w->rows * (size_t)(w->n ? w->n : 1);

    if (g->zero < 0 || g->zero > 255) return false;
    if (!g->zeros || g->zero == 0) return true;
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *z = (const uint8_t *)w->data + r * g->row_bytes + g->zeros_at;
        for (int k = 0; k < g->n_groups; k++)
            if (z[k] + g->zero > 255) return false;
    }
    return true;
}

/* Tiles of 128 columns, unless the columns that pad the last one are more than 1 in 20. */
static bool is_wide(const struct grouped *g)
{
    int pad = (g->cols + 127) / 128 * 128;
    return starts_at(g, 128) && pad - g->cols <= g->cols / 20;
}

static int layout_or_f16(bool fits, int layout) { return fits ? layout : (int)DT_F16; }

/* Layouts of 4-bit codes. Tiles of 128 columns with scales for each 32 take the least memory after
 * those with one scale. */
static int layout_of_u4(const struct grouped *g)
{
    if (is_wide(g)) return LAYOUT_U4;
    if (starts_at(g, 64)) return LAYOUT_U4_64;
    return layout_or_f16(starts_at(g, 32), LAYOUT_U4_32);
}

/* E8M0 scales without a factor are GGUF's MXFP4. */
static int layout_of_e2m1(const struct grouped *g)
{
    if (g->scale == SCALE_E8M0 && g->group == 32 && g->factor == 1.f && g->cols % 32 == 0)
        return DT_MXFP4;
    return layout_or_f16(g->scale == SCALE_E4M3 && g->group == 16, LAYOUT_E2M1_16);
}

int cu_group_layout(const struct weight *w)
{
    const struct grouped *g = w->group;

    if (g->code != CODE_E2M1 && g->code != CODE_E4M3 && g->code != CODE_E5M2 && !zeros_fit(w))
        return DT_F16;
    switch (g->code) {
    case CODE_U4: return layout_of_u4(g);
    case CODE_U8: return layout_or_f16(starts_at(g, 128), LAYOUT_U8);
    case CODE_U2:
        if (g->scale == SCALE_NONE && !g->zeros) return LAYOUT_U2_ONE;
        return layout_or_f16(starts_at(g, 128), LAYOUT_U2);
    case CODE_E2M1: return layout_of_e2m1(g);
    case CODE_E4M3:
        return is_wide(g) ? (int)LAYOUT_E4M3 : layout_or_f16(starts_at(g, 64), LAYOUT_E4M3_64);
    default: return DT_F16;
    }
}

/* ---- codes of one row ---- */

/* 32 columns of a row: u[t] has columns 4t .. 4t + 3, a byte each, v[t] the same + 16. Columns after
 * the last are 0. */
struct codes32 {
    uint32_t u[4], v[4];
};

static struct codes32 read_codes(const struct grouped *g, const uint8_t *row, int c)
{
    struct codes32 r;
    uint8_t q[32] = {};

    memset(&r, 0, sizeof r);
    if (c >= g->cols) return r;
    if (group_chunk(g->code) == 32) {
        memcpy(r.u, row + c / 2, 16);
        for (int t = 0; t < 4; t++) {
            r.v[t] = r.u[t] >> 4 & 0x0f0f0f0fu;
            r.u[t] &= 0x0f0f0f0fu;
        }
    } else if (group_chunk(g->code) == 64) {
        uint32_t w[4];
        int shift = c % 64 / 8; /* 0 or 4 */
        memcpy(w, row + c / 64 * 16, 16);
        for (int t = 0; t < 4; t++) {
            r.u[t] = w[t] >> shift & 0x03030303u;
            r.v[t] = w[t] >> (shift + 2) & 0x03030303u;
        }
    } else {
        memcpy(q, row + c, (size_t)min_int(32, g->cols - c));
        memcpy(r.u, q, 16);
        memcpy(r.v, q + 16, 16);
    }
    return r;
}

/* Distributes numbers over a 32-bit word: the first number of pair k (0, 1 in u; 2, 3 in v) goes to
 * bit first + step k, the second to 16 above. */
static uint32_t place_pairs(uint32_t u, uint32_t v, int first, int step)
{
    uint32_t w = 0;

    for (int k = 0; k < 4; k++) {
        uint32_t two = (k < 2 ? u : v) >> 16 * (k & 1);
        w |= ((two & 255) | (two >> 8 & 255) << 16) << (first + step * k);
    }
    return w;
}

/* Writes group b of 32 columns of row r into the tile; the positions are those of tile_group.cuh. */
static void put_codes(uint8_t *tile, enum group_code code, const struct codes32 *q, int r, int b)
{
    for (int t = 0; t < 4; t++) {
        uint8_t *lane = tile + 16 * (4 * (r & 7) + t);
        uint32_t word, old;
        switch (code) {
        case CODE_U4:
        case CODE_E2M1:
            word = code == CODE_U4 ? place_pairs(q->u[t], q->v[t], 0, 4)
                                   : place_pairs(q->u[t], q->v[t], 12, -4);
            memcpy(lane + 512 * (b / 2) + b % 2 * 8 + r / 8 * 4, &word, 4);
            break;
        case CODE_U2: /* two groups share a word: the odd one is 8 bits higher */
            word = place_pairs(q->u[t], q->v[t], 0, 2) << 8 * (b & 1);
            memcpy(&old, lane + b / 2 * 8 + r / 8 * 4, 4);
            word |= old;
            memcpy(lane + b / 2 * 8 + r / 8 * 4, &word, 4);
            break;
        default:
            memcpy(lane + 512 * b + r / 8 * 8, &q->u[t], 4);
            memcpy(lane + 512 * b + r / 8 * 8 + 4, &q->v[t], 4);
        }
    }
}

/* ---- scales and zero points of a tile ---- */

/* The rows of a tile: n of 16 exist. c: its first column. */
struct tile_src {
    const struct grouped *g;
    const uint8_t *row; /* the first */
    int n, c;
};

static const uint8_t *row_of(const struct tile_src *s, int r)
{
    return s->row + (size_t)r * s->g->row_bytes;
}
/* The group of column c; after the last column, the last group. */
static int group_at(const struct tile_src *s, int c)
{
    return min_int(c, s->g->cols - 1) / s->g->group;
}

/* F32 [16], and zero points if the codes are integers. */
static void put_rows(uint8_t *head, const struct tile_src *s, bool zeros)
{
    int k = group_at(s, s->c);

    for (int r = 0; r < s->n; r++) {
        float d = grouped_scale(s->g, row_of(s, r), k);
        memcpy(head + 4 * r, &d, 4);
        if (zeros) head[64 + r] = (uint8_t)grouped_zero(s->g, row_of(s, r), k);
    }
}

/* F16 scales as the file has them, or relative to a power of two so that the largest one of the
 * tile is near 2^14: F16 then holds 2^-31 of it with 8 bits, BF16's precision. */
static float common_factor(const struct tile_src *s)
{
    float most = 0;
    int e = 0;

    if (s->g->scale == SCALE_F16) return s->g->factor;
    for (int r = 0; r < s->n; r++)
        for (int b = 0; b < 4; b++) {
            float d = fabsf(grouped_scale(s->g, row_of(s, r), group_at(s, s->c + 32 * b)));
            if (d > most) most = d;
        }
    if (!(most > 0) || most > 3e38f) return 1;
    frexpf(most, &e);
    return ldexpf(1, e - 14);
}

static void put_subs(uint8_t *head, const struct tile_src *s)
{
    float d = common_factor(s);

    memcpy(head + 192, &d, 4);
    for (int r = 0; r < s->n; r++)
        for (int b = 0; b < 4; b++) {
            const uint8_t *row = row_of(s, r);
            int k = group_at(s, s->c + 32 * b);
            uint16_t h;
            if (s->g->scale == SCALE_F16) memcpy(&h, row + s->g->scales_at + 2 * (size_t)k, 2);
            else h = f32_to_f16(grouped_scale(s->g, row, k) / d);
            memcpy(head + 8 * r + 2 * b, &h, 2);
            head[128 + 4 * r + b] = (uint8_t)grouped_zero(s->g, row, k);
        }
}

static void put_sixteens(uint8_t *head, const struct tile_src *s)
{
    memcpy(head + 128, &s->g->factor, 4);
    for (int r = 0; r < s->n; r++)
        for (int b = 0; b < 8; b++)
            head[8 * r + b] = row_of(s, r)[s->g->scales_at + (size_t)group_at(s, s->c + 16 * b)];
}

static void put_head(int layout, uint8_t *head, const struct tile_src *s)
{
    float zero = (float)s->g->zero;

    switch (layout) {
    case LAYOUT_U4_32: put_subs(head, s); break;
    case LAYOUT_E2M1_16: put_sixteens(head, s); break;
    case LAYOUT_U2_ONE:
        memcpy(head, &s->g->factor, 4);
        memcpy(head + 4, &zero, 4);
        break;
    default: put_rows(head, s, layout != LAYOUT_E4M3 && layout != LAYOUT_E4M3_64);
    }
}

/* ---- rows ---- */

static void pack_group_tile(int layout, uint8_t *tile, const struct tile_src *s)
{
    struct layout l = layout_of(layout);
    int bits = s->g->code == CODE_U2 ? 2 : group_chunk(s->g->code) ? 4 : 8;

    memset(tile, 0, (size_t)l.bytes);
    for (int r = 0; r < s->n; r++)
        for (int b = 0; b < l.cols / 32; b++) {
            struct codes32 q = read_codes(s->g, row_of(s, r), s->c + 32 * b);
            put_codes(tile, s->g->code, &q, r, b);
        }
    put_head(layout, tile + bits * l.cols * 2, s);
}

/* MXFP4 has tiles of 32 columns: nibbles, then a scale for each row. */
static void pack_mxfp4_tile(uint8_t *tile, const struct tile_src *s)
{
    memset(tile, 0, (size_t)layout_of(DT_MXFP4).bytes);
    for (int r = 0; r < s->n; r++) {
        struct codes32 q = read_codes(s->g, row_of(s, r), s->c);
        for (int t = 0; t < 4; t++) {
            uint32_t word = place_pairs(q.u[t], q.v[t], 12, -4);
            memcpy(tile + 8 * (4 * (r & 7) + t) + r / 8 * 4, &word, 4);
        }
        tile[256 + r] = row_of(s, r)[s->g->scales_at + (size_t)group_at(s, s->c)];
    }
}

/* Decoded rows have the columns of the activations. */
static void pack_decoded_row(const struct weight *w, const uint8_t *row, uint16_t *dst)
{
    const struct grouped *g = w->group;
    float f[256];

    memset(dst, 0, layout_stride(DT_F16, w->cols) * 2);
    for (int c = 0; c < w->cols; c += 256) {
        int n = min_int(256, w->cols - c);
        grouped_decode(g, row, c, n, f);
        for (int i = 0; i < n; i++)
            dst[g->order ? g->order[c + i] : c + i] = f32_to_f16(f[i] > 65504.f    ? 65504.f
                                                                 : f[i] < -65504.f ? -65504.f
                                                                                   : f[i]);
    }
}

void cu_pack_group(const struct weight *w, const uint8_t *src, int rows, uint8_t *dst)
{
    int layout = cu_type(w);
    struct layout l = layout_of(layout);
    size_t row_bytes = w->group->row_bytes;

    if (!l.cols) {
        for (int r = 0; r < rows; r++, src += row_bytes, dst += layout_stride(DT_F16, w->cols) * 2)
            pack_decoded_row(w, src, (uint16_t *)dst);
        return;
    }
    for (int r0 = 0; r0 < rows; r0 += TILE_ROWS, src += TILE_ROWS * row_bytes) {
        struct tile_src s = { w->group, src, min_int(TILE_ROWS, rows - r0), 0 };
        for (int k = 0; k < layout_blocks(layout, w->cols); k++, dst += l.bytes) {
            s.c = k * l.cols;
            if (layout == DT_MXFP4) pack_mxfp4_tile(dst, &s);
            else pack_group_tile(layout, dst, &s);
        }
    }
}
