/* rope_kv.cu - the kernel of rope_kv.cuh: head norms, rotary embedding and KV writes of a batch. A
 * warp has one head of one token. */
#include "kernel/cuda/rope_kv.cuh"

#define WARPS 4
/* Numbers of a key or a value that WARPS rows of shared memory hold. Attention takes fewer; values of
 * a compressed cache have several parts. */
#define MAX_ROW 3072

/* Grid: tokens, groups of WARPS heads: the query heads first, then the KV heads. */
static __global__ void __launch_bounds__(WARPS * 32) rope_kv(const __grid_constant__ rope_dev r)
{
    extern __shared__ __align__(16) float rows[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, token = blockIdx.x,
        head = blockIdx.y * WARPS + warp;
    int n_q = r.q ? r.n_heads : 0;
    float *row = rows + warp * r.pad;

    cu_release_next();
    cu_wait_previous();
    if (head < n_q) {
        float *q = r.q + (size_t)token * r.q_stride + (size_t)head * r.dk;
        rotate_head(r, row, q, r.q_vec4, r.q_norm, token, lane);
        if (r.q_vec4)
            for (int i = lane; i < r.dk / 4; i += 32) ((float4 *)q)[i] = ((float4 *)row)[i];
        else
            for (int i = lane; i < r.dk; i += 32) q[i] = row[i];
    } else if (head - n_q < r.kv.n_kv_heads) {
        store_kv(r, row, token, head - n_q, lane);
    }
}

/* The last write of keys and values. thread_local: one thread drives a backend. */
static thread_local struct {
    const void *k, *pos;
    int n_tokens;
} last;

bool kv_written_by_batch(const struct kvview *kv, int layer)
{
    return last.k == kv->layers[layer].k && last.pos == kv->pos && last.n_tokens == kv->n_tokens;
}

void note_kv_written(const struct rope_dev *r, int n_tokens)
{
    last = { r->kv.k.base, r->kv.pos, n_tokens };
}

/* Fills the members that follow from the others. */
static bool finish_rope_dev(struct cuda *c, struct rope_dev *r)
{
    int d = r->dk > r->dv ? r->dk : r->dv;

    r->pad = (d + 31) / 32 * 32;
    r->q_vec4 = cu_aligned16(r->q, r->q_stride) && r->dk % 4 == 0;
    r->k_vec4 = cu_aligned16(r->k, r->k_stride) && r->dk % 4 == 0;
    r->v_vec4 = cu_aligned16(r->v, r->v_stride) && r->dv % 4 == 0;
    if (r->pad <= MAX_ROW) return true;
    cu_fail(c, E_UNSUPPORTED, "attention heads of %d and %d dimensions; at most %d are supported",
            r->dk, r->dv, MAX_ROW);
    return false;
}

/* A task is a query head or a KV head (key and value). */
static void launch_rope_kv(struct cuda *c, const struct rope_dev *r, int n_tokens, const char *name)
{
    int tasks = (r->q ? r->n_heads : 0) + r->kv.n_kv_heads;

    note_kv_written(r, n_tokens);
    cu_launch(c, name, rope_kv, dim3(n_tokens, (tasks + WARPS - 1) / WARPS), dim3(WARPS * 32),
              (size_t)WARPS * r->pad * sizeof(float), *r);
}

/* q is NULL if queries are neither normalized nor rotated: then only keys and values are written. */
bool fill_rope_dev(struct cuda *c, struct rope_dev *r, const struct cu_rope_kv *p)
{
    *r = {};
    if (p->kv->n_tokens == 0 || !fill_kv_dev(c, &r->kv, p->kv, p->layer)) return false;
    if (r->kv.n_kv_heads != p->n_kv_heads || r->kv.k.dim != p->head_dim ||
        r->kv.v.dim != p->head_dim_v) {
        cu_fail(c, E_INVALID,
                "keys and values of %d heads of %d and %d dimensions, but the KV cache has %d of "
                "%d and %d",
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
    return finish_rope_dev(c, r);
}

void cu_rope_kv(struct cuda *c, const struct cu_rope_kv *p)
{
    struct rope_dev r;

    if (fill_rope_dev(c, &r, p)) launch_rope_kv(c, &r, p->kv->n_tokens, "rope kv");
}

/* The same kernel without norms, rotation and queries. */
void cu_kv_put(struct cuda *c, const struct kvview *kv, int layer, const struct tensor *k,
               const struct tensor *v)
{
    struct rope_dev r = {};

    if (kv->n_tokens == 0 || !fill_kv_dev(c, &r.kv, kv, layer)) return;
    r.k = (const float *)k->data;
    r.v = r.kv.v_in_k ? NULL : (const float *)v->data;
    r.k_stride = k->stride;
    r.v_stride = v->stride;
    r.dk = r.kv.k.dim;
    r.dv = r.kv.v.dim;
    if (finish_rope_dev(c, &r)) launch_rope_kv(c, &r, kv->n_tokens, "kv put");
}
