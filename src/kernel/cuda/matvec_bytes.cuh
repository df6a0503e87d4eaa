/* matvec_bytes.cuh - block formats unpacked to bytes: the A operand of integer products (m16n8k32,
 * u8 x s8).
 *
 * bytes<T>::load unpacks a tile of cu_layout.cuh: for a group of 32 columns a[0] and a[2] are row
 * g, a[1] and a[3] are row g + 8, four columns each. ORDER says which columns; x is stored in the
 * same order. A byte is BIAS too large.
 *
 * bytes<T>::open reads scales. A lane gets those of the columns that its sums cover: of the 16
 * sixteens (groups of 16 columns) in 256 columns, number t, t + 4, t + 8 and t + 12. The value of a
 * number is d * sc * (byte - BIAS) - m * mn. */
#ifndef TERN_KERNEL_CUDA_MATVEC_BYTES_CUH
#define TERN_KERNEL_CUDA_MATVEC_BYTES_CUH

#include "kernel/cuda/cu_layout.cuh"

/* Which of a lane's eight numbers (columns 4t..4t + 3 and the same + 16) is byte i of its two
 * words. */
enum bytes_order { BYTES_PLAIN, BYTES_NIBBLES, BYTES_E2M1 };
__host__ __device__ constexpr int bytes_at(int order, int i)
{
    return order == BYTES_NIBBLES ? i % 2 * 4 + i / 2
           : order == BYTES_E2M1  ? 6 - i % 4 * 2 + i / 4
                                  : i;
}

#ifdef __CUDACC__
struct lane_scales {
    float d[2], m[2], sc[2][4], mn[2][4];
}; /* [row g or g + 8][sixteen] */

/* The sub-block of 32 columns that contains sixteen i of a lane. */
__device__ __forceinline__ int lane_sub(int lane, int i) { return 2 * i + (lane >> 1 & 1); }

/* An integer of less than 23 bits as a float. */
__device__ __forceinline__ float small_f(uint32_t v)
{
    return __uint_as_float(v | 0x4b000000) - 8388608.f;
}

/* Eight nibbles to a[row] and a[2 + row]. */
__device__ __forceinline__ void bytes_4(uint32_t w, uint32_t *a)
{
    a[0] = w & 0x0f0f0f0f;
    a[2] = w >> 4 & 0x0f0f0f0f;
}
/* ORs the high bits (packed by place_5th or place_6th) into the bytes. m: mask of 1 or 2 bits. */
__device__ __forceinline__ void bytes_high(uint32_t v, uint32_t m, uint32_t *a, int to)
{
    uint32_t even = m * 0x00100010, odd = m * 0x10001000;
    a[0] |= (v & even) | (v << (12 - to) & odd);
    a[2] |= (v >> 4 & even) | (v << (8 - to) & odd);
}
/* Two bits of eight numbers, and the third bits OR-ed above them (bytes_3rd). */
__device__ __forceinline__ void bytes_2(uint32_t w, uint32_t *a)
{
    a[0] = (w & 0x00030003) | (w << 4 & 0x03000300);
    a[2] = (w >> 2 & 0x00030003) | (w << 2 & 0x03000300);
}
__device__ __forceinline__ void bytes_3rd(uint32_t v, uint32_t *a)
{
    a[0] |= (v & 0x00040004) | (v << 4 & 0x04000400);
    a[2] |= (v >> 2 & 0x00040004) | (v << 2 & 0x04000400);
}
/* Eight nibbles through a table of 16 bytes. */
__device__ __forceinline__ void bytes_table(uint32_t w, uint4 t, uint32_t *a)
{
    uint32_t low = w & 0x77777777, select = (w & 0x88888888) >> 1 | 0x32103210;
#pragma unroll
    for (int i = 0; i < 2; i++, low >>= 16, select >>= 16)
        a[2 * i] = __byte_perm(__byte_perm(t.x, t.y, low), __byte_perm(t.z, t.w, low), select);
}
__device__ __forceinline__ void bytes_iq4(uint32_t w, uint32_t *a)
{
    bytes_table(w, make_uint4(0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5), a);
}

template <int T> struct bytes;

/* ---- blocks of 32 columns: p is the first of n tiles ---- */

