/* kernels.c - speed of the CPU's matrix products: GB/s of weights for few tokens, GMAC/s for many.
 *
 *     kernels [-t threads] [-i isa] [-m rows] [-k cols] [-c] [-x] [type ...]
 *
 * Products of few tokens are limited by memory. They cycle over 400 MiB of copies of the matrix, so
 * that no cache holds it; `share` compares them with a plain loop that reads the same memory with
 * the same threads.
 *
 * Beside types the layouts of quantized folders have names: int4-g128, int4-g32, int8-row, fp8-128,
 * nvfp4, ternary.
 *
 * -c  one copy: a small matrix stays in the cache, and arithmetic is the limit
 * -x  microseconds by number of tokens for each of the three implementations alone (vectors, gemm
 *     for few tokens, gemm for many), to see where one overtakes the other */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernel/cpu/kernels.h"
#include "kernel/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SET_BYTES = 400 << 20,       /* weights that are cycled over */
    READ_BYTES = SET_BYTES / 10, /* of one measurement of reading */
    MEASURE_MS = 100             /* at least, of one measurement of a product */
};

struct bench {
    struct par *par;
    struct matmul *mm;
    struct matmul *vectors, *few, *many; /* each with one implementation alone */
    int rows, cols;
    bool cached;
    char *set;       /* SET_BYTES of weights */
    float *x, *y;    /* 512 tokens */
    double read_gbs; /* GB/s of the plain loop */
};

typedef uint64_t v8 __attribute__((vector_size(64), aligned(8)));

struct reading {
    struct par *par;
    const char *p;
    volatile uint64_t sink;
};

static void read_part(void *arg, int thread, int n_threads)
{
    struct reading *r = arg;
    int a, b;
    v8 s[4] = { { 0 } };
    (void)thread, (void)n_threads;
    while (par_next(r->par, READ_BYTES / 65536, 1, &a, &b)) {
        const v8 *p = (const v8 *)(const void *)(r->p + (size_t)a * 65536);
        for (int i = 0; i < 65536 / 64; i += 4)
            for (int j = 0; j < 4; j++) s[j] ^= p[i + j];
    }
    s[0] ^= s[1] ^ s[2] ^ s[3];
    r->sink ^= s[0][0] ^ s[0][7];
}

static double measure_read(struct bench *b)
{
    struct reading r = { .par = b->par, .p = b->set };
    double best = 1e30;
    for (int i = 0; i < 40; i++) {
        uint64_t t = clock_ns();
        r.p = b->set + (size_t)(i % 10) * READ_BYTES;
        par_run(b->par, read_part, &r);
        double ms = clock_ms_since(t);
        if (ms < best) best = ms;
    }
    return READ_BYTES / best / 1e6;
}

/* Fills the set with copies of one encoded matrix; returns how many, 0: no memory. */
static int fill_set(struct bench *b, enum dtype t, size_t bytes)
{
    struct rng rng;
    size_t n = (size_t)b->rows * (size_t)b->cols;
    float *f = mem_array(n, sizeof *f);
    int copies = b->cached ? 1 : (int)(SET_BYTES / bytes);

    if (!f) return 0;
    rng_seed(&rng, 1);
    for (size_t i = 0; i < n; i++) f[i] = (float)rng_unit(&rng) - 0.5f;
    if (quant_can_encode(t)) quant_encode(t, f, b->set, (int64_t)n);
    else
        for (size_t i = 0; i < bytes; i++)
            b->set[i] = (char)(rng_u64(&rng) & 0x3b); /* keeps scales small */
    for (int c = 1; c < copies; c++) memcpy(b->set + (size_t)c * bytes, b->set, bytes);
    mem_free(f);
    return copies;
}

