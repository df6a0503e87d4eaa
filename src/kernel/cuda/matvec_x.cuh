/* matvec_x.cuh - the kernel for up to 8 tokens: x in shared memory as F16, normalized, with the
 * sums that block formats need.
 *
 * The factor of an RMS norm is applied to the results, so that x is read only once. If a number is
 * too large for F16, or all are so small that F16 would round them badly, x is read again and
 * scaled by a power of two; the results are scaled back. */
#ifndef TERN_KERNEL_CUDA_MATVEC_X_CUH
#define TERN_KERNEL_CUDA_MATVEC_X_CUH

#include "kernel/cuda/matvec_unit.cuh"

enum { MV_SEEN_LARGE = 1, MV_SEEN_NORMAL = 2 };

struct mv_state { /* of a block, in shared memory */
    float sum[CU_FEW][MV_WARPS], sq[CU_FEW][MV_WARPS], top[CU_FEW][MV_WARPS]; /* [token][warp] */
    /* mean and reciprocal deviation, applied to x where known before */
    float mean[CU_FEW], rs[CU_FEW];
    float factor[CU_FEW]; /* power of two that x is multiplied by */
    float last[CU_FEW];   /* factor of the results */
    unsigned seen[CU_FEW];
};

__device__ __forceinline__ float4 mv_load4(const float *p, int c, int n, bool vec)
{
    if (vec && c + 3 < n) return __ldcg((const float4 *)(p + c));
    return make_float4(c < n ? __ldcg(p + c) : 0.f, c + 1 < n ? __ldcg(p + c + 1) : 0.f,
                       c + 2 < n ? __ldcg(p + c + 2) : 0.f, c + 3 < n ? __ldcg(p + c + 3) : 0.f);
}

/* Applies a norm to four numbers without its factor (early: the factor is known and applied). w:
 * its weights. */
__device__ __forceinline__ float4 mv_normed(const struct mv_args &a, const struct mv_state &st,
                                            float4 v, float4 w, int c, int tok, bool early)
{
    if (early) {
        float m = st.mean[tok], r = st.rs[tok];
        v.x = (v.x - m) * r, v.y = (v.y - m) * r, v.z = (v.z - m) * r, v.w = (v.w - m) * r;
    }
    v.x *= w.x, v.y *= w.y, v.z *= w.z, v.w *= w.w;
    if (a.norm_b) {
        float4 b = mv_load4(a.norm_b, c, a.cols, a.vec);
        v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
    }
    return v;
}

/* Sums of the four numbers f from column c on with those of neighbouring lanes: starting sums and
 * minima for the format P. */
template <class P>
__device__ __forceinline__ void mv_sum4(uint8_t *init, uint8_t *mins, const float f[4], int c,
                                        int tok)
{
    if constexpr (P::SUB != 0) {
        bool high = c & 16;
        float k = (high ? P::bias(2) : P::bias(0)) * (f[0] + f[1]) +
                  (high ? P::bias(3) : P::bias(1)) * (f[2] + f[3]);
        float s = f[0] + f[1] + f[2] + f[3];
        unsigned mask = 0xffu << (threadIdx.x & 24);
#pragma unroll
        for (int m = 1; m < P::SUB / 4; m <<= 1) {
            k += __shfl_xor_sync(mask, k, m);
            if (P::MIN) s += __shfl_xor_sync(mask, s, m);
        }
        if (c % P::SUB) return;
        float *to = (float *)(init + P::init_at(c));
        to += tok / 2 * 4 + tok % 2;
        to[0] = to[2] = -k;
        if constexpr (P::MIN && !P::UNIT_K) {
            *(float *)(mins + P::min_at(c) + 4 * tok) = s;
        } else if constexpr (P::MIN) {
            constexpr int N = P::MIN_BYTES; /* 4: pairs high, low; 8: high, high, low, low */
            int i = c % 256 / P::SUB;
            __half hi = __float2half_rn(s / P::MIN_PART),
                   lo = __float2half_rn(s / P::MIN_PART - __half2float(hi));
            uint8_t *p = mins + P::min_at(c & ~255) + tok * 8 * N + i % 8 / 2 * 2 * N + i / 8 * 4 +
                         i % 2 * 2;
            *(__half *)p = hi;
            *(__half *)(p + N) = lo;
        }
    }
}

