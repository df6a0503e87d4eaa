/* hyper.c - hyper-connections (Xie et al., DeepSeek V4): several residual streams of a token, mixed by
 * weights that depend on it. Plain C; the streams of a token are the parts of one row. */
#include "kernel/cpu/cpu.h"

#include <math.h>

enum { MOST = 64 }; /* streams that a row is mixed of at once */

struct hyper { /* arguments of the functions below */
    const struct tensor *out, *s, *w;
    const float *base, *scale;
    const struct hyper_opt *o;
    int n;
};

static float sigmoid(float x) { return (float)(1 / (1 + exp(-(double)x))); }

/* Each column, or each row, is divided by its sum. */
static void normalize(float *m, int n, bool columns, float eps)
{
    for (int i = 0; i < n; i++) {
        float sum = eps;
        for (int k = 0; k < n; k++) sum += m[columns ? k * n + i : i * n + k];
        for (int k = 0; k < n; k++) m[columns ? k * n + i : i * n + k] /= sum;
    }
}

/* Softmax of each row, then columns and rows in turn (Sinkhorn, Knopp). */
static void make_stochastic(float *m, const struct hyper_opt *o)
{
    int n = o->n;

    for (int i = 0; i < n; i++) {
        float max = m[i * n], sum = 0;
        for (int k = 1; k < n; k++) max = m[i * n + k] > max ? m[i * n + k] : max;
        for (int k = 0; k < n; k++) sum += m[i * n + k] = expf(m[i * n + k] - max);
        for (int k = 0; k < n; k++) m[i * n + k] = m[i * n + k] / sum + o->eps;
    }
    normalize(m, n, true, o->eps);
    for (int i = 1; i < o->iters; i++) {
        normalize(m, n, false, o->eps);
        normalize(m, n, true, o->eps);
    }
}

static void weigh_rows(const void *arg, int begin, int end)
{
    const struct hyper *a = arg;
    int n = a->o->n;

    for (int r = begin; r < end; r++) {
        float *x = tensor_row(a->w, r);
        for (int i = 0; i < a->w->cols; i++)
            x[i] = x[i] * a->scale[i < n ? 0 : i < 2 * n ? 1 : 2] + a->base[i];
        for (int i = 0; i < n; i++) x[i] = sigmoid(x[i]) + a->o->eps;
        if (a->w->cols == n) continue;
        for (int i = n; i < 2 * n; i++) x[i] = 2 * sigmoid(x[i]);
        make_stochastic(x + 2 * n, a->o);
    }
}

void cpu_hyper_weights(struct backend *be, const struct tensor *x, const float *base,
                       const float *scale, const struct hyper_opt *opt)
{
    cpu_rows(cpu_of(be), x->rows, (long long)x->rows * x->cols * 4 * opt->iters, weigh_rows,
             &(struct hyper){ .w = x, .base = base, .scale = scale, .o = opt });
}

static void read_rows(const void *arg, int begin, int end)
{
    const struct hyper *a = arg;
    int wide = a->out->cols;

    for (int r = begin; r < end; r++) {
        const float *s = tensor_row(a->s, r), *w = tensor_row(a->w, r);
        float *out = tensor_row(a->out, r);
        for (int c = 0; c < wide; c++) {
            float sum = 0;
            for (int i = 0; i < a->n; i++) sum += w[i] * s[(size_t)i * (size_t)wide + (size_t)c];
            out[c] = sum;
        }
    }
}

void cpu_hyper_in(struct backend *be, const struct tensor *out, const struct tensor *s,
                  const struct tensor *w, int n)
{
    cpu_rows(cpu_of(be), s->rows, (long long)s->rows * s->cols, read_rows,
             &(struct hyper){ .out = out, .s = s, .w = w, .n = n });
}

/* Element by element: the new streams take the place of the old ones. */
static void write_rows(const void *arg, int begin, int end)
{
    const struct hyper *a = arg;
    int n = a->n, wide = a->out->cols;

    for (int r = begin; r < end; r++) {
        const float *y = tensor_row(a->out, r), *w = tensor_row(a->w, r);
        float *s = tensor_row(a->s, r), old[MOST];
        for (int c = 0; c < wide; c++) {
            for (int i = 0; i < n; i++) old[i] = s[(size_t)i * (size_t)wide + (size_t)c];
            for (int k = 0; k < n; k++) {
                float sum = w[n + k] * y[c];
                for (int i = 0; i < n; i++) sum += w[2 * n + i * n + k] * old[i];
                s[(size_t)k * (size_t)wide + (size_t)c] = sum;
            }
        }
    }
}

void cpu_hyper_out(struct backend *be, const struct tensor *s, const struct tensor *y,
                   const struct tensor *w, int n)
{
    if (n > MOST) {
        cpu_fail(cpu_of(be), E_UNSUPPORTED, "%d residual streams: at most %d are supported", n,
                 MOST);
        return;
    }
    cpu_rows(cpu_of(be), s->rows, (long long)s->rows * s->cols * n, write_rows,
             &(struct hyper){ .out = y, .s = s, .w = w, .n = n });
}
