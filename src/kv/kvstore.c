/* kvstore.c - one allocation per device, divided into an array of blocks for the keys and one for
 * the values of each layer. */
#include "kv/kvstore.h"

#include "base/mem.h"
#include "kv/region.h"

#include <assert.h>

#define ALIGN 64 /* bytes: each array of blocks begins at a cache line */

/* Arrays of fewer bytes are small: see backend.thin_kv. Two huge pages. */
#define THIN_ARRAY ((size_t)4 << 20)

struct kvstore {
    enum dtype type;
    int n_blocks;
    struct region *regions; /* [n_regions], one per device */
    int n_regions;
    struct kvlayer *layers; /* [n_layers] */
    int n_layers;
};

/* Bytes of a block's keys or values: n_heads rows of KV_BLOCK tokens. */
static bool part_bytes(int n_heads, int dim, enum dtype t, uint64_t *out)
{
    uint64_t row;

    *out = 0;
    if (n_heads == 0) return true;
    if (n_heads < 0 || dim < 1 || !dtype_row_bytes(t, (uint64_t)dim, &row)) return false;
    *out = (uint64_t)n_heads * KV_BLOCK * row;
    return true;
}

/* Sizes of one layer's blocks; no pointers yet. Values inside the keys take no bytes, but must
 * still be whole blocks of the type. */
static bool make_layer(struct kvlayer *out, const struct kvshape *s, enum dtype t)
{
    uint64_t k, v, x;

    if (!part_bytes(s->n_kv_heads, s->head_dim, t, &k) ||
        !part_bytes(s->n_kv_heads, s->head_dim_v, t, &v) ||
        !part_bytes(s->index_dim > 0, s->index_dim, t, &x))
        return false;
    *out = (struct kvlayer){ .n_kv_heads = s->n_kv_heads,
                             .head_dim = s->head_dim,
                             .head_dim_v = s->head_dim_v,
                             .k_block_bytes = k,
                             .v_block_bytes = s->v_in_k ? 0 : v,
                             .v_in_k = s->v_in_k,
                             .x_block_bytes = x,
                             .index_dim = s->index_dim };
    return true;
}

/* Keys, values and index keys. */
static size_t block_bytes(const struct kvlayer *y)
{
    return y->k_block_bytes + y->v_block_bytes + y->x_block_bytes;
}

/* Layers whose heads the type cannot hold count as nothing; kvstore_bytes reports them. */
uint64_t kvstore_block_bytes(const struct kvshape *layers, int n_layers, enum dtype type)
{
    uint64_t sum = 0;
    struct kvlayer y;

    for (int l = 0; l < n_layers; l++)
        if (make_layer(&y, &layers[l], type)) sum += block_bytes(&y);
    return sum;
}

/* Sums with checks for overflow: n_blocks comes from a flag. */
int kvstore_bytes(uint64_t *out, const struct kvshape *layers, int n_layers, enum dtype type,
                  int n_blocks, struct err *e)
{
    uint64_t sum = 0;

    for (int l = 0; l < n_layers; l++) {
        struct kvlayer y;
        uint64_t block, part;
        if (!make_layer(&y, &layers[l], type))
            return err_set(e, E_UNSUPPORTED,
                           "layer %d: the %d numbers of a head are not a multiple of the block "
                           "size of %s",
                           l, layers[l].head_dim, dtype_name((int)type));
        block = block_bytes(&y);
        part = block * (uint64_t)n_blocks + (y.x_block_bytes ? 3 : 2) * ALIGN;
        if (part / (uint64_t)n_blocks < block || sum + part < sum || sum + part > SIZE_MAX / 2)
            return err_set(
                e, E_NOMEM, "a KV cache of %d blocks of %llu bytes is larger than any memory",
                n_blocks, (unsigned long long)kvstore_block_bytes(layers, n_layers, type));
        sum += part;
    }
    *out = sum ? sum : ALIGN;
    return OK;
}

static void *carve_blocks(char **at, size_t block_bytes, int n)
{
    char *p = *at;

    *at += (block_bytes * (size_t)n + ALIGN - 1) / ALIGN * ALIGN;
    return block_bytes ? p : NULL;
}

/* Are all arrays of a device's layers small? */
static bool is_thin(const struct kvstore *s, const struct region *r, const struct kvshape *layers)
{
    struct kvlayer y;

    for (int l = r->first; l < r->end; l++) {
        if (!make_layer(&y, &layers[l], s->type)) return false;
        if (y.k_block_bytes * (size_t)s->n_blocks >= THIN_ARRAY) return false;
        if (y.v_block_bytes * (size_t)s->n_blocks >= THIN_ARRAY) return false;
        if (y.x_block_bytes * (size_t)s->n_blocks >= THIN_ARRAY) return false;
    }
    return true;
}

