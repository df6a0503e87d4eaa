/* gemm.c - GMAC/s of the AMX matrix product, by weight type, shape, number of tokens and threads.
 *
 *     gemm [TYPE,...|all [TOKENS,... [SHAPES [THREADS,... [ROUNDS]]]]]
 *
 * SHAPES is how many of the three built-in shapes to measure. Each line has the median and the best
 * of all rounds. Rounds alternate between the cases, so that a disturbance hits all of them. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/rng.h"
#include "kernel/cpu/gemm.h"
#include "kernel/quant.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_ROUNDS = 41, MAX_CASES = 4096 };

struct shape {
    enum dtype type;
    int rows, cols, tokens, threads;
};

struct result {
    struct shape shape;
    double ms[MAX_ROUNDS];
    int n;
};

struct product { /* one matrix product, shared by the threads */
    const struct gemm *g;
    struct gemm_job job;
    struct tensor x, out;
    void *xp;
    void *scratch[64];
    struct par *par;
};

static void compute_part(void *arg, int thread, int n_threads)
{
    struct product *r = arg;
    int a, b;
    if (r->g->enter) r->g->enter();
    par_share(r->job.tokens, r->g->token_unit, thread, n_threads, &a, &b);
    if (a < b) r->g->pack(r->job.type, r->xp, &r->x, a, b);
    par_barrier(r->par);
    par_share(r->job.rows, r->g->row_unit, thread, n_threads, &a, &b);
    if (a < b) r->g->rows(&r->job, r->xp, a, b, r->scratch[thread]);
}

static void *alloc_or_exit(size_t n)
{
    void *p = mem_aligned(n);
    if (!p) {
        fprintf(stderr, "gemm: out of memory\n");
        exit(1);
    }
    return p;
}

/* Random weights: one encoded row, repeated. */
static unsigned char *make_weights(enum dtype t, int rows, int cols, size_t *row_bytes)
{
    uint64_t n;
    struct rng rng;
    if (!dtype_row_bytes(t, (uint64_t)cols, &n)) return NULL;
    unsigned char *w = alloc_or_exit((size_t)rows * n);
    rng_seed(&rng, 1);
    if (quant_can_encode(t)) {
        float *f = alloc_or_exit((size_t)cols * sizeof *f);
        for (int i = 0; i < cols; i++) f[i] = rng_normal(&rng);
        quant_encode(t, f, w, cols);
        mem_free_aligned(f, (size_t)cols * sizeof *f);
    } else {
        for (size_t i = 0; i < n; i++) w[i] = (unsigned char)rng_u64(&rng) & 0x3f;
    }
    for (int r = 1; r < rows; r++) memcpy(w + (size_t)r * n, w, n);
    *row_bytes = n;
    return w;
}

