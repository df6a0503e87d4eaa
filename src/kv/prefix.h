/* prefix.h - shared prefixes: what tokens a block holds, and which block holds them.
 *
 * A full block is known by its tokens and the block before it. The index has a reference of its own
 * on each block it knows, so blocks stay when their sequence ends, and go, least recently used
 * leaves first, when room is needed. Tokens are compared, not only their hash: nobody is ever given
 * another's block. All memory is taken when it opens; a block costs the same however many are
 * known. The engine's thread owns it; the pool outlives it. */
#ifndef TERN_KV_PREFIX_H
#define TERN_KV_PREFIX_H

#include "kv/chain.h"

struct prefix;

int prefix_open(struct prefix **out, struct block_pool *pool, struct err *e);
void prefix_close(struct prefix *p); /* gives its references back; NULL is fine */

/* Gives `to` (empty) the longest known run of whole blocks at the beginning of ids, at most n - 1
 * tokens of them: the last one must be computed. Returns the tokens. */
int prefix_take(struct prefix *p, uint64_t salt, const int32_t *ids, int n, struct chain *to);
/* How many tokens that would be; nothing changes. */
int prefix_probe(const struct prefix *p, uint64_t salt, const int32_t *ids, int n);
/* The same; *n_used (NULL is fine): how many of these lie in blocks that are not idle, so that
 * taking them takes nothing from what prefix_n_idle counts. */
int prefix_look(const struct prefix *p, uint64_t salt, const int32_t *ids, int n, int *n_used);
/* Makes the whole blocks among the first n tokens of c known, from token `from` on (what was added
 * before need not be looked at again). A block whose tokens are known already under another id
 * stays the sequence's own; those behind it are added below the known one, which is not idle while
 * one of them is in use. */
void prefix_add(struct prefix *p, uint64_t salt, const int32_t *ids, int n, int from,
                const struct chain *c);

int prefix_n(const struct prefix *p);      /* blocks it knows */
int prefix_n_idle(const struct prefix *p); /* of those, nobody else's: could be evicted now */
/* Blocks that would be free or idle if c were given back: at least so many. */
int prefix_n_gain(const struct prefix *p, const struct chain *c);
/* Evicts until the pool has n free blocks, or nothing idle is left. Returns whether it has. */
bool prefix_evict(struct prefix *p, int n_free);
void prefix_clear(struct prefix *p); /* forgets all that nobody uses */

/* For tests: keeps so many bits of each hash (0: all are the same). Only while nothing is known. */
void prefix_set_hash_bits(struct prefix *p, int bits);
#endif
