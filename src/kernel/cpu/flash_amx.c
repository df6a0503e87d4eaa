/* flash_amx.c - a piece of attention (flash.h) on AMX tiles of bf16, with AVX-512 for the softmax.
 *
 * Every F32 operand is split_bf16 into two bf16 parts, x = hi + lo, 16 mantissa bits together. A
 * product is hi hi + lo hi + hi lo, with a relative error of about 1e-5. Keys and values of types
 * that bf16 represents exactly have no lo part. A tile has 16 rows of 64 bytes, 1 KiB:
 *
 *     left    16 query rows x 32 elements
 *     right   32 elements x 16 columns, two consecutive elements of a column side by side
 *     sums    16 rows x 16 columns of F32
 *
 * Sums are accumulated in F32 by the tile unit, 32 elements per step in ascending order. */
#include "kernel/cpu/flash_rows.h"
#include "kernel/cpu/gemm.h"

#define TILE 1024
#define MANY 32 /* with fewer query rows, converting keys to tiles costs more than it saves */

/* 32 elements in two parts: hi is rounded to bf16, lo is the remainder. The 16 elements of a and
 * the 16 of b interleave_halves. Side by side elements are only summed, so the order is free as
 * long as the left and the right operand have the same. */
struct parts {
    __m512i hi, lo;
};

INLINE __m512i upper_halves(__m512i u)
{
    return _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000));
}
INLINE __m512i round_hi(vf x)
{
    return upper_halves(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)));
}
INLINE __m512i interleave_halves(__m512i a, __m512i b)
{
    return _mm512_or_si512(_mm512_srli_epi32(a, 16), upper_halves(b));
}

INLINE struct parts split_bf16(vf a, vf b)
{
    __m512i ha = round_hi(a), hb = round_hi(b);
    vf la = a - _mm512_castsi512_ps(ha), lb = b - _mm512_castsi512_ps(hb);
    return (struct parts){ _mm512_or_si512(_mm512_srli_epi32(ha, 16), hb),
                           interleave_halves(_mm512_castps_si512(la), _mm512_castps_si512(lb)) };
}

/* bf16 represents this type exactly: there is no lo part. */
INLINE bool is_exact(const enum dtype t) { return t == DT_BF16 || t == DT_F8_E4M3; }

/* Left tiles of the query rows: [row / 16][dim / 32][hi, lo]. */
static char *query_tile(const struct work *w, int r0)
{
    return (char *)w->extra + (size_t)r0 / 16 * (size_t)w->ldq / 32 * 2 * TILE;
}

/* 16 query rows and one tile of keys in progress. */
struct pass {
    int r0, c0, c1; /* c0, c1: range of visible keys, multiples of 32 */
    struct visible see;
    float *s;    /* [16][KEYS] scores */
    char *tiles; /* left tiles of attention weights: [key / 32][hi, lo] */
    float alpha[16];
};

/* Pads the query rows to a multiple of 16 and converts them to left tiles. */
static void split_queries(struct work *w)
{
    int padded = (w->rows + 15) & ~15;

    for (int r = w->rows; r < padded; r++) { /* padding rows with no visible key */
        memset(w->q + (size_t)r * w->ldq, 0, (size_t)w->ldq * sizeof *w->q);
        memset(w->o + (size_t)r * w->ldo, 0, (size_t)w->ldo * sizeof *w->o);
        memset(w->sum + (size_t)r * W, 0, W * sizeof *w->sum);
        w->max[r] = -INFINITY;
        w->pos[r] = -1;
        w->end[r] = 0;
    }
    for (int r = 0; r < padded; r++) {
        char *to = query_tile(w, r) + r % 16 * 64;
        for (int d = 0; d < w->ldq; d += 32, to += 2 * TILE) {
            struct parts p = split_bf16(v_load(w->q + (size_t)r * w->ldq + d),
                                        v_load(w->q + (size_t)r * w->ldq + d + 16));
            _mm512_store_si512(to, p.hi);
            _mm512_store_si512(to + TILE, p.lo);
        }
    }
}

INLINE vf load_padded(const enum dtype t, const char *row, int d, int dim)
{
    if (d + W <= dim) return kv_load(t, row, d);
    return d < dim ? kv_load_n(t, row, d, dim - d) : v_set(0);
}

static void store_transposed(char *to, __m512i *rows)
{
    vf r[16];

    UNROLL
    for (int i = 0; i < 16; i++) r[i] = _mm512_castsi512_ps(rows[i]);
    v_transpose(r);
    UNROLL
    for (int i = 0; i < 16; i++) v_store((float *)to + 16 * i, r[i]);
}

/* Right tiles of keys: [key / 16][dim / 32][hi, lo]. Pairs of elements are transposed as 32-bit
 * units. */
