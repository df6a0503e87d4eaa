#include "kv/state.h"

#include "base/mem.h"
#include "kv/region.h"

#include <assert.h>

#define ALIGN 64

struct state_pool {
    struct region *regions;
    int n_regions;
    struct statelayer *layers;
    int n_layers, n, n_free;
    int32_t *free; /* a stack: the next slot to hand out is on top */
    bool *taken;
};

static uint64_t round_up(uint64_t floats)
{
    uint64_t each = ALIGN / sizeof(float);
    return (floats + each - 1) / each * each;
}

static uint64_t conv_floats(const struct stateshape *s)
{
    return round_up((uint64_t)s->conv_rows * (uint64_t)s->conv_cols);
}

static uint64_t rec_floats(const struct stateshape *s) { return round_up((uint64_t)s->rec); }

uint64_t state_bytes(const struct stateshape *layers, int n_layers)
{
    uint64_t sum = 0;
    for (int l = 0; l < n_layers; l++) sum += conv_floats(&layers[l]) + rec_floats(&layers[l]);
    return sum * sizeof(float);
}

/* Every layer's slots behind each other. */
static void place(struct state_pool *p, const struct region *r, const struct stateshape *layers)
{
    float *at = r->mem;
    for (int l = r->first; l < r->end; l++) {
        struct statelayer *y = &p->layers[l];
        y->conv_floats = (size_t)conv_floats(&layers[l]);
        y->rec_floats = (size_t)rec_floats(&layers[l]);
        if (y->conv_floats) y->conv = at;
        at += y->conv_floats * (size_t)p->n;
        if (y->rec_floats) y->rec = at;
        at += y->rec_floats * (size_t)p->n;
    }
}

static int take(struct state_pool *p, struct region *r, const struct stateshape *layers,
                struct err *e)
{
    struct err why;
    int rc;

    r->bytes = (size_t)state_bytes(layers + r->first, r->end - r->first) * (size_t)p->n;
    if (r->bytes == 0) return OK;
    if ((rc = region_take(r, &why)) != OK)
        return err_set(e, rc, "no memory for the recurrent state of %d sequences: %s", p->n,
                       why.msg);
    place(p, r, layers);
    return OK;
}

int state_pool_open(struct state_pool **out, const struct backend_share *shares, int n_shares,
                    const struct stateshape *layers, int n_slots, struct err *e)
{
    struct state_pool *p = mem_new(struct state_pool);
    uint64_t slot;
    int rc = OK;

    *out = NULL;
    p->n = n_slots;
    p->regions = regions_open(shares, n_shares, &p->n_layers);
    p->n_regions = n_shares;
    if ((slot = state_bytes(layers, p->n_layers)) == 0) goto out;
    if (n_slots < 1 || slot > SIZE_MAX / 2 / (uint64_t)n_slots) {
        rc = err_set(e, E_INVALID, "%d slots of %llu bytes of state make no sense", n_slots,
                     (unsigned long long)slot);
        goto out;
    }
    p->layers = mem_array((size_t)p->n_layers, sizeof *p->layers);
    p->free = mem_array((size_t)n_slots, sizeof *p->free);
    p->taken = mem_array((size_t)n_slots, sizeof *p->taken);
    for (int i = 0; i < n_shares; i++)
        if ((rc = take(p, &p->regions[i], layers, e)) != OK) goto out;
    for (int i = 0; i < n_slots; i++) p->free[i] = n_slots - 1 - i;
    p->n_free = n_slots;
    *out = p;
    p = NULL;
out:
    state_pool_close(p);
    return rc;
}

void state_pool_close(struct state_pool *p)
{
    if (!p) return;
    regions_close(p->regions, p->n_regions);
    mem_free(p->layers);
    mem_free(p->free);
    mem_free(p->taken);
    mem_free(p);
}

int state_get(struct state_pool *p)
{
    int slot;
    if (!p || p->n_free == 0) return -1;
    slot = p->free[--p->n_free];
    p->taken[slot] = true;
    return slot;
}

void state_put(struct state_pool *p, int slot)
{
    if (slot < 0) return;
    assert(p && slot < p->n && p->taken[slot]);
    p->taken[slot] = false;
    p->free[p->n_free++] = slot;
}

int state_n(const struct state_pool *p) { return p ? p->n : 0; }
int state_n_free(const struct state_pool *p) { return p ? p->n_free : 0; }

static void copy(struct backend *be, float *dst, const float *src, size_t floats)
{
    if (floats) (be->copy ? be->copy : be->put)(be, dst, src, floats * sizeof(float));
}

void state_copy_from(struct state_pool *p, int to, const struct state_pool *q, int from)
{
    assert(p->taken[to] && q->taken[from] && p->n_layers == q->n_layers);
    for (int i = 0; i < p->n_regions; i++)
        for (int l = p->regions[i].first; l < p->regions[i].end; l++) {
            const struct statelayer *y = &p->layers[l], *x = &q->layers[l];
            copy(p->regions[i].be, y->conv + (size_t)to * y->conv_floats,
                 x->conv + (size_t)from * x->conv_floats, y->conv_floats);
            copy(p->regions[i].be, y->rec + (size_t)to * y->rec_floats,
                 x->rec + (size_t)from * x->rec_floats, y->rec_floats);
        }
}

void state_copy(struct state_pool *p, int to, int from) { state_copy_from(p, to, p, from); }

void state_view(const struct state_pool *p, struct stateview *out)
{
    *out = (struct stateview){ 0 };
    if (p) *out = (struct stateview){ .layers = p->layers, .n_layers = p->n_layers };
}
