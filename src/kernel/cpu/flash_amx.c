/* Attention on tiles of bf16 (AMX). Every number goes in as two parts, x = hi + lo, sixteen bits of
 * it in all; products take hi hi + lo hi + hi lo, which is right to some 10^-5. Keys, values and
 * weights that bf16 holds exactly have no lo. A tile is 16 rows of 64 bytes, 1 KiB:
 *
 *     left    16 query rows x 32 numbers
 *     right   32 numbers x 16 columns, pairs of numbers beside each other
 *     sums    16 rows x 16 columns of F32 */
#include "kernel/cpu/flash_rows.h"
#include "kernel/cpu/gemm.h"

#define TILE 1024
#define MANY 24                  /* fewer query rows: bringing keys into tiles costs more than it saves */

/* Two parts of 32 numbers: hi is rounded, lo is what it lacks. */
struct parts {
    __m512i hi, lo;
};

INLINE vf hi_of(vf x)
{
    __m512i u = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000)));
}

INLINE __m512i bf16_of(vf a, vf b)
{
    __m512bh h = _mm512_cvtne2ps_pbh(b, a);
    __m512i u;
    memcpy(&u, &h, sizeof u);
    return u;
}

INLINE struct parts split(vf a, vf b)
{
    vf ha = hi_of(a), hb = hi_of(b);
    return (struct parts){ bf16_of(ha, hb), bf16_of(a - ha, b - hb) };
}

/* Left tiles of the query rows: [row / 16][dim / 32][hi, lo]. */
static char *query_tile(const struct work *w, int r0) { return (char *)w->extra + (size_t)r0 / 16 * (size_t)w->ldq / 32 * 2 * TILE; }
static char *weight_tile(const struct work *w) { return (char *)(w->extra + flash_pad(w->rows) * (size_t)w->ldq); }

static void split_queries(struct work *w)
{
    int padded = (w->rows + 15) & ~15;

    for (int r = w->rows; r < padded; r++) {             /* rows that see nothing */
        memset(w->q + (size_t)r * w->ldq, 0, (size_t)w->ldq * sizeof *w->q);
        memset(w->o + (size_t)r * w->ldo, 0, (size_t)w->ldo * sizeof *w->o);
        memset(w->sum + (size_t)r * W, 0, W * sizeof *w->sum);
        w->max[r] = -INFINITY;
        w->pos[r] = -1;
    }
    for (int r = 0; r < padded; r++) {
        char *to = query_tile(w, r) + r % 16 * 64;
        for (int d = 0; d < w->ldq; d += 32, to += 2 * TILE) {
            struct parts p = split(v_load(w->q + (size_t)r * w->ldq + d), v_load(w->q + (size_t)r * w->ldq + d + 16));
            _mm512_store_si512(to, p.hi);
            _mm512_store_si512(to + TILE, p.lo);
        }
    }
}

INLINE vf load_some(const enum dtype t, const char *row, int d, int dim)
{
    if (d + W <= dim) return kv_load(t, row, d);
    return d < dim ? kv_load_n(t, row, d, dim - d) : v_set(0);
}

static void store_turned(char *to, __m512i *rows)
{
    vf r[16];

    UNROLL
    for (int i = 0; i < 16; i++) r[i] = _mm512_castsi512_ps(rows[i]);
    v_transpose(r);
    UNROLL
    for (int i = 0; i < 16; i++) v_store((float *)to + 16 * i, r[i]);
}

/* Right tiles of keys: [key / 16][dim / 32][hi, lo]; a pair of dimensions is turned as one number. */
INLINE void split_keys(const enum dtype t, const struct work *w, int key, int n)
{
    char *to = (char *)w->kt;

    for (int x = 0; x < n; x += 16) {
        const char *block = kvrows_at(&w->j->k, w->blocks, w->p->head, key + x);
        for (int d = 0; d < w->ldq; d += 32, to += 2 * TILE) {
            __m512i hi[16], lo[16];
            for (int i = 0; i < 16; i++) {
                const char *row = block + (size_t)i * w->j->k.row_bytes;
                struct parts p = split(load_some(t, row, d, w->j->k.dim), load_some(t, row, d + 16, w->j->k.dim));
                hi[i] = p.hi, lo[i] = p.lo;
            }
            store_turned(to, hi);
            if (t != DT_BF16) store_turned(to + TILE, lo);
        }
    }
}

