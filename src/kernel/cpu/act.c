/* act.c - element-wise operations: activations, add, scale, softcap, clamp, row gates. */
#include "kernel/cpu/cpu.h"

#include <math.h>

#define PIECE 2048 /* elements per piece: also a single row of logits is divided among threads */

/* One operation: `piece` is called for ranges of columns of every row. */
struct elementwise {
    const struct vec *vec;
    const struct tensor *out, *x, *y;
    enum act act;
    float scale;
    int per_row; /* pieces per row */
    void (*piece)(const struct elementwise *a, float *out, const float *x, const float *y, int n);
};

/* Columns [col, col + n) of the rows that the pieces stand for. */
static void run_pieces(const void *arg, int begin, int end)
{
    const struct elementwise *a = arg;

    for (int i = begin; i < end; i++) {
        int row = i / a->per_row, col = i % a->per_row * PIECE;
        int n = a->out->cols - col < PIECE ? a->out->cols - col : PIECE;
        a->piece(a, tensor_row(a->out, row) + col, tensor_row(a->x, row) + col,
                 a->y ? tensor_row(a->y, row) + col : NULL, n);
    }
}

static void run_elementwise(struct backend *be, struct elementwise *a)
{
    struct cpu *c = cpu_of(be);

    a->vec = c->vec;
    a->per_row = (a->out->cols + PIECE - 1) / PIECE;
    cpu_rows(c, a->out->rows * a->per_row, (long long)a->out->rows * a->out->cols, run_pieces, a);
}

static void act_piece(const struct elementwise *a, float *out, const float *x, const float *y,
                      int n)
{
    a->vec->act[a->act](out, x, y, n);
}

void cpu_act(struct backend *be, const struct tensor *out, const struct tensor *gate,
             const struct tensor *up, enum act act)
{
    run_elementwise(be, &(struct elementwise){
                            .out = out, .x = gate, .y = up, .act = act, .piece = act_piece });
}

static void add_piece(const struct elementwise *a, float *out, const float *x, const float *y,
                      int n)
{
    (void)x;
    a->vec->add(out, y, a->scale, n);
}

void cpu_add(struct backend *be, const struct tensor *x, const struct tensor *y, float scale)
{
    run_elementwise(
        be, &(struct elementwise){ .out = x, .x = x, .y = y, .scale = scale, .piece = add_piece });
}

static void scale_piece(const struct elementwise *a, float *out, const float *x, const float *y,
                        int n)
{
    (void)y;
    a->vec->scale(out, x, a->scale, n);
}

void cpu_scale(struct backend *be, const struct tensor *x, float scale)
{
    run_elementwise(
        be, &(struct elementwise){ .out = x, .x = x, .scale = scale, .piece = scale_piece });
}

static void softcap_piece(const struct elementwise *a, float *out, const float *x, const float *y,
                          int n)
{
    (void)x;
    (void)y;
    a->vec->softcap(out, a->scale, n);
}

void cpu_softcap(struct backend *be, const struct tensor *x, float cap)
{
    run_elementwise(
        be, &(struct elementwise){ .out = x, .x = x, .scale = cap, .piece = softcap_piece });
}

static void clamp_piece(const struct elementwise *a, float *out, const float *x, const float *y,
                        int n)
{
    float m = a->scale;

    (void)y;
    for (int i = 0; i < n; i++) out[i] = x[i] > m ? m : x[i] < -m ? -m : x[i];
}

void cpu_clamp(struct backend *be, const struct tensor *x, float limit)
{
    run_elementwise(
        be, &(struct elementwise){ .out = x, .x = x, .scale = limit, .piece = clamp_piece });
}

/* On the calling thread, row by row. */
void cpu_gate_rows(struct backend *be, const struct tensor *x, const struct tensor *s)
{
    const struct vec *vec = cpu_of(be)->vec;

    for (int r = 0; r < x->rows; r++) {
        float g;
        vec->act[ACT_SIGMOID](&g, tensor_row(s, r), NULL, 1);
        vec->scale(tensor_row(x, r), tensor_row(x, r), g, x->cols);
    }
}

/* ---- operations of single families: plain C, computed in double ---- */

struct plain_rows { /* arguments of the functions below */
    const struct tensor *out, *x, *y;
    const struct xielu_opt *xielu;
    const struct glu_clip *clip;
    const struct pos_scale_opt *scale;
    const int32_t *pos;
};

static void xielu_rows(const void *arg, int begin, int end)
{
    const struct plain_rows *a = arg;
    double p = (double)a->xielu->a_p, n = (double)a->xielu->a_n, b = (double)a->xielu->b,
           eps = (double)a->xielu->eps;

    for (int r = begin; r < end; r++) {
        float *x = tensor_row(a->x, r);
        for (int i = 0; i < a->x->cols; i++) {
            double v = (double)x[i];
            x[i] = (float)(v > 0 ? p * v * v + b * v : (expm1(v < eps ? v : eps) - v) * n + b * v);
        }
    }
}

void cpu_xielu(struct backend *be, const struct tensor *x, const struct xielu_opt *opt)
{
    cpu_rows(cpu_of(be), x->rows, 16ll * x->rows * x->cols, xielu_rows,
             &(struct plain_rows){ .x = x, .xielu = opt });
}

static void clipped_glu_rows(const void *arg, int begin, int end)
{
    const struct plain_rows *a = arg;
    float most = a->clip->limit;

    for (int r = begin; r < end; r++) {
        const float *gate = tensor_row(a->x, r), *up = tensor_row(a->y, r);
        float *out = tensor_row(a->out, r);
        for (int i = 0; i < a->out->cols; i++) {
            float g = gate[i] < most ? gate[i] : most, u = up[i] > most    ? most
                                                           : up[i] < -most ? -most
                                                                           : up[i];
            out[i] = g / (1 + expf(-a->clip->alpha * g)) * (u + a->clip->plus);
        }
    }
}

void cpu_clipped_glu(struct backend *be, const struct tensor *out, const struct tensor *gate,
                     const struct tensor *up, const struct glu_clip *opt)
{
    cpu_rows(cpu_of(be), out->rows, 16ll * out->rows * out->cols, clipped_glu_rows,
             &(struct plain_rows){ .out = out, .x = gate, .y = up, .clip = opt });
}

void cpu_scale_by_pos(struct backend *be, const struct tensor *x, const int32_t *pos,
                      const struct pos_scale_opt *o)
{
    const struct vec *vec = cpu_of(be)->vec;

    for (int r = 0; r < x->rows; r++) {
        double step = floor(((double)pos[r] + (double)o->first) / (double)o->step);
        float *row = tensor_row(x, r);
        vec->scale(row, row, (float)(1 + (double)o->beta * log1p(step)), x->cols);
    }
}