/* Allocates a device's memory and points its layers into it. */
static int open_region(struct kvstore *s, struct region *r, const struct kvshape *layers,
                       struct err *e)
{
    struct err why;
    uint64_t bytes;
    char *at;
    int rc;

    if ((rc = kvstore_bytes(&bytes, layers + r->first, r->end - r->first, s->type, s->n_blocks,
                            e)) != OK)
        return rc;
    r->bytes = (size_t)bytes;
    r->be->thin_kv = is_thin(s, r, layers);
    rc = region_take(r, &why);
    r->be->thin_kv = false;
    if (rc != OK)
        return err_set(e, rc, "no memory for %zu bytes of KV cache (%d blocks of %d tokens): %s",
                       r->bytes, s->n_blocks, KV_BLOCK, why.msg);
    at = r->mem;
    for (int l = r->first; l < r->end; l++) {
        struct kvlayer *y = &s->layers[l];
        make_layer(y, &layers[l], s->type);
        y->k = carve_blocks(&at, y->k_block_bytes, s->n_blocks);
        y->v = carve_blocks(&at, y->v_block_bytes, s->n_blocks);
        y->x = carve_blocks(&at, y->x_block_bytes, s->n_blocks);
    }
    return OK;
}

int kvstore_open(struct kvstore **out, const struct backend_share *shares, int n_shares,
                 const struct kvshape *layers, enum dtype type, int n_blocks, struct err *e)
{
    struct kvstore *s;
    int rc = OK;

    if (n_blocks < 1)
        return err_set(e, E_INVALID, "a KV cache of %d blocks: it must have at least 1", n_blocks);
    if (!(s = mem_new(struct kvstore))) return err_nomem(e, "the KV cache");
    s->type = type;
    s->n_blocks = n_blocks;
    s->n_regions = n_shares;
    s->regions = regions_open(shares, n_shares, &s->n_layers);
    if (s->regions) s->layers = mem_array((size_t)s->n_layers, sizeof *s->layers);
    if (!s->layers) rc = err_nomem(e, "the KV cache's layers");
    for (int i = 0; i < n_shares && rc == OK; i++) rc = open_region(s, &s->regions[i], layers, e);
    if (rc == OK) *out = s;
    else kvstore_close(s);
    return rc;
}

void kvstore_close(struct kvstore *s)
{
    if (!s) return;
    regions_close(s->regions, s->n_regions);
    mem_free(s->layers);
    mem_free(s);
}

int kvstore_n_blocks(const struct kvstore *s) { return s->n_blocks; }

void kvstore_view(const struct kvstore *s, struct kvview *out)
{
    *out = (struct kvview){ .type = s->type, .layers = s->layers, .n_layers = s->n_layers };
}

/* ---- single blocks ---- */

size_t kvstore_block_size(const struct kvstore *s)
{
    size_t sum = 0;

    for (int l = 0; l < s->n_layers; l++) sum += block_bytes(&s->layers[l]);
    return sum;
}

/* The bytes of a block on the host: they are written or, if in is not NULL, read. */
struct bytes {
    char *out;
    const char *in;
    size_t at;
};

/* The keys or the values of block id in one layer. */
static void copy_part(struct backend *be, void *base, size_t n, int id, struct bytes *b)
{
    char *part;

    if (!n) return;
    part = (char *)base + (size_t)id * n;
    if (b->in) be->put(be, part, b->in + b->at, n);
    else be->get(be, b->out + b->at, part, n);
    b->at += n;
}

static void copy_block(const struct kvstore *s, int id, struct bytes b)
{
    assert(id >= 0 && id < s->n_blocks);
    for (int i = 0; i < s->n_regions; i++)
        for (int l = s->regions[i].first; l < s->regions[i].end; l++) {
            const struct kvlayer *y = &s->layers[l];
            copy_part(s->regions[i].be, y->k, y->k_block_bytes, id, &b);
            copy_part(s->regions[i].be, y->v, y->v_block_bytes, id, &b);
            copy_part(s->regions[i].be, y->x, y->x_block_bytes, id, &b);
        }
}

void kvstore_read(const struct kvstore *s, int id, void *data)
{
    copy_block(s, id, (struct bytes){ .out = data });
}

void kvstore_write(struct kvstore *s, int id, const void *data)
{
    copy_block(s, id, (struct bytes){ .in = data });
}

int kvstore_sync(struct kvstore *s, struct err *e)
{
    int rc = OK, one;

    for (int i = 0; i < s->n_regions; i++)
        if ((one = s->regions[i].be->sync(s->regions[i].be, rc == OK ? e : NULL)) != OK && rc == OK)
            rc = one;
    return rc;
}
