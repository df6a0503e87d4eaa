/* mix.cu - times of recurrent layers, one matrix for each head, latents and bidirectional
 * attention. */
#include "bench.cuh"
#include "kernel/cuda/cu_layout.cuh"

extern "C" {
#include "kernel/cuda/record.h"
}

#include <algorithm>
#include <functional>
#include <stdlib.h>
#include <vector>

#define CALLS 8 /* in a graph */

static void *device(size_t bytes)
{
    void *p = NULL;

    if (!ok(cudaMalloc(&p, bytes), "malloc")) exit(1);
    cudaMemset(p, 0x11, bytes);
    return p;
}

static struct tensor rows_of(int rows, int cols)
{
    return tensor_f32((float *)device((size_t)rows * (size_t)cols * 4), rows, cols);
}

/* Microseconds of one call, in a graph. */
static float time_of(const std::function<void(void)> &call)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float ms, best = 1e30f;

    if (!ok(cudaStreamBeginCapture(cu.stream, cudaStreamCaptureModeThreadLocal), "capture"))
        return best;
    for (int i = 0; i < CALLS; i++) call();
    if (!ok(cudaStreamEndCapture(cu.stream, &graph), "capture") ||
        !ok(cudaGraphInstantiate(&exec, graph, 0), "graph"))
        return best;
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (int round = 0; round < 5; round++) {
        cudaEventRecord(a, cu.stream);
        cudaGraphLaunch(exec, cu.stream);
        cudaEventRecord(b, cu.stream);
        if (!wait_all("mix")) return best;
        cudaEventElapsedTime(&ms, a, b);
        best = std::min(best, ms * 1000 / CALLS);
    }
    cudaEventDestroy(a), cudaEventDestroy(b), cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    return best;
}

/* ---- recurrent layers ---- */

struct batch {
    int runs, each;
};
static const struct batch batches[] = { { 1, 1 }, { 64, 1 }, { 1, 512 }, { 4, 512 } };

static struct op_state state_of(const struct batch &b, size_t floats)
{
    std::vector<struct state_run> runs;

    for (int i = 0; i < b.runs; i++) runs.push_back({ i, i * b.each, b.each, 0 });
    struct op_state s = { (float *)device(floats * (size_t)b.runs * 4), floats, NULL, b.runs,
                          b.runs * b.each };
    struct state_run *there = (struct state_run *)device(runs.size() * sizeof runs[0]);
    cudaMemcpy(there, runs.data(), runs.size() * sizeof runs[0], cudaMemcpyHostToDevice);
    s.runs = there;
    return s;
}

static void tell(const char *what, const struct batch &b, float us, double bytes)
{
    printf("%-28s %3d x %4d tokens %9.1f us %6.0f GB/s\n", what, b.runs, b.each, us,
           bytes / us / 1e3);
}

static void time_conv(int cols, int k, const struct batch &b)
{
    int n = b.runs * b.each;
    struct tensor x = rows_of(n, cols), out = rows_of(n, cols);
    struct conv_opt o = { (const float *)rows_of(k, cols).data, NULL, k, true };
    struct op_state st = state_of(b, (size_t)(k - 1) * (size_t)cols);

    tell("conv of 10240 channels", b, time_of([&] { cu_conv(&cu, &out, &x, &st, &o); }),
         4.0 * cols * (2.0 * n + 2.0 * (k - 1) * b.runs));
}

static void time_scan(const char *what, struct scan_opt o, const struct batch &b)
{
    int n = b.runs * b.each, cols = o.n_heads * o.head_dim;
    struct scan_in in = { rows_of(n, cols), rows_of(n, o.n_heads),
                          rows_of(n, o.n_groups * o.n_state), rows_of(n, o.n_groups * o.n_state) };
    struct tensor out = rows_of(n, cols);
    struct op_state st = state_of(b, (size_t)cols * (size_t)o.n_state);

    o.a = (const float *)rows_of(o.n_state, o.n_heads).data;
    o.d = o.dt_bias = o.a;
    o.dt_max = 1;
    tell(what, b, time_of([&] { cu_scan(&cu, &out, &in, &st, &o); }),
         4.0 * cols * (2.0 * n + 2.0 * o.n_state * b.runs));
}

static void time_delta(struct delta_opt o, const struct batch &b)
{
    int n = b.runs * b.each, nk = o.n_k_heads * o.dim_k, nv = o.n_heads * o.dim_v;
    struct delta_in in = { rows_of(n, nk), rows_of(n, nk), rows_of(n, nv), rows_of(n, o.n_heads),
                           rows_of(n, o.n_heads) };
    struct tensor out = rows_of(n, nv);
    struct op_state st = state_of(b, (size_t)nv * (size_t)o.dim_k);

    o.a = o.dt_bias = (const float *)rows_of(1, o.n_heads).data;
    o.q_scale = o.k_scale = 0.1f;
    tell("delta of 32 of 128 x 128", b, time_of([&] { cu_delta(&cu, &out, &in, &st, &o); }),
         4.0 * nv * (2.0 * n + 2.0 * o.dim_k * b.runs));
}

/* ---- heads and attention ---- */

static void time_heads(enum dtype type, int rows, int cols, int tokens)
{
    int n = 128;
    size_t bytes = layout_matrix_bytes(type, rows, cols) * (size_t)n;
    struct weight w = { type, rows, cols, n, NULL, device(bytes), bytes, 0 };
    struct tensor x = rows_of(tokens, n * cols), out = rows_of(tokens, n * rows);
    struct linear_heads_opt o = { &w, cols, rows, 0 };
    float us = time_of([&] { cu_linear_heads(&cu, &out, &x, &o); });

    printf("%d heads of %3d x %3d %-5s %5d tokens %9.1f us %6.0f GB/s %6.1f TFLOP/s\n", n, rows,
           cols, dtype_name(type), tokens, us, (double)bytes / us / 1e3,
           2.0 * n * rows * cols * tokens / us / 1e6);
}

