/* quant_fit.c - the best scale for a handful of numbers.
 *
 * A scale is good when the numbers, rounded to its multiples, are near to what they were. A few
 * candidates around the range of the numbers are tried; once rounded, the best scale for those
 * very multiples has a closed form (least squares), and so has what it leaves over. */
#include "kernel/quant_impl.h"

#include "kernel/iq_grid.h"

#include <assert.h>

/* Four at a time: what every machine has. */
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

static inline v4 load(const float *p)
{
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline v4 all(float f) { return (v4){ f, f, f, f }; }
static inline v4 pick(v4i mask, v4 yes, v4 no)
{
    return (v4)((mask & (v4i)yes) | (~mask & (v4i)no));
}
static inline float sum(v4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

/* Nearest whole number for |v| < 2^22: above 2^23 floats have no fraction. */
static inline v4 nearest(v4 v) { return (v + 0x1.8p23f) - 0x1.8p23f; }
static inline v4 clamp(v4 v, float lo, float hi)
{
    v = pick(v < lo, all(lo), v);
    return pick(v > hi, all(hi), v);
}

/* Large elements matter more to a product than small ones, but these are not nothing. */
static void importance(const float *x, int n, float *w)
{
    v4 xx = { 0 };
    for (int i = 0; i < n; i += 4) xx += load(x + i) * load(x + i);
    float rms = sqrtf(sum(xx) / (float)n);
    for (int i = 0; i < n; i++) w[i] = rms + fabsf(x[i]);
}

/* Squares of such numbers would leave the range of floats; those blocks do without a search. */
static bool searchable(float amax) { return amax > 1e-12f && amax < 1e9f; }

float quant_fit_signed(const float *x, int n, int top)
{
    float w[QK], max = quant_extreme(x, n), best = -max / (float)top, best_gain = 0;
    assert(n % 4 == 0 && n <= QK);
    if (!searchable(fabsf(max))) return best;
    importance(x, n, w);
    for (int k = -9; k <= 9; k++) {
        float id = -((float)top + 0.1f * (float)k) / max;
        v4 sxq = { 0 }, sqq = { 0 };
        for (int i = 0; i < n; i += 4) {
            v4 xi = load(x + i), q = clamp(nearest(xi * id), (float)-top, (float)(top - 1));
            v4 wq = load(w + i) * q;
            sxq += wq * xi;
            sqq += wq * q;
        }
        float xq = sum(sxq), qq = sum(sqq);
        if (qq > 0 && xq * xq > best_gain * qq) {
            best_gain = xq * xq / qq;
            best = xq / qq;
        }
    }
    return best;
}

/* Weighted sums over a sub-block and the q it rounds to. */
struct sums {
    float w, x, xx, q, qq, xq;
};

static void sums_add_q(struct sums *s, const float *x, const float *w, int n, float top, float min,
                       float id)
{
    v4 q1 = { 0 }, q2 = { 0 }, xq = { 0 };
    for (int i = 0; i < n; i += 4) {
        v4 xi = load(x + i), q = clamp(nearest((xi - min) * id), 0, top), wq = load(w + i) * q;
        q1 += wq;
        q2 += wq * q;
        xq += wq * xi;
    }
    s->q = sum(q1);
    s->qq = sum(q2);
    s->xq = sum(xq);
}

/* The best s and m for these q, m not negative, and the error that is left; < 0: there are none. */
static float affine_solve(const struct sums *t, struct quant_affine *a)
{
    float det = t->w * t->qq - t->q * t->q;
    if (!(det > 0)) return -1;
    a->s = (t->w * t->xq - t->q * t->x) / det;
    a->m = (t->q * t->xq - t->qq * t->x) / det;
    if (a->m < 0) *a = (struct quant_affine){ t->xq / t->qq, 0 };
    return a->s > 0 ? fmaxf(t->xx - a->s * t->xq + a->m * t->x, 0) : -1;
}

struct quant_affine quant_fit_affine(const float *x, int n, int top)
{
    float w[QK], min = 0, max = 0, best_error = -1;
    assert(n % 4 == 0 && n <= QK);
    for (int i = 0; i < n; i++) {
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    struct quant_affine best = { max / (float)top - min / (float)top, -min };
    if (!searchable(max - min)) return best;
    importance(x, n, w);
    struct sums t = { 0 };
    for (int i = 0; i < n; i++) {
        t.w += w[i];
        t.x += w[i] * x[i];
        t.xx += w[i] * x[i] * x[i];
    }
    for (int k = -10; k <= 10; k++) {
        struct quant_affine a;
        sums_add_q(&t, x, w, n, (float)top, min, ((float)top + 0.1f * (float)k) / (max - min));
        float error = affine_solve(&t, &a);
        if (error >= 0 && (best_error < 0 || error < best_error)) {
            best_error = error;
            best = a;
        }
    }
    return best;
}

/* The level nearest to each of four numbers: the lowest, and a step for each middle passed. */
static inline v4 nearest_level(v4 v)
{
    v4 out = all(iq4_levels[0]);
    for (int l = 0; l < 15; l++) {
        v4i above = v > 0.5f * (float)(iq4_levels[l] + iq4_levels[l + 1]);
        out += (v4)(above & (v4i)all((float)(iq4_levels[l + 1] - iq4_levels[l])));
    }
    return out;
}

float quant_fit_levels(const float *x)
{
    float max = quant_extreme(x, QK), best = max / (float)iq4_levels[0], best_gain = 0;
    if (!searchable(fabsf(max))) return best;
    for (int k = -7; k <= 7; k++) {
        float id = ((float)iq4_levels[0] + (float)k) / max;
        v4 sxq = { 0 }, sqq = { 0 };
        for (int i = 0; i < QK; i += 4) {
            v4 xi = load(x + i), q = nearest_level(xi * id), wq = xi * xi * q;
            sxq += wq * xi;
            sqq += wq * q;
        }
        float xq = sum(sxq), qq = sum(sqq);
        if (qq > 0 && xq * xq > best_gain * qq) {
            best_gain = xq * xq / qq;
            best = xq / qq;
        }
    }
    return best;
}

void quant_round_levels(const float *x, float id, int *q)
{
    for (int i = 0; i < QK; i += 4) {
        v4 v = load(x + i) * id;
        v4i n = { 0 };
        for (int l = 0; l < 15; l++) n -= v > 0.5f * (float)(iq4_levels[l] + iq4_levels[l + 1]);
        memcpy(q + i, &n, sizeof n);
    }
}
