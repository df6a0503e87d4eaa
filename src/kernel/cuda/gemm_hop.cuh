/* gemm_hop.cuh - the product of gemm_mid.cuh on Hopper: copies by the copy engine, each warp its
 * own part.
 *
 * Two or four warpgroups multiply; one warp fetches weights, one activations, each as far ahead as
 * its ring of buffers allows. A unit of work is 64 columns of a tile of rows, or 256 where weights
 * come in blocks of 256. A full barrier says that a buffer's bytes have come, an empty one that all
 * warps are done with it. Products of two types may go together (W and V): their units must have
 * the same number of columns. Weights lie in tiles here; plain ones, and what was made F16 for the
 * product, are the other kernel's. */
#ifndef TERN_KERNEL_CUDA_GEMM_HOP_CUH
#define TERN_KERNEL_CUDA_GEMM_HOP_CUH

#include "kernel/cuda/gemm_w.cuh"

#include <type_traits>

#define HOP_W 8 /* buffers, at most */
#define HOP_X 16

/* Few tokens: unpacking weights takes longest, four warpgroups do it. The last warpgroup fetches,
 * and gives registers away; what all have then must not be more than at the start: 96 x 640, or 168
 * x 384. */
template <int NT> struct hop_shape {
    static constexpr int GROUPS = NT <= 64 ? 4 : 2, MS = NT == 128 ? 2 : 1, M = 64 * GROUPS * MS;
    static constexpr int WARPS = 4 * GROUPS, THREADS = 128 * (GROUPS + 1);
    static constexpr int REGS = GROUPS == 4 ? 112 : 232, FETCH_REGS = GROUPS == 4 ? 32 : 40;
    static_assert(128 * (GROUPS * REGS + FETCH_REGS) <= THREADS * (GROUPS == 4 ? 96 : 168),
                  "registers");
};
template <class W, class V, int M> struct hop_stage {
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

/* A place in a ring: which buffer, and the parity of its round. */
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
 *     COLS      of a unit
 *     BYTES<M>  of a unit, M rows of it
 *     produce   called by a whole warp: fetches a unit
 *     open, fetch, expand: as in gemm_w.cuh, of 64 columns q of the unit */

/* Blocks of 32: two tiles. */
template <int T> struct hop_small {
    static constexpr int COLS = 64, TILE = layout_of(T).bytes;
    template <int M> static constexpr int BYTES = M / 16 * 2 * TILE;
    using head = mid_none;
    struct raw {
        const uint8_t *at;
        int lane;
    };

#if GEMM_WGMMA
    template <int M>
    static __device__ __forceinline__ void produce(uint32_t to, uint32_t bar,
                                                   const struct mid_job &j, int r0, int unit,
                                                   int lane)
    {
        int blocks = j.cols / 32, last = (j.rows + 15) / 16 - 1;
        const uint8_t *src =
            (const uint8_t *)j.w + ((size_t)min(r0 / 16 + lane, last) * blocks + 2 * unit) * TILE;
        if (lane == 0) bar_expect(bar, BYTES<M>);
        __syncwarp();
        if (lane >= M / 16) return;
        if (2 * unit + 1 < blocks) bulk_copy(to + lane * 2 * TILE, src, 2 * TILE, bar);
        else /* any finite numbers: those columns of x are zero */
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
        mid_small<T>::unpack(a, r.at + half * TILE, r.lane);
        (void)h;
    }
};

/* Blocks of 256: a tile. */
template <int T> struct hop_k {
    static constexpr int COLS = 256, TILE = layout_of(T).bytes;
    template <int M> static constexpr int BYTES = M / 16 * TILE;
    using head = typename tile<T>::head;
    struct raw {
        uint32_t v[2][2][4];
    };

#if GEMM_WGMMA
    template <int M>
    static __device__ __forceinline__ void produce(uint32_t to, uint32_t bar,
                                                   const struct mid_job &j, int r0, int unit,
                                                   int lane)
    {
        int blocks = j.cols / 256, last = (j.rows + 15) / 16 - 1;
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
                low[s] =
                    tile<T>::MIN ? head.m[h] * tile<T>::small_min(head, h, 2 * q + half, s) : 0.f;
            }
            mid_scaled<T>(a, h, r.v[half][h], scale, low);
        }
    }
};

