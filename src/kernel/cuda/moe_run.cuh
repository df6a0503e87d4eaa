/* moe_run.cuh - experts' matrix products that read weights from global memory directly into
 * registers (few, many).
 *
 * Weights are the A operand of m16n8k16, 16 rows a tile. A warp has two tiles, so that every
 * fragment of x is used twice. */
#ifndef TERN_KERNEL_CUDA_MOE_RUN_CUH
#define TERN_KERNEL_CUDA_MOE_RUN_CUH

#include "kernel/cuda/gemm_w.cuh"
#include "kernel/cuda/cu_moe.cuh"

/* d += a times the two registers b0, b1 of x. */
__device__ __forceinline__ void moe_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t moe_half2(float x, float y)
{
    __half2 h = __halves2half2(half_sat(x), half_sat(y));
    return *(uint32_t *)&h;
}

/* ---- weights: open a tile of 16 rows, then units of UNIT columns of two tiles, 32 columns at a
 * time ---- */

/* Block formats. */
template <int T> struct moe_tiles {
    using Q = tile<T>;
    static constexpr int UNIT = Q::COLS, BYTES = layout_of(T).bytes;
    static constexpr bool NATURAL = false;
    /* The last tile of a row may have more columns than the matrix. */
    static constexpr bool PADDED = T >= LAYOUT_U4;
    const uint8_t *p;
    int n_cols;

    __device__ __forceinline__ void open(const uint8_t *w, int rows, int cols, int t, int)
    {
        p = w + (size_t)min(t, (rows - 1) / TILE_ROWS) * (size_t)layout_blocks(T, cols) * BYTES;
        n_cols = cols;
    }
    /* Scales and minima of group b of the tile applied to the pairs v. */
    static __device__ __forceinline__ void finish(uint32_t (&a)[2][4], const uint32_t (&v)[2][4],
                                                  const typename Q::head &head, int b)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float scale[2], low[2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                scale[s] = head.d[h] * Q::small(head, h, b, s);
                low[s] = packed_low<T>(head, h, b, s);
            }
            packed_scaled<T>(a, h, v[h], scale, low);
        }
    }
    template <class F>
    static __device__ __forceinline__ void unit(const moe_tiles &t0, const moe_tiles &t1, int u,
                                                int lane, F body)
    {
        const uint8_t *p0 = t0.p + (size_t)u * BYTES, *p1 = t1.p + (size_t)u * BYTES;
        typename Q::head h0 = Q::open(p0, lane), h1 = Q::open(p1, lane);
#pragma unroll
        for (int j = 0; j < Q::COLS / 32 / Q::GROUP; j++) {
            uint32_t v0[Q::GROUP][2][4], v1[Q::GROUP][2][4];
            Q::load(v0, p0, lane, j);
            Q::load(v1, p1, lane, j);
#pragma unroll
            for (int i = 0; i < Q::GROUP; i++) {
                uint32_t a0[2][4], a1[2][4];
                if (PADDED && u * Q::COLS + 32 * (j * Q::GROUP + i) >= t0.n_cols) break;
                finish(a0, v0[i], h0, j * Q::GROUP + i);
                finish(a1, v1[i], h1, j * Q::GROUP + i);
                body(u * Q::COLS + 32 * (j * Q::GROUP + i), a0, a1);
            }
        }
    }
    /* The same of one tile. */
    template <class F> __device__ __forceinline__ void unit_one(int u, int lane, F body) const
    {
        const uint8_t *q = p + (size_t)u * BYTES;
        typename Q::head head = Q::open(q, lane);
#pragma unroll
        for (int j = 0; j < Q::COLS / 32 / Q::GROUP; j++) {
            uint32_t v[Q::GROUP][2][4];
            Q::load(v, q, lane, j);
#pragma unroll
            for (int i = 0; i < Q::GROUP; i++) {
                uint32_t a[2][4];
                if (PADDED && u * Q::COLS + 32 * (j * Q::GROUP + i) >= n_cols) break;
                finish(a, v[i], head, j * Q::GROUP + i);
                body(u * Q::COLS + 32 * (j * Q::GROUP + i), a);
            }
        }
    }
};

