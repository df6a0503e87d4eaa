/* gemm.cu - matrix products of many tokens on the GPU: correctness and speed.
 *
 *     build/bench/cuda/gemm [check|time|choices|all] [old]
 *
 *     check    odd shapes, every type, epilogues, both ways, against F64 dot products of the
 *              decoded weights
 *     time     a layer of a 7.2 B model (embd 4096, ffn 14336, 8 KV heads) as replayed graphs, with
 *              more weights than the L2 cache holds
 *     choices  time, and the times of cuBLASLt's other proposals
 *     old      the kernels for GPUs before Hopper; built for plain sm_90 they run there too */
#include "bench.cuh"
#include "kernel/cuda/cu_gemm.cuh"
#include "kernel/cuda/cu_layout.cuh"

extern "C" {
#include "kernel/quant.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                         \
    do {                                                                                  \
        cudaError_t rc_ = (call);                                                         \
        if (rc_ != cudaSuccess) {                                                         \
            printf("FAILED line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(rc_)); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static void *device(size_t n)
{
    void *p;
    TRY(cudaMalloc(&p, n ? n : 1));
    return p;
}
static float *upload(const float *v, size_t n)
{
    float *p = (float *)device(n * 4);
    TRY(cudaMemcpy(p, v, n * 4, cudaMemcpyHostToDevice));
    return p;
}
static float *floats(size_t n, float scale)
{
    float *v = (float *)malloc((n ? n : 1) * 4);
    for (size_t i = 0; i < n; i++) v[i] = normal() * scale;
    return v;
}

/* ---- weights: a few rows that repeat ---- */

#define POOL 61

struct matrix {
    struct weight w;
    float *rows; /* [POOL][cols], decoded */
};

static struct matrix matrix_make(enum dtype t, int rows, int cols, bool decoded)
{
    struct matrix m = {};
    uint64_t bytes = 0;
    int pool = rows < POOL ? rows : POOL;

    m.w.type = t;
    m.w.rows = rows;
    m.w.cols = cols;
    m.w.n = 1;
    dtype_row_bytes(t, (uint64_t)cols, &bytes);
    uint8_t *src = (uint8_t *)malloc(bytes * (size_t)rows);
    float *plain = floats((size_t)pool * (size_t)cols, 1 / sqrtf((float)cols));
    quant_encode(t, plain, src, (int64_t)pool * cols);
    quant_decode(t, src, plain, (int64_t)pool * cols);
    for (int r = pool; r < rows; r++)
        memcpy(src + (size_t)r * bytes, src + (size_t)(r % pool) * bytes, bytes);

    m.w.packed_bytes = cu_weight_bytes(t, rows, cols, 1);
    void *image = calloc(1, m.w.packed_bytes);
    struct cu_plane planes[4];
    void *dst[4] = {};
    int n = cu_pack_planes(&m.w, 0, 0, rows, planes);
    for (int i = 0; i < n; i++) dst[i] = (char *)image + planes[i].at;
    cu_pack_rows(&m.w, src, 0, rows, dst);
    m.w.packed = device(m.w.packed_bytes);
    TRY(cudaMemcpy(m.w.packed, image, m.w.packed_bytes, cudaMemcpyHostToDevice));
    if (decoded) m.rows = upload(plain, (size_t)pool * (size_t)cols);
    free(image);
    free(plain);
    free(src);
    return m;
}

static void matrix_free(struct matrix *m)
{
    cudaFree(m->w.packed);
    cudaFree(m->rows);
}

/* ---- check ---- */

static __global__ void dot_kernel(float *out, const float *x, const float *w, int tokens, int rows,
                                  int cols, int pool)
{
    int r = blockIdx.x, t = blockIdx.y * 8 + threadIdx.x / 32;
    double sum = 0;

    if (t >= tokens) return;
    for (int k = threadIdx.x % 32; k < cols; k += 32)
        sum += (double)x[(size_t)t * cols + k] * (double)w[(size_t)(r % pool) * cols + k];
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
    if (threadIdx.x % 32 == 0) out[(size_t)t * rows + r] = (float)sum;
}

struct shape {
    int tokens, rows, cols;
};
struct how {
    int norm;
    bool bias, add;
    float scale;
    int act;
    int n_jobs;
}; /* act -1: none */

static double act_host(int a, double x)
{
    switch (a) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU: return 0.5 * x * (1 + erf(x * 0.7071067811865476));
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_RELU2: return x > 0 ? x * x : 0;
    default: return x / (1 + exp(-1.702 * x));
    }
}

static void norm_host(float *y, const float *x, int n, const struct how *h, const float *w,
                      const float *b)
{
    double mean = 0, sum = 0;
    if (h->norm == CU_NORM_LAYER)
        for (int i = 0; i < n; i++) mean += x[i] / (double)n;
    for (int i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) {
        y[i] = x[i];
        if (h->norm != CU_NORM_NONE) y[i] = (float)((x[i] - mean) / sqrt(sum + 1e-5) * w[i]);
        if (h->norm == CU_NORM_LAYER) y[i] += b[i];
    }
}

/* The relative error of one operation by cu_gemm against the host. The third job has type t2. */
static double check_one(enum dtype t, enum dtype t2, struct shape s, struct how h)
{
    int n = h.n_jobs, pad = s.rows % 5, xpad = s.cols % 3 * 4;
    size_t nx = (size_t)s.tokens * (size_t)(s.cols + xpad),
           no = (size_t)s.tokens * (size_t)(s.rows + pad);
    float *x = floats(nx, 1), *nw = floats((size_t)s.cols, 1), *nb = floats((size_t)s.cols, 0.3f);
    float *y = (float *)malloc((size_t)s.tokens * (size_t)s.cols * 4);
    float *dx = upload(x, nx), *dw = upload(nw, (size_t)s.cols), *db = upload(nb, (size_t)s.cols);
    struct matrix m[4];
    struct linear j[4] = {};
    float *before[4], *bias[4], *dbias[4], *dots[4], *got = (float *)malloc(no * 4);
    double err = 0, ref2 = 0;

    for (int r = 0; r < s.tokens; r++)
        norm_host(y + (size_t)r * s.cols, x + (size_t)r * (s.cols + xpad), s.cols, &h, nw, nb);
    float *dy = upload(y, (size_t)s.tokens * (size_t)s.cols);
    for (int i = 0; i < n; i++) {
        m[i] = matrix_make(i == 2 ? t2 : t, s.rows, s.cols, true);
        before[i] = floats(no, 1);
        bias[i] = floats((size_t)s.rows, 1);
        dbias[i] = upload(bias[i], (size_t)s.rows);
        dots[i] = (float *)malloc((size_t)s.tokens * (size_t)s.rows * 4);
        float *d = (float *)device((size_t)s.tokens * (size_t)s.rows * 4);
        dot_kernel<<<dim3(s.rows, (s.tokens + 7) / 8), 256>>>(
            d, dy, m[i].rows, s.tokens, s.rows, s.cols, s.rows < POOL ? s.rows : POOL);
        TRY(cudaMemcpy(dots[i], d, (size_t)s.tokens * (size_t)s.rows * 4, cudaMemcpyDeviceToHost));
        cudaFree(d);
        j[i].out = { DT_F32, s.tokens, s.rows, (size_t)(s.rows + pad), upload(before[i], no) };
        j[i].w = &m[i].w;
        j[i].bias = h.bias ? dbias[i] : NULL;
        j[i].add = h.add && h.act < 0;
        j[i].scale = h.scale;
    }
    struct cu_linear p = {};
    p.x = { DT_F32, s.tokens, s.cols, (size_t)(s.cols + xpad), dx };
    p.norm = { h.norm, dw, h.norm == CU_NORM_LAYER ? db : NULL, 1e-5f };
    p.jobs = j;
    p.n_jobs = n;
    p.fuse_act = h.act >= 0;
    p.act = (enum act)(h.act < 0 ? 0 : h.act);
    TRY(cudaDeviceSynchronize());
    cu_gemm(&cu, &p);
    TRY(cudaStreamSynchronize(cu.stream));
    float scale = h.scale != 0 ? h.scale : 1;
    for (int i = 0; i < (h.act >= 0 ? 1 : n); i++) {
        TRY(cudaMemcpy(got, j[i].out.data, no * 4, cudaMemcpyDeviceToHost));
        for (int tk = 0; tk < s.tokens; tk++)
            for (int r = 0; r < s.rows + pad; r++) {
                size_t at = (size_t)tk * (size_t)(s.rows + pad) + (size_t)r;
                if (r >= s.rows) {
                    if (got[at] != before[i][at]) err = INFINITY; /* wrote outside its rows */
                    continue;
                }
                double v[2];
                for (int k = 0; k < 2; k++)
                    v[k] = k && n < 2
                               ? 1
                               : scale * (double)dots[h.act >= 0 ? k : i][(size_t)tk * s.rows + r] +
                                     (h.bias ? bias[h.act >= 0 ? k : i][r] : 0);
                double ref =
                    h.act >= 0 ? act_host(h.act, v[0]) * v[1] : v[0] + (h.add ? before[i][at] : 0);
                double e = got[at] - ref;
                err += isfinite(e) ? e * e : INFINITY;
                ref2 += ref * ref;
            }
    }
    for (int i = 0; i < n; i++) {
        matrix_free(&m[i]);
        cudaFree(j[i].out.data);
        cudaFree(dbias[i]);
        free(before[i]), free(bias[i]), free(dots[i]);
    }
    cudaFree(dx), cudaFree(dw), cudaFree(db), cudaFree(dy);
    free(x), free(nw), free(nb), free(y), free(got);
    return sqrt(err / (ref2 > 0 ? ref2 : 1));
}

/* gate, up, act, and then down of the result: the F16 rows kept between them. */
static double check_chain(enum dtype t, struct shape s)
{
    struct matrix gate = matrix_make(t, s.rows, s.cols, true),
                  up = matrix_make(t, s.rows, s.cols, true);
    struct matrix down = matrix_make(t, s.cols, s.rows, true);
    size_t nx = (size_t)s.tokens * (size_t)s.cols, nh = (size_t)s.tokens * (size_t)s.rows;
    float *x = floats(nx, 1), *dx = upload(x, nx), *got = (float *)malloc(nx * 4),
          *ref = (float *)malloc(nx * 4);
    float *h = (float *)device(nh * 4), *u = (float *)device(nh * 4), *y = (float *)device(nx * 4);
    struct linear j[3] = {};
    struct cu_linear p = {};
    double err = 0, ref2 = 0;

    j[0].out = { DT_F32, s.tokens, s.rows, (size_t)s.rows, h };
    j[1].out = { DT_F32, s.tokens, s.rows, (size_t)s.rows, u };
    j[2].out = { DT_F32, s.tokens, s.cols, (size_t)s.cols, y };
    j[0].w = &gate.w, j[1].w = &up.w, j[2].w = &down.w;
    p.x = { DT_F32, s.tokens, s.cols, (size_t)s.cols, dx };
    p.jobs = j, p.n_jobs = 2, p.fuse_act = true, p.act = ACT_SILU;
    TRY(cudaDeviceSynchronize());
    cu_gemm(&cu, &p);
    struct cu_linear q = {};
    q.x = j[0].out, q.jobs = j + 2, q.n_jobs = 1;
    cu_gemm(&cu, &q);
    TRY(cudaStreamSynchronize(cu.stream));
    TRY(cudaMemcpy(got, y, nx * 4, cudaMemcpyDeviceToHost));
    dot_kernel<<<dim3(s.cols, (s.tokens + 7) / 8), 256>>>(y, h, down.rows, s.tokens, s.cols, s.rows,
                                                          s.cols < POOL ? s.cols : POOL);
    TRY(cudaMemcpy(ref, y, nx * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < nx; i++) {
        double e = got[i] - ref[i];
        err += isfinite(e) ? e * e : INFINITY;
        ref2 += (double)ref[i] * ref[i];
    }
    matrix_free(&gate), matrix_free(&up), matrix_free(&down);
    cudaFree(dx), cudaFree(h), cudaFree(u), cudaFree(y);
    free(x), free(got), free(ref);
    return sqrt(err / (ref2 > 0 ? ref2 : 1));
}

static const enum dtype types[] = { DT_F16,  DT_BF16, DT_F32,    DT_Q8_0,  DT_Q4_0, DT_Q4_1,
                                    DT_Q5_0, DT_Q5_1, DT_IQ4_NL, DT_MXFP4, DT_Q4_K, DT_Q5_K,
                                    DT_Q6_K, DT_Q3_K, DT_Q2_K,   DT_IQ4_XS };
#define N_TYPES ((int)(sizeof types / sizeof *types))

static const char *const way_names[] = { "auto", "own", "lt" };

static int check(void)
{
    static const struct shape shapes[] = {
        { 9, 33, 256 },     { 16, 1, 512 },    { 17, 1000, 768 },  { 33, 4096, 256 },
        { 64, 1000, 4096 }, { 100, 33, 1024 }, { 128, 300, 2048 }, { 257, 1000, 512 },
        { 512, 33, 1280 },  { 3, 520, 256 },   { 64, 6144, 1024 }, { 40, 257, 14336 },
    };
    static const struct how hows[] = {
        { CU_NORM_NONE, false, false, 0, -1, 1 },
        { CU_NORM_RMS, false, false, 0, -1, 3 },
        { CU_NORM_NONE, true, true, 0.5f, -1, 1 },
        { CU_NORM_LAYER, true, false, 0, -1, 2 },
        { CU_NORM_RMS, false, false, 0, ACT_SILU, 2 },
        { CU_NORM_NONE, true, false, 0, ACT_GELU, 1 },
        { CU_NORM_NONE, true, false, 2, ACT_GELU_TANH, 2 },
    };
    int n_shapes = sizeof shapes / sizeof *shapes, n_hows = sizeof hows / sizeof *hows, bad = 0,
        cases = 0;

    printf("check: largest ||out - ref|| / ||ref|| over %d shapes; limit 2e-3\n", n_shapes);
    for (int i = 0; i < N_TYPES; i++)
        for (int way = GEMM_AUTO; way <= GEMM_LT; way++) {
            double worst = 0, chain = 0;
            if (!quant_can_encode(types[i])) continue;
            struct shape at = {};
            gemm_set_way(&cu, (enum gemm_way)way);
            for (int k = 0; k < n_shapes; k++) {
                struct shape s = shapes[k];
                bool plain = types[i] == DT_F16 || types[i] == DT_BF16 || types[i] == DT_F32;
                if (plain) s.cols -= k % 4 * 9; /* any number of columns */
                else if (layout_of(types[i]).cols == 32) s.cols -= k % 3 * 32;
                double e = check_one(types[i],
                                     plain                            ? DT_BF16
                                     : layout_of(types[i]).cols == 32 ? DT_Q8_0
                                                                      : DT_Q6_K,
                                     s, hows[(k + i) % n_hows]);
                cases++;
                bad += !(e < 2e-3);
                if (!(e <= worst)) worst = e, at = s;
            }
            for (int k = 0; k < 3; k++) {
                double e = check_chain(types[i], { k == 0 ? 24 : k == 1 ? 80 : 200, 768, 512 });
                bad += !(e < 2e-3);
                if (!(e <= chain)) chain = e;
            }
            printf("  %-7s %-4s %.2e at %d x %d x %d   chained %.2e%s%s\n", dtype_name(types[i]),
                   way_names[way], worst, at.tokens, at.rows, at.cols, chain,
                   worst < 2e-3 && chain < 2e-3 ? "" : "  WRONG ", cu.rc ? cu.msg : "");
            cu.rc = OK;
        }
    printf("check: %d matrix products, %d wrong\n", cases, bad);
    gemm_set_way(&cu, GEMM_AUTO);
    return bad;
}

/* ---- time ---- */

#define COPIES 6 /* of a layer's weights */
enum { QKV, O, GATE_UP, DOWN, HEAD, N_PRODUCTS };

struct layer {
    struct matrix q, k, v, o, gate, up, down;
};

struct work {
    struct layer layers[COPIES];
    struct matrix head;
    float *x, *h, *norm, *q, *k, *v, *gate, *up, *logits;
    int tokens;
};

static struct matrix again(struct matrix *first, bool is_first)
{
    struct matrix m = *first;
    if (!is_first) {
        m.w.packed = device(m.w.packed_bytes);
        TRY(cudaMemcpy(m.w.packed, first->w.packed, m.w.packed_bytes, cudaMemcpyDeviceToDevice));
    }
    return m;
}

/* down, v and head may have another type, as in files of mixed types. */
static struct work work_make(enum dtype t, enum dtype other)
{
    struct work w = {};
    struct layer l;

    l.q = matrix_make(t, 4096, 4096, false);
    l.k = matrix_make(t, 1024, 4096, false);
    l.v = matrix_make(other, 1024, 4096, false);
    l.o = matrix_make(t, 4096, 4096, false);
    l.gate = matrix_make(t, 14336, 4096, false);
    l.up = matrix_make(t, 14336, 4096, false);
    l.down = matrix_make(other, 4096, 14336, false);
    for (int i = 0; i < COPIES; i++) {
        struct layer *c = &w.layers[i];
        c->q = again(&l.q, i == 0), c->k = again(&l.k, i == 0), c->v = again(&l.v, i == 0);
        c->o = again(&l.o, i == 0), c->gate = again(&l.gate, i == 0), c->up = again(&l.up, i == 0);
        c->down = again(&l.down, i == 0);
    }
    w.head = matrix_make(other, 32768, 4096, false);
    return w;
}

static void work_free(struct work *w)
{
    for (int i = 0; i < COPIES; i++) {
        struct layer *l = &w->layers[i];
        matrix_free(&l->q), matrix_free(&l->k), matrix_free(&l->v), matrix_free(&l->o),
            matrix_free(&l->gate);
        matrix_free(&l->up), matrix_free(&l->down);
    }
    matrix_free(&w->head);
}

static struct tensor rows_of(float *p, int tokens, int cols)
{
    return { DT_F32, tokens, cols, (size_t)cols, p };
}

static void product(struct work *w, struct layer *l, int which)
{
    struct linear j[3] = {};
    struct cu_linear p = {};
    int t = w->tokens;

    p.jobs = j;
    p.n_jobs = 1;
    p.x = rows_of(w->x, t, 4096);
    p.norm = { CU_NORM_RMS, w->norm, NULL, 1e-5f };
    switch (which) {
    case QKV:
        p.n_jobs = 3;
        j[0].w = &l->q.w, j[0].out = rows_of(w->q, t, 4096);
        j[1].w = &l->k.w, j[1].out = rows_of(w->k, t, 1024);
        j[2].w = &l->v.w, j[2].out = rows_of(w->v, t, 1024);
        break;
    case O:
        p.x = rows_of(w->q, t, 4096), p.norm.kind = CU_NORM_NONE;
        j[0].w = &l->o.w, j[0].out = rows_of(w->h, t, 4096), j[0].add = true;
        break;
    case GATE_UP:
        p.n_jobs = 2, p.fuse_act = true, p.act = ACT_SILU;
        j[0].w = &l->gate.w, j[0].out = rows_of(w->gate, t, 14336);
        j[1].w = &l->up.w, j[1].out = rows_of(w->up, t, 14336);
        break;
    case DOWN:
        p.x = rows_of(w->gate, t, 14336), p.norm.kind = CU_NORM_NONE;
        j[0].w = &l->down.w, j[0].out = rows_of(w->h, t, 4096), j[0].add = true;
        break;
    default: j[0].w = &w->head.w, j[0].out = rows_of(w->logits, t, 32768);
    }
    cu_gemm(&cu, &p);
}

static void all_of(struct work *w, int which)
{
    for (int i = 0; i < COPIES; i++)
        for (int k = QKV; k <= DOWN; k++)
            if (which == k || which < 0) product(w, &w->layers[i], k);
    if (which == HEAD) product(w, &w->layers[0], HEAD);
}

/* Milliseconds of one operation (or, which -1, of a layer), from replays of a graph of COPIES
 * layers. */
static float time_of(struct work *w, int which)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float ms = 0, best = 1e9f;
    int per = which == HEAD ? 1 : COPIES;

    all_of(w, which);
    TRY(cudaStreamBeginCapture(cu.stream, cudaStreamCaptureModeThreadLocal));
    all_of(w, which);
    TRY(cudaStreamEndCapture(cu.stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    TRY(cudaEventCreate(&a));
    TRY(cudaEventCreate(&b));
    TRY(cudaGraphLaunch(exec, cu.stream));
    int reps = w->tokens >= 1024 ? 3 : 10;
    for (int i = 0; i < 3; i++) {
        TRY(cudaEventRecord(a, cu.stream));
        for (int k = 0; k < reps; k++) TRY(cudaGraphLaunch(exec, cu.stream));
        TRY(cudaEventRecord(b, cu.stream));
        TRY(cudaEventSynchronize(b));
        TRY(cudaEventElapsedTime(&ms, a, b));
        if (ms / (float)reps < best) best = ms / (float)reps;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return best / (float)per;
}

/* The GPU's clocks fall while the host packs weights. */
static void warm(struct work *w)
{
    w->tokens = 256;
    for (int i = 0; i < 100; i++) all_of(w, -1);
    TRY(cudaStreamSynchronize(cu.stream));
}

/* ---- the kernels of an operation ---- */

static __global__ void nothing_kernel(int)
{
    cu_release_next();
    cu_wait_previous();
}

struct part {
    struct work *w;
    struct packed_args mid;
    struct finish_args finish;
    enum dtype type;
    int blocks, which;
};

static void part_run(struct part *p, int i)
{
    struct tensor x = rows_of(p->w->x, p->w->tokens, 4096);
    struct cu_norm norm = { CU_NORM_RMS, p->w->norm, NULL, 1e-5f };

    p->mid.job[0].w = p->w->layers[i % COPIES].o.w.packed;
    switch (p->which) {
    case 0: cu_launch(&cu, "nothing", nothing_kernel, dim3(132), dim3(256), 0, 0); break;
    case 1: gemm_x(&cu, (__half *)p->mid.x, &x, &norm, p->finish.nt, NULL); break;
    case 2: packed_launch(&cu, p->type, p->type, p->finish.nt, p->blocks, &p->mid); break;
    default: gemm_finish(&cu, &p->finish);
    }
}

/* Microseconds of each kernel of a 4096 x 4096 matrix product, one after the other as in a step. */
static void parts(struct work *w, const char *name, int tokens)
{
    static const char *const names[] = { "nothing", "x", "product", "finish" };
    int nt = tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
    struct part p = {};

    w->tokens = tokens;
    p.w = w;
    p.type = w->layers[0].o.w.type;
    int units = 4096 / packed_launch(&cu, p.type, p.type, nt, 0, NULL);
    int tiles = 4096 / packed_rows(packed_shape_of(&cu, p.type, nt));
    p.blocks = cu.n_sm;
    p.mid.job[0] = { w->layers[0].o.w.packed, 4096, 4096, 0, 0, false };
    p.mid.n_jobs = p.finish.n_jobs = 1;
    p.mid.n_chunks = 64, p.mid.row_tiles = tiles, p.mid.token_tiles = 1;
    p.mid.x = (const __half *)w->q;
    p.mid.part = w->logits;
    p.finish.job[0] = { w->h, NULL, 4096, 4096, 0, 0, 1.f, true };
    p.finish.tokens = tokens, p.finish.units = units, p.finish.row_tiles = tiles,
    p.finish.token_tiles = 1;
    p.finish.blocks = p.blocks, p.finish.part = w->logits, p.finish.act = -1, p.finish.nt = nt;
    p.finish.shape = packed_shape_of(&cu, p.type, nt);
    printf("  %s, %d tokens, 4096 x 4096, us each:", name, tokens);
    for (p.which = 0; p.which < 4; p.which++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        cudaEvent_t a, b;
        float ms;
        TRY(cudaStreamBeginCapture(cu.stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < 60; i++) part_run(&p, i);
        TRY(cudaStreamEndCapture(cu.stream, &graph));
        TRY(cudaGraphInstantiate(&exec, graph, 0));
        TRY(cudaEventCreate(&a));
        TRY(cudaEventCreate(&b));
        TRY(cudaGraphLaunch(exec, cu.stream));
        TRY(cudaEventRecord(a, cu.stream));
        for (int i = 0; i < 5; i++) TRY(cudaGraphLaunch(exec, cu.stream));
        TRY(cudaEventRecord(b, cu.stream));
        TRY(cudaEventSynchronize(b));
        TRY(cudaEventElapsedTime(&ms, a, b));
        printf(" %s %.2f", names[p.which], ms * 1e3 / 300);
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
        cudaEventDestroy(a);
        cudaEventDestroy(b);
    }
    printf("\n");
}

static const double cells[N_PRODUCTS] = { 6144. * 4096, 4096. * 4096, 28672. * 4096, 4096. * 14336,
                                          32768. * 4096 };

static double bytes_of(const struct work *w, int which)
{
    const struct layer *l = &w->layers[0];
    switch (which) {
    case QKV: return (double)(l->q.w.packed_bytes + l->k.w.packed_bytes + l->v.w.packed_bytes);
    case O: return (double)l->o.w.packed_bytes;
    case GATE_UP: return (double)(l->gate.w.packed_bytes * 2);
    case DOWN: return (double)l->down.w.packed_bytes;
    default: return (double)w->head.w.packed_bytes;
    }
}

static void time_type(struct work *w, const char *name, const int *tokens, int n, int way)
{
    gemm_set_way(&cu, (enum gemm_way)way);
    for (int i = 0; i < n; i++) {
        float each[N_PRODUCTS], layer;
        double flop = 0, bytes = 0;
        w->tokens = tokens[i];
        for (int k = 0; k < N_PRODUCTS; k++)
            each[k] = k == HEAD && tokens[i] > 256 ? 0 : time_of(w, k);
        layer = time_of(w, -1);
        for (int k = QKV; k <= DOWN; k++) flop += 2 * cells[k] * tokens[i], bytes += bytes_of(w, k);
        float all = 32 * layer + each[HEAD];
        printf("  %-7s %-4s %5d | %7.1f %7.1f %7.1f %7.1f %7.1f | %7.1f us %5.0f GB/s %4.0f TF | "
               "%6.2f ms %6.0f tok/s\n",
               name, way_names[way], tokens[i], each[QKV] * 1e3, each[O] * 1e3, each[GATE_UP] * 1e3,
               each[DOWN] * 1e3, each[HEAD] * 1e3, layer * 1e3, bytes / layer * 1e-6,
               flop / layer * 1e-9, all, tokens[i] / all * 1e3);
        if (cu.rc) printf("    %s\n", cu.msg);
        cu.rc = OK;
    }
}

/* The times of the library's other proposals. */
static void choices(struct work *w)
{
    static const int tokens[] = { 64, 256, 512, 4096 };

    gemm_set_way(&cu, GEMM_LT);
    for (int i = 0; i < 4; i++)
        for (int k = QKV; k <= DOWN; k++) {
            w->tokens = tokens[i];
            printf("  choice  %5d %s:", tokens[i],
                   k == QKV       ? "qkv"
                   : k == O       ? "o"
                   : k == GATE_UP ? "gate+up"
                                  : "down");
            for (int c = 0; c < 8; c++) {
                gemm_set_choice(&cu, c);
                printf(" %.1f", time_of(w, k) * 1e3);
            }
            printf("\n");
        }
    gemm_set_choice(&cu, 0);
}

static void timings(const char *what)
{
    static const struct {
        const char *name;
        enum dtype t, other;
        bool brief;
    } sets[] = {
        { "F16", DT_F16, DT_F16, false },    { "Q4_K_M", DT_Q4_K, DT_Q6_K, false },
        { "Q8_0", DT_Q8_0, DT_Q8_0, false }, { "Q4_K", DT_Q4_K, DT_Q4_K, true },
        { "BF16", DT_BF16, DT_BF16, true },  { "Q4_0", DT_Q4_0, DT_Q4_0, true },
        { "Q5_K", DT_Q5_K, DT_Q5_K, true },
    };
    static const int own[] = { 16, 32, 64, 128, 256, 512, 1024 },
                     lt[] = { 64, 128, 256, 512, 1024, 4096 };
    static const int chosen[] = { 64, 512, 4096 };
    static const int own_brief[] = { 16, 64, 256 }, lt_brief[] = { 256, 4096 };
    float *x = floats((size_t)4096 * 4096, 1), *buf;
    size_t n = (size_t)4096 * 14336;

    printf("time: us of qkv, o, gate+up, down, head; a layer of all four; 32 layers and head (to "
           "256 tokens)\n");
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct work w = work_make(sets[i].t, sets[i].other);
        buf = (float *)device(n * 8 * 4);
        TRY(cudaMemset(buf, 0, n * 8 * 4));
        w.x = buf, w.h = buf + n, w.q = buf + 2 * n, w.k = buf + 3 * n, w.v = buf + 4 * n,
        w.gate = buf + 5 * n;
        w.up = buf + 6 * n, w.logits = buf + 7 * n, w.norm = upload(x, 4096);
        TRY(cudaMemcpy(w.x, x, (size_t)4096 * 4096 * 4, cudaMemcpyHostToDevice));
        TRY(cudaMemcpy(w.q, x, (size_t)4096 * 4096 * 4, cudaMemcpyHostToDevice));
        TRY(cudaDeviceSynchronize());
        warm(&w);
        time_type(&w, sets[i].name, sets[i].brief ? own_brief : own, sets[i].brief ? 3 : 7,
                  GEMM_PACKED);
        time_type(&w, sets[i].name, sets[i].brief ? lt_brief : lt, sets[i].brief ? 2 : 6, GEMM_LT);
        time_type(&w, sets[i].name, chosen, sets[i].brief ? 1 : 3, GEMM_AUTO);
        if (sets[i].t == DT_F16 || sets[i].t == DT_Q4_K)
            parts(&w, sets[i].name, 16), parts(&w, sets[i].name, 64);
        if (sets[i].t == DT_F16 && strcmp(what, "choices") == 0) choices(&w);
        work_free(&w);
        cudaFree(buf);
        cudaFree(w.norm);
        fflush(stdout);
    }
    free(x);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    struct err e = {};
    char lib[64];
    int bad = 0;

    if (!open_device()) return 1;
    cu.lim.max_tokens = 4096, cu.lim.max_seqs = cu.lim.max_out = 256,
    cu.lim.max_cols = cu.lim.max_rows = 14336;
    cu.lim.n_vocab = 32768, cu.lim.n_heads = 32, cu.lim.head_dim = 128;
    cu.scratch_bytes[CU_GEMM] = cu_gemm_bytes(&cu, &cu.lim);
    cu.scratch[CU_GEMM] = device(cu.scratch_bytes[CU_GEMM]);
    TRY(cudaMemset(cu.scratch[CU_GEMM], 0xff, cu.scratch_bytes[CU_GEMM]));
    if (argc > 2 && strcmp(argv[2], "old") == 0) cu.cc = 80, cu.smem_max = 99 << 10;
    if (cu_gemm_open(&cu, &e) != OK) {
        printf("%s\n", e.msg);
        return 1;
    }
    printf("%zu MiB of scratch, %s\n", cu.scratch_bytes[CU_GEMM] >> 20,
           gemm_library(&cu, lib, sizeof lib));
    if (strcmp(what, "time") != 0 && strcmp(what, "choices") != 0) bad = check();
    fflush(stdout);
    if (strcmp(what, "check") != 0) timings(what);
    cu_gemm_close(&cu);
    return bad != 0;
}
