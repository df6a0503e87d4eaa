/* matvec_one_x.cuh - the kernel for one token: x in shared memory, in the form that the weight type
 * needs.
 *
 * A unit of x is 256 columns: its numbers as 16-bit integers (a high and a low byte), F16 or F32;
 * then a scale for every 16 columns (a power of two); for block formats also the sum of those 16
 * numbers. The factor of an RMS norm is applied to the results, so that x is read only once. A unit
 * does not depend on the weight type beyond that: the operation that computes x can write the units
 * for the next one (one_write_next_x), which then only copies them (one_copy_x). */
#ifndef TERN_KERNEL_CUDA_MATVEC_ONE_X_CUH
#define TERN_KERNEL_CUDA_MATVEC_ONE_X_CUH

#include "kernel/cuda/matvec_bytes.cuh"
#include "kernel/cuda/matvec_run.cuh"

/* The bits of 1.5 * 2^23: a float added to it leaves its rounded integer in the low bits. */
#define ONE_MAGIC 0x4b400000

/* Block formats. A unit of x has 16 bytes for each lane, X in all, then scales and sums in the
 * order in which lanes read them. */
template <int T> struct one_tiles {
    using Q = tile<T>;
    using N = bytes<T>;
    static constexpr int LOADS = Q::COLS / 32 / Q::GROUP; /* of a tile */
    static constexpr int TYPE = T, BYTES = layout_of(T).bytes, TILES = ONE_UNIT / Q::COLS,
                         STAGE = TILES * BYTES;
    static constexpr int X = 512, X_UNIT = X + 128, RUNS = 1, KIND = MV_X_INT16;
    static constexpr int STEP = STAGE; /* bytes from one unit of a run to the next */
    static constexpr bool PLAIN = false, HALF = false;

    /* Rows of a unit. */
    static __device__ __forceinline__ int count(const struct mv_job &, int, int)
    {
        return TILE_ROWS;
    }
    /* Tiles of unit u that exist. */
    static __device__ __forceinline__ int count(const struct mv_args &a, int u)
    {
        return TILES == 1 ? 1 : min(TILES, layout_blocks(T, a.cols) - u * TILES);
    }
    /* The address of unit u of tile t, and its bytes into the ring. The units of a run are
     * contiguous in memory. */
    static __device__ __forceinline__ const uint8_t *at(const struct mv_args &a,
                                                        const struct mv_job &job, int t, int, int u,
                                                        int)
    {
        return job.w + ((size_t)t * layout_blocks(T, a.cols) + u * TILES) * BYTES;
    }
    template <class R>
    static __device__ __forceinline__ void fetch(R &ring, const struct mv_args &a,
                                                 const uint8_t *src, int, int u, int lane)
    {
        ring.push(src, count(a, u) * BYTES, lane);
    }
};

/* Tiles that become F16 exactly and cannot become bytes (E4M3): x is F16 too. */
template <int T> struct one_halves : one_tiles<T> {
    static constexpr int X = 512, X_UNIT = X + 64, KIND = MV_X_F16;
    static constexpr bool HALF = true;
};

/* F16 and BF16: a unit is four rows, a tile RUNS of them. x is F16 for F16 weights, F32 for
 * BF16. */
template <int T> struct one_rows {
    static constexpr int TYPE = T, LINE = 2 * ONE_UNIT, ROWS = 4, STAGE = ROWS * LINE,
                         RUNS = TILE_ROWS / ROWS;
    static constexpr int X = T == DT_F16 ? 512 : 1024, X_UNIT = X + 64, STEP = LINE;
    static constexpr int KIND = T == DT_F16 ? MV_X_F16 : MV_X_F32;
    static constexpr bool PLAIN = true, HALF = false;

    static __device__ __forceinline__ const uint8_t *at(const struct mv_args &a,
                                                        const struct mv_job &job, int t, int run,
                                                        int u, int)
    {
        int row = min(t * TILE_ROWS + run * ROWS, job.rows - 1);
        return job.w + ((size_t)row * layout_stride(T, a.cols) + (size_t)u * ONE_UNIT) * 2;
    }
    /* Rows of a unit that exist, at least 1. Rows after the last are copies of it. */
    static __device__ __forceinline__ int count(const struct mv_job &job, int t, int run)
    {
        return max(1, min(ROWS, job.rows - t * TILE_ROWS - run * ROWS));
    }
    template <class R>
    static __device__ __forceinline__ void fetch(R &ring, const struct mv_args &a,
                                                 const uint8_t *src, int n, int u, int lane)
    {
        size_t stride = layout_stride(T, a.cols) * 2;
        ring.template push_rows<ROWS, LINE>(src, n, stride, min(LINE, (int)stride - u * LINE),
                                            lane);
    }
};

