/* flash_impl.h - a piece of attention (flash.h) in the vectors of simd.h. Included by flash_avx2.c,
 * flash_avx512.c and flash_neon.c, each of which defines FLASH, the name of its table.
 *
 * With many query rows (prefill) a tile of keys is converted to F32 and transposed once; scores and
 * values are then small matrix products on registers, PANEL rows at a time; flash_i16.h does the
 * same in 16-bit integers where that is exact enough. With few rows (decode)
 * that would cost more than it saves: keys and values are read where they are in the cache, once
 * for all query heads of the group. */
#include "kernel/cpu/flash_rows.h"

#define PANEL FLASH_PANEL
#define FEW 8 /* query rows that are multiplied with keys read from the cache together */
#define QUADS (W / 4)
#define QUAD_ROWS \
    3 /* from this many rows on, keys are multiplied 4 elements of W / 4 keys at a time */
#define DIRECT 12 /* up to this many rows, transposing keys costs more than it saves */

/* c [mr][nv vectors] = alpha * c + a [mr][k] b [k][nv vectors]; alpha NULL: without c. */
INLINE void multiply_panel(const int mr, const int nv, const float *a, int lda, const float *b,
                           int ldb, float *c, int ldc, const float *alpha, int k)
{
    vf sum[PANEL][NV];

    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int n = 0; n < nv; n++) {
            sum[i][n] = v_set(0);
            if (alpha) sum[i][n] = v_load(c + i * ldc + n * W) * v_set(alpha[i]);
        }
    }
    for (int x = 0; x < k; x++, b += ldb) {
        vf row[NV];
        UNROLL
        for (int n = 0; n < nv; n++) row[n] = v_load(b + n * W);
        UNROLL
        for (int i = 0; i < mr; i++) {
            vf ai = v_set(a[i * lda + x]);
            UNROLL
            for (int n = 0; n < nv; n++) sum[i][n] = v_fma(ai, row[n], sum[i][n]);
        }
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int n = 0; n < nv; n++) v_store(c + i * ldc + n * W, sum[i][n]);
    }
}

/* All columns: NV vectors at a time, then single vectors. */
INLINE void multiply_columns(const int mr, int n_vecs, const float *a, int lda, const float *b,
                             int ldb, float *c, int ldc, const float *alpha, int k)
{
    int n = 0;

    for (; n + NV <= n_vecs; n += NV)
        multiply_panel(mr, NV, a, lda, b + n * W, ldb, c + n * W, ldc, alpha, k);
    for (; n < n_vecs; n++) multiply_panel(mr, 1, a, lda, b + n * W, ldb, c + n * W, ldc, alpha, k);
}

/* The switches make the number of rows and the type compile-time constants of each call. */
#define BY_ROWS(mr, f, ...)           \
    switch (mr) {                     \
    case 1: f(1, __VA_ARGS__); break; \
    case 2: f(2, __VA_ARGS__); break; \
    case 3: f(3, __VA_ARGS__); break; \
    case 4: f(4, __VA_ARGS__); break; \
    case 5: f(5, __VA_ARGS__); break; \
    default: f(6, __VA_ARGS__);       \
    }
#define BY_FEW(mr, f, ...)               \
    switch (mr) {                        \
    case 7: f(7, __VA_ARGS__); break;    \
    case 8: f(8, __VA_ARGS__); break;    \
    default: BY_ROWS(mr, f, __VA_ARGS__) \
    }
#define BY_TYPE(t, f, ...)                              \
    switch (t) {                                        \
    case DT_F32: f(DT_F32, __VA_ARGS__); break;         \
    case DT_F16: f(DT_F16, __VA_ARGS__); break;         \
    case DT_BF16: f(DT_BF16, __VA_ARGS__); break;       \
    case DT_F8_E4M3: f(DT_F8_E4M3, __VA_ARGS__); break; \
    default: f(DT_Q8_0, __VA_ARGS__);                   \
    }

