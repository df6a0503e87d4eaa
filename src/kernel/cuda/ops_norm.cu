/* ops_norm.cu - RMS norm and layer norm of rows, and of heads inside rows.
 *
 * Three kernels: a warp for each row of up to 256 numbers; a block for each longer row, which stays
 * in registers; a block that reads a row two or three times, for any length and alignment. Layer
 * norms sum squares around the mean, in a second pass over registers. */
#include "kernel/cuda/cu.cuh"

#define MAX_THREADS 1024 /* threads of a block, at most */
#define SHORT_THREADS 256

/* What is normalized: head `head` of row `row`; block = row * heads + head. */
struct norm_dev {
    float *out;
    const float *x, *w, *b;
    size_t out_stride, x_stride;
    int rows, heads, cols, w_stride;
    float eps;
    bool layer;
};

/* The sum over the block, for all threads. part: 32 floats of shared memory. */
static __device__ __forceinline__ float block_sum(float v, float *part)
{
    int warps = blockDim.x >> 5, lane = threadIdx.x & 31;

    v = warp_sum(v);
    if (warps == 1) return v;
    if (lane == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? part[lane] : 0.f);
    __syncthreads(); /* part is used again */
    return v;
}

/* Four numbers' share of the first sum: plain for the mean, squares otherwise. */
static __device__ __forceinline__ float norm_part(bool plain, float4 v)
{
    return plain ? v.x + v.y + v.z + v.w : v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

/* v * s * w + b of columns 4c .. 4c + 3. */
static __device__ __forceinline__ float4 norm_end(float4 v, float s, const float4 *w,
                                                  const float4 *b, int c)
{
    float4 f = w ? w[c] : make_float4(1.f, 1.f, 1.f, 1.f),
           a = b ? b[c] : make_float4(0.f, 0.f, 0.f, 0.f);

    return make_float4(v.x * s * f.x + a.x, v.y * s * f.y + a.y, v.z * s * f.z + a.z,
                       v.w * s * f.w + a.w);
}

/* A block has a row; a thread keeps V times four numbers in registers. */
template <int V> static __global__ void __launch_bounds__(MAX_THREADS) norm_fours(const norm_dev n)
{
    __shared__ float part[32];
    int row = blockIdx.x / n.heads, head = blockIdx.x % n.heads, fours = n.cols / 4;
    const float4 *x = (const float4 *)(n.x + (size_t)row * n.x_stride + (size_t)head * n.cols);
    float4 *out = (float4 *)(n.out + (size_t)row * n.out_stride + (size_t)head * n.cols);
    const float4 *w = n.w ? (const float4 *)(n.w + (size_t)head * n.w_stride) : NULL;
    const float4 *b = n.b ? (const float4 *)(n.b + (size_t)head * n.w_stride) : NULL;
    float4 v[V];
    float sum = 0.f, mean = 0.f;

    cu_release_next();
    cu_wait_previous();
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = i * blockDim.x + threadIdx.x;
        v[i] = c < fours ? x[c] : make_float4(0.f, 0.f, 0.f, 0.f);
        sum += norm_part(n.layer, v[i]);
    }
    sum = block_sum(sum, part);
    if (n.layer) {
        mean = sum / (float)n.cols;
        sum = 0.f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
            if (i * blockDim.x + threadIdx.x < fours) sum += norm_part(false, v[i]);
        }
        sum = block_sum(sum, part);
    }
    float s = 1.f / sqrtf(sum / (float)n.cols + n.eps);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = i * blockDim.x + threadIdx.x;
        if (c < fours) out[c] = norm_end(v[i], s, w, b, c);
    }
}

/* A warp has a row of up to 128 V numbers. */
template <int V>
static __global__ void __launch_bounds__(SHORT_THREADS) norm_short(const norm_dev n)
{
    long long at = (long long)blockIdx.x * (SHORT_THREADS / 32) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, fours = n.cols / 4;
    float4 v[V];
    float sum = 0.f, mean = 0.f;

    cu_release_next();
    cu_wait_previous();
    if (at >= (long long)n.rows * n.heads) return;
    int row = (int)(at / n.heads), head = (int)(at % n.heads);
    const float4 *x = (const float4 *)(n.x + (size_t)row * n.x_stride + (size_t)head * n.cols);
    float4 *out = (float4 *)(n.out + (size_t)row * n.out_stride + (size_t)head * n.cols);
    const float4 *w = n.w ? (const float4 *)(n.w + (size_t)head * n.w_stride) : NULL;
    const float4 *b = n.b ? (const float4 *)(n.b + (size_t)head * n.w_stride) : NULL;
#pragma unroll
    for (int i = 0; i < V; i++) {
        v[i] = i * 32 + lane < fours ? x[i * 32 + lane] : make_float4(0.f, 0.f, 0.f, 0.f);
        sum += norm_part(n.layer, v[i]);
    }
    sum = warp_sum(sum);
    if (n.layer) {
        mean = sum / (float)n.cols;
        sum = 0.f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
            if (i * 32 + lane < fours) sum += norm_part(false, v[i]);
        }
        sum = warp_sum(sum);
    }
    float s = 1.f / sqrtf(sum / (float)n.cols + n.eps);
