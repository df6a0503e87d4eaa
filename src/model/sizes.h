/* sizes.h - how large context, KV cache and batch of a model become where nobody says it.
 *
 * A pure function of the model and the memory that is free. Rules:
 *
 *   context      as trained, as far as one such context fits into the KV cache
 *   sequences    16; on a GPU as many as the KV cache has room for with 512 tokens each, 16 to 256
 *   KV cache     whole blocks: a share of what weights and scratch leave of each memory, and never
 *                more than is of use: every sequence with its full context
 *   snapshots    of recurrent state: as many as fit into a quarter of the same share, from a few (4
 *                to 8) to two of every sequence, 16 to 32
 *
 * Sizes that the user gives are not changed. Where memory is so scarce that not even one context of 4096
 * tokens (or as trained) fits, sizes are chosen for exactly that, and the check of the load plan
 * against the machine refuses the model with the numbers. Where memory is not known, sizes are
 * small: a context of 4096 tokens, and a KV cache of four.
 *
 * Half of what is left on the host is for KV caches: pages are taken when blocks are first used, so
 * a default cache must lie within what is surely free, also when other programs grow. A GPU is
 * there for the model alone, and its backend keeps a tenth back. */
#ifndef TERN_MODEL_SIZES_H
#define TERN_MODEL_SIZES_H

#include <stdbool.h>
#include <stdint.h>

enum { SIZES_SEQS_GPU = 256, SIZES_MEMORIES = 3 };

/* Memory for a model, as the owner of several models divides it. Zeroed: nothing is known. */
struct sizes_room {
    uint64_t host_bytes;  /* free for this and later models on the host, page cache included; 0: not
                           * known */
    uint64_t limit_bytes; /* the same by a setting; 0: no limit */
    uint64_t device_bytes; /* of the GPU, likewise; 0: what it has */
    uint64_t later_bytes;  /* weights of models that will be loaded beside this one */
    /* Part of the memory for KV caches that is this model's, and the parts of models that have
     * theirs already; 0, 0: all of it. Three equal models: 1/3 each, with 0, 1/3 and 2/3 before. */
    double share, share_before;
};

struct sizes {
    int n_ctx, kv_tokens, max_batch, max_seqs;
};

/* A memory that the model, or a part of it, lies in. */
struct sizes_memory {
    uint64_t room;        /* bytes for all of the model that lies here */
    uint64_t weights;     /* bytes */
    uint64_t block_bytes; /* of one KV block in the layers that lie here */
    uint64_t slot_bytes;  /* of one slot of recurrent state, likewise */
    double share;         /* of what weights and scratch leave, for KV blocks and state */
};

struct sizes_in {
    struct sizes given;       /* 0: to be chosen */
    int trained_ctx, max_ctx; /* of model_facts */
    bool gpu;                 /* all of the model, or a part of it, lies on one */
    bool at_once;             /* a text is computed in one step, and its KV is not kept */
    bool no_prefix;           /* no slots for snapshots of recurrent state */
    bool few_saved;           /* the least number of them, whatever the memory: several processes,
                               * each with its own, must agree on it */
    bool known;               /* free memory is known; without memories it does not limit */
    const struct sizes_memory *memory; /* [n_memories] all limit */
    int n_memories;
    /* Bytes of scratch for steps of that size in memory i; UINT64_MAX: out of range. */
    uint64_t (*scratch)(const void *arg, int i, const struct sizes *s);
    const void *arg;
};

enum sizes_why { SIZES_GIVEN, SIZES_UNKNOWN, SIZES_OF_USE, SIZES_MEMORY, SIZES_LEAST };

struct sizes_out {
    struct sizes s; /* no field is 0 */
    int n_saved; /* slots of recurrent state for snapshots, beside those of s.max_seqs sequences */
    enum sizes_why kv_why;
    int limited_by; /* SIZES_MEMORY: index into memory */
};

void sizes_choose(struct sizes_out *out, const struct sizes_in *in);

/* KV blocks for so many tokens: one more than they need, because the scheduler keeps one free beside
 * the blocks of a sequence that begins. */
int sizes_blocks(int kv_tokens);
/* The part of a memory's rest that a model gets: `all` is the part that all KV caches may take. */
double sizes_share(const struct sizes_room *r, double all);
#endif
