/* kvstore.h - the memory of KV blocks, on the devices that run the layers.
 *
 * Each layer's keys and values are one array of n_blocks blocks in the memory of the device that
 * has the layer (kernel/kvview.h describes a block). All of it is allocated when the store opens.
 * Which block belongs to whom is not known here: ids come from kv/block.h. A runner owns the
 * store. */
#ifndef TERN_KV_KVSTORE_H
#define TERN_KV_KVSTORE_H

#include "kernel/backend.h"

struct kvstore;

/* What one layer keeps of a token. */
struct kvshape {
    int n_kv_heads, head_dim, head_dim_v; /* n_kv_heads 0: the layer keeps nothing */
    bool v_in_k;                          /* values are the first head_dim_v numbers of the keys */
    int index_dim;                        /* numbers of an index key (sparse attention); 0: none */
};

/* layers: of all shares together, in order. The shares are copied, the backends borrowed. */
int kvstore_open(struct kvstore **out, const struct backend_share *shares, int n_shares,
                 const struct kvshape *layers, enum dtype type, int n_blocks, struct err *e);
void kvstore_close(struct kvstore *s); /* NULL is allowed */
int kvstore_n_blocks(const struct kvstore *s);

/* Bytes that a store of n_blocks takes on a device with these layers: exactly what kvstore_open
 * allocates there. E_UNSUPPORTED: the type cannot hold a head; E_NOMEM: no address space could. */
int kvstore_bytes(uint64_t *out, const struct kvshape *layers, int n_layers, enum dtype type,
                  int n_blocks, struct err *e);
/* Bytes of one block of these layers, without alignment. */
uint64_t kvstore_block_bytes(const struct kvshape *layers, int n_layers, enum dtype type);

/* Copies the keys and values of block id in all layers from the devices, or to them, one layer after
 * the other: kvstore_block_size bytes of host memory. A copy is done when kvstore_sync returns; until
 * then `data` stays as it is. On the thread that drives the devices, between steps. */
size_t kvstore_block_size(const struct kvstore *s);
void kvstore_read(const struct kvstore *s, int id, void *data);
void kvstore_write(struct kvstore *s, int id, const void *data);
int kvstore_sync(struct kvstore *s, struct err *e);

/* The memory part of a kvview (type, layers); the caller fills in the batch's part. */
void kvstore_view(const struct kvstore *s, struct kvview *out);
#endif
