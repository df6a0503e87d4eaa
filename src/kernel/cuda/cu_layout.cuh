/* cu_layout.cuh - the layout of weights in device memory, and how a warp unpacks it.
 *
 * Plain types (F16, BF16, F32) keep their rows; each row starts at a multiple of 16 bytes
 * (layout_stride). Block formats without a layout of their own (IQ1 to IQ3, TQ) are decoded to F16
 * when they are uploaded.
 *
 * The other block formats are stored in tiles of 16 rows by one block of columns: 32, or 256 for
 * the K formats. Tiles follow each other along the columns, then come the next 16 rows; rows that
 * pad the last tile are zero. A tile takes 16 times the bytes of a block, which is always a
 * multiple of 16, so all of it can be fetched in coalesced pieces of 16 bytes. A weight keeps its
 * bits per number.
 *
 * Inside a tile the quantized numbers come first, in the order in which the tensor cores take the A
 * operand (weights are always the left, A operand; activations are B). In every group of 32
 * columns, lane l = 4 g + t holds rows g and g + 8, and of each row these columns:
 *
 *     pair 0: 4t, 4t + 1     pair 1: 4t + 2, 4t + 3     pairs 2, 3: the same + 16
 *
 * Pairs 0 and 1 of both rows are the registers of one m16n8k16 (columns 0..15): a[0] = row g pair
 * 0, a[1] = row g + 8 pair 0, a[2] = row g pair 1, a[3] = row g + 8 pair 1. Pairs 2 and 3 are those
 * of the next one. The tensor core assumes another order of the 16 columns: column c takes position
 * layout_slot(c). The order of the summed dimension is free as long as A and B agree, so
 * activations are stored in the same order.
 *
 * tile<T>::load unpacks a lane's bits to F16 pairs that are `bias(pair)` too large: the bits are
 * OR-ed under an exponent instead of converted. The value of a number is
 *
 *     x = scale * (pair - bias) - minimum
 *     scale = head.d[h] * small(head, h, b, s)      minimum = head.m[h] * small_min(head, h, b, s)
 *
 * with h = 0, 1 for rows g, g + 8; b the group of 32 columns in the tile; s = 0, 1 the half of the
 * group. A scale covers SUB columns: 16, or 32 where both halves have the same. All functions read
 * a tile in shared or in global memory. cu_layout.cu packs tiles on the host.
 *
 * Matrices of quantized folders (DT_GROUPED) have one of the layouts of enum group_layout instead:
 * tiles of 16 rows by 128 or 64 columns, described in tile_group.cuh and packed by pack_group.cu.
 * The last tile of a row may have more columns than the matrix. cu_type says which layout a weight
 * has on the device. */
#ifndef TERN_KERNEL_CUDA_CU_LAYOUT_CUH
#define TERN_KERNEL_CUDA_CU_LAYOUT_CUH

#include "kernel/cuda/cu.cuh"

#define TILE_ROWS 16

/* Layouts of DT_GROUPED: numbers after those of enum dtype. The bytes of the head follow the codes
 * of a tile. */
enum group_layout {
    LAYOUT_U4 = 64, /* 128 columns: an F32 scale and a zero point for each row */
    LAYOUT_U4_64,   /* the same for 64 columns */
    LAYOUT_U4_32,   /* 128 columns: an F16 scale and a zero point for each row and 32 columns */
    LAYOUT_U8,      /* as LAYOUT_U4 */
    LAYOUT_U2,      /* as LAYOUT_U4 */
    LAYOUT_U2_ONE,  /* 128 columns: one scale and one zero point for the tile */
    LAYOUT_E2M1_16, /* 128 columns: an E4M3 scale for each row and 16 columns (NVFP4) */
    LAYOUT_E4M3,    /* 128 columns: an F32 scale for each row */
    LAYOUT_E4M3_64, /* the same for 64 columns */
    LAYOUT_COUNT    /* at most 128: see cu_type */
};

/* Columns and bytes of a tile; both 0 for plain types. */
struct layout {
    int cols, bytes;
};

