/* moe_route.cu - which experts a token gets (cu_route), and matrix products in F32 throughout
 * (cu_linear_f32).
 *
 * Which experts are chosen can hang on the last digits of the logits, so the product that computes
 * them is done in F32, as are other products so small that F32 costs nothing. */
#include "kernel/cuda/cu_layout.cuh"

/* ---- matrix products in F32 ---- */

#define TILE 64 /* tokens and rows of a block */
#define DEEP 16 /* columns at a time */
#define FEW 8   /* tokens up to which a warp computes one number */

struct f32_dev {
    const float *x, *bias;
    const void *w;
    float *out;
    size_t x_stride, w_stride, out_stride;
    int rows, cols, tokens;
    float scale;
    bool add;
};

/* Scale, bias and addition of one result. */
static __device__ __forceinline__ void f32_store(const f32_dev &a, int tok, int r, float y)
{
    float *out = a.out + (size_t)tok * a.out_stride + r;

    y = y * a.scale + (a.bias ? a.bias[r] : 0.f);
    *out = a.add ? *out + y : y;
}

/* A warp has one row of one token. Grid: rows, tokens. */
template <typename E> static __global__ void __launch_bounds__(128) f32_few(const f32_dev a)
{
    int lane = threadIdx.x & 31, r = blockIdx.x * 4 + (threadIdx.x >> 5), tok = blockIdx.y;
    const E *w = (const E *)a.w + (size_t)min(r, a.rows - 1) * a.w_stride;
    const float *x = a.x + (size_t)tok * a.x_stride;
    float sum = 0.f;

    cu_release_next();
    cu_wait_previous();
#pragma unroll 8
    for (int c = lane; c < a.cols; c += 32) sum = fmaf((float)w[c], x[c], sum);
    sum = warp_sum(sum);
    if (lane == 0 && r < a.rows) f32_store(a, tok, r, sum);
}

