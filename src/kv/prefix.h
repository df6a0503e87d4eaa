/* prefix.h - the prefix cache: which full KV blocks hold which tokens.
 *
 * A radix tree over blocks, as in SGLang's RadixAttention and vLLM's automatic prefix caching: a
 * full block is identified by its KV_BLOCK tokens and the block before it, and found by the hash of
 * both. Tokens are compared too, not only hashes, so a request never reads another text's keys and
 * values. Requests with different salts share nothing.
 *
 * The cache holds one reference to each block it lists. A block therefore outlives its sequence,
 * and is evicted, least recently used leaves first, when blocks are needed. A block is idle when
 * the cache holds its only reference and all its children are idle: idle blocks can be evicted.
 *
 * All memory is allocated when the cache opens. The engine thread owns it; the block pool outlives
 * it. */
#ifndef TERN_KV_PREFIX_H
#define TERN_KV_PREFIX_H

#include "kv/chain.h"

struct prefix;

int prefix_open(struct prefix **out, struct block_pool *pool, struct err *e);
void prefix_close(struct prefix *p); /* drops its references; NULL is allowed */

/* How many of the first n ids are cached, in full blocks and at most n - 1: the last token must
 * always be computed, for its logits. *n_used (NULL is allowed): how many of these lie in blocks
 * that are not idle, so that taking them does not lower prefix_n_idle. Changes nothing. */
int prefix_lookup(const struct prefix *p, uint64_t salt, const int32_t *ids, int n, int *n_used);
/* Appends the blocks that prefix_lookup would find to `to` (empty), each with a reference. Returns
 * the number of tokens. */
int prefix_take(struct prefix *p, uint64_t salt, const int32_t *ids, int n, struct chain *to);
/* Adds the full blocks among the first n tokens of chain c, starting at token `from` (earlier ones
 * were added before). If equal tokens are cached in another block already, c's block stays private
 * to its sequence; blocks behind it are added as children of the cached one, which then is not idle
 * while one of them is in use. */
void prefix_add(struct prefix *p, uint64_t salt, const int32_t *ids, int n, int from,
                const struct chain *c);

/* Parent, salt and tokens of a cached block, for saving and restoring it. */
struct prefix_block {
    int parent; /* block id; -1: the first block of a prompt */
    uint64_t salt;
    const int32_t *ids; /* [KV_BLOCK] */
};
/* Idle blocks from the one used last to the one used longest ago, parents before their children; id
 * -1 begins, and -1 is the end. */
int prefix_next_idle(const struct prefix *p, int id);
void prefix_get(const struct prefix *p, int id, struct prefix_block *out);
/* The block of these tokens: a cached one, or one that was free and is now cached and idle, so that
 * its keys and values must be filled in before anything else happens (*is_new). -1: none is free. */
int prefix_restore(struct prefix *p, const struct prefix_block *b, bool *is_new);

int prefix_n(const struct prefix *p);      /* cached blocks */
int prefix_n_idle(const struct prefix *p); /* of those, blocks that could be evicted now */
/* A lower bound of the blocks that become free or idle when c is released. */
int prefix_n_gain(const struct prefix *p, const struct chain *c);
/* Evicts idle blocks until the pool has n_free free ones. false: none is idle any more and there
 * are still fewer. */
bool prefix_evict(struct prefix *p, int n_free);
void prefix_clear(struct prefix *p); /* evicts all idle blocks */

/* The hash of a block: of its KV_BLOCK tokens, and of all blocks before it through `before`, the hash
 * of the last of them; of the first block the salt. Two caches with one seed agree. */
uint64_t prefix_hash_block(uint64_t seed, uint64_t before, const int32_t *ids);

/* Adds the cache's references to uses: [block_n]. For block_check. */
void prefix_count_uses(const struct prefix *p, int32_t *uses);
/* Checks the tree, the hash buckets and the list of idle blocks against each other and against the
 * reference counts. E_INTERNAL names the first block that is wrong. */
int prefix_check(const struct prefix *p, struct err *e);

/* For tests: uses only so many bits of each hash (0: every hash is equal), to force collisions.
 * Only while the cache is empty. */
void prefix_set_hash_bits(struct prefix *p, int bits);
#endif
