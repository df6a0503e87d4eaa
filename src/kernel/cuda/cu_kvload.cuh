/* cu_kvload.cuh - keys and values in KV blocks: addresses of rows, and conversion of every KV type
 * to F16.
 *
 * Tensor cores multiply F16, so every type is converted when it is loaded. Numbers beyond the range
 * of F16 become the largest finite F16; NaN stays NaN. */
#ifndef TERN_KERNEL_CUDA_CU_KVLOAD_CUH
#define TERN_KERNEL_CUDA_CU_KVLOAD_CUH

#include "kernel/cuda/copy.cuh"

#include <cuda_fp8.h>

/* Keys or values of one layer. */
struct kv_rows {
    char *base;
    size_t block_bytes;
    int head_bytes, row_bytes, dim;
};

/* A layer of a kvview, as kernels need it. */
struct kv_dev {
    struct kv_rows k, v;
    const int32_t *table, *seq, *pos;
    int table_stride, type, n_kv_heads;
    /* rows start at and are multiples of 16 bytes: eight numbers can be read at once */
    bool aligned;
    bool v_in_k; /* values are a part of the keys: only keys are written */
};

/* Checks a layer and fills out. false: reported by cu_fail. */
bool fill_kv_dev(struct cuda *c, struct kv_dev *out, const struct kvview *kv, int layer);

/* The same for rows of `dim` elements by themselves. */
bool fill_kv_rows(struct cuda *c, struct kv_rows *r, enum dtype type, void *base,
                  size_t block_bytes, int heads, int dim);

/* Was the last write to the layer's keys and values that of this batch? Then all other keys are of
 * earlier steps. */
bool kv_written_by_batch(const struct kvview *kv, int layer);

#ifdef __CUDACC__
__device__ __forceinline__ char *kv_head_at(const struct kv_rows &r, int block, int head)
{
    return r.base + (size_t)block * r.block_bytes + (size_t)head * r.head_bytes;
}

__device__ __forceinline__ __half kv_half(float v)
{
    return __float2half_rn(fabsf(v) > 65504.f ? copysignf(65504.f, v) : v);
}

__device__ __forceinline__ uint32_t kv_half2(float a, float b)
{
    __half2 h = __halves2half2(kv_half(a), kv_half(b));
    return *reinterpret_cast<uint32_t *>(&h);
}

__device__ __forceinline__ uint32_t kv_bf16x2(uint32_t w)
{
    return kv_half2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}

__device__ __forceinline__ uint32_t kv_f8x2(uint32_t w)
{
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)w, __NV_E4M3);
    return (uint32_t)h.x | (uint32_t)h.y << 16;
}

/* Four signed bytes as F16, exactly: a byte is OR-ed under the exponent of 1024. */
__device__ __forceinline__ uint2 kv_bytes4(uint32_t w)
{
    const __half2 bias = __half2half2(__ushort_as_half(0x6480)); /* 1024 + 128 */
    uint32_t u = w ^ 0x80808080u;
    uint32_t lo = __byte_perm(u, 0x64646464u, 0x4140), hi = __byte_perm(u, 0x64646464u, 0x4342);
    __half2 a = __hsub2(*reinterpret_cast<__half2 *>(&lo), bias);
    __half2 b = __hsub2(*reinterpret_cast<__half2 *>(&hi), bias);
    return make_uint2(*reinterpret_cast<uint32_t *>(&a), *reinterpret_cast<uint32_t *>(&b));
}

__device__ __forceinline__ uint32_t kv_scaled(uint32_t x, __half2 d)
{
    __half2 r = __hmul2(*reinterpret_cast<__half2 *>(&x), d);
    return *reinterpret_cast<uint32_t *>(&r);
}

/* Four numbers of a Q8_0 row, which is aligned to 2 bytes. Reads the aligned words around them. */
__device__ __forceinline__ uint2 kv_q8_four(const char *row, int dim)
{
    const char *block = row + (dim >> 5) * 34, *at = block + 2 + (dim & 31);
    uintptr_t a = (uintptr_t)at;
    const uint32_t *w = (const uint32_t *)(a & ~(uintptr_t)3);
    uint32_t q = a & 2 ? __funnelshift_r(w[0], w[1], 16) : w[0];
    __half2 d = __half2half2(*(const __half *)block);
    uint2 h = kv_bytes4(q);
    return make_uint2(kv_scaled(h.x, d), kv_scaled(h.y, d));
}

