/* moe_wide.cuh - experts' matrix products for sorted choices, NT at a time, through shared memory
 * (wide).
 *
 * A weight is unpacked once for NT tokens, and that takes longer than multiplying it with 64 of them;
 * so NT is as large as the experts' numbers of choices allow: 16, 32, 64 or 128.
 *
 * A block has 8 warps and 128 rows of gate and of up, or 256 rows of one weight; a warp has 16 rows
 * of each half. Chunks of 64 columns of weights and x pass through 3 to 8 stages in shared memory.
 * All token groups of a block are one sequence of chunks, so that the first chunks of the next
 * tokens are in flight while the last results are written. gemm_w.cuh reads the weights. */
#ifndef TERN_KERNEL_CUDA_MOE_WIDE_CUH
#define TERN_KERNEL_CUDA_MOE_WIDE_CUH

#include "kernel/cuda/moe_run.cuh"

#define MOE_HALF 128 /* rows of each half of a block */
#define MOE_PASS 16  /* tokens that are written at once */

template <class W, int NT> struct moe_stage {
    static constexpr int PIECE = W::template BYTES<MOE_HALF>,
                         WEIGHTS = (2 * PIECE + 1023) / 1024 * 1024;
    static constexpr int BYTES = WEIGHTS + NT * 128, TILES = NT / 8;
    /* Shared memory for results on their way out. */
    static constexpr int OUT = GEMM_THREADS / 32 * MOE_PASS * MOE_LINE * 4;
};

/* The work of a block: choices [begin, begin + n) of an expert, of which it takes every splits-th
 * group of NT. */
struct moe_work {
    struct packed_job job[2];
    int begin, n, split, n_chunks, n_all;
};

__device__ __forceinline__ struct moe_work moe_work_of(const struct moe_args &a, int nt)
{
    struct moe_work w;
    int e = a.e0 + (int)blockIdx.y, row_tile = (int)blockIdx.x / a.splits, tiles;

    w.begin = a.first[e];
    w.n = a.first[e + 1] - w.begin;
    w.split = (int)blockIdx.x % a.splits;
    w.n_chunks = (a.cols + GEMM_CHUNK - 1) / GEMM_CHUNK;
    tiles = (w.n + nt - 1) / nt;
    w.n_all = tiles > w.split ? (tiles - w.split + a.splits - 1) / a.splits * w.n_chunks : 0;
    for (int i = 0; i < 2; i++) {
        int of = a.pair ? i : 0;
        w.job[i] = { a.w[of] + (size_t)blockIdx.y * a.step[of],
                     a.rows,
                     a.cols,
                     0,
                     a.pair ? row_tile * MOE_HALF : (2 * row_tile + i) * MOE_HALF,
                     false };
    }
    return w;
}

/* The position of the copies. Each thread copies the same tokens of every chunk. */
template <class W, int NT> struct moe_ahead {
    using S = moe_stage<W, NT>;
    static constexpr int EACH = (NT * 8 + GEMM_THREADS - 1) / GEMM_THREADS;
    int i, chunk, tile;
    const uint8_t *from[EACH]; /* NULL: no such token */

    __device__ __forceinline__ void enter(const struct moe_args &a, const struct moe_work &w)
    {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int tok = (k * GEMM_THREADS + threadIdx.x) / 8,
                pos = (w.split + tile * a.splits) * NT + tok;
            from[k] = NULL;
            if (tok >= NT || pos >= w.n) continue;
            int row = a.sorted ? a.sorted[w.begin + pos] / a.x_each : w.begin + pos;
            from[k] = (const uint8_t *)a.x + ((size_t)row * a.x_stride + threadIdx.x % 8 * 8) * 2;
        }
    }
    __device__ __forceinline__ void load(const struct moe_args &a, const struct moe_work &w,
                                         uint32_t to)
    {
        if (i >= w.n_all) return;
        if (chunk == 0) enter(a, w);
#pragma unroll
        for (int h = 0; h < 2; h++)
            W::template load<MOE_HALF>(to + h * S::PIECE, w.job[h], w.job[h].r0, chunk,
                                       chunk % W::HEAD == 0);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int tok = (k * GEMM_THREADS + threadIdx.x) / 8;
            if (tok < NT)
                copy16(to + S::WEIGHTS + tok * 128 + (threadIdx.x % 8 ^ tok % 8) * 16,
                       from[k] ? from[k] + chunk * 128 : (const uint8_t *)a.x, from[k] ? 16 : 0);
        }
        i++;
        if (++chunk == w.n_chunks) chunk = 0, tile++;
    }
};

/* One chunk of both halves: unpacked while the tensor cores work on the half before. */
template <class W, int NT>
__device__ __forceinline__ void moe_chunk(float (&d)[2][NT / 8][4], uint32_t (&a)[2][4][4],
                                          typename W::head (&head)[2], const uint8_t *w, uint32_t x,
                                          int chunk)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    typename W::raw raw;

