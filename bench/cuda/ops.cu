/* ops.cu - the GPU's small operations against double arithmetic on the host, over odd shapes, then
 * times. */
#include "bench.cuh"

extern "C" {
#include "kernel/quant.h"
}

#include <functional>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

/* Rows on both sides; columns after cols are a border that must not change. */
struct mat {
    int rows, cols, stride;
    std::vector<float> h;
    float *d;

    mat(int r, int c, int s, float size = 1)
        : rows(r), cols(c), stride(s), h((size_t)r * (size_t)s), d(NULL)
    {
        for (float &f : h) f = normal() * size;
        if (ok(cudaMalloc((void **)&d, h.size() * 4 + 16), "malloc"))
            ok(cudaMemcpy(d, h.data(), h.size() * 4, cudaMemcpyHostToDevice), "upload");
    }
    mat(const mat &) = delete;
    ~mat() { cudaFree(d); }
    struct tensor t() { return { DT_F32, rows, cols, (size_t)stride, d }; }
    double at(int r, int c) const { return h[(size_t)r * (size_t)stride + (size_t)c]; }
};

static int32_t *ints(const std::vector<int32_t> &v)
{
    int32_t *p = NULL;

    if (ok(cudaMalloc((void **)&p, v.size() * 4), "malloc"))
        ok(cudaMemcpy(p, v.data(), v.size() * 4, cudaMemcpyHostToDevice), "upload");
    return p;
}

/* Compares m on the device with want(row, column), relative to the larger of 1 and the number. */
static void compare(const char *name, mat &m, double bound,
                    const std::function<double(int, int)> &want)
{
    std::vector<float> got(m.h.size());
    double worst = 0;
    bool border = true;

    if (!wait_all(name)) return;
    ok(cudaMemcpy(got.data(), m.d, got.size() * 4, cudaMemcpyDeviceToHost), "result");
    for (int r = 0; r < m.rows; r++)
        for (int c = 0; c < m.stride; c++) {
            size_t i = (size_t)r * (size_t)m.stride + (size_t)c;
            if (c >= m.cols) border &= memcmp(&got[i], &m.h[i], 4) == 0;
            else {
                double w = want(r, c), e = fabs(got[i] - w) / fmax(1, fabs(w));
                worst = e <= worst ? worst : e; /* also catches NaN */
            }
        }
    bool good = worst <= bound && border;
    if (!good) n_failed++;
    if (!good)
        printf("%-12s %5d x %5d (%5d): worst %.2e%s FAILED\n", name, m.rows, m.cols, m.stride,
               worst, border ? "" : ", border");
}

static void check_norms(int rows, int cols, int stride)
{
    mat x(rows, cols, stride), out(rows, cols, stride), w(1, cols, cols), b(1, cols, cols);
    std::vector<double> mean((size_t)rows), rms((size_t)rows), sd((size_t)rows);
    for (int r = 0; r < rows; r++) {
        double s = 0, v = 0, q = 0;
        for (int c = 0; c < cols; c++) s += x.at(r, c), q += x.at(r, c) * x.at(r, c);
        s /= cols;
        for (int c = 0; c < cols; c++) v += (x.at(r, c) - s) * (x.at(r, c) - s);
        mean[(size_t)r] = s, rms[(size_t)r] = 1 / sqrt(q / cols + 1e-5),
        sd[(size_t)r] = 1 / sqrt(v / cols + 1e-5);
    }
    struct tensor tx = x.t(), to = out.t();
    struct cu_norm n = { CU_NORM_RMS, w.d, NULL, 1e-5f };
    cu_norm_rows(&cu, &to, &tx, &n);
    compare("rmsnorm", out, 3e-6,
            [&](int r, int c) { return x.at(r, c) * rms[(size_t)r] * w.at(0, c); });
    n = { CU_NORM_RMS, NULL, NULL, 1e-5f };
    cu_norm_rows(&cu, &to, &tx, &n);
    compare("rmsnorm bare", out, 3e-6, [&](int r, int c) { return x.at(r, c) * rms[(size_t)r]; });
    n = { CU_NORM_LAYER, w.d, b.d, 1e-5f };
    cu_norm_rows(&cu, &to, &tx, &n);
    compare("layernorm", out, 3e-6, [&](int r, int c) {
        return (x.at(r, c) - mean[(size_t)r]) * sd[(size_t)r] * w.at(0, c) + b.at(0, c);
    });
    cu_norm_rows(&cu, &tx, &tx, &n);
    compare("in place", x, 3e-6, [&](int r, int c) {
        return (x.at(r, c) - mean[(size_t)r]) * sd[(size_t)r] * w.at(0, c) + b.at(0, c);
    });
}