__host__ __device__ constexpr struct layout layout_of(int t)
{
    switch (t) {
    case DT_Q4_0: return { 32, 16 * 18 };
    case DT_Q4_1: return { 32, 16 * 20 };
    case DT_Q5_0: return { 32, 16 * 22 };
    case DT_Q5_1: return { 32, 16 * 24 };
    case DT_Q8_0: return { 32, 16 * 34 };
    case DT_IQ4_NL: return { 32, 16 * 18 };
    case DT_MXFP4: return { 32, 16 * 17 };
    case DT_Q2_K: return { 256, 16 * 84 };
    case DT_Q3_K: return { 256, 16 * 110 };
    case DT_Q4_K: return { 256, 16 * 144 };
    case DT_Q5_K: return { 256, 16 * 176 };
    case DT_Q6_K: return { 256, 16 * 210 };
    case DT_IQ4_XS: return { 256, 16 * 136 };
    case LAYOUT_U4: return { 128, 1024 + 80 };
    case LAYOUT_U4_64: return { 64, 512 + 80 };
    case LAYOUT_U4_32: return { 128, 1024 + 208 };
    case LAYOUT_U8: return { 128, 2048 + 80 };
    case LAYOUT_U2: return { 128, 512 + 80 };
    case LAYOUT_U2_ONE: return { 128, 512 + 16 };
    case LAYOUT_E2M1_16: return { 128, 1024 + 144 };
    case LAYOUT_E4M3: return { 128, 2048 + 64 };
    case LAYOUT_E4M3_64: return { 64, 1024 + 64 };
    default: return { 0, 0 };
    }
}
/* Tiles of a row. */
__host__ __device__ constexpr int layout_blocks(int t, int cols)
{
    return (cols + layout_of(t).cols - 1) / layout_of(t).cols;
}

/* The type in which a weight of type t is stored on the device. */
__host__ __device__ constexpr int layout_type(int t)
{
    return layout_of(t).cols || t == DT_F32 || t == DT_BF16 ? t : DT_F16;
}
/* Plain types: elements from one row to the next. */
__host__ __device__ constexpr size_t layout_stride(int t, int cols)
{
    return layout_type(t) == DT_F32 ? (size_t)(cols + 3) / 4 * 4 : (size_t)(cols + 7) / 8 * 8;
}
__host__ __device__ constexpr size_t layout_matrix_bytes(int t, int rows, int cols)
{
    struct layout l = layout_of(t);
    if (!l.cols) return (size_t)rows * layout_stride(t, cols) * (layout_type(t) == DT_F32 ? 4 : 2);
    return (size_t)((rows + TILE_ROWS - 1) / TILE_ROWS) * (size_t)layout_blocks(t, cols) *
           (size_t)l.bytes;
}
/* The tile of rows [16 tile, 16 tile + 16) and block kb of columns. base: the start of the
 * matrix. */
__host__ __device__ inline const uint8_t *layout_tile(int t, const void *base, int cols, int tile,
                                                      int kb)
{
    struct layout l = layout_of(t);
    return (const uint8_t *)base +
           ((size_t)tile * (size_t)layout_blocks(t, cols) + (size_t)kb) * (size_t)l.bytes;
}

/* ---- weights of quantized folders ----
 *
 * Their struct weight has type DT_GROUPED. Its member `layout` has the type on the device, and 128
 * times the number of the order of its columns: 0 where columns are in the order of the
 * activations. Equal numbers mean equal orders. The order itself (int32_t [cols]) is behind the
 * matrices. */

static inline int cu_type(const struct weight *w)
{
    return w->type == DT_GROUPED ? w->layout % 128 : (int)w->type;
}
static inline int cu_order_id(const struct weight *w)
{
    return w->type == DT_GROUPED ? w->layout / 128 : 0;
}
/* Bytes in front of the order. */
static inline size_t cu_order_at(const struct weight *w)
{
    return (size_t)(w->n ? w->n : 1) * layout_matrix_bytes(cu_type(w), w->rows, w->cols);
}
/* The order on the device; NULL: there is none. */
static inline const int32_t *cu_order(const struct weight *w)
{
    if (!cu_order_id(w)) return NULL;
    return (const int32_t *)((const char *)w->packed + cu_order_at(w));
}
/* Chooses the layout of a weight of type DT_GROUPED: a value for cu_type. It reads the zero points
 * in w->data. DT_F16: the weight is decoded. */