template <class A, class B>
__device__ __forceinline__ void mv_store4(const struct mv_args &a, uint8_t *mem, float4 v, int c,
                                          int tok)
{
    int at = A::NATURAL ? c : (c & ~31) | (c & 12) << 1 | (c & 16) >> 2;
    uint8_t *to = mem + a.at_x + (tok * a.x_row + at) * 2;
    if (A::LOW) {
        __nv_bfloat162 h0 = __floats2bfloat162_rn(v.x, v.y), h1 = __floats2bfloat162_rn(v.z, v.w);
        float2 f0 = __bfloat1622float2(h0), f1 = __bfloat1622float2(h1);
        __nv_bfloat162 l0 = __floats2bfloat162_rn(v.x - f0.x, v.y - f0.y);
        __nv_bfloat162 l1 = __floats2bfloat162_rn(v.z - f1.x, v.w - f1.y);
        *(uint2 *)to = make_uint2(*(uint32_t *)&h0, *(uint32_t *)&h1);
        *(uint2 *)(to + a.at_low - a.at_x) = make_uint2(*(uint32_t *)&l0, *(uint32_t *)&l1);
        return;
    }
    __half2 h0 = __floats2half2_rn(v.x, v.y), h1 = __floats2half2_rn(v.z, v.w);
    float2 f0 = __half22float2(h0), f1 = __half22float2(h1);
    float f[4] = { f0.x, f0.y, f1.x, f1.y };
    *(uint2 *)to = make_uint2(*(uint32_t *)&h0, *(uint32_t *)&h1);
    mv_sum4<A>(mem + a.at_init[0], mem + a.at_min[0], f, c, tok);
    if (A::TYPE != B::TYPE) mv_sum4<B>(mem + a.at_init[1], mem + a.at_min[1], f, c, tok);
}

/* Columns [c0, c0 + n) of every token, tokens divided among the warps; padded with zeros. early:
 * mean and rs are known. first: records the sum of squares and what was seen. scaled: times
 * factor. */
template <class A, class B>
__device__ __forceinline__ void mv_fill_x(const struct mv_args &a, struct mv_state &st,
                                          uint8_t *mem, int c0, int n, bool early, bool first,
                                          bool scaled)
{
    constexpr int BATCH = 4; /* loads in flight */
    int padded = (n + A::PAD - 1) / A::PAD * A::PAD, warp = threadIdx.x >> 5,
        lane = threadIdx.x & 31;
    int parts = A::WARPS / a.tokens, tok = warp / parts;
    int part = warp - tok * parts;
    if (tok >= a.tokens) return;
    const float *x = a.x + tok * a.x_stride;
    float sq = 0.f, factor = scaled ? st.factor[tok] : 1.f;
    bool large = false, fair = false;
    int step = 128 * parts;
    for (int q = 128 * part + 4 * lane; q < padded; q += step * BATCH) {
        float4 v[BATCH], w[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int c = q + step * i;
            w[i] = make_float4(1.f, 1.f, 1.f, 1.f);
            if (c < padded) v[i] = mv_load4(x, c0 + c, a.cols, a.vec);
            if (a.norm_w && c < padded) w[i] = mv_load4(a.norm_w, c0 + c, a.cols, a.vec);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int c = q + step * i;
            if (c >= padded) break;
            float4 f = v[i];
            sq += f.x * f.x + f.y * f.y + f.z * f.z + f.w * f.w;
            if (a.norm != CU_NORM_NONE) f = mv_normed(a, st, f, w[i], c0 + c, tok, early);
            if (scaled) f.x *= factor, f.y *= factor, f.z *= factor, f.w *= factor;
            float top = fmaxf(fmaxf(fabsf(f.x), fabsf(f.y)), fmaxf(fabsf(f.z), fabsf(f.w)));
            large |= top > 32768.f;
            fair |= top > 0x1p-10f;
            mv_store4<A, B>(a, mem, f, c, tok);
        }
    }
    if (!first) return;
    sq = warp_sum(sq);
    large = __any_sync(~0u, large);
    fair = __any_sync(~0u, fair);
    if (lane) return;
    st.sq[tok][part] = sq;
    atomicOr(&st.seen[tok], (large ? MV_SEEN_LARGE : 0) | (fair ? MV_SEEN_NORMAL : 0));
}

/* The second pass; not inlined, because it is rare. */
template <class A, class B>
__device__ __noinline__ void mv_refill_x(const struct mv_args &a, struct mv_state &st, uint8_t *mem,
                                         int c0, int n, bool early)
{
    mv_fill_x<A, B>(a, st, mem, c0, n, early, false, true);
}