static void check_headnorm(int rows, int heads, int dim, bool each)
{
    mat x(rows, heads * dim, heads * dim + 4), w(1, heads * dim, heads * dim);
    struct tensor t = x.t();
    struct cu_norm norm = { CU_NORM_RMS, w.d, NULL, 1e-6f };
    cu_headnorm(&cu, &t, heads, dim, &norm, each ? dim : 0);
    compare("headnorm", x, 3e-6, [&](int r, int c) {
        double q = 0;
        int h = c / dim;
        for (int i = 0; i < dim; i++) q += x.at(r, h * dim + i) * x.at(r, h * dim + i);
        return x.at(r, c) / sqrt(q / dim + 1e-6) * w.at(0, each ? c : c % dim);
    });
}

static double act(enum act a, double x)
{
    switch (a) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU: return 0.5 * x * erfc(-x * 0.70710678118654752);
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    default: break; /* tests/ops/test_cuda.c has the others */
    }
    return 0;
}

static void check_each(int rows, int cols, int stride)
{
    for (int a = ACT_SILU; a <= ACT_GELU_QUICK; a++) {
        mat g(rows, cols, stride, 4), u(rows, cols, stride);
        struct tensor tg = g.t(), tu = u.t();
        cu_act(&cu, &tg, &tg, a % 2 ? NULL : &tu, (enum act)a);
        compare("act", g, 3e-6, [&](int r, int c) {
            return act((enum act)a, g.at(r, c)) * (a % 2 ? 1 : u.at(r, c));
        });
    }
    mat x(rows, cols, stride), y(rows, cols, stride), z(rows, cols, stride),
        s(rows, cols, stride, 40);
    struct tensor tx = x.t(), ty = y.t(), tz = z.t(), ts = s.t();
    cu_add(&cu, &tx, &ty, 0.7f);
    compare("add", x, 1e-6, [&](int r, int c) { return x.at(r, c) + (double)0.7f * y.at(r, c); });
    cu_scale(&cu, &tz, -3.5f);
    compare("scale", z, 1e-6, [&](int r, int c) { return z.at(r, c) * -3.5; });
    cu_softcap(&cu, &ts, 30.f);
    compare("softcap", s, 1e-6, [&](int r, int c) { return 30 * tanh(s.at(r, c) / 30); });
    mat out(rows / 2 + 1, cols, stride);
    std::vector<int32_t> pick;
    for (int i = 0; i < out.rows; i++) pick.push_back((int32_t)(below(rows)));
    int32_t *dp = ints(pick);
    struct tensor to = out.t();
    cu_gather(&cu, &to, &ty, dp);
    compare("gather", out, 0, [&](int r, int c) { return y.at(pick[(size_t)r], c); });
    cudaFree(dp);
}

static void check_rope(int rows, int heads, int dim, int n_rot, enum rope_style style)
{
    mat x(rows, heads * dim, heads * dim + 3), table(rows, n_rot, n_rot),
        freq(1, n_rot / 2, n_rot / 2);
    std::vector<int32_t> pos;
    for (int i = 0; i < rows; i++) pos.push_back((int32_t)(i == 0 ? 1000000 : below(1000000)));
    for (int i = 0; i < n_rot / 2; i++) freq.h[(size_t)i] = (float)pow(10000, -2.0 * i / n_rot);
    ok(cudaMemcpy(freq.d, freq.h.data(), freq.h.size() * 4, cudaMemcpyHostToDevice), "upload");
    int32_t *dp = ints(pos);
    struct tensor tt = table.t(), tx = x.t();
    auto angle = [&](int r, int j) { return (double)((float)pos[(size_t)r] * freq.h[(size_t)j]); };
    cu_rope_table(&cu, &tt, dp, freq.d, n_rot, 1.25f);
    compare("rope table", table, 4e-7, [&](int r, int c) {
        return 1.25 * (c % 2 ? sin(angle(r, c / 2)) : cos(angle(r, c / 2)));
    });
    cu_rope(&cu, &tx, heads, dim, n_rot, &tt, style);
    compare("rope", x, 3e-6, [&](int r, int c) {
        int h = c / dim, i = c % dim, half = n_rot / 2;
        if (i >= n_rot) return x.at(r, c);
        int j = style == ROPE_HALF ? i % half : i / 2, a = style == ROPE_HALF ? j : 2 * j,
            b = style == ROPE_HALF ? j + half : a + 1;
        double co = 1.25 * cos(angle(r, j)), si = 1.25 * sin(angle(r, j)), u = x.at(r, h * dim + a),
               v = x.at(r, h * dim + b);
        return i == a ? u * co - v * si : u * si + v * co;
    });
    cudaFree(dp);
}

