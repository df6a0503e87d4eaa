/* matvec_one.cuh - one token against all rows of some weights.
 *
 * In block formats weights stay the whole numbers they are (matvec_bytes.cuh), and x becomes ones
 * of 16 bits beside a scale for every 16 columns: a high and a low byte. The tensor cores multiply
 * 16 rows by 32 columns of weights with eight columns of a right factor, of which only the four
 * that hold high and low bytes of these two sixteens are not zero. So the sums of four sixteens
 * come out side by side and exact, and every lane scales its own. Plain weights are multiplied in
 * F32, lane by lane along their rows.
 *
 * A block's tiles times their units (256 columns, of plain weights four rows) are one row of work,
 * cut into equal parts for its warps, each with a ring of its own (matvec_ring.cuh). A block takes
 * half of a multiprocessor, so that the next kernel's already waits there with its ring full. */
#ifndef TERN_KERNEL_CUDA_MATVEC_ONE_CUH
#define TERN_KERNEL_CUDA_MATVEC_ONE_CUH

#include "kernel/cuda/matvec_one_x.cuh"

__device__ __forceinline__ void one_mma(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- products ---- */

struct __align__(16) one_words { uint32_t w[4]; };

/* The right factor's words of group b: zero in lanes whose column is another sixteen's. */
struct one_right {
    uint32_t pick[2][2]; /* which bytes, in even groups and in odd ones */
};
/* Those of half h in word w. */
__host__ __device__ constexpr uint32_t one_pick(int order, int h, int w)
{
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        int n = bytes_at(order, 4 * w + i);
        r |= (uint32_t)(n / 4 == h ? n % 4 : 4) << 4 * i;
    }
    return r;
}
template <class P> __device__ __forceinline__ void one_right_open(struct one_right &r, int lane)
{
    constexpr int ORDER = P::N::ORDER;
    bool high = lane >> 3 & 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool on = lane >> 4 == i;
        r.pick[i][0] = !on ? 0x4444 : high ? one_pick(ORDER, 1, 0) : one_pick(ORDER, 0, 0);
        r.pick[i][1] = !on ? 0x4444 : high ? one_pick(ORDER, 1, 1) : one_pick(ORDER, 0, 1);
    }
}

/* The sums d of four sixteens with their scales, added to acc; scale: x's, sums: x's sixteens in
 * all. */
template <bool MIN, int BIAS>
__device__ __forceinline__ void one_scaled(float acc[2], const lane_scales &s, const int d[4][4],
                                           const struct one_words &scale, const uint8_t *sums,
                                           int lane)
{
    struct one_words sum = *(const struct one_words *)(sums + (lane & 3) * 16);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y = 0.f, m = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v = (float)((d[i][2 * h] << 8) + d[i][2 * h + 1]) * __uint_as_float(scale.w[i]);
            if (!MIN) v = fmaf((float)-BIAS, __uint_as_float(sum.w[i]), v);
            y = fmaf(s.sc[h][i], v, y);
            if (MIN) m = fmaf(s.mn[h][i], __uint_as_float(sum.w[i]), m);
        }
        acc[h] = fmaf(s.d[h], y, acc[h]);
        if (MIN) acc[h] = fmaf(-s.m[h], m, acc[h]);
    }
}
template <bool MIN, int BIAS>
__device__ __forceinline__ void one_scaled(float acc[2], const k4_scales &s, const int d[4][4],
                                           const struct one_words &scale, const uint8_t *sums,
                                           int lane)
{
    const float2 *at = (const float2 *)(sums + (lane & 2) * 16 + (lane & 1) * 8);
    float2 lo = at[0], hi = at[2];
    float sum[2] = { lo.x + hi.x, lo.y + hi.y };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int v = ((d[i][2 * h] << 8) + d[i][2 * h + 1]) * s.sc[h][i];
            y = fmaf(__uint_as_float(scale.w[i]), (float)v, y);
        }
        acc[h] = fmaf(s.d[h], y, acc[h]);
        acc[h] = fmaf(-s.m[h], fmaf(s.mn[h][1], sum[1], s.mn[h][0] * sum[0]), acc[h]);
    }
}

