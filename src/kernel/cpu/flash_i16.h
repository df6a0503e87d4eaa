/* flash_i16.h - attention of many query rows in products of 16-bit integers, for instruction sets
 * that multiply and add pairs of them (HAS_DOT16): twice as many products per instruction as in F32.
 * Included by flash_impl.h only.
 *
 * Queries, keys and values are rounded to 16 bits with a scale per row (one for two values). For
 * heads of up to WORDS_DIM elements the error is at most that of rounding keys and values to F16;
 * larger heads and an F32 cache are multiplied in F32. Two neighbours along the sum share a 32-bit
 * lane:
 *
 *     kp [dim / 2][KEYS]    elements 2 i and 2 i + 1 of each key
 *     vp [KEYS / 2][ldo]    keys 2 i and 2 i + 1 of each element
 *
 * Sums of 32 bits cannot overflow: a product of rows is at most the product of their norms, each
 * below NORM; attention weights of a tile sum to at most MASS after scaling, and values are at most
 * MOST. The scale of a value is multiplied into its weight before that is rounded. */
#define MOST 32766.0f
#define NORM 46000.0f /* NORM^2 < 2^31, with room for rounding */
#define MASS 65000.0f /* MASS * MOST < 2^31, with room for rounding */
#define TINY 1e-30f
#define WORDS_DIM 256

/* Scratch memory of this file, in w->extra, kt and v. */
struct words {
    int16_t *q, *p;      /* [rows][ldq] queries, [16][KEYS] attention weights */
    float *qs, *ks, *vs; /* scales: [rows] of queries, [KEYS] of keys, [KEYS] of values */
    int32_t *kp, *vp;    /* pairs of keys and of values */
    float *rows;         /* [ldq][W] keys in F32, transposed */
    float vs_max;        /* largest of vs */
};

static void words_init(struct words *x, const struct work *w)
{
    float *at = w->extra;
    size_t r = flash_pad(w->rows);

    x->q = (int16_t *)at, at += r * (size_t)w->ldq / 2;
    x->p = (int16_t *)at, at += 16 * KEYS / 2;
    x->qs = at, at += r;
    x->ks = at, at += KEYS;
    x->vs = at;
    x->kp = (int32_t *)w->kt;
    x->rows = w->kt + (size_t)w->ldq / 2 * KEYS;
    x->vp = (int32_t *)w->v;
}

/* The factor by which rows of these norms and largest elements are multiplied. */
INLINE vf fit_words(vf norm2, vf most)
{
    vf by_norm = v_set(NORM) / v_sqrt(norm2 + v_set(TINY));
    return v_min(by_norm, v_set(MOST) / (most + v_set(TINY)));
}

static void round_queries(struct words *x, const struct work *w)
{
    for (int r = 0; r < w->rows; r++) {
        const float *q = w->q + (size_t)r * w->ldq;
        vf norm2 = v_set(0), most = v_set(0);
        for (int d = 0; d < w->ldq; d += W) {
            vf y = v_load(q + d);
            norm2 = v_fma(y, y, norm2);
            most = v_max(most, v_abs(y));
        }
        vf fit = fit_words(v_set(v_sum(norm2)), v_set(v_hmax(most)));
        v_store_n(x->qs + r, v_set(1) / fit, 1);
        for (int d = 0; d < w->ldq; d += W)
            v_store_i16(x->q + (size_t)r * w->ldq + d, v_load(q + d) * fit);
    }
}

/* Keys [key, key + W) to F32, transposed to rows [dim][W]. Returns the scale of each key. */
INLINE vf transpose_rows(const enum dtype t, const struct work *w, const struct words *x, int key)
{
    const char *from = kvrows_at(&w->j->k, w->blocks, w->p->head, key);
    int dim = w->j->k.dim;
    vf norm2 = v_set(0), most = v_set(0);

    for (int d = 0; d < dim; d += W) {
        int left = dim - d;
        vf r[W];
        UNROLL
        for (int i = 0; i < W; i++) {
            const char *row = from + (size_t)i * w->j->k.row_bytes;
            if (left >= W) r[i] = kv_load(t, row, d);
            else r[i] = kv_load_n(t, row, d, left);
        }
        v_transpose(r);
        UNROLL
        for (int i = 0; i < W; i++) {
            norm2 = v_fma(r[i], r[i], norm2);
            most = v_max(most, v_abs(r[i]));
            v_store(x->rows + (size_t)(d + i) * W, r[i]);
        }
    }
    return fit_words(norm2, most);
}

/* Keys [key, key + n), n rounded up to W, to kp. */
INLINE void pair_keys(const enum dtype t, const struct work *w, const struct words *x, int key,
                      int n)
{
    int dim = (w->j->k.dim + W - 1) / W * W;

    for (int c = 0; c < n; c += W) {
        vf fit = transpose_rows(t, w, x, key + c);
        v_store(x->ks + c, v_set(1) / fit);
        for (int d = 0; d < dim; d += 2) {
            const float *r = x->rows + (size_t)d * W;
            v_store_pairs(x->kp + (size_t)d / 2 * KEYS + c, v_load(r) * fit, v_load(r + W) * fit);
        }
    }
}

