/* cu_layout.cu - packs weights on the host: from a file's block order to the tiles of
 * cu_layout.cuh.
 *
 * One pack_<type> function for each block format writes one block of one row into its tile. Plain C
 * with the quant block structs of kernel/quantblocks.h; any thread may call it. */
#include "kernel/cuda/cu_layout.cuh"

extern "C" {
#include "kernel/quant.h"
}

#include <string.h>

size_t cu_weight_bytes(enum dtype t, int rows, int cols, int n)
{
    uint64_t row;
    if (rows < 1 || cols < 1 || n < 1) return 0;
    if ((int)t < LAYOUT_U4 && (!quant_can_decode(t) || !dtype_row_bytes(t, (uint64_t)cols, &row)))
        return 0;
    return (size_t)n * layout_matrix_bytes(t, rows, cols);
}

static size_t plain_row_bytes(enum dtype t, int cols)
{
    return layout_stride(t, cols) * (layout_type(t) == DT_F32 ? 4 : 2);
}

/* All layouts are one plane: a range of rows is contiguous on the device. */
int cu_pack_planes(const struct weight *w, int i, int r0, int r1, struct cu_plane out[4])
{
    enum dtype t = (enum dtype)cu_type(w);
    struct layout l = layout_of(t);
    size_t base = (size_t)i * layout_matrix_bytes(t, w->rows, w->cols), rows = (size_t)(r1 - r0),
           at = (size_t)r0;
    size_t bytes =
        l.cols ? (size_t)layout_blocks(t, w->cols) * (size_t)l.bytes : plain_row_bytes(t, w->cols);
    if (l.cols) {
        at /= TILE_ROWS;
        rows = (rows + TILE_ROWS - 1) / TILE_ROWS;
    }
    out[0].at = base + at * bytes;
    out[0].bytes = rows * bytes;
    return 1;
}

/* ---- bits of a lane's word ---- */

static inline uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline void store32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline uint32_t shift_by(uint32_t v, int by) { return by >= 0 ? v << by : v >> -by; }

/* Distributes numbers over a 32-bit word. u has a number in each byte, those of pairs 0 and 1; v
 * has those of pairs 2 and 3; m is the mask of one number. The first number of pair k goes to bit
 * p_k, the second to bit odd + p_k. */
static inline uint32_t place_bits(uint32_t u, uint32_t v, uint32_t m, int odd, int p0, int p1,
                                  int p2, int p3)
{
    return shift_by(u & m, p0) | shift_by(u & m << 8, p0 + odd - 8) |
           shift_by(u & m << 16, p1 - 16) | shift_by(u & m << 24, p1 + odd - 24) |
           shift_by(v & m, p2) | shift_by(v & m << 8, p2 + odd - 8) |
           shift_by(v & m << 16, p3 - 16) | shift_by(v & m << 24, p3 + odd - 24);
}
/* The positions that cu_layout.cuh's bits_4, bits_e2m1, bits_iq4, bits_5, bits_6, bits_2 and bits_3
 * expect. */
static inline uint32_t place_4(uint32_t u, uint32_t v)
{
    return place_bits(u, v, 15, 16, 0, 4, 8, 12);
}
static inline uint32_t place_e2m1(uint32_t u, uint32_t v)
{
    return place_bits(u, v, 15, 16, 12, 8, 4, 0);
}
static inline uint32_t place_iq4(uint32_t u, uint32_t v)
{
    return place_bits(u, v, 15, 4, 0, 8, 16, 24);
}
static inline uint32_t place_5th(uint32_t u, uint32_t v)
{
    return place_bits(u, v, 1, 16, 4, 8, 5, 9);
}
static inline uint32_t place_6th(uint32_t u, uint32_t v)
{
    return place_bits(u, v, 3, 16, 4, 8, 6, 10);
}
static inline uint32_t place_2(uint32_t u, uint32_t v)
{
    return place_bits(u, v, 3, 16, 0, 2, 4, 6);
}
static inline uint32_t place_3rd(uint32_t u, uint32_t v)
{
    return place_bits(u, v, 1, 16, 2, 4, 6, 8);
}
static inline uint32_t rotate_left8(uint32_t v) { return v << 8 | v >> 24; }
static inline void or32(uint8_t *p, uint32_t v) { store32(p, load32(p) | v); }

/* The offset of row r's word for lane position t, where a lane has n bytes. */
static inline int lane_at(int r, int t, int n) { return (4 * (r & 7) + t) * n; }

