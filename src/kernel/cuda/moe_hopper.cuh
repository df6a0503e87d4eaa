/* moe_hopper.cuh - experts' matrix products for many sorted choices on Hopper (tiles).
 *
 * gemm_hopper.cuh's kernel with other tiles: a tile is NT choices of one expert by 128 rows of gate
 * and of up, or 256 rows of one weight. Rows of x are sorted by expert, and every 64 columns of a row
 * are swizzled by its place in its tile, so that bulk copies of 128 bytes take them to shared
 * memory; the last tile of an expert has fewer rows. Which expert a tile belongs to is known on the
 * device only: blocks take every gridDim-th tile until the last one. Hidden numbers are written in
 * the form of x. The activation is SiLU and there are no biases: one more case would be 128 times in
 * the code, as accumulators have fixed registers.
 *
 * With 128 choices a warp has the same rows of gate and of up. With fewer, unpacking takes longest:
 * four warpgroups do it, two for gate and two for up, whose results pass through shared memory. */
#ifndef TERN_KERNEL_CUDA_MOE_HOPPER_CUH
#define TERN_KERNEL_CUDA_MOE_HOPPER_CUH

#include "kernel/cuda/gemm_hopper.cuh"
#include "kernel/cuda/cu_moe.cuh"

struct moe_hopper_args {
    struct moe_args a;
    int n_w, n_x;         /* buffers */
    int units, row_tiles; /* units of a tile; tiles of an expert's rows */
};

#if GEMM_WGMMA
/* A tile: token tile `tt`, which is number `in` of expert e, and rows from r0 on. */
struct moe_tile {
    int i, tt, e, in, r0;
};
/* The tile that is i-th of all; false: there are no more. Tiles come in order, so that the expert
 * is found by going on from the last one. */
__device__ __forceinline__ bool moe_tile_at(const struct moe_hopper_args &p, struct moe_tile *t)
{
    const int32_t *tiles = p.a.tiles;

    t->tt = t->i / p.row_tiles;
    if (t->tt >= tiles[p.a.e1]) return false;
    while (tiles[t->e + 1] <= t->tt) t->e++;
    t->in = t->tt - tiles[t->e];
    t->r0 = t->i % p.row_tiles * (p.a.pair ? 128 : 256);
    return true;
}

/* Fetches unit u of a tile's weights: a whole warp calls it. Lane l has the l-th 16 rows in the order
 * of warps; with two 16s for each, of four warps the first ones and then the second ones. */
template <class W, int MS>
__device__ __forceinline__ void moe_fetch_unit(const struct moe_hopper_args &p,
                                               const struct moe_tile &t, int u, uint32_t to,
                                               uint32_t bar, int lane)
{
    constexpr int BYTES = W::template BYTES<16>;
    const struct moe_args &a = p.a;
    int of = !a.pair   ? 0
             : MS == 2 ? lane / 4 % 2
                       : lane / 8,
        row = !a.pair   ? lane
              : MS == 2 ? lane / 8 * 4 + lane % 4
                        : lane % 8,
        last = (a.rows + 15) / 16 - 1;

    if (lane == 0) bar_expect(bar, 16 * BYTES);
    __syncwarp();
    if (lane < 16)
        bulk_copy(to + lane * BYTES,
                  a.w[of] + (size_t)t.e * a.step[of] +
                      ((size_t)min(t.r0 / 16 + row, last) * p.units + u) * BYTES,
                  BYTES, bar);
}

template <class W, int MS>
__device__ __forceinline__ void moe_fetch_w(const struct moe_hopper_args &p, struct hopper_bars b,
                                            uint32_t ring_at, int stage, int lane)
{
    struct moe_tile t = { (int)blockIdx.x, 0, 0, 0, 0 };
    struct ring r = { 0, 1 };

    for (; moe_tile_at(p, &t); t.i += gridDim.x)
        for (int u = 0; u < p.units; u++, ring_next(&r, p.n_w)) {
            bar_wait(b.w_empty + r.at * 8, r.parity);
            moe_fetch_unit<W, MS>(p, t, u, ring_at + r.at * stage, b.w_full + r.at * 8, lane);
        }
}

/* A whole warp calls it: a lane copies 64 columns of every 32nd row. */
template <class W, int NT>
__device__ __forceinline__ void moe_fetch_x(const struct moe_hopper_args &p, struct hopper_bars b,
                                            uint32_t ring_at, int lane)
{
    struct moe_tile t = { (int)blockIdx.x, 0, 0, 0, 0 };
    struct ring r = { 0, 1 };
    int chunks = p.units * (W::COLS / 64);

    for (; moe_tile_at(p, &t); t.i += gridDim.x) {
        int begin = p.a.first[t.e] + t.in * NT, n = min(NT, p.a.first[t.e + 1] - begin);
        const __half *x = (const __half *)p.a.x + (size_t)(begin + lane) * chunks * 64;
        for (int q = 0; q < chunks; q++, ring_next(&r, p.n_x), x += 64) {
            uint32_t to = ring_at + r.at * NT * 128, full = b.x_full + r.at * 8;
            bar_wait(b.x_empty + r.at * 8, r.parity);
            if (lane == 0) bar_expect(full, n * 128);
            __syncwarp();
            for (int i = lane; i < n; i += 32)
                bulk_copy(to + i * 128, x + (size_t)(i - lane) * chunks * 64, 128, full);
        }
    }
}