#ifdef HAS_DOT16
#include "kernel/cpu/flash_i16.h"
#endif

/* s = q k^T for up to PANEL rows and the converted tile of keys. */
static void multiply_scores(int mr, int n_vecs, const float *q, int ldq, const float *kt, float *s,
                            int dim)
{
    BY_ROWS(mr, multiply_columns, n_vecs, q, ldq, kt, KEYS, s, KEYS, NULL, dim)
}

/* o = alpha * o + p v for the converted tile of values. */
static void multiply_values(int mr, int n_vecs, const float *p, const float *v, int ldo, float *o,
                            const float *alpha, int keys)
{
    BY_ROWS(mr, multiply_columns, n_vecs, p, KEYS, v, ldo, o, ldo, alpha, keys);
}

/* Keys [key, key + n) to kt [dim][KEYS], transposed; n is rounded up to W. */
INLINE void transpose_keys(const enum dtype t, const struct work *w, int key, int n)
{
    int dim = w->j->k.dim;

    for (int x = 0; x < n; x += W) {
        const char *row = kvrows_at(&w->j->k, w->blocks, w->p->head, key + x);
        for (int d = 0; d < dim; d += W) {
            int left = dim - d;
            vf r[W];
            UNROLL
            for (int i = 0; i < W; i++) {
                const char *from = row + (size_t)i * w->j->k.row_bytes;
                if (left >= W) r[i] = kv_load(t, from, d);
                else r[i] = kv_load_n(t, from, d, left);
            }
            v_transpose(r);
            UNROLL
            for (int i = 0; i < W; i++) v_store(w->kt + (size_t)(d + i) * KEYS + x, r[i]);
        }
    }
}

/* Values [key, key + n) to v [KEYS][ldo], padded with zeros to whole vectors. */
INLINE void load_values(const enum dtype t, const struct work *w, int key, int n)
{
    int dim = w->j->v.dim;

    for (int x = 0; x < n; x++) {
        const char *row = kvrows_at(&w->j->v, w->blocks, w->p->head, key + x);
        float *to = w->v + (size_t)x * w->ldo;
        int d = 0;
        for (; d + W <= dim; d += W) v_store(to + d, kv_load(t, row, d));
        if (d < dim) v_store(to + d, kv_load_n(t, row, d, dim - d));
    }
}

/* Converts a tile of KEYS keys and values to F32. */
static void load_tile(const struct work *w, int key, int n)
{
    BY_TYPE(w->j->k.type, transpose_keys, w, key, n);
    BY_TYPE(w->j->v.type, load_values, w, key, n);
}

/* Into the L2 cache. Into L1 a core has too few requests in flight at once, and each would take the
 * place of a line that is still in use: half the bandwidth, measured. */
INLINE void prefetch_far(const char *p) { __builtin_prefetch(p, 0, 2); }

/* part [mr][W] from column i on: products of nk keys with mr query rows, not yet summed over the
 * lanes. mr x nk independent sums hide the latency of multiplication. */
INLINE void dot_keys(const int mr, const int nk, const enum dtype t, const struct work *w,
                     const char *k, const char *next, const float *q, vf part[][W], int i)
{
    const size_t row = w->j->k.row_bytes;
    int dim = w->j->k.dim;
    vf sum[FEW][4], y[4];

    UNROLL
    for (int r = 0; r < mr; r++) {
        UNROLL
        for (int x = 0; x < nk; x++) sum[r][x] = v_set(0);
    }
    for (size_t b = 0; b < nk * row; b += 64) prefetch_far(next + b);
    for (int d = 0; d < dim; d += W) {
        int left = dim - d;
        UNROLL
        for (int x = 0; x < nk; x++) {
            if (left >= W) y[x] = kv_load(t, k + x * row, d);
            else y[x] = kv_load_n(t, k + x * row, d, left);
        }
        UNROLL
        for (int r = 0; r < mr; r++) {
            vf a = v_load(q + r * w->ldq + d);
            UNROLL
            for (int x = 0; x < nk; x++) sum[r][x] = v_fma(y[x], a, sum[r][x]);
        }
    }
    UNROLL
    for (int r = 0; r < mr; r++) {
        UNROLL
        for (int x = 0; x < nk; x++) part[r][i + x] = sum[r][x];
    }
}

