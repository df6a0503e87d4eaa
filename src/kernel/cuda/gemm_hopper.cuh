/* gemm_hopper.cuh - the packed GEMM on Hopper, for block formats: warp-specialized, with bulk
 * copies and wgmma.
 *
 * Two or four warpgroups (consumers) unpack weights and multiply; in one more warpgroup (producer)
 * one warp fetches weights and one thread fetches activations, each as far ahead as its ring of
 * buffers allows. A unit of work is 64 columns of a row tile, or 256 for blocks of 256. Every
 * buffer has two mbarriers: `full` completes when its bytes have arrived, `empty` when all consumer
 * warps are done with it.
 *
 * Tiles: 256 rows by up to 64 tokens (4 warpgroups), 256 rows by 128 tokens or 128 rows by 256
 * tokens (2 warpgroups). Units are divided among the blocks as in gemm_packed.cuh. A launch may
 * have weights of two types, W and V, whose units have the same number of columns. */
#ifndef TERN_KERNEL_CUDA_GEMM_HOPPER_CUH
#define TERN_KERNEL_CUDA_GEMM_HOPPER_CUH

#include "kernel/cuda/gemm_w.cuh"

#include <type_traits>

#define HOPPER_W 8 /* buffers, at most */
#define HOPPER_X 16

/* Few tokens: unpacking takes longest, and four warpgroups do it. The producer warpgroup gives
 * registers to the others (setmaxnreg); the sum must not exceed the registers at launch: 96 x 640
 * or 168 x 384. */
template <int NT> struct hopper_shape {
    static constexpr int GROUPS = NT <= 64 ? 4 : 2, MS = NT == 128 ? 2 : 1, M = 64 * GROUPS * MS;
    static constexpr int WARPS = 4 * GROUPS, THREADS = 128 * (GROUPS + 1);
    static constexpr int REGS = GROUPS == 4 ? 112 : 232, FETCH_REGS = GROUPS == 4 ? 32 : 40;
    static_assert(128 * (GROUPS * REGS + FETCH_REGS) <= THREADS * (GROUPS == 4 ? 96 : 168),
                  "registers");
};
template <class W, class V, int M> struct hopper_stage {
    static constexpr int A = W::template BYTES<M>, B = V::template BYTES<M>;
    static constexpr int BYTES = ((A > B ? A : B) + 1023) / 1024 * 1024;
};

/* ---- barriers and copies ---- */

#if GEMM_WGMMA
__device__ __forceinline__ void bar_init(uint32_t bar, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, uint32_t bytes,
                                          uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}

/* A position in a ring: the buffer, and the parity of its round. */
struct ring {
    int at;
    uint32_t parity;
};
__device__ __forceinline__ void ring_next(struct ring *r, int n)
{
    if (++r->at == n) r->at = 0, r->parity ^= 1;
}
#endif

/* ---- weights ----
 *
 *     COLS      columns of a unit: 64, 128 or 256
 *     BYTES<M>  bytes of a unit of M rows
 *     produce   fetches a unit; a whole warp calls it
 *     open, fetch, expand: as in gemm_w.cuh, for 64 columns q of the unit */

/* Blocks of 32 columns: a unit is two tiles. */
template <int T> struct hopper_small {
    static constexpr int COLS = 64, TILE = layout_of(T).bytes;
    template <int M> static constexpr int BYTES = M / 16 * 2 * TILE;
    using head = packed_none;
    struct raw {
        const uint8_t *at;
        int lane;
    };

#if GEMM_WGMMA
    template <int M>
    static __device__ __forceinline__ void produce(uint32_t to, uint32_t bar,
                                                   const struct packed_job &j, int r0, int unit,
                                                   int lane)
    {
        int blocks = j.cols / 32, last = (j.rows + 15) / 16 - 1;
        const uint8_t *src =
            (const uint8_t *)j.w + ((size_t)min(r0 / 16 + lane, last) * blocks + 2 * unit) * TILE;
        if (lane == 0) bar_expect(bar, BYTES<M>);
        __syncwarp();
        if (lane >= M / 16) return;
        if (2 * unit + 1 < blocks) bulk_copy(to + lane * 2 * TILE, src, 2 * TILE, bar);
        else /* a second tile that does not exist: any finite numbers will do, x is zero there */
            for (int i = 0; i < 2; i++) bulk_copy(to + (lane * 2 + i) * TILE, src, TILE, bar);
    }
#endif
    static __device__ __forceinline__ void open(head *, const uint8_t *, int, int) {}
    static __device__ __forceinline__ void fetch(raw *r, const uint8_t *w, int tile, int lane, int)
    {
        r->at = w + tile * 2 * TILE;
        r->lane = lane;
    }
    static __device__ __forceinline__ void expand(uint32_t (*a)[4], const raw &r, const head &h,
                                                  int half, int)
    {
        packed_small<T>::unpack(a, r.at + half * TILE, r.lane);
        (void)h;
    }
};

