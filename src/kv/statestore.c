/* statestore.c - one allocation per device; every layer has its slots one after the other, so that
 * a kernel finds slot s of a layer at a fixed stride. */
#include "kv/statestore.h"

#include "base/mem.h"
#include "kv/region.h"

#include <assert.h>

#define ALIGN 64 /* bytes: each part of a slot begins at a cache line */

struct state_store {
    struct region *regions; /* [n_regions], one per device */
    int n_regions;
    struct statelayer *layers; /* [n_layers] */
    int n_layers, n_slots;
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

/* Every layer's slots lie one after the other. */
static void carve_slots(struct state_store *s, const struct region *r,
                        const struct stateshape *layers)
{
    float *at = r->mem;

    for (int l = r->first; l < r->end; l++) {
        struct statelayer *y = &s->layers[l];
        y->conv_floats = (size_t)conv_floats(&layers[l]);
        y->rec_floats = (size_t)rec_floats(&layers[l]);
        if (y->conv_floats) y->conv = at;
        at += y->conv_floats * (size_t)s->n_slots;
        if (y->rec_floats) y->rec = at;
        at += y->rec_floats * (size_t)s->n_slots;
    }
}

static int open_region(struct state_store *s, struct region *r, const struct stateshape *layers,
                       struct err *e)
{
    struct err why;
    int rc;

    r->bytes = (size_t)state_bytes(layers + r->first, r->end - r->first) * (size_t)s->n_slots;
    if (r->bytes == 0) return OK;
    if ((rc = region_take(r, &why)) != OK)
        return err_set(e, rc, "no memory for the recurrent state of %d sequences: %s", s->n_slots,
                       why.msg);
    carve_slots(s, r, layers);
    return OK;
}

static int open_store(struct state_store *s, const struct stateshape *layers, struct err *e)
{
    uint64_t slot = state_bytes(layers, s->n_layers);
    int rc;

    if (s->n_slots < 1 || slot > SIZE_MAX / 2 / (uint64_t)s->n_slots)
        return err_set(e, E_INVALID,
                       "%d slots of %llu bytes of recurrent state: at least 1 is needed, and all "
                       "must fit into memory",
                       s->n_slots, (unsigned long long)slot);
    if (!(s->layers = mem_array((size_t)s->n_layers, sizeof *s->layers)))
        return err_nomem(e, "the layers of recurrent state");
    for (int i = 0; i < s->n_regions; i++)
        if ((rc = open_region(s, &s->regions[i], layers, e)) != OK) return rc;
    return OK;
}

int state_store_open(struct state_store **out, const struct backend_share *shares, int n_shares,
                     const struct stateshape *layers, int n_slots, struct err *e)
{
    struct state_store *s = mem_new(struct state_store);
    int rc;

    *out = NULL;
    if (s) s->regions = regions_open(shares, n_shares, &s->n_layers);
    if (!s || !s->regions) {
        mem_free(s);
        return err_nomem(e, "the recurrent state");
    }
    s->n_regions = n_shares;
    s->n_slots = n_slots;
    if (state_bytes(layers, s->n_layers) == 0) {
        state_store_close(s);
        return OK;
    }
    if ((rc = open_store(s, layers, e)) == OK) *out = s;
    else state_store_close(s);
    return rc;
}

void state_store_close(struct state_store *s)
{
    if (!s) return;
    regions_close(s->regions, s->n_regions);
    mem_free(s->layers);
    mem_free(s);
}

int state_store_n(const struct state_store *s) { return s ? s->n_slots : 0; }

static void copy_floats(struct backend *be, float *base, size_t floats, int to, int from)
{
    if (floats == 0) return;
    (be->copy ? be->copy : be->put)(be, base + (size_t)to * floats, base + (size_t)from * floats,
                                    floats * sizeof(float));
}

/* Layer by layer, on the device that has the layer. */
void state_store_copy(struct state_store *s, int to, int from)
{
    assert(to >= 0 && to < s->n_slots && from >= 0 && from < s->n_slots && to != from);
    for (int i = 0; i < s->n_regions; i++)
        for (int l = s->regions[i].first; l < s->regions[i].end; l++) {
            const struct statelayer *y = &s->layers[l];
            copy_floats(s->regions[i].be, y->conv, y->conv_floats, to, from);
            copy_floats(s->regions[i].be, y->rec, y->rec_floats, to, from);
        }
}

void state_store_view(const struct state_store *s, struct stateview *out)
{
    *out = (struct stateview){ 0 };
    if (s) *out = (struct stateview){ .layers = s->layers, .n_layers = s->n_layers };
}