/* Byte k of each of four integers, as one word. */
__device__ __forceinline__ uint32_t one_pack(int a, int b, int c, int d, int k)
{
    uint32_t select = k | (4 + k) << 4;
    return __byte_perm(__byte_perm(a, b, select), __byte_perm(c, d, select), 0x5410);
}

/* `by`: factor for 16 numbers whose largest magnitude has the bits `top`; `back`: their scale
 * afterwards. */
struct one_scale {
    float by, back;
};
template <int KIND> __device__ __forceinline__ struct one_scale one_scale_of(uint32_t top)
{
    constexpr uint32_t BITS = KIND == MV_X_INT16 ? 13 : 8; /* integers < 2^14, F16 < 2^9 */
    uint32_t e = top >> 23;
    if (KIND == MV_X_F32) return { 1.f, 1.f };
    if (top < 0x0d800000) return { 0.f, 0.f };  /* all below 2^-100: zero */
    if (top >= 0x7e800000) return { 0.f, NAN }; /* a NaN, or beyond 2^126 */
    return { __uint_as_float((254 + BITS - e) << 23), __uint_as_float((e - BITS) << 23) };
}

/* Offset in a unit of the scale of sixteen i. The sum of an integer sixteen is 64 bytes further. */
template <int KIND> __device__ __forceinline__ int one_scale_at(int i)
{
    return KIND == MV_X_F32   ? 1024 + 4 * i
           : KIND == MV_X_F16 ? 512 + 4 * i
                              : 512 + (i % 4 * 4 + i / 4) * 4;
}
/* Offset in a unit of the high bytes of four integers: group b of 32 columns, half h, fours t of
 * the half. Their low bytes are 64 bytes further. */
__device__ __forceinline__ int one_four_at(int b, int h, int t)
{
    return 256 * (b & 1) + 128 * h + 16 * t + (b >> 1) * 4;
}

/* Writes a lane's eight numbers to unit x: lane 4b + t has four of each half of group b. */
template <class P>
__device__ __forceinline__ void one_store(uint8_t *x, const float f[8], const uint32_t top[2],
                                          int lane)
{
    int b = lane >> 2, t = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *v = f + 4 * h;
        struct one_scale s = one_scale_of<P::KIND>(top[h]);
        uint8_t *scale = x + one_scale_at<P::KIND>(2 * b + h);
        if (P::KIND == MV_X_F32) {
            *(float4 *)(x + (32 * b + 16 * h + 4 * t) * 4) = make_float4(v[0], v[1], v[2], v[3]);
        } else if (P::KIND == MV_X_F16) {
            __half2 lo = __floats2half2_rn(v[0] * s.by, v[1] * s.by),
                    hi = __floats2half2_rn(v[2] * s.by, v[3] * s.by);
            *(uint2 *)(x + (32 * b + 16 * h + 4 * t) * 2) =
                make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
        } else {
            int q[4], n = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                q[i] = __float_as_int(fmaf(v[i], s.by, __int_as_float(ONE_MAGIC)));
                n += q[i] - ONE_MAGIC;
            }
            uint8_t *to = x + one_four_at(b, h, t);
            *(uint32_t *)to = one_pack(q[0] + 128, q[1] + 128, q[2] + 128, q[3] + 128, 1);
            *(uint32_t *)(to + 64) = one_pack(q[0], q[1], q[2], q[3], 0);
            n += __shfl_xor_sync(~0u, n, 1);
            n += __shfl_xor_sync(~0u, n, 2);
            if (t == 0) *(float *)(scale + 64) = s.back * (float)n;
        }
        if (t == 0) *(float *)scale = s.back;
    }
}

