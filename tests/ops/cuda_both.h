/* cuda_both.h - tensors that exist twice, on the GPU and on the reference backend, and the error
 * between the two copies.
 *
 * open_all and close_all are the group setup and teardown. They fill the globals `gpu` and
 * `ref`. Without a GPU `gpu` stays NULL, and need_gpu() skips the running test. */
#ifndef TERN_TESTS_OPS_CUDA_BOTH_H
#define TERN_TESTS_OPS_CUDA_BOTH_H

#include "cuda_world.h"

#define EACH(i, list) for (size_t i = 0; i < sizeof list / sizeof *list; i++)

static const struct backend_limits limits = { .max_tokens = 512,
                                              .max_seqs = 16,
                                              .max_out = 512,
                                              .max_cols = 4096,
                                              .max_rows = 4096,
                                              .n_vocab = 4096,
                                              .n_heads = 32,
                                              .head_dim = 256,
                                              .index_rows = 1,
                                              .index_keys = 512 };

static struct backend *gpu, *ref;
static struct rng rng;

/* A tensor on the reference backend (c) and on the GPU (g), with the same random content. A gap
 * > 0 makes the row stride larger than the row length: stride = cols + gap. */
struct both {
    struct tensor c, g;
};

static inline size_t n_of(const struct tensor *t) { return (size_t)t->rows * t->stride; }

static inline struct both both_new(int rows, int cols, int gap, float scale)
{
    struct both b = { .c = { DT_F32, rows, cols, (size_t)(cols + gap), NULL } };
    float *x = mem_array(n_of(&b.c), sizeof(float));

    for (size_t i = 0; i < n_of(&b.c); i++) x[i] = rng_normal(&rng) * scale;
    b.c.data = x;
    b.g = b.c;
    b.g.data = device_copy(gpu, x, n_of(&b.c) * sizeof(float));
    return b;
}

static inline void both_free(struct both *b)
{
    gpu->free(gpu, b->g.data, n_of(&b->c) * sizeof(float), MEM_SCRATCH);
    mem_free(b->c.data);
}

/* Relative error of the GPU's copy against the reference's copy, both already computed. Infinite
 * if the gap behind any row changed: this catches operations that write between rows. least: the
 * expected magnitude of the values, see error_of. */
static inline double both_error_of(const struct both *b, double least)
{
    float *got = mem_array(n_of(&b->c), sizeof(float));
    double worst = 0;

    gpu->get(gpu, got, b->g.data, n_of(&b->c) * sizeof(float));
    sync_backend(gpu);
    for (int r = 0; r < b->c.rows; r++) {
        const float *w = tensor_row(&b->c, r), *g = got + (size_t)r * b->c.stride;
        worst = fmax(worst, error_of(g, w, (size_t)b->c.cols, least));
        if (memcmp(g + b->c.cols, w + b->c.cols,
                   (b->c.stride - (size_t)b->c.cols) * sizeof(float)) != 0)
            worst = INFINITY;
    }
    mem_free(got);
    return worst;
}

static inline double both_error(const struct both *b) { return both_error_of(b, 0.3); }

static inline void assert_both_close(const char *what, const struct both *b, double tol)
{
    double e = both_error(b);
    if (!(e <= tol))
        fail_msg("%s, %d x %d, stride %zu: relative error %g, allowed %g", what, b->c.rows,
                 b->c.cols, b->c.stride, e, tol);
}

/* int32 values in host memory (c) and a copy in device memory (g). */
struct ints {
    int32_t c[1024], *g;
};

static inline void ints_upload(struct ints *x, int n)
{
    x->g = device_copy(gpu, x->c, (size_t)n * sizeof(int32_t));
}

static inline void ints_free(struct ints *x, int n)
{
    gpu->free(gpu, x->g, (size_t)n * sizeof(int32_t), MEM_SCRATCH);
}

static inline int open_all(void **state)
{
    struct err e = { 0 };

    (void)state;
    rng_seed(&rng, 4);
    setenv("TERN_CUDA_EXACT", "0", 0); /* the tensor cores' kernels, for small shapes too */
    if (cuda_try(&gpu, &e) != OK) return 0;
    ref = reference_open();
    return gpu->reserve(gpu, &limits, &e) == OK ? 0 : -1;
}

static inline int close_all(void **state)
{
    (void)state;
    backend_close(gpu);
    backend_close(ref);
    return 0;
}

static inline void need_gpu(void)
{
    struct backend *be = gpu ? NULL : cuda_open();
    backend_close(be);
}
#endif
