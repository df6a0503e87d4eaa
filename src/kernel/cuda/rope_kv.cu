/* rope_kv.cu - what stands between a layer's products and its attention: head norms, rotation, and keys and
 * values into their blocks. A warp has one head of one token. */
#include "kernel/cuda/kvload.cuh"

#define WARPS 4

struct rope_dev {
    float *q;                    /* NULL: as they are */
    const float *k, *v;
    size_t q_stride, k_stride, v_stride;
    int n_heads, dk, dv, n_rot, pad;         /* pad: floats of a warp's row in shared memory */
    const float *q_norm, *k_norm, *table;
    float eps;
    enum rope_style style;
    struct kv_dev kv;
    bool q_fours, k_fours, v_fours;          /* heads in 16 bytes */
};

/* n numbers, squares summed on the way. */
static __device__ __forceinline__ float row_load(float *row, const float *x, int n, bool fours, int lane)
{
    float sum = 0.f;

    if (fours) {
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

/* A head to shared memory, normed and turned. */
static __device__ __forceinline__ void head_turn(const rope_dev &r, float *row, const float *x, bool fours,
                                                 const float *norm, int token, int lane)
{
    float sum = row_load(row, x, r.dk, fours, lane);

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

/* 32 numbers as a block; one that holds what is no number, or no finite one, becomes zeros. */
static __device__ __forceinline__ void store_q8(char *to, float x, int lane)
{
    bool bad = __any_sync(~0u, !(fabsf(x) <= 3.4e38f));
    float d = bad ? 0.f : warp_max(fabsf(x)) / 127.f, id = d > 1e-38f ? 1.f / d : 0.f;

    ((struct block_q8_0 *)to)->qs[lane] = bad ? 0 : (int8_t)__float2int_rn(x * id);
    if (lane == 0) ((struct block_q8_0 *)to)->d = __half_as_ushort(half_sat(d));
}

static __device__ __forceinline__ void store_row(int type, bool whole, char *to, const float *x, int n, int lane)
{
    if (type == DT_F16 && whole) {
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
        case DT_F8_E4M3: ((uint8_t *)to)[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3); break;
        case DT_Q8_0: store_q8(to + (i >> 5) * sizeof(struct block_q8_0), x[i], lane); break;
        }
    }
}

/* Values that are no numbers are kept as zeros and make their key no number instead: a token that may not see a
 * key still multiplies its value by zero. */
static __device__ __forceinline__ void keep(const rope_dev &r, float *row, int token, int head, int lane)
{
    int pos = r.kv.pos[token];
    int block = r.kv.table[(size_t)r.kv.seq[token] * r.kv.table_stride + pos / KV_BLOCK];
    char *k = kv_head_at(r.kv.k, block, head) + (size_t)(pos % KV_BLOCK) * r.kv.k.row_bytes;
    char *v = kv_head_at(r.kv.v, block, head) + (size_t)(pos % KV_BLOCK) * r.kv.v.row_bytes;
    const float *x = r.v + (size_t)token * r.v_stride + (size_t)head * r.dv;
    bool bad = isnan(warp_sum(row_load(row, x, r.dv, r.v_fours, lane)));

    __syncwarp();
    if (bad) {
        for (int i = lane; i < r.dv; i += 32) row[i] = isnan(row[i]) ? 0.f : row[i];
        __syncwarp();
    }
    store_row(r.kv.type, r.kv.whole, v, row, r.dv, lane);
    __syncwarp();
    head_turn(r, row, r.k + (size_t)token * r.k_stride + (size_t)head * r.dk, r.k_fours, r.k_norm, token, lane);
    if (bad && lane == 0) row[0] = NAN;
    __syncwarp();
    store_row(r.kv.type, r.kv.whole, k, row, r.dk, lane);
}

/* Grid: tokens, groups of WARPS heads: queries' first, then keys' and values'. */
static __global__ void __launch_bounds__(WARPS * 32) rope_kv(const __grid_constant__ rope_dev r)
{
    extern __shared__ __align__(16) float rows[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, token = blockIdx.x, head = blockIdx.y * WARPS + warp;
    int n_q = r.q ? r.n_heads : 0;
    float *row = rows + warp * r.pad;

    cu_next();
    cu_wait();
    if (head < n_q) {
        float *q = r.q + (size_t)token * r.q_stride + (size_t)head * r.dk;
        head_turn(r, row, q, r.q_fours, r.q_norm, token, lane);
        if (r.q_fours)
            for (int i = lane; i < r.dk / 4; i += 32) ((float4 *)q)[i] = ((float4 *)row)[i];
        else
            for (int i = lane; i < r.dk; i += 32) q[i] = row[i];
    } else if (head - n_q < r.kv.n_kv_heads) {
        keep(r, row, token, head - n_q, lane);
    }
}

/* One thread drives a backend, and device pointers are its own. */
static thread_local struct { const void *k, *pos; int n_tokens; } last;

bool kv_just_put(const struct kvview *kv, int layer)
{
    return last.k == kv->layers[layer].k && last.pos == kv->pos && last.n_tokens == kv->n_tokens;
}

static bool by_four(const void *p, size_t stride, int dim)
{
    return (uintptr_t)p % 16 == 0 && stride % 4 == 0 && dim % 4 == 0;
}

static void launch(struct cuda *c, struct rope_dev *r, int n_tokens, const char *name)
{
    last = { r->kv.k.base, r->kv.pos, n_tokens };
    int tasks = (r->q ? r->n_heads : 0) + r->kv.n_kv_heads, d = r->dk > r->dv ? r->dk : r->dv;

    r->pad = (d + 31) / 32 * 32;
    r->q_fours = by_four(r->q, r->q_stride, r->dk);
    r->k_fours = by_four(r->k, r->k_stride, r->dk);
    r->v_fours = by_four(r->v, r->v_stride, r->dv);
    if (r->pad > 1024) {
        cu_fail(c, E_UNSUPPORTED, "attention heads of %d and %d numbers: at most 1024", r->dk, r->dv);
        return;
    }
    cu_launch(c, name, rope_kv, dim3(n_tokens, (tasks + WARPS - 1) / WARPS), dim3(WARPS * 32),
              (size_t)WARPS * r->pad * sizeof(float), *r);
}

void cu_rope_kv(struct cuda *c, const struct cu_rope_kv *p)
{
    struct rope_dev r = {};

    if (p->kv->n_tokens == 0 || !kv_dev_of(c, &r.kv, p->kv, p->layer)) return;
    if (r.kv.n_kv_heads != p->n_kv_heads || r.kv.k.dim != p->head_dim || r.kv.v.dim != p->head_dim_v) {
        cu_fail(c, E_INVALID, "keys and values of %d heads of %d and %d numbers; kept are %d of %d and %d",
                p->n_kv_heads, p->head_dim, p->head_dim_v, r.kv.n_kv_heads, r.kv.k.dim, r.kv.v.dim);
        return;
    }
    r.q = p->table || p->q_norm ? (float *)p->q.data : NULL;
    r.k = (const float *)p->k.data;
    r.v = (const float *)p->v.data;
    r.q_stride = p->q.stride;
    r.k_stride = p->k.stride;
    r.v_stride = p->v.stride;
    r.n_heads = p->n_heads;
    r.dk = p->head_dim;
    r.dv = p->head_dim_v;
    r.n_rot = p->n_rot;
    r.q_norm = p->q_norm;
    r.k_norm = p->k_norm;
    r.table = p->table;
    r.eps = p->eps;
    r.style = p->style;
    launch(c, &r, p->kv->n_tokens, "rope kv");
}

void cu_kv_put(struct cuda *c, const struct kvview *kv, int layer, const struct tensor *k, const struct tensor *v)
{
    struct rope_dev r = {};

    if (kv->n_tokens == 0 || !kv_dev_of(c, &r.kv, kv, layer)) return;
    r.k = (const float *)k->data;
    r.v = (const float *)v->data;
    r.k_stride = k->stride;
    r.v_stride = v->stride;
    r.dk = r.kv.k.dim;
    r.dv = r.kv.v.dim;
    launch(c, &r, kv->n_tokens, "kv put");
}
