/* graphs.c - slots of captured steps: lookup by hash and full comparison, replacement by age. */
#include "kernel/cuda/graphs.h"

#include "base/mem.h"

#include <string.h>

int graphs_init(struct graphs *g, struct err *e)
{
    *g = (struct graphs){ 0 };
    if (!(g->memory = mem_array(MAX_GRAPHS, GRAPH_RECORD_BYTES)))
        return err_nomem(e, "the records of captured steps");
    graphs_clear(g);
    return OK;
}

void graphs_release(struct graphs *g)
{
    mem_free(g->memory);
    *g = (struct graphs){ 0 };
}

void graphs_clear(struct graphs *g)
{
    /* Without graphs (TERN_CUDA_GRAPHS=0) there is no memory, and no slot is ever used. */
    for (int i = 0; i < MAX_GRAPHS && g->memory; i++)
        g->slot[i] = (struct graph){ .saved = g->memory + (size_t)i * GRAPH_RECORD_BYTES };
    memset(g->seen, 0, sizeof g->seen);
}

/* A linear search: 64 hashes are 64 cache lines at most, and a replayed step does this once. */
struct graph *graphs_find(struct graphs *g, const struct record *r, uint64_t hash)
{
    for (struct graph *s = g->slot; s < g->slot + MAX_GRAPHS; s++)
        if (s->exec && s->hash == hash && record_equals(r, s->saved, s->n_saved)) return s;
    return NULL;
}

/* A false positive (equal hashes of different steps) only captures a step one time too early. The
 * ring forgets the oldest hash. */
bool graphs_note_seen(struct graphs *g, uint64_t hash)
{
    for (int i = 0; i < MAX_SEEN; i++)
        if (g->seen[i] == hash) return true;
    g->seen[g->n_seen++ % MAX_SEEN] = hash;
    return false;
}

/* The search stops at the first free slot; `used` of a free slot is 0 and older than any other. */
struct graph *graphs_choose(struct graphs *g, uint64_t step)
{
    struct graph *best = &g->slot[0];

    for (int i = 0; i < MAX_GRAPHS && best->exec; i++)
        if (!g->slot[i].exec || g->slot[i].used < best->used) best = &g->slot[i];
    return best->exec && step - best->used < GRAPH_REST ? NULL : best;
}

/* exec stays NULL until the caller has captured, so a failed capture leaves a free slot. */
bool graphs_keep(struct graph *slot, const struct record *r, uint64_t hash)
{
    size_t n = record_saved_bytes(r);

    if (n > GRAPH_RECORD_BYTES) return false;
    record_save(r, slot->saved);
    slot->exec = NULL;
    slot->hash = hash;
    slot->used = 0;
    slot->n_saved = n;
    return true;
}
