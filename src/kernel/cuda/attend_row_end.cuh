/* attend_row_end.cuh - row attention: partial results of warps, then of splits, are combined. */
#ifndef TERN_KERNEL_CUDA_ATTEND_ROW_END_CUH
#define TERN_KERNEL_CUDA_ATTEND_ROW_END_CUH

#include "kernel/cuda/attend_row_type.cuh"

/* Partial results (of warps or of splits, at most 64) have maxima m and sums of weights l,
 * [part][ROW_HEADS]. m becomes the factor of each part, total[head] the sum of all weights (with
 * the sink's if `sink`), top[head] the maximum of all. A warp has a head, its lanes the parts. All
 * threads call it. */
__device__ __forceinline__ void row_factors(const attend_dev &a, const row_place &w, float *m,
                                            const float *l, float *total, float *top, int n,
                                            bool sink)
{
    int warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5, lane = threadIdx.x & 31;

    for (int h = warp; h < ROW_HEADS; h += n_warps) {
        bool has = sink && a.sinks && h < w.n_heads;
        float s = has ? a.sinks[w.head0 + h] * LOG2E : -INFINITY,
              sum = has && lane == 0 ? 1.f : 0.f;
        float x = lane < n ? m[lane * ROW_HEADS + h] : -INFINITY;
        float y = lane + 32 < n ? m[(lane + 32) * ROW_HEADS + h] : -INFINITY;
        float t = fmaxf(warp_max(fmaxf(x, y)), s), base = t == -INFINITY ? 0.f : t;
        x = exp2_approx(x - base);
        y = exp2_approx(y - base);
        sum *= exp2_approx(s - base);
        if (lane < n) {
            m[lane * ROW_HEADS + h] = x;
            sum += x * l[lane * ROW_HEADS + h];
        }
        if (lane + 32 < n) {
            m[(lane + 32) * ROW_HEADS + h] = y;
            sum += y * l[(lane + 32) * ROW_HEADS + h];
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            total[h] = sum;
            top[h] = t;
        }
    }
    __syncthreads();
}

/* Writes four sums of the unit to out. */
template <class L>
__device__ __forceinline__ void row_store(const attend_dev &a, const row_place &w, int item,
                                          float4 o, const float *total)
{
    int j = item >> 5, g = item >> 2 & 7, head = 2 * (item & 3),
        d = w.dim0 + v_dim<L>(j >> 2, g, j & 3);
    float x[4] = { o.x, o.y, o.z, o.w };

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int h = head + (i & 1), dim = d + (i >> 1);
        if (h < w.n_heads && dim < a.dv)
            a.out[(size_t)w.token * a.out_stride + (size_t)(w.head0 + h) * a.dv + dim] =
                x[i] / total[h];
    }
}

/* o += x, rows of even heads times f.x, of odd heads times f.y. */
__device__ __forceinline__ void add_scaled(float4 *o, float4 x, float2 f)
{
    o->x += f.x * x.x;
    o->y += f.y * x.y;
    o->z += f.x * x.z;
    o->w += f.y * x.w;
}

/* The end of a block's work on a unit (row, KV head, tile of heads, slice): combines its warps; if
 * there are other splits, the block that ends last combines them. */
template <int VD, class L>
__device__ __forceinline__ void row_finish(const attend_dev &a, const row_place &w,
                                           row_state<VD> &st, float *smem, int unit, int split,
                                           int n_active)
{
    constexpr int items = VD / 16 * 32; /* groups of four sums */
    int warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5, lane = threadIdx.x & 31, g = lane >> 2,
        t = lane & 3;
    float4 *so = (float4 *)smem;
    float *sm = smem + n_warps * items * 4, *sl = sm + n_warps * ROW_HEADS;
    __shared__ float total[ROW_HEADS], top[ROW_HEADS];
    __shared__ bool last;

    /* Every warp's maxima, weights and sums to shared memory. */
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int m = 4; m < 32; m <<= 1) st.l[i] += __shfl_xor_sync(~0u, st.l[i], m);
        if (g == 0) {
            sm[warp * ROW_HEADS + 2 * t + i] = st.m[i];
            sl[warp * ROW_HEADS + 2 * t + i] = st.l[i];
        }
    }
#pragma unroll
    for (int j = 0; j < VD / 16; j++)
        so[(warp * (VD / 16) + j) * 32 + lane] =
            make_float4(st.o[j][0], st.o[j][1], st.o[j][2], st.o[j][3]);
    __syncthreads();
    row_factors(a, w, sm, sl, total, top, n_warps, n_active == 1);

    /* The block's result: final if there is one split, otherwise a partial result in memory. */
    float *part = a.part + (size_t)(unit * a.n_splits) * ROW_PART;
    for (int i = threadIdx.x; i < items; i += blockDim.x) {
        float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int j = 0; j < n_warps; j++)
            add_scaled(&o, so[j * items + i], *(float2 *)(sm + j * ROW_HEADS + 2 * (i & 3)));
        if (n_active == 1) row_store<L>(a, w, i, o, total);
        else __stcg((float4 *)(part + (size_t)split * ROW_PART) + i, o);
    }
    if (n_active == 1) return;
    if (threadIdx.x < ROW_HEADS) {
        float *to = part + (size_t)split * ROW_PART + ROW_PART - 2 * ROW_HEADS;
        __stcg(to + threadIdx.x, top[threadIdx.x]);
        __stcg(to + ROW_HEADS + threadIdx.x, total[threadIdx.x]);
    }
    /* The partial result is visible before the counter is. atomicInc wraps to 0 at the last split,
     * so the counter is ready for the next launch. */
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicInc(a.done + unit, (unsigned)n_active - 1) == (unsigned)n_active - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    sm = smem;
    sl = sm + n_active * ROW_HEADS;
    for (int i = threadIdx.x; i < n_active * ROW_HEADS; i += blockDim.x) {
        const float *from =
            part + (size_t)(i / ROW_HEADS) * ROW_PART + ROW_PART - 2 * ROW_HEADS + i % ROW_HEADS;
        sm[i] = __ldcg(from);
        sl[i] = __ldcg(from + ROW_HEADS);
    }
    __syncthreads();
    row_factors(a, w, sm, sl, total, top, n_active, true);
    for (int i = threadIdx.x; i < items; i += blockDim.x) {
        float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
        for (int s = 0; s < n_active; s++)
            add_scaled(&o, __ldcg((const float4 *)(part + (size_t)s * ROW_PART) + i),
                       *(float2 *)(sm + s * ROW_HEADS + 2 * (i & 3)));
        row_store<L>(a, w, i, o, total);
    }
}
#endif
