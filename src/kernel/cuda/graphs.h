/* graphs.h - the cache of captured steps: which recorded step a CUDA graph was captured from.
 *
 * A graph may be replayed only for a step whose record is equal, field by field, to the record that
 * it was captured from. So each slot keeps a copy of that record beside the graph. A 64-bit hash
 * finds the slot quickly; the copy decides. A step is captured when its hash comes a second time:
 * capturing costs more than launching, and most prompts never repeat.
 *
 * The caller owns the graphs (exec) and destroys them; this file calls no CUDA function. All memory
 * is allocated by graphs_init. Pages of it that no step fills are never touched. */
#ifndef TERN_KERNEL_CUDA_GRAPHS_H
#define TERN_KERNEL_CUDA_GRAPHS_H

#include "kernel/cuda/record.h"

#define MAX_GRAPHS 64
#define GRAPH_REST 512 /* steps that a graph was not used for before another may replace it */
#define MAX_SEEN 256
/* The largest record that is captured: RECORD_OPS operations of 256 bytes with their jobs. A layer
 * of a dense model takes about 1,850 bytes, one with experts 2,450. */
#define GRAPH_RECORD_BYTES ((size_t)1 << 20)

struct graph {
    void *exec; /* cudaGraphExec_t; NULL: the slot is free */
    uint64_t hash;
    uint64_t used; /* the step that it was last used for */
    char *saved;   /* record_save of the step, unfused; GRAPH_RECORD_BYTES of memory */
    size_t n_saved;
};

struct graphs {
    struct graph slot[MAX_GRAPHS];
    uint64_t seen[MAX_SEEN]; /* ring of hashes that came once */
    int n_seen;
    char *memory;
};

int graphs_init(struct graphs *g, struct err *e);
void graphs_release(struct graphs *g); /* a zeroed one is allowed; execs are destroyed before */
void graphs_clear(struct graphs *g);   /* likewise */

/* The graph of an equal record, or NULL. hash: record_hash(r). */
struct graph *graphs_find(struct graphs *g, const struct record *r, uint64_t hash);
/* False the first time that a hash comes, and notes it. */
bool graphs_note_seen(struct graphs *g, uint64_t hash);
/* The slot for a new graph: a free one, or the one unused for longest, whose exec the caller
 * destroys. NULL: all were used in the last GRAPH_REST steps, and replacing one would only make the
 * next step miss it. */
struct graph *graphs_choose(struct graphs *g, uint64_t step);
/* Frees the slot and keeps the record in it, for the graph that is about to be captured. false: the
 * record is too large, and nothing has changed. */
bool graphs_keep(struct graph *slot, const struct record *r, uint64_t hash);
#endif
