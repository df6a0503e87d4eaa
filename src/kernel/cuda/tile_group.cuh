/* tile_group.cuh - tiles of quantized folders' matrices (DT_GROUPED), unpacked by a warp.
 *
 * A tile is 16 rows by 128 (or 64) columns: codes in the order of cu_layout.cuh, then scales and
 * zero points (enum group_layout). One tile has all that its numbers need, like those of GGUF's
 * formats, so the same kernels read it. pack_group.cu packs it.
 *
 *     U4, E2M1    512 bytes for 64 columns: lane l has 16 bytes, rows g and g + 8 of the first 32
 *                 columns, then of the next
 *     U8, E4M3    512 bytes for 32 columns: lane l has 16 bytes, eight of row g, eight of row g + 8
 *     U2          512 bytes for 128 columns: lane l has 16 bytes, as in Q2_K
 *
 * The value is d * small * (pair - bias - zero). Integer codes have a zero point (ZERO), whose
 * minimum is d * small * zero. */
#ifndef TERN_KERNEL_CUDA_TILE_GROUP_CUH
#define TERN_KERNEL_CUDA_TILE_GROUP_CUH

#include "kernel/cuda/cu_layout.cuh"

#ifdef __CUDACC__
/* ---- codes as F16 pairs ---- */

__device__ __forceinline__ float f32_at(const uint8_t *p) { return *(const float *)p; }

/* The E4M3 code in the low byte as F32. NaN becomes 480. */
__device__ __forceinline__ float e4m3_f32(uint32_t b)
{
    return __uint_as_float((b & 0x80) << 24 | (b & 0x7f) << 20) * 0x1p120f;
}
/* Two E4M3 codes in the low 16 bits as an F16 pair, exact. */
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t v)
{
#if __CUDA_ARCH__ >= 890
    uint32_t r;
    asm("{.reg .b16 h;\ncvt.u16.u32 h, %1;\ncvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(v));
    return r;
#else
    uint32_t w = __byte_perm(v, 0, 0x1404); /* each code in the high byte of a half */
    w = (w & 0x80008000) | (w & 0x7f007f00) >> 1;
    __half2 h = __hmul2(*(__half2 *)&w, __float2half2_rn(256.f));
    return *(uint32_t *)&h;
#endif
}

/* Loads of 64 columns: groups 2j and 2j + 1 of the tile, as tile_k's. */
struct tile_codes {
    static constexpr int GROUP = 2;
    static __device__ __forceinline__ uint4 lane16(const uint8_t *p, int at, int lane)
    {
        return *(const uint4 *)(p + at + 16 * lane);
    }
};
struct codes_u4 : tile_codes {
    static constexpr int BITS = 4;
    static __host__ __device__ constexpr float bias(int p) { return p & 1 ? 64.f : 1024.f; }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        uint4 w = lane16(p, 512 * j, lane);
        bits_4(w.x, a[0][0]);
        bits_4(w.y, a[0][1]);
        bits_4(w.z, a[1][0]);
        bits_4(w.w, a[1][1]);
    }
};
/* 2^14 too small: the scale makes up for it. */
struct codes_e2m1 : tile_codes {
    static constexpr int BITS = 4;
    static __host__ __device__ constexpr float bias(int) { return 0.f; }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        uint4 w = lane16(p, 512 * j, lane);
        bits_e2m1(w.x, a[0][0]);
        bits_e2m1(w.y, a[0][1]);
        bits_e2m1(w.z, a[1][0]);
        bits_e2m1(w.w, a[1][1]);
    }
};
struct codes_u2 : tile_codes {
    static constexpr int BITS = 2;
    static __host__ __device__ constexpr float bias(int p)
    {
        return p == 0 ? 1024.f : p == 1 ? 256.f : p == 2 ? 64.f : 16.f;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        tile_twos::load_2(a, p, lane, j); /* j < 2 */
    }
};
struct codes_u8 : tile_codes {
    static constexpr int BITS = 8;
    static __host__ __device__ constexpr float bias(int) { return 1024.f; }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 w = lane16(p, 512 * (2 * j + i), lane);
            bits_8(w.x, a[i][0]);
            bits_8(w.y, a[i][0] + 2);
            bits_8(w.z, a[i][1]);
            bits_8(w.w, a[i][1] + 2);
        }
    }
};
struct codes_e4m3 : tile_codes {
    static constexpr int BITS = 8;
    static __host__ __device__ constexpr float bias(int) { return 0.f; }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 w = lane16(p, 512 * (2 * j + i), lane);
            uint32_t v[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
            for (int k = 0; k < 8; k++)
                a[i][k / 4][k % 4] = e4m3_pair(k & 1 ? v[k / 2] >> 16 : v[k / 2] & 0xffff);
        }
    }
};

/* ---- scales and zero points ---- */