/* Blocks of 64, 128 or 256 columns: a unit is one tile. */
template <int T> struct hopper_k {
    static constexpr int COLS = tile<T>::COLS, TILE = layout_of(T).bytes;
    template <int M> static constexpr int BYTES = M / 16 * TILE;
    using head = typename tile<T>::head;
    struct raw {
        uint32_t v[2][2][4];
    };

#if GEMM_WGMMA
    template <int M>
    static __device__ __forceinline__ void produce(uint32_t to, uint32_t bar,
                                                   const struct packed_job &j, int r0, int unit,
                                                   int lane)
    {
        int blocks = layout_blocks(T, j.cols), last = (j.rows + 15) / 16 - 1;
        if (lane == 0) bar_expect(bar, BYTES<M>);
        __syncwarp();
        if (lane < M / 16)
            bulk_copy(to + lane * TILE,
                      (const uint8_t *)j.w +
                          ((size_t)min(r0 / 16 + lane, last) * blocks + unit) * TILE,
                      TILE, bar);
    }
#endif
    static __device__ __forceinline__ void open(head *h, const uint8_t *w, int t, int lane)
    {
        *h = tile<T>::open(w + t * TILE, lane);
    }
    static __device__ __forceinline__ void fetch(raw *r, const uint8_t *w, int t, int lane, int q)
    {
        tile<T>::load(r->v, w + t * TILE, lane, q);
    }
    static __device__ __forceinline__ void expand(uint32_t (*a)[4], const raw &r, const head &head,
                                                  int half, int q)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float scale[2], low[2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                scale[s] = head.d[h] * tile<T>::small(head, h, 2 * q + half, s);
                low[s] = packed_low<T>(head, h, 2 * q + half, s);
            }
            packed_scaled<T>(a, h, r.v[half][h], scale, low);
        }
    }
};

/* ---- the kernel ---- */

/* Shared memory: 8 bytes for each barrier in the first 1,024, then the two rings. */
struct hopper_args {
    struct packed_args m;
    int n_w, n_x; /* buffers */
    int units;    /* units of a tile */
};

#if GEMM_WGMMA
/* Addresses of the first barrier of each kind. */
struct hopper_bars {
    uint32_t w_full, w_empty, x_full, x_empty;
};

/* The weight producer's loop over the block's units: wait until the buffer is empty, fill it. */
template <class W, class V, int M>
__device__ __forceinline__ void hopper_fetch_w(const struct hopper_args &p, struct hopper_bars b,
                                               uint32_t ring_at, int stage, int u0, int n, int lane)
{
    struct ring r = { 0, 1 };
    struct packed_pos at = { u0 / p.units, u0 % p.units };

    for (int i = 0; i < n; i++, ring_next(&r, p.n_w), packed_advance(&at, p.units)) {
        int row_tile = at.tile / p.m.token_tiles;
        const struct packed_job &j = p.m.job[packed_find_job(p.m, row_tile)];
        int r0 = j.r0 + (row_tile - j.tile0) * M;
        uint32_t to = ring_at + r.at * stage, full = b.w_full + r.at * 8;
        bar_wait(b.w_empty + r.at * 8, r.parity);
        if (std::is_same<W, V>::value || !j.second)
            W::template produce<M>(to, full, j, r0, at.chunk, lane);
        else V::template produce<M>(to, full, j, r0, at.chunk, lane);
    }
}

