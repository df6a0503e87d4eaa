/* matvec_one_x.cuh - one token's x in shared memory, beside weights in block formats and beside plain ones.
 *
 * Every 256 columns are a unit: 16-bit whole numbers and their scale, or F16 and a power of two, or F32. An RMS norm's
 * factor waits for the end of the products. */
#ifndef TERN_KERNEL_CUDA_MATVEC_ONE_X_CUH
#define TERN_KERNEL_CUDA_MATVEC_ONE_X_CUH

#include "kernel/cuda/matvec_bytes.cuh"
#include "kernel/cuda/matvec_run.cuh"

#define ONE_TOP 32512.f              /* 127 * 256: the largest x */
#define ONE_MAGIC 0x4b400000         /* 1.5 * 2^23: what is added to it comes out as a whole number in the low bits */

/* Block formats. A unit of x: 16 bytes a lane, X in all, and apart from them a word for every sub-block: BIAS times the
 * sum of its whole numbers, or the sum of x where minima are to be multiplied. */
template <int T> struct one_tiles {
    using Q = tile<T>;
    using N = bytes<T>;
    static constexpr int TYPE = T, BYTES = layout_of(T).bytes, TILES = ONE_UNIT / Q::COLS, STAGE = TILES * BYTES;
    static constexpr int SETS = Q::SUB == 16 ? 4 : 2, SUMS = SETS * 16, X = 512, RUNS = 1;
    static constexpr int STEP = STAGE;           /* bytes from a unit to the next of a run */
    static constexpr bool PLAIN = false;

    static __device__ __forceinline__ int count(const struct mv_job &, int, int) { return TILE_ROWS; }    /* rows */
    static __device__ __forceinline__ int count(const struct mv_args &a, int u)                          /* tiles */
    {
        return TILES == 1 ? 1 : min(TILES, a.cols / Q::COLS - u * TILES);
    }
    /* Unit u of tile t, and its bytes to the ring. Units that follow each other in a run do so in memory. */
    static __device__ __forceinline__ const uint8_t *at(const struct mv_args &a, const struct mv_job &job, int t, int,
                                                        int u, int)
    {
        return job.w + ((size_t)t * (a.cols / Q::COLS) + u * TILES) * BYTES;
    }
    template <class R>
    static __device__ __forceinline__ void fetch(R &ring, const struct mv_args &a, const uint8_t *src, int, int u,
                                                 int lane)
    {
        ring.put(src, count(a, u) * BYTES, lane);
    }
};

/* F16 and BF16: four rows are a unit, RUNS of them a tile. x is F16 beside F16, F32 beside BF16. */
template <int T> struct one_rows {
    static constexpr int TYPE = T, LINE = 2 * ONE_UNIT, ROWS = 4, STAGE = ROWS * LINE, RUNS = TILE_ROWS / ROWS;
    static constexpr int X = T == DT_F16 ? 512 : 1024, SUMS = 0, STEP = LINE;
    static constexpr bool PLAIN = true;

    static __device__ __forceinline__ const uint8_t *at(const struct mv_args &a, const struct mv_job &job, int t,
                                                        int run, int u, int)
    {
        int row = min(t * TILE_ROWS + run * ROWS, job.rows - 1);
        return job.w + ((size_t)row * layout_stride(T, a.cols) + (size_t)u * ONE_UNIT) * 2;
    }
    /* Rows behind the last are the last again. */
    static __device__ __forceinline__ int count(const struct mv_job &job, int t, int run)
    {
        return max(1, min(ROWS, job.rows - t * TILE_ROWS - run * ROWS));
    }
    template <class R>
    static __device__ __forceinline__ void fetch(R &ring, const struct mv_args &a, const uint8_t *src, int n, int u,
                                                 int lane)
    {
        size_t stride = layout_stride(T, a.cols) * 2;
        ring.template put_rows<ROWS, LINE>(src, n, stride, min(LINE, (int)stride - u * LINE), lane);
    }
};

