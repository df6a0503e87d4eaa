/* rtn_impl.h - the encoders of rtn.h, in the vectors of the including file (kernel/cpu/simd.h or
 * the same names). The file defines RTN, the name of its table.
 *
 * A row is encoded in chunks of W sub-blocks, at least one super-block. The last chunk of a row is
 * padded with zeros of weight 0.
 *
 * A super-block is encoded in these steps: search a real scale (and minimum) for each sub-block;
 * round them to integer multiples of d (and dmin); try the neighbouring integers with the elements
 * they round to; solve for d and dmin again; round the elements. */
#include "quant/rtn.h"

#include "kernel/iq_grid.h"
#include "kernel/quant.h"
#include "kernel/quant_pack.h"

#include <math.h>

#include "quant/rtn_fit.h"

#define MAX_CHUNK 512
/* Elements of a chunk with sub-blocks of n: W sub-blocks, at least a super-block. */
#define CHUNK(n) (W * (n) > QK_K ? W * (n) : QK_K)
static_assert(CHUNK(32) <= MAX_CHUNK && W <= 16, "a chunk holds W sub-blocks");

/* Scales are F16, so larger elements cannot be represented by any format but MXFP4. */
#define LARGEST 1e9f

/* One chunk in progress. */
struct chunk {
    float x[MAX_CHUNK], w[MAX_CHUNK];
    uint8_t q[MAX_CHUNK];
    /* per sub-block: scales and minima as floats, then as integers */
    float s[MAX_CHUNK / 16], m[MAX_CHUNK / 16];
    int sc[MAX_CHUNK / 16], mc[MAX_CHUNK / 16];
    uint16_t d[MAX_CHUNK / QK_K], dmin[MAX_CHUNK / QK_K]; /* per super-block */
};

INLINE float mean_square(const float *x, int n)
{
    vf sum = v_set(0);
    for (int i = 0; i < n; i += W) sum = v_fma(v_load(x + i), v_load(x + i), sum);
    return v_sum(sum) / (float)n;
}

/* Error weights of a chunk: rms + |x| without an importance matrix, else w * sqrt(mean + x^2) as
 * llama.cpp does. span: elements over which the mean square is taken. */
static void fill_weights(struct chunk *c, const float *w, int n, int sub, int span)
{
    for (int at = 0; !w && at < n; at += sub) {
        vf rms = v_set(sqrtf(mean_square(c->x + at, sub)));
        for (int i = at; i < at + sub; i += W) v_store(c->w + i, rms + v_abs(v_load(c->x + i)));
    }
    for (int at = 0; w && at < n; at += span) {
        float mean = (span == QK_K ? 2 : 1) * mean_square(c->x + at, span);
        for (int i = at; i < at + span; i++) c->w[i] = w[i] * sqrtf(mean + c->x[i] * c->x[i]);
    }
}

/* The next `total` elements of a row, of which `left` remain; span: elements per block. */
static void fill_chunk(struct chunk *c, const float *x, const float *w, int64_t left, int total,
                       int sub, int span)
{
    int n = left < total ? (int)left : total;
    for (int i = 0; i < n; i += W)
        v_store(c->x + i, v_min(v_max(v_load(x + i), v_set(-LARGEST)), v_set(LARGEST)));
    fill_weights(c, w, n, sub, span);
    if (n == total) return;
    memset(c->x + n, 0, (size_t)(total - n) * sizeof *c->x);
    memset(c->w + n, 0, (size_t)(total - n) * sizeof *c->w);
}

INLINE uint16_t as_f16(float v) { return f32_to_f16(fminf(fmaxf(v, -65504.0f), 65504.0f)); }
INLINE float inverse(float v) { return fabsf(v) > 1e-30f ? 1 / v : 0; }
INLINE int round_clamped(float v, int lo, int hi)
{
    return (int)fminf(fmaxf(rintf(v), (float)lo), (float)hi);
}

/* The d of each sub-block's super-block, as floats. */
INLINE void repeat_scales(float *to, const uint16_t *d, int n_subs, int n)
{
    for (int j = 0; j < n_subs; j++) to[j] = f16_to_f32(d[j * n / QK_K]);
}

