/* norm.c - RMSNorm and LayerNorm of rows and of heads; the arithmetic is in vec_impl.h. */
#include "kernel/cpu/cpu.h"

#include <math.h>

struct norm { /* arguments of the *_rows functions */
    const struct vec *vec;
    const struct tensor *out, *x;
    const float *w, *b;
    float eps;
    int n_heads, head_dim, w_stride;
};

static void rmsnorm_rows(const void *arg, int begin, int end)
{
    const struct norm *a = arg;

    for (int r = begin; r < end; r++)
        a->vec->rmsnorm(tensor_row(a->out, r), tensor_row(a->x, r), a->w, a->x->cols, a->eps);
}

void cpu_rmsnorm(struct backend *be, const struct tensor *out, const struct tensor *x,
                 const float *w, float eps)
{
    struct cpu *c = cpu_of(be);
    struct norm a = { .vec = c->vec, .out = out, .x = x, .w = w, .eps = eps };

    cpu_rows(c, x->rows, (long long)x->rows * x->cols, rmsnorm_rows, &a);
}

static void layernorm_rows(const void *arg, int begin, int end)
{
    const struct norm *a = arg;

    for (int r = begin; r < end; r++)
        a->vec->layernorm(tensor_row(a->out, r), tensor_row(a->x, r), a->w, a->b, a->x->cols,
                          a->eps);
}

void cpu_layernorm(struct backend *be, const struct tensor *out, const struct tensor *x,
                   const float *w, const float *b, float eps)
{
    struct cpu *c = cpu_of(be);
    struct norm a = { .vec = c->vec, .out = out, .x = x, .w = w, .b = b, .eps = eps };

    cpu_rows(c, x->rows, (long long)x->rows * x->cols, layernorm_rows, &a);
}

/* Each head of each row is one RMSNorm of head_dim elements. */
static void headnorm_rows(const void *arg, int begin, int end)
{
    const struct norm *a = arg;

    for (int r = begin; r < end; r++) {
        for (int h = 0; h < a->n_heads; h++) {
            float *x = tensor_row(a->x, r) + (size_t)h * a->head_dim;
            a->vec->rmsnorm(x, x, a->w ? a->w + (size_t)h * a->w_stride : NULL, a->head_dim,
                            a->eps);
        }
    }
}

void cpu_headnorm(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                  const float *w, int w_stride, float eps)
{
    struct cpu *c = cpu_of(be);
    struct norm a = { .vec = c->vec,
                      .x = x,
                      .w = w,
                      .eps = eps,
                      .n_heads = n_heads,
                      .head_dim = head_dim,
                      .w_stride = w_stride };

    cpu_rows(c, x->rows, (long long)x->rows * n_heads * head_dim, headnorm_rows, &a);
}

static void headnorm_layer_rows(const void *arg, int begin, int end)
{
    const struct norm *a = arg;

    for (int r = begin; r < end; r++) {
        for (int h = 0; h < a->n_heads; h++) {
            float *x = tensor_row(a->x, r) + (size_t)h * a->head_dim;
            size_t at = (size_t)h * a->w_stride;
            a->vec->layernorm(x, x, a->w ? a->w + at : NULL, a->b ? a->b + at : NULL, a->head_dim,
                              a->eps);
        }
    }
}

void cpu_headnorm_layer(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                        const float *w, const float *b, int w_stride, float eps)
{
    struct cpu *c = cpu_of(be);
    struct norm a = { .vec = c->vec,
                      .x = x,
                      .w = w,
                      .b = b,
                      .eps = eps,
                      .n_heads = n_heads,
                      .head_dim = head_dim,
                      .w_stride = w_stride };

    cpu_rows(c, x->rows, (long long)x->rows * n_heads * head_dim, headnorm_layer_rows, &a);
}

/* ---- norms over the columns of several members ---- */

struct wide_norm { /* arguments of the *_wide functions */
    const struct tensor *out, *x;
    const float *w;
    float *sums;
    float eps, n;
};

static void square_rows(const void *arg, int begin, int end)
{
    const struct wide_norm *a = arg;

    for (int r = begin; r < end; r++) {
        const float *p = tensor_row(a->x, r);
        double sum = 0;
        for (int i = 0; i < a->x->cols; i++) sum += (double)p[i] * p[i];
        a->sums[r] = (float)sum;
    }
}

void cpu_square_sums(struct backend *be, float *sums, const struct tensor *x, bool counts)
{
    struct wide_norm a = { .x = x, .sums = sums };

    if (counts) cpu_rows(cpu_of(be), x->rows, (long long)x->rows * x->cols, square_rows, &a);
    for (int r = 0; r < x->rows && !counts; r++) sums[r] = 0;
}

static void norm_rows(const void *arg, int begin, int end)
{
    const struct wide_norm *a = arg;

    for (int r = begin; r < end; r++) {
        const float *x = tensor_row(a->x, r);
        float *out = tensor_row(a->out, r), by = 1 / sqrtf(a->sums[r] / a->n + a->eps);
        for (int i = 0; i < a->x->cols; i++) out[i] = x[i] * (by * (a->w ? a->w[i] : 1));
    }
}

void cpu_norm_by_sums(struct backend *be, const struct tensor *out, const struct tensor *x,
                      const float *sums, int n, const float *w, float eps)
{
    struct wide_norm a = {
        .out = out, .x = x, .w = w, .sums = (float *)sums, .eps = eps, .n = (float)n
    };

    cpu_rows(cpu_of(be), x->rows, (long long)x->rows * x->cols, norm_rows, &a);
}
