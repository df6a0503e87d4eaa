/* kvview.h - where a batch's keys and values lie: memory and block ids.
 *
 * Keys and values of a layer are an array of blocks; block b of layer l holds, for each KV
 * head, KV_BLOCK rows of head_dim numbers:
 *
 *     k: layer[l].k + b * k_block_bytes      [n_kv_heads][KV_BLOCK][head_dim]
 *     v: layer[l].v + b * v_block_bytes      [n_kv_heads][KV_BLOCK][head_dim_v]
 *
 * Token t of sequence s at position p lies in block table[s][p / KV_BLOCK], row p % KV_BLOCK. */
#ifndef TERN_KERNEL_KVVIEW_H
#define TERN_KERNEL_KVVIEW_H

#include "base/dtype.h"

#include <stdbool.h>

#define KV_BLOCK 16

struct kvlayer {
    void *k, *v; /* NULL: this layer keeps none of its own */
    int n_kv_heads, head_dim, head_dim_v;
    size_t k_block_bytes, v_block_bytes;
    bool v_in_k; /* values are the first head_dim_v numbers of the keys; v is NULL */
};

struct kvview {
    enum dtype type; /* DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_F8_E4M3 */
    const struct kvlayer *layers;
    int n_layers;
    /* of this batch, in the backend's memory: */
    const int32_t *table; /* [n_seqs][table_stride] block ids */
    int table_stride;
    const int32_t *seq; /* [n_tokens] row of the table */
    const int32_t *pos; /* [n_tokens] position in its sequence */
    int n_tokens, n_seqs;
    int max_pos; /* the largest of pos, known on the host */
    const int32_t
        *seq_end; /* [n_seqs] tokens of each sequence; for attention both ways, else NULL */
};
#endif