/* Rows in a file's format, through the device's layout and back. Formats that tern does not write
 * are random bytes. */
static void check_embed(enum dtype type, int rows, int cols)
{
    uint64_t row;
    if (!dtype_row_bytes(type, (uint64_t)cols, &row) || !quant_can_encode(type)) return;
    std::vector<char> file(row * (size_t)rows);
    std::vector<float> x((size_t)cols), back((size_t)rows * (size_t)cols);
    for (int r = 0; r < rows; r++) {
        for (float &f : x) f = normal();
        quant_encode(type, x.data(), file.data() + row * (size_t)r, cols);
        quant_decode(type, file.data() + row * (size_t)r, &back[(size_t)r * (size_t)cols], cols);
    }
    struct weight w = {};
    w.type = type, w.rows = rows, w.cols = cols, w.n = 1, w.data = file.data();
    w.packed_bytes = cu_weight_bytes(type, rows, cols, 1);
    std::vector<char> image(w.packed_bytes + 16);
    struct cu_plane planes[4];
    void *dst[4] = {};
    int n = cu_pack_planes(&w, 0, 0, rows, planes);
    for (int i = 0; i < n; i++) dst[i] = image.data() + planes[i].at;
    cu_pack_rows(&w, file.data(), 0, rows, dst);
    if (!ok(cudaMalloc(&w.packed, w.packed_bytes), "weight")) return;
    ok(cudaMemcpy(w.packed, image.data(), w.packed_bytes, cudaMemcpyHostToDevice), "weight");
    mat out(29, cols, cols + 4);
    std::vector<int32_t> ids;
    for (int i = 0; i < out.rows; i++) ids.push_back((int32_t)(i == 0 ? rows - 1 : below(rows)));
    int32_t *di = ints(ids);
    struct tensor to = out.t();
    cu_embed(&cu, &to, &w, di, 2.5f);
    char name[32];
    snprintf(name, sizeof name, "embed %s", dtype_name(type));
    compare(name, out, 1e-3, [&](int r, int c) {
        return 2.5 * back[(size_t)ids[(size_t)r] * (size_t)cols + (size_t)c];
    });
    cudaFree(di), cudaFree(w.packed);
}

static void time_one(const char *name, double bytes, int sets, const std::function<void(int)> &call)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float best = 1e30f;
    int calls = 64;

    if (!ok(cudaStreamBeginCapture(cu.stream, cudaStreamCaptureModeThreadLocal), "capture")) return;
    for (int i = 0; i < calls; i++) call(i % sets);
    if (!ok(cudaStreamEndCapture(cu.stream, &graph), "capture") ||
        !ok(cudaGraphInstantiate(&exec, graph, 0), "graph"))
        return;
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (int i = 0; i < 6; i++) {
        float ms;
        cudaEventRecord(a, cu.stream);
        cudaGraphLaunch(exec, cu.stream);
        cudaEventRecord(b, cu.stream);
        if (!wait_all(name)) return;
        cudaEventElapsedTime(&ms, a, b);
        if (ms < best) best = ms;
    }
    printf("%s %.2f us %.0f GB/s; ", name, best * 1000 / (float)calls, bytes * calls / best / 1e6);
    cudaEventDestroy(a), cudaEventDestroy(b), cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
}