static void time_attend(const char *what, struct attend_opt o, bool latent, int n_seqs, int past,
                        int each)
{
    int blocks = (past + each + KV_BLOCK - 1) / KV_BLOCK, n = n_seqs * each;
    std::vector<int32_t> table, seq, pos, end((size_t)n_seqs, past + each);
    struct kvlayer l = {};
    struct kvview kv = {};

    for (int i = 0; i < n_seqs * blocks; i++) table.push_back(i);
    for (int s = 0; s < n_seqs; s++)
        for (int i = 0; i < each; i++) seq.push_back(s), pos.push_back(past + i);
    l.n_kv_heads = o.n_kv_heads, l.head_dim = o.head_dim, l.head_dim_v = o.head_dim_v,
    l.v_in_k = latent;
    l.k_block_bytes = (size_t)KV_BLOCK * (size_t)(o.n_kv_heads * o.head_dim) * 2;
    l.v_block_bytes = latent ? 0 : l.k_block_bytes;
    l.k = device(l.k_block_bytes * table.size());
    l.v = latent ? NULL : device(l.v_block_bytes * table.size());
    kv.type = DT_F16, kv.layers = &l, kv.n_layers = 1, kv.table_stride = blocks;
    kv.n_tokens = n, kv.n_seqs = n_seqs, kv.max_pos = past + each - 1;
    auto put = [](const std::vector<int32_t> &v) {
        int32_t *p = (int32_t *)device(v.size() * 4);
        cudaMemcpy(p, v.data(), v.size() * 4, cudaMemcpyHostToDevice);
        return p;
    };
    kv.table = put(table), kv.seq = put(seq), kv.pos = put(pos), kv.seq_end = put(end);
    struct tensor q = rows_of(n, o.n_heads * o.head_dim),
                  out = rows_of(n, o.n_heads * o.head_dim_v);
    float us = time_of([&] { cu_attend(&cu, &out, &q, &kv, 0, &o, NULL); });
    double keys = o.bidirectional ? past + each : past + each / 2.0;
    printf("%-28s %3d x %4d tokens after %5d %9.1f us %6.1f TFLOP/s\n", what, n_seqs, each, past,
           us, 2.0 * n * keys * o.n_heads * (o.head_dim + o.head_dim_v) / us / 1e6);
    cudaFree(l.k), cudaFree(l.v);
}

static bool reserve(void)
{
    cu.lim.max_tokens = 4096;
    cu.lim.max_seqs = 64;
    cu.scratch_bytes[CU_ATTEND] = cu_attend_bytes(&cu, &cu.lim);
    cu.scratch[CU_ATTEND] = device(cu.scratch_bytes[CU_ATTEND]);
    return ok(cudaMemset(cu.scratch[CU_ATTEND], 0, cu.scratch_bytes[CU_ATTEND]), "scratch") &&
           ok(cudaDeviceSynchronize(), "scratch");
}

static struct attend_opt attend_of(int heads, int kv_heads, int dim, int dim_v, bool bidirectional)
{
    struct attend_opt o = {};

    o.n_heads = heads, o.n_kv_heads = kv_heads, o.head_dim = dim, o.head_dim_v = dim_v,
    o.scale = 0.1f;
    o.bidirectional = bidirectional;
    return o;
}

static struct scan_opt scan_of(int heads, int dim, int n_state, bool wide)
{
    struct scan_opt o = {};

    o.n_heads = heads, o.head_dim = dim, o.n_groups = 1, o.n_state = n_state, o.wide = wide;
    return o;
}

static struct delta_opt delta_of(int heads, int k_heads, int dim)
{
    struct delta_opt o = {};

    o.n_heads = heads, o.n_k_heads = k_heads, o.dim_k = o.dim_v = dim;
    return o;
}

int main(void)
{
    if (!open_device() || !reserve()) return 1;
    for (auto &b : batches) time_conv(10240, 4, b);
    for (auto &b : batches) time_scan("scan of 80 of 64 x 128", scan_of(80, 64, 128, false), b);
    for (auto &b : batches) time_scan("scan of 5120 x 16", scan_of(5120, 1, 16, true), b);
    for (auto &b : batches) time_delta(delta_of(32, 16, 128), b);
    for (enum dtype t : { DT_BF16, DT_Q8_0 })
        for (int tokens : { 1, 8, 64, 512 })
            time_heads(t, 512, 128, tokens), time_heads(t, 128, 512, tokens);
    for (int heads : { 16, 128 }) {
        struct attend_opt o = attend_of(heads, 1, 576, 512, false);
        const char *what = heads == 16 ? "16 heads over latents" : "128 heads over latents";
        time_attend(what, o, true, 1, 4096, 1);
        time_attend(what, o, true, 32, 4096, 1);
        time_attend(what, o, true, 1, 0, 512);
        time_attend(what, o, true, 1, 0, 2048);
    }
    struct attend_opt o = attend_of(12, 12, 64, 64, true);
    time_attend("12 heads of 64 bidirectional", o, false, 8, 0, 512);
    time_attend("12 heads of 64 bidirectional", o, false, 64, 0, 32);
    return n_failed != 0;
}