int cu_group_layout(const struct weight *w);
/* Packs `rows` rows of a weight of type DT_GROUPED, a multiple of 16 but for the last ones. */
void cu_pack_group(const struct weight *w, const uint8_t *src, int rows, uint8_t *dst);
/* The position, of the 16 in one m16n8k16, that column c (0..15) of a group takes. */
__host__ __device__ constexpr int layout_slot(int c) { return c / 4 * 2 + c % 2 + c % 4 / 2 * 8; }

/* ---- bits to F16 pairs: w holds the eight numbers of one lane in one row ---- */

__host__ __device__ __forceinline__ uint32_t bits_rotate8(uint32_t v) { return v >> 8 | v << 24; }

/* Four bits: number o (0, 1) of pair p is at bit 4p + 16 o. Bias 1024, 64, 1024, 64 for pairs
 * 0..3. */
__host__ __device__ __forceinline__ void bits_4(uint32_t w, uint32_t a[4])
{
    a[0] = (w & 0x000f000f) | 0x64006400;
    a[1] = (w & 0x00f000f0) | 0x54005400;
    w >>= 8;
    a[2] = (w & 0x000f000f) | 0x64006400;
    a[3] = (w & 0x00f000f0) | 0x54005400;
}
/* ORs the fifth bits into the pairs of bits_4. v has them at bits 4, 8, 5, 9 for pairs 0..3, + 16
 * o. */
__host__ __device__ __forceinline__ void bits_5(uint32_t v, uint32_t a[4])
{
    a[0] |= v & 0x00100010;
    a[1] |= v & 0x01000100;
    v >>= 1;
    a[2] |= v & 0x00100010;
    a[3] |= v & 0x01000100;
}
/* ORs the fifth and sixth bits. v has them at bits 4, 8, 6, 10 for pairs 0..3, + 16 o. */
__host__ __device__ __forceinline__ void bits_6(uint32_t v, uint32_t a[4])
{
    a[0] |= v & 0x00300030;
    a[1] |= v & 0x03000300;
    v >>= 2;
    a[2] |= v & 0x00300030;
    a[3] |= v & 0x03000300;
}
/* Two bits: number o of pair p is at bit 2p + 16 o. Bias 1024, 256, 64, 16. */
__host__ __device__ __forceinline__ void bits_2(uint32_t w, uint32_t a[4])
{
    a[0] = (w & 0x00030003) | 0x64006400;
    a[1] = (w & 0x000c000c) | 0x5c005c00;
    a[2] = (w & 0x00300030) | 0x54005400;
    a[3] = (w & 0x00c000c0) | 0x4c004c00;
}
/* ORs the third bits into the pairs of bits_2. v has them at bits 2 + 2p + 16 o. */
__host__ __device__ __forceinline__ void bits_3(uint32_t v, uint32_t a[4])
{
    a[0] |= v & 0x00040004;
    a[1] |= v & 0x00100010;
    a[2] |= v & 0x00400040;
    a[3] |= v & 0x01000100;
}
/* One byte of fifth bits (pairs 0, 2, 1, 3 of o = 0, then of o = 1) to the positions of bits_5. */
__host__ __device__ __forceinline__ uint32_t bits_spread(uint32_t b)
{
    return (b & 0x03) << 4 | (b & 0x0c) << 6 | (b & 0x30) << 16 | (b & 0xc0) << 18;
}
/* E2M1: number o of pair p is at bit 12 - 4p + 16 o. No bias, but the result is 2^14 too small. */
__host__ __device__ __forceinline__ void bits_e2m1(uint32_t w, uint32_t a[4])
{
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int p = 0; p < 4; p++, w <<= 4) a[p] = (w & 0x80008000) | (w & 0x70007000) >> 3;
}

