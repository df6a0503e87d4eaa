/* attend_row_type.cuh - row attention: KV types as fragments, scores and weights of a page. */
#ifndef TERN_KERNEL_CUDA_ATTEND_ROW_TYPE_CUH
#define TERN_KERNEL_CUDA_ATTEND_ROW_TYPE_CUH

#include "kernel/cuda/cu_attend.cuh"

/* How rows of a type become fragments. raw: what is kept in registers until it is needed; half8:
 * raw as eight F16; pack: four numbers in the stored form. ahead: there are enough registers to
 * load the next page early. A thread has eight numbers of each chunk of 32 dimensions of K (thread
 * t of four) and of each pass of 64 dimensions of V (thread g of eight). */
struct row_f16 {
    typedef uint4 raw;
    typedef uint2 four;
    static __device__ __forceinline__ four pack(float4 v)
    {
        return make_uint2(kv_half2(v.x, v.y), kv_half2(v.z, v.w));
    }
    static constexpr bool staged = false, split = false, ahead = true;
    static __device__ __forceinline__ raw fetch(const attend_dev &, const char *row, int dim, int n)
    {
        return dim < n ? __ldcg((const uint4 *)(row + 2 * dim)) : make_uint4(0, 0, 0, 0);
    }
    static __device__ __forceinline__ uint4 half8(raw r) { return r; }
};

struct row_bf16 {
    typedef uint4 raw;
    typedef uint2 four;
    static __device__ __forceinline__ four pack(float4 v)
    {
        __nv_bfloat162 lo = __floats2bfloat162_rn(v.x, v.y), hi = __floats2bfloat162_rn(v.z, v.w);
        return make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
    }
    static constexpr bool staged = false, split = false, ahead = true;
    static __device__ __forceinline__ raw fetch(const attend_dev &, const char *row, int dim, int n)
    {
        return dim < n ? __ldcg((const uint4 *)(row + 2 * dim)) : make_uint4(0, 0, 0, 0);
    }
    static __device__ __forceinline__ uint4 half8(raw r)
    {
        return make_uint4(kv_bf16x2(r.x), kv_bf16x2(r.y), kv_bf16x2(r.z), kv_bf16x2(r.w));
    }
};

struct row_f8 {
    typedef uint2 raw;
    typedef uint32_t four;
    static __device__ __forceinline__ four pack(float4 v)
    {
        uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(v.x, v.y), __NV_SATFINITE, __NV_E4M3);
        return lo |
               (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(v.z, v.w), __NV_SATFINITE, __NV_E4M3)
                   << 16;
    }
    static constexpr bool staged = false, split = false, ahead = true;
    static __device__ __forceinline__ raw fetch(const attend_dev &, const char *row, int dim, int n)
    {
        return dim < n ? __ldcg((const uint2 *)(row + dim)) : make_uint2(0, 0);
    }
    static __device__ __forceinline__ uint4 half8(raw r)
    {
        return make_uint4(kv_f8x2(r.x & 0xffff), kv_f8x2(r.x >> 16), kv_f8x2(r.y & 0xffff),
                          kv_f8x2(r.y >> 16));
    }
};

/* F32, and rows of any type that are not aligned to 16 bytes. */
struct row_any {
    typedef uint4 raw;
    static constexpr bool staged = false, split = false, ahead = false;
    static __device__ __forceinline__ raw fetch(const attend_dev &a, const char *row, int dim,
                                                int n)
    {
        return kv_eight(a.kv.type, a.kv.aligned, row, dim, n);
    }
    static __device__ __forceinline__ uint4 half8(raw r) { return r; }
};

/* Q8_0 blocks are aligned to 2 bytes, so pages pass through shared memory as they are. A thread's
 * eight numbers are four and four, 16 dimensions apart in keys and 32 in values, which reduces bank
 * conflicts. */
struct row_q8 {
    typedef uint4 raw;
    static constexpr bool staged = true, split = true, ahead = false;
};

/* Heads have exactly KD and VD dimensions (64, 128 or 256), so word boundaries are known at compile
 * time. */
struct row_q8_exact : row_q8 {
};

/* Which key of a page is row g + 8 h of the score product. Q8_0 rows of 128 numbers are 34 words
 * apart: every second one, read by four threads each, starts in a different bank. */
template <class L> __device__ __forceinline__ int row_key(int g, int h)
{
    return L::split ? 2 * g + h : g + 8 * h;
}
/* The keys of a thread in the value product: rows 2t, 2t + 1, 2t + 8, 2t + 9 of the score
 * product. */
template <class L> __device__ __forceinline__ int v_key(int t, int i)
{
    return row_key<L>(2 * t + (i & 1), i >> 1);
}

/* The dimension of the first of word w's two numbers: keys by chunk and t, values by pass and g. */
template <class L> __device__ __forceinline__ int k_dim(int c, int t, int w)
{
    return L::split ? 32 * c + 16 * (w >> 1) + 4 * t + 2 * (w & 1) : 32 * c + 8 * t + 2 * w;
}
template <class L> __device__ __forceinline__ int v_dim(int p, int g, int w)
{
    return L::split ? 64 * p + 32 * (w >> 1) + 4 * g + 2 * (w & 1) : 64 * p + 8 * g + 2 * w;
}