/* A thread has four tokens by four rows. */
template <typename E> static __global__ void __launch_bounds__(256) f32_many(const f32_dev a)
{
    __shared__ float xs[DEEP][TILE + 4], ws[DEEP][TILE + 4];
    int r0 = blockIdx.x * TILE, t0 = blockIdx.y * TILE, i = threadIdx.x % 16 * 4,
        j = threadIdx.x / 16 * 4;
    const E *w = (const E *)a.w + (size_t)r0 * a.w_stride;
    float sum[4][4] = {};

    cu_release_next();
    cu_wait_previous();
    for (int c0 = 0; c0 < a.cols; c0 += DEEP) {
        for (int k = threadIdx.x; k < TILE * DEEP; k += 256) {
            int at = k / DEEP, c = c0 + k % DEEP;
            bool in = c < a.cols;
            xs[k % DEEP][at] =
                in && t0 + at < a.tokens ? a.x[(size_t)(t0 + at) * a.x_stride + c] : 0.f;
            ws[k % DEEP][at] = in && r0 + at < a.rows ? (float)w[(size_t)at * a.w_stride + c] : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            float4 u = *(const float4 *)&ws[k][i], v = *(const float4 *)&xs[k][j];
            float wv[4] = { u.x, u.y, u.z, u.w }, xv[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
            for (int n = 0; n < 16; n++)
                sum[n / 4][n % 4] = fmaf(xv[n / 4], wv[n % 4], sum[n / 4][n % 4]);
        }
        __syncthreads();
    }
    for (int n = 0; n < 16; n++)
        if (t0 + j + n / 4 < a.tokens && r0 + i + n % 4 < a.rows)
            f32_store(a, t0 + j + n / 4, r0 + i + n % 4, sum[n / 4][n % 4]);
}

template <typename E> static void f32_of(struct cuda *c, const f32_dev &a)
{
    dim3 tiles((a.rows + TILE - 1) / TILE, (a.tokens + TILE - 1) / TILE);

    if (a.tokens <= FEW)
        cu_launch(c, "linear f32", f32_few<E>, dim3((a.rows + 3) / 4, a.tokens), dim3(128), 0, a);
    else cu_launch(c, "linear f32", f32_many<E>, tiles, dim3(256), 0, a);
}

static void f32_one(struct cuda *c, const struct tensor *x, const struct linear *j)
{
    struct f32_dev a = {};

    a.x = (const float *)x->data;
    a.bias = j->bias;
    a.w = j->w->packed;
    a.out = (float *)j->out.data;
    a.x_stride = x->stride;
    a.w_stride = layout_stride(j->w->type, j->w->cols);
    a.out_stride = j->out.stride;
    a.rows = j->w->rows;
    a.cols = j->w->cols;
    a.tokens = x->rows;
    a.scale = j->scale != 0 ? j->scale : 1;
    a.add = j->add;
    switch (layout_type(j->w->type)) {
    case DT_F32: f32_of<float>(c, a); break;
    case DT_BF16: f32_of<__nv_bfloat16>(c, a); break;
    default: f32_of<__half>(c, a);
    }
}

/* Plain weights only. The norm and the activation are not fused here: record_fuse leaves exact
 * operations alone. */
bool cu_linear_f32(struct cuda *c, const struct cu_linear *p)
{
    if (p->fuse_act || p->norm.kind != CU_NORM_NONE) return false;
    for (int i = 0; i < p->n_jobs; i++)
        if (layout_of(p->jobs[i].w->type).cols) return false;
    for (int i = 0; i < p->n_jobs; i++) f32_one(c, &p->x, &p->jobs[i]);
    return true;
}

/* ---- routing: a warp has a token ---- */

#define WARPS 4

struct route_dev {
    int32_t *ids;
    float *weights;
    const float *logits;
    size_t stride;
    int tokens, n;
    struct route_opt o;
};

/* The index of the largest score that is not taken; of equals the first. Always a valid index. */
static __device__ __forceinline__ int find_best(const float *score, const bool *taken, int n)
{
    int lane = threadIdx.x & 31, b = n;
    float v = 0.f;

    for (int i = lane; i < n; i += 32)
        if (!taken[i] && (b == n || score[i] > v)) b = i, v = score[i];
    for (int m = 16; m; m >>= 1) {
        int ob = __shfl_xor_sync(~0u, b, m);
        float ov = __shfl_xor_sync(~0u, v, m);
        if (ob < n && (b == n || ov > v || (!(v > ov) && ob < b))) b = ob, v = ov;
    }
    b = __shfl_sync(~0u, b, 0); /* one answer for all lanes, even if scores are NaN */
    return b < n ? b : 0;
}

static __device__ __forceinline__ void mark_taken(bool *taken, int i)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0) taken[i] = true;
    __syncwarp();
}

static __device__ __forceinline__ float max_of(const float *x, int n)
{
    float m = -INFINITY;
    for (int i = threadIdx.x & 31; i < n; i += 32) m = fmaxf(m, x[i]);
    return warp_max(m);
}

/* p = softmax(x) of n numbers, by a warp. p may be x. */
static __device__ void softmax(float *p, const float *x, int n)
{
    float max = max_of(x, n), sum = 0.f;

    for (int i = threadIdx.x & 31; i < n; i += 32) sum += p[i] = expf(x[i] - max);
    sum = warp_sum(sum);
    for (int i = threadIdx.x & 31; i < n; i += 32) p[i] /= sum;
    __syncwarp();
}

/* Marks experts outside the best groups as taken. A group counts as the sum of its group_top best
 * ranks. */
static __device__ void mask_groups(const route_opt &o, const float *rank, bool *taken, int n)
{
    __shared__ float sums[WARPS][MOE_MAX_GROUPS];
    __shared__ bool opens[WARPS][MOE_MAX_GROUPS];
    int lane = threadIdx.x & 31, size = n / o.n_groups;
    float *sum = sums[threadIdx.x >> 5];
    bool *open = opens[threadIdx.x >> 5];

    for (int g = 0; g < o.n_groups; g++) {
        float s = 0.f;
        for (int k = 0; k < o.group_top && k < size; k++) {
            int b = find_best(rank + g * size, taken + g * size, size);
            s += rank[g * size + b];
            mark_taken(taken + g * size, b);
        }
        if (lane == 0) sum[g] = s, open[g] = false;
    }
    __syncwarp();
    for (int k = 0; k < o.n_groups_used; k++) mark_taken(open, find_best(sum, open, o.n_groups));
    for (int i = lane; i < n; i += 32) taken[i] = i / size >= o.n_groups || !open[i / size];
    __syncwarp();
}

