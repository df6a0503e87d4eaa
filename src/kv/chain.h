/* chain.h - the KV blocks of one sequence, in order of position.
 *
 * Block i of a chain holds tokens i * KV_BLOCK to (i + 1) * KV_BLOCK - 1. A chain holds one
 * reference to each of its blocks. The array of ids is allocated once, for the longest the sequence
 * may become. The engine thread owns chains. */
#ifndef TERN_KV_CHAIN_H
#define TERN_KV_CHAIN_H

#include "kv/block.h"

struct chain {
    int32_t *blocks; /* [cap] block ids; the first n are set */
    int n, cap;      /* cap is set once, by chain_init */
};

bool chain_init(struct chain *c, int max_tokens);          /* false: no memory; c is empty */
void chain_release(struct chain *c, struct block_pool *p); /* a zeroed one is allowed */

/* Makes room for n_tokens in all. false: too few blocks are free, or the chain would exceed its
 * maximum; nothing is taken then. */
bool chain_reserve(struct chain *c, struct block_pool *p, int n_tokens);
/* Keeps the blocks of the first n_tokens and gives those behind them back. */
void chain_truncate(struct chain *c, struct block_pool *p, int n_tokens);
/* `to` (initialised, empty) shares from's full blocks of the first n_tokens. Returns how many
 * tokens that is. */
int chain_fork(struct chain *to, const struct chain *from, struct block_pool *p, int n_tokens);

/* Adds the chain's references to uses: [block_n]. For block_check. */
void chain_count_uses(const struct chain *c, int32_t *uses);
#endif