__device__ __forceinline__ uint32_t pack_half2(float x, float y)
{
    __half2 h = __halves2half2(half_sat(x), half_sat(y));
    return *(uint32_t *)&h;
}

__device__ __forceinline__ float moe_silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

/* Hidden numbers of a tile, rows from `row` on, to swizzled rows. A lane has rows g and g + 8 of
 * tokens 2t and 2t + 1 of every 8; lanes of neighbouring rows exchange numbers, so that each writes
 * two of one token. */
template <int NT>
__device__ __forceinline__ void moe_write_hidden(const struct moe_args &a, int row,
                                                 const float (&gate)[NT / 8][4],
                                                 const float (&up)[NT / 8][4], int at, int n)
{
    int lane = threadIdx.x & 31, g = lane >> 2, odd = g & 1;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int even = row + g + 8 * h - odd, c = even % 64, place = c / 16 * 16 + layout_slot(c % 16);
        __half *out = (__half *)a.out + (size_t)at * a.out_pad + even / 64 * 64 + place % 8;
#pragma unroll
        for (int j = 0; j < NT / 8; j++) {
            int tok = 8 * j + 2 * (lane & 3) + odd;
            if (8 * j >= n) break;
            float v0 = moe_silu(gate[j][2 * h]) * up[j][2 * h];
            float v1 = moe_silu(gate[j][2 * h + 1]) * up[j][2 * h + 1];
            float other = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
            uint32_t two = odd ? pack_half2(other, v1) : pack_half2(v0, other);
            if (tok < n && even < a.out_pad)
                *(uint32_t *)(out + (size_t)tok * a.out_pad + ((place / 8) ^ (tok & 7)) * 8) = two;
        }
    }
}

/* Results of one weight, rows from `row` on, in F32, by sorted choice. */
template <int NT>
__device__ __forceinline__ void moe_write_plain(const struct moe_args &a, int row,
                                                const float (&d)[NT / 8][4], int at, int n)
{
    int lane = threadIdx.x & 31;

#pragma unroll
    for (int j = 0; j < NT / 8; j++) {
        if (8 * j >= n) break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int tok = 8 * j + 2 * (lane & 3) + i % 2, r = row + (lane >> 2) + i / 2 * 8;
            if (tok < n && r < a.rows)
                ((float *)a.out)[(size_t)(at + tok) * a.out_stride + r] = d[j][i];
        }
    }
}

/* A barrier of the consumers of four warpgroups. */
template <int ID> __device__ __forceinline__ void moe_meet(void)
{
    asm volatile("bar.sync %0, 512;" ::"n"(ID) : "memory");
}

/* Writes a tile's results. swap: shared memory for the results of up (four warpgroups). */
template <int NT>
__device__ __forceinline__ void moe_write_tile(const struct moe_hopper_args &p,
                                               const struct moe_tile &t,
                                               const struct hopper_warp<NT> &h, float *swap, int at,
                                               int n)
{
    constexpr int MS = hopper_shape<NT>::MS;
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31;

    if (!p.a.pair) {
#pragma unroll
        for (int m = 0; m < MS; m++)
            moe_write_plain<NT>(p.a, t.r0 + ((warp / 4 * MS + m) * 4 + warp % 4) * 16, h.d[m], at,
                                n);
    } else if constexpr (MS == 2) {
        moe_write_hidden<NT>(p.a, t.r0 + warp * 16, h.d[0], h.d[1], at, n);
    } else {
        float *mine = swap + warp % 8 * (NT / 8 * 4 * 32) + lane, up[NT / 8][4];
        if (warp >= 8)
#pragma unroll
            for (int i = 0; i < NT / 2; i++) mine[i * 32] = h.d[0][i / 4][i % 4];
        moe_meet<1>();
        if (warp < 8)
#pragma unroll
            for (int i = 0; i < NT / 2; i++) up[i / 4][i % 4] = mine[i * 32];
        moe_meet<2>();
        if (warp < 8) moe_write_hidden<NT>(p.a, t.r0 + warp * 16, h.d[0], up, at, n);
    }
}

