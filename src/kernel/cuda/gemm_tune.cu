/* gemm_tune.cu - measures up to how many tokens the packed GEMM is faster than cuBLASLt on this
 * GPU.
 *
 * Done for the weight types of a model when its memory is reserved, some 50 ms for each type, and
 * cached in a file (tuned.h). TERN_CUDA_TUNE=0 skips it and uses the numbers of an H200. */
extern "C" {
#include "base/buf.h"
#include "base/log.h"
}
#include "base/minmax.h"
#include "kernel/cuda/cu_gemm.cuh"
#include "kernel/cuda/cu_layout.cuh"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#define MIN_ROWS 1024 /* models with fewer rows or columns are too small to gain by it */
#define SIZE 4096     /* rows and columns that are measured, at most */
#define MATRICES 32
#define ROUNDS 3

static const int sizes[] = { 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536 };
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))

/* More matrices than the L2 cache holds, so that they come from memory as in a model. */
struct trial {
    struct cuda *c;
    enum dtype type;
    struct weight w[MATRICES][3];
    int n_w, n_jobs;
    int rows, cols, max_tokens;
    size_t w_bytes, bytes;
    char *mem; /* matrices, x, out */
    float *x, *out;
    cudaEvent_t begin, end;
};

/* One allocation for matrices, x and out. Weights are zero: the time does not depend on their
 * values. */
static bool trial_open(struct trial *t, struct cuda *c, enum dtype type, int n_jobs)
{
    struct err e = {};
    size_t x_bytes, out_bytes, one;

    memset(t, 0, sizeof *t);
    t->c = c, t->type = type, t->n_jobs = n_jobs;
    t->rows = min_int(c->lim.max_rows, SIZE) / n_jobs / 64 * 64;
    t->cols = min_int(c->lim.max_cols, SIZE) / 256 * 256;
    t->max_tokens = min_int(c->lim.max_tokens, sizes[N_SIZES - 1]);
    one = (cu_weight_bytes(type, t->rows, t->cols, 1) + 1023) / 1024 * 1024;
    if (!one) return false;
    t->n_w = min_int((int)(2 * c->l2_bytes / (one * (size_t)n_jobs)) + 1, MATRICES);
    t->w_bytes = one * (size_t)n_jobs * (size_t)t->n_w;
    x_bytes = (size_t)t->max_tokens * (size_t)t->cols * sizeof(float);
    out_bytes = (size_t)t->max_tokens * (size_t)t->rows * (size_t)n_jobs * sizeof(float);
    t->bytes = t->w_bytes + x_bytes + out_bytes;
    if (cu_mem_alloc(c, (void **)&t->mem, t->bytes, MEM_SCRATCH, "measuring the GEMM", &e) != OK)
        return false;
    cudaMemsetAsync(t->mem, 0, t->bytes, c->stream);
    t->x = (float *)(t->mem + t->w_bytes);
    t->out = (float *)(t->mem + t->w_bytes + x_bytes);
    for (int i = 0; i < t->n_w * n_jobs; i++) {
        struct weight *w = &t->w[i / n_jobs][i % n_jobs];
        w->type = type, w->rows = t->rows, w->cols = t->cols, w->n = 1;
        w->packed = t->mem + one * (size_t)i;
    }
    return cudaEventCreate(&t->begin) == cudaSuccess && cudaEventCreate(&t->end) == cudaSuccess;
}

static void trial_close(struct trial *t)
{
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
    if (t->mem) cu_mem_free(t->c, t->mem, t->bytes, MEM_SCRATCH);
}