/* Two units at a time, whose latencies overlap. f is zero after the last column. */
template <class P>
__device__ __forceinline__ void one_units_x(const struct mv_args &a, uint8_t *mem,
                                            const float f[2][8], const int u[2], int lane)
{
    uint32_t top[2][2] = {};
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            top[k][i / 4] = max(top[k][i / 4], __float_as_uint(f[k][i]) & 0x7fffffff);
#pragma unroll
    for (int m = 1; m < 4; m <<= 1)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t *t = &top[k / 2][k % 2];
            *t = max(*t, __shfl_xor_sync(~0u, *t, m));
        }
#pragma unroll
    for (int k = 0; k < 2; k++) one_store<P>(mem + a.at_x + u[k] * P::X_UNIT, f[k], top[k], lane);
}

/* Writes number v of column c to units of 16-bit integers at x. A half warp has 16 columns; c < 0:
 * this lane has none. All lanes call it. */
__device__ __forceinline__ void one_put_int16(uint8_t *x, float v, int c, int lane)
{
    unsigned half = 0xffffu << (lane & 16);
    uint32_t top = __reduce_max_sync(half, __float_as_uint(v) & 0x7fffffff);
    struct one_scale s = one_scale_of<MV_X_INT16>(top);
    int q = __float_as_int(fmaf(v, s.by, __int_as_float(ONE_MAGIC))) - ONE_MAGIC,
        n = __reduce_add_sync(half, q), in = c % ONE_UNIT;
    uint32_t p = (uint32_t)((q + 128) >> 8 & 255) << 16 | (uint32_t)(q & 255);
    p |= __shfl_down_sync(~0u, p, 1) << 8; /* even lanes: low, low, high, high */
    uint32_t more = __shfl_down_sync(~0u, p, 2);
    x += c / ONE_UNIT * (512 + 128);
    if (c < 0) return;
    if (in % 4 == 0) {
        uint8_t *four = x + one_four_at(in / 32, in / 16 % 2, in / 4 % 4);
        *(uint32_t *)four = __byte_perm(p, more, 0x7632);
        *(uint32_t *)(four + 64) = __byte_perm(p, more, 0x5410);
    }
    if (in % 16) return;
    *(float *)(x + one_scale_at<MV_X_INT16>(in / 16)) = s.back;
    *(float *)(x + one_scale_at<MV_X_INT16>(in / 16) + 64) = s.back * (float)n;
}

/* Writes the next operation's x. A half warp has 16 columns; this lane has column c, or none if c <
 * 0. Writes y * w (w: the weight of the next norm) and the sum of the y squared. All lanes call
 * it. */
__device__ __forceinline__ void one_write_next_x(const struct mv_args &a, float y, float w, int c,
                                                 int lane)
{
    const struct mv_next_x &to = a.next;
    float v = y * w, sq = y * y;
    unsigned half = 0xffffu << (lane & 16);
    uint32_t top = __reduce_max_sync(half, __float_as_uint(v) & 0x7fffffff);
    int u = c / ONE_UNIT, in = c % ONE_UNIT;
    if (to.sq) {
#pragma unroll
        for (int m = 8; m; m >>= 1) sq += __shfl_xor_sync(~0u, sq, m);
        if (c >= 0 && lane % 16 == 0) to.sq[c / 16] = sq;
    }
    if (to.kind == MV_X_INT16) {
        one_put_int16(to.x, v, c, lane);
    } else if (to.kind == MV_X_F16) {
        struct one_scale s = one_scale_of<MV_X_F16>(top);
        uint8_t *x = to.x + u * (512 + 64);
        if (c < 0) return;
        *(__half *)(x + 2 * in) = __float2half_rn(v * s.by);
        if (in % 16 == 0) *(float *)(x + one_scale_at<MV_X_F16>(in / 16)) = s.back;
    } else if (c >= 0) {
        uint8_t *x = to.x + u * (1024 + 64);
        *(float *)(x + 4 * in) = v;
        if (in % 16 == 0) *(float *)(x + one_scale_at<MV_X_F32>(in / 16)) = 1.f;
    }
}

