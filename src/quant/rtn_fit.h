/* rtn_fit.h - scale search for W sub-blocks at once, one per vector lane.
 *
 * The method is that of kernel/quant_fit.c: candidate scales around the range of the elements are
 * tried; for the integers each rounds to, the best scale (and minimum) follows by weighted least
 * squares, and so does the remaining error. Included by rtn_impl.h only, after simd.h. */

/* Element i of W sub-blocks, and its error weight. The first n of 32 are in use. */
struct panel {
    vf x[32], w[32];
};

/* Transposes W sub-blocks of n elements. */
INLINE void transpose_panel(vf *to, const float *p, int n)
{
    for (int i0 = 0; i0 < n; i0 += W) {
        vf r[W];
        for (int j = 0; j < W; j++) r[j] = v_load(p + j * n + i0);
        v_transpose(r);
        for (int i = 0; i < W; i++) to[i0 + i] = r[i];
    }
}

INLINE void load_panel(struct panel *p, const float *x, const float *w, int n)
{
    transpose_panel(p->x, x, n);
    transpose_panel(p->w, w, n);
}

/* Integers in [0, 255] back to the order of the sub-blocks. */
INLINE void store_panel(uint8_t *to, const vf *q, int n)
{
    for (int i0 = 0; i0 < n; i0 += W) {
        vf r[W];
        for (int i = 0; i < W; i++) r[i] = q[i0 + i];
        v_transpose(r);
        for (int j = 0; j < W; j++) v_store_i8((int8_t *)to + j * n + i0, r[j]);
    }
}

/* 1/v, or 0 if |v| is tiny: all integers of the sub-block are then 0. */
INLINE vf v_inverse(vf v)
{
    return v_sel_gt(v_abs(v), v_set(1e-30f),
                    v_set(1) / v_sel_gt(v_abs(v), v_set(1e-30f), v, v_set(1)), v_set(0));
}

/* Floats of this size have no fraction bits: adding it rounds to an integer, subtracting it leaves
 * the integer. */
#define MAGIC 0x1.8p23f

/* ---- with a minimum: x = s q - m, q in [0, top] ---- */

struct affine {
    vf s, m;
};

/* Sums over sub-blocks, weighted by w: of w, w x, w x^2, w q, w q^2, w x q. */
struct sums {
    vf w, x, xx, q, qq, xq;
};

INLINE vf round_affine(vf x, vf id, vf off, float top)
{
    vf t = v_min(v_max(v_fma(x, id, off), v_set(0)), v_set(top));
    return (t + v_set(MAGIC)) - v_set(MAGIC);
}

INLINE void fill_affine_sums(struct sums *t, const struct panel *p, int n, float top, vf id, vf m)
{
    vf q1 = v_set(0), q2 = v_set(0), xq = v_set(0), off = m * id;
    for (int i = 0; i < n; i++) {
        vf q = round_affine(p->x[i], id, off, top), wq = p->w[i] * q;
        q1 = q1 + wq;
        q2 = v_fma(wq, q, q2);
        xq = v_fma(wq, p->x[i], xq);
    }
    t->q = q1, t->qq = q2, t->xq = xq;
}

#define WORST 3e38f

/* Solves for s and m at fixed q (m >= 0 unless `free`); replaces *best in the lanes where the error
 * becomes smaller than *error. */
INLINE void solve_affine(const struct sums *t, bool free, struct affine *best, vf *error)
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

/* free: m may be negative, as Q4_1 and Q5_1 can store it. */
INLINE struct affine search_affine(const struct panel *p, int n, float top, bool free)
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
        fill_affine_sums(&t, p, n, top, v_set(top + 0.1f * (float)k) * inverse, -min);
        solve_affine(&t, free, &best, &error);
    }
    for (int k = 0; k < 2; k++) { /* round with the best so far and solve again */
        fill_affine_sums(&t, p, n, top, v_inverse(best.s), best.m);
        solve_affine(&t, free, &best, &error);
    }
    return best;
}

/* The weighted error with these s and m. */
INLINE vf affine_error(const struct panel *p, int n, float top, vf s, vf m)
{
    vf id = v_inverse(s), off = m * id, sum = v_set(0);
    for (int i = 0; i < n; i++) {
        vf r = v_fma(s, round_affine(p->x[i], id, off, top), -m) - p->x[i];
        sum = v_fma(p->w[i] * r, r, sum);
    }
    return sum;
}

/* ---- without a minimum: x = s q, q in [-top, top - 1], or for top 0 one of iq4_levels ---- */

INLINE vf nearest_level(vf v)
{
    vf out = v_set(iq4_levels[0]);
    for (int l = 0; l < 15; l++) {
        float middle = 0.5f * (float)(iq4_levels[l] + iq4_levels[l + 1]);
        out = v_sel_gt(v, v_set(middle), v_set(iq4_levels[l + 1]), out);
    }
    return out;
}

INLINE vf round_signed(vf x, vf id, float top)
{
    if (top == 0) return nearest_level(x * id);
    vf t = v_fma(x, id, v_set(MAGIC)); /* rounds; clamped before MAGIC is subtracted */
    t = v_min(v_max(t, v_set(MAGIC - top)), v_set(MAGIC + top - 1));
    return t - v_set(MAGIC);
}

/* Gain: reduction of the error compared with all zeros. */
INLINE void try_signed(const struct panel *p, int n, float top, vf id, vf *s, vf *gain)
{
    vf xq = v_set(0), qq = v_set(0);
    for (int i = 0; i < n; i++) {
        vf q = round_signed(p->x[i], id, top), wq = p->w[i] * q;
        xq = v_fma(wq, p->x[i], xq);
        qq = v_fma(wq, q, qq);
    }
    vf best = xq * v_inverse(qq), g = best * xq;
    *s = v_sel_gt(g, *gain, best, *s);
    *gain = v_max(*gain, g);
}

INLINE vf search_signed(const struct panel *p, int n, float top)
{
    vf max = p->x[0], gain = v_set(0);
    for (int i = 1; i < n; i++) max = v_sel_gt(v_abs(p->x[i]), v_abs(max), p->x[i], max);
    float far = top == 0 ? -iq4_levels[0] : top, step = top == 0 ? 1.0f : 0.1f;
    int reach = top == 0 ? 7 : 9;
    vf s = max * v_set(-1 / far), inverse = -v_inverse(max);
    for (int k = -reach; k <= reach; k++)
        try_signed(p, n, top, v_set(far + step * (float)k) * inverse, &s, &gain);
    for (int k = 0; k < 2; k++) try_signed(p, n, top, v_inverse(s), &s, &gain);
    return s;
}

INLINE vf signed_error(const struct panel *p, int n, float top, vf s)
{
    vf id = v_inverse(s), sum = v_set(0);
    for (int i = 0; i < n; i++) {
        vf r = s * round_signed(p->x[i], id, top) - p->x[i];
        sum = v_fma(p->w[i] * r, r, sum);
    }
    return sum;
}
