/* recur_ref.c - the reference of the recurrent operations: plain C, token by token, sums in double. */
#include "kernel/cpu/recur.h"

#include <math.h>

/* Above 20, log(1 + e^v) equals v in F32. */
static void ref_softplus(float *x, const float *bias, int n, float lo, float hi)
{
    for (int i = 0; i < n; i++) {
        double v = (double)x[i] + (bias ? (double)bias[i] : 0);
        v = v > 20 ? v : log1p(exp(v));
        x[i] = (float)(v < lo ? lo : v > hi ? hi : v);
    }
}

static void ref_conv(float *out, const float *const *rows, const float *w, size_t w_stride,
                     const float *bias, int k, int n)
{
    for (int i = 0; i < n; i++) {
        double sum = bias ? (double)bias[i] : 0;
        for (int j = 0; j < k; j++) sum += (double)w[(size_t)j * w_stride + (size_t)i] * rows[j][i];
        out[i] = (float)sum;
    }
}

/* One token and channel: h = e^(dt a) h + dt b x; out = c h + d x */
static void scan_step(const struct scan_piece *p, int t, int i, double dt, const float *a,
                      size_t a_stride, double d)
{
    const float *b = p->b + (size_t)t * p->b_stride, *c = p->c + (size_t)t * p->c_stride;
    double x = p->x[(size_t)t * p->x_stride + (size_t)i], y = d * x;

    for (int n = 0; n < p->n_state; n++) {
        float *h = p->h + (size_t)n * p->h_stride + i;
        *h = (float)(exp(dt * (double)a[(size_t)n * a_stride]) * *h + dt * b[n] * x);
        y += (double)*h * c[n];
    }
    p->out[(size_t)t * p->out_stride + (size_t)i] = (float)y;
}

/* One dt, a and d for all channels. */
static void ref_scan(const struct scan_piece *p)
{
    for (int t = 0; t < p->n; t++)
        for (int i = 0; i < p->channels; i++)
            scan_step(p, t, i, (double)p->dt[(size_t)t * p->dt_stride], p->a, 0, (double)*p->d);
}

/* dt and d per channel, a per channel and state element. */
static void ref_scan_wide(const struct scan_piece *p)
{
    for (int t = 0; t < p->n; t++)
        for (int i = 0; i < p->channels; i++)
            scan_step(p, t, i, (double)p->dt[(size_t)t * p->dt_stride + (size_t)i], p->a + i,
                      p->a_stride, (double)p->d[i]);
}

/* One token and column of the state: h = decay h; h += k beta (v - k h); out = q h */
static void delta_column(const struct delta_piece *p, int t, int i)
{
    const float *q = p->q + (size_t)t * p->q_stride, *k = p->k + (size_t)t * p->k_stride;
    double known = 0, y = 0, add;

    for (int j = 0; j < p->dim_k; j++) {
        float *h = p->h + (size_t)j * (size_t)p->dim_v + i;
        *h *= p->decay[t];
        known += (double)*h * k[j] * (double)p->k_scale;
    }
    add = ((double)p->v[(size_t)t * p->v_stride + (size_t)i] - known) * (double)p->beta[t];
    for (int j = 0; j < p->dim_k; j++) {
        float *h = p->h + (size_t)j * (size_t)p->dim_v + i;
        *h += (float)((double)k[j] * (double)p->k_scale * add);
        y += (double)*h * q[j] * (double)p->q_scale;
    }
    p->out[(size_t)t * p->out_stride + (size_t)i] = (float)y;
}

static void ref_delta(const struct delta_piece *p)
{
    for (int t = 0; t < p->n; t++)
        for (int i = 0; i < p->dim_v; i++) delta_column(p, t, i);
}

const struct recur recur_ref = {
    .name = "reference",
    .softplus = ref_softplus,
    .conv = ref_conv,
    .scan = ref_scan,
    .scan_wide = ref_scan_wide,
    .delta = ref_delta,
};