/* Plain types: of 32 columns lane 4 g + t has 8 t .. 8 t + 7 of rows g and g + 8. */
template <int T> struct moe_rows {
    static constexpr int UNIT = 32, SIZE = T == DT_F32 ? 4 : 2;
    static constexpr bool NATURAL = true;
    const uint8_t *row[2];
    int stride;

    __device__ __forceinline__ void open(const uint8_t *w, int rows, int cols, int t, int lane)
    {
        int r = t * TILE_ROWS + (lane >> 2);
        stride = (int)layout_stride(T, cols);
        row[0] = w + (size_t)min(r, rows - 1) * stride * SIZE;
        row[1] = w + (size_t)min(r + 8, rows - 1) * stride * SIZE;
    }
    /* Eight numbers as F16 pairs; zeros after the end of the row. */
    static __device__ __forceinline__ uint4 eight(const uint8_t *p, int c, int stride)
    {
        if (c >= stride) return make_uint4(0, 0, 0, 0);
        uint4 v = *(const uint4 *)(p + (size_t)c * SIZE);
        if (T == DT_F16) return v;
        if (T == DT_BF16)
            return make_uint4(packed_bf16::to_f16(v.x), packed_bf16::to_f16(v.y),
                              packed_bf16::to_f16(v.z), packed_bf16::to_f16(v.w));
        float4 f = *(float4 *)&v, g = make_float4(0.f, 0.f, 0.f, 0.f);
        if (c + 4 < stride) g = *(const float4 *)(p + (size_t)(c + 4) * SIZE);
        return make_uint4(moe_half2(f.x, f.y), moe_half2(f.z, f.w), moe_half2(g.x, g.y),
                          moe_half2(g.z, g.w));
    }
    /* Registers of two m16n8k16: columns c .. c + 7 of both rows. */
    __device__ __forceinline__ void fragment(uint32_t (&a)[2][4], int c) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = eight(row[h], c, stride);
            a[0][h] = v.x, a[0][h + 2] = v.y;
            a[1][h] = v.z, a[1][h + 2] = v.w;
        }
    }
    template <class F>
    static __device__ __forceinline__ void unit(const moe_rows &t0, const moe_rows &t1, int u,
                                                int lane, F body)
    {
        uint32_t a0[2][4], a1[2][4];
        t0.fragment(a0, 32 * u + 8 * (lane & 3));
        t1.fragment(a1, 32 * u + 8 * (lane & 3));
        body(32 * u, a0, a1);
    }
    template <class F> __device__ __forceinline__ void unit_one(int u, int lane, F body) const
    {
        uint32_t a[2][4];
        fragment(a, 32 * u + 8 * (lane & 3));
        body(32 * u, a);
    }
};

/* ---- results ---- */

/* The bias of weight i and expert e, if there is one. */
__device__ __forceinline__ float moe_biased(const struct moe_args &a, int i, int e, int r, float y)
{
    return a.bias[i] && r < a.rows ? y + a.bias[i][(size_t)e * a.rows + r] : y;
}

/* Number r of the result of choice `at`. F16 rows are padded with zeros. */
__device__ __forceinline__ void moe_store(const struct moe_args &a, int at, int r, float y)
{
    if (r >= a.out_pad) return;
    if (a.kind == MOE_F32) ((float *)a.out)[at * a.out_stride + r] = y;
    else
        ((__half *)a.out)[at * a.out_stride + moe_place(a.kind, r)] =
            half_sat(r < a.rows ? y : 0.f);
}

/* The weight of the input of choice `at`; it passes through the matrix product. */
__device__ __forceinline__ float moe_weight(const struct moe_args &a, int at)
{
    return a.weights ? a.weights[a.sorted ? a.sorted[at] : at] : 1.f;
}

__device__ __forceinline__ float moe_act(const struct moe_args &a, float gate, float up)
{
    return a.clip.limit != 0.f ? clip_pair(a.clip, gate, up) : act_pair(a.act, gate, up);
}