/* Eight numbers. */
__device__ __forceinline__ uint4 kv_q8_eight(const char *row, int dim)
{
    const char *block = row + (dim >> 5) * 34;
    uintptr_t at = (uintptr_t)(block + 2 + (dim & 31));
    const uint32_t *w = (const uint32_t *)(at & ~(uintptr_t)3);
    unsigned shift = (at & 2) * 8;
    uint32_t w0 = w[0], w1 = w[1], w2 = shift ? w[2] : 0;
    __half2 d = __half2half2(*(const __half *)block);
    uint2 x = kv_bytes4(__funnelshift_r(w0, w1, shift)),
          y = kv_bytes4(__funnelshift_r(w1, w2, shift));
    return make_uint4(kv_scaled(x.x, d), kv_scaled(x.y, d), kv_scaled(y.x, d), kv_scaled(y.y, d));
}

/* One number, any type. */
__device__ __forceinline__ float kv_number(int type, const char *row, int i)
{
    switch (type) {
    case DT_F32: return ((const float *)row)[i];
    case DT_F16: return __half2float(((const __half *)row)[i]);
    case DT_BF16: return __uint_as_float((uint32_t)((const uint16_t *)row)[i] << 16);
    case DT_F8_E4M3: {
        __half_raw h = __nv_cvt_fp8_to_halfraw(((const uint8_t *)row)[i], __NV_E4M3);
        return __half2float(__half(h));
    }
    case DT_Q8_0: {
        const struct block_q8_0 *b = (const struct block_q8_0 *)row + (i >> 5);
        return __half2float(__ushort_as_half(b->d)) * (float)b->qs[i & 31];
    }
    }
    return 0.f;
}

/* Numbers [dim, dim + 8) of a row of n numbers, as F16; zeros after its end. Any type and
 * alignment. */
__device__ __forceinline__ uint4 kv_eight_plain(int type, const char *row, int dim, int n)
{
    uint32_t w[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int d = dim + 2 * i;
        w[i] = kv_half2(d < n ? kv_number(type, row, d) : 0.f,
                        d + 1 < n ? kv_number(type, row, d + 1) : 0.f);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* The same, with 16-byte loads (8 for F8, two of 16 for F32) where rows are aligned. */
__device__ __forceinline__ uint4 kv_eight(int type, bool aligned, const char *row, int dim, int n)
{
    if (dim >= n) return make_uint4(0, 0, 0, 0);
    if (!aligned) return kv_eight_plain(type, row, dim, n);
    switch (type) {
    case DT_F16: return __ldcg((const uint4 *)(row + 2 * dim));
    case DT_BF16: {
        uint4 r = __ldcg((const uint4 *)(row + 2 * dim));
        return make_uint4(kv_bf16x2(r.x), kv_bf16x2(r.y), kv_bf16x2(r.z), kv_bf16x2(r.w));
    }
    case DT_F32: {
        float4 a = __ldcg((const float4 *)(row + 4 * dim)),
               b = __ldcg((const float4 *)(row + 4 * dim) + 1);
        return make_uint4(kv_half2(a.x, a.y), kv_half2(a.z, a.w), kv_half2(b.x, b.y),
                          kv_half2(b.z, b.w));
    }
    case DT_F8_E4M3: {
        uint2 r = __ldcg((const uint2 *)(row + dim));
        return make_uint4(kv_f8x2(r.x & 0xffff), kv_f8x2(r.x >> 16), kv_f8x2(r.y & 0xffff),
                          kv_f8x2(r.y >> 16));
    }
    case DT_Q8_0: return kv_q8_eight(row, dim);
    }
    return make_uint4(0, 0, 0, 0);
}

/* ---- tensor cores ---- */

__device__ __forceinline__ void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif
#endif
