/* chain.h - a sequence's blocks: append, fork, truncate. */
#ifndef TERN_KV_CHAIN_H
#define TERN_KV_CHAIN_H

#include "kv/block.h"

struct chain {
    int32_t *blocks;
    int n, cap; /* cap is set once, by chain_init */
};

void chain_init(struct chain *c, int max_tokens);
void chain_release(struct chain *c, struct block_pool *p);

/* Room for n_tokens in all: takes blocks as needed; false (and nothing taken) if there are too few
 * free or the chain would pass its maximum. */
bool chain_reserve(struct chain *c, struct block_pool *p, int n_tokens);
/* Keeps the first n_tokens, gives whole blocks behind them back. */
void chain_truncate(struct chain *c, struct block_pool *p, int n_tokens);
/* `to` (initialised, empty) shares from's whole blocks of the first n_tokens; returns how many
 * tokens that is. */
int chain_fork(struct chain *to, const struct chain *from, struct block_pool *p, int n_tokens);
#endif
