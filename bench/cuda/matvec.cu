/* matvec.cu - matrix products of a few tokens on the GPU: correctness against the host, and speed.
 *
 * Without arguments all of it; `check`, `time`, or `chain` for the last part of `time`. */
#include "bench.cuh"
#include "kernel/cuda/cu_layout.cuh"

extern "C" {
#include "kernel/quant.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#define PEAK 4.47e12 /* bytes per second that an H200 was measured to read */
#define TOLERANCE 2e-3

static int n_bad;

static void must(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess) return;
    printf("FAIL %s: %s\n", what, cudaGetErrorString(rc));
    exit(1);
}
template <typename E> static E *upload(const std::vector<E> &v)
{
    void *p;
    must(cudaMalloc(&p, v.size() * sizeof(E) + 16), "malloc");
    must(cudaMemcpy(p, v.data(), v.size() * sizeof(E), cudaMemcpyHostToDevice), "upload");
    return (E *)p;
}

/* A random weight: in its file format, as floats, and on the device. */
struct matrix {
    struct weight w;
    std::vector<uint8_t> file;
    std::vector<float> plain;
};

/* n numbers in format t: random blocks out of a few hundred that were encoded once. */
static void file_random(enum dtype t, std::vector<uint8_t> *file, size_t n)
{
    const struct dtype_info *info = dtype_info(t);
    static std::vector<uint8_t> pools[DT_COUNT];
    std::vector<uint8_t> &pool = pools[t];
    size_t block = (size_t)info->block, bytes = (size_t)info->bytes;
    if (pool.empty() && quant_can_encode(t)) {
        std::vector<float> f(256 * block);
        for (float &v : f) v = 0.05f * normal();
        pool.resize(256 * bytes);
        quant_encode(t, f.data(), pool.data(), (int64_t)f.size());
    } else if (pool.empty()) {
        uint16_t d = f32_to_f16(0.01f);
        pool.resize(256 * bytes);
        for (uint8_t &b : pool)
            b = (uint8_t)(unit() * 256) &
                (info->quantized ? 0xff : 0x9f); /* F8: no NaN, nothing large */
        for (size_t at = 0; info->quantized && at < pool.size(); at += bytes)
            memcpy(pool.data() + at, &d, 2); /* d comes first in the types that get here */
    }
    file->resize(n / block * bytes);
    for (size_t at = 0; at < file->size(); at += bytes)
        memcpy(file->data() + at, pool.data() + (size_t)(unit() * 256) * bytes, bytes);
}

static void matrix_make(struct matrix *m, enum dtype t, int rows, int cols)
{
    size_t n = (size_t)rows * (size_t)cols;
    file_random(t, &m->file, n);
    m->plain.resize(n);
    quant_decode(t, m->file.data(), m->plain.data(), (int64_t)n);
    m->w = { t, rows, cols, 1, m->file.data(), NULL, 0, 0 };
    m->w.packed_bytes = cu_weight_bytes(t, rows, cols, 1);
    std::vector<uint8_t> image(m->w.packed_bytes, 0xee);
    uint64_t row = 0;
    dtype_row_bytes(t, (uint64_t)cols, &row);
    for (int r = 0; r < rows; r += 48) { /* in parts, as the upload does */
        struct cu_plane plane[4];
        void *dst[4];
        int r1 = r + 48 < rows ? r + 48 : rows, planes = cu_pack_planes(&m->w, 0, r, r1, plane);
        for (int i = 0; i < planes; i++) dst[i] = image.data() + plane[i].at;
        cu_pack_rows(&m->w, m->file.data() + (size_t)r * row, r, r1, dst);
    }
    m->w.packed = upload(image);
}
static void matrix_free(struct matrix *m) { cudaFree(m->w.packed); }

static double act_double(enum act a, double x)
{
    switch (a) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    default: break; /* tests/ops/test_cuda.c has the others */
    }
    return x;
}