/* The activation producer's loop; a buffer is 64 columns of NT tokens, contiguous in memory. */
template <class W, int NT>
__device__ __forceinline__ void hopper_fetch_x(const struct hopper_args &p, struct hopper_bars b,
                                               uint32_t ring_at, int u0, int n)
{
    struct ring r = { 0, 1 };
    struct packed_pos at = { u0 / p.units, u0 % p.units };

    for (int i = 0; i < n; i++, packed_advance(&at, p.units)) {
        size_t chunk =
            (size_t)(at.tile % p.m.token_tiles) * p.m.n_chunks + at.chunk * (W::COLS / 64);
        const __half *x = p.m.x + chunk * NT * 64;
        for (int q = 0; q < W::COLS / 64; q++, ring_next(&r, p.n_x), x += NT * 64) {
            bar_wait(b.x_empty + r.at * 8, r.parity);
            bar_expect(b.x_full + r.at * 8, NT * 128);
            bulk_copy(ring_at + r.at * NT * 128, x, NT * 128, b.x_full + r.at * 8);
        }
    }
}

/* What a consumer warp holds between units. */
template <int NT> struct hopper_warp {
    float d[hopper_shape<NT>::MS][NT / 8][4];
    uint32_t a[2][2 * hopper_shape<NT>::MS][4];
    struct ring x;
    int held; /* the buffer of x that products in flight may still read, or -1 */
    bool add;
};

/* One unit, whose weights are at w. Two register sets alternate, as in packed_chunk. */
template <class W, int NT>
__device__ __forceinline__ void hopper_unit(struct hopper_warp<NT> &h, const uint8_t *w,
                                            uint32_t w_empty, struct hopper_bars b, uint32_t x_ring,
                                            int n_x)
{
    constexpr int MS = hopper_shape<NT>::MS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    typename W::head head[MS];
    typename W::raw raw;

#pragma unroll
    for (int m = 0; m < MS; m++) W::open(&head[m], w, (warp / 4 * MS + m) * 4 + warp % 4, lane);
#pragma unroll
    for (int q = 0; q < W::COLS / 64; q++, ring_next(&h.x, n_x)) {
        uint32_t x = x_ring + h.x.at * NT * 128;
#pragma unroll
        for (int set = 0; set < 2; set++) {
            int m = MS == 2 ? set : 0;
            if (MS == 2 || set == 0) W::fetch(&raw, w, (warp / 4 * MS + m) * 4 + warp % 4, lane, q);
#pragma unroll
            for (int k = 0; k < MS; k++)
                W::expand(h.a[set] + 2 * k, raw, head[m], MS == 2 ? k : set, q);
            /* The weights are in registers: their buffer is free before the last products start. */
            if (set == 1 && q == W::COLS / 64 - 1) {
                __syncwarp();
                if (lane == 0) bar_arrive(w_empty);
            }
            if (set == 0) bar_wait(b.x_full + h.x.at * 8, h.x.parity);
            mma_begin();
#pragma unroll
            for (int s = 0; s < 2 * MS; s++)
                mma_step<NT>(h.d[m], h.a[set][s], x, MS == 2 ? s : set * 2 + s,
                             h.add || s || (MS == 1 && set));
            mma_commit();
            /* The products before these are done, so the x buffer that they read is free. */
            mma_wait<1>();
            if (set == 0 && h.held >= 0 && lane == 0) bar_arrive(b.x_empty + h.held * 8);
        }
        h.held = h.x.at;
        h.add = true;
    }
}

/* The consumers' loop over the block's units. Sums are stored at the end of a tile or of the block. */
template <class W, class V, int NT>
__device__ __forceinline__ void hopper_multiply(const struct hopper_args &p, struct hopper_bars b,
                                                const uint8_t *w_ring, int stage, uint32_t x_ring,
                                                int u0, int n)
{
    using S = hopper_shape<NT>;
    struct ring rw = { 0, 0 };
    struct packed_pos at = { u0 / p.units, u0 % p.units };
    struct hopper_warp<NT> h;

    h.x = { 0, 0 };
    h.held = -1;
    h.add = false;
    for (int i = 0; i < n; i++, ring_next(&rw, p.n_w)) {
        const uint8_t *w = w_ring + rw.at * stage;
        bar_wait(b.w_full + rw.at * 8, rw.parity);
        if (std::is_same<W, V>::value ||
            !p.m.job[packed_find_job(p.m, at.tile / p.m.token_tiles)].second)
            hopper_unit<W, NT>(h, w, b.w_empty + rw.at * 8, b, x_ring, p.n_x);
        else hopper_unit<V, NT>(h, w, b.w_empty + rw.at * 8, b, x_ring, p.n_x);
        if (at.chunk == p.units - 1 || i == n - 1) {
            mma_wait<0>();
            packed_store<S::MS, NT, 32 * S::WARPS>(h.d, p.m.part + (size_t)(blockIdx.x + at.tile) *
                                                                       S::M * NT);
            h.add = false;
        }
        packed_advance(&at, p.units);
    }
    mma_wait<0>();
}
#endif