struct bytes_small {
    typedef lane_scales scales;
    /* f(tile, row) returns the scale and the minimum of a row. */
    template <int BYTES, class F>
    static __device__ __forceinline__ scales open_each(const uint8_t *p, int n, int lane, F f)
    {
        scales r = { { 1.f, 1.f }, { 1.f, 1.f }, {}, {} };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int b = lane_sub(lane, i);
            if (b >= n) continue; /* no such tile: the bytes there are no scale */
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2 v = f(p + b * BYTES, (lane >> 2) + 8 * h);
                r.sc[h][i] = v.x;
                r.mn[h][i] = v.y;
            }
        }
        return r;
    }
    /* A scale d for each row, at AT of a tile of BYTES. */
    template <int BYTES, int AT>
    static __device__ __forceinline__ scales open_d(const uint8_t *p, int n, int lane)
    {
        return open_each<BYTES>(p, n, lane, [](const uint8_t *q, int row) {
            return make_float2(half_at(q + AT + 2 * row), 0.f);
        });
    }
    /* A scale d and a minimum for each row; the file's minimum is added, so its sign changes. */
    template <int BYTES, int AT>
    static __device__ __forceinline__ scales open_dm(const uint8_t *p, int n, int lane)
    {
        return open_each<BYTES>(p, n, lane, [](const uint8_t *q, int row) {
            float2 dm = __half22float2(*(const __half2 *)(q + AT + 4 * row));
            return make_float2(dm.x, -dm.y);
        });
    }
};
/* Four bits: the low nibbles of a word are one register, the high ones another. */
struct bytes_nibbles : bytes_small {
    static constexpr int ORDER = BYTES_NIBBLES;
    static __device__ __forceinline__ void load(uint32_t a[1][4], const uint8_t *p, int lane, int)
    {
        uint2 w = *(const uint2 *)(p + 8 * lane);
        bytes_4(w.x, a[0]);
        bytes_4(w.y, a[0] + 1);
    }
};
/* Four bits and a fifth. */
struct bytes_fives : bytes_nibbles {
    static __device__ __forceinline__ void load(uint32_t a[1][4], const uint8_t *p, int lane, int j)
    {
        uint32_t h = *(const uint16_t *)(p + 256 + 2 * lane);
        bytes_nibbles::load(a, p, lane, j);
        bytes_high(bits_spread(h & 255), 1, a[0], 5);
        bytes_high(bits_spread(h >> 8), 1, a[0] + 1, 5);
    }
};
template <> struct bytes<DT_Q4_0> : bytes_nibbles {
    static constexpr int BIAS = 8;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_d<288, 256>(p, n, lane);
    }
};
template <> struct bytes<DT_Q4_1> : bytes_nibbles {
    static constexpr int BIAS = 0;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_dm<320, 256>(p, n, lane);
    }
};
template <> struct bytes<DT_Q5_0> : bytes_fives {
    static constexpr int BIAS = 16;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_d<352, 320>(p, n, lane);
    }
};
template <> struct bytes<DT_Q5_1> : bytes_fives {
    static constexpr int BIAS = 0;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_dm<384, 320>(p, n, lane);
    }
};
/* Stored as bytes + 128 already. */
template <> struct bytes<DT_Q8_0> : bytes_small {
    static constexpr int ORDER = BYTES_PLAIN, BIAS = 128;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_d<544, 512>(p, n, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[1][4], const uint8_t *p, int lane, int)
    {
        uint4 w = *(const uint4 *)(p + 16 * lane);
        a[0][0] = w.x, a[0][1] = w.z, a[0][2] = w.y, a[0][3] = w.w;
    }
};
template <> struct bytes<DT_IQ4_NL> : bytes_small {
    static constexpr int ORDER = BYTES_PLAIN, BIAS = 128;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_d<288, 256>(p, n, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[1][4], const uint8_t *p, int lane, int)
    {
        uint2 w = *(const uint2 *)(p + 8 * lane);
        bytes_iq4(w.x, a[0]);
        bytes_iq4(w.y, a[0] + 1);
    }
};
/* Bytes are twice the value: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. */
template <> struct bytes<DT_MXFP4> : bytes_small {
    static constexpr int ORDER = BYTES_E2M1, BIAS = 16;
    static __device__ __forceinline__ scales open(const uint8_t *p, int n, int lane)
    {
        return open_each<272>(p, n, lane, [](const uint8_t *q, int row) {
            return make_float2(tile<DT_MXFP4>::power(q[256 + row]) * 0x1p-15f, 0.f);
        });
    }
    static __device__ __forceinline__ void load(uint32_t a[1][4], const uint8_t *p, int lane, int)
    {
        const uint4 t = make_uint4(0x13121110, 0x1c181614, 0x0d0e0f10, 0x04080a0c);
        uint2 w = *(const uint2 *)(p + 8 * lane);
        bytes_table(w.x, t, a[0]);
        bytes_table(w.y, t, a[0] + 1);
    }
};

