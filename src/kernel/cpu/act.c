/* act.c - element-wise operations: activations, add, scale, softcap, clamp, row gates. */
#include "kernel/cpu/cpu.h"

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