INLINE vf load_some(const enum dtype t, const char *row, int d, int dim)
{
    return dim - d >= W ? kv_load(t, row, d) : kv_load_n(t, row, d, dim - d);
}

/* Values [key, key + n) to vp; both of a pair have one scale. The partner of an odd last one is 0. */
INLINE void pair_values(const enum dtype t, const struct work *w, struct words *x, int key, int n)
{
    int dim = w->j->v.dim;

    memset(x->vs, 0, KEYS * sizeof *x->vs);
    x->vs_max = 0;
    for (int c = 0; c < n; c += 2) {
        const char *a = kvrows_at(&w->j->v, w->blocks, w->p->head, key + c);
        const char *b = c + 1 < n ? a + w->j->v.row_bytes : a;
        int32_t *to = x->vp + (size_t)c / 2 * w->ldo;
        vf m0 = v_set(TINY), m1 = v_set(TINY);
        for (int d = 0; d < dim; d += W) {
            m0 = v_max(m0, v_abs(load_some(t, a, d, dim)));
            m1 = v_max(m1, v_abs(load_some(t, b, d, dim)));
        }
        float most = v_hmax(v_max(m0, m1));
        vf fit = v_set(MOST / most);
        for (int d = 0; d < dim; d += W)
            v_store_pairs(to + d, load_some(t, a, d, dim) * fit, load_some(t, b, d, dim) * fit);
        x->vs[c] = most / MOST;
        if (c + 1 < n) x->vs[c + 1] = most / MOST;
        x->vs_max = most / MOST > x->vs_max ? most / MOST : x->vs_max;
    }
}

static void load_words(const struct work *w, struct words *x, int key, int n)
{
    BY_TYPE(w->j->k.type, pair_keys, w, x, key, n);
    BY_TYPE(w->j->v.type, pair_values, w, x, key, n);
}

/* sum [mr][nv] = a [mr][k pairs] times b [k pairs][nv vectors]. */
INLINE void multiply_pairs(const int mr, const int nv, const int16_t *a, int lda, const int32_t *b,
                           int ldb, int k, vi sum[PANEL][NV])
{
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int n = 0; n < nv; n++) sum[i][n] = vi_set(0);
    }
    for (int x = 0; x < k; x++, b += ldb) {
        vi row[NV];
        UNROLL
        for (int n = 0; n < nv; n++) row[n] = vi_load(b + n * W);
        UNROLL
        for (int i = 0; i < mr; i++) {
            int32_t pair;
            memcpy(&pair, a + i * lda + 2 * x, sizeof pair);
            vi ai = vi_set(pair);
            UNROLL
            for (int n = 0; n < nv; n++) sum[i][n] = v_dot16(sum[i][n], ai, row[n]);
        }
    }
}

/* s [mr][nv vectors] = q k^T, in F32. */
INLINE void score_panel(const int mr, const int nv, const struct work *w, const struct words *x,
                        int r0, int at, int c)
{
    float *s = w->s + at * KEYS + c;
    vi sum[PANEL][NV];

    multiply_pairs(mr, nv, x->q + (size_t)(r0 + at) * w->ldq, w->ldq, x->kp + c, KEYS,
                   (w->j->k.dim + 1) / 2, sum);
    UNROLL
    for (int i = 0; i < mr; i++) {
        vf qs = v_set(x->qs[r0 + at + i]);
        UNROLL
        for (int n = 0; n < nv; n++)
            v_store(s + i * KEYS + n * W, v_from_int(sum[i][n]) * (qs * v_load(x->ks + c + n * W)));
    }
}

INLINE void score_columns(const int mr, const struct work *w, const struct words *x, int r0, int at,
                          int c0, int c1)
{
    int c = c0;

    for (; c + NV * W <= c1; c += NV * W) score_panel(mr, NV, w, x, r0, at, c);
    for (; c < c1; c += W) score_panel(mr, 1, w, x, r0, at, c);
}

/* o [mr][nv vectors] = alpha o + unit p v. */
INLINE void value_panel(const int mr, const int nv, const struct work *w, const struct words *x,
                        int r0, int at, int d, int c, int pairs, const float *alpha,
                        const float *unit)
{
    float *o = w->o + (size_t)(r0 + at) * w->ldo + d;
    vi sum[PANEL][NV];

    multiply_pairs(mr, nv, x->p + at * KEYS + c, KEYS, x->vp + (size_t)c / 2 * w->ldo + d, w->ldo,
                   pairs, sum);
    UNROLL
    for (int i = 0; i < mr; i++) {
        vf a = v_set(alpha[at + i]), u = v_set(unit[at + i]);
        UNROLL
        for (int n = 0; n < nv; n++) {
            float *to = o + i * w->ldo + n * W;
            v_store(to, v_fma(v_from_int(sum[i][n]), u, v_load(to) * a));
        }
    }
}

