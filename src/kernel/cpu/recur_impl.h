/* recur_impl.h - the recurrent kernels (recur.h) in the vectors of simd.h. Included by
 * recur_avx2.c, recur_avx512.c and recur_neon.c, each of which defines RECUR, the name of its table.
 *
 * The lanes of a vector are channels, so no sum crosses lanes. A tile of the state (TILE rows, one
 * vector of channels) stays in registers while all tokens of a chunk are applied to it. */
#include "kernel/cpu/recur.h"
#include "kernel/cpu/simd.h"

#include <math.h>

#define TILE (W == 16 ? 16 : 8) /* rows of state in registers */
#define CHUNK 64                /* tokens between loading and storing a tile of the state */

/* The first `lanes` elements; lanes is W almost always. */
INLINE vf load_lanes(const float *p, int lanes)
{
    return lanes == W ? v_load(p) : v_load_n(p, lanes);
}
INLINE void store_lanes(float *p, vf v, int lanes)
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

/* In place; see v_softplus. */
static void simd_softplus(float *x, const float *bias, int n, float lo, float hi)
{
    for (int i = 0; i < n; i += W) {
        int lanes = n - i < W ? n - i : W;
        vf v = load_lanes(x + i, lanes);
        if (bias) v += load_lanes(bias + i, lanes);
        store_lanes(x + i, v_min(v_max(v_softplus(v), v_set(lo)), v_set(hi)), lanes);
    }
}

/* Rows are the inputs of the last k tokens, oldest first. */
static void simd_conv(float *out, const float *const *rows, const float *w, size_t w_stride,
                      const float *bias, int k, int n)
{
    for (int i = 0; i < n; i += W) {
        int lanes = n - i < W ? n - i : W;
        vf sum = bias ? load_lanes(bias + i, lanes) : v_set(0);
        for (int j = 0; j < k; j++)
            sum = v_fma(load_lanes(w + (size_t)j * w_stride + i, lanes),
                        load_lanes(rows[j] + i, lanes), sum);
        store_lanes(out + i, sum, lanes);
    }
}

/* ---- Mamba 2: one dt and one a for all channels ---- */

/* Applies n tokens to m rows of the state from `row` on, one vector of channels from i on. The
 * output accumulates over row tiles; odd and even rows go to two sums to shorten the dependency
 * chain. */
INLINE void scan_tile(const struct scan_piece *p, const float *decay, int t0, int n, int row, int m,
                      int i, int lanes)
{
    float *h0 = p->h + (size_t)row * p->h_stride + i;
    vf h[TILE];

    UNROLL
    for (int r = 0; r < m; r++) h[r] = load_lanes(h0 + (size_t)r * p->h_stride, lanes);
    for (int t = t0; t < t0 + n; t++) {
        const float *b = p->b + (size_t)t * p->b_stride + row,
                    *c = p->c + (size_t)t * p->c_stride + row;
        float *out = p->out + (size_t)t * p->out_stride + i;
        vf x = load_lanes(p->x + (size_t)t * p->x_stride + i, lanes);
        vf y = x * v_set(*p->d), even = v_set(0);
        vf dx = x * v_set(p->dt[(size_t)t * p->dt_stride]), keep = v_set(decay[t - t0]);
        if (row) y = load_lanes(out, lanes);
        UNROLL
        for (int r = 0; r < m; r++) {
            h[r] = v_fma(dx, v_set(b[r]), keep * h[r]);
            if (r % 2) y = v_fma(h[r], v_set(c[r]), y);
            else even = v_fma(h[r], v_set(c[r]), even);
        }
        store_lanes(out, y + even, lanes);
    }
    UNROLL
    for (int r = 0; r < m; r++) store_lanes(h0 + (size_t)r * p->h_stride, h[r], lanes);
}

/* scan_tile with fewer than W channels, not inlined: rare. */
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

/* Chunks of tokens outside, tiles of the state inside: the decay factors of a chunk are computed
 * once for all tiles. */
static void simd_scan(const struct scan_piece *p)
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

/* ---- Mamba 1: one dt and one a per channel ---- */