/* The result of a row of gate and of up, or of a row of one weight. */
__device__ __forceinline__ float moe_pair_of(const struct moe_args &a, int e, int at, int r,
                                             float gate, float up)
{
    float by = moe_weight(a, at);
    return moe_act(a, moe_biased(a, 0, e, r, gate * by), moe_biased(a, 1, e, r, up * by));
}
__device__ __forceinline__ float moe_one_of(const struct moe_args &a, int e, int at, int r, float y)
{
    y = moe_biased(a, 0, e, r, y * moe_weight(a, at));
    if (a.active && a.gate) y = moe_act(a, r < a.rows ? a.gate[at * a.gate_stride + r] : 0.f, y);
    else if (a.active) y = act_of(a.act, y);
    return y;
}
__device__ __forceinline__ void moe_pair(const struct moe_args &a, int e, int at, int r, float gate,
                                         float up)
{
    moe_store(a, at, r, moe_pair_of(a, e, at, r, gate, up));
}
__device__ __forceinline__ void moe_single(const struct moe_args &a, int e, int at, int r, float y)
{
    moe_store(a, at, r, moe_one_of(a, e, at, r, y));
}

/* ---- few: one choice ---- */

__device__ __forceinline__ float4 moe_load4(const float *x, int c, int cols, bool vec)
{
    if (vec && c + 4 <= cols) return *(const float4 *)(x + c);
    return make_float4(c < cols ? x[c] : 0.f, c + 1 < cols ? x[c + 1] : 0.f,
                       c + 2 < cols ? x[c + 2] : 0.f, c + 3 < cols ? x[c + 3] : 0.f);
}

/* A lane's 32 columns of x from c on, as the B operand of two m16n8k16. */
template <class W>
__device__ __forceinline__ void moe_few_x(uint32_t (&b)[4], const struct moe_args &a,
                                          const float *x, int c)
{
    int t = threadIdx.x & 3;
    float4 lo = moe_load4(x, c + (W::NATURAL ? 8 * t : 4 * t), a.cols, a.vec);
    float4 hi = moe_load4(x, c + (W::NATURAL ? 8 * t + 4 : 4 * t + 16), a.cols, a.vec);

    b[0] = moe_half2(lo.x, lo.y), b[1] = moe_half2(lo.z, lo.w);
    b[2] = moe_half2(hi.x, hi.y), b[3] = moe_half2(hi.z, hi.w);
}