/* With one thread its CPU time, which other processes do not disturb; else the wall clock. */
static uint64_t read_clock_ns(const struct bench *b)
{
    struct timespec t;

    if (par_n(b->par) > 1) return clock_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Milliseconds of a product with `tokens` tokens: the best of many runs. */
static double measure_product(struct bench *b, struct matmul *mm, struct weight *w, size_t bytes,
                              int copies, int tokens)
{
    struct tensor x = tensor_f32(b->x, tokens, b->cols);
    struct linear job = { .out = tensor_f32(b->y, tokens, b->rows), .w = w };
    uint64_t start = clock_ns();
    double best = 1e30;

    for (int n = 0; n < 3 || clock_ms_since(start) < MEASURE_MS; n++) {
        w->data = b->set + (size_t)(n % copies) * bytes;
        uint64_t t = read_clock_ns(b);
        cpu_linear(mm, b->par, &x, &job, 1);
        double ms = (double)(read_clock_ns(b) - t) / 1e6;
        if (ms < best) best = ms;
    }
    return best;
}

/* Layouts of quantized folders (base/grouped.h). */
static const struct layout_name {
    const char *name;
    struct grouped g;
} layouts[] = {
    { "int4-g128",
      { .code = CODE_U4, .scale = SCALE_F16, .zeros = true, .zero = 1, .group = 128 } },
    { "int4-g32", { .code = CODE_U4, .scale = SCALE_BF16, .zero = 8, .group = 32 } },
    { "int8-row", { .code = CODE_U8, .scale = SCALE_BF16, .zero = 128, .group = 1 << 20 } },
    { "fp8-128", { .code = CODE_E4M3, .scale = SCALE_F32, .group = 128 } },
    { "nvfp4", { .code = CODE_E2M1, .scale = SCALE_E4M3, .group = 16 } },
    { "ternary", { .code = CODE_U2, .scale = SCALE_NONE, .zero = 1, .group = 1 << 20 } },
};

static void bench_weight(struct bench *b, struct weight w, const char *name)
{
    size_t row = weight_row_bytes(&w);
    if (!row) return;
    size_t bytes = row * (size_t)b->rows;
    int copies = fill_set(b, w.type, bytes);
    if (!copies) return;
    double one = measure_product(b, b->mm, &w, bytes, copies, 1),
           four = measure_product(b, b->mm, &w, bytes, copies, 4);
    double eight = measure_product(b, b->mm, &w, bytes, copies, 8),
           many = measure_product(b, b->mm, &w, bytes, copies, 512);
    double gb = (double)bytes / 1e6, macs = (double)b->rows * b->cols / 1e6;

    printf("%-9s %6.1f %6.0f%% %8.1f %8.1f %10.0f\n", name, gb / one, 100 * gb / one / b->read_gbs,
           gb / four, gb / eight, 512 * macs / many);
    fflush(stdout);
}

static void bench_type(struct bench *b, enum dtype t)
{
    bench_weight(b, (struct weight){ .type = t, .rows = b->rows, .cols = b->cols, .n = 1 },
                 dtype_name((int)t));
}

static void bench_layout(struct bench *b, const struct layout_name *l)
{
    struct grouped g = l->g;

    g.cols = b->cols, g.factor = 1;
    if (g.group > g.cols) g.group = g.cols;
    grouped_measure(&g);
    bench_weight(b,
                 (struct weight){
                     .type = DT_GROUPED, .rows = b->rows, .cols = b->cols, .n = 1, .group = &g },
                 l->name);
}

static const struct layout_name *find_layout(const char *name)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (strcmp(layouts[i].name, name) == 0) return &layouts[i];
    return NULL;
}

static int one_token(enum dtype t)
{
    (void)t;
    return 1;
}

/* A matmul that uses g from one token on; g NULL: vectors only. own is a changed copy of g. */
static int open_alone(struct matmul **out, struct bench *b, const struct gemm *g, struct gemm *own,
                      struct err *e)
{
    struct matmul_opt opt = { .isa = matmul_isa(b->mm), .gemm = g ? own : NULL };

    if (g) *own = *g, own->min_tokens = one_token;
    return matmul_open(out, b->par, opt, e);
}

/* Alternates between the implementations, so that a disturbance hits all of them. */
static void bench_crossover(struct bench *b, enum dtype t)
{
    static const int tokens[] = { 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64 };
    struct matmul *way[] = { b->vectors, b->few, b->many };
    struct weight w = { .type = t, .rows = b->rows, .cols = b->cols, .n = 1 };
    uint64_t row = 0;
    if (!dtype_row_bytes(t, (uint64_t)b->cols, &row)) return;
    size_t bytes = (size_t)row * (size_t)b->rows;
    int copies = fill_set(b, t, bytes);

    for (size_t i = 0; copies && i < sizeof tokens / sizeof *tokens; i++) {
        double ms[3] = { 1e30, 1e30, 1e30 };
        for (int round = 0; round < 4; round++)
            for (int k = 0; k < 3; k++) {
                double m = measure_product(b, way[k], &w, bytes, copies, tokens[i]);
                if (m < ms[k]) ms[k] = m;
            }
        printf("%-8s %3d tokens  %7.0f us vectors, %7.0f us gemm for few, %7.0f us gemm for many\n",
               dtype_name((int)t), tokens[i], ms[0] * 1e3, ms[1] * 1e3, ms[2] * 1e3);
        fflush(stdout);
    }
}