/* The fragments of a Q8_0 page in shared memory. */
__device__ __forceinline__ uint4 q8_k(const char *row, int c, int t)
{
    uint2 x = kv_q8_four(row, 32 * c + 4 * t), y = kv_q8_four(row, 32 * c + 16 + 4 * t);
    return make_uint4(x.x, x.y, y.x, y.y);
}
__device__ __forceinline__ uint4 q8_v(const attend_dev &a, const char *row, int d, bool valid)
{
    uint2 zero = make_uint2(0, 0);
    uint2 x = valid && d < a.dv ? kv_q8_four(row, d) : zero;
    uint2 y = valid && d + 32 < a.dv ? kv_q8_four(row, d + 32) : zero;
    return make_uint4(x.x, x.y, y.x, y.y);
}

/* Transposes an 8 x 8 matrix of F16 that is spread over the warp. */
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* What a warp keeps: sums o, maxima m and weights l of query heads 2t and 2t + 1. */
template <int VD> struct row_state {
    float o[VD / 16][4], m[2], l[2];
};

/* What a block works on. */
struct row_place {
    int token, head0, n_heads; /* head0: the first query head; n_heads: how many, up to ROW_HEADS */
    int kv_head, dim0;         /* dim0: first dimension of the slice of values */
    int pos, first, last;      /* keys [first, last]; see row_last */
    const int32_t *blocks;
};

/* The last key of a row. Kernels that load the next page early have no register to spare, and are
 * causal only. */
template <class L> __device__ __forceinline__ int row_last(const row_place &w)
{
    return L::ahead ? w.pos : w.last;
}

/* The B operand of chunk c. q: the block's first head; heads are `stride` apart. */
template <int KD, class L>
__device__ __forceinline__ uint4 q_fragment(const attend_dev &a, const row_place &w, const float *q,
                                            int stride, int c, int g, int t)
{
    uint32_t r[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int d = k_dim<L>(c, t, i);
        const float *at = q + g * stride + d;
        float x = g < w.n_heads && d < a.dk ? at[0] : 0.f,
              y = g < w.n_heads && d + 1 < a.dk ? at[1] : 0.f;
        r[i] = kv_half2(x, y);
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
}

/* The sum of a head's 32 numbers in the fragments of four lanes. */
__device__ __forceinline__ float quad_sum(uint4 q)
{
    const __half2 *h = reinterpret_cast<const __half2 *>(&q);
    float sum = 0.f;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = __half22float2(h[i]);
        sum += f.x + f.y;
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

/* 16 scores by 8 heads: mask, one step of the online softmax, and the weights as the B operand of
 * the value product. */
template <int VD, class L>
__device__ __forceinline__ void row_weights(const attend_dev &a, const row_place &w,
                                            row_state<VD> &st, float s[4], int key,
                                            const float slope[2], int g, uint32_t pt[2])
{
    float top[2], p[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int k = key + row_key<L>(g, i >> 1);
        s[i] = attend_score(a, s[i], slope[i & 1], k - w.pos);
        if (k < w.first || k > row_last<L>(w)) s[i] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(s[i], s[i + 2]);
#pragma unroll
        for (int m = 4; m < 32; m <<= 1) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], m));
        top[i] = fmaxf(top[i], st.m[i]);
    }
    if (__any_sync(~0u, top[0] > st.m[0] || top[1] > st.m[1])) {
        float f[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            f[i] = top[i] == -INFINITY ? 1.f : exp2_approx(st.m[i] - top[i]);
            st.l[i] *= f[i];
            st.m[i] = top[i];
        }
#pragma unroll
        for (int j = 0; j < VD / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) st.o[j][i] *= f[i & 1];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float m = st.m[i & 1];
        p[i] = exp2_approx(s[i] - (m == -INFINITY ? 0.f : m));
        st.l[i & 1] += p[i];
    }
    pt[0] = transpose_8x8(kv_half2(p[0], p[1]));
    pt[1] = transpose_8x8(kv_half2(p[2], p[3]));
}

/* Adds 64 dimensions of four keys (2t, 2t + 1, 2t + 8, 2t + 9), interleaved by key, times the
 * weights. */
__device__ __forceinline__ void row_sum(float (*o)[4], const uint4 v[4], const uint32_t pt[2])
{
    const uint32_t *x0 = &v[0].x, *x1 = &v[1].x, *y0 = &v[2].x, *y1 = &v[3].x;

#pragma unroll
    for (int w = 0; w < 4; w++)
        mma_f16(o[w], __byte_perm(x0[w], x1[w], 0x5410), __byte_perm(x0[w], x1[w], 0x7632),
                __byte_perm(y0[w], y1[w], 0x5410), __byte_perm(y0[w], y1[w], 0x7632), pt[0], pt[1]);
}
#endif
