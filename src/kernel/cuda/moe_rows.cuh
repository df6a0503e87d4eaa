/* moe_rows.cuh - mixture of experts, besides the matrix products: sorting choices by expert, x in the
 * orders that the products need, and the sum over a token's choices. Part of cu_moe.cu. */
#ifndef TERN_KERNEL_CUDA_MOE_ROWS_CUH
#define TERN_KERNEL_CUDA_MOE_ROWS_CUH

#include "kernel/cuda/cu_gemm.cuh"
#include "kernel/cuda/cu_moe.cuh"
#include "kernel/cuda/matvec_one_x.cuh"

#define SORT_THREADS 1024
#define SUM_THREADS 256

static_assert(MOE_MAX_EXPERTS <= SORT_THREADS, "an expert a thread");
static_assert(MOE_UNIT == ONE_UNIT && MOE_UNIT_BYTES == one_tiles<DT_Q4_K>::X_UNIT,
              "one form of x");

/* ---- sorting choices ---- */

/* first [n + 1]: the first sorted choice of each expert; place [n_choices]: the position of each
 * choice; sorted [n_choices]: the choice at each position. */
struct sort_args {
    const int32_t *ids;
    int32_t *first, *place, *sorted;
    int32_t *tiles; /* [n + 1]: the first tile of `tile` choices of each expert; NULL: not wanted */
    int n, n_choices, tile;
};

/* The inclusive prefix sum of v over the block. */
static __device__ __forceinline__ int prefix_sum(int v, int *part)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    for (int m = 1; m < 32; m *= 2) {
        int u = __shfl_up_sync(~0u, v, m);
        if (lane >= m) v += u;
    }
    if (lane == 31) part[warp] = v;
    __syncthreads();
    for (int i = 0; i < warp; i++) v += part[i];
    return v;
}

/* A counting sort by one block: counts of each expert, their prefix sums, then positions. Experts
 * that return their input come last, and no kernel looks at their choices. The order
 * within an expert varies; every choice has its own row of results, and the sum goes by token. */
static __global__ void __launch_bounds__(SORT_THREADS) moe_sort(const sort_args a)
{
    __shared__ int next[SORT_THREADS], part[SORT_THREADS / 32];
    int i = threadIdx.x;

    cu_release_next();
    next[i] = 0;
    __syncthreads();
    cu_wait_previous();
    for (int c = i; c < a.n_choices; c += SORT_THREADS) atomicAdd(&next[a.ids[c]], 1);
    __syncthreads();
    int mine = next[i], end = prefix_sum(mine, part);
    next[i] = end - mine;
    if (i == 0) a.first[0] = 0;
    if (i < a.n) a.first[i + 1] = end;
    __syncthreads();
    if (a.tiles) {
        end = prefix_sum(i < a.n ? (mine + a.tile - 1) / a.tile : 0, part);
        if (i == 0) a.tiles[0] = 0;
        if (i < a.n) a.tiles[i + 1] = end;
    }
    for (int c = i; c < a.n_choices; c += SORT_THREADS) {
        int p = atomicAdd(&next[a.ids[c]], 1);
        a.place[c] = p;
        a.sorted[p] = c;
    }
}

/* ---- x as F16 ---- */

static __device__ __forceinline__ uint32_t two_halves(float x, float y)
{
    __half2 h = __halves2half2(half_sat(x), half_sat(y));
    return *(uint32_t *)&h;
}

struct half_args {
    __half *out;
    const float *x;
    size_t x_stride;
    int cols, pad;
    enum moe_order order;
};

/* Grid: tokens, columns. */
static __global__ void __launch_bounds__(SUM_THREADS) moe_half(const half_args a)
{
    cu_release_next();
    cu_wait_previous();
    int c = blockIdx.y * SUM_THREADS + threadIdx.x, row = blockIdx.x;
    if (c >= a.pad) return;
    float v = c < a.cols ? a.x[row * a.x_stride + c] : 0.f;
    a.out[(size_t)row * a.pad + moe_place(a.order, c)] = half_sat(v);
}

