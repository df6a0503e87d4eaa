/* gemm_packed.cuh - the packed GEMM: weights are read as they are stored and dequantized on the way
 * to the tensor cores. For compute capability 8.x, and on Hopper for plain weights.
 *
 * The work is divided into tiles (M = 256 rows by up to 64 tokens, or 128 rows by 128 or 256
 * tokens) and these into chunks of 64 columns. All chunks in order are divided evenly among the
 * blocks (stream-K), so a block may start and end inside a tile. Its partial sums of a tile go to
 * `part`, slot block + tile, which no two blocks share, in the order of its registers;
 * gemm_finish.cu adds them.
 *
 * A block has 8 warps; all of them copy and multiply. Chunks pass through a pipeline of 3 to 8
 * stages in shared memory (cp.async), each with the weights' bytes and the activations of one
 * chunk. Each layout of weights is a type W (gemm_w.cuh). */
#ifndef TERN_KERNEL_CUDA_GEMM_PACKED_CUH
#define TERN_KERNEL_CUDA_GEMM_PACKED_CUH

#include "kernel/cuda/cu_gemm.cuh"
#include "kernel/cuda/gemm_mma.cuh"

/* A block's position: a tile and a chunk of it. */
struct packed_pos {
    int tile, chunk;
};

__device__ __forceinline__ void packed_advance(struct packed_pos *a, int n_chunks)
{
    if (++a->chunk == n_chunks) a->chunk = 0, a->tile++;
}

/* The job that a row tile belongs to. */
__device__ __forceinline__ int packed_find_job(const struct packed_args &p, int row_tile)
{
    int j = 0;
    while (j + 1 < p.n_jobs && row_tile >= p.job[j + 1].tile0) j++;
    return j;
}

/* Starts the copies of a chunk's weights. first: the block's first chunk, whose head is needed. */
template <class W, int M>
__device__ __forceinline__ void packed_load_w(const struct packed_args &p, struct packed_pos a,
                                              uint32_t to, bool first)
{
    int row_tile = a.tile / p.token_tiles;
    const struct packed_job &j = p.job[packed_find_job(p, row_tile)];
    W::template load<M>(to, j, j.r0 + (row_tile - j.tile0) * M, a.chunk,
                        first || a.chunk % W::HEAD == 0);
}

template <int NT>
__device__ __forceinline__ void packed_load_x(const struct packed_args &p, struct packed_pos a,
                                              uint32_t to)
{
    const __half *x = p.x + ((size_t)(a.tile % p.token_tiles) * p.n_chunks + a.chunk) * NT * 64;
#pragma unroll
    for (int i = threadIdx.x; i < NT * 8; i += GEMM_THREADS) copy16(to + i * 16, x + i * 8, 16);
}

/* Registers to memory in the order that gemm_finish.cu reads: coalesced 16-byte stores. */
template <int MS, int NT, int THREADS>
__device__ __forceinline__ void packed_store(float (&d)[MS][NT / 8][4], float *to)
{
    float4 *at = (float4 *)to + threadIdx.x;
#pragma unroll
    for (int m = 0; m < MS; m++)
#pragma unroll
        for (int j = 0; j < NT / 8; j++, at += THREADS)
            *at = make_float4(d[m][j][0], d[m][j][1], d[m][j][2], d[m][j][3]);
}

/* One chunk. Fragments are unpacked while the tensor cores work on the ones before: two register
 * sets alternate. Where a warp has two times 16 rows (MS 2) a set is 64 columns of 16 rows,
 * otherwise 32 columns. */
template <class W, int MS, int NT>
__device__ __forceinline__ void packed_chunk(float (&d)[MS][NT / 8][4], uint32_t (&a)[2][2 * MS][4],
                                             typename W::head (&head)[MS], const uint8_t *w,
                                             uint32_t x, int chunk, bool first, bool add)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    typename W::raw raw;

#pragma unroll
    for (int set = 0; set < 2; set++) {
        int m = MS == 2 ? set : 0, tile = (warp / 4 * MS + m) * 4 + warp % 4;
        if (first && (MS == 2 || set == 0)) W::template open<128 * MS>(&head[m], w, tile, lane);
        if (MS == 2 || set == 0) W::template fetch<128 * MS>(&raw, w, tile, lane);
#pragma unroll
        for (int i = 0; i < MS; i++)
            W::expand(a[set] + 2 * i, raw, head[m], MS == 2 ? i : set, chunk);
        mma_begin();
#pragma unroll
        for (int s = 0; s < 2 * MS; s++)
            mma_step<NT>(d[m], a[set][s], x, MS == 2 ? s : set * 2 + s,
                         add || s || (MS == 1 && set));
        mma_commit();
        mma_wait<1>();
    }
}

