/* moe_route.cu - which experts a token gets (cu_route), also together with the norm and the product
 * before it (cu_router). */
#include "kernel/cuda/cu_moe.cuh"
#include "kernel/cuda/matvec_one_x.cuh"

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
    /* The bits of floats in their order; 0: this lane has none. One answer for all lanes, even if
     * scores are NaN. */
    uint32_t bits = __float_as_uint(v + 0.f), key = bits >> 31 ? ~bits : bits | 0x80000000u;
    if (b == n) key = 0;
    uint32_t best = __reduce_max_sync(~0u, key);
    b = (int)__reduce_min_sync(~0u, key == best ? (unsigned)b : (unsigned)n);
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

/* What a warp needs in shared memory to choose: n scores, n ranks, n flags; the chosen ones. */
struct route_mem {
    float *score, *rank;
    bool *taken;
    float *chosen;
    int *experts;
};

/* The choice of one token by a warp. x: its logits. */
static __device__ void route_row(const struct route_dev &a, const struct route_mem &m,
                                 const float *x, int row)
{
    const route_opt &o = a.o;
    int lane = threadIdx.x & 31;
    int32_t *ids = a.ids + (size_t)row * o.n_used;
    float *weights = a.weights + (size_t)row * o.n_used;
    const int32_t *fixed =
        o.by_token ? o.by_token + (size_t)o.ids[row] * o.n_used : NULL; /* hash routing */

    for (int i = lane; i < a.n; i += 32) {
        m.score[i] = score_of(o.route, x[i]);
        m.taken[i] = false;
    }
    __syncwarp();
    if (o.route == ROUTE_SPARSEMIXER) {
        sparsemixer(o, m.score, m.taken, a.n, ids, weights);
        return;
    }
    if (o.route == ROUTE_SOFTMAX) softmax(m.score, m.score, a.n);
    for (int i = lane; i < a.n; i += 32) m.rank[i] = m.score[i] + (o.bias ? o.bias[i] : 0.f);
    __syncwarp();
    if (o.n_groups) mask_groups(o, m.rank, m.taken, a.n);
    /* n_used rounds of a maximum over the warp. Weights are scores, not ranks: the bias counts for
     * the choice only. */
    for (int k = 0; k < o.n_used; k++) {
        int b = fixed ? fixed[k] : find_best(m.rank, m.taken, a.n);
        if (lane == 0) ids[k] = m.experts[k] = b, m.chosen[k] = m.score[b];
        mark_taken(m.taken, b);
    }
    write_weights(o, m.experts, m.chosen, weights);
}

