/* sample.cu - tokens sampled by the GPU against the host's sampler, over odd rows and settings,
 * then times. */
#include "bench.cuh"

extern "C" {
#include "sample/sampler.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

/* Normal numbers from a random position of a large table. */
struct normals {
    static std::vector<float> pool;
    size_t at = rng_u64(dice());
    float next(void) { return pool[at++ % pool.size()]; }
};
std::vector<float> normals::pool;

template <class T> static T *device(size_t n)
{
    void *p = NULL;
    ok(cudaMalloc(&p, n * sizeof(T) + 64), "malloc");
    return (T *)p;
}

/* ---- against the host ---- */

enum { ROWS = 64, MAX_ADJUST = ROWS * 512, MAX_VOCAB = 262144 };

static float *d_x;
static struct sample_row *d_picks;
static struct logit_adjust *d_adjust;
static int32_t *d_ids;

enum shape { NORMAL, FLAT, SHARP, TIES, HOLES, EQUAL, FAR, INFINITE, SHAPES };
static const char *const shape_name[] = { "normal", "flat",  "sharp", "ties",
                                          "holes",  "equal", "far",   "infinite" };

static void fill(float *x, int n, enum shape s)
{
    static const float size[SHAPES] = { 2, 0.3f, 8, 2, 2, 0, 3, 2 };
    struct normals normals;

    for (int i = 0; i < n; i++) {
        x[i] = normals.next() * size[s];
        if (s == TIES) x[i] = rintf(x[i] * 2) / 2;
        if (s == HOLES && below(3) == 0) x[i] = below(2) ? -INFINITY : NAN;
        if (s == FAR && i % 7) x[i] = -1e30f;
        if (s == INFINITE && i % 97 == 5) x[i] = INFINITY;
    }
}

static const struct {
    const char *name;
    float temp;
    int top_k;
    float top_p, min_p;
} settings[] = {
    { "greedy", 0, 0, 1, 0 },
    { "temperature 1", 1, 0, 1, 0 },
    { "top-k 40, top-p 0.95", 1, 40, 0.95f, 0 },
    { "the defaults", 0.8f, 40, 0.95f, 0.05f },
    { "top-p 0.9", 1, 0, 0.9f, 0 },
    { "top-p 0.999", 0.7f, 0, 0.999f, 0 },
    { "min-p 0.1", 1.5f, 0, 1, 0.1f },
    { "top-k 3000, top-p 0.8", 1, 3000, 0.8f, 0 },
    { "top-k 1", 1, 1, 1, 0 },
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

struct tally {
    long n, differ, unequal, changed;
};

/* Some steps of ROWS requests, some of them with penalties and a bias. */
static void compare(int n, enum shape shape, int set, struct tally *t)
{
    std::vector<float> x((size_t)ROWS * n), back(x.size());
    std::vector<struct sample_row> picks(ROWS);
    std::vector<struct logit_adjust> adjust(MAX_ADJUST);
    struct sampler *host[ROWS], *dev[ROWS];
    struct err e = {};

    for (int r = 0; r < ROWS; r++) {
        struct sample_opt o = { .temp = settings[set].temp,
                                .top_k = settings[set].top_k,
                                .top_p = settings[set].top_p,
                                .min_p = settings[set].min_p,
                                .typical = 1,
                                .repeat_penalty = 1,
                                .repeat_last = 64,
                                .freq_penalty = 0,
                                .presence_penalty = 0,
                                .seed = rng_u64(dice()),
                                .bias = NULL,
                                .n_bias = 0 };
        struct logit_bias bias[8];
        fill(x.data() + (size_t)r * n, n, shape);
        if (r % 3 == 1) o.repeat_penalty = 1.3f, o.freq_penalty = 0.2f, o.presence_penalty = 0.5f;
        if (r % 4 == 1) {
            for (int i = 0; i < 8; i++) bias[i] = { below(n), normal() * 4 };
            o.bias = bias, o.n_bias = 8;
        }
        if (sampler_open(&host[r], &o, n, &e) != OK || sampler_open(&dev[r], &o, n, &e) != OK)
            exit(1);
        for (int i = 0; i < 20; i++) {
            int id = below(n);
            sampler_accept(host[r], id), sampler_accept(dev[r], id);
        }
    }
    ok(cudaMemcpy(d_x, x.data(), x.size() * 4, cudaMemcpyHostToDevice), "logits");
    for (int step = 0; step < (n < 10000 ? 4 : 1); step++) {
        int32_t ids[ROWS], again[ROWS], want;
        int n_adjust = 0;
        for (int r = 0; r < ROWS; r++) {
            int32_t ban = 0; /* in some rows the first token */
            int k = sampler_plan(dev[r], &ban, r % 5 == 1 && n > 1, &picks[r],
                                 adjust.data() + n_adjust, MAX_ADJUST - n_adjust);
            picks[r].row = r, picks[r].adjust = n_adjust;
            n_adjust += k;
        }
        ok(cudaMemcpy(d_picks, picks.data(), ROWS * sizeof(struct sample_row),
                      cudaMemcpyHostToDevice),
           "picks");
        ok(cudaMemcpy(d_adjust, adjust.data(), (size_t)n_adjust * sizeof(struct logit_adjust),
                      cudaMemcpyHostToDevice),
           "adjust");
        struct tensor logits = tensor_f32(d_x, ROWS, n);
        cu_sample(&cu, d_ids, &logits, d_picks, ROWS, d_adjust);
        ok(cudaMemcpyAsync(ids, d_ids, sizeof ids, cudaMemcpyDeviceToHost, cu.stream), "ids");
        cu_sample(&cu, d_ids, &logits, d_picks, ROWS, d_adjust);
        ok(cudaMemcpyAsync(again, d_ids, sizeof ids, cudaMemcpyDeviceToHost, cu.stream), "ids");
        if (!ok(cudaStreamSynchronize(cu.stream), "sample")) exit(1);
        for (int r = 0; r < ROWS; r++) {
            float *row = x.data() + (size_t)r * n, aside = row[0];
            if (r % 5 == 1 && n > 1) row[0] = -INFINITY;
            if (sampler_next(host[r], row, &want, &e) != OK) want = -1;
            row[0] = aside;
            sampler_accept_device(dev[r], want, &e);
            t->n++;
            t->differ += ids[r] != want;
            t->unequal += ids[r] != again[r];
        }
    }
    ok(cudaMemcpy(back.data(), d_x, x.size() * 4, cudaMemcpyDeviceToHost), "back");
    t->changed += memcmp(back.data(), x.data(), x.size() * 4) != 0;
    for (int r = 0; r < ROWS; r++) sampler_close(host[r]), sampler_close(dev[r]);
}

static void compare_all(void)
{
    static const int sizes[] = { 1, 7, 1000, 32767 };

    printf("| setting | draws | other than the host's | other when repeated | rows changed "
           "|\n|---|---|---|---|---|\n");
    for (int s = 0; s < N_SETTINGS; s++) {
        struct tally t = {}, one;
        for (int n : sizes)
            for (int k = 0; k < SHAPES; k++) {
                one = {};
                compare(n, (enum shape)k, s, &one);
                if (one.differ * 100 > one.n)
                    printf("%s, %s, %d ids: %ld of %ld differ\n", settings[s].name, shape_name[k],
                           n, one.differ, one.n);
                t.n += one.n, t.differ += one.differ, t.unequal += one.unequal,
                    t.changed += one.changed;
            }
        bool bad = t.differ * 1000 > t.n || t.unequal || t.changed;
        printf("| %s | %ld | %ld | %ld | %ld |%s\n", settings[s].name, t.n, t.differ, t.unequal,
               t.changed, bad ? " BAD" : "");
        n_failed += bad;
    }
}

/* Temperature 1 without filters is the softmax: a chi-square test over many seeds. */
static void check_distribution(void)
{
    enum { N = 64, STEPS = 2000 };
    float x[N];
    double w[N], sum = 0, chi = 0;
    long count[N] = {};
    std::vector<struct sample_row> picks(ROWS);
    std::vector<float> rows((size_t)ROWS * N);

    for (int i = 0; i < N; i++) sum += w[i] = exp((double)(x[i] = normal()));
    for (int r = 0; r < ROWS; r++) memcpy(&rows[(size_t)r * N], x, sizeof x);
    ok(cudaMemcpy(d_x, rows.data(), rows.size() * 4, cudaMemcpyHostToDevice), "logits");
    for (int s = 0; s < STEPS; s++) {
        int32_t ids[ROWS];
        struct tensor logits = tensor_f32(d_x, ROWS, N);
        for (int r = 0; r < ROWS; r++) picks[r] = { r, 0, 1, 1, 0, 0, 0, 0, rng_unit(dice()) };
        ok(cudaMemcpy(d_picks, picks.data(), ROWS * sizeof(struct sample_row),
                      cudaMemcpyHostToDevice),
           "picks");
        cu_sample(&cu, d_ids, &logits, d_picks, ROWS, d_adjust);
        ok(cudaStreamSynchronize(cu.stream), "sample");
        ok(cudaMemcpy(ids, d_ids, sizeof ids, cudaMemcpyDeviceToHost), "ids");
        for (int r = 0; r < ROWS; r++)
            if (ids[r] >= 0 && ids[r] < N) count[ids[r]]++;
    }
    for (int i = 0; i < N; i++) {
        double want = w[i] / sum * ROWS * STEPS;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    bool bad = chi > N - 1 + 4 * sqrt(2.0 * (N - 1)) + 4;
    printf("chi-square of %d draws over %d tokens: %.1f, %d degrees%s\n", ROWS * STEPS, N, chi,
           N - 1, bad ? " BAD" : "");
    n_failed += bad;
}

/* ---- times ---- */

struct load {
    const char *name;
    float temp;
    int top_k;
    float top_p, min_p;
    int n_adjust;
    float size;
};

/* Copies of the rows that together exceed the cache, used in rotation. */
static void time_one(const struct load *l, int rows, int n)
{
    size_t each = (size_t)rows * n, room = (size_t)1 << 26; /* numbers: 256 MB */
    int copies = (int)(room / each), reps = 20;
    std::vector<struct sample_row> picks(rows);
    std::vector<struct logit_adjust> adjust((size_t)rows * 64);
    cudaEvent_t begin, end;
    float ms = 0;

    copies = copies < 1 ? 1 : copies > 16 ? 16 : copies;
    std::vector<float> x(each);
    struct normals normals;
    for (float &v : x) v = normals.next() * l->size;
    float *buf = device<float>(each * copies);
    for (int k = 0; k < copies; k++)
        ok(cudaMemcpy(buf + each * k, x.data(), each * 4, cudaMemcpyHostToDevice), "rows");
    for (int r = 0; r < rows; r++) {
        picks[r] = { r,           l->top_k, l->temp,         l->top_p, l->min_p, r * l->n_adjust,
                     l->n_adjust, 0,        rng_unit(dice()) };
        for (int i = 0; i < l->n_adjust; i++)
            adjust[(size_t)(r * l->n_adjust + i)] = { (r + i * 331) % n, 0, 1.1f, 0.1f };
    }
    ok(cudaMemcpy(d_picks, picks.data(), rows * sizeof(struct sample_row), cudaMemcpyHostToDevice),
       "picks");
    ok(cudaMemcpy(d_adjust, adjust.data(), adjust.size() * sizeof(struct logit_adjust),
                  cudaMemcpyHostToDevice),
       "adjust");
    cudaEventCreate(&begin), cudaEventCreate(&end);
    for (int i = 0; i < reps * 2; i++) {
        struct tensor logits = tensor_f32(buf + each * (i % copies), rows, n);
        if (i == reps) cudaEventRecord(begin, cu.stream);
        cu_sample(&cu, d_ids, &logits, d_picks, rows, d_adjust);
    }
    cudaEventRecord(end, cu.stream);
    ok(cudaStreamSynchronize(cu.stream), "times");
    cudaEventElapsedTime(&ms, begin, end);
    printf("| %s | %d x %d | %.1f |\n", l->name, rows, n, ms * 1e3 / reps);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    cudaFree(buf);
}

static void time_all(void)
{
    static const struct load loads[] = {
        { "greedy", 0, 0, 1, 0, 0, 2 },
        { "temperature 1", 1, 0, 1, 0, 0, 2 },
        { "top-k 40, top-p 0.95", 1, 40, 0.95f, 0, 0, 2 },
        { "the defaults, 64 penalties", 0.8f, 40, 0.95f, 0.05f, 64, 2 },
        { "top-p 0.95, sharp", 1, 0, 0.95f, 0, 0, 4 },
        { "top-p 0.95, flat", 1, 0, 0.95f, 0, 0, 1 },
        { "min-p 0.05", 1, 0, 1, 0.05f, 0, 2 },
    };
    static const int shapes[][2] = {
        { 1, 32768 }, { 64, 32768 }, { 256, 32768 }, { 1, 131072 }, { 256, 131072 }
    };

    printf("| setting | rows x ids | us |\n|---|---|---|\n");
    for (const struct load &l : loads)
        for (const int *s : shapes) time_one(&l, s[0], s[1]);
}

int main(void)
{
    if (!open_device()) return 1;
    for (int i = 0; i < 1000003; i++) normals::pool.push_back(normal());
    cu.scratch[CU_SAMPLE] = device<float>(MAX_ADJUST);
    d_x = device<float>((size_t)ROWS * MAX_VOCAB);
    d_picks = device<struct sample_row>(1024);
    d_adjust = device<struct logit_adjust>(MAX_ADJUST);
    d_ids = device<int32_t>(1024);
    time_all();
    compare_all();
    check_distribution();
    if (cu.rc != OK) printf("%s\n", cu.msg);
    printf("%s\n", n_failed ? "FAILED" : "all good");
    return n_failed != 0;
}