/* Rows g and g + 8 of a unit at p, whose last tiles may be missing (n are there), added to acc. */
template <class P>
__device__ __forceinline__ void one_unit(float acc[2], const uint8_t *p, int n,
                                         const struct one_right &right, const uint8_t *x, int lane)
{
    constexpr int GROUP = P::Q::GROUP;
    int d[4][4] = {};
    struct one_words xs = *(const struct one_words *)(x + lane * 16);
#pragma unroll
    for (int j = 0; j < 8 / GROUP; j++) {
        uint32_t a[GROUP][4];
        P::N::load(a, P::TILES == 1 ? p : p + j * P::BYTES, lane, j);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            int b = j * GROUP + i;
            uint32_t w = xs.w[b / 2];
            one_mma(d[b / 2], a[i], __byte_perm(w, 0, right.pick[b % 2][0]),
                    __byte_perm(w, 0, right.pick[b % 2][1]));
        }
    }
    struct one_words scale = *(const struct one_words *)(x + P::X + (lane & 3) * 16);
    one_scaled<P::Q::MIN, P::N::BIAS>(acc, P::N::open(p, n, lane), d, scale, x + P::X + 64, lane);
}

/* ---- the kernel ---- */

/* What a block knows of its work, and a warp of its part. A tile is RUNS times n_x units. */
struct one_work {
    int t0, n_tiles, n_x, n_units;
    int left, tile, run, u; /* the part: so many units from here on */
};

/* What a warp asks for next. */
struct one_ahead {
    const uint8_t *src; /* NULL: a run begins */
    int left, tile, run, u;
    int n;       /* rows of this run */
    bool second; /* of the two types */
};
template <class A, class B, class R>
__device__ __forceinline__ void one_fetch(const struct mv_args &a, R &ring, struct one_ahead &in,
                                          const struct one_work &w, int lane)
{
    if (in.left > 0) {
        if (!in.src) {
            struct mv_place p = mv_place_of(a, w.t0, in.tile);
            const struct mv_job &job = a.jobs[p.job];
            in.second = A::TYPE != B::TYPE && job.second;
            in.n = A::count(job, p.tile, in.run);
            in.src = in.second ? B::at(a, job, p.tile, in.run, in.u, lane)
                               : A::at(a, job, p.tile, in.run, in.u, lane);
        }
        if (in.second) B::fetch(ring, a, in.src, in.n, in.u, lane);
        else A::fetch(ring, a, in.src, in.n, in.u, lane);
        in.src += in.second ? B::STEP : A::STEP;
        in.left--;
        if (++in.u == w.n_x) {
            in.u = 0;
            in.src = NULL;
            if (++in.run == A::RUNS) in.run = 0, in.tile++;
        }
    }
    ring.put_end();
}

/* The units of a warp, and its sum of every tile it meets to `part`. */
template <class A, class B, class R>
__device__ __forceinline__ void one_loop(const struct mv_args &a, uint8_t *mem, R &ring,
                                         struct one_ahead &in, struct one_work w, int warp,
                                         int lane)
{
    float *part = (float *)(mem + a.at_part), acc[2] = { 0.f, 0.f };
    struct one_right ra, rb;
    one_right_open<A>(ra, lane);
    if (A::TYPE != B::TYPE) one_right_open<B>(rb, lane);
    bool second = A::TYPE != B::TYPE && a.jobs[mv_place_of(a, w.t0, w.tile).job].second;
#pragma unroll 1
    for (; w.left > 0; w.left--) {
        const uint8_t *p = ring.get();
        if (A::TYPE == B::TYPE || !second)
            one_unit<A>(acc, p, A::count(a, w.u), ra, mem + a.at_x + w.u * A::X_UNIT, lane);
        else one_unit<B>(acc, p, B::count(a, w.u), rb, mem + a.at_x + w.u * B::X_UNIT, lane);
        ring.drop();
        one_fetch<A, B>(a, ring, in, w, lane);
        if (++w.u < w.n_x && w.left > 1) continue;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            acc[h] += __shfl_xor_sync(~0u, acc[h], 1);
            acc[h] += __shfl_xor_sync(~0u, acc[h], 2);
            if ((lane & 3) == 0) part[(warp + w.tile) * TILE_ROWS + (lane >> 2) + 8 * h] = acc[h];
            acc[h] = 0.f;
        }
        w.u = 0;
        w.tile++;
        if (A::TYPE != B::TYPE && w.left > 1)
            second = a.jobs[mv_place_of(a, w.t0, w.tile).job].second;
    }
}

/* Eight numbers of 16 bits as F32. */
template <int T> __device__ __forceinline__ void eight_f(float f[8], uint4 v)
{
    const uint32_t *w = &v.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 p = T == DT_F16 ? __half22float2(*(const __half2 *)(w + i))
                               : make_float2(__uint_as_float(w[i] << 16),
                                             __uint_as_float(w[i] & 0xffff0000));
        f[2 * i] = p.x, f[2 * i + 1] = p.y;
    }
}

/* The same of plain weights. `part` is zero to begin with: a warp need not meet all rows of a tile.
 */