/* ---- the kernel ---- */

/* By bytes, from the start of shared memory: 8 for each barrier, then the rings. */
struct hop_args {
    struct mid_args m;
    int n_w, n_x; /* buffers */
    int units;    /* of a tile */
};

#if GEMM_WGMMA
struct hop_bars {
    uint32_t w_full, w_empty, x_full, x_empty;
};

template <class W, class V, int M>
__device__ __forceinline__ void hop_fetch_w(const struct hop_args &p, struct hop_bars b,
                                            uint32_t ring_at, int stage, int u0, int n, int lane)
{
    struct ring r = { 0, 1 };
    struct mid_at at = { u0 / p.units, u0 % p.units };

    for (int i = 0; i < n; i++, ring_next(&r, p.n_w), mid_forward(&at, p.units)) {
        int row_tile = at.tile / p.m.token_tiles;
        const struct mid_job &j = p.m.job[mid_find(p.m, row_tile)];
        int r0 = j.r0 + (row_tile - j.tile0) * M;
        uint32_t to = ring_at + r.at * stage, full = b.w_full + r.at * 8;
        bar_wait(b.w_empty + r.at * 8, r.parity);
        if (std::is_same<W, V>::value || !j.second)
            W::template produce<M>(to, full, j, r0, at.chunk, lane);
        else V::template produce<M>(to, full, j, r0, at.chunk, lane);
    }
}

template <class W, int NT>
__device__ __forceinline__ void hop_fetch_x(const struct hop_args &p, struct hop_bars b,
                                            uint32_t ring_at, int u0, int n)
{
    struct ring r = { 0, 1 };
    struct mid_at at = { u0 / p.units, u0 % p.units };

    for (int i = 0; i < n; i++, mid_forward(&at, p.units)) {
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

/* What a warp has in hand. */
template <int NT> struct hop_hand {
    float d[hop_shape<NT>::MS][NT / 8][4];
    uint32_t a[2][2 * hop_shape<NT>::MS][4];
    struct ring x;
    int held; /* the buffer of x whose products may still be under way, or -1 */
    bool add;
};

/* One unit, whose weights are at w. Two sets of registers take turns, as in mid_chunk. */
template <class W, int NT>
__device__ __forceinline__ void hop_unit(struct hop_hand<NT> &h, const uint8_t *w, uint32_t w_empty,
                                         struct hop_bars b, uint32_t x_ring, int n_x)
{
    constexpr int MS = hop_shape<NT>::MS;
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
            mma_wait<1>();
            if (set == 0 && h.held >= 0 && lane == 0) bar_arrive(b.x_empty + h.held * 8);
        }
        h.held = h.x.at;
        h.add = true;
    }
}

template <class W, class V, int NT>
__device__ __forceinline__ void hop_multiply(const struct hop_args &p, struct hop_bars b,
                                             const uint8_t *w_ring, int stage, uint32_t x_ring,
                                             int u0, int n)
{
    using S = hop_shape<NT>;
    struct ring rw = { 0, 0 };
    struct mid_at at = { u0 / p.units, u0 % p.units };
    struct hop_hand<NT> h;

    h.x = { 0, 0 };
    h.held = -1;
    h.add = false;
    for (int i = 0; i < n; i++, ring_next(&rw, p.n_w)) {
        const uint8_t *w = w_ring + rw.at * stage;
        bar_wait(b.w_full + rw.at * 8, rw.parity);
        if (std::is_same<W, V>::value || !p.m.job[mid_find(p.m, at.tile / p.m.token_tiles)].second)
            hop_unit<W, NT>(h, w, b.w_empty + rw.at * 8, b, x_ring, p.n_x);
        else hop_unit<V, NT>(h, w, b.w_empty + rw.at * 8, b, x_ring, p.n_x);
        if (at.chunk == p.units - 1 || i == n - 1) {
            mma_wait<0>();
            mid_store<S::MS, NT, 32 * S::WARPS>(h.d, p.m.part + (size_t)(blockIdx.x + at.tile) *
                                                                    S::M * NT);
            h.add = false;
        }
        mid_forward(&at, p.units);
    }
    mma_wait<0>();
}
#endif

