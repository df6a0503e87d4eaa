/* quant_fit.c - scale search: the scale of a sub-block that minimizes the quantization error.
 *
 * Some 20 candidate scales around the one given by the range of the elements are tried. For each,
 * the elements are rounded to integers q; for fixed q the best scale follows by weighted least
 * squares, and so does the remaining error. The candidate with the least error wins. This is the
 * method of ggml's make_qx_quants and make_qkx2_quants, with tern's own candidates and weights.
 *
 * Sums are taken in four lanes of gcc's vector extension (v4), which every machine supports, in a
 * fixed order, so that the result is the same everywhere. */
#include "kernel/quant_impl.h"

#include "kernel/iq_grid.h"

#include <assert.h>

typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

static inline v4 load4(const float *p)
{
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline v4 splat4(float f) { return (v4){ f, f, f, f }; }
static inline v4 select4(v4i mask, v4 yes, v4 no)
{
    return (v4)((mask & (v4i)yes) | (~mask & (v4i)no));
}
static inline float sum4(v4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

/* Rounds to the nearest integer for |v| < 2^22: above 2^23 floats have no fraction bits. */
static inline v4 round4(v4 v) { return (v + 0x1.8p23f) - 0x1.8p23f; }
static inline v4 clamp4(v4 v, float lo, float hi)
{
    v = select4(v < lo, splat4(lo), v);
    return select4(v > hi, splat4(hi), v);
}

/* Weights of the squared errors: rms + |x|. Large elements contribute more to a dot product; the
 * rms keeps small ones from being ignored. */
static void fill_importance(const float *x, int n, float *w)
{
    v4 xx = { 0 };
    for (int i = 0; i < n; i += 4) xx += load4(x + i) * load4(x + i);
    float rms = sqrtf(sum4(xx) / (float)n);
    for (int i = 0; i < n; i++) w[i] = rms + fabsf(x[i]);
}

/* Outside this range sums of squares would over- or underflow: such blocks use the plain scale. */
static bool is_searchable(float amax) { return amax > 1e-12f && amax < 1e9f; }

/* Maximizes the gain (sum w x q)^2 / (sum w q^2): the reduction of the error compared with all
 * zeros. */
float quant_fit_signed(const float *x, int n, int top)
{
    float w[QK], max = quant_extreme(x, n), best = -max / (float)top, best_gain = 0;
    assert(n % 4 == 0 && n <= QK);
    if (!is_searchable(fabsf(max))) return best;
    fill_importance(x, n, w);
    for (int k = -9; k <= 9; k++) {
        float id = -((float)top + 0.1f * (float)k) / max;
        v4 sxq = { 0 }, sqq = { 0 };
        for (int i = 0; i < n; i += 4) {
            v4 xi = load4(x + i), q = clamp4(round4(xi * id), (float)-top, (float)(top - 1));
            v4 wq = load4(w + i) * q;
            sxq += wq * xi;
            sqq += wq * q;
        }
        float xq = sum4(sxq), qq = sum4(sqq);
        if (qq > 0 && xq * xq > best_gain * qq) {
            best_gain = xq * xq / qq;
            best = xq / qq;
        }
    }
    return best;
}

/* Sums over a sub-block, weighted by w: of w, w x, w x^2, w q, w q^2, w x q. */
struct sums {
    float w, x, xx, q, qq, xq;
};

/* Rounds the sub-block with step 1/id from min, and fills in the sums that contain q. */
static void fill_q_sums(struct sums *s, const float *x, const float *w, int n, float top, float min,
                        float id)
{
    v4 q1 = { 0 }, q2 = { 0 }, xq = { 0 };
    for (int i = 0; i < n; i += 4) {
        v4 xi = load4(x + i), q = clamp4(round4((xi - min) * id), 0, top), wq = load4(w + i) * q;
        q1 += wq;
        q2 += wq * q;
        xq += wq * xi;
    }
    s->q = sum4(q1);
    s->qq = sum4(q2);
    s->xq = sum4(xq);
}

/* Solves the normal equations for s and m >= 0 at fixed q. Returns the remaining error, or -1 if
 * there is no solution with s > 0. */
static float solve_affine(const struct sums *t, struct quant_affine *a)
{
    float det = t->w * t->qq - t->q * t->q;
    if (!(det > 0)) return -1;
    a->s = (t->w * t->xq - t->q * t->x) / det;
    a->m = (t->q * t->xq - t->qq * t->x) / det;
    if (a->m < 0) *a = (struct quant_affine){ t->xq / t->qq, 0 };
    return a->s > 0 ? fmaxf(t->xx - a->s * t->xq + a->m * t->x, 0) : -1;
}

/* Elements and minimum: q counts from the smallest element, which is at most 0. */
struct quant_affine quant_fit_affine(const float *x, int n, int top)
{
    float w[QK], min = 0, max = 0, best_error = -1;
    assert(n % 4 == 0 && n <= QK);
    for (int i = 0; i < n; i++) {
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    struct quant_affine best = { max / (float)top - min / (float)top, -min };
    if (!is_searchable(max - min)) return best;
    fill_importance(x, n, w);
    struct sums t = { 0 };
    for (int i = 0; i < n; i++) {
        t.w += w[i];
        t.x += w[i] * x[i];
        t.xx += w[i] * x[i] * x[i];
    }
    for (int k = -10; k <= 10; k++) {
        struct quant_affine a;
        fill_q_sums(&t, x, w, n, (float)top, min, ((float)top + 0.1f * (float)k) / (max - min));
        float error = solve_affine(&t, &a);
        if (error >= 0 && (best_error < 0 || error < best_error)) {
            best_error = error;
            best = a;
        }
    }
    return best;
}

/* The nearest of iq4_levels for four elements: the lowest level plus the step of each midpoint that
 * the element exceeds. */
static inline v4 nearest_level4(v4 v)
{
    v4 out = splat4(iq4_levels[0]);
    for (int l = 0; l < 15; l++) {
        v4i above = v > 0.5f * (float)(iq4_levels[l] + iq4_levels[l + 1]);
        out += (v4)(above & (v4i)splat4((float)(iq4_levels[l + 1] - iq4_levels[l])));
    }
    return out;
}

/* As quant_fit_signed; the weight of an element is x^2. */
float quant_fit_levels(const float *x)
{
    float max = quant_extreme(x, QK), best = max / (float)iq4_levels[0], best_gain = 0;
    if (!is_searchable(fabsf(max))) return best;
    for (int k = -7; k <= 7; k++) {
        float id = ((float)iq4_levels[0] + (float)k) / max;
        v4 sxq = { 0 }, sqq = { 0 };
        for (int i = 0; i < QK; i += 4) {
            v4 xi = load4(x + i), q = nearest_level4(xi * id), wq = xi * xi * q;
            sxq += wq * xi;
            sqq += wq * q;
        }
        float xq = sum4(sxq), qq = sum4(sqq);
        if (qq > 0 && xq * xq > best_gain * qq) {
            best_gain = xq * xq / qq;
            best = xq / qq;
        }
    }
    return best;
}

/* Counts the midpoints below each element. */
void quant_round_levels(const float *x, float id, int *q)
{
    for (int i = 0; i < QK; i += 4) {
        v4 v = load4(x + i) * id;
        v4i n = { 0 };
        for (int l = 0; l < 15; l++) n -= v > 0.5f * (float)(iq4_levels[l] + iq4_levels[l + 1]);
        memcpy(q + i, &n, sizeof n);
    }
}