INLINE void split_keys(const enum dtype t, const struct work *w, int key, int n)
{
    char *to = (char *)w->kt;

    for (int x = 0; x < n; x += 16) {
        const char *block = kvrows_at(&w->j->k, w->blocks, w->p->head, key + x);
        for (int d = 0; d < w->ldq; d += 32, to += 2 * TILE) {
            __m512i hi[16], lo[16];
            for (int i = 0; i < 16; i++) {
                const char *row = block + (size_t)i * w->j->k.row_bytes;
                struct parts p = split_bf16(load_padded(t, row, d, w->j->k.dim),
                                            load_padded(t, row, d + 16, w->j->k.dim));
                hi[i] = p.hi, lo[i] = p.lo;
            }
            store_transposed(to, hi);
            if (!is_exact(t)) store_transposed(to + TILE, lo);
        }
    }
}

/* Right tiles of values: [key / 32][dim / 16][hi, lo], with keys x and x + 16 side by side, as in
 * the attention weights. Keys from n on are 0. */
INLINE void split_values(const enum dtype t, const struct work *w, int key, int n)
{
    for (int x = 0; x < n; x = x % 32 == 15 ? x + 17 : x + 1) {
        const char *a = kvrows_at(&w->j->v, w->blocks, w->p->head, key + x), *b = NULL;
        char *to = (char *)w->v + (size_t)x / 32 * (size_t)w->ldo / 16 * 2 * TILE + x % 32 * 64;
        if (x + 16 < n) b = kvrows_at(&w->j->v, w->blocks, w->p->head, key + x + 16);
        for (int d = 0; d < w->ldo; d += 16, to += 2 * TILE) {
            vf va = load_padded(t, a, d, w->j->v.dim), vb = v_set(0);
            if (b) vb = load_padded(t, b, d, w->j->v.dim);
            struct parts p = split_bf16(va, vb);
            _mm512_store_si512(to, p.hi);
            if (!is_exact(t)) _mm512_store_si512(to + TILE, p.lo);
        }
    }
    for (int x = n; x % 32 && x % 32 < 16; x++) {
        char *to = (char *)w->v + (size_t)x / 32 * (size_t)w->ldo / 16 * 2 * TILE + x % 32 * 64;
        for (int d = 0; d < w->ldo; d += 16, to += 2 * TILE) {
            _mm512_store_si512(to, _mm512_setzero_si512());
            _mm512_store_si512(to + TILE, _mm512_setzero_si512());
        }
    }
}

/* The switch makes the type of the cache a compile-time constant. */
static void split_tile(const struct work *w, int key, int n)
{
    switch (w->j->k.type) {
    case DT_F32: split_keys(DT_F32, w, key, n), split_values(DT_F32, w, key, n); break;
    case DT_F16: split_keys(DT_F16, w, key, n), split_values(DT_F16, w, key, n); break;
    case DT_BF16: split_keys(DT_BF16, w, key, n), split_values(DT_BF16, w, key, n); break;
    case DT_F8_E4M3: split_keys(DT_F8_E4M3, w, key, n), split_values(DT_F8_E4M3, w, key, n); break;
    default: split_keys(DT_Q8_0, w, key, n), split_values(DT_Q8_0, w, key, n);
    }
}

/* Left tile `a` times right tiles of two or four neighbouring columns. Four independent sums hide
 * the latency of the tile unit. */
#define PRODUCTS(four, a, right, column)            \
    do {                                            \
        _tile_loadd(6, right, 64);                  \
        _tile_dpbf16ps(0, a, 6);                    \
        _tile_loadd(7, (right) + (column), 64);     \
        _tile_dpbf16ps(1, a, 7);                    \
        if (!(four)) break;                         \
        _tile_loadd(6, (right) + 2 * (column), 64); \
        _tile_dpbf16ps(2, a, 6);                    \
        _tile_loadd(7, (right) + 3 * (column), 64); \
        _tile_dpbf16ps(3, a, 7);                    \
    } while (0)

/* Tiles 0 to 3 (or 0 and 1) += left [steps tiles] times four (or two) columns of right tiles. step:
 * bytes from 32 elements to the next; column: bytes from one column to the next; exact: the right
 * operand has no lo part. */
INLINE void multiply_tiles(const bool four, const char *left, const char *right, size_t step,
                           size_t column, int steps, bool exact)
{
    for (int i = 0; i < steps; i++, left += 2 * TILE, right += step) {
        _tile_loadd(4, left, 64);
        _tile_loadd(5, left + TILE, 64);
        PRODUCTS(four, 4, right, column);
        PRODUCTS(four, 5, right, column);
        if (!exact) PRODUCTS(four, 4, right + TILE, column);
    }
}

static void multiply_scores(const struct work *w, const struct pass *g)
{
    const char *q = query_tile(w, g->r0);
    size_t column = (size_t)w->ldq / 32 * 2 * TILE, ld = KEYS * sizeof *g->s;
    const char *k = (const char *)w->kt + (size_t)g->c0 / 16 * column;
    bool exact = is_exact(w->j->k.type);
    float *s = g->s + g->c0;

    _tile_zero(0);
    _tile_zero(1);
    if (g->c1 - g->c0 == KEYS) {
        _tile_zero(2);
        _tile_zero(3);
        multiply_tiles(true, q, k, 2 * TILE, column, w->ldq / 32, exact);
        _tile_stored(2, s + 32, ld);
        _tile_stored(3, s + 48, ld);
    } else {
        multiply_tiles(false, q, k, 2 * TILE, column, w->ldq / 32, exact);
    }
    _tile_stored(0, s, ld);
    _tile_stored(1, s + 16, ld);
}

