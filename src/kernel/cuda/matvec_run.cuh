/* matvec_run.cuh - the kernel for up to 8 tokens: some vectors times all rows of one or several
 * weights.
 *
 * A block's tiles times their units of columns are one sequence of units, divided into equal parts
 * for its 16 warps. Each warp streams its part through a ring of its own (matvec_ring.cuh),
 * multiplies it with the tensor cores in F16 (matvec_unit.cuh) and keeps a sum for every tile that
 * it meets. The sums of a tile are added in the order of the warps, so results do not vary. The
 * first weights are requested before x is known (programmatic dependent launch).
 *
 * If x or the sums do not fit into shared memory the work is done in phases: rounds of tiles, and
 * for each round pieces of columns, whose sums are carried from piece to piece. */
#ifndef TERN_KERNEL_CUDA_MATVEC_RUN_CUH
#define TERN_KERNEL_CUDA_MATVEC_RUN_CUH

#include "kernel/cuda/matvec_x.cuh"

/* Sizes of the kernel for two types. */
template <class A, class B> struct mv_shape {
    static_assert(A::WARPS == B::WARPS && A::UNIT == B::UNIT && A::BULK == B::BULK,
                  "types that go together");
    static constexpr int WARPS = A::WARPS, THREADS = 32 * WARPS,
                         STAGE = A::STAGE > B::STAGE ? A::STAGE : B::STAGE;
};

/* The first tile of block b: blocks get shares of equal cost. */
__device__ __forceinline__ int mv_first_tile(const struct mv_args &a, int b)
{
    unsigned n = gridDim.x, want;
    if (a.pairs) return (int)((unsigned)(a.n_tiles / 2) * (unsigned)b / n) * 2;
    if (b >= (int)n) return a.n_tiles;
    want = (unsigned)a.cost_all * (unsigned)b / n;
    for (int i = 0; i < a.n_jobs; i++) {
        unsigned cost = a.cost[a.jobs[i].second], all = (unsigned)a.jobs[i].tiles * cost;
        if (want < all || i + 1 == a.n_jobs)
            return a.jobs[i].first + (int)min((unsigned)a.jobs[i].tiles, (want + cost / 2) / cost);
        want -= all;
    }
    return a.n_tiles;
}

/* Tile t of the block whose first tile is t0: the job, and the tile within the job. */
struct mv_place {
    int job, tile;
};
__device__ __forceinline__ struct mv_place mv_place_of(const struct mv_args &a, int t0, int t)
{
    if (a.pairs) return { t & 1, (t0 + t) >> 1 };
    int j = a.n_jobs - 1;
    while (a.jobs[j].first > t0 + t) j--;
    return { j, t0 + t - a.jobs[j].first };
}

/* A warp's path through its units: phase after phase, in each a range of units. */
template <int UNIT, int WARPS> struct mv_walk {
    int t0, n_tiles, n_units; /* of the block; n_units: of a row */
    int phase, n_phases;
    int left, tile, u, u0, nu; /* tile counts from t0, u from u0 */
    struct mv_place place;

    __device__ __forceinline__ void open(const struct mv_args &a, int first, int n)
    {
        t0 = first;
        n_tiles = n;
        n_units = (a.cols + UNIT - 1) / UNIT;
        n_phases = (n + a.round - 1) / a.round * a.n_pieces;
        enter(a, 0);
    }
    __device__ __forceinline__ int tiles_of(const struct mv_args &a, int ph) const
    {
        return min(a.round, n_tiles - ph / a.n_pieces * a.round);
    }
    __device__ __forceinline__ void enter(const struct mv_args &a, int ph)
    {
        phase = ph;
        left = 0;
        if (ph >= n_phases) return;
        int warp = threadIdx.x >> 5, r = ph / a.n_pieces * a.round, per = a.piece / UNIT;
        u0 = ph % a.n_pieces * per;
        nu = min(per, n_units - u0);
        int n = tiles_of(a, ph) * nu, lo = n * warp / WARPS;
        left = n * (warp + 1) / WARPS - lo;
        tile = r + lo / nu;
        u = lo % nu;
        if (left) place = mv_place_of(a, t0, tile);
    }
    /* Moves past a unit. true: it was the last one of a tile (for this warp). */
    __device__ __forceinline__ bool step(const struct mv_args &a)
    {
        left--;
        if (++u < nu) return left == 0;
        u = 0;
        tile++;
        if (left) place = mv_place_of(a, t0, tile);
        return true;
    }
};

/* The sum of the warps' parts: row `row` of tile t (the phase has n tiles of nu units), token
 * tok. */