/* The same as units of 16-bit integers: a unit for each warp. out: bytes. Grid: tokens, units. */
static __global__ void __launch_bounds__(32) moe_int16(const half_args a)
{
    int lane = threadIdx.x, u = blockIdx.y, c = u * ONE_UNIT + (lane >> 2) * 32 + (lane & 3) * 4;
    uint32_t top[2] = {};
    float f[8];

    cu_release_next();
    cu_wait_previous();
    const float *x = a.x + blockIdx.x * a.x_stride;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = c + i % 4 + i / 4 * 16;
        f[i] = at < a.cols ? x[at] : 0.f;
        top[i / 4] = max(top[i / 4], __float_as_uint(f[i]) & 0x7fffffff);
    }
#pragma unroll
    for (int m = 1; m < 4; m <<= 1)
#pragma unroll
        for (int h = 0; h < 2; h++) top[h] = max(top[h], __shfl_xor_sync(~0u, top[h], m));
    one_store<one_tiles<DT_Q4_K>>(
        (uint8_t *)a.out + ((size_t)blockIdx.x * gridDim.y + u) * MOE_UNIT_BYTES, f, top, lane);
}

struct gather_args {
    __half *out;
    const float *x;
    size_t x_stride;
    const int32_t *ids, *place, *first;
    int cols, n_used, n;
};

/* A token's x to its sorted choices. Every 64 columns are swizzled as in cu_gemm.cuh, by the place
 * among the expert's choices. Grid: tokens. */
static __global__ void __launch_bounds__(SUM_THREADS) moe_gather(const gather_args a)
{
    __shared__ int to[MOE_MAX_USED], in[MOE_MAX_USED];
    int row = blockIdx.x, k = threadIdx.x;

    cu_release_next();
    cu_wait_previous();
    if (k < a.n_used) {
        int i = row * a.n_used + k, e = a.ids[i];
        to[k] = e < a.n ? a.place[i] : -1;
        in[k] = e < a.n ? a.place[i] - a.first[e] & 7 : 0;
    }
    __syncthreads();
    for (int c = 8 * threadIdx.x; c < a.cols; c += 8 * SUM_THREADS) {
        const float4 *x = (const float4 *)(a.x + (size_t)row * a.x_stride + c);
        float4 u = x[0], v = x[1];
        uint2 lo = make_uint2(two_halves(u.x, u.y), two_halves(v.x, v.y)),
              hi = make_uint2(two_halves(u.z, u.w), two_halves(v.z, v.w));
        for (int j = 0; j < a.n_used; j++) {
            if (to[j] < 0) continue;
            __half *out = a.out + (size_t)to[j] * a.cols + c / 64 * 64;
            *(uint2 *)(out + swizzled_at(in[j], c % 64, 8, 1) - in[j] * 64) = lo;
            *(uint2 *)(out + swizzled_at(in[j], c % 64 + 2, 8, 1) - in[j] * 64) = hi;
        }
    }
    gemm_fence_async();
}

/* ---- the sum over a token's choices ---- */

struct sum_args {
    float *out;
    const float *y, *weights; /* weights NULL: all 1 */
    const int32_t *place;     /* position of each choice; NULL: not sorted */
    const float *x;           /* experts from n on return their input */
    const int32_t *ids;
    size_t out_stride, y_stride, x_stride;
    int cols, n_used, n;
    float scale;
    bool add;
};

static __device__ __forceinline__ float4 add_times(float4 s, float by, float4 v)
{
    return make_float4(s.x + by * v.x, s.y + by * v.y, s.z + by * v.z, s.w + by * v.w);
}
static __device__ __forceinline__ float add_times(float s, float by, float v) { return s + by * v; }

/* In the order of a token's choices, so results do not vary. V: float, or float4 for four columns at
 * a time. Grid: tokens, columns. */
template <class V> static __global__ void __launch_bounds__(SUM_THREADS) moe_sum(const sum_args a)
{
    int c = (blockIdx.y * SUM_THREADS + threadIdx.x) * (int)(sizeof(V) / 4), row = blockIdx.x;

    cu_release_next();
    cu_wait_previous();
    if (c >= a.cols) return;
    V *out = (V *)(a.out + row * a.out_stride + c), sum = {};
    if (a.add) sum = *out;
#pragma unroll 8
    for (int k = 0; k < a.n_used; k++) {
        int i = row * a.n_used + k, at = a.place ? a.place[i] : i;
        float by = a.weights ? a.weights[i] * a.scale : a.scale;
        bool zero = a.x && a.ids[i] >= a.n;
        const float *from = zero ? a.x + row * a.x_stride : a.y + (size_t)at * a.y_stride;
        sum = add_times(sum, by, *(const V *)(from + c));
    }
    *out = sum;
}
#endif
