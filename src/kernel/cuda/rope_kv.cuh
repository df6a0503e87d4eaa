/* rope_kv.cuh - between a layer's matrix products and its attention: head norms, rotary embedding,
 * and keys and values into their KV blocks. For a warp that has one head of one token. */
#ifndef TERN_KERNEL_CUDA_ROPE_KV_CUH
#define TERN_KERNEL_CUDA_ROPE_KV_CUH

#include "kernel/cuda/cu_kvload.cuh"

struct rope_dev {
    float *q; /* NULL: queries stay as they are */
    const float *k, *v;
    size_t q_stride, k_stride, v_stride;
    int n_heads, dk, dv, n_rot;
    int pad; /* floats of a warp's row in shared memory; 0: there is nothing to do */
    const float *q_norm, *k_norm, *table;
    float eps;
    enum rope_style style;
    struct kv_dev kv;
    bool q_vec4, k_vec4, v_vec4; /* heads can be read 16 bytes at a time */
};

/* Checks p and fills r. false: reported by cu_fail, or there are no tokens. */
bool fill_rope_dev(struct cuda *c, struct rope_dev *r, const struct cu_rope_kv *p);
/* Another kernel than rope_kv.cu's writes the keys and values of r. */
void note_kv_written(const struct rope_dev *r, int n_tokens);

#ifdef __CUDACC__
/* Loads n numbers into shared memory; returns this lane's sum of squares. */
__device__ __forceinline__ float load_row(float *row, const float *x, int n, bool vec4, int lane)
{
    float sum = 0.f;

    if (vec4) {
        for (int i = lane; i < n / 4; i += 32) {
            float4 v = ((const float4 *)x)[i];
            ((float4 *)row)[i] = v;
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
    } else {
        for (int i = lane; i < n; i += 32) {
            row[i] = x[i];
            sum += x[i] * x[i];
        }
    }
    return sum;
}

/* A head to shared memory, normalized and rotated. */
__device__ __forceinline__ void rotate_head(const rope_dev &r, float *row, const float *x,
                                            bool vec4, const float *norm, int token, int lane)
{
    float sum = load_row(row, x, r.dk, vec4, lane);

    __syncwarp();
    if (norm) {
        float s = 1.f / sqrtf(warp_sum(sum) / (float)r.dk + r.eps);
        for (int i = lane; i < r.dk; i += 32) row[i] = row[i] * s * norm[i];
    }
    __syncwarp();
    if (!r.table) return;
    const float *cs = r.table + (size_t)token * r.n_rot;
    int half = r.n_rot / 2;
    if (r.style == ROPE_PAIR) {
        for (int i = lane; i < half; i += 32) {
            float2 x = ((float2 *)row)[i], c = ((const float2 *)cs)[i];
            ((float2 *)row)[i] = make_float2(x.x * c.x - x.y * c.y, x.x * c.y + x.y * c.x);
        }
    } else {
        for (int i = lane; i < half; i += 32) {
            float a = row[i], b = row[i + half];
            float2 c = ((const float2 *)cs)[i];
            row[i] = a * c.x - b * c.y;
            row[i + half] = a * c.y + b * c.x;
        }
    }
    __syncwarp();
}

/* 32 numbers as a Q8_0 block. A block with a NaN or an infinity becomes zeros. */
__device__ __forceinline__ void store_q8(char *to, float x, int lane)
{
    bool bad = __any_sync(~0u, !(fabsf(x) <= 3.4e38f));
    float d = bad ? 0.f : warp_max(fabsf(x)) / 127.f, id = d > 1e-38f ? 1.f / d : 0.f;

    ((struct block_q8_0 *)to)->qs[lane] = bad ? 0 : (int8_t)__float2int_rn(x * id);
    if (lane == 0) ((struct block_q8_0 *)to)->d = __half_as_ushort(half_sat(d));
}

/* A row in shared memory to its KV block, in the stored type. n is a multiple of 32 for Q8_0. */
__device__ __forceinline__ void store_row(int type, bool aligned, char *to, const float *x, int n,
                                          int lane)
{
    if (type == DT_F16 && aligned) {
        for (int i = lane; i < n / 4; i += 32) {
            float4 v = ((const float4 *)x)[i];
            ((uint2 *)to)[i] = make_uint2(kv_half2(v.x, v.y), kv_half2(v.z, v.w));
        }
        return;
    }
    for (int i = lane; i < n; i += 32) {
        switch (type) {
        case DT_F32: ((float *)to)[i] = x[i]; break;
        case DT_F16: ((__half *)to)[i] = kv_half(x[i]); break;
        case DT_BF16: ((__nv_bfloat16 *)to)[i] = __float2bfloat16_rn(x[i]); break;
        case DT_F8_E4M3:
            ((uint8_t *)to)[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3);
            break;
        case DT_Q8_0: store_q8(to + (i >> 5) * sizeof(struct block_q8_0), x[i], lane); break;
        }
    }
}

/* Writes the key and the value of a head. A NaN in a value is stored as 0 and makes its key NaN
 * instead: a masked key has weight 0, and 0 * NaN in the value product would be NaN for a token
 * that must not see it. */
__device__ __forceinline__ void store_kv(const rope_dev &r, float *row, int token, int head,
                                         int lane)
{
    int pos = r.kv.pos[token];
    int block = r.kv.table[(size_t)r.kv.seq[token] * r.kv.table_stride + pos / KV_BLOCK];
    char *k = kv_head_at(r.kv.k, block, head) + (size_t)(pos % KV_BLOCK) * r.kv.k.row_bytes;
    char *v = kv_head_at(r.kv.v, block, head) + (size_t)(pos % KV_BLOCK) * r.kv.v.row_bytes;
    const float *x = r.v + (size_t)token * r.v_stride + (size_t)head * r.dv;
    bool bad = false;

    if (!r.kv.v_in_k) {
        bad = isnan(warp_sum(load_row(row, x, r.dv, r.v_vec4, lane)));
        __syncwarp();
        if (bad) {
            for (int i = lane; i < r.dv; i += 32) row[i] = isnan(row[i]) ? 0.f : row[i];
            __syncwarp();
        }
        store_row(r.kv.type, r.kv.aligned, v, row, r.dv, lane);
        __syncwarp();
    }
    rotate_head(r, row, r.k + (size_t)token * r.k_stride + (size_t)head * r.dk, r.k_vec4, r.k_norm,
                token, lane);
    if (bad && lane == 0) row[0] = NAN;
    __syncwarp();
    store_row(r.kv.type, r.kv.aligned, k, row, r.dk, lane);
}
#endif
#endif
