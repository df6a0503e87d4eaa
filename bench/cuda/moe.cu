/* moe.cu - times of a layer's experts. Every step has its own choices, so that weights come from
 * memory. */
#include "bench.cuh"
#include "kernel/cuda/cu_layout.cuh"

#include <algorithm>
#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#define SETS 16 /* sets of choices */

struct shape {
    const char *name;
    int embd, wide, n, n_used;
};

static void *device(size_t bytes)
{
    void *p = NULL;

    if (!ok(cudaMalloc(&p, bytes), "malloc")) exit(1);
    cudaMemset(p, 0x11, bytes);
    return p;
}

/* All weights have the same content: only their addresses count. */
static std::vector<struct weight> weights(int n, enum dtype t, int rows, int cols)
{
    size_t bytes = (layout_matrix_bytes(t, rows, cols) + 255) / 256 * 256;
    char *p = (char *)device(bytes * (size_t)n);
    std::vector<struct weight> w((size_t)n);

    for (int e = 0; e < n; e++) {
        struct weight &k = w[(size_t)e];
        k.type = t, k.rows = rows, k.cols = cols, k.n = 1;
        k.packed = p + (size_t)e * bytes, k.packed_bytes = bytes;
    }
    return w;
}

/* Distinct experts for each token; returns how many experts are chosen at all, on average over the
 * sets. */
static double choices(std::vector<int32_t> &ids, const struct shape &s, int tokens)
{
    double used = 0;

    for (int i = 0; i < SETS; i++) {
        std::vector<bool> seen((size_t)s.n);
        for (int t = 0; t < tokens; t++) {
            std::vector<int32_t> row;
            while ((int)row.size() < s.n_used) {
                int32_t e = rand() % s.n;
                if (std::find(row.begin(), row.end(), e) == row.end()) row.push_back(e);
            }
            for (int32_t e : row) seen[(size_t)e] = true, ids.push_back(e);
        }
        used += (double)std::count(seen.begin(), seen.end(), true) / SETS;
    }
    return used;
}

/* Microseconds of one call, in a graph. */
static float time_of(const std::function<void(int)> &call)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float ms, best = 1e30f;

    if (!ok(cudaStreamBeginCapture(cu.stream, cudaStreamCaptureModeThreadLocal), "capture"))
        return best;
    for (int i = 0; i < SETS; i++) call(i);
    if (!ok(cudaStreamEndCapture(cu.stream, &graph), "capture") ||
        !ok(cudaGraphInstantiate(&exec, graph, 0), "graph"))
        return best;
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (int round = 0; round < 4; round++) {
        cudaEventRecord(a, cu.stream);
        cudaGraphLaunch(exec, cu.stream);
        cudaEventRecord(b, cu.stream);
        if (!wait_all("experts")) return best;
        cudaEventElapsedTime(&ms, a, b);
        best = std::min(best, ms * 1000 / SETS);
    }
    cudaEventDestroy(a), cudaEventDestroy(b), cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    return best;
}

static void times(const struct shape &s, enum dtype type)
{
    std::vector<struct weight> gate = weights(s.n, type, s.wide, s.embd),
                               up = weights(s.n, type, s.wide, s.embd);
    std::vector<struct weight> down = weights(s.n, type, s.embd, s.wide);
    double bytes = 3.0 * (double)gate[0].packed_bytes;

    printf("%s, %d of %d experts of 3 x %d x %d %s\n", s.name, s.n_used, s.n, s.wide, s.embd,
           dtype_name(type));
    for (int tokens : { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 4096 }) {
        std::vector<int32_t> ids;
        double used = choices(ids, s, tokens);
        size_t rows = (size_t)tokens * (size_t)s.n_used;
        int32_t *there = (int32_t *)device(ids.size() * 4);
        struct experts_opt o = {};
        struct tensor x =
            tensor_f32((float *)device((size_t)tokens * (size_t)s.embd * 4), tokens, s.embd);
        cudaMemcpy(there, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice);
        o.n = s.n, o.n_used = s.n_used, o.gate = gate.data(), o.up = up.data(),
        o.down = down.data();
        o.act = ACT_SILU, o.scale = 1;
        o.xs = tensor_f32((float *)device(rows * (size_t)s.embd * 4), (int)rows, s.embd);
        o.hs = tensor_f32((float *)device(rows * (size_t)s.wide * 4), (int)rows, s.wide);
        o.us = o.hs;
        o.ys = tensor_f32((float *)device(rows * (size_t)s.embd * 4), (int)rows, s.embd);
        o.order = (int32_t *)device((2 * rows + (size_t)s.n + 1) * 4);
        float *share = (float *)device(rows * 4);
        float us =
            time_of([&](int i) { cu_experts(&cu, &x, &x, there + (size_t)i * rows, share, &o); });
        printf("  %5d tokens %9.1f us %6.0f GB/s %7.1f TFLOP/s\n", tokens, us,
               used * bytes / us / 1e3, (double)rows * 6 * s.wide * s.embd / us / 1e6);
        for (void *p : { (void *)there, x.data, o.xs.data, o.hs.data, o.ys.data, (void *)o.order,
                         (void *)share })
            cudaFree(p);
    }
    cudaFree(gate[0].packed), cudaFree(up[0].packed), cudaFree(down[0].packed);
}

int main(void)
{
    const struct shape shapes[] = { { "30 B of small experts", 2048, 768, 128, 8 },
                                    { "47 B of large experts", 4096, 14336, 8, 2 } };

    if (!open_device()) return 1;
    for (auto &s : shapes)
        for (enum dtype t : { DT_Q4_K, DT_BF16, DT_Q8_0, DT_MXFP4 }) times(s, t);
    return n_failed != 0;
}