INLINE void value_columns(const int mr, const struct work *w, const struct words *x, int r0, int at,
                          int c, int pairs, const float *alpha, const float *unit)
{
    int dim = w->j->v.dim, d = 0;

    for (; d + NV * W <= dim; d += NV * W)
        value_panel(mr, NV, w, x, r0, at, d, c, pairs, alpha, unit);
    for (; d < dim; d += W) value_panel(mr, 1, w, x, r0, at, d, c, pairs, alpha, unit);
}

/* The scale of the attention weights of each row, from their sums: the smallest with which neither a
 * weight overflows 16 bits nor a sum of products 32. No weight is larger than vs_max. */
static void choose_units(const struct words *x, const float mass[16], float unit[16], float inv[16])
{
    for (int i = 0; i < 16; i += W) {
        vf m = v_load(mass + i), most = v_min(m, v_set(x->vs_max));
        vf u = v_max(m * v_set(1 / MASS), most * v_set(1 / MOST)) + v_set(TINY);
        v_store(unit + i, u);
        v_store(inv + i, v_set(1) / u);
    }
}

/* Scores [c0, c1) to attention weights in p; updates the running sums. */
static void round_weights(const struct work *w, const struct words *x, const struct visible *see,
                          int r0, int mr, int key, int c0, int c1, float *alpha, float *unit)
{
    float top[16], mass[16] = { 0 }, inv[16];
    const float *vs = x->vs;

    update_maxima(w, see, r0, mr, key, c0, c1, top, alpha);
    for (int i = 0; i < mr; i++) {
        float *s = w->s + i * KEYS, *sum = w->sum + (size_t)(r0 + i) * W;
        vf m = v_set(top[i]), add = v_load(sum) * v_set(alpha[i]), some = v_set(0);
        for (int c = c0; c < c1; c += W) {
            vf p = v_exp2(v_load(s + c) - m), scaled = p * v_load(vs + c);
            add += p;
            some += scaled;
            v_store(s + c, scaled);
        }
        v_store(sum, add);
        mass[i] = v_sum(some);
    }
    choose_units(x, mass, unit, inv);
    for (int i = 0; i < mr; i++) {
        const float *s = w->s + i * KEYS;
        int16_t *p = x->p + i * KEYS;
        vf by = v_set(inv[i]);
        for (int c = c0; c < c1; c += W) v_store_i16(p + c, v_load(s + c) * by);
    }
}

/* Scores of up to PANEL rows from r0 + i on. */
static void score_rows(const struct work *w, const struct words *x, int r0, int i, int mr, int c0,
                       int c1)
{
    BY_ROWS(mr, score_columns, w, x, r0, i, c0, c1)
}

static void value_rows(const struct work *w, const struct words *x, int r0, int i, int mr, int c,
                       int pairs, const float *alpha, const float *unit)
{
    BY_ROWS(mr, value_columns, w, x, r0, i, c, pairs, alpha, unit)
}

/* Up to two panels of query rows and one tile of keys: one softmax for both, because its reductions
 * have much latency and few instructions. */
static void run_panels(const struct work *w, const struct words *x, int r0, int mr, int key, int n)
{
    float alpha[16], unit[16];
    int half = mr > PANEL ? mr / 2 : mr;
    struct visible see;

    find_visible(w, &see, r0, mr, key, n);
    if (see.first >= see.end) return;
    int c0 = see.first / W * W, c1 = (see.end + W - 1) / W * W, even = see.first / 2 * 2,
        pairs = (see.end - even + 1) / 2;
    score_rows(w, x, r0, 0, half, c0, c1);
    if (half < mr) score_rows(w, x, r0, half, mr - half, c0, c1);
    round_weights(w, x, &see, r0, mr, key, c0, c1, alpha, unit);
    value_rows(w, x, r0, 0, half, even, pairs, alpha, unit);
    if (half < mr) value_rows(w, x, r0, half, mr - half, even, pairs, alpha, unit);
}

static void run_words(const struct work *w)
{
    int steps = (w->rows + 2 * PANEL - 1) / (2 * PANEL);
    struct words x;

    words_init(&x, w);
    round_queries(&x, w);
    for (int key = w->p->key0; key < w->p->key1; key += KEYS) {
        int n = w->p->key1 - key < KEYS ? w->p->key1 - key : KEYS;
        load_words(w, &x, key, n);
        for (int i = 0; i < steps; i++) { /* of nearly equal height */
            int r0 = w->rows * i / steps, mr = w->rows * (i + 1) / steps - r0;
            run_panels(w, &x, r0, mr, key, n);
        }
    }
}
