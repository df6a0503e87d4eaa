/* rope_kv.cu - head norms, rotation, and keys and values into their blocks. A warp has one head of
 * one token. */
#include "kernel/cuda/rope_kv.cuh"

#define WARPS 4

/* Grid: tokens, groups of WARPS heads: queries' first, then keys' and values'. */
static __global__ void __launch_bounds__(WARPS * 32) rope_kv(const __grid_constant__ rope_dev r)
{
    extern __shared__ __align__(16) float rows[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, token = blockIdx.x,
        head = blockIdx.y * WARPS + warp;
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
static thread_local struct {
    const void *k, *pos;
    int n_tokens;
} last;

bool kv_just_put(const struct kvview *kv, int layer)
{
    return last.k == kv->layers[layer].k && last.pos == kv->pos && last.n_tokens == kv->n_tokens;
}

static bool by_four(const void *p, size_t stride, int dim)
{
    return (uintptr_t)p % 16 == 0 && stride % 4 == 0 && dim % 4 == 0;
}

void kv_is_put(const struct rope_dev *r, int n_tokens)
{
    last = { r->kv.k.base, r->kv.pos, n_tokens };
}

/* What follows from the rest of r. */
static bool settle(struct cuda *c, struct rope_dev *r)
{
    int d = r->dk > r->dv ? r->dk : r->dv;

    r->pad = (d + 31) / 32 * 32;
    r->q_fours = by_four(r->q, r->q_stride, r->dk);
    r->k_fours = by_four(r->k, r->k_stride, r->dk);
    r->v_fours = by_four(r->v, r->v_stride, r->dv);
    if (r->pad <= 1024) return true;
    cu_fail(c, E_UNSUPPORTED, "attention heads of %d and %d numbers: at most 1024", r->dk, r->dv);
    return false;
}

static void launch(struct cuda *c, const struct rope_dev *r, int n_tokens, const char *name)
{
    int tasks = (r->q ? r->n_heads : 0) + r->kv.n_kv_heads;

    kv_is_put(r, n_tokens);
    cu_launch(c, name, rope_kv, dim3(n_tokens, (tasks + WARPS - 1) / WARPS), dim3(WARPS * 32),
              (size_t)WARPS * r->pad * sizeof(float), *r);
}

bool rope_dev_of(struct cuda *c, struct rope_dev *r, const struct cu_rope_kv *p)
{
    *r = {};
    if (p->kv->n_tokens == 0 || !kv_dev_of(c, &r->kv, p->kv, p->layer)) return false;
    if (r->kv.n_kv_heads != p->n_kv_heads || r->kv.k.dim != p->head_dim ||
        r->kv.v.dim != p->head_dim_v) {
        cu_fail(c, E_INVALID,
                "keys and values of %d heads of %d and %d numbers; kept are %d of %d and %d",
                p->n_kv_heads, p->head_dim, p->head_dim_v, r->kv.n_kv_heads, r->kv.k.dim,
                r->kv.v.dim);
        return false;
    }
    r->q = p->table || p->q_norm ? (float *)p->q.data : NULL;
    r->k = (const float *)p->k.data;
    r->v = (const float *)p->v.data;
    r->q_stride = p->q.stride;
    r->k_stride = p->k.stride;
    r->v_stride = p->v.stride;
    r->n_heads = p->n_heads;
    r->dk = p->head_dim;
    r->dv = p->head_dim_v;
    r->n_rot = p->n_rot;
    r->q_norm = p->q_norm;
    r->k_norm = p->k_norm;
    r->table = p->table;
    r->eps = p->eps;
    r->style = p->style;
    return settle(c, r);
}

void cu_rope_kv(struct cuda *c, const struct cu_rope_kv *p)
{
    struct rope_dev r;

    if (rope_dev_of(c, &r, p)) launch(c, &r, p->kv->n_tokens, "rope kv");
}

void cu_kv_put(struct cuda *c, const struct kvview *kv, int layer, const struct tensor *k,
               const struct tensor *v)
{
    struct rope_dev r = {};

    if (kv->n_tokens == 0 || !kv_dev_of(c, &r.kv, kv, layer)) return;
    r.k = (const float *)k->data;
    r.v = r.kv.v_in_k ? NULL : (const float *)v->data;
    r.k_stride = k->stride;
    r.v_stride = v->stride;
    r.dk = r.kv.k.dim;
    r.dv = r.kv.v.dim;
    if (settle(c, &r)) launch(c, &r, kv->n_tokens, "kv put");
}
