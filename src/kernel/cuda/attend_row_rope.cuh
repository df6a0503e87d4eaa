/* attend_row_rope.cuh - row attention of one token: head norms, rotary embedding and the KV write
 * inside the attention kernel.
 *
 * Does what rope_kv.cuh does, but with a head in the registers of a warp. It saves a launch for
 * each layer when decoding one sequence. The block that has the newest page takes this step's key
 * and value from shared memory, because it fetched that page while the kernels before still ran. */
#ifndef TERN_KERNEL_CUDA_ATTEND_ROW_ROPE_CUH
#define TERN_KERNEL_CUDA_ATTEND_ROW_ROPE_CUH

#include "kernel/cuda/attend_row_type.cuh"

#define ROTATE_DIM 128 /* dimensions of a head, at most */

struct row_rotated { /* in shared memory */
    float q[ROW_HEADS][ROTATE_DIM];
    uint4 k[ROTATE_DIM * 2 / 16], v[ROTATE_DIM * 2 / 16]; /* in the stored form */
};

/* Can the kernel do it? Groups of four numbers must stay together. */
static inline bool row_can_rotate(const struct rope_dev *r)
{
    int aligned = r->style == ROPE_PAIR ? 4 : 8;
    return r->dk <= ROTATE_DIM && r->dv <= ROTATE_DIM && r->kv.aligned && r->q_vec4 && r->k_vec4 &&
           r->v_vec4 && (!r->table || (r->n_rot % aligned == 0 && (uintptr_t)r->table % 16 == 0)) &&
           ((uintptr_t)r->q_norm | (uintptr_t)r->k_norm) % 16 == 0;
}

#ifdef __CUDACC__
/* Numbers 4 lane .. 4 lane + 3 of a row of n; zeros after its end. */
__device__ __forceinline__ float4 four_at(const float *p, int lane, int n)
{
    return 4 * lane < n ? __ldcg((const float4 *)p + lane) : make_float4(0.f, 0.f, 0.f, 0.f);
}
__device__ __forceinline__ bool four_is_bad(float4 v)
{
    return isnan(v.x) || isnan(v.y) || isnan(v.z) || isnan(v.w);
}

/* Numbers 4 lane .. 4 lane + 3 of a head, normalized and rotated. */
__device__ __forceinline__ float4 rotate_four(const rope_dev &r, const float *head,
                                              const float *norm, int token, int lane)
{
    float4 x = four_at(head, lane, r.dk), c0 = {}, c1 = {}, w = {};
    const float *cs = r.table + (size_t)token * r.n_rot;
    int half = r.n_rot / 8,
        /* the lane in the first half of the rotated dimensions */
        first = lane < half ? lane : lane - half;

    if (r.table && 4 * lane < r.n_rot) {
        c0 = ((const float4 *)cs)[r.style == ROPE_PAIR ? lane : 2 * first];
        if (r.style != ROPE_PAIR) c1 = ((const float4 *)cs)[2 * first + 1];
    }
    if (norm) {
        w = four_at(norm, lane, r.dk);
        float s =
            1.f /
            sqrtf(warp_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w) / (float)r.dk + r.eps);
        x = make_float4(x.x * s * w.x, x.y * s * w.y, x.z * s * w.z, x.w * s * w.w);
    }
    if (!r.table) return x;
    if (r.style == ROPE_PAIR) {
        float4 y = make_float4(x.x * c0.x - x.y * c0.y, x.x * c0.y + x.y * c0.x,
                               x.z * c0.z - x.w * c0.w, x.z * c0.w + x.w * c0.z);
        return 4 * lane < r.n_rot ? y : x;
    }
    int other = lane < half ? lane + half : lane - half;
    float4 o;
    o.x = __shfl_sync(~0u, x.x, other), o.y = __shfl_sync(~0u, x.y, other);
    o.z = __shfl_sync(~0u, x.z, other), o.w = __shfl_sync(~0u, x.w, other);
    if (4 * lane >= r.n_rot) return x;
    float sign = lane < half ? -1.f : 1.f;
    return make_float4(x.x * c0.x + sign * o.x * c0.y, x.y * c0.z + sign * o.y * c0.w,
                       x.z * c1.x + sign * o.z * c1.y, x.w * c1.z + sign * o.w * c1.w);
}

/* Four numbers in the stored form, to shared memory and to their KV block. */
template <class L>
__device__ __forceinline__ void store_four(uint4 *raw, char *block_row, float4 v, int lane, int n)
{
    typename L::four f = L::pack(v);
    if (4 * lane >= n) return;
    ((typename L::four *)raw)[lane] = f;
    ((typename L::four *)block_row)[lane] = f;
}

/* Heads are divided among the warps. newest: this block also has the key and the value. A barrier
 * must follow. */
template <class L>
__device__ __forceinline__ void row_rotate(const attend_dev &a, const row_place &w,
                                           struct row_rotated *to, bool newest, int warp,
                                           int n_warps, int lane)
{
    const rope_dev &r = a.rope;
    const float *q = a.q + (size_t)w.token * a.q_stride + (size_t)w.head0 * a.dk;
    const float *k = r.k + (size_t)w.token * r.k_stride + (size_t)w.kv_head * r.dk;
    const float *v = r.v + (size_t)w.token * r.v_stride + (size_t)w.kv_head * r.dv;

    /* Task 0 is the key, 1 the value, from 2 on query heads; the last warp has task 0. */
    for (int task = n_warps - 1 - warp; task < w.n_heads + 2; task += n_warps) {
        if (task >= 2) {
            float4 x = rotate_four(r, q + (task - 2) * a.dk, r.q_norm, w.token, lane);
            if (4 * lane < r.dk) ((float4 *)to->q[task - 2])[lane] = x;
            continue;
        }
        if (!newest) continue;
        int block = w.blocks[w.pos / KV_BLOCK], row = w.pos % KV_BLOCK;
        float4 x = four_at(v, lane, r.dv);
        bool bad = __any_sync(~0u, four_is_bad(x)); /* see store_kv */
        if (task == 1) {
            if (bad)
                x = make_float4(isnan(x.x) ? 0.f : x.x, isnan(x.y) ? 0.f : x.y,
                                isnan(x.z) ? 0.f : x.z, isnan(x.w) ? 0.f : x.w);
            store_four<L>(to->v, kv_head_at(r.kv.v, block, w.kv_head) + row * r.kv.v.row_bytes, x,
                          lane, r.dv);
        } else {
            x = rotate_four(r, k, r.k_norm, w.token, lane);
            if (bad && lane == 0) x.x = NAN;
            store_four<L>(to->k, kv_head_at(r.kv.k, block, w.kv_head) + row * r.kv.k.row_bytes, x,
                          lane, r.dk);
        }
    }
}
#endif
#endif
