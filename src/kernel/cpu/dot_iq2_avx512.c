/* dot_iq2_avx512.c - AVX-512 gemv for IQ2_XXS with the lattice in registers.
 *
 * The 256 lattice points take three values per coordinate, so a point is a 16-bit word of 8 x 2
 * bits, and all of them fit eight registers: 32 indices are looked up by vpermi2w, without gathers.
 * The words are then expanded to bytes in the order of form 2 of the activations. */
#include "kernel/quantblocks.h"
#include "kernel/cpu/dot_avx512.h"
#include "kernel/iq_grid.h"

#include <pthread.h>

static struct {
    /* Coordinate j in bits 2j and 2j + 1: 0, 1, 2 for 8, 25, 43. */
    uint16_t point[256] __attribute__((aligned(64)));
    uint8_t signs[128] __attribute__((aligned(64)));
    /* Permutations into register k: the sign byte of each element; the point of each 8 elements. */
    uint8_t signs_at[4][64] __attribute__((aligned(64)));
    uint16_t point_at[4][32] __attribute__((aligned(64)));
} tab; /* built once */

/* The lattice and sign tables, and the permutations from the block's order to that of form 2. */
static void make_tables(void)
{
    const struct iq_grid *g = iq_grid();

    for (int i = 0; i < 256; i++)
        for (int j = 0; j < 8; j++)
            tab.point[i] |= (uint16_t)((g->iq2_xxs[i][j] > 8) + (g->iq2_xxs[i][j] > 25)) << 2 * j;
    for (int i = 0; i < 128; i++) tab.signs[i] = g->signs[i];
    for (int k = 0; k < 4; k++)
        for (int e = 0; e < 8; e++) { /* 8 elements each: groups k, k + 4, k + 8, k + 12 */
            int word = 2 * (k + e / 2 * 4) + e % 2; /* which of the block's 32 points */
            tab.point_at[k][4 * e] = (uint16_t)word;
            for (int j = 0; j < 8; j++)
                tab.signs_at[k][8 * e + j] = (uint8_t)(8 * (word / 4) + word % 4);
        }
}

/* The tables in registers. */
struct tables {
    __m512i point[8], signs[2];
};

/* An unpacked super-block: magnitudes, sign masks, scales. */
struct w256 {
    __m512i q[4];
    __mmask64 neg[4];
    __m512 d; /* scale per 16 columns */
};

/* 32 table entries of 256: four look-ups of 64 entries each, selected by bits 6 and 7 of the
 * index. */
INLINE __m512i lookup_points(__m512i at, const struct tables *t)
{
    __mmask32 bit6 = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
    __mmask32 bit7 = _mm512_test_epi16_mask(at, _mm512_set1_epi16(128));
    __m512i a = _mm512_permutex2var_epi16(t->point[0], at, t->point[1]);
    __m512i b = _mm512_permutex2var_epi16(t->point[2], at, t->point[3]);
    __m512i c = _mm512_permutex2var_epi16(t->point[4], at, t->point[5]);
    __m512i d = _mm512_permutex2var_epi16(t->point[6], at, t->point[7]);
    a = _mm512_mask_mov_epi16(a, bit6, b);
    c = _mm512_mask_mov_epi16(c, bit6, d);
    return _mm512_mask_mov_epi16(a, bit7, c);
}

/* Unpacks a super-block: 32 indices at once, 4 x 7 sign bits per 32 columns by vpmultishiftqb,
 * then each point to eight bytes by its 2-bit coordinates. */