/* Byte k of four numbers. */
__device__ __forceinline__ uint32_t one_pack(int a, int b, int c, int d, int k)
{
    uint32_t pick = k | (4 + k) << 4;
    return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, d, pick), 0x5410);
}

/* The eight numbers f of this lane, in the low halves of q as whole ones, to where unit x is. Lane 4b + t has those of
 * group b. */
template <class P>
__device__ __forceinline__ void one_store(uint8_t *x, uint8_t *sums, const float f[8], const int q[8], int lane)
{
    constexpr bool MIN = P::Q::MIN;
    constexpr int PARTS = P::SETS == 2 ? 1 : 2, EACH = 8 / PARTS;
    int b = lane >> 2, t = lane & 3;
#pragma unroll
    for (int hl = 0; hl < 2; hl++) {                     /* high bytes, low bytes */
        int k = 1 - hl, r = hl ? 0 : 128;
        if (P::SETS == 2) {
            uint2 w;
#define AT(i) (q[bytes_at(P::N::ORDER, i)] + r)
            w.x = one_pack(AT(0), AT(1), AT(2), AT(3), k);
            w.y = one_pack(AT(4), AT(5), AT(6), AT(7), k);
#undef AT
            *(uint2 *)(x + (4 * (2 * (b & 3) + hl) + t) * 16 + (b >> 2) * 8) = w;
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++)                  /* 16 columns each */
                *(uint32_t *)(x + (4 * (4 * (b & 1) + 2 * h + hl) + t) * 16 + (b >> 1) * 4) =
                    one_pack(q[4 * h] + r, q[4 * h + 1] + r, q[4 * h + 2] + r, q[4 * h + 3] + r, k);
        }
    }
#pragma unroll
    for (int h = 0; h < PARTS; h++) {
        float s = 0.f;
        int n = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) s += f[h * EACH + i], n += q[h * EACH + i] - ONE_MAGIC;
        if (MIN) {
            s += __shfl_xor_sync(~0u, s, 1);
            s += __shfl_xor_sync(~0u, s, 2);
        } else {
            n += __shfl_xor_sync(~0u, n, 1);
            n += __shfl_xor_sync(~0u, n, 2);
        }
        int sub = b * PARTS + h;                         /* lane t wants those of sub % 4 */
        if (t == 0) ((uint32_t *)sums)[sub % 4 * P::SETS + sub / 4] = MIN ? __float_as_uint(s) : n * P::N::BIAS;
    }
}

/* Beside plain weights: columns as they come. What it returns they are to be multiplied by. */
template <class P>
__device__ __forceinline__ float one_store_plain(uint8_t *x, const float f[8], uint32_t top, int lane)
{
    int c = (lane >> 2) * 32 + (lane & 3) * 4, e = (int)(top >> 23) - 127;
    float by = e < -100 || e > 127 ? 1.f : __uint_as_float((uint32_t)(max(8 - e, -126) + 127) << 23);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float *v = f + 4 * k;
        if (P::X == 1024) {
            *(float4 *)(x + (c + 16 * k) * 4) = make_float4(v[0], v[1], v[2], v[3]);
            continue;
        }
        __half2 lo = __floats2half2_rn(v[0] * by, v[1] * by), hi = __floats2half2_rn(v[2] * by, v[3] * by);
        *(uint2 *)(x + (c + 16 * k) * 2) = make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
    }
    return P::X == 1024 ? 1.f : 1.f / by;
}

/* Two units at a time: neither waits for the other. f is zero behind the last column. */
template <class A, class B>
__device__ __forceinline__ void one_units_x(const struct mv_args &a, uint8_t *mem, const float f[2][8], const int u[2],
                                            int lane)
{
    uint32_t top[2] = { 0, 0 };
    float one[2], by[2];
    int q[2][8];
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) top[k] = max(top[k], __float_as_uint(f[k][i]) & 0x7fffffff);
#pragma unroll
    for (int k = 0; k < 2; k++) top[k] = __reduce_max_sync(~0u, top[k]);