#ifdef __CUDACC__
/* Four bytes, each 128 too large, to two pairs. Bias 1152 (1024 + 128). */
__device__ __forceinline__ void bits_8(uint32_t w, uint32_t a[2])
{
    a[0] = __byte_perm(w, 0x64646464, 0x4140);
    a[1] = __byte_perm(w, 0x64646464, 0x4342);
}
/* Eight nibbles, number e = 2p + o at bit 4e, through the table of IQ4_NL. Bias 1152. */
__device__ __forceinline__ void bits_iq4(uint32_t w, uint32_t a[4])
{
    const uint32_t t0 = 0x3f2d1801, t1 = 0x766a5d4f, t2 = 0xa6998d81, t3 = 0xf1d9c5b5;
    uint32_t low = w & 0x77777777, select = (w & 0x88888888) >> 1 | 0x32103210;
#pragma unroll
    for (int i = 0; i < 2; i++, low >>= 16, select >>= 16) {
        uint32_t lo = __byte_perm(t0, t1, low), hi = __byte_perm(t2, t3, low);
        bits_8(__byte_perm(lo, hi, select), a + 2 * i);
    }
}

__device__ __forceinline__ float half_at(const uint8_t *p)
{
    return __half2float(*(const __half *)p);
}
/* Byte i of the words w as a float: OR-ed under the exponent of 2^23. i is a compile-time
 * constant. */
__device__ __forceinline__ float byte_of(const uint32_t *w, int i)
{
    return __uint_as_float(__byte_perm(w[i / 4], 0x4b000000, 0x7540 + i % 4)) - 8388608.f;
}
__device__ __forceinline__ float sbyte_of(const uint32_t *w, int i)
{
    return __uint_as_float(__byte_perm(w[i / 4] ^ 0x80808080, 0x4b000000, 0x7540 + i % 4)) -
           8388736.f;
}
/* Two bytes of u and v as an F16 pair. select: the selector of __byte_perm. */
__device__ __forceinline__ uint32_t pair_of(uint32_t u, uint32_t v, uint32_t select)
{
    uint32_t r = __byte_perm(__byte_perm(u, v, select), 0x64646464, 0x4140);
    __half2 h = __hsub2(*(__half2 *)&r, __float2half2_rn(1024.f));
    return *(uint32_t *)&h;
}

/* ---- the formats ----
 *
 * Members of tile<T>:
 *
 *     COLS, SUB   columns of a tile; columns of a scale
 *     GROUP       groups of 32 columns that one load unpacks: load j holds groups j GROUP ...
 *     MIN         the format has minima
 *     ZERO        a minimum is the scale times a zero point, an integer (zero): see packed_scaled
 *     head, open  a lane's scales of its two rows
 *     load        a lane's numbers as biased F16 pairs: a[group][row][pair]
 *     min_pair    small_min of sub-blocks 2t + 8i and 2t + 8i + 1 as an F16 pair: the A operand of
 *                 a product with sums of x (K formats with minima) */

template <int T> struct tile;

struct tile_small { /* blocks of 32 columns: one scale for each row, and one minimum where MIN */
    static constexpr int COLS = 32, SUB = 32, GROUP = 1;
    static constexpr bool ZERO = false;
    struct head {
        float d[2], m[2];
    };
    static __device__ __forceinline__ float small(const head &, int, int, int) { return 1.f; }
    static __device__ __forceinline__ float small_min(const head &, int, int, int) { return 1.f; }
    static __device__ __forceinline__ head head_d(const uint8_t *d, int lane)
    {
        int g = lane >> 2;
        return { { half_at(d + 2 * g), half_at(d + 2 * g + 16) }, { 0.f, 0.f } };
    }
    static __device__ __forceinline__ head head_dm(const uint8_t *d, int lane)
    {
        int g = lane >> 2;
        return { { half_at(d + 4 * g), half_at(d + 4 * g + 32) },
                 { -half_at(d + 4 * g + 2), -half_at(d + 4 * g + 34) } };
    }
};

