/* recur_impl.h - recur.h's pieces on whatever vectors simd.h gives. Included by recur_avx2.c,
 * recur_avx512.c and recur_neon.c, which name the table.
 *
 * Channels lie side by side in a vector, so that no sum crosses lanes. A tile of the state (some of
 * its rows, one vector of channels) stays in registers while all tokens of a chunk go through it.
 */
#include "kernel/cpu/recur.h"
#include "kernel/cpu/simd.h"

#include <math.h>

#define TILE (W == 16 ? 16 : 8) /* rows of state in registers */
#define CHUNK 64                /* tokens between two looks at the state's memory */

INLINE vf load(const float *p, int lanes) { return lanes == W ? v_load(p) : v_load_n(p, lanes); }
INLINE void store(float *p, vf v, int lanes)
{
    if (lanes == W) v_store(p, v);
    else v_store_n(p, v, lanes);
}

/* log(1 + u) = 2 atanh(u / (2 + u)) for u = e^-|x| in (0, 1]: the argument is at most a third. */
INLINE vf v_softplus(vf x)
{
    vf u = v_exp(-v_abs(x)), s = u / (u + v_set(2)), q = s * s;
    vf p = v_set(2.0f / 15);
    p = v_fma(p, q, v_set(2.0f / 13));
    p = v_fma(p, q, v_set(2.0f / 11));
    p = v_fma(p, q, v_set(2.0f / 9));
    p = v_fma(p, q, v_set(2.0f / 7));
    p = v_fma(p, q, v_set(2.0f / 5));
    p = v_fma(p, q, v_set(2.0f / 3));
    p = v_fma(p, q, v_set(2));
    return v_fma(p, s, v_max(x, v_set(0)));
}

static void softplus(float *x, const float *bias, int n, float lo, float hi)
{
    for (int i = 0; i < n; i += W) {
        int lanes = n - i < W ? n - i : W;
        vf v = load(x + i, lanes);
        if (bias) v += load(bias + i, lanes);
        store(x + i, v_min(v_max(v_softplus(v), v_set(lo)), v_set(hi)), lanes);
    }
}

static void conv(float *out, const float *const *rows, const float *w, size_t w_stride,
                 const float *bias, int k, int n)
{
    for (int i = 0; i < n; i += W) {
        int lanes = n - i < W ? n - i : W;
        vf sum = bias ? load(bias + i, lanes) : v_set(0);
        for (int j = 0; j < k; j++)
            sum = v_fma(load(w + (size_t)j * w_stride + i, lanes), load(rows[j] + i, lanes), sum);
        store(out + i, sum, lanes);
    }
}

/* ---- one dt and a for all channels ---- */

/* m rows of the state from row `row` on, one vector of channels from i on, through n tokens. */
INLINE void scan_tile(const struct scan_piece *p, const float *decay, int t0, int n, int row, int m,
                      int i, int lanes)
{
    float *h0 = p->h + (size_t)row * p->h_stride + i;
    vf h[TILE];

    UNROLL
    for (int r = 0; r < m; r++) h[r] = load(h0 + (size_t)r * p->h_stride, lanes);
    for (int t = t0; t < t0 + n; t++) {
        const float *b = p->b + (size_t)t * p->b_stride + row,
                    *c = p->c + (size_t)t * p->c_stride + row;
        float *out = p->out + (size_t)t * p->out_stride + i;
        vf x = load(p->x + (size_t)t * p->x_stride + i, lanes);
        vf y = x * v_set(*p->d), even = v_set(0);
        vf dx = x * v_set(p->dt[(size_t)t * p->dt_stride]), keep = v_set(decay[t - t0]);
        if (row) y = load(out, lanes);
        UNROLL
        for (int r = 0; r < m; r++) {
            h[r] = v_fma(dx, v_set(b[r]), keep * h[r]);
            if (r % 2) y = v_fma(h[r], v_set(c[r]), y);
            else even = v_fma(h[r], v_set(c[r]), even);
        }
        store(out, y + even, lanes);
    }
    UNROLL
    for (int r = 0; r < m; r++) store(h0 + (size_t)r * p->h_stride, h[r], lanes);
}

static void scan_narrow(const struct scan_piece *p, const float *decay, int t0, int n, int row,
                        int i, int lanes)
{
    scan_tile(p, decay, t0, n, row, TILE, i, lanes);
}

static void scan_row(const struct scan_piece *p, const float *decay, int t0, int n, int row, int i,
                     int lanes)
{
    scan_tile(p, decay, t0, n, row, 1, i, lanes);
}

static void scan(const struct scan_piece *p)
{
    float decay[CHUNK];

    for (int t0 = 0; t0 < p->n; t0 += CHUNK) {
        int n = p->n - t0 < CHUNK ? p->n - t0 : CHUNK;
        for (int t = 0; t < n; t++) decay[t] = expf(p->dt[(size_t)(t0 + t) * p->dt_stride] * *p->a);
        for (int i = 0; i < p->channels; i += W) {
            int lanes = p->channels - i < W ? p->channels - i : W, row = 0;
            for (; row + TILE <= p->n_state; row += TILE) {
                if (lanes == W) scan_tile(p, decay, t0, n, row, TILE, i, W);
                else scan_narrow(p, decay, t0, n, row, i, lanes);
            }
            for (; row < p->n_state; row++) scan_row(p, decay, t0, n, row, i, lanes);
        }
    }
}

