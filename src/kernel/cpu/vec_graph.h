/* vec_graph.h - the operations of vec.h that ONNX graphs use. Included by vec_impl.h only. */

/* out = a op b for arrays, and (name1) for an array and a scalar. */
#define BIN(name, op)                                                                \
    static void name(float *out, const float *a, const float *b, int n)              \
    {                                                                                \
        int i = 0;                                                                   \
        for (; i + W <= n; i += W) v_store(out + i, v_load(a + i) op v_load(b + i)); \
        for (; i < n; i++) out[i] = a[i] op b[i];                                    \
    }                                                                                \
    static void name##1(float *out, const float *a, float b, int n)                  \
    {                                                                                \
        int i = 0;                                                                   \
        for (; i + W <= n; i += W) v_store(out + i, v_load(a + i) op v_set(b));      \
        for (; i < n; i++) out[i] = a[i] op b;                                       \
    }
BIN(bin_add, +)
BIN(bin_sub, -)
BIN(bin_mul, *)
BIN(bin_div, /)

/* Subtracts the maximum first; the sum of the vector part is kept per lane. */
static void simd_softmax(float *out, const float *x, int n)
{
    vf most = v_set(-INFINITY), sum = v_set(0);
    float top, all = 0;
    int i;

    for (i = 0; i + W <= n; i += W) most = v_max(most, v_load(x + i));
    for (top = v_hmax(most); i < n; i++) top = x[i] > top ? x[i] : top;
    for (i = 0; i + W <= n; i += W) {
        vf y = v_exp(v_load(x + i) - v_set(top));
        v_store(out + i, y);
        sum += y;
    }
    for (; i < n; i++) all += out[i] = expf(x[i] - top);
    all = 1 / (all + v_sum(sum));
    for (i = 0; i + W <= n; i += W) v_store(out + i, v_load(out + i) * v_set(all));
    for (; i < n; i++) out[i] *= all;
}

INLINE vf erf_of(vf x) { return v_copysign(v_set(1) - v_erfc(v_abs(x)), x); }
INLINE vf tanh_of(vf x) { return v_tanh(x); }

/* out = f(x), element by element. */
#define EACH(name)                                                               \
    static void name##_row(float *out, const float *x, int n)                    \
    {                                                                            \
        int i = 0;                                                               \
        for (; i + W <= n; i += W) v_store(out + i, name##_of(v_load(x + i)));   \
        if (i < n) v_store_n(out + i, name##_of(v_load_n(x + i, n - i)), n - i); \
    }
EACH(erf)
EACH(tanh)

/* mr rows times two vectors of columns from column j on; sums stay in registers, k ascending. */
INLINE void panel_tile(const struct vec_panel *p, int mr, int i, int j)
{
    const float *a = p->a + (size_t)i * p->lda, *b = p->b + j;
    float *c = p->c + (size_t)i * p->ldc + j;
    vf s[12][2];
    int left = p->n - j;

    UNROLL
    for (int r = 0; r < mr; r++) s[r][0] = s[r][1] = v_set(0);
    for (int k = 0; k < p->k; k++, b += VEC_PANEL) {
        vf b0 = v_load(b), b1 = v_load(b + W);
        UNROLL
        for (int r = 0; r < mr; r++) {
            vf x = v_set(a[(size_t)r * p->lda + (size_t)k]);
            s[r][0] = v_fma(x, b0, s[r][0]);
            s[r][1] = v_fma(x, b1, s[r][1]);
        }
    }
    UNROLL
    for (int r = 0; r < mr; r++, c += p->ldc) {
        int n0 = left < W ? left : W, n1 = left < W ? 0 : left - W < W ? left - W : W;
        if (left >= 2 * W && !p->add) {
            v_store(c, s[r][0]);
            v_store(c + W, s[r][1]);
            continue;
        }
        if (p->add) s[r][0] += v_load_n(c, n0);
        v_store_n(c, s[r][0], n0);
        if (!n1) continue;
        if (p->add) s[r][1] += v_load_n(c + W, n1);
        v_store_n(c + W, s[r][1], n1);
    }
}

/* Register tiles of 12 (AVX-512 only), 6, 3 and 1 rows by two vectors of columns. */
static void simd_panel(const struct vec_panel *p)
{
    for (int j = 0; j < VEC_PANEL && j < p->n; j += 2 * W) {
        int i = 0;
        if (W == 16)
            for (; i + 12 <= p->m; i += 12) panel_tile(p, 12, i, j);
        for (; i + 6 <= p->m; i += 6) panel_tile(p, 6, i, j);
        for (; i + 3 <= p->m; i += 3) panel_tile(p, 3, i, j);
        for (; i < p->m; i++) panel_tile(p, 1, i, j);
    }
}