#pragma unroll
    for (int i = 0; i < V; i++)
        if (i * 32 + lane < fours) out[i * 32 + lane] = norm_end(v[i], s, w, b, i * 32 + lane);
}

/* Any length and alignment. */
static __global__ void __launch_bounds__(MAX_THREADS) norm_any(const norm_dev n)
{
    __shared__ float part[32];
    int row = blockIdx.x / n.heads, head = blockIdx.x % n.heads;
    const float *x = n.x + (size_t)row * n.x_stride + (size_t)head * n.cols;
    float *out = n.out + (size_t)row * n.out_stride + (size_t)head * n.cols;
    const float *w = n.w ? n.w + (size_t)head * n.w_stride : NULL,
                *b = n.b ? n.b + (size_t)head * n.w_stride : NULL;
    float sum = 0.f, mean = 0.f;

    cu_release_next();
    cu_wait_previous();
    if (n.layer) {
        for (int c = threadIdx.x; c < n.cols; c += blockDim.x) sum += x[c];
        mean = block_sum(sum, part) / (float)n.cols;
        sum = 0.f;
    }
    for (int c = threadIdx.x; c < n.cols; c += blockDim.x) sum += (x[c] - mean) * (x[c] - mean);
    float s = 1.f / sqrtf(block_sum(sum, part) / (float)n.cols + n.eps);
    for (int c = threadIdx.x; c < n.cols; c += blockDim.x)
        out[c] = (x[c] - mean) * s * (w ? w[c] : 1.f) + (b ? b[c] : 0.f);
}

/* Few rows: as many threads as a row has groups of four. Many rows: four groups for each thread. */
static void launch_norm(struct cuda *c, const struct norm_dev *n, const char *name)
{
    bool four = n->cols % 4 == 0 && cu_aligned16(n->x, n->x_stride) &&
                cu_aligned16(n->out, n->out_stride) && cu_aligned16(n->w, (size_t)n->w_stride) &&
                cu_aligned16(n->b, 0);
    long long blocks = (long long)n->rows * n->heads;
    int fours = (n->cols + 3) / 4, each = blocks > 4 * c->n_sm && fours >= 128 ? 4 : 1;
    int threads = (fours + each - 1) / each;

    if (blocks == 0 || n->cols == 0) return;
    if (four && n->cols <= 256) {
        dim3 grid((unsigned)((blocks + SHORT_THREADS / 32 - 1) / (SHORT_THREADS / 32)));
        if (n->cols <= 128) cu_launch(c, name, norm_short<1>, grid, dim3(SHORT_THREADS), 0, *n);
        else cu_launch(c, name, norm_short<2>, grid, dim3(SHORT_THREADS), 0, *n);
        return;
    }
    threads = (threads + 31) / 32 * 32;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    each = (fours + threads - 1) / threads;
    dim3 grid((unsigned)blocks), block(threads);
    if (four && each <= 1) cu_launch(c, name, norm_fours<1>, grid, block, 0, *n);
    else if (four && each <= 2) cu_launch(c, name, norm_fours<2>, grid, block, 0, *n);
    else if (four && each <= 4) cu_launch(c, name, norm_fours<4>, grid, block, 0, *n);
    else cu_launch(c, name, norm_any, grid, block, 0, *n);
}

void cu_norm_rows(struct cuda *c, const struct tensor *out, const struct tensor *x,
                  const struct cu_norm *norm)
{
    struct norm_dev n = {};

    n.out = (float *)out->data;
    n.x = (const float *)x->data;
    n.w = norm->w;
    n.b = norm->kind == CU_NORM_LAYER ? norm->b : NULL;
    n.out_stride = out->stride;
    n.x_stride = x->stride;
    n.rows = x->rows;
    n.heads = 1;
    n.cols = x->cols;
    n.eps = norm->eps;
    n.layer = norm->kind == CU_NORM_LAYER;
    launch_norm(c, &n, n.layer ? "layernorm" : "rmsnorm");
}

/* In place. w_stride 0: one weight for all heads. */
void cu_headnorm(struct cuda *c, const struct tensor *x, int n_heads, int head_dim,
                 const struct cu_norm *norm, int w_stride)
{
    struct norm_dev n = {};

    n.out = (float *)x->data;
    n.x = (const float *)x->data;
    n.w = norm->w;
    n.b = norm->kind == CU_NORM_LAYER ? norm->b : NULL;
    n.out_stride = n.x_stride = x->stride;
    n.rows = x->rows;
    n.heads = n_heads;
    n.cols = head_dim;
    n.w_stride = w_stride;
    n.eps = norm->eps;
    n.layer = norm->kind == CU_NORM_LAYER;
    launch_norm(c, &n, "headnorm");
}
