/* linear_heads.c - one matrix product per head, each head with its own weights. Multi-head
 * latent attention absorbs its up-projections this way.
 *
 * With few tokens the heads are divided among the threads in pieces of ROWS rows, each computed by
 * a gemv kernel. With many tokens each head is one product of cpu_linear. */
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/matmul.h"

#include <string.h>

#define FEW 8            /* tokens; more go through cpu_linear, head by head */
#define ROWS 64          /* weight rows per piece */
#define FORM_BYTES 16384 /* stack space for quantized activations */

/* Arguments of multiply_pieces. */
struct heads {
    const struct isa *isa;
    const struct tensor *out, *x;
    const struct linear_heads_opt *o;
    const struct weight *w;
    size_t row_bytes;
    int per_head; /* pieces per head */
};

/* The matrix of a head. */
static const char *head_matrix(const struct heads *a, int head)
{
    const char *base = a->w->packed ? a->w->packed : a->w->data;
    return base + (size_t)head * (size_t)a->w->rows * a->row_bytes;
}

/* ROWS rows of one head for all tokens. The activations of the head are quantized for each piece
 * again: that costs less than a barrier. */
static void multiply_piece(const struct heads *a, int head, int row)
{
    _Alignas(64) char formed[FORM_BYTES];
    int f = a->isa->gemv[a->w->type].form, n = a->w->rows - row < ROWS ? a->w->rows - row : ROWS;
    struct gemv g = { .type = a->w->type,
                      .group = a->w->group,
                      .cols = a->w->cols,
                      .n_rows = n,
                      .n_tokens = a->x->rows,
                      .w = head_matrix(a, head) + (size_t)row * a->row_bytes,
                      .w_stride = a->row_bytes,
                      .x = tensor_row(a->x, 0) + (size_t)head * (size_t)a->o->x_step,
                      .x_stride = a->x->stride * sizeof(float),
                      .out = tensor_row(a->out, 0) + (size_t)head * (size_t)a->o->out_step + row,
                      .out_stride = a->out->stride };

    if (f) {
        size_t bytes = a->isa->form[f].bytes(a->w->cols);
        for (int t = 0; t < a->x->rows; t++)
            a->isa->form[f].make(formed + (size_t)t * bytes,
                                 (const float *)g.x + (size_t)t * a->x->stride, g.cols);
        g.x = formed;
        g.x_stride = bytes;
    }
    a->isa->gemv[g.type].fn(&g);
}

static void multiply_pieces(const void *arg, int begin, int end)
{
    const struct heads *a = arg;
    for (int i = begin; i < end; i++) multiply_piece(a, i / a->per_head, i % a->per_head * ROWS);
}

/* Few tokens, whose quantized activations fit the stack buffer. */
static bool is_small(const struct heads *a)
{
    int f = a->isa->gemv[a->w->type].form;
    return a->x->rows <= FEW &&
           (!f || a->isa->form[f].bytes(a->w->cols) * (size_t)a->x->rows <= FORM_BYTES);
}

/* One head after the other; each product is divided among all threads. */
static int multiply_by_head(struct cpu *c, const struct heads *a)
{
    int rc = OK;

    for (int h = 0; h < a->w->n && rc == OK; h++) {
        struct weight w = { .type = a->w->type,
                            .rows = a->w->rows,
                            .cols = a->w->cols,
                            .n = 1,
                            .group = a->w->group,
                            .data = head_matrix(a, h) };
        struct linear job = { .out = tensor_cols(*a->out, h * a->o->out_step, w.rows), .w = &w };
        struct tensor x = tensor_cols(*a->x, h * a->o->x_step, w.cols);
        rc = cpu_linear(c->matmul, c->par, &x, &job, 1);
    }
    return rc;
}

/* The elements of each head that pass through unchanged. */
static void copy_tails(const void *arg, int begin, int end)
{
    const struct heads *a = arg;

    for (int t = begin; t < end; t++)
        for (int h = 0; h < a->w->n; h++)
            memcpy(tensor_row(a->out, t) + (size_t)h * (size_t)a->o->out_step + a->w->rows,
                   tensor_row(a->x, t) + (size_t)h * (size_t)a->o->x_step + a->w->cols,
                   (size_t)a->o->tail * sizeof(float));
}

void cpu_linear_heads(struct backend *be, const struct tensor *out, const struct tensor *x,
                      const struct linear_heads_opt *opt)
{
    struct cpu *c = cpu_of(be);
    const struct weight *w = opt->w;
    struct heads a = { .isa = matmul_isa(c->matmul),
                       .out = out,
                       .x = x,
                       .o = opt,
                       .w = w,
                       .per_head = (w->rows + ROWS - 1) / ROWS };

    a.row_bytes = weight_row_bytes(w);
    if (is_small(&a))
        cpu_rows(c, w->n * a.per_head, (long long)x->rows * w->n * w->rows * w->cols / 8,
                 multiply_pieces, &a);
    else if (multiply_by_head(c, &a) != OK)
        cpu_fail(c, E_NOMEM, "linear_heads: out of memory for %d tokens of %d columns", x->rows,
                 w->cols);
    if (opt->tail) cpu_rows(c, x->rows, (long long)x->rows * w->n * opt->tail, copy_tails, &a);
}
