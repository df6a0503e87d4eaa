/* gemm_w.cuh - how the packed GEMM reads each layout of weights. Members of a type W:
 *
 *     TILES     weights are stored in tiles of 16 rows (block formats)
 *     BYTES<M>  shared memory for a chunk (64 columns) of M rows
 *     HEAD      chunks that share a head of scales; it is loaded with the first of them, and with a
 *               block's first chunk
 *     load      copies a chunk of M rows from r0 on (a multiple of 16) to shared memory
 *     open      reads the head of tile `tile` (16 rows)
 *     fetch     a lane's numbers of 64 columns of that tile, still packed
 *     expand    unpacks 32 columns of them (half 0 or 1) for two steps: a[step][register] */
#ifndef TERN_KERNEL_CUDA_GEMM_W_CUH
#define TERN_KERNEL_CUDA_GEMM_W_CUH

#include "kernel/cuda/gemm_packed.cuh"
#include "kernel/cuda/cu_layout.cuh"

struct packed_none {
};

/* ---- plain types ---- */

/* A chunk is rows of 128 bytes. The position of each 16-byte piece is XOR-ed with bits of the row
 * number, which avoids bank conflicts. */
struct packed_plain {
    static constexpr bool TILES = false;
    template <int M> static constexpr int BYTES = M * 128;
    static constexpr int HEAD = 1;
    using head = packed_none;
    struct raw {
        uint2 v[2][4];
    }; /* [row g, g + 8][step] */

    template <int M>
    static __device__ __forceinline__ void load(uint32_t to, const struct packed_job &j, int r0,
                                                int chunk, bool)
    {
        int piece = threadIdx.x % 8, col = chunk * GEMM_CHUNK + piece * 8;
        int n = max(0, min(16, (j.cols - col) * 2));
        size_t stride = (size_t)(j.cols + 7) / 8 * 8;
        const __half *src = (const __half *)j.w + (n ? col : 0);
#pragma unroll
        for (int i = 0; i < M * 8 / GEMM_THREADS; i++) {
            int row = (i * GEMM_THREADS + threadIdx.x) / 8;
            copy16(to + row * 128 + (piece ^ (row & 3) << 1) * 16,
                   src + min(r0 + row, j.rows - 1) * stride, n);
        }
    }
    template <int M> static __device__ __forceinline__ void open(head *, const uint8_t *, int, int)
    {
    }
    template <int M>
    static __device__ __forceinline__ void fetch(raw *r, const uint8_t *w, int tile, int lane)
    {
        int row = tile * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < 8; i++)
            r->v[i / 4][i % 4] = *(const uint2 *)(w + (row + i / 4 * 8) * 128 +
                                                  (i % 4 ^ (row & 3)) * 32 + lane % 4 * 8);
    }
};

/* Words of T become F16 pairs on the way to the registers. */
template <class T> struct packed_words : packed_plain {
    static __device__ __forceinline__ void expand(uint32_t (*a)[4], const raw &r, const head &,
                                                  int half, int)
    {
        pairs(a, r.v, half);
    }
    static __device__ __forceinline__ void pairs(uint32_t (*a)[4], const uint2 (&v)[2][4], int half)
    {
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[s][h] = T::to_f16(v[h][half * 2 + s].x);
                a[s][h + 2] = T::to_f16(v[h][half * 2 + s].y);
            }
    }
};

struct packed_f16 : packed_words<packed_f16> {
    static __device__ __forceinline__ uint32_t to_f16(uint32_t v) { return v; }
};

struct packed_bf16 : packed_words<packed_bf16> {
    static __device__ __forceinline__ uint32_t to_f16(uint32_t v)
    {
        __half2 r = __halves2half2(half_sat(__uint_as_float(v << 16)),
                                   half_sat(__uint_as_float(v & 0xffff0000u)));
        return *(uint32_t *)&r;
    }
};

/* ---- block formats ---- */

/* The minimum for packed_scaled: of group b of 32 columns, half s. Where a zero point makes it, the
 * zero point: subtracted from the codes it is exact in F16, which minimum and scale are not. */