/* Scores to attention weights, as left tiles; rescales the outputs so far. */
static void exp_scores(struct work *w, struct pass *g, int key)
{
    float top[16];

    w->s = g->s;
    update_maxima(w, &g->see, g->r0, 16, key, g->c0, g->c1, top, g->alpha);
    for (int i = 0; i < 16; i++) {
        float *s = g->s + i * KEYS, *sum = w->sum + (size_t)(g->r0 + i) * W;
        vf m = v_set(top[i]), add = v_load(sum) * v_set(g->alpha[i]);
        for (int c = g->c0; c < g->c1; c += 32) {
            vf a = v_exp2(v_load(s + c) - m), b = v_exp2(v_load(s + c + 16) - m);
            char *to = g->tiles + c / 32 * 2 * TILE + i * 64;
            struct parts p = split_bf16(a, b);
            add += a + b;
            _mm512_store_si512(to, p.hi);
            _mm512_store_si512(to + TILE, p.lo);
        }
        v_store(sum, add);
    }
    for (int i = 0; i < 16; i++) {
        float *o = w->o + (size_t)(g->r0 + i) * w->ldo;
        if (g->alpha[i] == 1) continue;
        for (int d = 0; d < w->ldo; d += W) v_store(o + d, v_load(o + d) * v_set(g->alpha[i]));
    }
}

/* o += attention weights times values. */
static void add_values(const struct work *w, const struct pass *g)
{
    const char *p = g->tiles + g->c0 / 32 * 2 * TILE;
    size_t step = (size_t)w->ldo / 16 * 2 * TILE, ld = (size_t)w->ldo * sizeof(float);
    const char *v = (const char *)w->v + (size_t)g->c0 / 32 * step;
    int steps = (g->c1 - g->c0) / 32;
    bool exact = is_exact(w->j->v.type);

    for (int d = 0; d < w->ldo; d += 64, v += 8 * TILE) {
        float *o = w->o + (size_t)g->r0 * w->ldo + d;
        _tile_loadd(0, o, ld);
        _tile_loadd(1, o + 16, ld);
        if (w->ldo - d >= 64) {
            _tile_loadd(2, o + 32, ld);
            _tile_loadd(3, o + 48, ld);
            multiply_tiles(true, p, v, step, 2 * TILE, steps, exact);
            _tile_stored(2, o + 32, ld);
            _tile_stored(3, o + 48, ld);
        } else {
            multiply_tiles(false, p, v, step, 2 * TILE, steps, exact);
        }
        _tile_stored(0, o, ld);
        _tile_stored(1, o + 16, ld);
    }
}

/* All query rows and the n keys from `key` on, two groups of 16 rows interleaved: a tile that is
 * loaded right after it was stored would wait for the stores. */
static void run_tile(struct work *w, struct pass pass[2], int key, int n)
{
    for (int r = 0; r < w->rows;) {
        int n_pass = 0;
        for (; n_pass < 2 && r < w->rows; r += 16) {
            struct pass *g = &pass[n_pass];
            find_visible(w, &g->see, r, 16, key, n);
            if (g->see.first >= g->see.end) continue;
            g->r0 = r;
            g->c0 = g->see.first & ~31;
            g->c1 = (g->see.end + 31) & ~31;
            multiply_scores(w, g);
            n_pass++;
        }
        for (int i = 0; i < n_pass; i++) exp_scores(w, &pass[i], key);
        for (int i = 0; i < n_pass; i++) add_values(w, &pass[i]);
    }
}

/* Few query rows (decode) are left to AVX-512. */
static void run_piece(const struct attend_job *j, const struct flash_piece *p, float *scratch)
{
    struct work w = { .j = j, .p = p };
    struct pass pass[2];

    if (p->n_tokens * j->group < MANY) {
        flash_avx512.run(j, p, scratch);
        return;
    }
    gemm_amx()->enter();
    work_init(&w, scratch);
    load_queries(&w);
    split_queries(&w);
    for (int i = 0; i < 2; i++) {
        pass[i].s = w.extra + flash_pad(w.rows) * (size_t)w.ldq + (size_t)i * 2 * 16 * KEYS;
        pass[i].tiles = (char *)(pass[i].s + 16 * KEYS);
    }
    for (int key = p->key0; key < p->key1; key += KEYS) {
        int n = p->key1 - key < KEYS ? p->key1 - key : KEYS;
        split_tile(&w, key, n);
        run_tile(&w, pass, key, n);
    }
    store_rows(&w);
}

const struct flash flash_amx = { "amx", run_piece };