template <int WARPS>
__device__ __forceinline__ float mv_total(const float *part, int t, int n, int nu, int row, int tok,
                                          int tokens)
{
    float s = 0.f;
    int total = n * nu;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        int lo = total * w / WARPS, hi = total * (w + 1) / WARPS;
        if (lo < hi && lo < (t + 1) * nu && hi > t * nu)
            s += part[((w + t) * tokens + tok) * TILE_ROWS + row];
    }
    return s;
}

/* Output i of a round that starts with tile t0: 16 rows for each token of each tile or pair. out
 * NULL: no such row. */
struct mv_slot {
    float *out;
    int item, row, tok, job, r;
};
__device__ __forceinline__ struct mv_slot mv_slot_of(const struct mv_args &a, int t0, int i)
{
    struct mv_slot s;
    s.row = i % TILE_ROWS;
    i /= TILE_ROWS;
    s.item = i / a.tokens;
    s.tok = i - s.item * a.tokens;
    struct mv_place p = mv_place_of(a, t0, a.pairs ? 2 * s.item : s.item);
    const struct mv_job &job = a.jobs[p.job];
    s.job = p.job;
    s.r = p.tile * TILE_ROWS + s.row;
    s.out = s.r < job.rows ? job.out + s.tok * job.out_stride + s.r : NULL;
    return s;
}
/* Scale and bias of a result. */
__device__ __forceinline__ float mv_finish(const struct mv_job &job, float y, int r)
{
    return y * job.scale + (job.bias ? __ldg(job.bias + r) : 0.f);
}

/* Pushes the next unit's weights into the ring and advances. */
template <class A, class B, class R, class W>
__device__ __forceinline__ void mv_fetch(const struct mv_args &a, R &ring, W &in,
                                         const uint8_t *&src, int lane)
{
    if (in.left == 0 && in.phase < in.n_phases) {
        while (in.left == 0 && in.phase < in.n_phases) in.enter(a, in.phase + 1);
        src = NULL;
    }
    if (in.left) {
        const struct mv_job &job = a.jobs[in.place.job];
        bool second = A::TYPE != B::TYPE && job.second;
        int u = in.u0 + in.u;
        if (!src)
            src = second ? B::at(a, job, in.place.tile, u, lane)
                         : A::at(a, job, in.place.tile, u, lane);
        if (second) B::fetch(ring, a, job, src, in.place.tile, u, lane);
        else A::fetch(ring, a, job, src, in.place.tile, u, lane);
        src = in.step(a) ? NULL : src + (second ? B::STEP : A::STEP);
    }
    ring.commit();
}

