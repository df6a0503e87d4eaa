/* moe_one.cuh - experts' matrix products for one or two tokens as integers (one).
 *
 * The products of matvec_one.cuh, with weights directly from global memory: a choice has so few
 * units (256 columns of 16 rows) that nearly all of them are in flight at once, each in the
 * registers of a warp of its own. x and the hidden numbers are 16-bit integers in units of 256
 * columns (matvec_one_x.cuh); the blocks that compute the hidden numbers write them in that form. */
#ifndef TERN_KERNEL_CUDA_MOE_ONE_CUH
#define TERN_KERNEL_CUDA_MOE_ONE_CUH

#include "kernel/cuda/matvec_one.cuh"
#include "kernel/cuda/moe_run.cuh"

/* A lane has four sums of each of its two rows; all four lanes of a row get the total. */
__device__ __forceinline__ void moe_one_total(float (&s)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s[h] += __shfl_xor_sync(~0u, s[h], 1);
        s[h] += __shfl_xor_sync(~0u, s[h], 2);
    }
}

/* Tiles of unit u of a row that exist. */
template <class P> __device__ __forceinline__ int moe_one_count(int cols, int u)
{
    return P::TILES == 1 ? 1 : min(P::TILES, layout_blocks(P::TYPE, cols) - u * P::TILES);
}

/* The address of tile t of the matrix at w. */
template <class P>
__device__ __forceinline__ const uint8_t *moe_one_tile(const uint8_t *w, int rows, int cols, int t)
{
    return w + (size_t)min(t, (rows - 1) / TILE_ROWS) * layout_blocks(P::TYPE, cols) * P::BYTES;
}

/* Asks for this block's part of down's weights of expert e: they are in L2 when down is launched. */
__device__ __forceinline__ void moe_fetch_ahead(const struct moe_args &a, int e)
{
#if HAS_BULK
    if (!a.ahead || threadIdx.x) return;
    size_t each = (a.ahead_bytes / gridDim.x + 15) / 16 * 16, at = each * blockIdx.x;
    if (at >= a.ahead_bytes) return;
    if (each > a.ahead_bytes - at) each = a.ahead_bytes - at;
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.ahead + (size_t)e * a.ahead_step + at),
        "r"((uint32_t)each / 16 * 16)
        : "memory");
#endif
    (void)e;
}

/* Result y of row r, by the lanes of a half warp: rows of 16 consecutive numbers. on: this lane has
 * one. */
__device__ __forceinline__ void moe_one_store(const struct moe_args &a, int choice, int r, float y,
                                              bool on)
{
    if (a.kind == MOE_INT16) {
        bool in = on && r < a.out_pad;
        one_put_int16((uint8_t *)a.out + choice * a.out_stride, r < a.rows ? y : 0.f, in ? r : -1,
                      threadIdx.x & 31);
    } else if (on) {
        moe_store(a, choice, r, y);
    }
}

/* One choice: 16 rows of gate and of up, or 32 rows of one weight. The warps divide the columns.
 * The next kernel starts after the wait, so that it may read the choices before its own. Grid:
 * tiles, choices. */