/* W elements from d on of QUADS rows, 4 rows apart: vector i has elements d + 4 i to d + 4 i + 3 of
 * each row. */
INLINE void load_quads(const enum dtype t, vf r[QUADS], const char *k, size_t row, int d, int dim)
{
#ifdef HAS_QUADS_F16
    if (t == DT_F16 && dim - d >= W) {
        v_load_quads_f16(r, k + 2 * d, 4 * row);
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < QUADS; i++) {
        const char *from = k + (size_t)(4 * i) * row;
        if (dim - d >= W) r[i] = kv_load(t, from, d);
        else r[i] = kv_load_n(t, from, d, dim - d);
    }
    v_quads(r);
}

/* Products of W keys with mr query rows, nk of 4 sums at a time. Sum x belongs to keys x, x + 4, ...:
 * 4 lanes each, so that few additions across lanes are left. */
INLINE void dot_quads(const int mr, const int nk, const enum dtype t, const struct work *w,
                      const char *k, const char *next, const float *q, vf part[][4])
{
    const size_t row = w->j->k.row_bytes;
    int dim = w->j->k.dim;

    for (int i = 0; i < 4; i += nk, k += nk * row, next += nk * QUADS * row) {
        vf sum[FEW][4], y[4][QUADS];
        UNROLL
        for (int r = 0; r < mr; r++) {
            UNROLL
            for (int x = 0; x < nk; x++) sum[r][x] = v_set(0);
        }
        for (size_t b = 0; b < nk * QUADS * row; b += 64) prefetch_far(next + b);
        for (int d = 0; d < dim; d += W) {
            UNROLL
            for (int x = 0; x < nk; x++) load_quads(t, y[x], k + x * row, row, d, dim);
            UNROLL
            for (int n = 0; n < QUADS; n++) {
                UNROLL
                for (int r = 0; r < mr; r++) {
                    vf a = v_set_quad(q + r * w->ldq + d + 4 * n);
                    UNROLL
                    for (int x = 0; x < nk; x++) sum[r][x] = v_fma(y[x][n], a, sum[r][x]);
                }
            }
        }
        UNROLL
        for (int r = 0; r < mr; r++) {
            UNROLL
            for (int x = 0; x < nk; x++) part[r][i + x] = sum[r][x];
        }
    }
}

/* Scores s [mr][KV_BLOCK] of one block of keys, read from the cache. */
INLINE void dot_block(const int mr, const enum dtype t, const struct work *w, const char *k,
                      const char *next, const float *q, float *s)
{
    const int most = PANEL * NV / mr, nk = most >= 4 ? 4 : most >= 2 ? 2 : 1;
    const size_t row = w->j->k.row_bytes;

    for (int x = 0; x < KV_BLOCK; x += W, k += W * row, next += W * row) {
        vf part[FEW][W];
        if (mr >= QUAD_ROWS) {
            vf quads[FEW][4];
            dot_quads(mr, nk, t, w, k, next, q, quads);
            UNROLL
            for (int r = 0; r < mr; r++)
                v_store(s + r * KEYS + x,
                        v_quad_sums(quads[r][0], quads[r][1], quads[r][2], quads[r][3]));
            continue;
        }
        for (int i = 0; i < W; i += nk)
            dot_keys(mr, nk, t, w, k + i * row, next + i * row, q, part, i);
        UNROLL
        for (int r = 0; r < mr; r++) v_store(s + r * KEYS + x, v_sums(part[r]));
    }
}

/* o [mr][nv vectors] = alpha * o + p [mr][n] times n rows of values, read from the cache. `last`:
 * elements in the last vector. */