template <class W, class V, int NT>
__global__ void __launch_bounds__(hopper_shape<NT>::THREADS, 1)
    hopper_kernel(const __grid_constant__ struct hopper_args p)
{
#if GEMM_WGMMA
    using S = hopper_shape<NT>;
    constexpr int STAGE = hopper_stage<W, V, S::M>::BYTES;
    extern __shared__ uint8_t smem[];
    uint32_t start = smem_at(smem), base = (start + 1023) / 1024 * 1024;
    struct hopper_bars b = { base, base + HOPPER_W * 8, base + HOPPER_W * 16,
                             base + HOPPER_W * 16 + HOPPER_X * 8 };
    uint32_t w_ring = base + 1024, x_ring = w_ring + p.n_w * STAGE;
    int64_t units = (int64_t)p.m.row_tiles * p.m.token_tiles * p.units;
    int u0 = (int)(units * blockIdx.x / gridDim.x),
        n = (int)(units * (blockIdx.x + 1) / gridDim.x) - u0;
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
    if (warp >= S::WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::FETCH_REGS));
        if (warp == S::WARPS) {
            hopper_fetch_w<W, V, S::M>(p, b, w_ring, STAGE, u0, n, lane);
        } else if (warp == S::WARPS + 1 && lane == 0) {
            gemm_wait_previous();
            hopper_fetch_x<W, NT>(p, b, x_ring, u0, n);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGS));
        cu_wait_previous();
        hopper_multiply<W, V, NT>(p, b, smem + (w_ring - start), STAGE, x_ring, u0, n);
    }
#endif
}

/* Rings as long as shared memory allows, both for about the same number of columns. false: not even
 * the shortest fit. */
static inline bool hopper_rings(const struct cuda *c, int w_bytes, int x_bytes, int cols,
                                struct hopper_args *p)
{
    int left = (int)c->smem_max - 2048 - 2 * w_bytes - 3 * x_bytes;

    p->n_w = 2;
    p->n_x = 3;
    if (left < 0) return false;
    for (;;) {
        bool x = p->n_x * 64 < p->n_w * cols || p->n_w == HOPPER_W;
        int bytes = x ? x_bytes : w_bytes;
        if (bytes > left || (x && p->n_x == HOPPER_X)) return true;
        left -= bytes;
        *(x ? &p->n_x : &p->n_w) += 1;
    }
}

/* As packed_launch. One block for each SM: it uses all shared memory. */
template <class W, class V, int NT>
static int hopper_launch(struct cuda *c, const char *name, int blocks, const struct packed_args *m)
{
    using S = hopper_shape<NT>;
    constexpr int STAGE = hopper_stage<W, V, S::M>::BYTES;
    static bool raised[64]; /* by device */
    struct hopper_args p = {};

    if (!hopper_rings(c, STAGE, NT * 128, W::COLS, &p)) return 0;
    if (!m) return W::COLS;
    p.m = *m;
    p.units = (m->n_chunks * 64 + W::COLS - 1) / W::COLS;
    if (!raised[c->device & 63]) {
        struct cudaFuncAttributes is;
        if (cu_check(c,
                     cudaFuncSetAttribute(hopper_kernel<W, V, NT>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)c->smem_max),
                     name) != OK ||
            cu_check(c, cudaFuncGetAttributes(&is, hopper_kernel<W, V, NT>), name) != OK)
            return 0;
        /* With fewer registers setmaxnreg would wait forever. */
        if (is.numRegs * S::THREADS < 128 * (S::GROUPS * S::REGS + S::FETCH_REGS)) {
            cu_fail(c, E_INTERNAL, "%s: %s was built with %d registers", c->be.name, name,
                    is.numRegs);
            return 0;
        }
        raised[c->device & 63] = true;
    }
    cu_launch(c, name, hopper_kernel<W, V, NT>, dim3(blocks), dim3(S::THREADS),
              2048 + p.n_w * STAGE + p.n_x * NT * 128, p);
    return W::COLS;
}
#endif
