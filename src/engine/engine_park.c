/* engine_park.c - the prefix cache of an engine, saved when it ends and restored when the next one of
 * the same model opens.
 *
 * A restored block must give the same tokens as a computed one. So the key is a digest of everything
 * that its numbers depend on: the model's tensors and settings, the KV type, the devices with their
 * kernels and layers, and the version of tern. Tensors are sampled, not read as a whole: another
 * model, also a fine-tuned one of the same shape, differs nearly everywhere.
 *
 * Models with recurrent state are not parked: a cached prefix is of use there only together with a
 * snapshot of the state. */
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_impl.h"
#include "format/fingerprint.h"
#include "format/source.h"
#include "kv/park.h"
#include "model/loadplan.h"

#include <string.h>

enum { WARM_SALT = -1 /* of the warm-up's blocks */ };

/* ---- the digest ---- */

/* Without ", 8 threads": their number changes no result. */
static void add_device(struct fingerprint *d, const struct backend_share *s)
{
    const char *comma = strrchr(s->be->detail, ',');

    fingerprint_add_text(d, s->be->name);
    fingerprint_add_bytes(d, s->be->detail,
                          comma ? (size_t)(comma - s->be->detail) : strlen(s->be->detail));
    fingerprint_add_number(d, (uint64_t)s->n_layers);
}

static int make_key(const struct engine *g, struct park_key *k, struct err *e)
{
    const struct loadplan *p = g->plan;
    struct fingerprint d = FINGERPRINT_START;
    int rc;

    fingerprint_add_text(&d, TERN_VERSION);
    if ((rc = fingerprint_add_model(&d, p->source, e)) != OK) return rc;
    fingerprint_add_number(&d, (uint64_t)p->opt.kv_type);
    fingerprint_add_number(&d, p->opt.backend.reference);
    for (int i = 0; i < p->place.n_shares; i++) add_device(&d, &p->place.shares[i]);
    *k = (struct park_key){ .block_bytes = g->runner->lim.block_bytes };
    memcpy(k->digest, d.h, sizeof k->digest);
    return source_is_damaged(p->source, e) ? E_DAMAGED : OK;
}

static bool can_park(const struct engine *g)
{
    return g->prefix && g->runner->lim.block_bytes > 0 && g->runner->lim.n_slots == 0;
}

/* ---- saving ---- */

/* Blocks in the order of the set; places: [n_blocks] of the blocks that are in it. */
static int save_blocks(struct engine *g, struct park_set *set, const struct park *p, int most,
                       int32_t *places, char *data, struct err *e)
{
    bool files = park_has_files(p);
    int n = 0, rc = OK;

    for (int id = prefix_next_idle(g->prefix, -1);
         id >= 0 && n < most && rc == OK && !park_is_late(p);
         id = prefix_next_idle(g->prefix, id)) {
        struct prefix_block x;
        struct park_block b;
        prefix_get(g->prefix, id, &x);
        /* Salts of tenants are of this process only. */
        if (x.salt == (uint64_t)WARM_SALT || (files && x.salt)) continue;
        b = (struct park_block){ x.parent < 0 ? -1 : places[x.parent], x.salt, { 0 } };
        memcpy(b.ids, x.ids, sizeof b.ids);
        runner_read_block(g->runner, id, data);
        if ((rc = runner_sync_blocks(g->runner, e)) == OK) rc = park_add(set, &b, data, e);
        places[id] = n++;
    }
    return rc;
}