/* ---- one block of one row into its tile ---- */

/* r: the row in the tile. File blocks of 32 have numbers 0..15 in the low nibbles and 16..31 in the
 * high ones: q and q >> 4 are the two halves of a lane's eight numbers. */
static void pack_q4_0(uint8_t *tile, const void *block, int r)
{
    const struct block_q4_0 *b = (const struct block_q4_0 *)block;
    for (int t = 0; t < 4; t++) {
        uint32_t q = load32(b->qs + 4 * t);
        store32(tile + lane_at(r, t, 8) + r / 8 * 4, place_4(q, q >> 4));
    }
    memcpy(tile + 256 + 2 * r, &b->d, 2);
}
static void pack_q4_1(uint8_t *tile, const void *block, int r)
{
    const struct block_q4_1 *b = (const struct block_q4_1 *)block;
    for (int t = 0; t < 4; t++) {
        uint32_t q = load32(b->qs + 4 * t);
        store32(tile + lane_at(r, t, 8) + r / 8 * 4, place_4(q, q >> 4));
    }
    memcpy(tile + 256 + 4 * r, &b->d, 4);
}
static void pack_iq4_nl(uint8_t *tile, const void *block, int r)
{
    const struct block_iq4_nl *b = (const struct block_iq4_nl *)block;
    for (int t = 0; t < 4; t++) {
        uint32_t q = load32(b->qs + 4 * t);
        store32(tile + lane_at(r, t, 8) + r / 8 * 4, place_iq4(q, q >> 4));
    }
    memcpy(tile + 256 + 2 * r, &b->d, 2);
}
static void pack_mxfp4(uint8_t *tile, const void *block, int r)
{
    const struct block_mxfp4 *b = (const struct block_mxfp4 *)block;
    for (int t = 0; t < 4; t++) {
        uint32_t q = load32(b->qs + 4 * t);
        store32(tile + lane_at(r, t, 8) + r / 8 * 4, place_e2m1(q, q >> 4));
    }
    tile[256 + r] = b->e;
}

/* Nibbles and fifth bits of Q5_0 and Q5_1. */
static void pack_fives(uint8_t *tile, const uint8_t *qs, const uint8_t *qh, int r)
{
    uint32_t h = load32(qh);
    for (int t = 0; t < 4; t++) {
        uint32_t q = load32(qs + 4 * t), u = h >> 4 * t, v = h >> (16 + 4 * t);
        store32(tile + lane_at(r, t, 8) + r / 8 * 4, place_4(q, q >> 4));
        tile[256 + lane_at(r, t, 2) + r / 8] =
            (uint8_t)((u & 1) | (v & 1) << 1 | (u & 4) | (v & 4) << 1 | (u & 2) << 3 |
                      (v & 2) << 4 | (u & 8) << 3 | (v & 8) << 4);
    }
}
static void pack_q5_0(uint8_t *tile, const void *block, int r)
{
    const struct block_q5_0 *b = (const struct block_q5_0 *)block;
    pack_fives(tile, b->qs, b->qh, r);
    memcpy(tile + 320 + 2 * r, &b->d, 2);
}
static void pack_q5_1(uint8_t *tile, const void *block, int r)
{
    const struct block_q5_1 *b = (const struct block_q5_1 *)block;
    pack_fives(tile, b->qs, b->qh, r);
    memcpy(tile + 320 + 4 * r, &b->d, 4);
}
/* Signed bytes become unsigned, + 128. */
static void pack_q8_0(uint8_t *tile, const void *block, int r)
{
    const struct block_q8_0 *b = (const struct block_q8_0 *)block;
    for (int t = 0; t < 4; t++) {
        uint8_t *p = tile + lane_at(r, t, 16) + r / 8 * 8;
        store32(p, load32((const uint8_t *)b->qs + 4 * t) ^ 0x80808080u);
        store32(p + 4, load32((const uint8_t *)b->qs + 16 + 4 * t) ^ 0x80808080u);
    }
    memcpy(tile + 512 + 2 * r, &b->d, 2);
}