INLINE void add_values(const int mr, const enum dtype t, const int nv, const struct work *w,
                       const char *v, const char *next, int d, int last, const float *p, int n,
                       float *o, const float *alpha)
{
    vf sum[FEW][NV];

    UNROLL
    for (int r = 0; r < mr; r++) {
        UNROLL
        for (int i = 0; i < nv; i++)
            sum[r][i] = v_load(o + r * w->ldo + d + i * W) * v_set(alpha[r]);
    }
    const size_t bytes = w->j->v.row_bytes;
    for (int x = 0; x < n; x++, v += bytes, next += bytes) {
        vf row[NV];
        if (d == 0)
            for (size_t b = 0; b < bytes; b += 64) prefetch_far(next + b);
        UNROLL
        for (int i = 0; i < nv; i++) {
            if (i + 1 < nv || last == W) row[i] = kv_load(t, v, d + i * W);
            else row[i] = kv_load_n(t, v, d + i * W, last);
        }
        UNROLL
        for (int r = 0; r < mr; r++) {
            vf pr = v_set(p[r * KEYS + x]);
            UNROLL
            for (int i = 0; i < nv; i++) sum[r][i] = v_fma(pr, row[i], sum[r][i]);
        }
    }
    UNROLL
    for (int r = 0; r < mr; r++) {
        UNROLL
        for (int i = 0; i < nv; i++) v_store(o + r * w->ldo + d + i * W, sum[r][i]);
    }
}

/* All dimensions of one block of values. */
INLINE void add_block(const int mr, const enum dtype t, const struct work *w, const char *v,
                      const char *next, const float *p, int n, float *o, const float *alpha)
{
    const int nv = mr <= PANEL ? NV : NV / 2;
    int dim = w->j->v.dim, d = 0;

    for (; d + nv * W <= dim; d += nv * W) add_values(mr, t, nv, w, v, next, d, W, p, n, o, alpha);
    for (; d + W <= dim; d += W) add_values(mr, t, 1, w, v, next, d, W, p, n, o, alpha);
    if (d < dim) add_values(mr, t, 1, w, v, next, d, dim - d, p, n, o, alpha);
}

#define DOT(t, mr, ...) BY_FEW(mr, dot_block, t, __VA_ARGS__)
#define ADD(t, mr, ...) BY_FEW(mr, add_block, t, __VA_ARGS__)

/* The rows to prefetch while those at pos are used: the rows a tile further, or the same ones where
 * the piece ends. A head's rows of a block are too short for the hardware prefetcher. */
static const char *find_ahead(const struct work *w, const struct kvrows *k, int pos,
                              const char *rows)
{
    if (pos + KEYS >= w->p->key1) return rows;
    return kvrows_at(k, w->blocks, w->p->head, pos + KEYS);
}

static void scores_direct(const struct work *w, int mr, int pos, const float *q, float *s)
{
    const char *k = kvrows_at(&w->j->k, w->blocks, w->p->head, pos);
    BY_TYPE(w->j->k.type, DOT, mr, w, k, find_ahead(w, &w->j->k, pos, k), q, s)
}

static void values_direct(const struct work *w, int mr, int pos, const float *p, int n, float *o,
                          const float *alpha)
{
    const char *v = kvrows_at(&w->j->v, w->blocks, w->p->head, pos);
    BY_TYPE(w->j->v.type, ADD, mr, w, v, find_ahead(w, &w->j->v, pos, v), p, n, o, alpha)
}

/* Scores [c0, c1) to attention weights 2^(score - maximum), in place; updates the running sums. */
static void exp_scores(const struct work *w, const struct visible *see, int r0, int mr, int key,
                       int c0, int c1, float *alpha)
{
    float top[16];

    update_maxima(w, see, r0, mr, key, c0, c1, top, alpha);
    for (int i = 0; i < mr; i++) {
        float *s = w->s + i * KEYS, *sum = w->sum + (size_t)(r0 + i) * W;
        vf m = v_set(top[i]), add = v_load(sum) * v_set(alpha[i]);
        for (int c = c0; c < c1; c += W) {
            vf p = v_exp2(v_load(s + c) - m);
            add += p;
            v_store(s + c, p);
        }
        v_store(sum, add);
    }
}