template <class P>
static __global__ void __launch_bounds__(32 * MOE_WARPS, 3)
    moe_one(const __grid_constant__ struct moe_args a)
{
    __shared__ float part[MOE_WARPS][2 * TILE_ROWS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5,
        choice = blockIdx.y;
    int t0 = a.pair ? blockIdx.x : 2 * blockIdx.x, units = (a.cols + ONE_UNIT - 1) / ONE_UNIT;
    float s0[2] = {}, s1[2] = {};
    struct one_right right;

    one_right_open<P>(right, lane);
    cu_wait_previous();
    cu_release_next();
    int e = a.ids[choice];
    if (e < a.e0 || e >= a.e1) return;
    const uint8_t *x = (const uint8_t *)a.x + (size_t)(choice / a.x_each) * a.x_stride;
    const uint8_t *w = a.w[0] + (size_t)(e - a.e0) * a.step[0],
                  *v = a.pair ? a.w[1] + (size_t)(e - a.e0) * a.step[1] : w;
    const uint8_t *p0 = moe_one_tile<P>(w, a.rows, a.cols, t0),
                  *p1 = moe_one_tile<P>(v, a.rows, a.cols, a.pair ? t0 : t0 + 1);
#pragma unroll 1
    for (int u = warp; u < units; u += warps) {
        int n = moe_one_count<P>(a.cols, u);
        one_unit<P, true>(s0, p0 + (size_t)u * P::STAGE, n, right, x + u * P::X_UNIT, lane);
        one_unit<P, true>(s1, p1 + (size_t)u * P::STAGE, n, right, x + u * P::X_UNIT, lane);
    }
    moe_fetch_ahead(a, e);
    moe_one_total(s0);
    moe_one_total(s1);
    if ((lane & 3) == 0) {
        int g = lane >> 2;
        part[warp][g] = s0[0], part[warp][g + 8] = s0[1];
        part[warp][g + 16] = s1[0], part[warp][g + 24] = s1[1];
    }
    __syncthreads();
    if (warp > 0) return;
    float y = 0.f;
    for (int i = 0; i < warps; i++) y += part[i][lane];
    float up = __shfl_down_sync(~0u, y, 16);
    int r = t0 * TILE_ROWS + lane;
    y = a.pair ? moe_pair_of(a, e, choice, r, y, up) : moe_one_of(a, e, choice, r, y);
    moe_one_store(a, choice, r, y, !a.pair || lane < 16);
}

/* 16 rows of one token, summed over its choices; see moe_few_sum. The choices are known before the
 * kernel before this one ends. Grid: tiles, tokens. */
template <class P>
static __global__ void __launch_bounds__(32 * MOE_SUM_WARPS)
    moe_one_sum(const __grid_constant__ struct moe_args a,
                const __grid_constant__ struct moe_total s)
{
    __shared__ float part[MOE_SUM_WARPS][TILE_ROWS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, tok = blockIdx.y;
    int units = (a.cols + ONE_UNIT - 1) / ONE_UNIT,
        parts = max(1, min(units, MOE_SUM_WARPS / s.n_used));
    int p = warp % parts, end = units * (p + 1) / parts, r = blockIdx.x * TILE_ROWS + g;
    float y[2] = { 0.f, 0.f };
    struct one_right right;

    cu_release_next();
    one_right_open<P>(right, lane);
    cu_wait_previous();
    for (int k = warp / parts; k < s.n_used; k += MOE_SUM_WARPS / parts) {
        int choice = tok * s.n_used + k, e = a.ids[choice];
        float share = s.weights[choice] * s.scale, d[2] = { 0.f, 0.f };
        const uint8_t *x = (const uint8_t *)a.x + (size_t)choice * a.x_stride;
        const uint8_t *w =
            moe_one_tile<P>(a.w[0] + (size_t)e * a.step[0], a.rows, a.cols, blockIdx.x);
#pragma unroll 1
        for (int u = units * p / parts; u < end; u++)
            one_unit<P, true>(d, w + (size_t)u * P::STAGE, moe_one_count<P>(a.cols, u), right,
                              x + u * P::X_UNIT, lane);
        moe_one_total(d);
        for (int i = 0; i < 2; i++)
            y[i] += share * (p == 0 ? moe_biased(a, 0, e, r + 8 * i, d[i]) : d[i]);
    }
    if ((lane & 3) == 0) part[warp][g] = y[0], part[warp][g + 8] = y[1];
    __syncthreads();
    r = blockIdx.x * TILE_ROWS + threadIdx.x;
    if (threadIdx.x >= TILE_ROWS || r >= a.rows) return;
    float *out = s.out + (size_t)tok * s.out_stride + r, sum = s.add ? *out : 0.f;
#pragma unroll
    for (int i = 0; i < MOE_SUM_WARPS; i++) sum += part[i][threadIdx.x];
    *out = sum;
}
#endif