/* Nibbles of groups 2j and 2j + 1 of Q4_K and Q5_K. */
static void pack_k_nibbles(uint8_t *tile, const uint8_t *qs, int r)
{
    for (int j = 0; j < 4; j++) {
        for (int t = 0; t < 4; t++) {
            uint32_t u = load32(qs + 32 * j + 4 * t), v = load32(qs + 32 * j + 16 + 4 * t);
            uint8_t *p = tile + 512 * j + lane_at(r, t, 16) + r / 8 * 4;
            store32(p, place_4(u, v));
            store32(p + 8, place_4(u >> 4, v >> 4));
        }
    }
}
/* d, dmin and the 6-bit scales (16 bytes) are copied as they are. */
static void pack_q4_k(uint8_t *tile, const void *block, int r)
{
    const struct block_q4_k *b = (const struct block_q4_k *)block;
    pack_k_nibbles(tile, b->qs, r);
    memcpy(tile + 2048 + 16 * r, b, 16);
}
/* Bit g of qh[l] is the fifth bit of number l of group g. */
static void pack_q5_k(uint8_t *tile, const void *block, int r)
{
    const struct block_q5_k *b = (const struct block_q5_k *)block;
    pack_k_nibbles(tile, b->qs, r);
    for (int g = 0; g < 8; g++) {
        for (int t = 0; t < 4; t++) {
            uint32_t v = place_5th(load32(b->qh + 4 * t) >> g, load32(b->qh + 16 + 4 * t) >> g)
                         << 2 * (g & 1);
            or32(tile + 2048 + lane_at(r, t, 16) + g / 4 * 8 + r / 8 * 4,
                 g & 2 ? rotate_left8(v) : v);
        }
    }
    memcpy(tile + 2560 + 16 * r, b, 16);
}
/* Four groups have 64 bytes of ql, nibbles of two groups in a byte, and 32 bytes of qh, two bits of
 * each group in a byte. */
static void pack_q6_k(uint8_t *tile, const void *block, int r)
{
    const struct block_q6_k *b = (const struct block_q6_k *)block;
    for (int g = 0; g < 8; g++) {
        const uint8_t *low = b->ql + g / 4 * 64 + g % 2 * 32, *high = b->qh + g / 4 * 32;
        int shift = g % 4 / 2 * 4;
        for (int t = 0; t < 4; t++) {
            uint32_t u = load32(low + 4 * t) >> shift, v = load32(low + 16 + 4 * t) >> shift;
            store32(tile + 512 * (g / 2) + lane_at(r, t, 16) + g % 2 * 8 + r / 8 * 4,
                    place_4(u, v));
            u = load32(high + 4 * t) >> 2 * (g & 3);
            v = load32(high + 16 + 4 * t) >> 2 * (g & 3);
            v = place_6th(u, v);
            or32(tile + 2048 + 512 * (g / 4) + lane_at(r, t, 16) + g / 2 % 2 * 8 + r / 8 * 4,
                 g & 1 ? rotate_left8(v) : v);
        }
    }
    memcpy(tile + 3072 + 16 * r, b->scales, 16);
    memcpy(tile + 3328 + 2 * r, &b->d, 2);
}

/* The two low bits of Q2_K and Q3_K. */
static void pack_twos(uint8_t *tile, const uint8_t *qs, int r)
{
    for (int g = 0; g < 8; g++) {
        const uint8_t *low = qs + g / 4 * 32;
        int shift = 2 * (g & 3);
        for (int t = 0; t < 4; t++) {
            uint32_t v = place_2(load32(low + 4 * t) >> shift, load32(low + 16 + 4 * t) >> shift)
                         << 8 * (g & 1);
            or32(tile + 512 * (g / 4) + lane_at(r, t, 16) + g / 2 % 2 * 8 + r / 8 * 4, v);
        }
    }
}
static void pack_q2_k(uint8_t *tile, const void *block, int r)
{
    const struct block_q2_k *b = (const struct block_q2_k *)block;
    pack_twos(tile, b->qs, r);
    memcpy(tile + 1024 + 16 * r, b->scales, 16);
    memcpy(tile + 1280 + 4 * r, &b->d, 4);
}
static void pack_q3_k(uint8_t *tile, const void *block, int r)
{
    const struct block_q3_k *b = (const struct block_q3_k *)block;
    pack_twos(tile, b->qs, r);
    for (int g = 0; g < 8; g++) {
        for (int t = 0; t < 4; t++) {
            uint32_t v =
                place_3rd(load32(b->hmask + 4 * t) >> g, load32(b->hmask + 16 + 4 * t) >> g)
                << (g & 1);
            or32(tile + 1024 + lane_at(r, t, 16) + g / 4 * 8 + r / 8 * 4,
                 g & 2 ? rotate_left8(v) : v);
        }
    }
    memcpy(tile + 1536 + 12 * r, b->scales, 12);
    memcpy(tile + 1728 + 2 * r, &b->d, 2);
}
static void pack_iq4_xs(uint8_t *tile, const void *block, int r)
{
    const struct block_iq4_xs *b = (const struct block_iq4_xs *)block;
    for (int g = 0; g < 8; g++) {
        for (int t = 0; t < 4; t++) {
            uint32_t q = load32(b->qs + 16 * g + 4 * t);
            store32(tile + 512 * (g / 2) + lane_at(r, t, 16) + g % 2 * 8 + r / 8 * 4,
                    place_iq4(q, q >> 4));
        }
    }
    memcpy(tile + 2048 + 8 * r, b, 8);
}

