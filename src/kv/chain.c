/* chain.c - a chain is an array of block ids; every entry holds one reference. */
#include "kv/chain.h"

#include "base/mem.h"

#include <assert.h>

static int blocks_for(int n_tokens) { return n_tokens / KV_BLOCK + (n_tokens % KV_BLOCK != 0); }

bool chain_init(struct chain *c, int max_tokens)
{
    int cap = blocks_for(max_tokens);

    *c = (struct chain){ .blocks = mem_array((size_t)cap, sizeof *c->blocks) };
    if (!c->blocks) return false;
    c->cap = cap;
    return true;
}

void chain_release(struct chain *c, struct block_pool *p)
{
    chain_truncate(c, p, 0);
    mem_free(c->blocks);
    *c = (struct chain){ 0 };
}

/* All or nothing: a sequence that cannot get all its blocks must not keep some of them. */
bool chain_reserve(struct chain *c, struct block_pool *p, int n_tokens)
{
    int want = blocks_for(n_tokens);

    if (want > c->cap || want - c->n > block_n_free(p)) return false;
    while (c->n < want) c->blocks[c->n++] = block_get(p);
    return true;
}

void chain_truncate(struct chain *c, struct block_pool *p, int n_tokens)
{
    int n_kept = blocks_for(n_tokens);

    /* Last block first: the prefix cache lists children before their parents (kv/prefix.c). */
    while (c->n > n_kept) block_unref(p, c->blocks[--c->n]);
}

/* Only full blocks can be shared: the last one is still being written. */
int chain_fork(struct chain *to, const struct chain *from, struct block_pool *p, int n_tokens)
{
    int n = n_tokens / KV_BLOCK;

    assert(to->n == 0);
    if (n > from->n) n = from->n;
    if (n > to->cap) n = to->cap;
    for (; to->n < n; to->n++) {
        to->blocks[to->n] = from->blocks[to->n];
        block_ref(p, to->blocks[to->n]);
    }
    return n * KV_BLOCK;
}

void chain_count_uses(const struct chain *c, int32_t *uses)
{
    for (int i = 0; i < c->n; i++) uses[c->blocks[i]]++;
}