template <int T>
__device__ __forceinline__ float packed_low(const typename tile<T>::head &head, int h, int b, int s)
{
    if constexpr (tile<T>::ZERO) return tile<T>::zero(head, h, b);
    else return tile<T>::MIN ? head.m[h] * tile<T>::small_min(head, h, b, s) : 0.f;
}

/* Applies scale and minimum to the pairs v of row g (h 0) or g + 8 (h 1). scale, low: for columns
 * 0..15 and 16..31. */
template <int T>
__device__ __forceinline__ void packed_scaled(uint32_t (*a)[4], int h, const uint32_t (&v)[4],
                                              const float (&scale)[2], const float (&low)[2])
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        __half2 d = __half2half2(half_sat(scale[k / 2]));
        float bias = tile<T>::bias(k) + (tile<T>::ZERO ? low[k / 2] : 0.f);
        __half2 x = __hsub2(*(const __half2 *)&v[k], __float2half2_rn(bias));
        x = tile<T>::MIN && !tile<T>::ZERO ? __hfma2(x, d, __half2half2(half_sat(-low[k / 2])))
                                           : __hmul2(x, d);
        a[k / 2][h + k % 2 * 2] = *(uint32_t *)&x;
    }
}

/* Blocks of 32 columns: a chunk is two consecutive tiles. */
template <int T> struct packed_small {
    static constexpr bool TILES = true;
    static constexpr int TILE = layout_of(T).bytes, PIECES = 2 * TILE / 16, HEAD = 1;
    template <int M> static constexpr int BYTES = M / 16 * 2 * TILE;
    using head = packed_none;
    struct raw {
        const uint8_t *at;
        int lane;
    };

    template <int M>
    static __device__ __forceinline__ void load(uint32_t to, const struct packed_job &j, int r0,
                                                int chunk, bool)
    {
        int blocks = j.cols / 32, last = (j.rows + 15) / 16 - 1;
        const uint8_t *w = (const uint8_t *)j.w + (size_t)chunk * 2 * TILE;
        int pieces = 2 * chunk + 1 < blocks ? PIECES : PIECES / 2;
#pragma unroll
        for (int i = threadIdx.x; i < M / 16 * PIECES; i += GEMM_THREADS) {
            int t = i / PIECES, piece = i % PIECES;
            const uint8_t *row = w + (size_t)min(r0 / 16 + t, last) * blocks * TILE;
            copy16(to + i * 16, row + (piece < pieces ? piece : 0) * 16, piece < pieces ? 16 : 0);
        }
    }
    template <int M> static __device__ __forceinline__ void open(head *, const uint8_t *, int, int)
    {
    }
    template <int M>
    static __device__ __forceinline__ void fetch(raw *r, const uint8_t *w, int tile, int lane)
    {
        r->at = w + tile * 2 * TILE;
        r->lane = lane;
    }
    static __device__ __forceinline__ void expand(uint32_t (*a)[4], const raw &r, const head &,
                                                  int half, int)
    {
        unpack(a, r.at + half * TILE, r.lane);
    }
    static __device__ __forceinline__ void unpack(uint32_t (*a)[4], const uint8_t *p, int lane)
    {
        typename tile<T>::head head = tile<T>::open(p, lane);
        uint32_t v[1][2][4];

        tile<T>::load(v, p, lane, 0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float scale[2] = { head.d[h], head.d[h] }, low[2] = { head.m[h], head.m[h] };
            packed_scaled<T>(a, h, v[0][h], scale, low);
        }
    }
};

/* Blocks of 256 columns: a chunk is a quarter of a tile, 512 bytes of nibbles. HIGH: the format has
 * more bits, 8 bytes for each lane. */
