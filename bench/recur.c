/* recur.c - speed of the recurrences on one thread of the CPU: token by token, and by matrix
 * products (kernel/cpu/recur_chunk.h).
 *
 *     recur [-n tokens] [isa ...]
 *
 * Prints microseconds of CPU time per token for one layer of each shape. */
#include "base/mem.h"
#include "base/rng.h"
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/recur.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MEASURE_MS = 300 };

struct shape {
    const char *name;
    int n_heads, n_keys, dim_k, dim_v; /* n_keys: heads of keys, or groups */
    bool delta;
};

static const struct shape shapes[] = {
    { "delta, Qwen 3.5 0.8 B", 16, 16, 128, 128, true },
    { "delta, Qwen 3.5 4 B", 32, 16, 128, 128, true },
    { "scan, Mamba 2 1.3 B", 64, 1, 128, 64, false },
    { "scan, Nemotron-H 8 B", 128, 8, 128, 64, false },
};

static struct rng rng;

static struct tensor random_tensor(int rows, int cols, float scale)
{
    struct tensor t = { DT_F32, rows, cols, (size_t)cols, NULL };
    float *x = mem_array((size_t)rows * (size_t)cols, sizeof *x);

    if (!x) abort();
    for (int i = 0; i < rows * cols; i++) x[i] = rng_normal(&rng) * scale;
    t.data = x;
    return t;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct work {
    const struct shape *s;
    struct backend *be;
    struct tensor q, k, v, gate, beta, out;
    struct stateview view;
    const float *a, *bias;
};

static void run_once(struct work *w)
{
    const struct shape *s = w->s;

    if (s->delta) {
        struct delta_in in = { w->q, w->k, w->v, w->gate, w->beta };
        w->be->delta(w->be, &w->out, &in, &w->view, 0,
                     &(struct delta_opt){ .n_heads = s->n_heads,
                                          .n_k_heads = s->n_keys,
                                          .dim_k = s->dim_k,
                                          .dim_v = s->dim_v,
                                          .a = w->a,
                                          .dt_bias = w->bias,
                                          .q_scale = 0.1f,
                                          .k_scale = 0.5f / sqrtf((float)s->dim_k) });
    } else {
        struct scan_in in = { w->v, w->gate, w->k, w->q };
        w->be->scan(w->be, &w->out, &in, &w->view, 0,
                    &(struct scan_opt){ .n_heads = s->n_heads,
                                        .head_dim = s->dim_v,
                                        .n_groups = s->n_keys,
                                        .n_state = s->dim_k,
                                        .a = w->a,
                                        .d = w->a,
                                        .dt_bias = w->bias,
                                        .dt_max = INFINITY });
    }
}

static double measure(struct work *w, int tokens)
{
    double start, end;
    int n = 0;

    run_once(w);
    start = cpu_seconds();
    do {
        memset(w->gate.data, 0, (size_t)tokens * (size_t)w->gate.cols * sizeof(float));
        run_once(w);
        n++;
        end = cpu_seconds();
    } while (end - start < MEASURE_MS / 1e3);
    return (end - start) / n / tokens * 1e6;
}

static void bench_shape(struct backend *be, const struct shape *s, const struct recur *r,
                        int tokens)
{
    size_t floats = (size_t)s->n_heads * (size_t)s->dim_k * (size_t)s->dim_v;
    struct recur plain = *r;
    struct tensor state = random_tensor(1, (int)floats, 0.1f), a = random_tensor(1, s->n_heads, 1),
                  bias = random_tensor(1, s->n_heads, 1);
    struct statelayer layer = { .rec = state.data, .rec_floats = floats };
    struct state_run run = { 0, 0, tokens, 1 };
    struct work w = { .s = s,
                      .be = be,
                      .q = random_tensor(tokens, s->n_keys * s->dim_k, 1),
                      .k = random_tensor(tokens, s->n_keys * s->dim_k, 1),
                      .v = random_tensor(tokens, s->n_heads * s->dim_v, 1),
                      .gate = random_tensor(tokens, s->n_heads, 1),
                      .beta = random_tensor(tokens, s->n_heads, 1),
                      .out = random_tensor(tokens, s->n_heads * s->dim_v, 1),
                      .view = { &layer, 1, &run, 1, tokens },
                      .a = a.data,
                      .bias = bias.data };
    struct tensor *all[] = { &w.q, &w.k, &w.v, &w.gate, &w.beta, &w.out, &state, &a, &bias };
    double one, many;

    for (int i = 0; i < s->n_heads; i++) ((float *)a.data)[i] = -expf(((float *)a.data)[i] - 2);
    plain.scan_chunks = NULL;
    plain.delta_chunks = NULL;
    cpu_of(be)->recur = &plain;
    one = measure(&w, tokens);
    cpu_of(be)->recur = r;
    many = measure(&w, tokens);
    printf("%-24s %-9s %8.2f %8.2f %7.2f\n", s->name, r->name, one, many, one / many);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]->data);
}

int main(int argc, char **argv)
{
    static const char *const sets[] = { "avx512", "avx2", "neon" };
    struct backend *be;
    struct err e = { 0 };
    int tokens = 512, from = 1;

    if (argc > 2 && strcmp(argv[1], "-n") == 0) tokens = atoi(argv[2]), from = 3;
    if (tokens < 1 || tokens > 65536) {
        fprintf(stderr, "usage: recur [-n tokens] [isa ...]\n");
        return 2;
    }
    if (backend_open(&be, &(struct backend_opt){ .n_threads = 1 }, &e) != OK) {
        fprintf(stderr, "recur: %s\n", e.msg);
        return 1;
    }
    rng_seed(&rng, 1);
    printf("%-24s %-9s %8s %8s %7s   microseconds per token, %d tokens\n", "shape", "isa", "tokens",
           "products", "ratio", tokens);
    for (size_t k = 0; k < sizeof sets / sizeof *sets; k++) {
        const struct recur *r = recur_by_name(sets[k]);
        bool wanted = from == argc;
        for (int i = from; i < argc; i++) wanted |= strcmp(argv[i], sets[k]) == 0;
        for (size_t i = 0; r && wanted && i < sizeof shapes / sizeof *shapes; i++)
            bench_shape(be, &shapes[i], r, tokens);
    }
    backend_close(be);
    return 0;
}