template <class W, int NT> __device__ __forceinline__ void packed_body(const struct packed_args &p)
{
    constexpr int MS = NT <= 64 ? 2 : 1, M = 128 * MS;
    constexpr int W_BYTES = (W::template BYTES<M> + 1023) / 1024 * 1024, STAGE = W_BYTES + NT * 128;
    extern __shared__ uint8_t smem[];
    uint32_t start = smem_at(smem), base = (start + 1023) / 1024 * 1024;
    int64_t units = (int64_t)p.row_tiles * p.token_tiles * p.n_chunks;
    int u0 = (int)(units * blockIdx.x / gridDim.x),
        n = (int)(units * (blockIdx.x + 1) / gridDim.x) - u0;
    struct packed_pos at = { u0 / p.n_chunks, u0 % p.n_chunks }, ahead = at;
    int first = min(n, p.stages - 2);
    float d[MS][NT / 8][4];
    uint32_t a[2][2 * MS][4];
    typename W::head head[MS];
    bool add = false;

    cu_release_next();
    /* Weights of the first stages are requested before the kernel before this one has ended, x
     * after. */
    if (p.w_converted) cu_wait_previous();
    for (int i = 0; i < first; i++, packed_advance(&ahead, p.n_chunks))
        packed_load_w<W, M>(p, ahead, base + i * STAGE, i == 0);
    cu_wait_previous();
    ahead = at;
    for (int i = 0; i < p.stages - 2; i++) {
        if (i < n) {
            packed_load_x<NT>(p, ahead, base + i * STAGE + W_BYTES);
            packed_advance(&ahead, p.n_chunks);
        }
        copy_commit();
    }
    uint32_t from = base, to = base + (p.stages - 2) * STAGE, end = base + p.stages * STAGE;
    for (int i = 0; i < n; i++) {
        copy_wait(p.stages - 3);
        copy_fence();
        __syncthreads();
        if (i + p.stages - 2 < n) {
            packed_load_w<W, M>(p, ahead, to, false);
            packed_load_x<NT>(p, ahead, to + W_BYTES);
            packed_advance(&ahead, p.n_chunks);
        }
        copy_commit();
        packed_chunk<W, MS, NT>(d, a, head, smem + (from - start), from + W_BYTES, at.chunk,
                                i == 0 || at.chunk % W::HEAD == 0, add);
        add = true;
        if (at.chunk == p.n_chunks - 1 || i == n - 1) {
            mma_wait<0>();
            packed_store<MS, NT, GEMM_THREADS>(d, p.part + (size_t)(blockIdx.x + at.tile) * M * NT);
            add = false;
        }
        packed_advance(&at, p.n_chunks);
        from = from + STAGE == end ? base : from + STAGE;
        to = to + STAGE == end ? base : to + STAGE;
    }
    mma_wait<0>();
}

/* Empty where Hopper has a kernel of its own. */
template <class W, int NT>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    packed_kernel(const __grid_constant__ struct packed_args p)
{
    if constexpr (!GEMM_WGMMA || !W::TILES) packed_body<W, NT>(p);
}

/* As packed_launch. At least three stages must fit into shared memory. */
template <class W, int NT>
static int packed_launch_mma(struct cuda *c, const char *name, int blocks,
                             const struct packed_args *m)
{
    constexpr int M = NT <= 64 ? 256 : 128;
    constexpr int STAGE = (W::template BYTES<M> + 1023) / 1024 * 1024 + NT * 128;
    static bool raised[64]; /* by device */
    struct packed_args p;
    int stages = ((int)c->smem_max - 1024) / STAGE;

    if (stages < 3) return 0;
    if (!m) return GEMM_CHUNK;
    p = *m;
    p.stages = stages < 8 ? stages : 8;
    if (!raised[c->device & 63]) {
        if (cu_check(c,
                     cudaFuncSetAttribute(packed_kernel<W, NT>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)c->smem_max),
                     name) != OK)
            return 0;
        raised[c->device & 63] = true;
    }
    cu_launch(c, name, packed_kernel<W, NT>, dim3(blocks), dim3(GEMM_THREADS),
              1024 + p.stages * STAGE, p);
    return GEMM_CHUNK;
}
#endif