template <int T> struct packed_k {
    static constexpr bool TILES = true;
    static constexpr int TILE = layout_of(T).bytes, HEAD = 4;
    static constexpr bool HIGH = T != DT_Q4_K;
    static constexpr int EACH = HIGH ? 768 : 512;
    static constexpr int HEAD_AT = T == DT_Q4_K   ? 2048
                                   : T == DT_Q5_K ? 2560
                                                  : 3072,
                         HEAD_BYTES = TILE - HEAD_AT;
    template <int M> static constexpr int BYTES = M / 16 * (EACH + HEAD_BYTES);
    using head = typename tile<T>::head;
    struct raw {
        uint4 low;
        uint2 high;
    };

    template <int M>
    static __device__ __forceinline__ void load(uint32_t to, const struct packed_job &j, int r0,
                                                int chunk, bool first)
    {
        int blocks = j.cols / 256, last = (j.rows + 15) / 16 - 1, q = chunk % 4;
        const uint8_t *w = (const uint8_t *)j.w + (size_t)(chunk / 4) * TILE;
        int high = T == DT_Q5_K ? 8 * (q >> 1) : 512 * (q >> 1) + 8 * (q & 1);
#pragma unroll
        for (int i = 0; i < M / 16 * 32; i += GEMM_THREADS) {
            int t = (i + threadIdx.x) / 32, lane = threadIdx.x % 32;
            const uint8_t *src = w + (size_t)min(r0 / 16 + t, last) * blocks * TILE;
            copy16(to + t * EACH + lane * 16, src + 512 * q + lane * 16, 16);
            if (HIGH) copy8(to + t * EACH + 512 + lane * 8, src + 2048 + high + lane * 16);
        }
        if (!first) return;
        constexpr int PIECES = HEAD_BYTES / 16;
#pragma unroll
        for (int i = threadIdx.x; i < M / 16 * PIECES; i += GEMM_THREADS) {
            int t = i / PIECES, piece = i % PIECES;
            const uint8_t *src = w + (size_t)min(r0 / 16 + t, last) * blocks * TILE;
            copy16(to + M / 16 * EACH + i * 16, src + HEAD_AT + piece * 16, 16);
        }
    }
    template <int M>
    static __device__ __forceinline__ void open(head *h, const uint8_t *w, int t, int lane)
    {
        *h = tile<T>::open(w + M / 16 * EACH + t * HEAD_BYTES - HEAD_AT, lane);
    }
    template <int M>
    static __device__ __forceinline__ void fetch(raw *r, const uint8_t *w, int t, int lane)
    {
        r->low = *(const uint4 *)(w + t * EACH + lane * 16);
        if (HIGH) r->high = *(const uint2 *)(w + t * EACH + 512 + lane * 8);
    }
    static __device__ __forceinline__ void expand(uint32_t (*a)[4], const raw &r, const head &head,
                                                  int half, int chunk)
    {
        int q = chunk % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t v[4], hi = h ? r.high.y : r.high.x;
            float scale[2], low[2];
            bits_4(half ? (h ? r.low.w : r.low.z) : (h ? r.low.y : r.low.x), v);
            if (T == DT_Q5_K) bits_5(__funnelshift_r(hi, hi, (q & 1) * 8) >> (half ? 2 : 0), v);
            if (T == DT_Q6_K) bits_6(half ? bits_rotate8(hi) : hi, v);
            scales(head, h, half, q, scale, low);
            packed_scaled<T>(a, h, v, scale, low);
        }
    }
    /* Scales and minima of group 2q + half. */
    static __device__ __forceinline__ void scales(const head &r, int h, int half, int q,
                                                  float (&scale)[2], float (&low)[2])
    {
        if constexpr (T == DT_Q6_K) {
            uint32_t w =
                q & 2 ? (q & 1 ? r.sc[h][3] : r.sc[h][2]) : (q & 1 ? r.sc[h][1] : r.sc[h][0]);
            for (int s = 0; s < 2; s++) {
                scale[s] = r.d[h] * (float)(int8_t)(w >> (half * 2 + s) * 8);
                low[s] = 0;
            }
        } else {
            int shift = (q & 1) * 16 + half * 8;
            scale[0] = scale[1] =
                r.d[h] * (float)(uint8_t)((q & 2 ? r.sc[h][1] : r.sc[h][0]) >> shift);
            low[0] = low[1] = r.m[h] * (float)(uint8_t)((q & 2 ? r.mn[h][1] : r.mn[h][0]) >> shift);
        }
    }
};
#endif