#pragma unroll
    for (int h = 0; h < 2; h++, w += moe_stage<W, NT>::PIECE) {
        if (chunk % W::HEAD == 0) W::template open<MOE_HALF>(&head[h], w, warp, lane);
        W::template fetch<MOE_HALF>(&raw, w, warp, lane);
#pragma unroll
        for (int i = 0; i < 2; i++) W::expand(a[h] + 2 * i, raw, head[h], i, chunk);
        mma_begin();
#pragma unroll
        for (int s = 0; s < 4; s++) mma_step<NT>(d[h], a[h][s], x, s, chunk || s);
        mma_commit();
        mma_wait<1>();
    }
}

/* Writes the sums of NT tokens from choice `at` on, of which n exist. */
template <int NT>
__device__ __forceinline__ void moe_write(const struct moe_args &a, const struct moe_work &w,
                                          float *mine, float (&d)[2][NT / 8][4], int at, int n)
{
    int r = threadIdx.x / 32 * TILE_ROWS;

#pragma unroll
    for (int p = 0; p < NT / MOE_PASS; p++) {
        if (p * MOE_PASS >= n) break;
        moe_stash<MOE_PASS / 8>(mine, &d[0][p * MOE_PASS / 8], &d[1][p * MOE_PASS / 8]);
        moe_emit(a, mine, a.e0 + (int)blockIdx.y, at + p * MOE_PASS,
                 min(MOE_PASS, n - p * MOE_PASS), w.job[0].r0 + r, w.job[1].r0 + r);
    }
}

template <class W, int NT>
static __global__ void __launch_bounds__(GEMM_THREADS, NT <= 32 ? 2 : 1)
    moe_wide(const __grid_constant__ struct moe_args a, int stages)
{
    using S = moe_stage<W, NT>;
    extern __shared__ uint8_t smem[];
    uint32_t start = smem_at(smem), base = (start + 1023) / 1024 * 1024,
             end = base + stages * S::BYTES;
    float *mine = (float *)(smem + (end - start)) + threadIdx.x / 32 * MOE_PASS * MOE_LINE;
    float d[2][NT / 8][4];
    uint32_t frag[2][4][4];
    typename W::head head[2];
    struct moe_ahead<W, NT> ahead = {
    };

    cu_release_next();
    cu_wait_previous();
    struct moe_work w = moe_work_of(a, NT);
    if (w.n_all == 0) return;
    for (int i = 0; i < stages - 2; i++) {
        ahead.load(a, w, base + i * S::BYTES);
        copy_commit();
    }
    uint32_t from = base, to = base + (stages - 2) * S::BYTES;
    /* stages - 2 chunks are in flight; one barrier for each chunk. */
    for (int i = 0, chunk = 0, tile = 0; i < w.n_all; i++) {
        copy_wait(stages - 3);
        copy_fence();
        __syncthreads();
        ahead.load(a, w, to);
        copy_commit();
        moe_chunk<W, NT>(d, frag, head, smem + (from - start), from + S::WEIGHTS, chunk);
        if (++chunk == w.n_chunks) {
            int at = (w.split + tile++ * a.splits) * NT;
            mma_wait<0>();
            moe_write<NT>(a, w, mine, d, w.begin + at, min(NT, w.n - at));
            chunk = 0;
        }
        from = from + S::BYTES == end ? base : from + S::BYTES;
        to = to + S::BYTES == end ? base : to + S::BYTES;
    }
}

/* Few tokens: two blocks on an SM if they fit, otherwise one; at least three stages. */
template <class W, int NT>
static bool moe_wide_of(struct cuda *c, const char *name, const struct moe_args *a)
{
    using S = moe_stage<W, NT>;
    static bool raised[64]; /* by device */
    int room = (int)c->smem_max - 1024 - S::OUT, half = (int)c->smem_max / 2 - 2048 - S::OUT;
    int stages = NT <= 32 && half / S::BYTES >= 3 ? half / S::BYTES : room / S::BYTES;
    int items =
        (a->kind == MOE_F32 ? a->rows : a->out_pad) + (a->pair ? MOE_HALF : 2 * MOE_HALF) - 1;

    if (stages < 3) return false;
    if (stages > 8) stages = 8;
    if (!raised[c->device & 63]) {
        if (cu_check(c,
                     cudaFuncSetAttribute(moe_wide<W, NT>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)c->smem_max),
                     name) != OK)
            return true;
        raised[c->device & 63] = true;
    }
    items /= a->pair ? MOE_HALF : 2 * MOE_HALF;
    cu_launch(c, name, moe_wide<W, NT>, dim3(items * a->splits, a->e1 - a->e0), dim3(GEMM_THREADS),
              1024 + stages * S::BYTES + S::OUT, *a, stages);
    return true;
}

template <class W>
static bool moe_wide_run(struct cuda *c, const char *name, const struct moe_args *a, int nt)
{
    switch (nt) {
    case 16: return moe_wide_of<W, 16>(c, name, a);
    case 32: return moe_wide_of<W, 32>(c, name, a);
    case 64: return moe_wide_of<W, 64>(c, name, a);
    default: return moe_wide_of<W, 128>(c, name, a);
    }
}
#endif