/* Bytes 0..255: nibbles. Lane l has 8 bytes at 8 l: four of row g, four of row g + 8. */
struct tile_nibbles : tile_small {
    static __device__ __forceinline__ void load(uint32_t a[1][2][4], const uint8_t *p, int lane,
                                                int)
    {
        uint2 w = *(const uint2 *)(p + 8 * lane);
        bits_4(w.x, a[0][0]);
        bits_4(w.y, a[0][1]);
    }
};

template <> struct tile<DT_Q4_0> : tile_nibbles {
    static constexpr bool MIN = false;
    static __host__ __device__ constexpr float bias(int p) { return p & 1 ? 72.f : 1032.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return head_d(p + 256, lane);
    }
};
template <> struct tile<DT_Q4_1> : tile_nibbles {
    static constexpr bool MIN = true;
    static __host__ __device__ constexpr float bias(int p) { return p & 1 ? 64.f : 1024.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return head_dm(p + 256, lane);
    }
};

/* Bytes 256..319: fifth bits. Lane l has 2 bytes at 256 + 2 l. */
struct tile_fives : tile_small {
    static __device__ __forceinline__ void load(uint32_t a[1][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        tile_nibbles::load(a, p, lane, j);
        uint32_t h = *(const uint16_t *)(p + 256 + 2 * lane);
        bits_5(bits_spread(h & 255), a[0][0]);
        bits_5(bits_spread(h >> 8), a[0][1]);
    }
};
template <> struct tile<DT_Q5_0> : tile_fives {
    static constexpr bool MIN = false;
    static __host__ __device__ constexpr float bias(int p) { return p & 1 ? 80.f : 1040.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return head_d(p + 320, lane);
    }
};
template <> struct tile<DT_Q5_1> : tile_fives {
    static constexpr bool MIN = true;
    static __host__ __device__ constexpr float bias(int p) { return p & 1 ? 64.f : 1024.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return head_dm(p + 320, lane);
    }
};

/* Bytes 0..511: numbers + 128. Lane l has 16 bytes at 16 l: eight of row g, eight of row g + 8. */
template <> struct tile<DT_Q8_0> : tile_small {
    static constexpr bool MIN = false;
    static __host__ __device__ constexpr float bias(int) { return 1152.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return head_d(p + 512, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[1][2][4], const uint8_t *p, int lane,
                                                int)
    {
        uint4 w = *(const uint4 *)(p + 16 * lane);
        bits_8(w.x, a[0][0]);
        bits_8(w.y, a[0][0] + 2);
        bits_8(w.z, a[0][1]);
        bits_8(w.w, a[0][1] + 2);
    }
};

template <> struct tile<DT_IQ4_NL> : tile_small {
    static constexpr bool MIN = false;
    static __host__ __device__ constexpr float bias(int) { return 1152.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return head_d(p + 256, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[1][2][4], const uint8_t *p, int lane,
                                                int)
    {
        uint2 w = *(const uint2 *)(p + 8 * lane);
        bits_iq4(w.x, a[0][0]);
        bits_iq4(w.y, a[0][1]);
    }
};

/* The scale is 2^(e - 127), times 2^14 for bits_e2m1. */
template <> struct tile<DT_MXFP4> : tile_small {
    static constexpr bool MIN = false;
    static __host__ __device__ constexpr float bias(int) { return 0.f; }
    static __device__ __forceinline__ float power(uint32_t e)
    {
        return __uint_as_float(min(e + 14, 255u) << 23);
    }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        int g = lane >> 2;
        return { { power(p[256 + g]), power(p[264 + g]) }, { 0.f, 0.f } };
    }
    static __device__ __forceinline__ void load(uint32_t a[1][2][4], const uint8_t *p, int lane,
                                                int)
    {
        uint2 w = *(const uint2 *)(p + 8 * lane);
        bits_e2m1(w.x, a[0][0]);
        bits_e2m1(w.y, a[0][1]);
    }
};

/* K formats: four pieces of 512 bytes of nibbles. Lane l has 16 bytes at 16 l of piece j: rows g
 * and g + 8 of group 2j, then of group 2j + 1. */
struct tile_k {
    static constexpr int COLS = 256, GROUP = 2;
    static constexpr bool ZERO = false;
    static __device__ __forceinline__ void load_4(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                  int j)
    {
        uint4 w = *(const uint4 *)(p + 512 * j + 16 * lane);
        bits_4(w.x, a[0][0]);
        bits_4(w.y, a[0][1]);
        bits_4(w.z, a[1][0]);
        bits_4(w.w, a[1][1]);
    }
};

/* 16 bytes of scales and minima for each row, as in the file (6 bits each), unpacked to bytes. */
struct tile_k4 : tile_k {
    static constexpr int SUB = 32;
    static constexpr bool MIN = true;
    struct head {
        float d[2], m[2];
        uint32_t sc[2][2], mn[2][2];
    };
    static __host__ __device__ constexpr float bias(int p) { return p & 1 ? 64.f : 1024.f; }
    static __device__ __forceinline__ head open_k4(const uint8_t *p, int lane)
    {
        head r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = *(const uint4 *)(p + 16 * (lane >> 2) + 128 * h);
            float2 dm = __half22float2(*(const __half2 *)&v.x);
            r.d[h] = dm.x;
            r.m[h] = dm.y;
            r.sc[h][0] = v.y & 0x3f3f3f3f;
            r.mn[h][0] = v.z & 0x3f3f3f3f;
            r.sc[h][1] = (v.w & 0x0f0f0f0f) | (v.y >> 2 & 0x30303030);
            r.mn[h][1] = (v.w >> 4 & 0x0f0f0f0f) | (v.z >> 2 & 0x30303030);
        }
        return r;
    }
    static __device__ __forceinline__ float small(const head &r, int h, int b, int)
    {
        return byte_of(r.sc[h], b);
    }
    static __device__ __forceinline__ float small_min(const head &r, int h, int b, int)
    {
        return byte_of(r.mn[h], b);
    }
    static __device__ __forceinline__ uint32_t min_pair(const head &r, int h, int t, int)
    {
        return pair_of(r.mn[h][0], r.mn[h][1], 0x10 + 0x22 * t);
    }
};
template <> struct tile<DT_Q4_K> : tile_k4 {
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return open_k4(p + 2048, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        load_4(a, p, lane, j);
    }
};

/* Fifth bits: 512 bytes at 2048. Lane l has 16 bytes: a word each for rows g and g + 8 of groups
 * 0..3, then of groups 4..7. The bits of group b are 2 (b & 1) above the positions of bits_5; those
 * of groups with b & 2 are rotated left by 8 too. */
template <> struct tile<DT_Q5_K> : tile_k4 {
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        return open_k4(p + 2560, lane);
    }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        load_4(a, p, lane, j);
        uint2 v = *(const uint2 *)(p + 2048 + 16 * lane + 8 * (j >> 1));
        if (j & 1) v.x = bits_rotate8(v.x), v.y = bits_rotate8(v.y);
        bits_5(v.x, a[0][0]);
        bits_5(v.y, a[0][1]);
        bits_5(v.x >> 2, a[1][0]);
        bits_5(v.y >> 2, a[1][1]);
    }
};