/* As scan_tile, with e^(dt a) per channel and state row. */
INLINE void wide_tile(const struct scan_piece *p, int row, int m, int i, int lanes)
{
    float *h0 = p->h + (size_t)row * p->h_stride + i;
    const float *a0 = p->a + (size_t)row * p->a_stride + i;
    vf h[TILE], d = load_lanes(p->d + i, lanes);

    UNROLL
    for (int r = 0; r < m; r++) h[r] = load_lanes(h0 + (size_t)r * p->h_stride, lanes);
    for (int t = 0; t < p->n; t++) {
        const float *b = p->b + (size_t)t * p->b_stride + row,
                    *c = p->c + (size_t)t * p->c_stride + row;
        float *out = p->out + (size_t)t * p->out_stride + i;
        vf x = load_lanes(p->x + (size_t)t * p->x_stride + i, lanes);
        vf dt = load_lanes(p->dt + (size_t)t * p->dt_stride + i, lanes), dx = dt * x;
        vf y = x * d;
        if (row) y = load_lanes(out, lanes);
        UNROLL
        for (int r = 0; r < m; r++) {
            vf keep = v_exp(dt * load_lanes(a0 + (size_t)r * p->a_stride, lanes));
            h[r] = v_fma(dx, v_set(b[r]), keep * h[r]);
            y = v_fma(h[r], v_set(c[r]), y);
        }
        store_lanes(out, y, lanes);
    }
    UNROLL
    for (int r = 0; r < m; r++) store_lanes(h0 + (size_t)r * p->h_stride, h[r], lanes);
}

static void wide_narrow(const struct scan_piece *p, int row, int i, int lanes)
{
    wide_tile(p, row, TILE, i, lanes);
}
static void wide_row(const struct scan_piece *p, int row, int i, int lanes)
{
    wide_tile(p, row, 1, i, lanes);
}

static void simd_scan_wide(const struct scan_piece *p)
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

/* Applies one token to nv vectors of state columns from i on. One pass over the state computes k h
 * (known) and q h (said); the output follows without a second pass, because the new state h' =
 * decay h + k add gives q h' = decay q h + (q k) add. */
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
            vf s = load_lanes(h + (size_t)j * (size_t)p->dim_v + c * W, lanes);
            known[c] = v_fma(s, kj, known[c]);
            said[c] = v_fma(s, qj, said[c]);
        }
    }
    UNROLL
    for (int c = 0; c < nv; c++) {
        vf was = known[c] * keep * v_set(p->k_scale);
        add[c] = (load_lanes(v + c * W, lanes) - was) * v_set(p->beta[t] * p->k_scale);
        store_lanes(out + c * W, (said[c] * keep + add[c] * v_set(qk)) * v_set(p->q_scale), lanes);
    }
    for (int j = 0; j < p->dim_k; j++) {
        vf kj = v_set(k[j]);
        UNROLL
        for (int c = 0; c < nv; c++) {
            float *s = h + (size_t)j * (size_t)p->dim_v + c * W;
            store_lanes(s, v_fma(kj, add[c], load_lanes(s, lanes) * keep), lanes);
        }
    }
}

static float dot_lanes(const float *a, const float *b, int n)
{
    vf sum = v_set(0);

    for (int i = 0; i < n; i += W) {
        int lanes = n - i < W ? n - i : W;
        sum = v_fma(load_lanes(a + i, lanes), load_lanes(b + i, lanes), sum);
    }
    return v_sum(sum);
}

/* Four vectors of columns at a time share the loads of q and k. */
static void simd_delta(const struct delta_piece *p)
{
    for (int t = 0; t < p->n; t++) {
        float qk =
            dot_lanes(p->q + (size_t)t * p->q_stride, p->k + (size_t)t * p->k_stride, p->dim_k);
        int i = 0;
        for (; i + 4 * W <= p->dim_v; i += 4 * W) delta_token(p, t, qk, i, 4, W);
        for (; i + W <= p->dim_v; i += W) delta_token(p, t, qk, i, 1, W);
        if (i < p->dim_v) delta_token(p, t, qk, i, 1, p->dim_v - i);
    }
}

#include "kernel/cpu/recur_chunk.h"

const struct recur RECUR = {
    .name = SIMD_NAME,
    .softplus = simd_softplus,
    .conv = simd_conv,
    .scan = simd_scan,
    .scan_wide = simd_scan_wide,
    .delta = simd_delta,
    .scan_chunks = simd_scan_chunks,
    .delta_chunks = simd_delta_chunks,
    .most_keys = MOST_KEYS,
};