/* ---- super-blocks of 256 columns ---- */

struct bytes_k {
    static constexpr int ORDER = BYTES_NIBBLES;
    static __device__ __forceinline__ void load_4(uint32_t a[2][4], const uint8_t *p, int lane,
                                                  int j)
    {
        uint4 w = *(const uint4 *)(p + 512 * j + 16 * lane);
        bytes_4(w.x, a[0]);
        bytes_4(w.y, a[0] + 1);
        bytes_4(w.z, a[1]);
        bytes_4(w.w, a[1] + 1);
    }
    static __device__ __forceinline__ void load_2(uint32_t a[2][4], const uint8_t *p, int lane,
                                                  int j)
    {
        uint2 w = *(const uint2 *)(p + 512 * (j >> 1) + 16 * lane + 8 * (j & 1));
        bytes_2(w.x, a[0]);
        bytes_2(w.y, a[0] + 1);
        bytes_2(w.x >> 8, a[1]);
        bytes_2(w.y >> 8, a[1] + 1);
    }
    /* Byte t of word w as a float, less `off`. */
    static __device__ __forceinline__ float byte_t(uint32_t w, int t, float off)
    {
        return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7540 + t)) - (8388608.f + off);
    }
};
/* Scales are integers, so that scaled sums still are. Minima are one for each sub-block of 32
 * columns: of two lanes that share four of them, the even lane has the first two. */
