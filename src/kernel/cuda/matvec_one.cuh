/* matvec_one.cuh - the kernel for one token: a vector times all rows of one or several weights.
 *
 * Block formats are multiplied as integers. Weights are unpacked to bytes (matvec_bytes.cuh); x is
 * quantized to 16-bit integers with a scale for every 16 columns (a sixteen), stored as a high and
 * a low byte. One m16n8k32 multiplies 16 rows by 32 columns with an 8-column B operand, of which
 * only four columns are not zero: the high and the low bytes of each of the two sixteens. So the
 * sums of four sixteens come out side by side and exact after two products, and every lane applies
 * the scales of its own sums. Plain weights are multiplied in F32, each lane along the rows.
 *
 * Work: a block's tiles times their units (256 columns; of plain weights also 4 rows) are one
 * sequence of units, divided into 8 equal parts, one for each warp, each with a ring of its own
 * (matvec_ring.cuh). A warp keeps a sum for every tile that it meets; the sums of a tile are added
 * at the end, always in the order of the warps, so results do not vary.
 *
 * A block uses about half of an SM's shared memory: a block of the next kernel fits beside it and
 * fills its ring while this one ends (see mv_fit_smem_one). */
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

/* ---- the products of a unit ---- */

struct __align__(16) one_words { uint32_t w[4]; };

/* The B operand: which bytes of x a lane takes. Lanes whose column belongs to another sixteen take
 * zeros. */
struct one_right {
    uint32_t select[2][2]; /* [even or odd group][word]: selectors of __byte_perm */
};
/* The selector for half h of a group, word w. 4 selects a zero byte. */
__host__ __device__ constexpr uint32_t one_select(int order, int h, int w)
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
        r.select[i][0] = !on ? 0x4444 : high ? one_select(ORDER, 1, 0) : one_select(ORDER, 0, 0);
        r.select[i][1] = !on ? 0x4444 : high ? one_select(ORDER, 1, 1) : one_select(ORDER, 0, 1);
    }
}

/* Adds the sums d of four sixteens, scaled, to acc. scale: the scales of x; sums: the sums of x's
 * sixteens, for BIAS and minima. */
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

/* Adds rows g and g + 8 of the unit at p to acc. n: tiles that exist; the last unit of a row may
 * have fewer. CLAMP: what is after them is not read. */
template <class P, bool CLAMP = false>
__device__ __forceinline__ void one_unit(float acc[2], const uint8_t *p, int n,
                                         const struct one_right &right, const uint8_t *x, int lane)
{
    constexpr int GROUP = P::Q::GROUP;
    int d[4][4] = {};
    struct one_words xs = *(const struct one_words *)(x + lane * 16);
#pragma unroll
    for (int j = 0; j < 8 / GROUP; j++) {
        uint32_t a[GROUP][4];
        int k = CLAMP && P::TILES > 1 ? min(j / P::LOADS, n - 1) : j / P::LOADS;
        P::N::load(a, p + k * P::BYTES, lane, j % P::LOADS);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            int b = j * GROUP + i;
            uint32_t w = xs.w[b / 2];
            one_mma(d[b / 2], a[i], __byte_perm(w, 0, right.select[b % 2][0]),
                    __byte_perm(w, 0, right.select[b % 2][1]));
        }
    }
    struct one_words scale = *(const struct one_words *)(x + P::X + (lane & 3) * 16);
    one_scaled<P::Q::MIN, P::N::BIAS>(acc, P::N::open(p, n, lane), d, scale, x + P::X + 64, lane);
}

/* The same in F16, for tiles that have no form as bytes. All eight columns of the B operand are x,
 * so all four lanes of a row get the same sums, which the caller adds up: hence the quarter. A tile
 * that does not exist is not read: what is there may be NaN. */