static void measure_case(const struct gemm *g, struct result *res, struct par *par)
{
    struct shape s = res->shape;
    size_t row_bytes;
    unsigned char *w = make_weights(s.type, s.rows, s.cols, &row_bytes);
    if (!w) return;
    struct product r = { .g = g, .par = par };
    float *x = alloc_or_exit((size_t)s.tokens * (size_t)s.cols * 4),
          *out = alloc_or_exit((size_t)s.tokens * (size_t)s.rows * 4);
    struct rng rng;
    rng_seed(&rng, 2);
    for (int i = 0; i < s.tokens * s.cols; i++) x[i] = rng_normal(&rng);
    r.x = tensor_f32(x, s.tokens, s.cols);
    r.out = tensor_f32(out, s.tokens, s.rows);
    r.job = (struct gemm_job){ s.type, w, s.rows, s.cols, s.tokens, &r.out, NULL, 1, false, NULL };
    r.xp = alloc_or_exit(g->x_bytes(s.type, s.tokens, s.cols));
    for (int i = 0; i < s.threads; i++)
        r.scratch[i] = alloc_or_exit(g->scratch_bytes(s.type, s.cols));

    for (int i = 0; i < 2; i++) { /* the first run warms the caches */
        uint64_t t = clock_ns();
        par_run(par, compute_part, &r);
        if (i) res->ms[res->n++] = clock_ms_since(t);
    }
    mem_free_aligned(w, (size_t)s.rows * row_bytes);
    mem_free_aligned(x, (size_t)s.tokens * (size_t)s.cols * 4);
    mem_free_aligned(out, (size_t)s.tokens * (size_t)s.rows * 4);
    mem_free_aligned(r.xp, g->x_bytes(s.type, s.tokens, s.cols));
    for (int i = 0; i < s.threads; i++)
        mem_free_aligned(r.scratch[i], g->scratch_bytes(s.type, s.cols));
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_result(struct result *r)
{
    struct shape s = r->shape;
    if (r->n == 0) return;
    qsort(r->ms, (size_t)r->n, sizeof *r->ms, compare_doubles);
    double mac = (double)s.rows * s.cols * s.tokens * 1e-6, median = r->ms[r->n / 2],
           best = r->ms[0];
    uint64_t bytes = 0;
    dtype_row_bytes(s.type, (uint64_t)s.cols, &bytes);
    printf("%-8s %5d -> %5d  %4d tokens  %d threads: median %7.1f GMAC/s, best %7.1f; %5.1f GB/s "
           "of weights\n",
           dtype_name(s.type), s.cols, s.rows, s.tokens, s.threads, mac / median, mac / best,
           (double)bytes * s.rows * 1e-6 / median);
}

static int parse_list(const char *text, int out[16])
{
    int n = 0;
    for (char *end; *text && n < 16; text = *end ? end + 1 : end)
        out[n++] = (int)strtol(text, &end, 10);
    return n;
}

static int parse_types(const char *text, enum dtype out[DT_COUNT])
{
    int n = 0;
    if (strcmp(text, "all") == 0) {
        for (int t = 0; t < DT_COUNT; t++)
            if (dtype_info(t) && quant_can_decode((enum dtype)t)) out[n++] = (enum dtype)t;
        return n;
    }
    for (const char *p = text; *p && n < DT_COUNT;) {
        size_t len = strcspn(p, ",");
        out[n++] = dtype_by_name(str_of(p, len));
        p += len + (p[len] == ',');
    }
    return n;
}

int main(int argc, char **argv)
{
    static struct result results[MAX_CASES];
    static const int shapes[][2] = { { 8192, 2048 }, { 2048, 8192 }, { 4864, 896 } };
    enum dtype types[DT_COUNT];
    int tokens[16], threads[16], n_results = 0;
    int n_types = parse_types(argc > 1 ? argv[1] : "Q4_K,Q4_0,Q8_0,Q6_K,BF16,F16", types);
    int n_tokens = parse_list(argc > 2 ? argv[2] : "8,16,32,128,512", tokens);
    int n_shapes = argc > 3 ? atoi(argv[3]) : 3,
        n_threads = parse_list(argc > 4 ? argv[4] : "1,2", threads);
    int rounds = argc > 5 ? atoi(argv[5]) : 5;
    const struct gemm *g = gemm_amx();

    if (!g) {
        printf("gemm: this machine has no AMX tiles\n");
        return 0;
    }
    for (int i = 0; i < n_types; i++)
        for (int j = 0; j < n_shapes && j < 3; j++)
            for (int k = 0; k < n_tokens; k++)
                for (int l = 0; l < n_threads && n_results < MAX_CASES; l++)
                    results[n_results++].shape =
                        (struct shape){ types[i], shapes[j][0], shapes[j][1], tokens[k],
                                        threads[l] };
    for (int l = 0; l < n_threads; l++) {
        struct par *par = NULL;
        struct err e;
        if (par_open(&par, (struct par_opt){ .n_threads = threads[l] }, &e) != OK) return 1;
        for (int round = 0; round < rounds && round < MAX_ROUNDS; round++)
            for (int i = 0; i < n_results; i++)
                if (results[i].shape.threads == threads[l]) measure_case(g, &results[i], par);
        par_close(par);
    }
    for (int i = 0; i < n_results; i++) print_result(&results[i]);
    return 0;
}