/* High bits: two pieces of 512 bytes at 2048. Lane l has 16 bytes: words for rows g and g + 8 of
 * groups 4i and 4i + 1, then of 4i + 2 and 4i + 3; the bits of the odd group are rotated left by 8.
 * Then 16 scales for each row (3072), then d (3328). */
template <> struct tile<DT_Q6_K> : tile_k {
    static constexpr int SUB = 16;
    static constexpr bool MIN = false;
    struct head {
        float d[2], m[2];
        uint32_t sc[2][4];
    };
    static __host__ __device__ constexpr float bias(int p) { return p & 1 ? 96.f : 1056.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        head r = { { half_at(p + 3328 + 2 * (lane >> 2)), half_at(p + 3344 + 2 * (lane >> 2)) },
                   { 0.f, 0.f },
                   {} };
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = *(const uint4 *)(p + 3072 + 16 * (lane >> 2) + 128 * h);
            r.sc[h][0] = v.x, r.sc[h][1] = v.y, r.sc[h][2] = v.z, r.sc[h][3] = v.w;
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        load_4(a, p, lane, j);
        uint2 v = *(const uint2 *)(p + 2048 + 512 * (j >> 1) + 16 * lane + 8 * (j & 1));
        bits_6(v.x, a[0][0]);
        bits_6(v.y, a[0][1]);
        bits_6(bits_rotate8(v.x), a[1][0]);
        bits_6(bits_rotate8(v.y), a[1][1]);
    }
    static __device__ __forceinline__ float small(const head &r, int h, int b, int s)
    {
        return sbyte_of(r.sc[h], 2 * b + s);
    }
    static __device__ __forceinline__ float small_min(const head &, int, int, int) { return 0.f; }
};