INLINE struct w256 load_iq2_xxs(const struct block_iq2_xxs *b, const struct tables *t)
{
    /* In each 64 bits, bytes 0 to 3 are indices; from bit 32 on 4 x 7 sign bits and a scale. */
    const __m512i index = _mm512_setr_epi64(
        0x0003000200010000, 0x000b000a00090008, 0x0013001200110010, 0x001b001a00190018,
        0x0023002200210020, 0x002b002a00290028, 0x0033003200310030, 0x003b003a00390038);
    const __m512i sevens = _mm512_set1_epi64(0x352e2720); /* bits 32, 39, 46, 53 */
    const __m512i twos = _mm512_set1_epi64(0x0e0c0a0806040200);
    const __m512i bit = _mm512_set1_epi64((long long)0x8040201008040201u);
    const __m512i levels = _mm512_set1_epi32(0x082b1908); /* 8, 25, 43 by the lowest two bits */
    float d = _cvtsh_ss(b->d);
    __m512i v = _mm512_loadu_si512(b->qs);
    __m512i points = lookup_points(_mm512_maskz_permutexvar_epi8(0x5555555555555555u, index, v), t);
    __m512i signs =
        _mm512_permutex2var_epi8(t->signs[0], _mm512_multishift_epi64_epi8(sevens, v), t->signs[1]);
    __m512i scale = _mm512_shuffle_epi32(_mm512_srli_epi64(v, 60), 0xa0);
    struct w256 w;

    UNROLL
    for (int k = 0; k < 4; k++) {
        __m512i p = _mm512_permutexvar_epi16(_mm512_load_si512(tab.point_at[k]), points);
        w.q[k] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(twos, p), levels);
        w.neg[k] = _mm512_test_epi8_mask(
            _mm512_permutexvar_epi8(_mm512_load_si512(tab.signs_at[k]), signs), bit);
    }
    w.d = _mm512_fmadd_ps(_mm512_cvtepi32_ps(scale), _mm512_set1_ps(d * 0.25f),
                          _mm512_set1_ps(d * 0.125f));
    return w;
}

/* acc += 256 columns; signs are applied to the activations. */
INLINE __m512 dot_iq2(__m512 acc, const struct w256 *w, const struct x256 *x)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i zero = _mm512_setzero_si512();
    __m512 p = _mm512_mul_ps(w->d, _mm512_permutexvar_ps(twice, _mm512_load_ps(x->d)));

    UNROLL
    for (int k = 0; k < 4; k += 2) { /* two registers share the same four scales */
        const __m512i at =
            _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12),
                             _mm512_set1_epi32(k));
        __m512i a = _mm512_load_si512(x->q[k]), b = _mm512_load_si512(x->q[k + 1]);
        a = _mm512_mask_sub_epi8(a, w->neg[k], zero, a);
        b = _mm512_mask_sub_epi8(b, w->neg[k + 1], zero, b);
        __m512i y = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, w->q[k], a), w->q[k + 1], b);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(y), _mm512_permutexvar_ps(at, p), acc);
    }
    return acc;
}

/* R rows x T tokens. */
INLINE void tile_iq2(const struct gemv *g, int r0, const int R, int t0, const int T,
                     const struct tables *tables)
{
    const struct block_iq2_xxs *w[2];
    const struct x256 *x[8];
    __m512 acc[16];

    UNROLL
    for (int r = 0; r < R; r++) w[r] = (const void *)gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = _mm512_setzero_ps();
    for (int c = 0; c < g->cols / QK_K; c++) {
        UNROLL
        for (int r = 0; r < R; r++) {
            struct w256 v = load_iq2_xxs(w[r] + c, tables);
            prefetch_weights((const char *)(w[r] + c), (int)sizeof *w[r]);
            UNROLL
            for (int t = 0; t < T; t++) acc[r * T + t] = dot_iq2(acc[r * T + t], &v, x[t] + c);
        }
    }
    gemv_store(g, r0, R, t0, T, acc);
}

/* The tables are loaded into registers once per call. */
void gemv_iq2_xxs_avx512(const struct gemv *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct tables t;

    pthread_once(&once, make_tables);
    for (int i = 0; i < 8; i++) t.point[i] = _mm512_load_si512(tab.point + 32 * i);
    for (int i = 0; i < 2; i++) t.signs[i] = _mm512_load_si512(tab.signs + 64 * i);
    GEMV_TILES(tile_iq2, g, &t, 2, 1, 1, 1);
}