template <class W, class V, int NT>
__global__ void __launch_bounds__(hop_shape<NT>::THREADS, 1)
    hop_kernel(const __grid_constant__ struct hop_args p)
{
#if GEMM_WGMMA
    using S = hop_shape<NT>;
    constexpr int STAGE = hop_stage<W, V, S::M>::BYTES;
    extern __shared__ uint8_t smem[];
    uint32_t start = smem_at(smem), base = (start + 1023) / 1024 * 1024;
    struct hop_bars b = { base, base + HOP_W * 8, base + HOP_W * 16,
                          base + HOP_W * 16 + HOP_X * 8 };
    uint32_t w_ring = base + 1024, x_ring = w_ring + p.n_w * STAGE;
    int64_t units = (int64_t)p.m.row_tiles * p.m.token_tiles * p.units;
    int u0 = (int)(units * blockIdx.x / gridDim.x),
        n = (int)(units * (blockIdx.x + 1) / gridDim.x) - u0;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    cu_next();
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
            hop_fetch_w<W, V, S::M>(p, b, w_ring, STAGE, u0, n, lane);
        } else if (warp == S::WARPS + 1 && lane == 0) {
            gemm_wait();
            hop_fetch_x<W, NT>(p, b, x_ring, u0, n);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGS));
        cu_wait();
        hop_multiply<W, V, NT>(p, b, smem + (w_ring - start), STAGE, x_ring, u0, n);
    }
#endif
}

/* Rings as long as memory allows, of the same number of columns; false: not even the shortest. */
static inline bool hop_rings(const struct cuda *c, int w_bytes, int x_bytes, int cols,
                             struct hop_args *p)
{
    int left = (int)c->smem_max - 2048 - 2 * w_bytes - 3 * x_bytes;

    p->n_w = 2;
    p->n_x = 3;
    if (left < 0) return false;
    for (;;) {
        bool x = p->n_x * 64 < p->n_w * cols || p->n_w == HOP_W;
        int bytes = x ? x_bytes : w_bytes;
        if (bytes > left || (x && p->n_x == HOP_X)) return true;
        left -= bytes;
        *(x ? &p->n_x : &p->n_w) += 1;
    }
}

template <class W, class V, int NT>
static int hop_launch(struct cuda *c, const char *name, int blocks, const struct mid_args *m)
{
    using S = hop_shape<NT>;
    constexpr int STAGE = hop_stage<W, V, S::M>::BYTES;
    static bool raised[64]; /* by device */
    struct hop_args p = {};

    if (!hop_rings(c, STAGE, NT * 128, W::COLS, &p)) return 0;
    if (!m) return W::COLS;
    p.m = *m;
    p.units = (m->n_chunks * 64 + W::COLS - 1) / W::COLS;
    if (!raised[c->device & 63]) {
        struct cudaFuncAttributes is;
        if (cu_check(c,
                     cudaFuncSetAttribute(hop_kernel<W, V, NT>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)c->smem_max),
                     name) != OK ||
            cu_check(c, cudaFuncGetAttributes(&is, hop_kernel<W, V, NT>), name) != OK)
            return 0;
        if (is.numRegs * S::THREADS <
            128 * (S::GROUPS * S::REGS + S::FETCH_REGS)) { /* it would wait for ever */
            cu_fail(c, E_INTERNAL, "%s: %s was built with %d registers", c->be.name, name,
                    is.numRegs);
            return 0;
        }
        raised[c->device & 63] = true;
    }
    cu_launch(c, name, hop_kernel<W, V, NT>, dim3(blocks), dim3(S::THREADS),
              2048 + p.n_w * STAGE + p.n_x * NT * 128, p);
    return W::COLS;
}
#endif