static __global__ void __launch_bounds__(32 * WARPS) route(const __grid_constant__ route_dev a)
{
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ float chosen[WARPS][MOE_MAX_USED];
    __shared__ int experts[WARPS][MOE_MAX_USED];
    int warp = threadIdx.x >> 5, row = blockIdx.x * WARPS + warp;
    float *f = (float *)mem;
    struct route_mem m = { f + warp * a.n, f + (WARPS + warp) * a.n,
                           (bool *)(f + 2 * WARPS * a.n) + warp * a.n, chosen[warp],
                           experts[warp] };

    cu_release_next();
    cu_wait_previous();
    if (row < a.tokens) route_row(a, m, a.logits + (size_t)row * a.stride, row);
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

/* ---- norm, product and choice in one kernel ----
 *
 * A block has every 64th pair of experts, four warps for each: their weights are fetched before the
 * wait for x. The factor of the norm is applied to the logits, so that x is read once. The block of
 * a token that ends last chooses; the first blocks write the normalized x, in F32 and as the
 * integers that the experts' kernel reads. */

#define ROUTER_BLOCKS 64
#define ROUTER_WARPS 8
#define ROUTER_HALF 128 /* threads of an expert */
#define ROUTER_DEEP 4   /* times 512 columns are in their registers */

struct router_dev {
    const float *x, *norm_w, *bias;
    const void *w;
    float *xn, *logits;
    uint8_t *x16;
    unsigned *tickets;
    size_t x_stride, xn_stride, logits_stride, x16_stride, w_stride;
    int cols;
    float eps, scale;
    struct route_dev route;
};

static __device__ __forceinline__ float4 router_four(const float *p) { return *(const float4 *)p; }
static __device__ __forceinline__ float4 router_four(const __half *p)
{
    uint2 v = *(const uint2 *)p;
    float2 a = __half22float2(*(__half2 *)&v.x), b = __half22float2(*(__half2 *)&v.y);
    return make_float4(a.x, a.y, b.x, b.y);
}
static __device__ __forceinline__ float4 router_four(const __nv_bfloat16 *p)
{
    uint2 v = *(const uint2 *)p;
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

/* x times the norm's weights, from column c on; adds its squares to sq. */
static __device__ __forceinline__ float4 router_x(const router_dev &a, int c, float *sq)
{
    float4 v = *(const float4 *)(a.x + (size_t)blockIdx.y * a.x_stride + c);

    *sq += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    if (!a.norm_w) return v;
    float4 w = *(const float4 *)(a.norm_w + c);
    return make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
}

/* Unit u of the normalized x, by a warp. */
static __device__ void router_write(const router_dev &a, float by, int u)
{
    int lane = threadIdx.x & 31, c = u * ONE_UNIT + (lane >> 2) * 32 + (lane & 3) * 4;
    uint32_t top[2] = {};
    float f[8], sq = 0.f;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at = c + 16 * h;
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
        if (at < a.cols) {
            v = router_x(a, at, &sq);
            v = make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
            *(float4 *)(a.xn + (size_t)blockIdx.y * a.xn_stride + at) = v;
        }
        f[4 * h] = v.x, f[4 * h + 1] = v.y, f[4 * h + 2] = v.z, f[4 * h + 3] = v.w;
#pragma unroll
        for (int i = 0; i < 4; i++)
            top[h] = max(top[h], __float_as_uint(f[4 * h + i]) & 0x7fffffff);
        top[h] = max(top[h], __shfl_xor_sync(~0u, top[h], 1));
        top[h] = max(top[h], __shfl_xor_sync(~0u, top[h], 2));
    }
    if (a.x16)
        one_store<one_tiles<DT_Q4_K>>(a.x16 + blockIdx.y * a.x16_stride + u * MOE_UNIT_BYTES, f,
                                      top, lane);
}

/* Grid: blocks, tokens. */
template <typename E>
static __global__ void __launch_bounds__(32 * ROUTER_WARPS)
    router(const __grid_constant__ router_dev a)
{
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ float chosen[MOE_MAX_USED], part[2][ROUTER_WARPS];
    __shared__ int experts[MOE_MAX_USED];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp / 4, n = a.route.n;
    int e = 2 * blockIdx.x + half, c0 = 4 * (threadIdx.x % ROUTER_HALF);
    float by = 0.f, *logits = (float *)mem;
    float4 w[ROUTER_DEEP];

    cu_release_next();
#pragma unroll
    for (int i = 0; i < ROUTER_DEEP; i++) {
        int c = c0 + i * 4 * ROUTER_HALF;
        w[i] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (e < n && c < a.cols) w[i] = router_four((const E *)a.w + (size_t)e * a.w_stride + c);
    }
    cu_wait_previous();
    for (int k = 0; k == 0 || 2 * (int)blockIdx.x + k < n; k += 2 * ROUTER_BLOCKS) {
        float sum = 0.f, sq = 0.f;
        const E *row = (const E *)a.w + (size_t)min(e + k, n - 1) * a.w_stride;
#pragma unroll
        for (int i = 0; i < ROUTER_DEEP; i++) {
            int c = c0 + i * 4 * ROUTER_HALF;
            if (c >= a.cols) break;
            float4 u = k ? router_four(row + c) : w[i], v = router_x(a, c, &sq);
            sum = fmaf(u.x, v.x, sum), sum = fmaf(u.y, v.y, sum);
            sum = fmaf(u.z, v.z, sum), sum = fmaf(u.w, v.w, sum);
        }
        for (int c = c0 + ROUTER_DEEP * 4 * ROUTER_HALF; c < a.cols; c += 4 * ROUTER_HALF) {
            float4 u = router_four(row + c), v = router_x(a, c, &sq);
            sum = fmaf(u.x, v.x, sum), sum = fmaf(u.y, v.y, sum);
            sum = fmaf(u.z, v.z, sum), sum = fmaf(u.w, v.w, sum);
        }
        sum = warp_sum(sum), sq = warp_sum(sq);
        if (lane == 0) part[0][warp] = sum, part[1][warp] = sq;
        __syncthreads();
        sum = sq = 0.f;
        for (int i = 0; i < 4; i++) sum += part[0][4 * half + i], sq += part[1][i];
        by = rsqrtf(sq / (float)a.cols + a.eps);
        if (threadIdx.x % ROUTER_HALF == 0 && e + k < n)
            a.logits[blockIdx.y * a.logits_stride + e + k] =
                sum * by * a.scale + (a.bias ? a.bias[e + k] : 0.f);
        __threadfence();
        __syncthreads();
    }
    if (warp > 0) {
        for (int u = blockIdx.x + (warp - 1) * ROUTER_BLOCKS; u * ONE_UNIT < a.cols;
             u += (ROUTER_WARPS - 1) * ROUTER_BLOCKS)
            router_write(a, by, u);
        return;
    }
    unsigned ticket = 0;
    if (lane == 0) ticket = atomicInc(a.tickets + blockIdx.y, ROUTER_BLOCKS - 1);
    if (__shfl_sync(~0u, ticket, 0) != ROUTER_BLOCKS - 1) return;
    __threadfence();
    for (int i = lane; i < n; i += 32)
        logits[i] = __ldcg(a.logits + blockIdx.y * a.logits_stride + i);
    __syncwarp();
    struct route_mem m = { logits + n, logits + 2 * n, (bool *)(logits + 3 * n), chosen, experts };
    route_row(a.route, m, logits, blockIdx.y);
}

bool cu_router(struct cuda *c, const struct cu_router *r)
{
    const struct linear *j = r->job;
    int t = cu_type(j->w), size = layout_type(t) == DT_F32 ? 4 : 2;
    size_t smem = (size_t)j->w->rows * (3 * sizeof(float) + 1);
    dim3 grid(ROUTER_BLOCKS, r->x.rows), block(32 * ROUTER_WARPS);
    struct router_dev a = {};

    if (!r->tickets || r->x.rows > CU_ROUTER_TOKENS || r->norm.kind != CU_NORM_RMS || r->norm.b ||
        j->add || layout_of(t).cols || smem > 32 * 1024 || r->x.cols % 4 ||
        layout_stride(t, j->w->cols) % 4 || (uintptr_t)j->w->packed % (4 * size) ||
        !cu_aligned16(r->x.data, r->x.stride) || !cu_aligned16(r->xn.data, r->xn.stride) ||
        (uintptr_t)r->norm.w % 16)
        return false;
    a.x = (const float *)r->x.data, a.x_stride = r->x.stride;
    a.norm_w = r->norm.w, a.eps = r->norm.eps;
    a.xn = (float *)r->xn.data, a.xn_stride = r->xn.stride;
    a.w = j->w->packed, a.w_stride = layout_stride(t, j->w->cols);
    a.bias = j->bias;
    a.scale = j->scale != 0 ? j->scale : 1;
    a.logits = (float *)j->out.data, a.logits_stride = j->out.stride;
    a.x16 = (uint8_t *)r->x16, a.x16_stride = moe_row(MOE_INT16, r->x.cols);
    a.tickets = r->tickets;
    a.cols = r->x.cols;
    a.route.ids = r->ids;
    a.route.weights = r->weights;
    a.route.tokens = r->x.rows;
    a.route.n = j->w->rows;
    a.route.o = *r->opt;
    switch (layout_type(t)) {
    case DT_F32: cu_launch(c, "router", router<float>, grid, block, smem, a); break;
    case DT_BF16: cu_launch(c, "router", router<__nv_bfloat16>, grid, block, smem, a); break;
    default: cu_launch(c, "router", router<__half>, grid, block, smem, a);
    }
    return true;
}
