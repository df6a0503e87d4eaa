/* vec.h - small operations on rows of floats, one table per instruction set.
 *
 * vec_ref is the definition. The others are vec_impl.h compiled for wider registers; the
 * machine chooses at start-up. Rows need no alignment; out may be an input. */
#ifndef TERN_KERNEL_CPU_VEC_H
#define TERN_KERNEL_CPU_VEC_H

#include "kernel/backend.h"

#define N_ACTS (ACT_NONE + 1)

#define VEC_PANEL 32

enum vec_bin { VEC_ADD, VEC_SUB, VEC_MUL, VEC_DIV, N_VEC_BINS };

struct vec_panel {
    int m, n, k;
    const float *a, *b;
    float *c;
    size_t lda, ldc;
    bool add;
};

struct vec {
    const char *name;
    void (*rmsnorm)(float *out, const float *x, const float *w, int n, float eps);
    void (*layernorm)(float *out, const float *x, const float *w, const float *b, int n, float eps);
    void (*act[N_ACTS])(float *out, const float *gate, const float *up, int n); /* up may be NULL */
    void (*add)(float *x, const float *y, float scale, int n);
    void (*scale)(float *out, const float *x, float scale, int n);
    void (*softcap)(float *x, float cap, int n);
    void (*rope[2])(float *x, const float *table,
                    int n_rot); /* by style; table: (cos, sin) pairs */
    /* The types of a KV cache, in and out. Q8_0: n is whole blocks. */
    void (*load)(enum dtype t, float *dst, const void *src, int n);
    void (*store)(enum dtype t, void *dst, const float *src, int n);
    /* Of graphs: out = a op b, b n numbers or (bin1) one. */
    void (*bin[N_VEC_BINS])(float *out, const float *a, const float *b, int n);
    void (*bin1[N_VEC_BINS])(float *out, const float *a, float b, int n);
    void (*softmax)(float *out, const float *x, int n);
    void (*erf)(float *out, const float *x, int n);
    void (*tanh)(float *out, const float *x, int n);
    /* c[m][n] = (add: +=) a[m][k] b[k][VEC_PANEL], n <= VEC_PANEL */
    void (*panel)(const struct vec_panel *p);
};

extern const struct vec vec_ref, vec_avx2, vec_avx512,
    vec_neon; /* the last three where they are built */

/* Does this machine run that instruction set? */
bool vec_runs(const char *set);
const struct vec *vec_best(void);
const struct vec *vec_by_name(const char *name); /* NULL: unknown, or not on this machine */
#endif
