/* moe_route.cu - which experts a token gets (cu_route). */
#include "kernel/cuda/cu_layout.cuh"

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

/* The score of an expert by itself; the softmax of all follows where the route has one. */
static __device__ __forceinline__ float score_of(enum route_kind kind, float x)
{
    if (kind == ROUTE_SIGMOID) return 1.f / (1.f + expf(-x));
    if (kind == ROUTE_SQRT_SOFTPLUS) return sqrtf(x > 20.f ? x : log1pf(expf(x)));
    return x;
}

/* Writes the weights of the chosen experts, normalized and scaled as o says. */
static __device__ void write_weights(const route_opt &o, const int *ids, float *w, float *out)
{
    float sum = 0.f;

    if (o.route == ROUTE_TOP_SOFTMAX) softmax(w, w, o.n_used);
    for (int k = threadIdx.x & 31; k < o.n_used; k += 32) sum += w[k];
    sum = warp_sum(sum);
    float by = (o.norm && sum > 0.f ? 1.f / sum : 1.f) * o.scale;
    for (int k = threadIdx.x & 31; k < o.n_used; k += 32)
        out[k] = w[k] * by * (o.expert_scale ? o.expert_scale[ids[k]] : 1.f);
}

/* Shared memory of a warp: n scores, n ranks, n flags. */
static __global__ void __launch_bounds__(32 * WARPS) route(const __grid_constant__ route_dev a)
{
    extern __shared__ float mem[];
    __shared__ float chosen[WARPS][MOE_MAX_USED];
    __shared__ int experts[WARPS][MOE_MAX_USED];
    const route_opt &o = a.o;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.x * WARPS + warp;
    float *score = mem + warp * a.n, *rank = score + WARPS * a.n, *w = chosen[warp];
    bool *taken = (bool *)(mem + 2 * WARPS * a.n) + warp * a.n;

    cu_release_next();
    cu_wait_previous();
    if (row >= a.tokens) return;
    const float *x = a.logits + (size_t)row * a.stride;
    int32_t *ids = a.ids + (size_t)row * o.n_used;
    const int32_t *fixed =
        o.by_token ? o.by_token + (size_t)o.ids[row] * o.n_used : NULL; /* hash routing */
    for (int i = lane; i < a.n; i += 32) {
        score[i] = score_of(o.route, x[i]);
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
        int b = fixed ? fixed[k] : find_best(rank, taken, a.n);
        if (lane == 0) ids[k] = experts[warp][k] = b, w[k] = score[b];
        mark_taken(taken, b);
    }
    write_weights(o, experts[warp], w, a.weights + (size_t)row * o.n_used);
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