/* Two bits: two pieces of 512 bytes. Lane l has 16 bytes: a word each for rows g and g + 8 of
 * groups 4i and 4i + 1, then of 4i + 2 and 4i + 3; the bits of the odd group are 8 higher. */
struct tile_twos : tile_k {
    static constexpr int SUB = 16;
    static __device__ __forceinline__ void load_2(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                  int j)
    {
        uint2 w = *(const uint2 *)(p + 512 * (j >> 1) + 16 * lane + 8 * (j & 1));
        bits_2(w.x, a[0][0]);
        bits_2(w.y, a[0][1]);
        bits_2(w.x >> 8, a[1][0]);
        bits_2(w.y >> 8, a[1][1]);
    }
};
template <> struct tile<DT_Q2_K> : tile_twos {
    static constexpr bool MIN = true;
    struct head {
        float d[2], m[2];
        uint32_t sc[2][4];
    };
    static __host__ __device__ constexpr float bias(int p)
    {
        return p == 0 ? 1024.f : p == 1 ? 256.f : p == 2 ? 64.f : 16.f;
    }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        head r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = *(const uint4 *)(p + 1024 + 16 * (lane >> 2) + 128 * h);
            float2 dm = __half22float2(*(const __half2 *)(p + 1280 + 4 * (lane >> 2) + 32 * h));
            r.d[h] = dm.x;
            r.m[h] = dm.y;
            r.sc[h][0] = v.x, r.sc[h][1] = v.y, r.sc[h][2] = v.z, r.sc[h][3] = v.w;
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        load_2(a, p, lane, j);
    }
    static __device__ __forceinline__ float small(const head &r, int h, int b, int s)
    {
        return (float)(r.sc[h][b / 2] >> (2 * b + s) % 4 * 8 & 15);
    }
    static __device__ __forceinline__ float small_min(const head &r, int h, int b, int s)
    {
        return (float)(r.sc[h][b / 2] >> ((2 * b + s) % 4 * 8 + 4) & 15);
    }
    static __device__ __forceinline__ uint32_t min_pair(const head &r, int h, int t, int i)
    {
        return pair_of(r.sc[h][2 * i] >> 4 & 0x0f0f0f0f, r.sc[h][2 * i + 1] >> 4 & 0x0f0f0f0f,
                       0x10 + 0x22 * t);
    }
};
/* Third bits as the fifth bits of Q5_K, but 1 (b & 1) above the positions of bits_3. Then 12 bytes
 * of scales for each row, as in the file, then d. */