struct k4_scales {
    float d[2], m[2], mn[2][2];
    int sc[2][4];
};
struct bytes_k4 : bytes_k {
    static constexpr int BIAS = 0;
    typedef k4_scales scales;
    static __device__ __forceinline__ scales open_k4(const uint8_t *p, int lane)
    {
        scales r;
        int by = 8 * lane_sub(lane, 0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = *(const uint4 *)(p + 16 * (lane >> 2) + 128 * h);
            float2 dm = __half22float2(*(const __half2 *)&v.x);
            uint32_t y = v.y >> by, z = v.z >> by, w = v.w >> by;
            uint32_t y4 = (w & 0x000f000f) | (y >> 2 & 0x00300030);
            uint32_t z4 = (w >> 4 & 0x000f000f) | (z >> 2 & 0x00300030);
            r.d[h] = dm.x;
            r.m[h] = dm.y;
            y &= 0x003f003f;
            z = lane & 1 ? z4 : z & 0x003f003f;
            r.sc[h][0] = y & 0xffff, r.sc[h][1] = y >> 16;
            r.sc[h][2] = y4 & 0xffff, r.sc[h][3] = y4 >> 16;
            r.mn[h][0] = byte_t(z, 0, 0.f), r.mn[h][1] = byte_t(z, 2, 0.f);
        }
        return r;
    }
};
template <> struct bytes<DT_Q4_K> : bytes_k4 {
    static __device__ __forceinline__ scales open(const uint8_t *p, int, int lane)
    {
        return open_k4(p + 2048, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        load_4(a, p, lane, j);
    }
};
template <> struct bytes<DT_Q5_K> : bytes_k4 {
    static __device__ __forceinline__ scales open(const uint8_t *p, int, int lane)
    {
        return open_k4(p + 2560, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        uint2 v = *(const uint2 *)(p + 2048 + 16 * lane + 8 * (j >> 1));
        load_4(a, p, lane, j);
        if (j & 1) v.x = bits_rotate8(v.x), v.y = bits_rotate8(v.y);
        bytes_high(v.x, 1, a[0], 5);
        bytes_high(v.y, 1, a[0] + 1, 5);
        bytes_high(v.x >> 2, 1, a[1], 5);
        bytes_high(v.y >> 2, 1, a[1] + 1, 5);
    }
};
/* Signed 8-bit scales, one for each sixteen. */
template <> struct bytes<DT_Q6_K> : bytes_k {
    static constexpr int BIAS = 32;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int, int lane)
    {
        scales r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = *(const uint4 *)(p + 3072 + 16 * (lane >> 2) + 128 * h);
            uint32_t w[4] = { v.x, v.y, v.z, v.w };
            r.d[h] = half_at(p + 3328 + 2 * (lane >> 2) + 16 * h);
            r.m[h] = 0.f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                r.sc[h][i] = byte_t(w[i] ^ 0x80808080, lane & 3, 128.f);
                r.mn[h][i] = 0.f;
            }
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        uint2 v = *(const uint2 *)(p + 2048 + 512 * (j >> 1) + 16 * lane + 8 * (j & 1));
        load_4(a, p, lane, j);
        bytes_high(v.x, 3, a[0], 6);
        bytes_high(v.y, 3, a[0] + 1, 6);
        bytes_high(bits_rotate8(v.x), 3, a[1], 6);
        bytes_high(bits_rotate8(v.y), 3, a[1] + 1, 6);
    }
};
/* 4-bit scales and minima, one of each for each sixteen. */
template <> struct bytes<DT_Q2_K> : bytes_k {
    static constexpr int BIAS = 0;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int, int lane)
    {
        scales r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = *(const uint4 *)(p + 1024 + 16 * (lane >> 2) + 128 * h);
            float2 dm = __half22float2(*(const __half2 *)(p + 1280 + 4 * (lane >> 2) + 32 * h));
            uint32_t w[4] = { v.x, v.y, v.z, v.w };
            r.d[h] = dm.x;
            r.m[h] = dm.y;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                r.sc[h][i] = byte_t(w[i] & 0x0f0f0f0f, lane & 3, 0.f);
                r.mn[h][i] = byte_t(w[i] >> 4 & 0x0f0f0f0f, lane & 3, 0.f);
            }
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        load_2(a, p, lane, j);
    }
};
/* 6-bit scales, less 32, in 12 bytes as in the file. */
template <> struct bytes<DT_Q3_K> : bytes_k {
    static constexpr int BIAS = 4;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int, int lane)
    {
        scales r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t *v = (const uint32_t *)(p + 1536 + 12 * (lane >> 2) + 96 * h);
            uint32_t u[3] = { v[0], v[1], v[2] };
            r.d[h] = half_at(p + 1728 + 2 * (lane >> 2) + 16 * h);
            r.m[h] = 0.f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t w =
                    (u[i & 1] >> (i < 2 ? 0 : 4) & 0x0f0f0f0f) | (u[2] >> 2 * i & 0x03030303) << 4;
                r.sc[h][i] = byte_t(w, lane & 3, 32.f);
                r.mn[h][i] = 0.f;
            }
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        uint2 v = *(const uint2 *)(p + 1024 + 16 * lane + 8 * (j >> 1));
        load_2(a, p, lane, j);
        if (j & 1) v.x = bits_rotate8(v.x), v.y = bits_rotate8(v.y);
        bytes_3rd(v.x, a[0]);
        bytes_3rd(v.y, a[0] + 1);
        bytes_3rd(v.x >> 1, a[1]);
        bytes_3rd(v.y >> 1, a[1] + 1);
    }
};
/* 6-bit scales, less 32: four low bits and two high bits apart. */
template <> struct bytes<DT_IQ4_XS> : bytes_k {
    static constexpr int ORDER = BYTES_PLAIN, BIAS = 128;
    typedef lane_scales scales;
    static __device__ __forceinline__ scales open(const uint8_t *p, int, int lane)
    {
        scales r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint2 v = *(const uint2 *)(p + 2048 + 8 * (lane >> 2) + 64 * h);
            r.d[h] = __half2float(__ushort_as_half((unsigned short)(v.x & 0xffff)));
            r.m[h] = 0.f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int b = lane_sub(lane, i);
                r.sc[h][i] = small_f((v.y >> 4 * b & 15) | (v.x >> (16 + 2 * b) & 3) << 4) - 32.f;
                r.mn[h][i] = 0.f;
            }
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][4], const uint8_t *p, int lane, int j)
    {
        uint4 w = *(const uint4 *)(p + 512 * j + 16 * lane);
        bytes_iq4(w.x, a[0]);
        bytes_iq4(w.y, a[0] + 1);
        bytes_iq4(w.z, a[1]);
        bytes_iq4(w.w, a[1] + 1);
    }
};
#endif
#endif
