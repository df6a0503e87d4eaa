/* rtn_fit.h - the best scales for W handfuls of numbers at once, a handful a lane.
 *
 * Included by rtn_impl.h only, after the names of simd.h. A scale is good when the numbers,
 * rounded to its multiples, are near to what they were. Candidates around the range of the
 * numbers are tried; once rounded, the best scale for those very multiples has a closed form
 * (least squares), and so has what it leaves over. */

/* Numbers [i] of the W sub-blocks, and how much each counts. n of them are in use. */
struct panel {
    vf x[32], w[32];
};

INLINE void panel_turn(vf *to, const float *p, int n)
{
    for (int i0 = 0; i0 < n; i0 += W) {
        vf r[W];
        for (int j = 0; j < W; j++) r[j] = v_load(p + j * n + i0);
        v_transpose(r);
        for (int i = 0; i < W; i++) to[i0 + i] = r[i];
    }
}

INLINE void panel_load(struct panel *p, const float *x, const float *w, int n)
{
    panel_turn(p->x, x, n);
    panel_turn(p->w, w, n);
}

/* Whole numbers, less than 256 and not negative, back to where their sub-blocks lie. */
INLINE void panel_store(uint8_t *to, const vf *q, int n)
{
    for (int i0 = 0; i0 < n; i0 += W) {
        vf r[W];
        for (int i = 0; i < W; i++) r[i] = q[i0 + i];
        v_transpose(r);
        for (int j = 0; j < W; j++) v_store_i8((int8_t *)to + j * n + i0, r[j]);
    }
}

/* 1/v, or 0 where that is no number of use: the sub-block is then 0. */
INLINE vf v_inverse(vf v)
{
    return v_sel_gt(v_abs(v), v_set(1e-30f),
                    v_set(1) / v_sel_gt(v_abs(v), v_set(1e-30f), v, v_set(1)), v_set(0));
}

/* Floats this large have no fraction: adding it rounds, taking it off again leaves the whole
 * number. */
#define MAGIC 0x1.8p23f

/* ---- with a minimum: x = s q - m, q from 0 to top ---- */

struct affine {
    vf s, m;
};

/* Weighted sums over sub-blocks and the q they round to. */
struct sums {
    vf w, x, xx, q, qq, xq;
};

INLINE vf affine_round(vf x, vf id, vf off, float top)
{
    vf t = v_min(v_max(v_fma(x, id, off), v_set(0)), v_set(top));
    return (t + v_set(MAGIC)) - v_set(MAGIC);
}

INLINE void affine_sums(struct sums *t, const struct panel *p, int n, float top, vf id, vf m)
{
    vf q1 = v_set(0), q2 = v_set(0), xq = v_set(0), off = m * id;
    for (int i = 0; i < n; i++) {
        vf q = affine_round(p->x[i], id, off, top), wq = p->w[i] * q;
        q1 = q1 + wq;
        q2 = v_fma(wq, q, q2);
        xq = v_fma(wq, p->x[i], xq);
    }
    t->q = q1, t->qq = q2, t->xq = xq;
}

#define WORST 3e38f

/* The best s and m for these q (m not negative unless `free`), where they leave less than *error.
 */
INLINE void affine_solve(const struct sums *t, bool free, struct affine *best, vf *error)
{
    vf det = t->w * t->qq - t->q * t->q, idet = v_inverse(det);
    vf s = (t->w * t->xq - t->q * t->x) * idet, m = (t->q * t->xq - t->qq * t->x) * idet;
    if (!free) {
        s = v_sel_gt(v_set(0), m, t->xq * v_inverse(t->qq), s);
        m = v_max(m, v_set(0));
    }
    vf left = v_max(t->xx - s * t->xq + m * t->x, v_set(0));
    left = v_sel_gt(s, v_set(0), left, v_set(WORST));
    left = v_sel_gt(det, v_set(0), left, v_set(WORST));
    best->s = v_sel_gt(*error, left, s, best->s);
    best->m = v_sel_gt(*error, left, m, best->m);
    *error = v_min(*error, left);
}