static void norm_double(double *y, const float *x, int n, int kind, const float *w, const float *b,
                        double eps)
{
    double mean = 0, sq = 0;
    for (int i = 0; i < n; i++) mean += x[i];
    mean = kind == CU_NORM_LAYER ? mean / n : 0;
    for (int i = 0; i < n; i++) sq += (x[i] - mean) * (x[i] - mean);
    double r = 1 / sqrt(sq / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = kind == CU_NORM_NONE ? x[i] : (x[i] - mean) * r * (w ? w[i] : 1) + (b ? b[i] : 0);
}

struct how {
    int n_jobs, rows[3], cols, tokens, norm;
    enum dtype types[3];
    bool bias, add, fuse;
    enum act act;
    float scale, size; /* size: of x */
};

/* The root of the summed squares of errors over that of the terms, which is the expected size of a
 * result with random signs: a result that happens to be near 0 does not count as wrong. */
static double run_case(const struct how *h)
{
    struct matrix m[3];
    struct linear jobs[3] = {};
    std::vector<float> x((size_t)h->tokens * (size_t)h->cols), w((size_t)h->cols),
        b((size_t)h->cols);
    std::vector<float> bias[3], out[3], got;
    for (float &v : x) v = h->size * normal();
    for (int i = 0; i < h->cols; i++) w[(size_t)i] = 0.5f + unit(), b[(size_t)i] = normal();
    float *dx = upload(x), *dw = upload(w), *db = upload(b);
    for (int j = 0; j < h->n_jobs; j++) {
        size_t n = (size_t)h->rows[j];
        matrix_make(&m[j], h->types[j], h->rows[j], h->cols);
        bias[j].resize(n);
        out[j].resize(n * (size_t)h->tokens);
        for (float &v : bias[j]) v = normal();
        for (float &v : out[j]) v = normal();
        jobs[j].out = tensor_f32(upload(out[j]), h->tokens, h->rows[j]);
        jobs[j].w = &m[j].w;
        jobs[j].bias = h->bias ? upload(bias[j]) : NULL;
        jobs[j].add = h->add && !h->fuse;
        jobs[j].scale = h->scale;
    }
    struct cu_norm norm = { h->norm, dw, h->norm == CU_NORM_LAYER ? db : NULL, 1e-5f };
    struct cu_linear p = {
        tensor_f32(dx, h->tokens, h->cols), norm, jobs, h->n_jobs, h->fuse, h->act, NULL
    };
    cu_matvec(&cu, &p);
    must(cudaGetLastError(), "launch");
    must(cudaStreamSynchronize(cu.stream), "matvec");
    double err = 0, ref = 0, gated = 0;
    std::vector<double> y((size_t)h->cols);
    for (int t = 0; t < h->tokens; t++) {
        norm_double(y.data(), x.data() + (size_t)t * (size_t)h->cols, h->cols, h->norm, w.data(),
                    h->norm == CU_NORM_LAYER ? b.data() : NULL, 1e-5f);
        std::vector<double> v[3], gate_terms((size_t)h->rows[0]);
        for (int j = 0; j < h->n_jobs; j++) {
            v[j].resize((size_t)h->rows[j]);
            for (int r = 0; r < h->rows[j]; r++) {
                const float *row = m[j].plain.data() + (size_t)r * (size_t)h->cols;
                double s = 0, terms = 0;
                for (int c = 0; c < h->cols; c++) {
                    s += row[c] * y[(size_t)c];
                    terms += row[c] * y[(size_t)c] * row[c] * y[(size_t)c];
                }
                ref += h->fuse ? 0
                               : terms * (h->scale == 0 ? 1 : h->scale) *
                                     (h->scale == 0 ? 1 : h->scale);
                if (h->fuse && h->n_jobs == 1) ref += terms;
                if (h->fuse && j == 1) gated += terms * gate_terms[(size_t)r];
                if (j == 0) gate_terms[(size_t)r] = terms;
                s = s * (h->scale == 0 ? 1 : h->scale) + (h->bias ? bias[j][(size_t)r] : 0);
                if (jobs[j].add) s += out[j][(size_t)t * (size_t)h->rows[j] + (size_t)r];
                v[j][(size_t)r] = s;
            }
        }
        for (int r = 0; h->fuse && r < h->rows[0]; r++)
            v[0][(size_t)r] =
                act_double(h->act, v[0][(size_t)r]) * (h->n_jobs > 1 ? v[1][(size_t)r] : 1);
        for (int j = 0; j < (h->fuse ? 1 : h->n_jobs); j++) {
            got.resize((size_t)h->rows[j]);
            must(cudaMemcpy(got.data(), tensor_row(&jobs[j].out, t), got.size() * 4,
                            cudaMemcpyDeviceToHost),
                 "get");
            for (size_t r = 0; r < got.size(); r++) {
                err += (got[r] - v[j][r]) * (got[r] - v[j][r]);
                ref += h->fuse ? v[j][r] * v[j][r] : 0;
            }
        }
    }
    for (int j = 0; j < h->n_jobs; j++) {
        matrix_free(&m[j]);
        cudaFree(jobs[j].out.data);
        cudaFree((void *)jobs[j].bias);
    }
    cudaFree(dx), cudaFree(dw), cudaFree(db);
    if (cu.rc != OK) {
        printf("FAIL %s\n", cu.msg);
        cu.rc = OK;
        n_bad++;
    }
    ref += gated;
    return sqrt(err / (ref > 0 ? ref : 1));
}

static double check_dequant(enum dtype t, int rows, int cols)
{
    struct matrix m;
    __half *out;
    double worst = 0;
    int r0 = rows > 20 ? 5 : 0, n = rows - r0 - (rows > 20 ? 3 : 0);
    std::vector<__half> got((size_t)n * (size_t)cols);
    matrix_make(&m, t, rows, cols);
    must(cudaMalloc((void **)&out, got.size() * 2), "malloc");
    must(cudaMemset(out, 0xff, got.size() * 2), "poison");
    cu_dequant(&cu, out, &m.w, 0, r0, n);
    must(cudaStreamSynchronize(cu.stream), "dequant");
    must(cudaMemcpy(got.data(), out, got.size() * 2, cudaMemcpyDeviceToHost), "get");
    for (size_t i = 0; i < got.size(); i++) {
        double v = m.plain[(size_t)r0 * (size_t)cols + i],
               e = fabs(__half2float(got[i]) - v) / (fabs(v) + 1e-3);
        if (!(e <= worst)) worst = e;
    }
    matrix_free(&m);
    cudaFree(out);
    return worst;
}

/* Two operations; the second reads the first one's result, and the first one prepares x for it. The
 * result must be the same as without. */
static void check_prepared(enum dtype ta, enum dtype tb, int norm, bool fuse, bool add, float size)
{
    const int cols = 1024, mid = 2048, rows = 100;
    struct matrix a[2], b;
    std::vector<float> x((size_t)cols), w((size_t)mid), h((size_t)mid), y((size_t)rows, 0.f);
    for (float &v : x) v = size * normal();
    for (float &v : w) v = 0.5f + unit();
    for (float &v : h) v = size * normal();
    matrix_make(&a[0], ta, mid, cols), matrix_make(&a[1], ta, mid, cols),
        matrix_make(&b, tb, rows, mid);
    float *dx = upload(x), *dw = upload(w), *dh = upload(h), *dy = upload(y), *du = upload(h);
    struct linear first[2] = { { tensor_f32(dh, 1, mid), &a[0].w, NULL, add && !fuse, 0.f },
                               { tensor_f32(du, 1, mid), &a[1].w, NULL, false, 0.f } };
    struct linear second = { tensor_f32(dy, 1, rows), &b.w, NULL, false, 0.f };
    struct cu_linear q = { tensor_f32(dh, 1, mid),
                           { norm, norm ? dw : NULL, NULL, 1e-5f },
                           &second,
                           1,
                           false,
                           ACT_SILU,
                           NULL };
    struct cu_linear p = { tensor_f32(dx, 1, cols), {}, first, fuse ? 2 : 1, fuse, ACT_SILU, &q };
    cu_matvec(&cu, &p);
    cu_matvec(&cu, &q);
    must(cudaStreamSynchronize(cu.stream), "matvec");
    must(cudaMemcpy(h.data(), dh, h.size() * 4, cudaMemcpyDeviceToHost), "get");
    must(cudaMemcpy(y.data(), dy, y.size() * 4, cudaMemcpyDeviceToHost), "get");
    std::vector<double> n((size_t)mid);
    double err = 0, ref = 0;
    norm_double(n.data(), h.data(), mid, norm, w.data(), NULL, 1e-5f);
    for (int r = 0; r < rows; r++) {
        double s = 0;
        for (int c = 0; c < mid; c++) {
            double v = b.plain[(size_t)r * (size_t)mid + (size_t)c] * n[(size_t)c];
            s += v;
            ref += v * v;
        }
        err += (y[(size_t)r] - s) * (y[(size_t)r] - s);
    }
    double e = sqrt(err / (ref > 0 ? ref : 1));
    bool bad = !(e < 3e-4);
    n_bad += bad;
    printf("then %s %s norm %d fuse %d add %d size %g: %.1e %s\n", dtype_name(ta), dtype_name(tb),
           norm, fuse, add, size, e, bad ? "FAIL" : "");
    for (struct matrix *m : { &a[0], &a[1], &b }) matrix_free(m);
    for (float *f : { dx, dw, dh, dy, du }) cudaFree(f);
}
static void check_prepareds(void)
{
    for (enum dtype t :
         { DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_Q4_0, DT_MXFP4, DT_IQ4_XS, DT_Q3_K, DT_F16, DT_BF16 })
        for (int i = 0; i < 3; i++)
            check_prepared(i == 1 ? DT_F16 : t, t, i % 2, i == 2, i == 1, i == 1 ? 1e3f : 1.f);
}

static const enum dtype all_types[] = { DT_Q4_0,   DT_Q4_1,    DT_Q5_0,   DT_Q5_1,  DT_Q8_0,
                                        DT_IQ4_NL, DT_MXFP4,   DT_Q2_K,   DT_Q3_K,  DT_Q4_K,
                                        DT_Q5_K,   DT_Q6_K,    DT_IQ4_XS, DT_F16,   DT_BF16,
                                        DT_F32,    DT_IQ2_XXS, DT_IQ3_S,  DT_TQ1_0, DT_F8_E4M3 };

static void check_type(enum dtype t)
{
    static const int shapes[][2] = { { 1, 256 },    { 7, 256 },    { 33, 512 },   { 100, 4096 },
                                     { 4100, 256 }, { 40, 14336 }, { 300, 1024 }, { 7, 32 },
                                     { 33, 96 },    { 17, 4128 },  { 5, 1 },      { 33, 100 },
                                     { 40, 4100 } };
    static const int tokens[] = { 1, 2, 3, 5, 8 };
    const struct dtype_info *info = dtype_info(t);
    double worst[2] = { 0, 0 }, dq = 0;
    char where[2][80] = { "", "" };
    int k = 0, n = 0;
    for (const int *s : shapes) {
        if (s[1] % info->block) continue;
        double e = check_dequant(t, s[0], s[1]);
        if (!(e <= dq)) dq = e;
        for (int tok : tokens) {
            if ((s[0] > 1000 || s[1] > 10000) && tok != 1 && tok != 8) continue;
            struct how h = { 1,
                             { s[0] },
                             s[1],
                             tok,
                             k % 3,
                             { t },
                             k % 2 == 0,
                             k % 4 == 1,
                             k % 5 == 4,
                             (enum act)(k % 6),
                             k % 7 == 3 ? 0.5f : 0.f,
                             k % 8 == 5   ? 1e6f
                             : k % 8 == 6 ? 1e-5f
                                          : 1.f };
            if (k % 5 == 2) h.n_jobs = 2, h.rows[1] = s[0], h.types[1] = t, h.fuse = true;
            if (k % 5 == 3)
                h.n_jobs = 3, h.rows[1] = 20, h.rows[2] = 1, h.types[1] = h.types[2] = t;
            if (h.size > 1 && h.fuse) h.size = 1.f;
            if (h.size < 1) h.bias = h.add = false;
            k++;
            e = run_case(&h);
            int one = tok == 1;
            n++;
            if (e <= worst[one]) continue;
            worst[one] = e;
            snprintf(where[one], sizeof where[one],
                     "%dx%d tokens %d norm %d jobs %d fuse %d add %d size %g", s[0], s[1], tok,
                     h.norm, h.n_jobs, h.fuse, h.add, h.size);
        }
    }
    bool bad = !(worst[0] < TOLERANCE && worst[1] < TOLERANCE && dq < 2e-3);
    n_bad += bad;
    printf("%-8s %2d cases  dequant %.1e  1 token %.1e  2..8 tokens %.1e %s\n", info->name, n, dq,
           worst[1], worst[0], bad ? "FAIL" : "");
    if (bad) printf("         1: %s | more: %s\n", where[1], where[0]);
}

static void check_mixed(void)
{
    static const struct how cases[] = {
        { 3,
          { 4096, 1024, 1024 },
          4096,
          1,
          CU_NORM_RMS,
          { DT_Q4_K, DT_Q4_K, DT_Q6_K },
          false,
          false,
          false,
          ACT_SILU,
          0,
          1 },
        { 3,
          { 512, 128, 100 },
          4096,
          5,
          CU_NORM_RMS,
          { DT_Q4_K, DT_Q6_K, DT_Q6_K },
          true,
          false,
          false,
          ACT_SILU,
          0,
          1 },
        { 3,
          { 512, 128, 128 },
          1024,
          8,
          CU_NORM_RMS,
          { DT_Q5_K, DT_Q5_K, DT_Q6_K },
          true,
          true,
          false,
          ACT_SILU,
          0,
          1 },
        { 3,
          { 512, 128, 128 },
          1024,
          1,
          CU_NORM_LAYER,
          { DT_Q4_0, DT_F16, DT_Q6_K },
          true,
          true,
          false,
          ACT_SILU,
          0,
          1 },
        { 3,
          { 50, 16, 16 },
          1024,
          3,
          CU_NORM_RMS,
          { DT_F32, DT_F16, DT_F32 },
          true,
          true,
          false,
          ACT_SILU,
          0,
          1 },
        { 2,
          { 1000, 1000 },
          1024,
          1,
          CU_NORM_RMS,
          { DT_Q4_K, DT_Q6_K },
          false,
          false,
          true,
          ACT_GELU_TANH,
          0,
          1 },
        { 2,
          { 1000, 1000 },
          1024,
          4,
          CU_NORM_RMS,
          { DT_F16, DT_BF16 },
          false,
          false,
          true,
          ACT_SILU,
          0,
          1 },
        { 2,
          { 2048, 2048 },
          4096,
          8,
          CU_NORM_RMS,
          { DT_Q4_K, DT_Q4_K },
          false,
          false,
          true,
          ACT_SILU,
          0,
          1 },
        { 1, { 70000 }, 256, 8, CU_NORM_RMS, { DT_Q6_K }, false, false, false, ACT_SILU, 0, 1 },
        { 1, { 70001 }, 256, 1, CU_NORM_NONE, { DT_F16 }, true, true, false, ACT_SILU, 0, 1 },
    };
    for (const struct how &h : cases) {
        double e = run_case(&h);
        n_bad += !(e < TOLERANCE);
        printf("mixed %d jobs, %s %s, %d tokens: %.1e %s\n", h.n_jobs, dtype_name(h.types[0]),
               dtype_name(h.types[h.n_jobs - 1]), h.tokens, e, e < TOLERANCE ? "" : "FAIL");
    }
}

/* ---- speed ---- */

/* A weight of this size on the device: 64 random rows that repeat. */
static struct weight weight_fill(enum dtype t, int rows, int cols)
{
    struct matrix m;
    struct weight w = { t, rows, cols, 1, NULL, NULL, 0, 0 };
    matrix_make(&m, t, 64, cols);
    w.packed_bytes = cu_weight_bytes(t, rows, cols, 1);
    must(cudaMalloc(&w.packed, w.packed_bytes), "weights");
    for (size_t at = 0; at < w.packed_bytes; at += m.w.packed_bytes) {
        size_t n = w.packed_bytes - at < m.w.packed_bytes ? w.packed_bytes - at : m.w.packed_bytes;
        must(cudaMemcpyAsync((uint8_t *)w.packed + at, m.w.packed, n, cudaMemcpyDeviceToDevice,
                             cu.stream),
             "copy");
    }
    must(cudaStreamSynchronize(cu.stream), "copy");
    matrix_free(&m);
    return w;
}
/* The same numbers at another address. */
static struct weight weight_again(const struct weight *w)
{
    struct weight r = *w;
    must(cudaMalloc(&r.packed, r.packed_bytes), "weights");
    must(cudaMemcpy(r.packed, w->packed, r.packed_bytes, cudaMemcpyDeviceToDevice), "copy");
    return r;
}

/* Seconds of one replay of what `body` launches: the median of several. */
template <typename F> static double timed(F body, int replays)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t e0, e1;
    std::vector<float> ms;
    body(); /* loads kernels and sets attributes */
    must(cudaStreamSynchronize(cu.stream), "warm up");
    must(cudaStreamBeginCapture(cu.stream, cudaStreamCaptureModeThreadLocal), "capture");
    body();
    must(cudaStreamEndCapture(cu.stream, &graph), "capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cudaEventCreate(&e0), cudaEventCreate(&e1);
    for (int i = 0; i < replays + 2; i++) {
        float t;
        cudaEventRecord(e0, cu.stream);
        must(cudaGraphLaunch(exec, cu.stream), "replay");
        cudaEventRecord(e1, cu.stream);
        must(cudaStreamSynchronize(cu.stream), "replay");
        cudaEventElapsedTime(&t, e0, e1);
        if (i >= 2) ms.push_back(t);
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    for (size_t i = 1; i < ms.size(); i++)
        for (size_t j = i; j && ms[j] < ms[j - 1]; j--) {
            float t = ms[j];
            ms[j] = ms[j - 1], ms[j - 1] = t;
        }
    return ms[ms.size() / 2] * 1e-3;
}

static float *buffer(int rows, int cols)
{
    std::vector<float> v((size_t)rows * (size_t)cols);
    for (float &f : v) f = normal();
    return upload(v);
}

static void time_single(enum dtype t, int rows, int cols)
{
    struct weight first = weight_fill(t, rows, cols);
    int n = (int)(600e6 / (double)first.packed_bytes) + 1;
    std::vector<struct weight> w(1, first);
    float *x = buffer(8, cols), *out = buffer(8, rows);
    while ((int)w.size() < n) w.push_back(weight_again(&first));
    printf("%-6s %5dx%-5d", dtype_name(t), rows, cols);
    for (int tok : { 1, 2, 4, 8 }) {
        double s =
            timed(
                [&]() {
                    for (const struct weight &m : w) {
                        struct linear job = { tensor_f32(out, tok, rows), &m, NULL, false, 0.f };
                        struct cu_linear p = {
                            tensor_f32(x, tok, cols), {}, &job, 1, false, ACT_SILU, NULL
                        };
                        cu_matvec(&cu, &p);
                    }
                },
                9) /
            n;
        printf("  | %d: %6.2f us %5.1f %%", tok, s * 1e6,
               100 * (double)first.packed_bytes / s / PEAK);
    }
    printf("\n");
    for (struct weight &m : w) cudaFree(m.packed);
    cudaFree(x), cudaFree(out);
}

struct layer_weights {
    struct weight q, k, v, o, gate, up, down;
};

/* next: the weight that reads x after this layer. */
static size_t chain_layer(const struct layer_weights *l, const struct weight *next, float *x,
                          float *qkv, float *ff, const float *norm, int tok)
{
    struct cu_norm rms = { CU_NORM_RMS, norm, NULL, 1e-5f }, none = {};
    struct tensor tx = tensor_f32(x, tok, 4096), tq = tensor_f32(qkv, tok, 4096),
                  tff = tensor_f32(ff, tok, 14336);
    struct linear in[3] = { { tq, &l->q, NULL, false, 0.f },
                            { tensor_f32(qkv + 8 * 4096, tok, 1024), &l->k, NULL, false, 0.f },
                            { tensor_f32(qkv + 8 * 5120, tok, 1024), &l->v, NULL, false, 0.f } };
    struct linear o = { tx, &l->o, NULL, true, 0.1f }, down = { tx, &l->down, NULL, true, 0.1f };
    struct linear gu[2] = { { tff, &l->gate, NULL, false, 0.f },
                            { tff, &l->up, NULL, false, 0.f } };
    struct linear after = { tq, next, NULL, false, 0.f };
    struct cu_linear p[5] = { { tx, rms, in, 3, false, ACT_SILU, NULL },
                              { tq, none, &o, 1, false, ACT_SILU, p + 2 },
                              { tx, rms, gu, 2, true, ACT_SILU, p + 3 },
                              { tff, none, &down, 1, false, ACT_SILU, p + 4 },
                              { tx, rms, &after, 1, false, ACT_SILU, NULL } };
    size_t bytes = 0;
    for (int i = 0; i < 4; i++) {
        cu_matvec(&cu, &p[i]);
        for (int j = 0; j < p[i].n_jobs; j++) bytes += p[i].jobs[j].w->packed_bytes;
    }
    return bytes;
}

/* The matrix products of a decoding step of a 7 B model: 32 layers and the head. */
static void time_chain(const char *name, enum dtype t, enum dtype more, enum dtype head_type)
{
    struct layer_weights first = { weight_fill(t, 4096, 4096),  weight_fill(t, 1024, 4096),
                                   weight_fill(t, 1024, 4096),  weight_fill(t, 4096, 4096),
                                   weight_fill(t, 14336, 4096), weight_fill(t, 14336, 4096),
                                   weight_fill(t, 4096, 14336) };
    struct weight v = weight_fill(more, 1024, 4096), down = weight_fill(more, 4096, 14336);
    struct weight head = weight_fill(head_type, 32768, 4096);
    std::vector<struct layer_weights> l(32);
    for (int i = 0; i < 32; i++) {
        bool better = i < 4 || i >= 28 || (i - 4) % 3 == 2;
        l[i] = { weight_again(&first.q),
                 weight_again(&first.k),
                 weight_again(better ? &v : &first.v),
                 weight_again(&first.o),
                 weight_again(&first.gate),
                 weight_again(&first.up),
                 weight_again(better ? &down : &first.down) };
    }
    float *x = buffer(8, 4096), *qkv = buffer(8, 6144), *ff = buffer(8, 14336),
          *norm = buffer(1, 4096);
    float *logits = buffer(8, 32768);
    for (int tok : { 1, 2, 4, 8 }) {
        size_t bytes = 0;
        double s = timed(
            [&]() {
                bytes = head.packed_bytes;
                for (int i = 0; i < 32; i++)
                    bytes +=
                        chain_layer(&l[i], i < 31 ? &l[i + 1].q : &head, x, qkv, ff, norm, tok);
                struct linear job = { tensor_f32(logits, tok, 32768), &head, NULL, false, 0.f };
                struct cu_norm rms = { CU_NORM_RMS, norm, NULL, 1e-5f };
                struct cu_linear p = {
                    tensor_f32(x, tok, 4096), rms, &job, 1, false, ACT_SILU, NULL
                };
                cu_matvec(&cu, &p);
            },
            15);
        printf("chain %-7s %d tokens: %8.1f us a step, %7.1f tok/s, %.2f GB, %5.1f %% of peak\n",
               name, tok, s * 1e6, tok / s, (double)bytes / 1e9, 100 * (double)bytes / s / PEAK);
    }
    for (struct layer_weights &w : l)
        for (struct weight *m : { &w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down })
            cudaFree(m->packed);
    for (struct weight *m : { &first.q, &first.k, &first.v, &first.o, &first.gate, &first.up,
                              &first.down, &v, &down, &head })
        cudaFree(m->packed);
    for (float *b : { x, qkv, ff, norm, logits }) cudaFree(b);
}

int main(int argc, char **argv)
{
    bool check = argc < 2 || !strcmp(argv[1], "check"),
         speed = argc < 2 || !strcmp(argv[1], "time");
    bool chain = speed || !strcmp(argv[1], "chain");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!open_device()) return 1;
    cu.lim.max_cols = 14336;
    cu.scratch_bytes[CU_MATVEC] = cu_matvec_bytes(&cu, &cu.lim);
    must(cudaMalloc(&cu.scratch[CU_MATVEC], cu.scratch_bytes[CU_MATVEC]), "scratch");
    must(cudaMemset(cu.scratch[CU_MATVEC], 0xff, cu.scratch_bytes[CU_MATVEC]), "scratch");
    if (check) {
        for (enum dtype t : all_types) check_type(t);
        check_mixed();
        check_prepareds();
        printf("%s\n", n_bad ? "CHECK FAILED" : "check ok");
    }
    if (speed) {
        for (enum dtype t : { DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_F16 }) {
            time_single(t, 4096, 4096);
            time_single(t, 4096, 14336);
            time_single(t, 28672, 4096);
        }
        for (enum dtype t : { DT_Q4_0, DT_Q5_K, DT_IQ4_XS, DT_MXFP4, DT_Q3_K, DT_BF16 })
            time_single(t, 28672, 4096);
    }
    if (chain) {
        const char *only = argc > 2 ? argv[2] : "";
        if (!*only || !strcmp(only, "q4")) time_chain("Q4_K_M", DT_Q4_K, DT_Q6_K, DT_Q6_K);
        if (!*only || !strcmp(only, "q8")) time_chain("Q8_0", DT_Q8_0, DT_Q8_0, DT_Q8_0);
        if (!*only || !strcmp(only, "f16")) time_chain("F16", DT_F16, DT_F16, DT_F16);
    }
    return n_bad ? 1 : 0;
}
