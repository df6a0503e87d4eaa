/* block.h - ids of KV blocks with reference counts.
 *
 * A KV block holds the keys and values of KV_BLOCK tokens in every layer. This pool hands out the
 * block ids and counts their users; the memory behind an id belongs to the runner (kv/kvstore.h,
 * model/runner.h). A prefix that three sequences share is one block with three references.
 *
 * Invariants (block_check): an id is either on the free list with no reference, or off it with at
 * least one. All arrays are allocated when the pool opens. The engine thread owns the pool; nothing
 * here locks. */
#ifndef TERN_KV_BLOCK_H
#define TERN_KV_BLOCK_H

#include "base/err.h"
#include "kernel/kvview.h"

#include <stdbool.h>
#include <stdint.h>

struct block_pool;

int block_pool_open(struct block_pool **out, int n_blocks, struct err *e);
void block_pool_close(struct block_pool *p); /* NULL is allowed */

int block_get(struct block_pool *p); /* an id with one reference, or -1: no block is free */
void block_ref(struct block_pool *p, int id);
void block_unref(struct block_pool *p, int id); /* dropping the last reference frees the block */
int block_refs(const struct block_pool *p, int id);
int block_n_free(const struct block_pool *p);
int block_n(const struct block_pool *p);

/* A pool has at most one watcher, the prefix cache. `changed` is called when a watched block drops
 * to one reference (idle: only the watcher's own is left) and when it gets a second one again.
 * block_watch(p, id, false) must come before the last reference is dropped. */
void block_set_watcher(struct block_pool *p, void (*changed)(void *arg, int id, bool idle),
                       void *arg);
void block_watch(struct block_pool *p, int id, bool on);

/* Checks the invariants above. uses: [block_n] how often each block is referred to by everything
 * the caller knows of (chains, prefix cache), compared with the counts; NULL: not compared.
 * E_INTERNAL names the first block that is wrong. */
int block_check(const struct block_pool *p, const int32_t *uses, struct err *e);
#endif