/* Right tiles of values: [key / 32][dim / 16][hi, lo]; keys from n on are 0. */
INLINE void split_values(const enum dtype t, const struct work *w, int key, int n)
{
    const __m512i pairs = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i even = _mm512_or_si512(pairs, _mm512_slli_epi32(_mm512_add_epi32(pairs, _mm512_set1_epi32(16)), 16));

    for (int x = 0; x < n; x += 2) {
        const char *a = kvrows_at(&w->j->v, w->blocks, w->p->head, key + x), *b = a + w->j->v.row_bytes;
        char *to = (char *)w->v + (size_t)x / 32 * (size_t)w->ldo / 16 * 2 * TILE + x % 32 / 2 * 64;
        for (int d = 0; d < w->ldo; d += 16, to += 2 * TILE) {
            vf va = load_some(t, a, d, w->j->v.dim), vb = v_set(0);
            if (x + 1 < n) vb = load_some(t, b, d, w->j->v.dim);
            struct parts p = split(va, vb);
            _mm512_store_si512(to, _mm512_permutexvar_epi16(even, p.hi));
            if (t != DT_BF16) _mm512_store_si512(to + TILE, _mm512_permutexvar_epi16(even, p.lo));
        }
    }
    for (int x = (n + 1) & ~1; x % 32; x += 2) {
        char *to = (char *)w->v + (size_t)x / 32 * (size_t)w->ldo / 16 * 2 * TILE + x % 32 / 2 * 64;
        for (int d = 0; d < w->ldo; d += 16, to += 2 * TILE) {
            _mm512_store_si512(to, _mm512_setzero_si512());
            _mm512_store_si512(to + TILE, _mm512_setzero_si512());
        }
    }
}

static void split_tile(const struct work *w, int key, int n)
{
    switch (w->j->k.type) {
    case DT_F32: split_keys(DT_F32, w, key, n), split_values(DT_F32, w, key, n); break;
    case DT_F16: split_keys(DT_F16, w, key, n), split_values(DT_F16, w, key, n); break;
    case DT_BF16: split_keys(DT_BF16, w, key, n), split_values(DT_BF16, w, key, n); break;
    default: split_keys(DT_Q8_0, w, key, n), split_values(DT_Q8_0, w, key, n);
    }
}

/* One column of right tiles, hi then lo, with left hi in 4 and lo in 5. */
#define COLUMN(sum, right, exact)                                                                          \
    _tile_loadd(6, right, 64);                                                                             \
    _tile_dpbf16ps(sum, 4, 6);                                                                             \
    _tile_dpbf16ps(sum, 5, 6);                                                                             \
    if (!(exact)) {                                                                                        \
        _tile_loadd(7, (right) + TILE, 64);                                                                \
        _tile_dpbf16ps(sum, 4, 7);                                                                         \
    }

/* sums[0..3] += left [steps tiles] times four columns of right tiles: `step` bytes from one 32 numbers
 * to the next, `column` from one column to the next. Two columns: the other two are left out. */
INLINE void tiles_product(const bool four, const char *left, const char *right, size_t step, size_t column, int steps,
                          bool exact)
{
    for (int i = 0; i < steps; i++, left += 2 * TILE, right += step) {
        _tile_loadd(4, left, 64);
        _tile_loadd(5, left + TILE, 64);
        COLUMN(0, right, exact)
        COLUMN(1, right + column, exact)
        if (!four) continue;
        COLUMN(2, right + 2 * column, exact)
        COLUMN(3, right + 3 * column, exact)
    }
}

/* Scores of 16 query rows and keys [c0, c1), multiples of 32, of the tile. */
static void scores(const struct work *w, int r0, int c0, int c1)
{
    const char *q = query_tile(w, r0);
    size_t column = (size_t)w->ldq / 32 * 2 * TILE;
    bool exact = w->j->k.type == DT_BF16;

    for (int c = c0; c < c1; c += 64) {
        const char *k = (const char *)w->kt + (size_t)c / 16 * column;
        bool four = c1 - c >= 64;
        float *s = w->s + c;
        _tile_zero(0);
        _tile_zero(1);
        if (four) {
            _tile_zero(2);
            _tile_zero(3);
            tiles_product(true, q, k, 2 * TILE, column, w->ldq / 32, exact);
            _tile_stored(2, s + 32, KEYS * sizeof *s);
            _tile_stored(3, s + 48, KEYS * sizeof *s);
        } else {
            tiles_product(false, q, k, 2 * TILE, column, w->ldq / 32, exact);
        }
        _tile_stored(0, s, KEYS * sizeof *s);
        _tile_stored(1, s + 16, KEYS * sizeof *s);
    }
}