/* Mistral's shapes. With many rows the tensors together exceed the L2 cache. */
static void times(int rows)
{
    const int d = 4096, ffn = 14336, sets = rows > 1000 ? 4 : 16;
    std::vector<float *> x, y, z;
    mat w(1, d, d), table(rows, 128, 128), freq(1, 64, 64);
    for (int i = 0; i < sets; i++)
        for (auto *v : { &x, &y, &z }) {
            float *p = NULL;
            if (!ok(cudaMalloc((void **)&p, (size_t)rows * ffn * 4), "malloc")) return;
            cudaMemset(p, 0x3c, (size_t)rows * ffn * 4);
            v->push_back(p);
        }
    cudaDeviceSynchronize();
    std::vector<int32_t> pos((size_t)rows);
    for (int i = 0; i < rows; i++) pos[(size_t)i] = i;
    int32_t *dp = ints(pos);
    auto t = [&](float *p, int cols) { return tensor_f32(p, rows, cols); };
    double n = (double)rows * d * 4;
    printf("%d rows: ", rows);
    struct cu_norm rms = { CU_NORM_RMS, w.d, NULL, 1e-5f };
    time_one("rmsnorm", 2 * n, sets, [&](int i) {
        struct tensor a = t(x[(size_t)i], d), b = t(y[(size_t)i], d);
        cu_norm_rows(&cu, &b, &a, &rms);
    });
    time_one("headnorm", 2 * n, sets, [&](int i) {
        struct tensor a = t(x[(size_t)i], d);
        cu_headnorm(&cu, &a, 32, 128, &rms, 0);
    });
    time_one("act", 3 * n * ffn / d, sets, [&](int i) {
        struct tensor a = t(x[(size_t)i], ffn), b = t(y[(size_t)i], ffn);
        cu_act(&cu, &a, &a, &b, ACT_SILU);
    });
    time_one("add", 3 * n, sets, [&](int i) {
        struct tensor a = t(x[(size_t)i], d), b = t(y[(size_t)i], d);
        cu_add(&cu, &a, &b, 1.f);
    });
    time_one("gather", 2 * n, sets, [&](int i) {
        struct tensor a = t(x[(size_t)i], d), b = t(y[(size_t)i], d);
        cu_gather(&cu, &b, &a, dp);
    });
    time_one("rope", 2 * n, sets, [&](int i) {
        struct tensor a = t(x[(size_t)i], d), b = table.t();
        cu_rope(&cu, &a, 32, 128, 128, &b, ROPE_PAIR);
    });
    time_one("rope table", (double)rows * 512, 1, [&](int) {
        struct tensor b = table.t();
        cu_rope_table(&cu, &b, dp, freq.d, 128, 1.f);
    });
    uint64_t row;
    dtype_row_bytes(DT_F16, 128, &row);
    std::vector<int32_t> blocks((size_t)(rows + 15) / 16), seq((size_t)rows, 0);
    for (size_t i = 0; i < blocks.size(); i++) blocks[i] = (int32_t)i;
    int32_t *db = ints(blocks), *ds = ints(seq);
    std::vector<struct kvlayer> layers;
    for (int i = 0; i < sets; i++)
        layers.push_back({ z[(size_t)i], (char *)z[(size_t)i] + blocks.size() * 16 * 8 * row, 8,
                           128, 128, 16 * 8 * row, 16 * 8 * row, false });
    if (rows >= 16) {
        struct kvview kv = { DT_F16, layers.data(), sets, db, (int)blocks.size(), ds, dp, rows,
                             1,      rows - 1,      NULL };
        time_one("rope_kv", n * (2 + 0.5 + 0.25), sets, [&](int i) {
            float *p = y[(size_t)i];
            struct cu_rope_kv r = { t(x[(size_t)i], d),
                                    t(p, 1024),
                                    t(p + (size_t)rows * 1024, 1024),
                                    32,
                                    8,
                                    128,
                                    128,
                                    128,
                                    NULL,
                                    NULL,
                                    0,
                                    table.d,
                                    ROPE_PAIR,
                                    &kv,
                                    i };
            cu_rope_kv(&cu, &r);
        });
    }
    printf("\n");
    cudaFree(dp), cudaFree(db), cudaFree(ds);
    for (auto *v : { &x, &y, &z })
        for (float *p : *v) cudaFree(p);
}

int main(void)
{
    if (!open_device()) return 1;
    const int shapes[][3] = { { 1, 4096, 4096 },     { 3, 17, 17 },       { 5, 33, 40 },
                              { 2, 16384, 16384 },   { 1, 20000, 20000 }, { 700, 2048, 2052 },
                              { 600, 14336, 14336 }, { 40, 130, 131 },    { 1, 1, 1 } };
    for (auto &s : shapes) {
        check_norms(s[0], s[1], s[2]);
        check_each(s[0], s[1], s[2]);
    }
    check_headnorm(3, 4, 128, false);
    check_headnorm(900, 8, 64, true);
    check_headnorm(5, 3, 50, true);
    check_headnorm(2, 1, 4096, false);
    check_rope(1, 32, 128, 128, ROPE_HALF);
    check_rope(37, 5, 80, 20, ROPE_PAIR);
    check_rope(9, 3, 50, 34, ROPE_HALF);
    for (int t = 0; t < DT_COUNT; t++) {
        check_embed((enum dtype)t, 37, 512);
        check_embed((enum dtype)t, 16, 32);
        check_embed((enum dtype)t, 50, 77);
    }
    printf(n_failed ? "%d FAILED\n" : "operations: all ok\n", n_failed);
    for (int rows : { 1, 64, 4096 }) times(rows);
    return n_failed != 0;
}
