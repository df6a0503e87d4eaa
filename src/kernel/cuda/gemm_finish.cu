/* gemm_finish.cu - adds the partial sums that the blocks of a packed GEMM left of each tile, and
 * writes the result.
 *
 * The sums are always added in the order of columns, so results do not depend on timing. Bias,
 * scale, addition and act(gate) * up are applied here. */
#include "kernel/cuda/cu_gemm.cuh"

/* The block that has unit u. Block b starts at unit b * units / blocks. */
__device__ __forceinline__ int block_of(int64_t u, int64_t units, int blocks)
{
    return (int)(((u + 1) * blocks - 1) / units);
}

/* Four numbers of a tile: position `place` of the partial sums of all blocks that have some of
 * it. */
__device__ __forceinline__ float4 sum_of(const struct finish_args &p, int tile, int place)
{
    int64_t units = (int64_t)p.row_tiles * p.token_tiles * p.units, u = (int64_t)tile * p.units;
    int b0 = block_of(u, units, p.blocks), b1 = block_of(u + p.units - 1, units, p.blocks);
    size_t step = (size_t)p.shape.threads * p.shape.ms * p.nt / 8;
    const float4 *at = (const float4 *)p.part + (size_t)(b0 + tile) * step + place;
    float4 v = make_float4(0, 0, 0, 0);

#pragma unroll 4
    for (int b = b0; b <= b1; b++, at += step) {
        float4 w = __ldcg(at);
        v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
    }
    return v;
}

__device__ __forceinline__ float one(const struct finish_job &j, float v, int r)
{
    return v * j.scale + (j.bias ? j.bias[r] : 0);
}

/* Four numbers of a tile: rows g and g + 8 of two tokens. act: the tile is gate's, and up's is
 * found from it. */
__device__ __forceinline__ void finish_place(const struct finish_args &p, int tile, int place)
{
    int row_tile = tile / p.token_tiles, k = 0, ms = p.shape.ms;
    int thread = place % p.shape.threads, piece = place / p.shape.threads, warp = thread / 32,
        lane = thread % 32;

    while (p.act < 0 && k + 1 < p.n_jobs && row_tile >= p.job[k + 1].tile0) k++;
    const struct finish_job &j = p.job[k];
    int chunks = (j.rows + 63) / 64;
    float4 v = sum_of(p, tile, place), u = v;
    if (p.act >= 0 && p.n_jobs == 2) u = sum_of(p, tile + p.job[1].tile0 * p.token_tiles, place);

    float lo[2][2] = { { v.x, v.y }, { v.z, v.w } }, up[2][2] = { { u.x, u.y }, { u.z, u.w } };
    int t0 = tile % p.token_tiles * p.nt + piece % (p.nt / 8) * 8 + lane % 4 * 2;
    int r0 = j.r0 + (row_tile - j.tile0) * (p.shape.threads / 2 * ms) +
             (warp / 4 * ms + piece / (p.nt / 8)) * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = r0 + i / 2 * 8, t = t0 + i % 2;
        float y = 0;
        if (r < j.rows && t < p.tokens) {
            float *out = j.out + (size_t)t * j.stride + r;
            y = one(j, lo[i / 2][i % 2], r);
            if (p.act >= 0) y = act_of((enum act)p.act, y);
            if (p.act >= 0 && p.n_jobs == 2) y *= one(p.job[1], up[i / 2][i % 2], r);
            if (j.add) y += *out;
            *out = y;
        }
        if (p.xh && t < p.tokens && r / 64 < chunks)
            p.xh[swizzled_at(t, r, p.nt, chunks)] = half_sat(y);
    }
}
static __global__ void __launch_bounds__(GEMM_THREADS)
    finish_kernel(const __grid_constant__ struct finish_args p)
{
    cu_release_next();
    cu_wait_previous();
    finish_place(p, blockIdx.x, blockIdx.y * GEMM_THREADS + threadIdx.x);
    if (p.xh) gemm_fence_async();
}

void gemm_finish(struct cuda *c, const struct finish_args *p)
{
    int tiles = p->row_tiles * p->token_tiles, places = p->shape.threads * p->shape.ms * p->nt / 8;

    if (p->act >= 0 && p->n_jobs == 2) tiles /= 2;
    gemm_launch_small<finish_kernel>(c, "gemm finish", dim3(tiles, places / GEMM_THREADS),
                                     dim3(GEMM_THREADS), *p);
}