typedef void (*pack_fn)(uint8_t *tile, const void *block, int r);

/* NULL: a plain type, or one that is decoded to F16. */
static pack_fn pack_of(enum dtype t)
{
    switch (t) {
    case DT_Q4_0: return pack_q4_0;
    case DT_Q4_1: return pack_q4_1;
    case DT_Q5_0: return pack_q5_0;
    case DT_Q5_1: return pack_q5_1;
    case DT_Q8_0: return pack_q8_0;
    case DT_IQ4_NL: return pack_iq4_nl;
    case DT_MXFP4: return pack_mxfp4;
    case DT_Q2_K: return pack_q2_k;
    case DT_Q3_K: return pack_q3_k;
    case DT_Q4_K: return pack_q4_k;
    case DT_Q5_K: return pack_q5_k;
    case DT_Q6_K: return pack_q6_k;
    case DT_IQ4_XS: return pack_iq4_xs;
    default: return NULL;
    }
}

/* ---- rows ---- */

/* A tile is built in a local array, because its bits are OR-ed together, and then copied. */
static void pack_tiles(const struct weight *w, const uint8_t *src, int rows, uint8_t *dst)
{
    struct layout l = layout_of(w->type);
    pack_fn pack = pack_of(w->type);
    size_t block = (size_t)l.bytes / TILE_ROWS;
    int n_blocks = w->cols / l.cols;
    for (int r0 = 0; r0 < rows; r0 += TILE_ROWS) {
        int n = rows - r0 < TILE_ROWS ? rows - r0 : TILE_ROWS;
        for (int kb = 0; kb < n_blocks; kb++, dst += l.bytes) {
            uint8_t tile[16 * 256];
            memset(tile, 0, (size_t)l.bytes);
            for (int r = 0; r < n; r++)
                pack(tile, src + ((size_t)(r0 + r) * (size_t)n_blocks + (size_t)kb) * block, r);
            memcpy(dst, tile, (size_t)l.bytes);
        }
    }
}

/* Types without a layout of their own become F16, up to 1,024 numbers (a multiple of the block) at
 * a time. */
static void pack_decoded(enum dtype t, const uint8_t *src, int cols, uint16_t *dst)
{
    const struct dtype_info *info = dtype_info(t);
    float f[1024];
    int step = 1024 / info->block * info->block;
    for (int c = 0; c < cols; c += step) {
        int n = cols - c < step ? cols - c : step;
        quant_decode(t, src + (size_t)(c / info->block) * (size_t)info->bytes, f, n);
        for (int i = 0; i < n; i++)
            dst[c + i] = f32_to_f16(f[i] > 65504.f ? 65504.f : f[i] < -65504.f ? -65504.f : f[i]);
    }
}

/* Plain rows are copied and padded; other types are packed or decoded. */
void cu_pack_rows(const struct weight *w, const void *src, int r0, int r1, void *const dst[4])
{
    const uint8_t *from = (const uint8_t *)src;
    uint8_t *to = (uint8_t *)dst[0];
    uint64_t row = 0;
    if (w->type == DT_GROUPED) {
        cu_pack_group(w, from, r1 - r0, to);
        return;
    }
    if (layout_of(w->type).cols) {
        pack_tiles(w, from, r1 - r0, to);
        return;
    }
    dtype_row_bytes(w->type, (uint64_t)w->cols, &row);
    size_t step = plain_row_bytes(w->type, w->cols);
    size_t used = (size_t)w->cols * (layout_type(w->type) == DT_F32 ? 4 : 2);
    for (int r = r0; r < r1; r++, from += row, to += step) {
        if (layout_type(w->type) == w->type) memcpy(to, from, used);
        else pack_decoded(w->type, from, w->cols, (uint16_t *)to);
        memset(to + used, 0, step - used);
    }
}