/* One panel of query rows and one tile of keys, converted in kt and v. */
static void run_panel(const struct work *w, int r0, int mr, int key, int n)
{
    float alpha[16], *o = w->o + (size_t)r0 * w->ldo;
    struct visible see;

    find_visible(w, &see, r0, mr, key, n);
    if (see.first >= see.end) return;
    int c0 = see.first / W * W, c1 = (see.end + W - 1) / W * W;
    multiply_scores(mr, (c1 - c0) / W, w->q + (size_t)r0 * w->ldq, w->ldq, w->kt + c0, w->s + c0,
                    w->j->k.dim);
    exp_scores(w, &see, r0, mr, key, c0, c1, alpha);
    multiply_values(mr, (w->j->v.dim + W - 1) / W, w->s + see.first,
                    w->v + (size_t)see.first * w->ldo, w->ldo, o, alpha, see.end - see.first);
}

/* One panel of query rows and one tile of keys, read from the cache. Prefetches the next tile. */
static void run_panel_direct(const struct work *w, int r0, int mr, int key, int n)
{
    float alpha[16], *o = w->o + (size_t)r0 * w->ldo;
    struct visible see;

    find_visible(w, &see, r0, mr, key, n);
    if (see.first >= see.end) return;
    int c0 = see.first / KV_BLOCK * KV_BLOCK, c1 = (see.end + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
    for (int c = c0; c < c1; c += KV_BLOCK)
        scores_direct(w, mr, key + c, w->q + (size_t)r0 * w->ldq, w->s + c);
    exp_scores(w, &see, r0, mr, key, c0, c1, alpha);
    for (int c = see.first, end; c < see.end; c = end) {
        end = (c / KV_BLOCK + 1) * KV_BLOCK < see.end ? (c / KV_BLOCK + 1) * KV_BLOCK : see.end;
        values_direct(w, mr, key + c, w->s + c, end - c, o, alpha);
        for (int i = 0; i < mr; i++) alpha[i] = 1;
    }
}

/* Query rows that are multiplied together. With 16 registers, 7 or 8 rows leave one sum for each, too
 * few for the latency of multiplication: two panels are faster where converting keys twice is cheap. */
static int choose_panel(const struct work *w)
{
    bool cheap = w->j->k.type != DT_Q8_0 && w->j->k.type != DT_F8_E4M3;

    return w->rows > DIRECT || (W == 8 && cheap) ? PANEL : FEW;
}

/* FLASH_KEYS keys at a time for all panels of query rows. */
static void run_piece(const struct attend_job *j, const struct flash_piece *p, float *scratch)
{
    struct work w = { .j = j, .p = p };
    int panels, panel;

    work_init(&w, scratch);
    load_queries(&w);
#ifdef HAS_DOT16
    if (w.rows > DIRECT && j->k.type != DT_F32 && j->k.dim <= WORDS_DIM) {
        run_words(&w);
        store_rows(&w);
        return;
    }
#endif
    panel = choose_panel(&w);
    panels = (w.rows + panel - 1) / panel;
    for (int key = p->key0; key < p->key1; key += KEYS) {
        int n = p->key1 - key < KEYS ? p->key1 - key : KEYS;
        if (w.rows > DIRECT) load_tile(&w, key, n);
        for (int i = 0; i < panels; i++) { /* of nearly equal height */
            int r0 = w.rows * i / panels, mr = w.rows * (i + 1) / panels - r0;
            if (w.rows > DIRECT) run_panel(&w, r0, mr, key, n);
            else run_panel_direct(&w, r0, mr, key, n);
        }
    }
    store_rows(&w);
}

const struct flash FLASH = { SIMD_NAME, run_piece };
