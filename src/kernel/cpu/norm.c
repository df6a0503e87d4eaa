/* norm.c - RMSNorm and LayerNorm of rows and of heads; the arithmetic is in vec_impl.h. */
#include "kernel/cpu/cpu.h"

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