template <class P, class R>
__device__ __forceinline__ void one_loop_plain(const struct mv_args &a, uint8_t *mem, R &ring,
                                               struct one_ahead &in, struct one_work w, int warp,
                                               int lane)
{
    float *part = (float *)(mem + a.at_part), acc[P::ROWS] = {};
#pragma unroll 1
    for (; w.left > 0; w.left--) {
        const uint8_t *p = ring.get() + lane * 16, *at = mem + a.at_x + w.u * P::X_UNIT;
        float x[8], one = *(const float *)(at + one_scale_at<P::KIND>(lane / 2));
        if (P::X == 512) eight_f<DT_F16>(x, *(const uint4 *)(at + lane * 16));
        else
            ((float4 *)x)[0] = ((const float4 *)at)[2 * lane],
                     ((float4 *)x)[1] = ((const float4 *)at)[2 * lane + 1];
#pragma unroll
        for (int r = 0; r < P::ROWS; r++) {
            float v[8], sum = 0.f;
            eight_f<P::TYPE>(v, *(const uint4 *)(p + r * P::LINE));
#pragma unroll
            for (int i = 0; i < 8; i++) sum = fmaf(v[i], x[i], sum);
            acc[r] = fmaf(one, sum, acc[r]);
        }
        ring.drop();
        one_fetch<P, P>(a, ring, in, w, lane);
        if (++w.u < w.n_x && w.left > 1) continue;
#pragma unroll
        for (int r = 0; r < P::ROWS; r++) {
            float sum = warp_sum(acc[r]);
            if (lane == 0) part[(warp + w.tile) * TILE_ROWS + w.run * P::ROWS + r] = sum;
            acc[r] = 0.f;
        }
        w.u = 0;
        if (++w.run == P::RUNS) w.run = 0, w.tile++;
    }
}

/* Output i of the block: where it goes (NULL: nowhere), its row, and which warps have parts of it
 * (of a pair, 16 bits further, which of the up's). */
struct one_slot {
    float *out;
    int job, r, at; /* at: of warp 0's part */
    uint32_t warps;
};
__device__ __forceinline__ struct one_slot one_slot_of(const struct mv_args &a,
                                                       const struct one_work &w, int i)
{
    int item = i / TILE_ROWS, k = a.pairs ? 2 * item : item, total = w.n_tiles * w.n_units;
    struct mv_place p = mv_place_of(a, w.t0, k);
    struct one_slot s = { NULL, p.job, p.tile * TILE_ROWS + i % TILE_ROWS,
                          k * TILE_ROWS + i % TILE_ROWS, 0 };
    if (s.r < a.jobs[p.job].rows) s.out = a.jobs[p.job].out + s.r;
#pragma unroll
    for (int v = 0; v < ONE_WARPS; v++) {
        int lo = total * v / ONE_WARPS, hi = total * (v + 1) / ONE_WARPS;
        if (lo < hi && lo < (k + 1) * w.n_units && hi > k * w.n_units) s.warps |= 1u << v;
        if (lo < hi && lo < (k + 2) * w.n_units && hi > (k + 1) * w.n_units)
            s.warps |= 0x10000u << v;
    }
    return s;
}

/* The sum of parts, the next warp's a tile further. */
__device__ __forceinline__ float one_total(const float *part, uint32_t warps)
{
    float s = 0.f;
#pragma unroll
    for (int v = 0; v < ONE_WARPS; v++)
        if (warps >> v & 1) s += part[v * TILE_ROWS];
    return s;
}

__device__ __forceinline__ float one_end(const struct mv_args &a, const float *part,
                                         const struct one_slot &s, float last, float old)
{
    const struct mv_job &job = a.jobs[s.job];
    float y = mv_finish(job, last * one_total(part + s.at, s.warps), s.r);
    if (a.pairs) {
        float up = last * one_total(part + s.at + TILE_ROWS, s.warps >> 16);
        y = act_of(a.act, y) * mv_finish(a.jobs[1], up, s.r);
    } else if (a.active) {
        y = act_of(a.act, y);
    } else if (job.add) {
        y += old;
    }
    *s.out = y;
    return y;
}

/* An RMS norm's factor, by a whole warp: from the squares' sums that were taken over, of this lane.
 */
__device__ __forceinline__ float one_factor(const struct mv_args &a, float sq)
{
    return rsqrtf(__fdividef(sq, (float)a.cols) + a.eps);
}

/* hasty: the next kernel may begin at once, and its weights are on their way while this one still
 * waits for x. Behind attention it may not: two kernels' weights would be in attention's way. */