struct one_eight {
    float4 v[2];
}; /* columns c..c + 3 and the same + 16 */
__device__ __forceinline__ struct one_eight one_load8(const float *p, int c, int cols)
{
    struct one_eight r = {};
    if (c < cols)
        r.v[0] = __ldcg((const float4 *)(p + c)), r.v[1] = __ldcg((const float4 *)(p + c + 16));
    return r;
}

/* Applies a norm without its factor. early: the factor and the mean are known and applied too
 * (layer norm). */
__device__ __forceinline__ void one_norm(const struct mv_args &a, const struct mv_state &st,
                                         float f[8], const struct one_eight &w, int c, bool early)
{
    const float *g = (const float *)&w;
    float mean = early ? st.mean[0] : 0.f, by = early ? st.rs[0] : 1.f;
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = (f[i] - mean) * by * (a.norm_w ? g[i] : 1.f);
    if (!a.norm_b || c >= a.cols) return;
    struct one_eight b = one_load8(a.norm_b, c, a.cols);
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] += ((const float *)&b)[i];
}

/* Fills all units of x, divided among the warps; waits for x first. There is room for one unit more
 * than exist. Lets the next kernel start once its loads are issued. */
template <class P, bool NORMED>
__device__ __forceinline__ void one_fill_x(const struct mv_args &a, struct mv_state &st,
                                           uint8_t *mem, int n_x, int warp, int lane)
{
    constexpr int AHEAD = NORMED ? 2 : 4, STEP = ONE_WARPS * ONE_UNIT;
    bool early = NORMED && a.norm == CU_NORM_LAYER;
    int c = warp * ONE_UNIT + (lane >> 2) * 32 + (lane & 3) * 4;
    struct one_eight x[AHEAD], w[2];
    float sq[2] = { 0.f, 0.f };
    if (NORMED && a.norm_w)
#pragma unroll
        for (int i = 0; i < 2; i++) w[i] = one_load8(a.norm_w, c + i * STEP, a.cols);
    cu_wait_previous();
    if (early) mv_measure_x(a, st, true);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) x[i] = one_load8(a.x, c + i * STEP, a.cols);
    cu_release_next();
#pragma unroll 1
    for (int u = warp; u < n_x; u += 2 * ONE_WARPS, c += 2 * STEP) {
        float f[2][8];
        int to[2] = { u, min(u + ONE_WARPS, n_x) };
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                f[k][i] = ((const float *)&x[k])[i];
                if (NORMED) sq[k] = fmaf(f[k][i], f[k][i], sq[k]);
            }
        if (NORMED)
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (c + k * STEP < a.cols) one_norm(a, st, f[k], w[k], c + k * STEP, early);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            x[i] = i + 2 < AHEAD ? x[(i + 2) % AHEAD]
                                 : one_load8(a.x, c + (AHEAD + i % 2) * STEP, a.cols);
        if (NORMED && a.norm_w)
#pragma unroll
            for (int i = 0; i < 2; i++) w[i] = one_load8(a.norm_w, c + (2 + i) * STEP, a.cols);
        one_units_x<P>(a, mem, f, to, lane);
    }
    if (!NORMED || early) return;
    sq[0] = warp_sum(sq[0] + sq[1]);
    if (lane == 0) st.sq[0][warp] = sq[0];
}

/* The same where x was prepared: starts the copies. */
template <class P>
__device__ __forceinline__ void one_copy_x(const struct mv_args &a, uint8_t *mem, uint64_t *bar,
                                           int n_x, int warp)
{
#if HAS_BULK
    int lo = n_x * warp / ONE_WARPS, n = n_x * (warp + 1) / ONE_WARPS - lo;
    if (threadIdx.x == 0) {
        bar_init_one(smem_at(bar));
        bar_publish();
        bar_expect(smem_at(bar), n_x * P::X_UNIT);
    }
    __syncthreads();
    cu_wait_previous();
    if (n)
        bulk_copy_expected(smem_at(mem + a.at_x + lo * P::X_UNIT), a.x_ready + lo * P::X_UNIT,
                           n * P::X_UNIT, smem_at(bar));
    cu_release_next();
#endif
}
/* Waits for the copies of one_copy_x. */
__device__ __forceinline__ void one_wait_x(uint64_t *bar)
{
#if HAS_BULK
    bar_wait(smem_at(bar), 0);
#endif
}
#endif
