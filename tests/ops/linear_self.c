/* linear_self.c - matrix-vector kernels of every instruction set against isa_ref, as a program
 * without a test library and without threads. It can be linked statically and run under an
 * emulator such as qemu-user.
 *
 * Reads no files; weights are random. Exit status 0: all results agree. */
#include "random_blocks.h"

#include "kernel/cpu/isa.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 5, COLS = 768, TOKENS = 8 };

static float x[TOKENS][COLS], plain[ROWS * COLS], want[TOKENS][ROWS], got[TOKENS][ROWS];
static char w[ROWS * COLS * 8];
static _Alignas(64) char formed[TOKENS * COLS * 8];

/* The largest difference between want and got, divided by size, the Euclidean norm of a row of
 * weights. */
static double largest_error(int tokens, double size)
{
    double most = 0;
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < ROWS; r++) {
            double d = fabs((double)want[t][r] - (double)got[t][r]) / size;
            if (!(d <= most)) most = d;
        }
    return most;
}

static double compare_with_reference(const struct isa *isa, enum dtype t, int cols, int tokens)
{
    struct gemv g = { .type = t,
                      .cols = cols,
                      .n_rows = ROWS,
                      .n_tokens = tokens,
                      .w = w,
                      .x = x,
                      .x_stride = sizeof x[0],
                      .out = want[0],
                      .out_stride = ROWS };
    int f = isa->gemv[t].form;
    uint64_t row = 0;
    double size = 0;

    dtype_row_bytes(t, (uint64_t)cols, &row);
    g.w_stride = (size_t)row;
    isa_ref.gemv[t].fn(&g);
    g.out = got[0];
    if (f) {
        g.x = formed;
        g.x_stride = isa->form[f].bytes(cols);
        for (int i = 0; i < tokens; i++)
            isa->form[f].make(formed + (size_t)i * g.x_stride, x[i], cols);
    }
    isa->gemv[t].fn(&g);
    for (int i = 0; i < cols; i++) size += (double)plain[i] * plain[i];
    return largest_error(tokens, sqrt(size));
}

/* Random weights in w and, decoded, in plain; which: index into halves. */
static void fill_weights(int which, struct rng *rng)
{
    enum dtype t = halves[which].type;
    uint64_t row = 0;

    dtype_row_bytes(t, COLS, &row);
    if (dtype_info((int)t)->quantized) {
        fill_random_blocks(which, w, ROWS * (size_t)row, rng);
    } else {
        for (int i = 0; i < ROWS * COLS; i++) plain[i] = rng_normal(rng);
        quant_encode(t, plain, w, ROWS * COLS);
    }
    quant_decode(t, w, plain, ROWS * COLS);
}

int main(void)
{
    struct rng rng;
    int bad = 0, n = 0;

    rng_seed(&rng, 7);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < COLS; i++) x[t][i] = rng_normal(&rng);
    for (int i = 1; isa_at(i); i++)
        for (int k = 0; k < N_TYPES; k++) {
            enum dtype t = halves[k].type;
            fill_weights(k, &rng);
            for (int tokens = 1; tokens <= TOKENS; tokens++) {
                /* x is rounded to steps of about 3/127, so the standard deviation of the error
                 * is 0.007 |w| */
                double limit = isa_at(i)->gemv[t].form ? 0.05 : 1e-5;
                double d = compare_with_reference(isa_at(i), t, COLS, tokens);
                n++;
                if (d <= limit) continue;
                printf("%s %s, %d tokens: relative error %g\n", isa_at(i)->name, dtype_name(t),
                       tokens, d);
                bad++;
            }
        }
    printf("%s: %d matrix products compared, %d wrong\n", isa_best()->name, n, bad);
    return bad || (n == 0 && isa_at(1));
}