template <class A, class B>
__global__ void __launch_bounds__(32 * ONE_WARPS, 2)
    mv_one(const __grid_constant__ struct mv_args a)
{
    constexpr int STAGE = A::STAGE > B::STAGE ? A::STAGE : B::STAGE;
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ struct mv_state st;
    __shared__ uint64_t bars[ONE_WARPS * MV_STAGES], x_bar;
    int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
    float *part = (float *)(mem + a.at_part);
    struct one_work w;

    if (a.hasty) cu_next();
    w.t0 = mv_first(a, blockIdx.x);
    w.n_tiles = mv_first(a, blockIdx.x + 1) - w.t0;
    w.n_x = (a.cols + ONE_UNIT - 1) / ONE_UNIT;
    w.n_units = A::RUNS * w.n_x;
    int lo = w.n_tiles * w.n_units * warp / ONE_WARPS;
    w.left = w.n_tiles * w.n_units * (warp + 1) / ONE_WARPS - lo;
    w.tile = lo / w.n_units;
    w.run = (lo - w.tile * w.n_units) / w.n_x;
    w.u = lo - w.tile * w.n_units - w.run * w.n_x;
    struct one_ahead in = { NULL, w.left, w.tile, w.run, w.u, 0, false };
    mv_ring<STAGE, true> ring;
    ring.open(mem, bars, a.stages, warp, lane);
    if (A::PLAIN && a.cols % ONE_UNIT) ring.clear(lane); /* behind the last column x is 0 */
#pragma unroll 1
    for (int i = 0; i < a.stages; i++) one_fetch<A, B>(a, ring, in, w, lane);
    int outs = (a.pairs ? w.n_tiles / 2 : w.n_tiles) * TILE_ROWS;
    struct one_slot slot = {};
    if ((int)threadIdx.x < outs) slot = one_slot_of(a, w, threadIdx.x);
    float then_w = slot.out && a.then.norm_w ? __ldg(a.then.norm_w + slot.r) : 1.f;
    if (A::PLAIN)
        for (int i = threadIdx.x; i < (ONE_WARPS + w.n_tiles) * TILE_ROWS; i += 32 * ONE_WARPS)
            part[i] = 0.f;

    float sq = 0.f, last = 1.f;
    if (a.ready) {
        one_take<A>(a, mem, &x_bar, w.n_x, warp);
        if (a.ready_sq && warp * 32 < outs)
            for (int i = lane; i < a.cols / TILE_ROWS; i += 32) sq += __ldcg(a.ready_sq + i);
    } else {
        if (a.norm == CU_NORM_NONE) one_fill<A, false>(a, st, mem, w.n_x, warp, lane);
        else one_fill<A, true>(a, st, mem, w.n_x, warp, lane);
        __syncthreads();
    }
    float old = slot.out && !a.active && a.jobs[slot.job].add ? __ldcg(slot.out) : 0.f;
    if (a.ready) one_taken(&x_bar);
    if constexpr (A::PLAIN) one_loop_plain<A>(a, mem, ring, in, w, warp, lane);
    else one_loop<A, B>(a, mem, ring, in, w, warp, lane);
    if (a.ready_sq) last = one_factor(a, warp_sum(sq));
    __syncthreads();
    if (a.norm == CU_NORM_RMS && !a.ready) {
#pragma unroll
        for (int i = 0; i < ONE_WARPS; i++) sq += st.sq[0][i];
        last = one_factor(a, sq);
    }
    for (int i = threadIdx.x; i - lane < outs; i += 32 * ONE_WARPS) {
        if (i >= 32 * ONE_WARPS) {
            slot = {};
            if (i < outs) slot = one_slot_of(a, w, i);
            if (slot.out && a.jobs[slot.job].add) old = __ldcg(slot.out);
            if (slot.out && a.then.norm_w) then_w = __ldg(a.then.norm_w + slot.r);
        }
        float y = slot.out ? one_end(a, part, slot, last, old) : 0.f;
        if (a.then.kind) one_hand(a, y, then_w, slot.out ? slot.r : -1, lane);
    }
}

template <class A, class B> struct mv_kernel *mv_one_of(void)
{
    static_assert(A::X_UNIT == B::X_UNIT, "types that go together");
    static struct mv_kernel k = {};
    if (k.run) return &k;
    k.stage = A::STAGE > B::STAGE ? A::STAGE : B::STAGE;
    k.warps = ONE_WARPS;
    k.x_unit = A::X_UNIT;
    k.x_kind = (enum mv_x)A::KIND;
    k.run = mv_one<A, B>;
    return &k;
}
#endif
