/* matvec_unit.cuh - the products of one unit: 16 rows by 128 or 256 columns of a weight, times up
 * to 8 tokens.
 *
 * Tensor cores multiply in F16, 16 rows by 8 tokens (m16n8k16). x is F16 in shared memory, in the
 * order in which lanes read it. Lane 4 g + t ends up with acc[0..1]: row g, tokens 2t and 2t + 1;
 * acc[2..3]: row g + 8.
 *
 * Block formats are multiplied with their bias (see cu_layout.cuh). The sums start at minus the
 * bias times the sum of x, which is stored beside x for every SUB columns. Minima are a small
 * product of their own with sums of x. */
#ifndef TERN_KERNEL_CUDA_MATVEC_UNIT_CUH
#define TERN_KERNEL_CUDA_MATVEC_UNIT_CUH

#include "kernel/cuda/matvec_ring.cuh"

__device__ __forceinline__ void mv_mma(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mv_mma_bf16(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Where a lane finds x and its sums, for the first column in shared memory. */
struct mv_view {
    const uint8_t *x, *low, *init, *min;
};

/* Block formats. */
template <int T> struct mv_tiles {
    using Q = tile<T>;
    static constexpr int TYPE = T, BYTES = layout_of(T).bytes, WARPS = 16;
    static constexpr int UNIT = BYTES / Q::COLS >= 16 ? 128 : 256, TILES = UNIT / Q::COLS,
                         STAGE = TILES * BYTES;
    static constexpr int SUB = Q::SUB, PAD = T < LAYOUT_U4 ? 32 : Q::COLS;
    static constexpr bool BULK = true, NATURAL = false, LOW = false, MIN = Q::MIN,
                          UNIT_K = Q::COLS == 256;
    /* Bytes of minima for one token and 32 columns: an F32 sum for blocks of 32; otherwise F16
     * pairs, high parts and low parts, of sums divided by MIN_PART. */
    static constexpr int MIN_BYTES = !MIN ? 0 : Q::COLS == 32 || SUB == 32 ? 4 : 8;

    static constexpr float MIN_PART = 32.f;

    static __device__ __forceinline__ float bias(int p) { return Q::bias(p); }
    /* The address of unit u of tile t. STEP: bytes from one unit to the next. */
    static __device__ __forceinline__ const uint8_t *at(const struct mv_args &a,
                                                        const struct mv_job &job, int t, int u, int)
    {
        return job.w + ((size_t)t * layout_blocks(T, a.cols) + u * TILES) * BYTES;
    }
    static __device__ __forceinline__ int count(const struct mv_args &a, int u)
    {
        return TILES == 1 ? 1 : min(TILES, layout_blocks(T, a.cols) - u * TILES);
    }
    template <class R>
    static __device__ __forceinline__ void fetch(R &ring, const struct mv_args &a,
                                                 const struct mv_job &, const uint8_t *src, int,
                                                 int u, int lane)
    {
        ring.push(src, count(a, u) * BYTES, lane);
    }
    static constexpr int STEP = STAGE;

    /* Offsets of starting sums and of minima for column c of x. */
    static __device__ __forceinline__ int init_at(int c) { return c / SUB * 64; }
    static __device__ __forceinline__ int min_at(int c) { return c / 32 * CU_FEW * MIN_BYTES; }

    /* One group of 32 columns: its sums; two sets where SUB is 16. */
    static __device__ __forceinline__ void group(float c[2][4], const uint32_t a[2][4],
                                                 const uint8_t *x, const uint8_t *init)
    {
        constexpr int N = SUB == 16 ? 2 : 1;
        uint4 v = *(const uint4 *)x;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float4 f = *(const float4 *)(init + i * 64);
            c[i][0] = f.x, c[i][1] = f.y, c[i][2] = f.z, c[i][3] = f.w;
        }
        mv_mma(c[0], a[0][0], a[1][0], a[0][1], a[1][1], v.x, v.y);
        mv_mma(c[N - 1], a[0][2], a[1][2], a[0][3], a[1][3], v.z, v.w);
    }

    /* The minima of a super-block times the sums of x. */
    static __device__ __forceinline__ void minima(float m[4], const typename Q::head &head,
                                                  const uint8_t *p, int t)
    {
        m[0] = m[1] = m[2] = m[3] = 0.f;
        if constexpr (MIN && Q::COLS == 256) {
            uint32_t a0 = Q::min_pair(head, 0, t, 0), a1 = Q::min_pair(head, 1, t, 0);
            if (SUB == 32) {
                uint2 v = *(const uint2 *)p;
                mv_mma(m, a0, a1, a0, a1, v.x, v.y);
            } else {
                uint32_t a2 = Q::min_pair(head, 0, t, 1), a3 = Q::min_pair(head, 1, t, 1);
                uint4 v = *(const uint4 *)p;
                mv_mma(m, a0, a1, a2, a3, v.x, v.y);
                mv_mma(m, a0, a1, a2, a3, v.z, v.w);
            }
        }
    }

    /* Adds n tiles at p, whose first column is column c of x, to acc. */
    template <bool>
    static __device__ __forceinline__ void unit(float acc[4], const uint8_t *p, int n,
                                                const struct mv_view &view, int c, int lane)
    {
        constexpr int GROUPS = Q::COLS / 32, N = SUB == 16 ? 2 : 1;
        const uint8_t *x = view.x + 2 * c, *init = view.init + init_at(c),
                      *mins = view.min + min_at(c);
#pragma unroll 4
        for (int k = 0; k < (TILES == 1 ? 1 : n); k++, p += BYTES) {
            typename Q::head head = Q::open(p, lane);
            float u[4] = { 0.f, 0.f, 0.f, 0.f }, m[4];
            minima(m, head, mins, lane & 3);
#pragma unroll
            for (int j = 0; j < GROUPS / Q::GROUP; j++) {
                uint32_t a[Q::GROUP][2][4];
                Q::load(a, p, lane, j);
#pragma unroll
                for (int i = 0; i < Q::GROUP; i++) {
                    int b = j * Q::GROUP + i, col = 32 * (k * GROUPS + b);
                    float s[2][4];
                    group(s, a[i], x + 2 * col, init + init_at(col));
#pragma unroll
                    for (int e = 0; e < 4; e++) {
#pragma unroll
                        for (int f = 0; f < N; f++) {
                            if (GROUPS == 1) acc[e] = fmaf(head.d[e / 2], s[f][e], acc[e]);
                            else u[e] = fmaf(Q::small(head, e / 2, b, f), s[f][e], u[e]);
                        }
                    }
                    if constexpr (Q::ZERO) {
                        float2 f = *(const float2 *)(mins + min_at(col));
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            u[e] = fmaf(-Q::small_min(head, e / 2, b, 0), e & 1 ? f.y : f.x, u[e]);
                    }
                }
            }
            if constexpr (GROUPS > 1) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    acc[e] = fmaf(head.d[e / 2], u[e], acc[e]);
                    if (MIN && !Q::ZERO) acc[e] = fmaf(-MIN_PART * head.m[e / 2], m[e], acc[e]);
                }
            } else if constexpr (MIN) {
                const float *s = (const float *)(mins + min_at(32 * k));
                float2 f = *(const float2 *)s;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[e] = fmaf(-head.m[e / 2], e & 1 ? f.y : f.x, acc[e]);
            }
        }
    }
};