/* ---- each channel its own ---- */

INLINE void wide_tile(const struct scan_piece *p, int row, int m, int i, int lanes)
{
    float *h0 = p->h + (size_t)row * p->h_stride + i;
    const float *a0 = p->a + (size_t)row * p->a_stride + i;
    vf h[TILE], d = load(p->d + i, lanes);

    UNROLL
    for (int r = 0; r < m; r++) h[r] = load(h0 + (size_t)r * p->h_stride, lanes);
    for (int t = 0; t < p->n; t++) {
        const float *b = p->b + (size_t)t * p->b_stride + row,
                    *c = p->c + (size_t)t * p->c_stride + row;
        float *out = p->out + (size_t)t * p->out_stride + i;
        vf x = load(p->x + (size_t)t * p->x_stride + i, lanes);
        vf dt = load(p->dt + (size_t)t * p->dt_stride + i, lanes), dx = dt * x;
        vf y = x * d;
        if (row) y = load(out, lanes);
        UNROLL
        for (int r = 0; r < m; r++) {
            vf keep = v_exp(dt * load(a0 + (size_t)r * p->a_stride, lanes));
            h[r] = v_fma(dx, v_set(b[r]), keep * h[r]);
            y = v_fma(h[r], v_set(c[r]), y);
        }
        store(out, y, lanes);
    }
    UNROLL
    for (int r = 0; r < m; r++) store(h0 + (size_t)r * p->h_stride, h[r], lanes);
}

static void wide_narrow(const struct scan_piece *p, int row, int i, int lanes)
{
    wide_tile(p, row, TILE, i, lanes);
}
static void wide_row(const struct scan_piece *p, int row, int i, int lanes)
{
    wide_tile(p, row, 1, i, lanes);
}

static void scan_wide(const struct scan_piece *p)
{
    for (int i = 0; i < p->channels; i += W) {
        int lanes = p->channels - i < W ? p->channels - i : W, row = 0;
        for (; row + TILE <= p->n_state; row += TILE) {
            if (lanes == W) wide_tile(p, row, TILE, i, W);
            else wide_narrow(p, row, i, lanes);
        }
        for (; row < p->n_state; row++) wide_row(p, row, i, lanes);
    }
}

/* ---- the gated delta rule ---- */

/* nv vectors of the state's columns from i on, all of them lanes wide, one token. What the state
 * knows of k and says to q comes out of one pass over it, the rest follows: q h' = decay q h + (q
 * k) add. */
INLINE void delta_token(const struct delta_piece *p, int t, float qk, int i, int nv, int lanes)
{
    const float *q = p->q + (size_t)t * p->q_stride, *k = p->k + (size_t)t * p->k_stride;
    const float *v = p->v + (size_t)t * p->v_stride + i;
    float *out = p->out + (size_t)t * p->out_stride + i, *h = p->h + i;
    vf known[4], said[4], add[4], keep = v_set(p->decay[t]);

    UNROLL
    for (int c = 0; c < nv; c++) known[c] = said[c] = v_set(0);
    for (int j = 0; j < p->dim_k; j++) {
        vf kj = v_set(k[j]), qj = v_set(q[j]);
        UNROLL
        for (int c = 0; c < nv; c++) {
            vf s = load(h + (size_t)j * (size_t)p->dim_v + c * W, lanes);
            known[c] = v_fma(s, kj, known[c]);
            said[c] = v_fma(s, qj, said[c]);
        }
    }
    UNROLL
    for (int c = 0; c < nv; c++) {
        vf was = known[c] * keep * v_set(p->k_scale);
        add[c] = (load(v + c * W, lanes) - was) * v_set(p->beta[t] * p->k_scale);
        store(out + c * W, (said[c] * keep + add[c] * v_set(qk)) * v_set(p->q_scale), lanes);
    }
    for (int j = 0; j < p->dim_k; j++) {
        vf kj = v_set(k[j]);
        UNROLL
        for (int c = 0; c < nv; c++) {
            float *s = h + (size_t)j * (size_t)p->dim_v + c * W;
            store(s, v_fma(kj, add[c], load(s, lanes) * keep), lanes);
        }
    }
}

static float dot(const float *a, const float *b, int n)
{
    vf sum = v_set(0);

    for (int i = 0; i < n; i += W) {
        int lanes = n - i < W ? n - i : W;
        sum = v_fma(load(a + i, lanes), load(b + i, lanes), sum);
    }
    return v_sum(sum);
}

static void delta(const struct delta_piece *p)
{
    for (int t = 0; t < p->n; t++) {
        float qk = dot(p->q + (size_t)t * p->q_stride, p->k + (size_t)t * p->k_stride, p->dim_k);
        int i = 0;
        for (; i + 4 * W <= p->dim_v; i += 4 * W) delta_token(p, t, qk, i, 4, W);
        for (; i + W <= p->dim_v; i += W) delta_token(p, t, qk, i, 1, W);
        if (i < p->dim_v) delta_token(p, t, qk, i, 1, p->dim_v - i);
    }
}

const struct recur RECUR = {
    .name = SIMD_NAME,
    .softplus = softplus,
    .conv = conv,
    .scan = scan,
    .scan_wide = scan_wide,
    .delta = delta,
};