/* Milliseconds for all matrices, the best of ROUNDS; FLT_MAX: it failed. */
static float trial_run(struct trial *t, int tokens, enum gemm_way way)
{
    float best = FLT_MAX;

    gemm_set_way(t->c, way);
    /* Round 0 warms up: plans, attributes and caches. */
    for (int round = 0; round <= ROUNDS; round++) {
        float ms = 0;
        cudaEventRecord(t->begin, t->c->stream);
        for (int i = 0; i < t->n_w; i++) {
            struct linear jobs[3] = {};
            struct cu_linear p = {};
            for (int k = 0; k < t->n_jobs; k++) {
                jobs[k].out = tensor_f32(
                    t->out + (size_t)k * (size_t)t->max_tokens * (size_t)t->rows, tokens, t->rows);
                jobs[k].w = &t->w[i][k];
            }
            p.x = tensor_f32(t->x, tokens, t->cols);
            p.jobs = jobs, p.n_jobs = t->n_jobs;
            cu_gemm_reset(t->c);
            cu_gemm(t->c, &p);
        }
        cudaEventRecord(t->end, t->c->stream);
        if (cudaEventSynchronize(t->end) != cudaSuccess ||
            cudaEventElapsedTime(&ms, t->begin, t->end) != cudaSuccess)
            return FLT_MAX;
        if (round > 0 && ms < best) best = ms;
    }
    return best;
}

/* The largest size at which the packed GEMM was not slower. A single size that is slower does not
 * end the search. */
static int find_crossover(struct trial *t)
{
    int most = sizes[0], lost = 0;

    for (int i = 0; i < N_SIZES && sizes[i] <= t->max_tokens && lost < 2; i++) {
        float packed = trial_run(t, sizes[i], GEMM_PACKED), lt = trial_run(t, sizes[i], GEMM_LT);
        log_debug("%s: %s, %d x %d, %d tokens: packed GEMM %.3f ms, cuBLASLt %.3f ms",
                  t->c->be.name, dtype_name(t->type), t->rows, t->n_jobs, sizes[i], (double)packed,
                  (double)lt);
        if (packed <= lt) most = sizes[i], lost = 0;
        else lost++;
    }
    return most;
}

/* [0]: one product of x; [1]: three (q, k, v). */
static bool measure_type(struct cuda *c, enum dtype type, int most[2])
{
    for (int k = 0; k < 2; k++) {
        struct trial t;
        bool good = trial_open(&t, c, type, k ? 3 : 1);
        if (good) most[k] = find_crossover(&t);
        trial_close(&t);
        gemm_set_way(c, GEMM_AUTO);
        if (!good) return false;
    }
    return true;
}

/* Everything that a measurement depends on: GPU, driver, library, version. */
static void fill_key(struct cuda *c, char *key, size_t n)
{
    char library[64];
    int driver = 0;

    cudaDriverGetVersion(&driver);
    snprintf(key, n, "%s|%d|%s|%s", c->be.detail, driver, gemm_library(c, library, sizeof library),
             TERN_VERSION);
}

void gemm_tune(struct cuda *c, struct tuned *t, uint64_t types)
{
    const char *off = getenv("TERN_CUDA_TUNE");
    struct buf path = {};
    char key[256];
    int n = 0;

    if ((off && strcmp(off, "0") == 0) || c->lim.max_rows < MIN_ROWS ||
        c->lim.max_cols < MIN_ROWS || c->lim.max_tokens < sizes[0])
        return;
    fill_key(c, key, sizeof key);
    tuned_path(&path, key);
    if (path.failed) buf_clear(&path);
    if (path.n) tuned_read(t, buf_cstr(&path));
    for (int i = 0; i < DT_COUNT; i++) {
        enum dtype type = (enum dtype)layout_type(i);
        if (!(types >> i & 1) || type == DT_F32 || t->max_tokens_packed[type][0]) continue;
        if (i == DT_GROUPED) continue; /* its layouts are not dtypes: the numbers of an H200 */
        if (!measure_type(c, type, t->max_tokens_packed[type])) {
            t->max_tokens_packed[type][0] = t->max_tokens_packed[type][1] = 0;
            continue;
        }
        log_info(
            "%s: %s weights: packed GEMM up to %d tokens (%d where three matrix products share "
            "x), then cuBLASLt",
            c->be.name, dtype_name(type), t->max_tokens_packed[type][0],
            t->max_tokens_packed[type][1]);
        n++;
    }
    if (n && path.n && !tuned_write(t, buf_cstr(&path)))
        log_info("%s: cannot write %s: the GEMM is measured again next time", c->be.name,
                 buf_cstr(&path));
    buf_release(&path);
}