/* One scale for each row of the tile: F32 [16]; ZERO: then zero points, uint8 [16]. */
template <class CODES, int N, bool WITH_ZERO> struct tile_rows : CODES {
    static constexpr int COLS = N, SUB = 32, AT = CODES::BITS * N * 2;
    static constexpr bool ZERO = WITH_ZERO, MIN = WITH_ZERO;
    struct head {
        float d[2], m[2], z[2];
    };
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        head r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = (lane >> 2) + 8 * h;
            r.d[h] = r.m[h] = f32_at(p + AT + 4 * row);
            r.z[h] = ZERO ? (float)p[AT + 64 + row] : 0.f;
        }
        return r;
    }
    static __device__ __forceinline__ float small(const head &, int, int, int) { return 1.f; }
    static __device__ __forceinline__ float zero(const head &r, int h, int) { return r.z[h]; }
    static __device__ __forceinline__ float small_min(const head &r, int h, int, int)
    {
        return r.z[h];
    }
};
template <> struct tile<LAYOUT_U4> : tile_rows<codes_u4, 128, true> {
};
template <> struct tile<LAYOUT_U4_64> : tile_rows<codes_u4, 64, true> {
};
template <> struct tile<LAYOUT_U8> : tile_rows<codes_u8, 128, true> {
};
template <> struct tile<LAYOUT_U2> : tile_rows<codes_u2, 128, true> {
};
template <> struct tile<LAYOUT_E4M3> : tile_rows<codes_e4m3, 128, false> {
};
template <> struct tile<LAYOUT_E4M3_64> : tile_rows<codes_e4m3, 64, false> {
};

/* F16 scales [16][4] (128 bytes), zero points [16][4] (64), and an F32 factor of all scales (16,
 * of which 4 are used). */
template <> struct tile<LAYOUT_U4_32> : codes_u4 {
    static constexpr int COLS = 128, SUB = 32, AT = 1024;
    static constexpr bool ZERO = true, MIN = true;
    struct head {
        float d[2], m[2];
        uint2 sc[2];
        uint32_t z[2];
    };
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        head r;
        float d = f32_at(p + AT + 192);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = (lane >> 2) + 8 * h;
            r.d[h] = r.m[h] = d;
            r.sc[h] = *(const uint2 *)(p + AT + 8 * row);
            r.z[h] = *(const uint32_t *)(p + AT + 128 + 4 * row);
        }
        return r;
    }
    static __device__ __forceinline__ float small(const head &r, int h, int b, int)
    {
        uint32_t w = b & 2 ? r.sc[h].y : r.sc[h].x;
        return __half2float(__ushort_as_half((unsigned short)(w >> 16 * (b & 1))));
    }
    static __device__ __forceinline__ float zero(const head &r, int h, int b)
    {
        return (float)(r.z[h] >> 8 * b & 255);
    }
    static __device__ __forceinline__ float small_min(const head &r, int h, int b, int)
    {
        return small(r, h, b, 0) * zero(r, h, b);
    }
};

/* An F32 factor and an F32 zero point for the whole tile (16 bytes, of which 8 are used). */
template <> struct tile<LAYOUT_U2_ONE> : codes_u2 {
    static constexpr int COLS = 128, SUB = 32, AT = 512;
    static constexpr bool ZERO = true, MIN = true;
    struct head {
        float d[2], m[2], z;
    };
    static __device__ __forceinline__ head open(const uint8_t *p, int)
    {
        float d = f32_at(p + AT);
        return { { d, d }, { d, d }, f32_at(p + AT + 4) };
    }
    static __device__ __forceinline__ float small(const head &, int, int, int) { return 1.f; }
    static __device__ __forceinline__ float zero(const head &r, int, int) { return r.z; }
    static __device__ __forceinline__ float small_min(const head &r, int, int, int) { return r.z; }
};

/* E4M3 scales [16][8] (128 bytes), and an F32 factor (16, of which 4 are used). */
template <> struct tile<LAYOUT_E2M1_16> : codes_e2m1 {
    static constexpr int COLS = 128, SUB = 16, AT = 1024;
    static constexpr bool ZERO = false, MIN = false;
    struct head {
        float d[2], m[2];
        uint2 sc[2];
    };
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        head r;
        float d = f32_at(p + AT + 128) * 0x1p14f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r.d[h] = d;
            r.m[h] = 0.f;
            r.sc[h] = *(const uint2 *)(p + AT + 8 * ((lane >> 2) + 8 * h));
        }
        return r;
    }
    static __device__ __forceinline__ float small(const head &r, int h, int b, int s)
    {
        return e4m3_f32((b & 2 ? r.sc[h].y : r.sc[h].x) >> 8 * (2 * (b & 1) + s));
    }
    static __device__ __forceinline__ float small_min(const head &, int, int, int) { return 0.f; }
};
#endif
#endif
