#include "kv/chain.h"

#include "base/mem.h"

static int blocks_for(int n_tokens) { return n_tokens / KV_BLOCK + (n_tokens % KV_BLOCK != 0); }

void chain_init(struct chain *c, int max_tokens)
{
    *c = (struct chain){ .cap = blocks_for(max_tokens) };
    c->blocks = mem_array((size_t)c->cap, sizeof *c->blocks);
}

void chain_release(struct chain *c, struct block_pool *p)
{
    chain_truncate(c, p, 0);
    mem_free(c->blocks);
    *c = (struct chain){ 0 };
}

bool chain_reserve(struct chain *c, struct block_pool *p, int n_tokens)
{
    int want = blocks_for(n_tokens);
    if (want > c->cap || want - c->n > block_n_free(p)) return false;
    while (c->n < want) c->blocks[c->n++] = block_get(p);
    return true;
}

void chain_truncate(struct chain *c, struct block_pool *p, int n_tokens)
{
    int keep = blocks_for(n_tokens);
    while (c->n > keep) block_unref(p, c->blocks[--c->n]);
}

int chain_fork(struct chain *to, const struct chain *from, struct block_pool *p, int n_tokens)
{
    int n = n_tokens / KV_BLOCK;
    if (n > from->n) n = from->n;
    if (n > to->cap) n = to->cap;
    for (to->n = 0; to->n < n; to->n++) {
        to->blocks[to->n] = from->blocks[to->n];
        block_ref(p, to->blocks[to->n]);
    }
    return n * KV_BLOCK;
}
