/* affinity.h - which workers computed which prefix: hashes of blocks of a prompt → workers.
 *
 * A prompt is a chain of block hashes, each of which covers all blocks before it (prefix_hash_block of
 * kv/prefix.h, as the workers' own caches). The index remembers up to AFFINITY_WAYS workers of a
 * block, the last ones used. It is a set-associative cache of fixed size: old blocks are replaced, and
 * a wrong answer only costs a prefill. One thread uses it. */
#ifndef TERN_CLUSTER_AFFINITY_H
#define TERN_CLUSTER_AFFINITY_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    AFFINITY_WAYS = 4,     /* workers of one block */
    AFFINITY_BLOCKS = 512, /* blocks of a prompt that are looked at */
    AFFINITY_BYTES = 64    /* of text in a block, where the gateway has no tokenizer */
};

struct affinity;

int affinity_open(struct affinity **out, int n_blocks, struct err *e); /* a power of two */
void affinity_close(struct affinity *a);                               /* NULL is allowed */
/* match[w], w < n_workers: the first so many blocks were computed by worker w. */
void affinity_match(struct affinity *a, const uint64_t *hashes, int n, int *match, int n_workers);
void affinity_add(struct affinity *a, const uint64_t *hashes, int n, int worker);
void affinity_forget(struct affinity *a, int worker); /* it was restarted: its cache is empty */

/* Hashes of the full blocks of KV_BLOCK ids; at most AFFINITY_BLOCKS. Returns how many. */
int affinity_hash_ids(uint64_t salt, const int32_t *ids, size_t n, uint64_t *out);
/* Hashes of pieces of AFFINITY_BYTES bytes. */
int affinity_hash_text(uint64_t salt, const char *text, size_t n, uint64_t *out);
#endif