/* o += weights of keys [c0, c1) times their values. */
static void weigh(const struct work *w, int r0, int c0, int c1)
{
    const char *p = weight_tile(w) + c0 / 32 * 2 * TILE;
    size_t step = (size_t)w->ldo / 16 * 2 * TILE, ldo = (size_t)w->ldo * sizeof(float);
    const char *v = (const char *)w->v + (size_t)c0 / 32 * step;
    bool exact = w->j->v.type == DT_BF16;

    for (int d = 0; d < w->ldo; d += 64, v += 8 * TILE) {
        float *o = w->o + (size_t)r0 * w->ldo + d;
        bool four = w->ldo - d >= 64;
        _tile_loadd(0, o, ldo);
        _tile_loadd(1, o + 16, ldo);
        if (four) {
            _tile_loadd(2, o + 32, ldo);
            _tile_loadd(3, o + 48, ldo);
            tiles_product(true, p, v, step, 2 * TILE, (c1 - c0) / 32, exact);
            _tile_stored(2, o + 32, ldo);
            _tile_stored(3, o + 48, ldo);
        } else {
            tiles_product(false, p, v, step, 2 * TILE, (c1 - c0) / 32, exact);
        }
        _tile_stored(0, o, ldo);
        _tile_stored(1, o + 16, ldo);
    }
}

/* Scores [c0, c1) of 16 rows to weights in left tiles. */
static void soften(const struct work *w, int r0, int c0, int c1, const float *top, const float *alpha)
{
    char *tiles = weight_tile(w);

    for (int i = 0; i < 16; i++) {
        float *s = w->s + i * KEYS, *sum = w->sum + (size_t)(r0 + i) * W;
        vf m = v_set(top[i]), add = v_load(sum) * v_set(alpha[i]);
        for (int c = c0; c < c1; c += 32) {
            vf a = v_exp2(v_load(s + c) - m), b = v_exp2(v_load(s + c + 16) - m);
            struct parts p = split(a, b);
            add += a + b;
            _mm512_store_si512(tiles + c / 32 * 2 * TILE + i * 64, p.hi);
            _mm512_store_si512(tiles + c / 32 * 2 * TILE + TILE + i * 64, p.lo);
        }
        v_store(sum, add);
    }
}

static void shrink(const struct work *w, int r0, const float *alpha)
{
    for (int i = 0; i < 16; i++) {
        float *o = w->o + (size_t)(r0 + i) * w->ldo;
        if (alpha[i] == 1) continue;
        for (int d = 0; d < w->ldo; d += W) v_store(o + d, v_load(o + d) * v_set(alpha[i]));
    }
}

static void rows_run(const struct work *w, int r0, int key, int n)
{
    float top[16], alpha[16];
    struct sight see;

    look(w, &see, r0, 16, key, n);
    if (see.first >= see.end) return;
    int c0 = see.first & ~31, c1 = (see.end + 31) & ~31;
    scores(w, r0, c0, c1);
    raise_tops(w, &see, r0, 16, key, c0, c1, top, alpha);
    soften(w, r0, c0, c1, top, alpha);
    shrink(w, r0, alpha);
    weigh(w, r0, c0, c1);
}

static void run(const struct attend_job *j, const struct flash_piece *p, float *scratch)
{
    struct work w = { .j = j, .p = p };

    if (p->n_tokens * j->group < MANY) {
        flash_avx512.run(j, p, scratch);
        return;
    }
    gemm_amx()->enter();
    work_init(&w, scratch);
    load_queries(&w);
    split_queries(&w);
    for (int key = p->key0; key < p->key1; key += KEYS) {
        int n = p->key1 - key < KEYS ? p->key1 - key : KEYS;
        split_tile(&w, key, n);
        for (int r = 0; r < w.rows; r += 16) rows_run(&w, r, key, n);
    }
    store_rows(&w);
}

const struct flash flash_amx = { "amx", run };
