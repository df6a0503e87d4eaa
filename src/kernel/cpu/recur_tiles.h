/* recur_tiles.h - the products of recur_chunk.h on AMX tiles of bf16. Included by recur_chunk.h only.
 *
 * Every operand is split into two bf16 parts, x = hi + lo, 16 bits of mantissa together; a product is
 * hi lo + hi hi + lo hi, with a relative error of about 1e-5. A tile has 16 rows of 64 bytes:
 *     left    16 rows x 32 elements
 *     right   32 elements x 16 columns; a row has elements i and i + 16 of each column
 * Side by side elements are only summed, so their order is free if both operands have the same. */
#include "kernel/cpu/tiles_amx.h"

#define PAD 32
#define IN_PLACE SIZE_MAX /* an operand is read once, when its tiles are made */
#define TILE_BYTES 1024

/* Tiles of a left operand: [row / 16][k / 32][hi, lo]; of a right one: [column / 16][k / 32][hi, lo]. */
struct operand {
    _Alignas(64) char tiles[BLOCK * MOST_KEYS * 2 * 2];
};

INLINE __m512i round_to_bf16(vf x)
{
    __m512i u = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000));
}
INLINE __m512i join_halves(__m512i low, __m512i high)
{
    return _mm512_or_si512(_mm512_srli_epi32(low, 16), high);
}

/* Row of a tile with a in the lower and b in the upper halves; the row of lo is one tile behind. */
INLINE void store_parts(char *row, vf a, vf b)
{
    __m512i ha = round_to_bf16(a), hb = round_to_bf16(b);
    vf la = a - _mm512_castsi512_ps(ha), lb = b - _mm512_castsi512_ps(hb);
    _mm512_store_si512(row, join_halves(ha, hb));
    _mm512_store_si512(row + TILE_BYTES, join_halves(round_to_bf16(la), round_to_bf16(lb)));
}

/* m rows of k numbers, as the left side; k rows of PANEL numbers, as the right side. */
static void make_left(struct operand *o, const float *p, size_t ld, int m, int k)
{
    for (int r = 0; r < m; r++) {
        char *to = o->tiles + (size_t)(r / 16 * (k / 32)) * 2 * TILE_BYTES + r % 16 * 64;
        for (int i = 0; i < k; i += 32, to += 2 * TILE_BYTES)
            store_parts(to, v_load(p + (size_t)r * ld + i), v_load(p + (size_t)r * ld + i + 16));
    }
}
static void make_right(struct operand *o, const float *p, size_t ld, int k)
{
    char *to = o->tiles;

    for (int col = 0; col < PANEL; col += 16)
        for (int i = 0; i < k; i += 32, to += 2 * TILE_BYTES)
            for (int j = 0; j < 16; j++)
                store_parts(to + 64 * j, v_load(p + (size_t)(i + j) * ld + col),
                            v_load(p + (size_t)(i + j + 16) * ld + col));
}

/* Adds the products of two left and two right tiles to the four sums. */
#define MULTIPLY_FOUR()          \
    do {                         \
        _tile_dpbf16ps(0, 4, 6); \
        _tile_dpbf16ps(1, 4, 7); \
        _tile_dpbf16ps(2, 5, 6); \
        _tile_dpbf16ps(3, 5, 7); \
    } while (0)

/* sums = 32 rows of a, from `row` on, times b. */
static void multiply_32(float *sums, size_t ld, const struct operand *a, const struct operand *b,
                        int row, int k)
{
    size_t column = (size_t)(k / 32) * 2 * TILE_BYTES;
    const char *left = a->tiles + (size_t)(row / 16) * column, *right = b->tiles;

    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < k; i += 32, left += 2 * TILE_BYTES, right += 2 * TILE_BYTES) {
        _tile_loadd(4, left, 64);
        _tile_loadd(5, left + column, 64);
        _tile_loadd(6, right + TILE_BYTES, 64);
        _tile_loadd(7, right + column + TILE_BYTES, 64);
        MULTIPLY_FOUR();
        _tile_loadd(6, right, 64);
        _tile_loadd(7, right + column, 64);
        MULTIPLY_FOUR();
        _tile_loadd(4, left + TILE_BYTES, 64);
        _tile_loadd(5, left + column + TILE_BYTES, 64);
        MULTIPLY_FOUR();
    }
    _tile_stored(0, sums, ld * sizeof *sums);
    _tile_stored(1, sums + 16, ld * sizeof *sums);
    _tile_stored(2, sums + 16 * ld, ld * sizeof *sums);
    _tile_stored(3, sums + 16 * ld + 16, ld * sizeof *sums);
}

/* c = keep c + scale[row] a b: one panel of columns. */
static void multiply(const struct product *p, const struct operand *a, const struct operand *b,
                     int m, int k)
{
    _Alignas(64) float sums[32 * PANEL];

    tiles_enter(TILES_BF16);
    for (int row = 0; row < m; row += 32) {
        multiply_32(sums, PANEL, a, b, row, k);
        for (int r = 0; r < 32; r++) {
            float *c = p->c + (size_t)(row + r) * p->ldc;
            vf scale = v_set(p->scale ? p->scale[row + r] : 1), keep = v_set(p->keep);
            UNROLL
            for (int i = 0; i < PANEL; i += W) {
                vf s = v_load(sums + r * PANEL + i) * scale;
                v_store(c + i, p->keep == 0 ? s : v_fma(keep, v_load(c + i), s));
            }
        }
    }
}

/* The same with a lower triangular a of m x m. */
static void multiply_lower(const struct product *p, const struct operand *a,
                           const struct operand *b, int m)
{
    multiply(p, a, b, m, m);
}

/* c = a b with rows of BLOCK numbers, of which the lower triangle is needed. */
static void multiply_to_lower(float *c, const struct operand *a, const struct operand *b, int m,
                              int k)
{
    multiply(&(struct product){ c, BLOCK, NULL, 0 }, a, b, m, k);
}