static const enum dtype usual[] = {
    DT_F32,  DT_F16,  DT_BF16, DT_Q4_0, DT_Q4_1,   DT_Q5_0,   DT_Q5_1,    DT_Q8_0,  DT_Q2_K,
    DT_Q3_K, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_IQ2_XXS, DT_TQ2_0, DT_MXFP4,
};

static int usage(void)
{
    fprintf(stderr,
            "usage: kernels [-t threads] [-i isa] [-m rows] [-k cols] [-c] [-x] [type ...]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = { .rows = 8192, .cols = 2048 };
    struct kernels set;
    struct matmul_opt opt;
    struct err e = { 0 };
    const char *isa = NULL;
    void (*one)(struct bench *, enum dtype) = bench_type;
    struct gemm few, many;
    int threads = 0, c, rc;

    while ((c = getopt(argc, argv, "t:i:m:k:cx")) != -1) {
        if (c == 't') threads = atoi(optarg);
        else if (c == 'm') b.rows = atoi(optarg);
        else if (c == 'c') b.cached = true;
        else if (c == 'x') one = bench_crossover;
        else if (c == 'k') b.cols = atoi(optarg);
        else if (c == 'i') isa = optarg;
        else return usage();
    }
    if ((rc = kernels_find(&set, isa, &e)) != OK) goto out;
    opt = set.matmul;
    if ((rc = par_open(&b.par, (struct par_opt){ .n_threads = threads, .pin = true }, &e)) != OK)
        goto out;
    if ((rc = matmul_open(&b.mm, b.par, opt, &e)) != OK) goto out;
    if ((rc = matmul_open(&b.vectors, b.par, (struct matmul_opt){ .isa = opt.isa }, &e)) != OK)
        goto out;
    if ((rc = open_alone(&b.few, &b, opt.few, &few, &e)) != OK) goto out;
    if ((rc = open_alone(&b.many, &b, opt.gemm, &many, &e)) != OK) goto out;
    b.set = mem_aligned(SET_BYTES);
    b.x = mem_array(512 * (size_t)b.cols, sizeof *b.x);
    b.y = mem_array(512 * (size_t)b.rows, sizeof *b.y);
    if (!b.set || !b.x || !b.y) {
        rc = err_nomem(&e, "weights and activations");
        goto out;
    }
    memset(b.set, 1, SET_BYTES);
    for (int i = 0; i < 512 * b.cols; i++) b.x[i] = (float)(i % 37 - 18) / 18;
    b.read_gbs = measure_read(&b);
    printf("%s, %d threads, [%d x %d]; reading memory: %.1f GB/s\n", matmul_name(b.mm),
           par_n(b.par), b.rows, b.cols, b.read_gbs);
    if (one == bench_type)
        printf("%-8s %7s %7s %8s %8s %10s\n", "type", "GB/s", "share", "x4 GB/s", "x8 GB/s",
               "GMAC/s 512");
    if (optind < argc) {
        for (int i = optind; i < argc; i++) {
            enum dtype t = dtype_by_name(str_c(argv[i]));
            if (find_layout(argv[i])) bench_layout(&b, find_layout(argv[i]));
            else if (t != DT_GROUPED && matmul_can(b.mm, t)) one(&b, t);
        }
    } else {
        for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) one(&b, usual[i]);
        for (size_t i = 0; one == bench_type && i < sizeof layouts / sizeof *layouts; i++)
            bench_layout(&b, &layouts[i]);
    }
out:
    if (rc != OK) fprintf(stderr, "kernels: %s\n", e.msg);
    matmul_close(b.mm);
    matmul_close(b.vectors);
    matmul_close(b.few);
    matmul_close(b.many);
    par_close(b.par);
    if (b.set) mem_free_aligned(b.set, SET_BYTES);
    mem_free(b.x);
    mem_free(b.y);
    return rc == OK ? 0 : 1;
}