/* Blocks that a sequence still has are not parked: after engine_stop there are none. */
int engine_park(struct engine *g, struct park *p, int *n_blocks, struct err *e)
{
    struct park_set *set = NULL;
    struct park_key k;
    int32_t *places;
    char *data;
    int most, rc;

    *n_blocks = 0;
    if (!g->stopped) return err_set(e, E_INVALID, "an engine is parked after it was stopped");
    if (!can_park(g) || engine_error(g, NULL) != OK || park_is_late(p)) return OK;
    if ((rc = make_key(g, &k, e)) != OK) return rc;
    most = park_max_blocks(p, &k);
    if (prefix_n_idle(g->prefix) < most) most = prefix_n_idle(g->prefix);
    if (most == 0) return OK;
    places = mem_array((size_t)block_n(g->pool), sizeof *places);
    data = mem_aligned((size_t)k.block_bytes);
    rc = places && data ? OK : err_nomem(e, "parking KV blocks");
    if (rc == OK) rc = park_begin(&set, p, &k, most, e);
    if (rc == OK) {
        place_drive(&g->plan->place);
        rc = save_blocks(g, set, p, most, places, data, e);
        *n_blocks = park_set_n(set);
        if (rc == OK && *n_blocks) rc = park_end(set, e);
        else park_set_close(set);
    }
    mem_free(places);
    if (data) mem_free_aligned(data, (size_t)k.block_bytes);
    return rc;
}

/* ---- restoring ---- */

/* Block i, after those before it in its prompt. ids: [n] block ids, -1: not restored yet, -2: cannot
 * be. An error is the device's. */
static int restore_block(struct engine *g, const struct park_set *set, int i, int32_t *ids,
                         struct err *e)
{
    struct park_block b;
    struct prefix_block x;
    const void *data;
    bool is_new;
    int id;

    ids[i] = -2;
    park_set_at(set, i, &b);
    for (int k = 0; k < KV_BLOCK; k++)
        if (b.ids[k] < 0 || b.ids[k] >= g->lim.n_vocab) return OK;
    x = (struct prefix_block){ b.parent < 0 ? -1 : ids[b.parent], b.salt, b.ids };
    if (x.parent == -2 || !(data = park_set_data(set, i))) return OK;
    if ((id = prefix_restore(g->prefix, &x, &is_new)) < 0) return OK;
    ids[i] = id;
    if (!is_new) return OK;
    runner_write_block(g->runner, id, data);
    return runner_sync_blocks(g->runner, e);
}

/* A block's ancestors have smaller places: those that are missing are restored first. */
static int restore_chain(struct engine *g, const struct park_set *set, int i, int32_t *ids,
                         int32_t *stack, struct err *e)
{
    struct park_block b;
    int n = 0, rc = OK;

    for (; i >= 0 && ids[i] == -1; i = b.parent) {
        park_set_at(set, i, &b);
        stack[n++] = i;
    }
    while (n > 0 && rc == OK) rc = restore_block(g, set, stack[--n], ids, e);
    return rc;
}

/* The blocks that were used last are restored last, so that they are evicted last. */
static int restore_blocks(struct engine *g, const struct park_set *set, struct err *e)
{
    int most = block_n(g->pool) / 4 * 3, n = park_set_n(set) < most ? park_set_n(set) : most,
        rc = OK;
    int32_t *ids = mem_array((size_t)n + 1, sizeof *ids),
            *stack = mem_array((size_t)n + 1, sizeof *stack);

    if (!ids || !stack) rc = err_nomem(e, "restoring KV blocks");
    else {
        place_drive(&g->plan->place);
        for (int i = 0; i < n; i++) ids[i] = -1;
        for (int i = n - 1; i >= 0 && rc == OK; i--) rc = restore_chain(g, set, i, ids, stack, e);
    }
    mem_free(ids);
    mem_free(stack);
    return rc;
}

int engine_unpark(struct engine *g, struct park *p, int *n_blocks, struct err *e)
{
    struct park_set *set = NULL;
    struct park_key k;
    int rc;

    *n_blocks = 0;
    if (g->has_thread)
        return err_set(e, E_INVALID, "KV blocks are restored before the engine runs");
    if (!can_park(g)) return OK;
    if ((rc = make_key(g, &k, e)) != OK) return rc;
    if ((rc = park_take(&set, p, &k, e)) != OK) return rc == E_NOTFOUND ? OK : rc;
    rc = restore_blocks(g, set, e);
    *n_blocks = prefix_n(g->prefix);
    if (*n_blocks < park_set_n(set) && *n_blocks < block_n(g->pool) / 2)
        log_warn("%d of %d parked KV blocks were restored; the others are damaged", *n_blocks,
                 park_set_n(set));
    park_set_close(set);
    return rc;
}