/* `free`: the minimum may be above zero, as Q4_1 and Q5_1 can say it. */
INLINE struct affine affine_search(const struct panel *p, int n, float top, bool free)
{
    struct sums t = { .w = v_set(0), .x = v_set(0), .xx = v_set(0) };
    vf min = free ? p->x[0] : v_set(0), max = min, error = v_set(WORST);
    for (int i = 0; i < n; i++) {
        vf wx = p->w[i] * p->x[i];
        min = v_min(min, p->x[i]);
        max = v_max(max, p->x[i]);
        t.w = t.w + p->w[i];
        t.x = t.x + wx;
        t.xx = v_fma(wx, p->x[i], t.xx);
    }
    struct affine best = { (max - min) * v_set(1 / top), -min };
    vf inverse = v_inverse(max - min);
    for (int k = -10; k <= 10; k++) {
        affine_sums(&t, p, n, top, v_set(top + 0.1f * (float)k) * inverse, -min);
        affine_solve(&t, free, &best, &error);
    }
    for (int k = 0; k < 2; k++) { /* round by the best so far, solve again */
        affine_sums(&t, p, n, top, v_inverse(best.s), best.m);
        affine_solve(&t, free, &best, &error);
    }
    return best;
}

/* What is lost by these s and m, each number rounded as well as it can be. */
INLINE vf affine_error(const struct panel *p, int n, float top, vf s, vf m)
{
    vf id = v_inverse(s), off = m * id, sum = v_set(0);
    for (int i = 0; i < n; i++) {
        vf r = v_fma(s, affine_round(p->x[i], id, off, top), -m) - p->x[i];
        sum = v_fma(p->w[i] * r, r, sum);
    }
    return sum;
}

/* ---- without: x = s q; q from -top to top - 1, or one of IQ4's levels where top is 0 ---- */

INLINE vf nearest_level(vf v)
{
    vf out = v_set(iq4_levels[0]);
    for (int l = 0; l < 15; l++) {
        float middle = 0.5f * (float)(iq4_levels[l] + iq4_levels[l + 1]);
        out = v_sel_gt(v, v_set(middle), v_set(iq4_levels[l + 1]), out);
    }
    return out;
}

INLINE vf signed_round(vf x, vf id, float top)
{
    if (top == 0) return nearest_level(x * id);
    vf t = v_fma(x, id, v_set(MAGIC)); /* in one step, and clamped while it is large */
    t = v_min(v_max(t, v_set(MAGIC - top)), v_set(MAGIC + top - 1));
    return t - v_set(MAGIC);
}

/* Gain: how much less is left than by all zeros. */
INLINE void signed_try(const struct panel *p, int n, float top, vf id, vf *s, vf *gain)
{
    vf xq = v_set(0), qq = v_set(0);
    for (int i = 0; i < n; i++) {
        vf q = signed_round(p->x[i], id, top), wq = p->w[i] * q;
        xq = v_fma(wq, p->x[i], xq);
        qq = v_fma(wq, q, qq);
    }
    vf best = xq * v_inverse(qq), g = best * xq;
    *s = v_sel_gt(g, *gain, best, *s);
    *gain = v_max(*gain, g);
}

INLINE vf signed_search(const struct panel *p, int n, float top)
{
    vf max = p->x[0], gain = v_set(0);
    for (int i = 1; i < n; i++) max = v_sel_gt(v_abs(p->x[i]), v_abs(max), p->x[i], max);
    float far = top == 0 ? -iq4_levels[0] : top, step = top == 0 ? 1.0f : 0.1f;
    int reach = top == 0 ? 7 : 9;
    vf s = max * v_set(-1 / far), inverse = -v_inverse(max);
    for (int k = -reach; k <= reach; k++)
        signed_try(p, n, top, v_set(far + step * (float)k) * inverse, &s, &gain);
    for (int k = 0; k < 2; k++) signed_try(p, n, top, v_inverse(s), &s, &gain);
    return s;
}

INLINE vf signed_error(const struct panel *p, int n, float top, vf s)
{
    vf id = v_inverse(s), sum = v_set(0);
    for (int i = 0; i < n; i++) {
        vf r = s * signed_round(p->x[i], id, top) - p->x[i];
        sum = v_fma(p->w[i] * r, r, sum);
    }
    return sum;
}
