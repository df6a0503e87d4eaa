/* block.h - fixed-size blocks of key/value memory, shared by sequences.
 *
 * A block holds KV_BLOCK tokens of every layer, each layer's on the device that has the layer. All
 * memory is taken when the pool opens; a request takes none. Blocks are counted: a prefix that
 * three sequences use is one block with three references. The engine thread owns the pool; nothing
 * here locks. */
#ifndef TERN_KV_BLOCK_H
#define TERN_KV_BLOCK_H

#include "kernel/backend.h"

struct block_pool;

struct kvshape {
    int n_kv_heads, head_dim, head_dim_v; /* n_kv_heads 0: the layer keeps nothing */
    bool v_in_k;                          /* values are the first head_dim_v numbers of the keys */
};

int block_pool_open(struct block_pool **out, struct backend *be, const struct kvshape *layers,
                    int n_layers, enum dtype type, int n_blocks, struct err *e);
/* The same over several devices, each with its share of the layers; the shares are copied. */
int block_pool_open_over(struct block_pool **out, const struct backend_share *shares, int n_shares,
                         const struct kvshape *layers, enum dtype type, int n_blocks,
                         struct err *e);
void block_pool_close(struct block_pool *p); /* NULL is fine */

/* Bytes of one block of such layers: what admission counts with. */
uint64_t block_bytes(const struct kvshape *layers, int n_layers, enum dtype type);

int block_get(struct block_pool *p); /* an id with one reference, or -1: none free */
void block_ref(struct block_pool *p, int id);
void block_unref(struct block_pool *p, int id); /* the last one frees it */
int block_refs(const struct block_pool *p, int id);
int block_n_free(const struct block_pool *p);
int block_n(const struct block_pool *p);

/* One watcher a pool, the index of prefixes: it is told when a watched block is down to one
 * reference (idle) and when it has a second one again. A block is watched no more before its last
 * one goes. */
void block_set_watcher(struct block_pool *p, void (*changed)(void *arg, int id, bool idle),
                       void *arg);
void block_watch(struct block_pool *p, int id, bool on);

/* The memory part of a kvview (type, layers); the caller fills in the batch's part. */
void block_view(const struct block_pool *p, struct kvview *out);
#endif
