/* streams.c - operations on several residual streams of a token (gemma 3n's AltUp), and its sparse
 * activation. Plain C; the streams of a token are the parts of one row. */
#include "kernel/cpu/cpu.h"

#include <math.h>

struct streams { /* arguments of the functions below */
    const struct vec *vec;
    const struct tensor *out, *x, *coefs;
    int n, col;
    float plus;
};

static void mix_rows(const void *arg, int begin, int end)
{
    const struct streams *a = arg;
    int wide = a->x->cols / a->n;

    for (int r = begin; r < end; r++) {
        const float *x = tensor_row(a->x, r), *c = tensor_row(a->coefs, r);
        float *out = tensor_row(a->out, r);
        for (int i = 0; i < a->n; i++) {
            a->vec->scale(out + (size_t)i * wide, x + (size_t)i * wide, 1, wide);
            for (int j = 0; j < a->n; j++)
                a->vec->add(out + (size_t)i * wide, x + (size_t)j * wide, c[i * a->n + j], wide);
        }
    }
}

void cpu_mix_streams(struct backend *be, const struct tensor *out, const struct tensor *x,
                     const struct tensor *coefs, int n)
{
    struct cpu *c = cpu_of(be);

    cpu_rows(c, x->rows, (long long)x->rows * x->cols * n, mix_rows,
             &(struct streams){ .vec = c->vec, .out = out, .x = x, .coefs = coefs, .n = n });
}

void cpu_add_weighted(struct backend *be, const struct tensor *x, const struct tensor *y,
                      const struct tensor *coefs, int col, float plus)
{
    const struct vec *vec = cpu_of(be)->vec;

    for (int r = 0; r < x->rows; r++)
        vec->add(tensor_row(x, r), tensor_row(y, r), tensor_row(coefs, r)[col] + plus, x->cols);
}

static double mean_square(const float *x, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum / n;
}

void cpu_match_rms(struct backend *be, const struct tensor *x, const struct tensor *like, float eps)
{
    const struct vec *vec = cpu_of(be)->vec;

    for (int r = 0; r < x->rows; r++) {
        float *row = tensor_row(x, r);
        double own = mean_square(row, x->cols), want = mean_square(tensor_row(like, r), like->cols);
        vec->scale(row, row, (float)(sqrt(want) / sqrt(own > (double)eps ? own : (double)eps)),
                   x->cols);
    }
}

static void sparsify_rows(const void *arg, int begin, int end)
{
    const struct streams *a = arg;

    for (int r = begin; r < end; r++) {
        float *x = tensor_row(a->x, r);
        double mean = 0, var = 0;
        float cut;
        for (int i = 0; i < a->x->cols; i++) mean += (double)x[i] / a->x->cols;
        for (int i = 0; i < a->x->cols; i++)
            var += ((double)x[i] - mean) * ((double)x[i] - mean) / a->x->cols;
        cut = (float)(mean + sqrt(var) * (double)a->plus);
        for (int i = 0; i < a->x->cols; i++) x[i] = x[i] > cut ? x[i] - cut : 0;
    }
}

void cpu_sparsify(struct backend *be, const struct tensor *x, float deviations)
{
    cpu_rows(cpu_of(be), x->rows, 4ll * x->rows * x->cols, sparsify_rows,
             &(struct streams){ .x = x, .plus = deviations });
}