/* Two experts, each weighted by a softmax over those not far below it; the second does not see the
 * first (SparseMixer, phimoe). */
static __device__ void sparsemixer(const route_opt &o, const float *score, bool *taken, int n,
                                   int32_t *ids, float *weights)
{
    int lane = threadIdx.x & 31;

    for (int k = 0; k < 2; k++) {
        int b = find_best(score, taken, n);
        float max = score[b], sum = 0.f;
        for (int i = lane; i < n; i += 32)
            if (!taken[i] && !((max - score[i]) / fmaxf(fabsf(score[i]), max) > 2.f * o.jitter))
                sum += expf(score[i] - max);
        sum = warp_sum(sum);
        if (lane == 0) ids[k] = b, weights[k] = 1.f / sum * o.scale;
        mark_taken(taken, b);
    }
}

/* Writes the weights of the chosen experts, normalized and scaled as o says. */
static __device__ void write_weights(const route_opt &o, float *w, float *out)
{
    float sum = 0.f;

    if (o.route == ROUTE_TOP_SOFTMAX) softmax(w, w, o.n_used);
    for (int k = threadIdx.x & 31; k < o.n_used; k += 32) sum += w[k];
    sum = warp_sum(sum);
    float by = (o.norm && sum > 0.f ? 1.f / sum : 1.f) * o.scale;
    for (int k = threadIdx.x & 31; k < o.n_used; k += 32) out[k] = w[k] * by;
}

/* Shared memory of a warp: n scores, n ranks, n flags. */
static __global__ void __launch_bounds__(32 * WARPS) route(const __grid_constant__ route_dev a)
{
    extern __shared__ float mem[];
    __shared__ float chosen[WARPS][MOE_MAX_USED];
    const route_opt &o = a.o;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.x * WARPS + warp;
    float *score = mem + warp * a.n, *rank = score + WARPS * a.n, *w = chosen[warp];
    bool *taken = (bool *)(mem + 2 * WARPS * a.n) + warp * a.n;

    cu_release_next();
    cu_wait_previous();
    if (row >= a.tokens) return;
    const float *x = a.logits + (size_t)row * a.stride;
    int32_t *ids = a.ids + (size_t)row * o.n_used;
    for (int i = lane; i < a.n; i += 32) {
        score[i] = o.route == ROUTE_SIGMOID ? 1.f / (1.f + expf(-x[i])) : x[i];
        taken[i] = false;
    }
    __syncwarp();
    if (o.route == ROUTE_SPARSEMIXER) {
        sparsemixer(o, score, taken, a.n, ids, a.weights + (size_t)row * o.n_used);
        return;
    }
    if (o.route == ROUTE_SOFTMAX) softmax(score, score, a.n);
    for (int i = lane; i < a.n; i += 32) rank[i] = score[i] + (o.bias ? o.bias[i] : 0.f);
    __syncwarp();
    if (o.n_groups) mask_groups(o, rank, taken, a.n);
    /* n_used rounds of a maximum over the warp. Weights are scores, not ranks: the bias counts for
     * the choice only. */
    for (int k = 0; k < o.n_used; k++) {
        int b = find_best(rank, taken, a.n);
        if (lane == 0) ids[k] = b, w[k] = score[b];
        mark_taken(taken, b);
    }
    write_weights(o, w, a.weights + (size_t)row * o.n_used);
}

void cu_route(struct cuda *c, int32_t *ids, float *weights, const struct tensor *logits,
              const struct route_opt *opt)
{
    struct route_dev a = {};
    size_t smem = (size_t)WARPS * (size_t)logits->cols * (2 * sizeof(float) + 1);

    a.ids = ids;
    a.weights = weights;
    a.logits = (const float *)logits->data;
    a.stride = logits->stride;
    a.tokens = logits->rows;
    a.n = logits->cols;
    a.o = *opt;
    cu_launch(c, "route", route, dim3((a.tokens + WARPS - 1) / WARPS), dim3(32 * WARPS), smem, a);
}