/* Sum, sum of squares and largest magnitude of every token, and from them mean, rs and factor. The
 * magnitude is that of the numbers that go into shared memory. The whole block calls it; ends with
 * a barrier. */
static __device__ __noinline__ void mv_measure_x(const struct mv_args &a, struct mv_state &st,
                                                 bool early)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    for (int tok = 0; tok < a.tokens; tok++) {
        const float *x = a.x + tok * a.x_stride;
        float sum = 0.f, top = 0.f;
        for (int c = 4 * threadIdx.x; c < a.cols; c += 4 * blockDim.x) {
            float4 v = mv_load4(x, c, a.cols, a.vec);
            sum += v.x + v.y + v.z + v.w;
            if (a.norm == CU_NORM_RMS && a.norm_w) {
                float4 w = mv_load4(a.norm_w, c, a.cols, a.vec);
                v.x *= w.x, v.y *= w.y, v.z *= w.z, v.w *= w.w;
            }
            top = fmaxf(top, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        }
        sum = warp_sum(sum);
        top = warp_max(top);
        if (lane == 0) st.sum[tok][warp] = sum, st.top[tok][warp] = top;
    }
    __syncthreads();
    if (threadIdx.x < a.tokens) {
        int tok = threadIdx.x;
        float sum = 0.f, top = 0.f;
        for (int w = 0; w < warps; w++) {
            sum += st.sum[tok][w];
            top = fmaxf(top, st.top[tok][w]);
        }
        st.mean[tok] = a.norm == CU_NORM_LAYER ? sum / a.cols : 0.f;
        int e = (int)(__float_as_uint(top) >> 23) - 127; /* 2^e <= top */
        bool plain = early || e < -126 || e > 127;       /* normalized numbers are near 1 */
        st.factor[tok] =
            plain ? 1.f : __uint_as_float((uint32_t)(max(min(4 - e, 126), -126) + 127) << 23);
    }
    __syncthreads();
    if (!early) return;
    for (int tok = 0; tok < a.tokens; tok++) { /* around the mean: no cancellation */
        const float *x = a.x + tok * a.x_stride;
        float sq = 0.f, m = st.mean[tok];
        for (int c = 4 * threadIdx.x; c < a.cols; c += 4 * blockDim.x) {
            float4 v = mv_load4(x, c, a.cols, a.vec);
            sq += (v.x - m) * (v.x - m) + (c + 1 < a.cols ? (v.y - m) * (v.y - m) : 0.f) +
                  (c + 2 < a.cols ? (v.z - m) * (v.z - m) : 0.f) +
                  (c + 3 < a.cols ? (v.w - m) * (v.w - m) : 0.f);
        }
        sq = warp_sum(sq);
        if (lane == 0) st.sq[tok][warp] = sq;
    }
    __syncthreads();
    if (threadIdx.x < a.tokens) {
        float sq = 0.f;
        for (int w = 0; w < warps; w++) sq += st.sq[threadIdx.x][w];
        st.rs[threadIdx.x] = rsqrtf(sq / a.cols + a.eps);
    }
    __syncthreads();
}

/* Fills x, or its first piece, and the factor of the results. The whole block calls it; a barrier
 * must follow. */
template <class A, class B>
__device__ __forceinline__ void mv_prepare_x(const struct mv_args &a, struct mv_state &st,
                                             uint8_t *mem)
{
    bool split = a.n_pieces > 1,
         early = a.norm == CU_NORM_LAYER || (a.norm == CU_NORM_RMS && split), bad = false;
    int tok = threadIdx.x, n = min(a.piece, a.cols), parts = A::WARPS / a.tokens;
    if (early || split) mv_measure_x(a, st, early);
    mv_fill_x<A, B>(a, st, mem, 0, n, early, !early && !split, split);
    __syncthreads();
    if (!early && !split && !A::LOW) {
        for (int i = 0; i < a.tokens; i++) bad |= st.seen[i] != MV_SEEN_NORMAL;
        if (bad) {
            mv_measure_x(a, st, false);
            mv_refill_x<A, B>(a, st, mem, 0, n, false);
        }
    }
    if (tok < a.tokens) {
        float last = split || bad ? 1.f / st.factor[tok] : 1.f;
        if (a.norm == CU_NORM_RMS && !early) {
            float sq = 0.f;
            for (int w = 0; w < parts; w++) sq += st.sq[tok][w];
            last *= rsqrtf(sq / a.cols + a.eps);
        }
        st.last[tok] = last;
    }
}
#endif
