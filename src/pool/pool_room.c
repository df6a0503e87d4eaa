/* pool_room.c - memory for a model that is to be loaded: what is free beside the others, and which part
 * of it is for its KV cache. On the pool's thread. */
#include "pool/pool_impl.h"

#include "base/memavail.h"
#include "pool/modelbytes.h"
#include "pool/registry.h"

#include <string.h>

/* ---- what is free ---- */

/* Each byte counts once: what a model has touched is not free any more, whatever process it is in;
 * what it was promised beyond that is held back here. */
void room_read_free(const struct pool *p, struct memavail *out)
{
    struct membudget here = { 0 };
    uint64_t others = 0, parked = atomic_load(&p->parked_bytes);

    memavail_read(out, p->opt.sys_root ? p->opt.sys_root : "");
    out->own -= parked < out->own ? parked : out->own; /* no model was promised that */
    for (const struct pool_instance *m = p->taken; m; m = m->next_taken) {
        uint64_t need = membudget_host(&m->need), own;
        if (!m->host->own_bytes) {
            membudget_add(&here, &m->need);
            continue;
        }
        own = m->host->own_bytes(m);
        others += need > own ? need - own : 0;
    }
    membudget_hold(out, &here, others);
}

/* ---- default sizes ---- */

enum { SHARE_MODELS = 3 }; /* that are expected side by side, of those that are loaded on demand */

/* So many models are expected to be loaded at a time: all of the start, and some of the others. */
static int n_side_by_side(struct pool *p)
{
    int n = pool_n(p), at_start = 0, most = p->opt.max_loaded ? p->opt.max_loaded : SHARE_MODELS;

    for (int i = 0; i < n; i++) at_start += p->slots[i]->m.preload;
    if (most > n) most = n;
    return most > at_start ? most : at_start;
}

/* The part of the memory for KV caches that is this model's. */
static double share_of(const struct pool_model *m, double equal)
{
    if (m->entry && model_has(&m->entry->opt, MODEL_KV_SHARE)) return m->entry->opt.kv_share;
    return m->kv_share > 0 ? m->kv_share : equal;
}

/* "cuda" is the first of them. */
static const char *device_of(const struct pool *p, const struct pool_model *m)
{
    const char *d = m->engine ? m->engine->device : p->opt.engine.device;

    if (m->entry && model_has(&m->entry->opt, MODEL_DEVICE)) d = m->entry->opt.device;
    return d && strcmp(d, "cuda") == 0 ? "cuda:0" : d ? d : "";
}

uint64_t room_taken_on(const struct pool *p, const char *device)
{
    uint64_t n = 0;

    for (const struct pool_instance *m = p->taken; m; m = m->next_taken)
        if (strcmp(m->need.device, device) == 0) n += membudget_device(&m->need);
    return n;
}

uint64_t room_limit_on(const struct pool *p, const char *device)
{
    return membudget_limit_of(p->opt.device_limits, p->opt.n_device_limits, device);
}

/* Bytes that the limit of the device leaves for a model; 0: it has no limit. */
static uint64_t room_on_device(const struct pool *p, const char *device)
{
    uint64_t limit = room_limit_on(p, device), taken = room_taken_on(p, device);

    return !limit ? 0 : limit > taken ? limit - taken : 1;
}

/* Every model has the same share of what the weights of all leave for KV caches, unless its settings
 * say otherwise, also those that are loaded after it. */
struct sizes_room room_for(struct pool *p, const struct pool_model *m)
{
    uint64_t limit = p->opt.memory_limit == POOL_MEMORY_AUTO ? 0 : p->opt.memory_limit;
    double equal = 1.0 / n_side_by_side(p);
    struct sizes_room r;
    struct memavail a;

    room_read_free(p, &a);
    r = membudget_room(&a, &p->held, limit);
    r.device_bytes = room_on_device(p, device_of(p, m));
    r.share = share_of(m, equal);
    for (int i = 0; i < pool_n(p); i++) {
        const struct slot *o = p->slots[i];
        bool loaded = state_of(o) == POOL_READY, later;

        pthread_mutex_lock(&p->lock);
        later = &o->m != m && o->at_start && state_of(o) == POOL_LOADING;
        pthread_mutex_unlock(&p->lock);
        if (loaded) r.share_before += share_of(&o->m, equal);
        else if (later) r.later_bytes += model_file_bytes(pool_path(&o->m));
    }
    return r;
}

/* A KV cache of a given size that is a large part of the free memory is taken when it is allocated, so
 * that a model is not READY without it. */
bool room_is_kv_large(const struct pool *p, const struct pool_instance *m)
{
    struct memavail a;

    if (p->opt.memory_limit == 0) return false;
    room_read_free(p, &a);
    return membudget_is_kv_large(&m->need, &a);
}
