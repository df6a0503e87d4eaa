/* block.c - a stack of free ids and an array of counts. The block freed last is handed out first:
 * its memory is most likely still in a cache. */
#include "kv/block.h"

#include "base/mem.h"

#include <assert.h>

struct block_pool {
    int n, n_free;
    int32_t *free; /* [n] a stack: free[n_free - 1] is handed out next */
    int32_t *refs; /* [n] reference counts; 0: free */
    bool *watched; /* [n] */
    void (*changed)(void *arg, int id, bool idle);
    void *changed_arg;
};

int block_pool_open(struct block_pool **out, int n_blocks, struct err *e)
{
    struct block_pool *p;

    if (n_blocks < 1)
        return err_set(e, E_INVALID, "a KV cache of %d blocks: it must have at least 1", n_blocks);
    if (!(p = mem_new(struct block_pool))) return err_nomem(e, "the KV block pool");
    p->n = p->n_free = n_blocks;
    p->free = mem_array((size_t)n_blocks, sizeof *p->free);
    p->refs = mem_array((size_t)n_blocks, sizeof *p->refs);
    p->watched = mem_array((size_t)n_blocks, sizeof *p->watched);
    if (!p->free || !p->refs || !p->watched) {
        block_pool_close(p);
        return err_nomem(e, "the reference counts of the KV blocks");
    }
    for (int i = 0; i < n_blocks; i++) p->free[i] = n_blocks - 1 - i;
    *out = p;
    return OK;
}

void block_pool_close(struct block_pool *p)
{
    if (!p) return;
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
    assert(p->refs[id] == 0);
    p->refs[id] = 1;
    return id;
}

/* The second reference ends the idleness of a watched block. */
void block_ref(struct block_pool *p, int id)
{
    assert(id >= 0 && id < p->n && p->refs[id] > 0);
    if (p->refs[id]++ == 1 && p->watched[id]) p->changed(p->changed_arg, id, false);
}

/* The watcher hears of the step from two references to one; it holds the last one itself. */
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

/* O(n). */
int block_check(const struct block_pool *p, const int32_t *uses, struct err *e)
{
    int n_unused = 0;

    if (p->n_free < 0 || p->n_free > p->n)
        return err_set(e, E_INTERNAL, "%d of %d KV blocks are free", p->n_free, p->n);
    for (int i = 0; i < p->n_free; i++)
        if (p->free[i] < 0 || p->free[i] >= p->n || p->refs[p->free[i]] != 0)
            return err_set(e, E_INTERNAL, "KV block %d is on the free list and in use", p->free[i]);
    for (int id = 0; id < p->n; id++) {
        n_unused += p->refs[id] == 0;
        if (p->refs[id] < 0 || (p->watched[id] && p->refs[id] == 0))
            return err_set(e, E_INTERNAL, "KV block %d has %d references and is %swatched", id,
                           p->refs[id], p->watched[id] ? "" : "not ");
        if (uses && uses[id] != p->refs[id])
            return err_set(e, E_INTERNAL, "KV block %d has %d references but %d users", id,
                           p->refs[id], uses[id]);
    }
    /* As many ids without a reference as entries of the free list, all of which have none: so no id
     * is listed twice. */
    if (n_unused != p->n_free)
        return err_set(e, E_INTERNAL, "%d KV blocks have no reference, but %d are on the free list",
                       n_unused, p->n_free);
    return OK;
}