#pragma unroll
    for (int k = 0; k < 2 && !A::PLAIN; k++) {
        bool none = top[k] < 0x0d800000, bad = top[k] >= 0x7e800000;     /* below 2^-100; no number, or beyond 2^126 */
        by[k] = none || bad ? 0.f : __fdividef(ONE_TOP, __uint_as_float(top[k]));
        one[k] = bad ? NAN : none ? 0.f : __uint_as_float(top[k]) / ONE_TOP;
#pragma unroll
        for (int i = 0; i < 8; i++) q[k][i] = __float_as_int(fmaf(f[k][i], by[k], __int_as_float(ONE_MAGIC)));
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        if constexpr (A::PLAIN) {
            one[k] = one_store_plain<A>(mem + a.at_bytes[0] + u[k] * A::X, f[k], top[k], lane);
        } else {
            one_store<A>(mem + a.at_bytes[0] + u[k] * A::X, mem + a.at_sums[0] + u[k] * A::SUMS, f[k], q[k], lane);
            if constexpr (A::TYPE != B::TYPE)
                one_store<B>(mem + a.at_bytes[1] + u[k] * B::X, mem + a.at_sums[1] + u[k] * B::SUMS, f[k], q[k], lane);
        }
        if (lane == 0) ((float *)(mem + a.at_unit))[u[k]] = one[k];
    }
}

struct one_eight { float4 v[2]; };   /* columns c..c + 3 and those 16 further */
__device__ __forceinline__ struct one_eight one_load(const float *p, int c, int cols)
{
    struct one_eight r = {};
    if (c < cols) r.v[0] = __ldcg((const float4 *)(p + c)), r.v[1] = __ldcg((const float4 *)(p + c + 16));
    return r;
}

/* What the norm makes of them before its factor. early: that is known already, and so is the mean. */
__device__ __forceinline__ void one_norm(const struct mv_args &a, const struct mv_state &st, float f[8],
                                         const struct one_eight &w, int c, bool early)
{
    const float *g = (const float *)&w;
    float mean = early ? st.mean[0] : 0.f, by = early ? st.rs[0] : 1.f;
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = (f[i] - mean) * by * (a.norm_w ? g[i] : 1.f);
    if (!a.norm_b || c >= a.cols) return;
    struct one_eight b = one_load(a.norm_b, c, a.cols);
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] += ((const float *)&b)[i];
}

/* All of x, units shared out among the warps; waits for it. There is room for one unit more than there are. The next
 * kernel may begin when x is on its way: not before, so that weights it asks for do not come in between. */
template <class A, class B, bool NORMED>
__device__ __forceinline__ void one_fill(const struct mv_args &a, struct mv_state &st, uint8_t *mem, int n_x, int warp,
                                         int lane)
{
    constexpr int AHEAD = NORMED ? 2 : 4, STEP = ONE_WARPS * ONE_UNIT;
    bool early = NORMED && a.norm == CU_NORM_LAYER;
    int c = warp * ONE_UNIT + (lane >> 2) * 32 + (lane & 3) * 4;
    struct one_eight x[AHEAD], w[2];
    float sq[2] = { 0.f, 0.f };
    if (NORMED && a.norm_w)
#pragma unroll
        for (int i = 0; i < 2; i++) w[i] = one_load(a.norm_w, c + i * STEP, a.cols);
    cu_wait();
    if (early) mv_measure(a, st, true);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) x[i] = one_load(a.x, c + i * STEP, a.cols);
    cu_next();
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
            x[i] = i + 2 < AHEAD ? x[(i + 2) % AHEAD] : one_load(a.x, c + (AHEAD + i % 2) * STEP, a.cols);
        if (NORMED && a.norm_w)
#pragma unroll
            for (int i = 0; i < 2; i++) w[i] = one_load(a.norm_w, c + (2 + i) * STEP, a.cols);
        one_units_x<A, B>(a, mem, f, to, lane);
    }
    if (!NORMED || early) return;
    sq[0] = warp_sum(sq[0] + sq[1]);
    if (lane == 0) st.sq[0][warp] = sq[0];
}
#endif
