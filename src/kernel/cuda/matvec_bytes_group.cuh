/* matvec_bytes_group.cuh - tiles of quantized folders' matrices (tile_group.cuh) as bytes, for the
 * integer products of one token; see matvec_bytes.cuh.
 *
 * A unit of 256 columns is two tiles, or four of 64 columns. Codes become bytes as they are; a zero
 * point is a minimum of its own, scale times zero. */
#ifndef TERN_KERNEL_CUDA_MATVEC_BYTES_GROUP_CUH
#define TERN_KERNEL_CUDA_MATVEC_BYTES_GROUP_CUH

#include "kernel/cuda/matvec_bytes.cuh"
#include "kernel/cuda/tile_group.cuh"

#ifdef __CUDACC__
/* f(tile, row, sub) returns the scale and the minimum of group `sub` of 32 columns of a tile. ONE:
 * all groups of a tile have the same. */
template <int T, bool ONE, class F>
__device__ __forceinline__ lane_scales open_groups(const uint8_t *p, int n, int lane, F f)
{
    constexpr int BYTES = layout_of(T).bytes, EACH = layout_of(T).cols / 32;
    lane_scales r = { { 1.f, 1.f }, { 1.f, 1.f }, {}, {} };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int b = lane_sub(lane, i), k = b / EACH;
        /* Of tiles of 128 columns, sixteens i and i + 1 belong to one tile. */
        bool again = ONE && EACH == 4 && i % 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 v = make_float2(0.f, 0.f); /* no such tile: the bytes there are no scale */
            if (again) v = make_float2(r.sc[h][i - 1], r.mn[h][i - 1]);
            else if (k < n) v = f(p + k * BYTES, (lane >> 2) + 8 * h, b % EACH);
            r.sc[h][i] = v.x;
            r.mn[h][i] = v.y;
        }
    }
    return r;
}

/* One scale for each row of a tile. */
template <int T> struct bytes_rows {
    static constexpr int BIAS = 0;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_groups<T, true>(p, n, lane, [](const uint8_t *q, int row, int) {
            float d = f32_at(q + tile<T>::AT + 4 * row);
            return make_float2(d, d * (float)q[tile<T>::AT + 64 + row]);
        });
    }
};
struct bytes_u4 {
    static constexpr int ORDER = BYTES_NIBBLES;
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        bytes_k::load_4(a, p, lane, j);
    }
};
struct bytes_u2 {
    static constexpr int ORDER = BYTES_NIBBLES;
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        bytes_k::load_2(a, p, lane, j); /* j < 2 */
    }
};
template <> struct bytes<LAYOUT_U4> : bytes_rows<LAYOUT_U4>, bytes_u4 {
};
template <> struct bytes<LAYOUT_U4_64> : bytes_rows<LAYOUT_U4_64>, bytes_u4 {
};
template <> struct bytes<LAYOUT_U2> : bytes_rows<LAYOUT_U2>, bytes_u2 {
};

template <> struct bytes<LAYOUT_U8> : bytes_rows<LAYOUT_U8> {
    static constexpr int ORDER = BYTES_PLAIN;
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 w = *(const uint4 *)(p + 512 * (2 * j + i) + 16 * lane);
            a[i][0] = w.x, a[i][1] = w.z, a[i][2] = w.y, a[i][3] = w.w;
        }
    }
};

template <> struct bytes<LAYOUT_U4_32> : bytes_u4 {
    static constexpr int BIAS = 0;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_groups<LAYOUT_U4_32, false>(p, n, lane, [](const uint8_t *q, int row, int sub) {
            const uint8_t *at = q + tile<LAYOUT_U4_32>::AT;
            float d = f32_at(at + 192) * half_at(at + 8 * row + 2 * sub);
            return make_float2(d, d * (float)at[128 + 4 * row + sub]);
        });
    }
};

template <> struct bytes<LAYOUT_U2_ONE> : bytes_u2 {
    static constexpr int BIAS = 0;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_groups<LAYOUT_U2_ONE, true>(p, n, lane, [](const uint8_t *q, int, int) {
            float d = f32_at(q + tile<LAYOUT_U2_ONE>::AT);
            return make_float2(d, d * f32_at(q + tile<LAYOUT_U2_ONE>::AT + 4));
        });
    }
};

/* Bytes are twice the value and 16 too large, as those of MXFP4. A lane's sixteen i is number
 * 4 (i % 2) + t of the eight of tile i / 2. */
template <> struct bytes<LAYOUT_E2M1_16> {
    static constexpr int ORDER = BYTES_E2M1, BIAS = 16;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        scales r = { { 1.f, 1.f }, { 1.f, 1.f }, {}, {} };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint8_t *at =
                p + i / 2 * layout_of(LAYOUT_E2M1_16).bytes + tile<LAYOUT_E2M1_16>::AT;
            if (i / 2 >= n) continue; /* no such tile: the bytes there are no scale */
            float d = 0.5f * f32_at(at + 128);
#pragma unroll
            for (int h = 0; h < 2; h++)
                r.sc[h][i] = d * e4m3_f32(at[8 * ((lane >> 2) + 8 * h) + 4 * (i % 2) + (lane & 3)]);
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        const uint4 t = make_uint4(0x13121110, 0x1c181614, 0x0d0e0f10, 0x04080a0c);
        uint4 w = *(const uint4 *)(p + 512 * j + 16 * lane);
        bytes_table(w.x, t, a[0]);
        bytes_table(w.y, t, a[0] + 1);
        bytes_table(w.z, t, a[1]);
        bytes_table(w.w, t, a[1] + 1);
    }
};
#endif
#endif