/* All eight columns of the product are the same token. Grid: tiles, choices. */
template <class W>
static __global__ void __launch_bounds__(32 * MOE_WARPS)
    moe_few(const __grid_constant__ struct moe_args a)
{
    __shared__ float part[MOE_WARPS][2 * TILE_ROWS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5,
        choice = blockIdx.y;
    int g = lane >> 2, t = lane & 3, t0 = a.pair ? blockIdx.x : 2 * blockIdx.x;

    cu_release_next();
    cu_wait_previous();
    int e = a.ids[choice];
    if (e < a.e0 || e >= a.e1) return;
    const uint8_t *w = a.w[0] + (size_t)(e - a.e0) * a.step[0];
    const float *x = (const float *)a.x + (size_t)(choice / a.x_each) * a.x_stride;
    W w0, w1;
    w0.open(w, a.rows, a.cols, t0, lane);
    if (a.pair) w1.open(a.w[1] + (size_t)(e - a.e0) * a.step[1], a.rows, a.cols, t0, lane);
    else w1.open(w, a.rows, a.cols, t0 + 1, lane);

    int units = (a.cols + W::UNIT - 1) / W::UNIT, end = units * (warp + 1) / warps;
    float s0[4] = {}, s1[4] = {};
#pragma unroll(W::UNIT == 32 ? 4 : 1)
    for (int u = units * warp / warps; u < end; u++)
        W::unit(w0, w1, u, lane, [&](int c, const uint32_t(&a0)[2][4], const uint32_t(&a1)[2][4]) {
            uint32_t b[4];
            moe_few_x<W>(b, a, x, c);
            moe_mma(s0, a0[0], b[0], b[1]);
            moe_mma(s1, a1[0], b[0], b[1]);
            moe_mma(s0, a0[1], b[2], b[3]);
            moe_mma(s1, a1[1], b[2], b[3]);
        });
    /* All columns are equal: lanes with t = 0 have everything. The warps' parts of the columns are
     * added by the first warp, in order. */
    if (t == 0) {
        part[warp][g] = s0[0], part[warp][g + 8] = s0[2];
        part[warp][g + 16] = s1[0], part[warp][g + 24] = s1[2];
    }
    __syncthreads();
    if (warp > 0) return;
    float y = 0.f;
    for (int i = 0; i < warps; i++) y += part[i][lane];
    float up = __shfl_down_sync(~0u, y, 16);
    if (!a.pair) moe_single(a, e, choice, t0 * TILE_ROWS + lane, y);
    else if (lane < 16) moe_pair(a, e, choice, t0 * TILE_ROWS + lane, y, up);
}

/* ---- few, with the sum over a token's choices ---- */

/* 16 rows of one token, summed over its choices. The warps divide the choices and each choice's
 * columns: with one unit for a warp all of its reads are in flight at once. Their sums are added in
 * order. Grid: tiles, tokens. */
template <class W>
static __global__ void __launch_bounds__(32 * MOE_SUM_WARPS)
    moe_few_sum(const __grid_constant__ struct moe_args a,
                const __grid_constant__ struct moe_total s)
{
    __shared__ float part[MOE_SUM_WARPS][TILE_ROWS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, tok = blockIdx.y;
    int units = (a.cols + W::UNIT - 1) / W::UNIT,
        parts = max(1, min(units, MOE_SUM_WARPS / s.n_used));
    int p = warp % parts, end = units * (p + 1) / parts, r = blockIdx.x * TILE_ROWS + g;
    float y[2] = { 0.f, 0.f };

    cu_release_next();
    cu_wait_previous();
    for (int k = warp / parts; k < s.n_used; k += MOE_SUM_WARPS / parts) {
        int choice = tok * s.n_used + k, e = a.ids[choice];
        float share = s.weights[choice] * s.scale, d[4] = {};
        const float *x = (const float *)a.x + (size_t)choice * a.x_stride;
        W w;
        w.open(a.w[0] + (size_t)e * a.step[0], a.rows, a.cols, blockIdx.x, lane);
#pragma unroll(W::UNIT == 32 ? 4 : 1)
        for (int u = units * p / parts; u < end; u++)
            w.unit_one(u, lane, [&](int c, const uint32_t(&v)[2][4]) {
                uint32_t b[4];
                moe_few_x<W>(b, a, x, c);
                moe_mma(d, v[0], b[0], b[1]);
                moe_mma(d, v[1], b[2], b[3]);
            });
        for (int i = 0; i < 2; i++)
            y[i] += share * (p == 0 ? moe_biased(a, 0, e, r + 8 * i, d[2 * i]) : d[2 * i]);
    }
    if ((lane & 3) == 0) part[warp][g] = y[0], part[warp][g + 8] = y[1];
    __syncthreads();
    r = blockIdx.x * TILE_ROWS + threadIdx.x;
    if (threadIdx.x >= TILE_ROWS || r >= a.rows) return;
    float *out = s.out + (size_t)tok * s.out_stride + r, sum = s.add ? *out : 0.f;
#pragma unroll
    for (int i = 0; i < MOE_SUM_WARPS; i++) sum += part[i][threadIdx.x];
    *out = sum;
}

/* ---- many: sorted choices ---- */

/* Sums pass through shared memory, [token][rows of both tiles], so that neighbouring lanes write
 * neighbouring rows. */
#define MOE_LINE (2 * TILE_ROWS + 1)

/* A warp's sums of 8 GROUPS tokens to shared memory. */
template <int GROUPS>
__device__ __forceinline__ void moe_stash(float *mine, const float (*s0)[4], const float (*s1)[4])
{
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4 * GROUPS; i++) {
        float *to = mine + (8 * (i / 4) + 2 * t + i % 2) * MOE_LINE + g + i % 4 / 2 * 8;
        to[0] = s0[i / 4][i % 4];
        to[TILE_ROWS] = s1[i / 4][i % 4];
    }
    __syncwarp();
}

/* Writes n tokens from shared memory: choices from `at` on, rows from r0 on of one tile and from r1
 * on of the other. */
__device__ __forceinline__ void moe_emit(const struct moe_args &a, const float *mine, int e, int at,
                                         int n, int r0, int r1)
{
    int lane = threadIdx.x & 31, row = lane & 15, r = lane < 16 || a.pair ? r0 + row : r1 + row;

    if (a.pair) {
#pragma unroll 1
        for (int i = lane / 16; i < n; i += 2)
            moe_pair(a, e, at + i, r, mine[i * MOE_LINE + row],
                     mine[i * MOE_LINE + row + TILE_ROWS]);
    } else {
#pragma unroll 1
        for (int i = 0; i < n; i++) moe_single(a, e, at + i, r, mine[i * MOE_LINE + lane]);
    }
}

/* A warp has two tiles of rows and all tokens of the block. Grid: (groups of tiles, splits),
 * experts. */
template <class W>
static __global__ void __launch_bounds__(32 * MOE_BLOCK)
    moe_many(const __grid_constant__ struct moe_args a)
{
    constexpr int GROUPS = MOE_TOKENS / 8;
    __shared__ float sums[MOE_BLOCK][MOE_TOKENS * MOE_LINE];
    float *mine = sums[threadIdx.x >> 5];
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int item = (int)blockIdx.x / a.splits * MOE_BLOCK + (threadIdx.x >> 5),
        t0 = a.pair ? item : 2 * item;
    int e = a.e0 + (int)blockIdx.y, units = (a.cols + W::UNIT - 1) / W::UNIT;
    const uint8_t *w = a.w[0] + (size_t)blockIdx.y * a.step[0];
    const uint4 *x = (const uint4 *)a.x + t;
    W w0, w1;

    cu_release_next();
    cu_wait_previous();
    int begin = a.first[e], n = a.first[e + 1] - begin;
    if (t0 * TILE_ROWS >= a.out_pad) return;
    w0.open(w, a.rows, a.cols, t0, lane);
    if (a.pair) w1.open(a.w[1] + (size_t)blockIdx.y * a.step[1], a.rows, a.cols, t0, lane);
    else w1.open(w, a.rows, a.cols, t0 + 1, lane);

    for (int at = (int)blockIdx.x % a.splits * MOE_TOKENS; at < n; at += a.splits * MOE_TOKENS) {
        int some = min(MOE_TOKENS, n - at), groups = (some + 7) / 8;
        unsigned from[GROUPS]; /* in units of 16 bytes */
        float s0[GROUPS][4] = {}, s1[GROUPS][4] = {};
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            int pos = begin + at + min(8 * j + g, some - 1),
                row = a.sorted ? a.sorted[pos] / a.x_each : pos;
            from[j] = (unsigned)row * (unsigned)(a.x_stride / 8);
        }
        for (int u = 0; u < units; u++)
            W::unit(w0, w1, u, lane,
                    [&](int c, const uint32_t(&a0)[2][4], const uint32_t(&a1)[2][4]) {
                        uint4 v[GROUPS];
#pragma unroll
                        for (int j = 0; j < GROUPS; j++) v[j] = x[from[j] + c / 8];
#pragma unroll
                        for (int j = 0; j < GROUPS; j++) {
                            if (j >= groups) break;
                            moe_mma(s0[j], a0[0], v[j].x, v[j].y);
                            moe_mma(s1[j], a1[0], v[j].x, v[j].y);
                            moe_mma(s0[j], a0[1], v[j].z, v[j].w);
                            moe_mma(s1[j], a1[1], v[j].z, v[j].w);
                        }
                    });
        moe_stash<GROUPS>(mine, s0, s1);
        moe_emit(a, mine, e, begin + at, some, t0 * TILE_ROWS, (t0 + 1) * TILE_ROWS);
    }
}

/* The kernels of a type that `wide` cannot read. one, one_sum: NULL, or of moe_one.cuh. */
template <class W>
static const struct moe_kernel *moe_kernel_of(const char *name,
                                              void (*one)(const struct moe_args) = NULL,
                                              void (*one_sum)(const struct moe_args,
                                                              const struct moe_total) = NULL)
{
    static const struct moe_kernel k = {
        moe_few<W>, moe_few_sum<W>, moe_many<W>,
        NULL,       NULL,           one,
        one_sum,    W::UNIT,        W::NATURAL ? MOE_ROWS : MOE_LANES,
        name
    };
    return &k;
}
#endif