template <class A, class B>
__global__ void __launch_bounds__(mv_shape<A, B>::THREADS, 1)
    mv_run(const __grid_constant__ struct mv_args a)
{
    using S = mv_shape<A, B>;
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ struct mv_state st;
    __shared__ uint64_t bars[S::WARPS * MV_STAGES];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tokens = a.tokens;
    float *part = (float *)(mem + a.at_part), *carry = (float *)(mem + a.at_carry);

    cu_release_next();
    int t0 = mv_first_tile(a, blockIdx.x), n_tiles = mv_first_tile(a, blockIdx.x + 1) - t0;
    mv_ring<S::STAGE, A::BULK> ring;
    mv_walk<A::UNIT, S::WARPS> in, at;
    const uint8_t *src = NULL;
    if (threadIdx.x < CU_FEW) st.seen[threadIdx.x] = 0;
    ring.open(mem, bars, a.stages, warp, lane);
    if (ring.bulk && A::NATURAL && a.cols % A::UNIT)
        ring.clear(lane); /* columns that no copy fills must be finite; x is 0 there */
    /* Two walks over the same units: `in` pushes, `at` multiplies, a.stages behind. */
    in.open(a, t0, n_tiles);
    at = in;
#pragma unroll 1
    for (int i = 0; i < a.stages; i++) mv_fetch<A, B>(a, ring, in, src, lane);
    __syncthreads();
    cu_wait_previous();
    mv_prepare_x<A, B>(a, st, mem);
    __syncthreads();

    /* The old value of this thread's output, loaded early where the thread has only one. */
    float old = 0.f;
    bool early = at.n_phases == 1 && !a.active && n_tiles * TILE_ROWS * tokens <= S::THREADS;
    if (early && (int)threadIdx.x < n_tiles * TILE_ROWS * tokens) {
        struct mv_slot s = mv_slot_of(a, t0, threadIdx.x);
        if (s.out && a.jobs[s.job].add) old = __ldcg(s.out);
    }
    int g = lane >> 2, t = lane & 3;
    struct mv_view v[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool k = i ? B::UNIT_K : A::UNIT_K;
        int bytes = i ? B::MIN_BYTES : A::MIN_BYTES, tok = min(g, tokens - 1);
        v[i].x = mem + a.at_x + tok * a.x_row * 2 + t * 16;
        v[i].low = v[i].x + (a.at_low - a.at_x);
        v[i].init = mem + a.at_init[i] + t * 16;
        v[i].min = mem + a.at_min[i] + (k ? (t * 2 + g * 8) * bytes : t * 8);
    }

    for (int ph = 0; ph < at.n_phases; ph++) {
        int r0 = ph / a.n_pieces * a.round, n = at.tiles_of(a, ph), piece = ph % a.n_pieces;
        float acc[4] = { 0.f, 0.f, 0.f, 0.f };
        if (ph && a.n_pieces > 1) {
            mv_refill_x<A, B>(a, st, mem, piece * a.piece, min(a.piece, a.cols - piece * a.piece),
                              a.norm != CU_NORM_NONE);
            __syncthreads();
        }
        at.enter(a, ph);
        while (at.left) {
            const uint8_t *p = ring.front();
            int u = at.u, tile = at.tile - r0;
            if (A::TYPE == B::TYPE || !a.jobs[at.place.job].second)
                A::template unit<ring.bulk>(acc, p, A::count(a, at.u0 + u), v[0], u * A::UNIT,
                                            lane);
            else
                B::template unit<ring.bulk>(acc, p, B::count(a, at.u0 + u), v[1], u * B::UNIT,
                                            lane);
            ring.pop();
            mv_fetch<A, B>(a, ring, in, src, lane);
            if (!at.step(a)) continue;
            float *to = part + (warp + tile) * tokens * TILE_ROWS + g;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int tok = 2 * t + e;
                if (tok >= tokens) break;
                to[tok * TILE_ROWS] = acc[e];
                to[tok * TILE_ROWS + 8] = acc[e + 2];
            }
            acc[0] = acc[1] = acc[2] = acc[3] = 0.f;
        }
        __syncthreads();
        /* Not the last piece of columns: the sums are carried to the next one. */
        if (piece + 1 < a.n_pieces) {
            for (int i = threadIdx.x; i < n * TILE_ROWS * tokens; i += S::THREADS) {
                int row = i % TILE_ROWS, tok = i / TILE_ROWS % tokens, k = i / TILE_ROWS / tokens;
                float s = mv_total<S::WARPS>(part, k, n, at.nu, row, tok, tokens);
                carry[i] = piece ? carry[i] + s : s;
            }
            __syncthreads();
            continue;
        }
        for (int i = threadIdx.x; i < (a.pairs ? n / 2 : n) * TILE_ROWS * tokens; i += S::THREADS) {
            struct mv_slot s = mv_slot_of(a, t0 + r0, i);
            int k = a.pairs ? 2 * s.item : s.item, at_k = (k * tokens + s.tok) * TILE_ROWS + s.row;
            if (!s.out) continue;
            const struct mv_job &job = a.jobs[s.job];
            float y = mv_total<S::WARPS>(part, k, n, at.nu, s.row, s.tok, tokens) +
                      (piece ? carry[at_k] : 0.f);
            y = mv_finish(job, y * st.last[s.tok], s.r);
            if (a.pairs) {
                float up = mv_total<S::WARPS>(part, k + 1, n, at.nu, s.row, s.tok, tokens);
                if (piece) up += carry[at_k + tokens * TILE_ROWS];
                y = act_of(a.act, y) * mv_finish(a.jobs[1], up * st.last[s.tok], s.r);
            } else if (a.active) {
                y = act_of(a.act, y);
            } else if (job.add) {
                y += early ? old : __ldcg(s.out);
            }
            *s.out = y;
        }
        if (ph + 1 < at.n_phases) __syncthreads();
    }
}

/* What the host needs to know about mv_run<A, B>. */
template <class A, class B> struct mv_kernel *mv_kernel_of(void)
{
    using S = mv_shape<A, B>;
    constexpr bool TWO = A::TYPE != B::TYPE;
    static struct mv_kernel k = {
        mv_run<A, B>,
        S::WARPS,
        A::UNIT,
        S::STAGE,
        A::LOW ? 4 : 2,
        A::PAD,
        { A::SUB, TWO ? B::SUB : 0 },
        { A::MIN_BYTES, TWO ? B::MIN_BYTES : 0 },
        0,
        MV_X_NONE,
        0,
    };
    return &k;
}
#endif