/* ---- Q2_K, Q4_K, Q5_K: x = d sc q - dmin mc ---- */

/* Tries the integer scales and minima next to the current ones, with the elements they round to. */
INLINE void refine_affine(struct chunk *c, const struct panel *p, int at, int n, float top,
                          float scale_top, const float *d, const float *dmin)
{
    float f[2][W];
    for (int j = 0; j < W; j++) f[0][j] = (float)c->sc[at + j], f[1][j] = (float)c->mc[at + j];
    vf sc = v_load(f[0]), mc = v_load(f[1]), dv = v_load(d + at), mv = v_load(dmin + at);
    vf best_s = sc, best_m = mc, error = v_set(WORST);
    for (int k = 0; k < 9; k++) {
        vf ts = v_min(v_max(sc + v_set((float)(k / 3 - 1)), v_set(0)), v_set(scale_top));
        vf tm = v_min(v_max(mc + v_set((float)(k % 3 - 1)), v_set(0)), v_set(scale_top));
        vf e = affine_error(p, n, top, dv * ts, mv * tm);
        best_s = v_sel_gt(error, e, ts, best_s);
        best_m = v_sel_gt(error, e, tm, best_m);
        error = v_min(error, e);
    }
    v_store(f[0], best_s);
    v_store(f[1], best_m);
    for (int j = 0; j < W; j++) c->sc[at + j] = (int)f[0][j], c->mc[at + j] = (int)f[1][j];
}

/* Sums per sub-block, from which the best d and dmin for fixed integers follow. */
struct pair_sums {
    float aa[32], ab[32], bb[32], ax[32], bx[32];
};

/* For sub-blocks [at, at + W), with a = sc q and b = mc. */
INLINE void fill_pair_sums(struct pair_sums *t, struct chunk *c, const struct panel *p, int at,
                           int n, float top, const float *d, const float *dmin)
{
    float f[2][W];
    for (int j = 0; j < W; j++) f[0][j] = (float)c->sc[at + j], f[1][j] = (float)c->mc[at + j];
    vf sc = v_load(f[0]), mc = v_load(f[1]), m = v_load(dmin + at) * mc;
    vf id = v_inverse(v_load(d + at) * sc), off = m * id;
    vf w = v_set(0), wx = w, q1 = w, q2 = w, xq = w;
    for (int i = 0; i < n; i++) {
        vf q = round_affine(p->x[i], id, off, top), wq = p->w[i] * q;
        w = w + p->w[i];
        wx = v_fma(p->w[i], p->x[i], wx);
        q1 = q1 + wq;
        q2 = v_fma(wq, q, q2);
        xq = v_fma(wq, p->x[i], xq);
    }
    v_store(t->aa + at, q2 * sc * sc);
    v_store(t->ab + at, q1 * sc * mc);
    v_store(t->bb + at, w * mc * mc);
    v_store(t->ax + at, xq * sc);
    v_store(t->bx + at, wx * mc);
}

/* The weighted error of d a - dmin b, without the part that does not depend on d and dmin. */
static double pair_error(const double *s, double d, double m)
{
    return d * d * s[0] - 2 * d * m * s[1] + m * m * s[2] - 2 * d * s[3] + 2 * m * s[4];
}

/* Solves for d and dmin of super-block k; keeps the old ones if they are better. */
static void resolve_affine(struct chunk *c, const struct pair_sums *t, int k, int subs)
{
    double s[5] = { 0 };
    for (int j = k * subs; j < (k + 1) * subs; j++) {
        s[0] += (double)t->aa[j], s[1] += (double)t->ab[j], s[2] += (double)t->bb[j];
        s[3] += (double)t->ax[j], s[4] += (double)t->bx[j];
    }
    double det = s[0] * s[2] - s[1] * s[1];
    if (!(det > 0)) return;
    uint16_t d = as_f16((float)((s[3] * s[2] - s[1] * s[4]) / det));
    uint16_t m = as_f16((float)((s[1] * s[3] - s[0] * s[4]) / det));
    if (f16_to_f32(d) <= 0 || f16_to_f32(m) < 0) return;
    if (pair_error(s, (double)f16_to_f32(d), (double)f16_to_f32(m)) <
        pair_error(s, (double)f16_to_f32(c->d[k]), (double)f16_to_f32(c->dmin[k])))
        c->d[k] = d, c->dmin[k] = m;
}

