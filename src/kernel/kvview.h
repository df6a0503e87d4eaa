/* kvview.h - the paged KV cache as the attention kernels see it: pointers and block tables.
 *
 * Keys and values of a layer are an array of blocks of KV_BLOCK token positions (PagedAttention).
 * Block b of layer l holds, for each KV head, KV_BLOCK rows of head_dim elements:
 *
 *     k: layer[l].k + b * k_block_bytes      [n_kv_heads][KV_BLOCK][head_dim]
 *     v: layer[l].v + b * v_block_bytes      [n_kv_heads][KV_BLOCK][head_dim_v]
 *
 * Position p of sequence s is in block table[s][p / KV_BLOCK], row p % KV_BLOCK. The view borrows
 * everything; kv/kvstore.c fills it. */
#ifndef TERN_KERNEL_KVVIEW_H
#define TERN_KERNEL_KVVIEW_H

#include "base/dtype.h"

#include <stdbool.h>

#define KV_BLOCK 16 /* token positions per block */

struct kvlayer {
    void *k, *v; /* device memory of block 0; NULL: the layer has no KV cache of its own */
    int n_kv_heads, head_dim, head_dim_v;
    size_t k_block_bytes, v_block_bytes;
    bool v_in_k; /* latent attention: values are the first head_dim_v elements of the keys */
    /* Sparse attention: index keys [block][KV_BLOCK][index_dim]; NULL: the layer has none. */
    void *x;
    size_t x_block_bytes;
    int index_dim;
};

struct kvview {
    enum dtype type; /* of the elements: DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_F8_E4M3 */
    const struct kvlayer *layers; /* [n_layers] */
    int n_layers;
    /* The current batch, in device memory: */
    const int32_t *table; /* [n_seqs][table_stride] block ids of each sequence, by position */
    int table_stride;
    const int32_t *seq; /* [n_tokens] the token's row of the table */
    const int32_t *pos; /* [n_tokens] the token's position in its sequence */
    int n_tokens, n_seqs;
    int max_pos; /* the largest element of pos, known on the host to size launches */
    /* [n_seqs] length of each sequence; only for bidirectional attention, else NULL. */
    const int32_t *seq_end;
};
#endif
