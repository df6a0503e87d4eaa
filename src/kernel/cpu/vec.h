/* vec.h - element-wise operations and reductions on rows of floats: one table per instruction set.
 *
 * vec_ref is the definition; the others are vec_impl.h compiled for their vectors. The best one is
 * chosen at start-up. Rows need no alignment; out may be an input. n is the number of elements. */
#ifndef TERN_KERNEL_CPU_VEC_H
#define TERN_KERNEL_CPU_VEC_H

#include "kernel/backend.h"

#define N_ACTS (ACT_NONE + 1)

#define VEC_PANEL 32 /* columns of a packed right operand */

enum vec_bin { VEC_ADD, VEC_SUB, VEC_MUL, VEC_DIV, N_VEC_BINS };

/* c[m][n] = a[m][k] b[k][VEC_PANEL] (or +=), n <= VEC_PANEL: a step of the GEMM of ONNX graphs. */
struct vec_panel {
    int m, n, k;
    const float *a, *b;
    float *c;
    size_t lda, ldc; /* elements from one row to the next */
    bool add;
};

struct vec {
    const char *name;
    void (*rmsnorm)(float *out, const float *x, const float *w, int n, float eps);
    void (*layernorm)(float *out, const float *x, const float *w, const float *b, int n, float eps);
    void (*act[N_ACTS])(float *out, const float *gate, const float *up,
                        int n); /* act(gate) * up; up may be NULL */
    /* x += scale * y */
    void (*add)(float *x, const float *y, float scale, int n);
    void (*scale)(float *out, const float *x, float scale, int n);
    void (*softcap)(float *x, float cap, int n);
    /* Rotates one head, by enum rope_style; table: (cos, sin) pairs. */
    void (*rope[2])(float *x, const float *table, int n_rot);
    /* Converts from and to the types of a KV cache. Q8_0: n is a multiple of 32. */
    void (*load)(enum dtype t, float *dst, const void *src, int n);
    void (*store)(enum dtype t, void *dst, const float *src, int n);
    /* Operations of ONNX graphs. out = a op b; b has n elements, or one (bin1). */
    void (*bin[N_VEC_BINS])(float *out, const float *a, const float *b, int n);
    void (*bin1[N_VEC_BINS])(float *out, const float *a, float b, int n);
    void (*softmax)(float *out, const float *x, int n);
    void (*erf)(float *out, const float *x, int n);
    void (*tanh)(float *out, const float *x, int n);
    void (*panel)(const struct vec_panel *p);
};

extern const struct vec vec_ref, vec_avx2, vec_avx512, vec_neon; /* those of this architecture */

bool vec_runs(const char *set); /* this machine has the instruction set "avx2", "avx512", "neon" */
const struct vec *vec_best(void);                /* the fastest one this machine has */
const struct vec *vec_by_name(const char *name); /* NULL: unknown, or not on this machine */
#endif