/* The final integers, with the scales as stored. */
INLINE void round_affine_codes(struct chunk *c, const struct panel *p, int at, int n, float top,
                               const float *d, const float *dmin)
{
    float f[2][W];
    vf q[32];
    for (int j = 0; j < W; j++) f[0][j] = (float)c->sc[at + j], f[1][j] = (float)c->mc[at + j];
    vf m = v_load(dmin + at) * v_load(f[1]), id = v_inverse(v_load(d + at) * v_load(f[0]));
    vf off = m * id;
    for (int i = 0; i < n; i++) q[i] = round_affine(p->x[i], id, off, top);
    store_panel(c->q + at * n, q, n);
}

/* d and dmin of super-block k from its largest scale and minimum; integers by rounding. */
static void choose_affine_scales(struct chunk *c, int k, int subs, int scale_top)
{
    float max = 0, max_m = 0;
    for (int j = k * subs; j < (k + 1) * subs; j++)
        max = fmaxf(max, c->s[j]), max_m = fmaxf(max_m, c->m[j]);
    c->d[k] = as_f16(max / (float)scale_top);
    c->dmin[k] = as_f16(max_m / (float)scale_top);
    float id = inverse(f16_to_f32(c->d[k])), im = inverse(f16_to_f32(c->dmin[k]));
    for (int j = k * subs; j < (k + 1) * subs; j++) {
        c->sc[j] = round_clamped(c->s[j] * id, 0, scale_top);
        c->mc[j] = round_clamped(c->m[j] * im, 0, scale_top);
    }
}

/* All steps for Q2_K, Q4_K or Q5_K; n: elements of a sub-block. */
INLINE void fit_affine_chunk(struct chunk *c, int n, float top, int scale_top)
{
    enum { MAX_PANELS = 4 };
    struct panel p[MAX_PANELS];
    struct pair_sums t;
    float d[MAX_CHUNK / 16], dmin[MAX_CHUNK / 16];
    int subs = QK_K / n, n_subs = CHUNK(n) / n;
    for (int at = 0; at < n_subs; at += W) {
        load_panel(&p[at / W], c->x + at * n, c->w + at * n, n);
        struct affine a = search_affine(&p[at / W], n, top, false);
        v_store(c->s + at, a.s);
        v_store(c->m + at, a.m);
    }
    for (int k = 0; k < n_subs / subs; k++) choose_affine_scales(c, k, subs, scale_top);
    repeat_scales(d, c->d, n_subs, n);
    repeat_scales(dmin, c->dmin, n_subs, n);
    for (int at = 0; at < n_subs; at += W) {
        refine_affine(c, &p[at / W], at, n, top, (float)scale_top, d, dmin);
        fill_pair_sums(&t, c, &p[at / W], at, n, top, d, dmin);
    }
    for (int k = 0; k < n_subs / subs; k++) resolve_affine(c, &t, k, subs);
    repeat_scales(d, c->d, n_subs, n);
    repeat_scales(dmin, c->dmin, n_subs, n);
    for (int at = 0; at < n_subs; at += W) round_affine_codes(c, &p[at / W], at, n, top, d, dmin);
}

/* ---- Q3_K, Q6_K, IQ4_XS: x = d sc q ---- */

/* q as the format stores it: plus top, or the index of a level. */
INLINE vf signed_code(vf x, vf id, float top)
{
    if (top != 0) return round_signed(x, id, top) + v_set(top);
    vf v = x * id, n = v_set(0);
    for (int l = 0; l < 15; l++)
        n = v_sel_gt(v, v_set(0.5f * (float)(iq4_levels[l] + iq4_levels[l + 1])),
                     v_set((float)(l + 1)), n);
    return n;
}

INLINE void round_signed_codes(uint8_t *to, const struct panel *p, int n, float top, vf s)
{
    vf q[32], id = v_inverse(s);
    for (int i = 0; i < n; i++) q[i] = signed_code(p->x[i], id, top);
    store_panel(to, q, n);
}

