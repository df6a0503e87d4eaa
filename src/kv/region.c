/* region.c - memory of layers per device, freed by the backend that allocated it. */
#include "kv/region.h"

#include "base/mem.h"

/* Layers are numbered through over all devices. */
struct region *regions_open(const struct backend_share *shares, int n_shares, int *n_layers)
{
    struct region *r = mem_array((size_t)n_shares, sizeof *r);
    int at = 0;

    *n_layers = 0;
    if (!r) return NULL;
    for (int i = 0; i < n_shares; at = r[i++].end)
        r[i] = (struct region){ .be = shares[i].be, .first = at, .end = at + shares[i].n_layers };
    *n_layers = at;
    return r;
}

void regions_close(struct region *r, int n)
{
    for (int i = 0; r && i < n; i++)
        if (r[i].mem) r[i].be->free(r[i].be, r[i].mem, r[i].bytes, MEM_KV);
    mem_free(r);
}

int region_take(struct region *r, struct err *e)
{
    return r->be->alloc(r->be, &r->mem, r->bytes, MEM_KV, e);
}
