/* recur.h - kernels of recurrent layers (convolution, selective scan, gated delta rule): one table
 * per instruction set.
 *
 * recur_ref is the definition; the others are recur_impl.h compiled for their vectors. recur.c cuts
 * a call into pieces: the tokens of one sequence, and some of its channels or one head. */
#ifndef TERN_KERNEL_CPU_RECUR_H
#define TERN_KERNEL_CPU_RECUR_H

#include "kernel/backend.h"

#define CONV_MAX 64 /* largest kernel size of a convolution */

/* Some channels of one head and n tokens of one sequence. The state h has n_state rows, h_stride
 * floats apart. Pointers are those of the first token. */
struct scan_piece {
    int n, channels, n_state;
    const float *x, *dt, *b, *c;                    /* dt: after bias, softplus and limits */
    size_t x_stride, dt_stride, b_stride, c_stride; /* from one token to the next */
    float *out;
    size_t out_stride;
    float *h;
    size_t h_stride;
    const float *a; /* scan: one value; scan_wide: n_state rows, a_stride floats apart */
    size_t a_stride;
    const float *d; /* scan: one value; scan_wide: one per channel */
};

/* One head and n tokens of one sequence. The state h is [dim_k][dim_v]. */
struct delta_piece {
    int n, dim_k, dim_v;
    const float *q, *k, *v; /* of the first token */
    size_t q_stride, k_stride, v_stride;
    const float *decay, *log_decay, *beta; /* [n] per token: factor of the state, its logarithm;
                                            * learning rate of the delta rule */
    float q_scale, k_scale;
    float *out;
    size_t out_stride;
    float *h;
};

struct recur {
    const char *name;
    /* x = clamp(log(1 + e^(x + bias)), lo, hi); bias may be NULL */
    void (*softplus)(float *x, const float *bias, int n, float lo, float hi);
    /* out[i] = bias[i] + sum over the k rows j of w[j][i] rows[j][i]; bias may be NULL */
    void (*conv)(float *out, const float *const *rows, const float *w, size_t w_stride,
                 const float *bias, int k, int n);
    void (*scan)(const struct scan_piece *p);      /* Mamba 2: one dt and one a for all channels */
    void (*scan_wide)(const struct scan_piece *p); /* Mamba 1: one dt and one a per channel */
    void (*delta)(const struct delta_piece *p);
    /* Recurrences by matrix products, for many tokens (recur_chunk.h). NULL: there is none. States have
     * at most most_keys rows. scan_chunks processes that many heads of one group from the first on;
     * their states lie one after the other. */
    void (*scan_chunks)(const struct scan_piece *first, int heads);
    void (*delta_chunks)(const struct delta_piece *p);
    int most_keys;
};

extern const struct recur recur_ref, recur_avx2, recur_avx512,
    recur_neon;                                      /* those of this architecture */
const struct recur *recur_by_name(const char *name); /* NULL: unknown, or not on this machine */
#endif