INLINE vf lanes_of(const int *v)
{
    float f[W];
    for (int j = 0; j < W; j++) f[j] = (float)v[j];
    return v_load(f);
}

/* As refine_affine; ax and aa: sums from which the best d follows. */
INLINE void refine_signed(struct chunk *c, const struct panel *p, int at, int n, float top,
                          float scale_top, const float *d, float *ax, float *aa)
{
    vf sc = lanes_of(c->sc + at), best = sc, error = v_set(WORST), dv = v_load(d + at);
    float f[W];
    for (int k = -1; k <= 1; k++) {
        vf ts = v_min(v_max(sc + v_set((float)k), v_set(-scale_top)), v_set(scale_top - 1));
        vf e = signed_error(p, n, top, dv * ts);
        best = v_sel_gt(error, e, ts, best);
        error = v_min(error, e);
    }
    v_store(f, best);
    for (int j = 0; j < W; j++) c->sc[at + j] = (int)f[j];
    vf id = v_inverse(dv * best), xq = v_set(0), qq = v_set(0);
    for (int i = 0; i < n; i++) {
        vf q = round_signed(p->x[i], id, top) * best, wq = p->w[i] * q;
        xq = v_fma(wq, p->x[i], xq);
        qq = v_fma(wq, q, qq);
    }
    v_store(ax + at, xq);
    v_store(aa + at, qq);
}

/* d of super-block k: the scale of largest magnitude becomes -scale_top. */
static void choose_signed_scales(struct chunk *c, int k, int subs, int scale_top)
{
    float max = 0;
    for (int j = k * subs; j < (k + 1) * subs; j++)
        max = fabsf(c->s[j]) > fabsf(max) ? c->s[j] : max;
    c->d[k] = as_f16(max / (float)-scale_top);
    float id = inverse(f16_to_f32(c->d[k]));
    for (int j = k * subs; j < (k + 1) * subs; j++)
        c->sc[j] = round_clamped(c->s[j] * id, -scale_top, scale_top - 1);
}

/* Solves for d of super-block k; keeps the old one if it is better. */
static void resolve_signed(struct chunk *c, int k, int subs, const float *ax, const float *aa)
{
    double x = 0, a = 0;
    for (int j = k * subs; j < (k + 1) * subs; j++) x += (double)ax[j], a += (double)aa[j];
    if (!(a > 0)) return;
    uint16_t d = as_f16((float)(x / a));
    double new = (double)f16_to_f32(d), old = (double)f16_to_f32(c->d[k]);
    if (new *new *a - 2 * new *x < old * old *a - 2 * old *x) c->d[k] = d;
}

/* All steps for Q3_K, Q6_K or IQ4_XS. */
INLINE void fit_signed_chunk(struct chunk *c, int n, float top, int scale_top)
{
    enum { MAX_PANELS = 4 };
    struct panel p[MAX_PANELS];
    float d[MAX_CHUNK / 16], ax[MAX_CHUNK / 16], aa[MAX_CHUNK / 16];
    int subs = QK_K / n, n_subs = CHUNK(n) / n;
    for (int at = 0; at < n_subs; at += W) {
        load_panel(&p[at / W], c->x + at * n, c->w + at * n, n);
        v_store(c->s + at, search_signed(&p[at / W], n, top));
    }
    for (int k = 0; k < n_subs / subs; k++) choose_signed_scales(c, k, subs, scale_top);
    repeat_scales(d, c->d, n_subs, n);
    for (int at = 0; at < n_subs; at += W)
        refine_signed(c, &p[at / W], at, n, top, (float)scale_top, d, ax, aa);
    for (int k = 0; k < n_subs / subs; k++) resolve_signed(c, k, subs, ax, aa);
    repeat_scales(d, c->d, n_subs, n);
    for (int at = 0; at < n_subs; at += W)
        round_signed_codes(c->q + at * n, &p[at / W], n, top,
                           v_load(d + at) * lanes_of(c->sc + at));
}

#include "quant/rtn_formats.h"