template <class P>
__device__ __forceinline__ void one_unit_half(float acc[2], const uint8_t *p, int n,
                                              const uint8_t *x, int lane)
{
    using Q = typename P::Q;
#pragma unroll
    for (int k = 0; k < P::TILES; k++, p += P::BYTES) {
        if (k >= n) break;
        typename Q::head head = Q::open(p, lane);
        float s[2] = { 0.f, 0.f };
#pragma unroll
        for (int j = 0; j < P::LOADS; j++) {
            uint32_t a[Q::GROUP][2][4];
            Q::load(a, p, lane, j);
#pragma unroll
            for (int i = 0; i < 2 * Q::GROUP; i++) {
                const uint32_t *r0 = a[i / 2][0] + i % 2 * 2, *r1 = a[i / 2][1] + i % 2 * 2;
                int six = k * (Q::COLS / 16) + j * 2 * Q::GROUP + i; /* of the unit's sixteens */
                uint2 v = *(const uint2 *)(x + 32 * six + 8 * (lane & 3));
                float d[4] = { 0.f, 0.f, 0.f, 0.f };
                float by = *(const float *)(x + one_scale_at<P::KIND>(six));
                mv_mma(d, r0[0], r1[0], r0[1], r1[1], v.x, v.y);
                s[0] = fmaf(by, d[0], s[0]);
                s[1] = fmaf(by, d[2], s[1]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) acc[h] = fmaf(0.25f * head.d[h], s[h], acc[h]);
    }
}

/* ---- the kernel ---- */

/* The work of a block, and a warp's part of it. A tile has RUNS times n_x units. */
struct one_work {
    int t0, n_tiles, n_x, n_units;
    int left, tile, run, u; /* the part: `left` units from this one on */
};

/* What a warp fetches next. */
struct one_fetcher {
    const uint8_t *src; /* NULL: a run of consecutive units starts */
    int left, tile, run, u;
    int n;       /* rows of this run */
    bool second; /* of the second of the two types */
};
template <class A, class B, class R>
__device__ __forceinline__ void one_fetch(const struct mv_args &a, R &ring, struct one_fetcher &in,
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
    ring.commit();
}

/* Multiplies the units of a warp and writes its sum of every tile that it meets to `part`. */
template <class A, class B, class R>
__device__ __forceinline__ void one_loop(const struct mv_args &a, uint8_t *mem, R &ring,
                                         struct one_fetcher &in, struct one_work w, int warp,
                                         int lane)
{
    float *part = (float *)(mem + a.at_part), acc[2] = { 0.f, 0.f };
    struct one_right ra, rb;
    if constexpr (!A::HALF) one_right_open<A>(ra, lane);
    if constexpr (A::TYPE != B::TYPE) one_right_open<B>(rb, lane);
    (void)ra, (void)rb;
    bool second = A::TYPE != B::TYPE && a.jobs[mv_place_of(a, w.t0, w.tile).job].second;
#pragma unroll 1
    for (; w.left > 0; w.left--) {
        const uint8_t *p = ring.front();
        if constexpr (A::HALF)
            one_unit_half<A>(acc, p, A::count(a, w.u), mem + a.at_x + w.u * A::X_UNIT, lane);
        else if (A::TYPE == B::TYPE || !second)
            one_unit<A>(acc, p, A::count(a, w.u), ra, mem + a.at_x + w.u * A::X_UNIT, lane);
        else one_unit<B>(acc, p, B::count(a, w.u), rb, mem + a.at_x + w.u * B::X_UNIT, lane);
        ring.pop();
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

/* Eight 16-bit numbers as F32. */
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

/* The same for plain weights. `part` starts as zeros, because a warp need not meet all rows of a
 * tile. */
template <class P, class R>
__device__ __forceinline__ void one_loop_plain(const struct mv_args &a, uint8_t *mem, R &ring,
                                               struct one_fetcher &in, struct one_work w, int warp,
                                               int lane)
{
    float *part = (float *)(mem + a.at_part), acc[P::ROWS] = {};
#pragma unroll 1
    for (; w.left > 0; w.left--) {
        const uint8_t *p = ring.front() + lane * 16, *at = mem + a.at_x + w.u * P::X_UNIT;
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
        ring.pop();
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

/* Output i of the block: its address (NULL: no such row), its row, and a bit set of the warps that
 * have parts of it; for a pair the warps of the up tile are 16 bits higher. */
struct one_slot {
    float *out;
    int job, r, at; /* at: offset of warp 0's part */
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

/* The sum of the parts; the next warp's part is one tile further. */
__device__ __forceinline__ float one_sum_parts(const float *part, uint32_t warps)
{
    float s = 0.f;
#pragma unroll
    for (int v = 0; v < ONE_WARPS; v++)
        if (warps >> v & 1) s += part[v * TILE_ROWS];
    return s;
}

__device__ __forceinline__ float one_write(const struct mv_args &a, const float *part,
                                           const struct one_slot &s, float last, float old)
{
    const struct mv_job &job = a.jobs[s.job];
    float y = mv_finish(job, last * one_sum_parts(part + s.at, s.warps), s.r);
    if (a.pairs) {
        float up = last * one_sum_parts(part + s.at + TILE_ROWS, s.warps >> 16);
        y = act_of(a.act, y) * mv_finish(a.jobs[1], up, s.r);
    } else if (a.active) {
        y = act_of(a.act, y);
    } else if (job.add) {
        y += old;
    }
    *s.out = y;
    return y;
}

/* The factor of an RMS norm. sq: the sum of squares of x. */
__device__ __forceinline__ float one_factor(const struct mv_args &a, float sq)
{
    return rsqrtf(__fdividef(sq, (float)a.cols) + a.eps);
}

/* next_early: the next kernel may start at once, and its weights are in flight while this one still
 * waits for x. Not after attention: the weights of two kernels would compete with attention's keys
 * and values (536 instead of 559 tokens/s, Q4_K_M on an H200). */
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

    if (a.next_early) cu_release_next();
    w.t0 = mv_first_tile(a, blockIdx.x);
    w.n_tiles = mv_first_tile(a, blockIdx.x + 1) - w.t0;
    w.n_x = (a.cols + ONE_UNIT - 1) / ONE_UNIT;
    w.n_units = A::RUNS * w.n_x;
    int lo = w.n_tiles * w.n_units * warp / ONE_WARPS;
    w.left = w.n_tiles * w.n_units * (warp + 1) / ONE_WARPS - lo;
    w.tile = lo / w.n_units;
    w.run = (lo - w.tile * w.n_units) / w.n_x;
    w.u = lo - w.tile * w.n_units - w.run * w.n_x;
    struct one_fetcher in = { NULL, w.left, w.tile, w.run, w.u, 0, false };
    mv_ring<STAGE, true> ring;
    ring.open(mem, bars, a.stages, warp, lane);
    /* columns that no copy fills must be finite; x is 0 there */
    if (A::PLAIN && a.cols % ONE_UNIT) ring.clear(lane);
#pragma unroll 1
    for (int i = 0; i < a.stages; i++) one_fetch<A, B>(a, ring, in, w, lane);
    int outs = (a.pairs ? w.n_tiles / 2 : w.n_tiles) * TILE_ROWS;
    struct one_slot slot = {};
    if ((int)threadIdx.x < outs) slot = one_slot_of(a, w, threadIdx.x);
    float next_w = slot.out && a.next.norm_w ? __ldg(a.next.norm_w + slot.r) : 1.f;
    if (A::PLAIN)
        for (int i = threadIdx.x; i < (ONE_WARPS + w.n_tiles) * TILE_ROWS; i += 32 * ONE_WARPS)
            part[i] = 0.f;

    float sq = 0.f, last = 1.f;
    if (a.x_ready) {
        one_copy_x<A>(a, mem, &x_bar, w.n_x, warp);
        if (a.x_ready_sq && warp * 32 < outs)
            for (int i = lane; i < a.cols / TILE_ROWS; i += 32) sq += __ldcg(a.x_ready_sq + i);
    } else {
        if (a.norm == CU_NORM_NONE) one_fill_x<A, false>(a, st, mem, w.n_x, warp, lane);
        else one_fill_x<A, true>(a, st, mem, w.n_x, warp, lane);
        __syncthreads();
    }
    float old = slot.out && !a.active && a.jobs[slot.job].add ? __ldcg(slot.out) : 0.f;
    if (a.x_ready) one_wait_x(&x_bar);
    if constexpr (A::PLAIN) one_loop_plain<A>(a, mem, ring, in, w, warp, lane);
    else one_loop<A, B>(a, mem, ring, in, w, warp, lane);
    if (a.x_ready_sq) last = one_factor(a, warp_sum(sq));
    __syncthreads();
    if (a.norm == CU_NORM_RMS && !a.x_ready) {
#pragma unroll
        for (int i = 0; i < ONE_WARPS; i++) sq += st.sq[0][i];
        last = one_factor(a, sq);
    }
    for (int i = threadIdx.x; i - lane < outs; i += 32 * ONE_WARPS) {
        if (i >= 32 * ONE_WARPS) {
            slot = {};
            if (i < outs) slot = one_slot_of(a, w, i);
            if (slot.out && a.jobs[slot.job].add) old = __ldcg(slot.out);
            if (slot.out && a.next.norm_w) next_w = __ldg(a.next.norm_w + slot.r);
        }
        float y = slot.out ? one_write(a, part, slot, last, old) : 0.f;
        if (a.next.kind) one_write_next_x(a, y, next_w, slot.out ? slot.r : -1, lane);
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
