#include "kv/block.h"

#include "base/mem.h"
#include "kv/region.h"

#include <assert.h>

#define ALIGN 64

struct block_pool {
    enum dtype type;
    struct region *regions;
    int n_regions;
    struct kvlayer *layers;
    int n_layers, n, n_free;
    int32_t *free; /* a stack: the next id to hand out is on top */
    int32_t *refs;
    bool *watched;
    void (*changed)(void *arg, int id, bool idle);
    void *changed_arg;
};

static bool part_bytes(int n_heads, int dim, enum dtype t, uint64_t *out)
{
    uint64_t row;
    if (n_heads == 0) {
        *out = 0;
        return true;
    }
    if (n_heads < 0 || dim < 1 || !dtype_row_bytes(t, (uint64_t)dim, &row)) return false;
    *out = (uint64_t)n_heads * KV_BLOCK * row;
    return true;
}

/* Also of values that lie in the keys: whole blocks of the type must make them up. */
static bool values_bytes(const struct kvshape *s, enum dtype t, uint64_t *out)
{
    bool good = part_bytes(s->n_kv_heads, s->head_dim_v, t, out);
    if (s->v_in_k) *out = 0;
    return good;
}

uint64_t block_bytes(const struct kvshape *layers, int n_layers, enum dtype type)
{
    uint64_t sum = 0, k, v;
    for (int l = 0; l < n_layers; l++)
        if (part_bytes(layers[l].n_kv_heads, layers[l].head_dim, type, &k) &&
            values_bytes(&layers[l], type, &v))
            sum += k + v;
    return sum;
}

/* Sizes of the region's layers, and the bytes of all: each array of blocks begins at a whole cache
 * line. */
static int measure(struct block_pool *p, struct region *r, const struct kvshape *layers,
                   struct err *e)
{
    uint64_t sum = 0;
    for (int l = r->first; l < r->end; l++) {
        const struct kvshape *s = &layers[l];
        uint64_t k, v, part;
        if (!part_bytes(s->n_kv_heads, s->head_dim, p->type, &k) || !values_bytes(s, p->type, &v))
            return err_set(e, E_UNSUPPORTED,
                           "layer %d: %d numbers of a head do not make whole blocks of %s", l,
                           s->head_dim, dtype_name((int)p->type));
        p->layers[l] = (struct kvlayer){ .n_kv_heads = s->n_kv_heads,
                                         .head_dim = s->head_dim,
                                         .head_dim_v = s->head_dim_v,
                                         .k_block_bytes = k,
                                         .v_block_bytes = v,
                                         .v_in_k = s->v_in_k };
        part = (k + v) * (uint64_t)p->n + 2 * ALIGN;
        if (part / (uint64_t)p->n < k + v || sum + part < sum || sum + part > SIZE_MAX / 2)
            return err_set(e, E_NOMEM, "a KV cache of %d blocks of %llu bytes fits no memory", p->n,
                           (unsigned long long)block_bytes(layers, p->n_layers, p->type));
        sum += part;
    }
    r->bytes = sum ? (size_t)sum : ALIGN;
    return OK;
}

static void *place(char **at, size_t block, int n)
{
    char *p = *at;
    *at += (block * (size_t)n + ALIGN - 1) / ALIGN * ALIGN;
    return block ? p : NULL;
}

static int take(struct block_pool *p, struct region *r, struct err *e)
{
    struct err why;
    char *at;
    int rc = region_take(r, &why);

    if (rc != OK)
        return err_set(e, rc, "no memory for %zu bytes of KV cache (%d blocks of %d tokens): %s",
                       r->bytes, p->n, KV_BLOCK, why.msg);
    at = r->mem;
    for (int l = r->first; l < r->end; l++) {
        p->layers[l].k = place(&at, p->layers[l].k_block_bytes, p->n);
        p->layers[l].v = place(&at, p->layers[l].v_block_bytes, p->n);
    }
    return OK;
}

int block_pool_open_over(struct block_pool **out, const struct backend_share *shares, int n_shares,
                         const struct kvshape *layers, enum dtype type, int n_blocks, struct err *e)
{
    struct block_pool *p = mem_new(struct block_pool);
    int rc = OK;

    p->type = type;
    p->n = n_blocks;
    if (n_blocks < 1) {
        rc = err_set(e, E_INVALID, "a KV cache of %d blocks makes no sense", n_blocks);
        goto out;
    }
    p->regions = regions_open(shares, n_shares, &p->n_layers);
    p->n_regions = n_shares;
    p->layers = mem_array((size_t)p->n_layers, sizeof *p->layers);
    for (int i = 0; i < n_shares && rc == OK; i++) rc = measure(p, &p->regions[i], layers, e);
    if (rc != OK) goto out;
    p->free = mem_array((size_t)n_blocks, sizeof *p->free);
    p->refs = mem_array((size_t)n_blocks, sizeof *p->refs);
    p->watched = mem_array((size_t)n_blocks, sizeof *p->watched);
    if (!p->free || !p->refs || !p->watched) {
        rc = err_set(e, E_NOMEM, "no memory to keep account of %d KV blocks", n_blocks);
        goto out;
    }
    for (int i = 0; i < n_shares && rc == OK; i++) rc = take(p, &p->regions[i], e);
    if (rc != OK) goto out;
    for (int i = 0; i < n_blocks; i++) p->free[i] = n_blocks - 1 - i;
    p->n_free = n_blocks;
    *out = p;
    p = NULL;
out:
    block_pool_close(p);
    return rc;
}

int block_pool_open(struct block_pool **out, struct backend *be, const struct kvshape *layers,
                    int n_layers, enum dtype type, int n_blocks, struct err *e)
{
    return block_pool_open_over(out, &(struct backend_share){ be, n_layers }, 1, layers, type,
                                n_blocks, e);
}

void block_pool_close(struct block_pool *p)
{
    if (!p) return;
    regions_close(p->regions, p->n_regions);
    mem_free(p->layers);
    mem_free(p->free);
    mem_free(p->refs);
    mem_free(p->watched);
    mem_free(p);
}

int block_get(struct block_pool *p)
{
    int id;
    if (p->n_free == 0) return -1;
    id = p->free[--p->n_free];
    p->refs[id] = 1;
    return id;
}

void block_ref(struct block_pool *p, int id)
{
    assert(id >= 0 && id < p->n && p->refs[id] > 0);
    if (p->refs[id]++ == 1 && p->watched[id]) p->changed(p->changed_arg, id, false);
}

void block_unref(struct block_pool *p, int id)
{
    assert(id >= 0 && id < p->n && p->refs[id] > 0);
    p->refs[id]--;
    if (p->refs[id] == 1 && p->watched[id]) p->changed(p->changed_arg, id, true);
    if (p->refs[id] == 0) {
        assert(!p->watched[id]);
        p->free[p->n_free++] = id;
    }
}

void block_set_watcher(struct block_pool *p, void (*changed)(void *arg, int id, bool idle),
                       void *arg)
{
    p->changed = changed;
    p->changed_arg = arg;
}

void block_watch(struct block_pool *p, int id, bool on)
{
    assert(id >= 0 && id < p->n && p->refs[id] > 0 && (!on || p->changed));
    p->watched[id] = on;
}

int block_refs(const struct block_pool *p, int id) { return p->refs[id]; }
int block_n_free(const struct block_pool *p) { return p->n_free; }
int block_n(const struct block_pool *p) { return p->n; }

void block_view(const struct block_pool *p, struct kvview *out)
{
    *out = (struct kvview){ .type = p->type, .layers = p->layers, .n_layers = p->n_layers };
}
