/* recur.h - pieces of the recurrent operations: one table an instruction set.
 *
 * recur_ref is the definition. The others are recur_impl.h compiled for wider registers. recur.c
 * cuts a call into pieces, each a run of tokens and a part of its channels or one head. */
#ifndef TERN_KERNEL_CPU_RECUR_H
#define TERN_KERNEL_CPU_RECUR_H

#include "kernel/backend.h"

#define CONV_MAX 64 /* taps of a convolution */

/* Some channels of one head, n tokens. State h is [n_state] rows, h_stride floats apart. */
struct scan_piece {
    int n, channels, n_state;
    const float *x, *dt, *b,
        *c; /* of the first token; dt is ready: softplus, bias and limits are in it */
    size_t x_stride, dt_stride, b_stride, c_stride; /* from one token to the next */
    float *out;
    size_t out_stride;
    float *h;
    size_t h_stride;
    const float *a; /* scan: one number; scan_wide: [n_state] rows, a_stride floats apart */
    size_t a_stride;
    const float *d; /* scan: one number; scan_wide: one a channel */
};

/* One head, n tokens. State h is [dim_k][dim_v]. */
struct delta_piece {
    int n, dim_k, dim_v;
    const float *q, *k, *v; /* of the first token */
    size_t q_stride, k_stride, v_stride;
    const float *decay, *beta; /* [n] of each token: what the state is multiplied with; the step */
    float q_scale, k_scale;
    float *out;
    size_t out_stride;
    float *h;
};

struct recur {
    const char *name;
    /* x = log(1 + e^(x + bias)), kept between lo and hi; bias may be NULL */
    void (*softplus)(float *x, const float *bias, int n, float lo, float hi);
    /* out[i] = bias[i] + sum of w[j][i] rows[j][i] over k rows; bias may be NULL */
    void (*conv)(float *out, const float *const *rows, const float *w, size_t w_stride,
                 const float *bias, int k, int n);
    void (*scan)(const struct scan_piece *p); /* one dt and a for all channels: a head of mamba 2 */
    void (*scan_wide)(const struct scan_piece *p); /* each channel its own: mamba */
    void (*delta)(const struct delta_piece *p);
};

extern const struct recur recur_ref, recur_avx2, recur_avx512,
    recur_neon; /* where they are built */
const struct recur *recur_best(void);
const struct recur *recur_by_name(const char *name); /* NULL: unknown, or not on this machine */
#endif