template <> struct tile<DT_Q3_K> : tile_twos {
    static constexpr bool MIN = false;
    struct head {
        float d[2], m[2];
        uint32_t sc[2][4];
    };
    static __host__ __device__ constexpr float bias(int p)
    {
        return p == 0 ? 1028.f : p == 1 ? 260.f : p == 2 ? 68.f : 20.f;
    }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        head r = { { half_at(p + 1728 + 2 * (lane >> 2)), half_at(p + 1744 + 2 * (lane >> 2)) },
                   { 0.f, 0.f },
                   {} };
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t *v = (const uint32_t *)(p + 1536 + 12 * (lane >> 2) + 96 * h);
#pragma unroll
            for (int i = 0; i < 4; i++)
                r.sc[h][i] =
                    (v[i & 1] >> (i < 2 ? 0 : 4) & 0x0f0f0f0f) | (v[2] >> 2 * i & 0x03030303) << 4;
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        load_2(a, p, lane, j);
        uint2 v = *(const uint2 *)(p + 1024 + 16 * lane + 8 * (j >> 1));
        if (j & 1) v.x = bits_rotate8(v.x), v.y = bits_rotate8(v.y);
        bits_3(v.x, a[0][0]);
        bits_3(v.y, a[0][1]);
        bits_3(v.x >> 1, a[1][0]);
        bits_3(v.y >> 1, a[1][1]);
    }
    static __device__ __forceinline__ float small(const head &r, int h, int b, int s)
    {
        return byte_of(r.sc[h], 2 * b + s) - 32.f;
    }
    static __device__ __forceinline__ float small_min(const head &, int, int, int) { return 0.f; }
};

/* 8 bytes of scales for each row (2048), as in the file. */
template <> struct tile<DT_IQ4_XS> : tile_k {
    static constexpr int SUB = 32;
    static constexpr bool MIN = false;
    struct head {
        float d[2], m[2];
        uint32_t high[2], low[2];
    };
    static __host__ __device__ constexpr float bias(int) { return 1152.f; }
    static __device__ __forceinline__ head open(const uint8_t *p, int lane)
    {
        head r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint2 v = *(const uint2 *)(p + 2048 + 8 * (lane >> 2) + 64 * h);
            r.d[h] = __half2float(__ushort_as_half((unsigned short)(v.x & 0xffff)));
            r.m[h] = 0.f;
            r.high[h] = v.x >> 16;
            r.low[h] = v.y;
        }
        return r;
    }
    static __device__ __forceinline__ void load(uint32_t a[2][2][4], const uint8_t *p, int lane,
                                                int j)
    {
        uint4 w = *(const uint4 *)(p + 512 * j + 16 * lane);
        bits_iq4(w.x, a[0][0]);
        bits_iq4(w.y, a[0][1]);
        bits_iq4(w.z, a[1][0]);
        bits_iq4(w.w, a[1][1]);
    }
    static __device__ __forceinline__ float small(const head &r, int h, int b, int)
    {
        return (float)(int)((r.low[h] >> 4 * b & 15) | (r.high[h] >> 2 * b & 3) << 4) - 32.f;
    }
    static __device__ __forceinline__ float small_min(const head &, int, int, int) { return 0.f; }
};

/* ---- values ---- */

/* Load j of a tile as F16 pairs with their final value: scaled and shifted in F32, rounded once. */
template <int T>
__device__ __forceinline__ void tile_f16(uint32_t a[tile<T>::GROUP][2][4],
                                         const typename tile<T>::head &head, const uint8_t *p,
                                         int lane, int j)
{
    tile<T>::load(a, p, lane, j);
#pragma unroll
    for (int i = 0; i < tile<T>::GROUP; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int b = j * tile<T>::GROUP + i;
                float sc = head.d[h] * tile<T>::small(head, h, b, k / 2);
                float mn = tile<T>::MIN ? head.m[h] * tile<T>::small_min(head, h, b, k / 2) : 0.f;
                __half2 v = *(__half2 *)&a[i][h][k];
                v = __hsub2(v, __float2half2_rn(tile<T>::bias(k))); /* exact */
                float2 f = __half22float2(v);
                v = __halves2half2(half_sat(fmaf(sc, f.x, -mn)), half_sat(fmaf(sc, f.y, -mn)));
                a[i][h][k] = *(uint32_t *)&v;
            }
        }
    }
}
#endif
#endif