/* F16 and BF16 rows. On Hopper each row of a unit is one bulk copy; in a stage rows are 64 bytes
 * longer than their content, so that neighbours fall into different banks. Before Hopper a lane
 * copies the 16 bytes that it will use: 8 columns of rows g and g + 8. With BF16, x is the sum of a
 * high and a low part. */
template <int T> struct mv_rows {
    static constexpr int TYPE = T, UNIT = 128, LINE = 2 * UNIT + 64, PAD = UNIT, WARPS = 16;
    static constexpr int SUB = 0, MIN_BYTES = 0, STEP = 2 * UNIT;
    static constexpr int STAGE = TILE_ROWS * LINE;
    static constexpr bool BULK = true, NATURAL = true, LOW = T == DT_BF16, MIN = false,
                          UNIT_K = false;

    static __device__ __forceinline__ float bias(int) { return 0.f; }
    static __device__ __forceinline__ int count(const struct mv_args &, int) { return 1; }
    static __device__ __forceinline__ const uint8_t *row(const struct mv_args &a,
                                                         const struct mv_job &job, int r)
    {
        return job.w + (size_t)min(r, job.rows - 1) * layout_stride(T, a.cols) * 2;
    }
    static __device__ __forceinline__ const uint8_t *at(const struct mv_args &a,
                                                        const struct mv_job &job, int t, int u,
                                                        int lane)
    {
        return row(a, job, t * TILE_ROWS + (lane & 15)) + 2 * u * UNIT;
    }
    template <class R>
    static __device__ __forceinline__ void fetch(R &ring, const struct mv_args &a,
                                                 const struct mv_job &job, const uint8_t *src,
                                                 int t, int u, int lane)
    {
        int n = (int)layout_stride(T, a.cols);
        if (R::bulk) {
            ring.push_lines(src, 2 * min(UNIT, n - u * UNIT), LINE, lane);
            return;
        }
        int r = t * TILE_ROWS + (lane >> 2), c = u * UNIT + (lane & 3) * 8;
        const uint8_t *p0 = row(a, job, r), *p1 = row(a, job, r + 8);
        uint32_t to = smem_at(ring.base + ring.in * STAGE + lane * 16);
#pragma unroll
        for (int k = 0; k < UNIT / 32; k++, c += 32) {
            bool is = c < n;
            copy16(to + k * 1024, p0 + (is ? 2 * c : 0), is ? 16 : 0);
            copy16(to + k * 1024 + 512, p1 + (is ? 2 * c : 0), is ? 16 : 0);
        }
        ring.advance();
    }
    static __device__ __forceinline__ int init_at(int) { return 0; }
    static __device__ __forceinline__ int min_at(int) { return 0; }

    template <bool LINES>
    static __device__ __forceinline__ void unit(float acc[4], const uint8_t *p, int,
                                                const struct mv_view &view, int c, int lane)
    {
        const uint8_t *p0 = LINES ? p + (lane >> 2) * LINE + (lane & 3) * 16 : p + lane * 16;
        const uint8_t *p1 = LINES ? p0 + 8 * LINE : p0 + 512, *x = view.x + 2 * c;
        float more[4] = { 0.f, 0.f, 0.f, 0.f };
#pragma unroll
        for (int k = 0; k < UNIT / 32; k++, p0 += LINES ? 64 : 1024, p1 += LINES ? 64 : 1024) {
            uint4 w0 = *(const uint4 *)p0, w1 = *(const uint4 *)p1,
                  v = *(const uint4 *)(x + k * 64);
            if (!LOW) {
                mv_mma(acc, w0.x, w1.x, w0.y, w1.y, v.x, v.y);
                mv_mma(more, w0.z, w1.z, w0.w, w1.w, v.z, v.w);
                continue;
            }
            uint4 l = *(const uint4 *)(view.low + 2 * c + k * 64);
            mv_mma_bf16(acc, w0.x, w1.x, w0.y, w1.y, v.x, v.y);
            mv_mma_bf16(more, w0.z, w1.z, w0.w, w1.w, v.z, v.w);
            mv_mma_bf16(acc, w0.x, w1.x, w0.y, w1.y, l.x, l.y);
            mv_mma_bf16(more, w0.z, w1.z, w0.w, w1.w, l.z, l.w);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) acc[e] += more[e];
    }
};
#endif
