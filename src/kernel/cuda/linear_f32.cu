/* linear_f32.cu - matrix products in F32 throughout (cu_linear_f32).
 *
 * Which experts are chosen can hang on the last digits of the logits, so the product that computes
 * them is done in F32, as are other products so small that F32 costs nothing.
 *
 * Such weights have few rows. A block that has all columns of some rows would leave most of the GPU
 * without work, so the warps of a block divide the columns (f32_split). Only with very many tokens
 * are there enough blocks of 64 by 64 results (f32_tile). */
#include "kernel/cuda/cu_layout.cuh"

#define TILE 64        /* f32_tile: tokens and rows of a block */
#define DEEP 16        /* f32_tile: columns at a time */
#define SPLIT 8        /* f32_split: warps of a block */
#define SPLIT_MAX 2048 /* tokens up to which f32_split is faster */

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

/* ---- columns divided among the warps ---- */

static __device__ __forceinline__ float4 four(const float *p) { return *(const float4 *)p; }
static __device__ __forceinline__ float4 four(const __half *p)
{
    uint2 v = *(const uint2 *)p;
    float2 a = __half22float2(*(__half2 *)&v.x), b = __half22float2(*(__half2 *)&v.y);
    return make_float4(a.x, a.y, b.x, b.y);
}
static __device__ __forceinline__ float4 four(const __nv_bfloat16 *p)
{
    uint2 v = *(const uint2 *)p;
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

/* Sums of N numbers over the lanes of a warp: lane l returns that of number l / (32 / N). Lanes
 * exchange halves of their numbers, so that each adds half as many in every round. */
template <int N> static __device__ __forceinline__ float sum_lanes(float (&v)[N])
{
    int lane = threadIdx.x & 31, m = 16;

#pragma unroll
    for (int n = N / 2; n > 0; n /= 2, m /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) {
            float mine = lane & m ? v[i + n] : v[i], other = lane & m ? v[i] : v[i + n];
            v[i] = mine + __shfl_xor_sync(~0u, other, m);
        }
    for (; m; m /= 2) v[0] += __shfl_xor_sync(~0u, v[0], m);
    return v[0];
}

/* A block has ROWS rows of TOKENS tokens. Weights are fetched before the wait for the previous
 * kernel. Grid: rows, tokens. */
template <typename E, int ROWS, int TOKENS>
static __global__ void __launch_bounds__(32 * SPLIT) f32_split(const __grid_constant__ f32_dev a)
{
    constexpr int N = ROWS * TOKENS;
    __shared__ float part[SPLIT][N];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r0 = blockIdx.x * ROWS,
        t0 = blockIdx.y * TOKENS, c = 4 * threadIdx.x;
    const E *w[ROWS];
    const float *x[TOKENS];
    float4 wv[ROWS];
    float sum[N] = {};

    cu_release_next();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        w[i] = (const E *)a.w + (size_t)min(r0 + i, a.rows - 1) * a.w_stride;
        wv[i] = c < a.cols ? four(w[i] + c) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) x[t] = a.x + (size_t)min(t0 + t, a.tokens - 1) * a.x_stride;
    cu_wait_previous();
    while (c < a.cols) {
        int next = c + 128 * SPLIT;
        float4 xv[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++) xv[t] = *(const float4 *)(x[t] + c);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float4 u = wv[i];
            if (next < a.cols) wv[i] = four(w[i] + next);
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                float *s = &sum[i * TOKENS + t];
                *s = fmaf(u.x, xv[t].x, *s);
                *s = fmaf(u.y, xv[t].y, *s);
                *s = fmaf(u.z, xv[t].z, *s);
                *s = fmaf(u.w, xv[t].w, *s);
            }
        }
        c = next;
    }
    float y = sum_lanes(sum);
    if (lane % (32 / N) == 0) part[warp][lane / (32 / N)] = y;
    __syncthreads();
    if (threadIdx.x >= N) return;
    int r = r0 + (int)threadIdx.x / TOKENS, tok = t0 + (int)threadIdx.x % TOKENS;
    y = 0.f;
#pragma unroll
    for (int i = 0; i < SPLIT; i++) y += part[i][threadIdx.x];
    if (r < a.rows && tok < a.tokens) f32_store(a, tok, r, y);
}

/* ---- any alignment, any number of tokens ---- */

/* A thread has four tokens by four rows. */
template <typename E> static __global__ void __launch_bounds__(256) f32_tile(const f32_dev a)
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

/* ---- launching ---- */

template <typename E, int ROWS, int TOKENS>
static void launch_split(struct cuda *c, const f32_dev &a)
{
    dim3 grid(cu_div_up(a.rows, ROWS), cu_div_up(a.tokens, TOKENS));

    cu_launch(c, "linear f32", f32_split<E, ROWS, TOKENS>, grid, dim3(32 * SPLIT), 0, a);
}

/* f32_split reads four numbers at a time. */
template <typename E> static bool can_split(const f32_dev &a)
{
    return a.cols % 4 == 0 && a.w_stride % 4 == 0 && (uintptr_t)a.w % (4 * sizeof(E)) == 0 &&
           cu_aligned16(a.x, a.x_stride) && a.tokens <= SPLIT_MAX;
}

template <typename E> static void f32_of(struct cuda *c, const f32_dev &a)
{
    dim3 tiles(cu_div_up(a.rows, TILE), cu_div_up(a.tokens, TILE));

    if (!can_split<E>(a)) cu_launch(c, "linear f32", f32_tile<E>, tiles, dim3(256), 0, a);
    else if (a.tokens == 1) launch_split<E, 1, 1>(c, a);
    else if (a.tokens <= 8) launch_split<E, 1, 8>(c, a);
    else launch_split<E, 4, 8>(c, a);
}

static void f32_one(struct cuda *c, const struct tensor *x, const struct linear *j)
{
    struct f32_dev a = {};

    a.x = (const float *)x->data;
    a.bias = j->bias;
    a.w = j->w->packed;
    a.out = (float *)j->out.data;
    a.x_stride = x->stride;
    a.w_stride = layout_stride(cu_type(j->w), j->w->cols);
    a.out_stride = j->out.stride;
    a.rows = j->w->rows;
    a.cols = j->w->cols;
    a.tokens = x->rows;
    a.scale = j->scale != 0 ? j->scale : 1;
    a.add = j->add;
    switch (layout_type(cu_type(j->w))) {
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
        if (layout_of(cu_type(p->jobs[i].w)).cols) return false;
    for (int i = 0; i < p->n_jobs; i++) f32_one(c, &p->x, &p->jobs[i]);
    return true;
}