template <class W, int NT>
__device__ __forceinline__ void moe_multiply_tiles(const struct moe_hopper_args &p,
                                                   struct hopper_bars b, const uint8_t *w_ring,
                                                   int stage, uint32_t x_ring, float *swap)
{
    struct moe_tile t = { (int)blockIdx.x, 0, 0, 0, 0 };
    struct ring rw = { 0, 0 };
    struct hopper_warp<NT> h;

    h.x = { 0, 0 };
    h.held = -1;
    for (; moe_tile_at(p, &t); t.i += gridDim.x) {
        int begin = p.a.first[t.e], n = p.a.first[t.e + 1] - begin - t.in * NT;
        h.add = false;
#pragma unroll 1
        for (int u = 0; u < p.units; u++, ring_next(&rw, p.n_w)) {
            bar_wait(b.w_full + rw.at * 8, rw.parity);
            hopper_unit<W, NT>(h, w_ring + rw.at * stage, b.w_empty + rw.at * 8, b, x_ring, p.n_x);
        }
        mma_wait<0>();
        if (h.held >= 0 && threadIdx.x % 32 == 0) bar_arrive(b.x_empty + h.held * 8);
        h.held = -1;
        moe_write_tile<NT>(p, t, h, swap, begin + t.in * NT, min(n, NT));
    }
    asm volatile("fence.proxy.async.global;" ::: "memory"); /* the next kernel copies by bulk */
}
#endif

template <class W, int NT>
static __global__ void __launch_bounds__(hopper_shape<NT>::THREADS, 1)
    moe_hopper(const __grid_constant__ struct moe_hopper_args p)
{
#if GEMM_WGMMA
    using S = hopper_shape<NT>;
    constexpr int STAGE = hopper_stage<W, W, S::M>::BYTES;
    extern __shared__ uint8_t smem[];
    uint32_t start = smem_at(smem), base = (start + 1023) / 1024 * 1024;
    struct hopper_bars b = { base, base + HOPPER_W * 8, base + HOPPER_W * 16,
                             base + HOPPER_W * 16 + HOPPER_X * 8 };
    uint32_t w_ring = base + 1024, x_ring = w_ring + p.n_w * STAGE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    cu_release_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.n_w; i++)
            bar_init(b.w_full + i * 8, 1), bar_init(b.w_empty + i * 8, S::WARPS);
        for (int i = 0; i < p.n_x; i++)
            bar_init(b.x_full + i * 8, 1), bar_init(b.x_empty + i * 8, S::WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        copy_fence();
    }
    __syncthreads();
    cu_wait_previous();
    if (warp >= S::WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::FETCH_REGS));
        if (warp == S::WARPS) {
            moe_fetch_w<W, S::MS>(p, b, w_ring, STAGE, lane);
        } else if (warp == S::WARPS + 1) {
            asm volatile("fence.proxy.async.global;" ::: "memory");
            moe_fetch_x<W, NT>(p, b, x_ring, lane);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGS));
        uint32_t swap = x_ring + p.n_x * NT * 128;
        moe_multiply_tiles<W, NT>(p, b, smem + (w_ring - start), STAGE, x_ring,
                                  (float *)(smem + (swap - start)));
    }
#endif
}

/* Launches for tiles of NT choices; a NULL: only says whether it could. */
template <class W, int NT>
static bool moe_hopper_nt(struct cuda *c, const char *name, const struct moe_args *a, int cols)
{
    using S = hopper_shape<NT>;
    constexpr int STAGE = hopper_stage<W, W, S::M>::BYTES, SWAP = S::MS == 2 ? 0 : 128 * NT * 4;
    static bool raised[64]; /* by device */
    struct hopper_args rings = {};
    struct moe_hopper_args p = {};
    struct cudaFuncAttributes is;

    if (c->cc != 90 || cols % W::COLS || !hopper_rings(c, STAGE, NT * 128, W::COLS, &rings))
        return false;
    while (2048 + rings.n_w * STAGE + rings.n_x * NT * 128 + SWAP > (int)c->smem_max)
        if (rings.n_x > 4) rings.n_x--;
        else if (rings.n_w-- <= 2) return false;
    if (!raised[c->device & 63]) {
        if (cu_check(c,
                     cudaFuncSetAttribute(moe_hopper<W, NT>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)c->smem_max),
                     name) != OK ||
            cu_check(c, cudaFuncGetAttributes(&is, moe_hopper<W, NT>), name) != OK)
            return true;
        /* With fewer registers setmaxnreg would wait forever; without wgmma the kernel is empty. */
        if (is.numRegs * S::THREADS < 128 * (S::GROUPS * S::REGS + S::FETCH_REGS)) return false;
        raised[c->device & 63] = true;
    }
    if (!a) return true;
    p.a = *a;
    p.n_w = rings.n_w;
    p.n_x = rings.n_x;
    p.units = cols / W::COLS;
    p.row_tiles = cu_div_up(a->pair ? a->out_pad : a->rows, a->pair ? 128 : 256);
    cu_launch(c, name, moe_hopper<W, NT>, dim3(c->n_sm), dim3(S::THREADS),
              2048 + p.n_w * STAGE + p.n_x * NT * 128 + SWAP, p);
    return true;
}

/* false: too little shared memory, no such device, or columns that are no whole units. */
template <class W>
static bool moe_hopper_run(struct cuda *c, const char *name, const struct moe_args *a, int cols,
                           int nt)
{
    switch (nt) {
    case 32: return moe_hopper_nt<W, 32>(c, name, a, cols);
    case 64: return moe_hopper_nt<W, 64>(c, name, a, cols);
    default: return moe_hopper_nt<W, 128>(c, name, a, cols);
    }
}
#endif
