/* numa.h - memory nodes (NUMA): which processors are near which memory, and where pages lie.
 *
 * A machine with several sockets has a memory at each; a processor reads the memory of another one
 * at half the speed or less. So a team of threads is pinned to the cores of the nodes, and each
 * thread's share of the weights is moved to the memory of its node.
 *
 * The topology is read by hwloc. HWLOC_SYNTHETIC describes another machine to it, for tests: a move
 * to a node that does not exist is refused by the system, and nothing else happens. */
#ifndef TERN_BASE_NUMA_H
#define TERN_BASE_NUMA_H

#include "base/err.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

enum { NUMA_MAX = 16 }; /* nodes; on a machine with more, nothing is spread */

struct numa {
    int n;                   /* nodes in use; 0: memory and threads are left where they are */
    int node[NUMA_MAX];      /* [n] the system's numbers */
    int first[NUMA_MAX + 1]; /* node k has the processors cpu[first[k]] to cpu[first[k + 1] - 1] */
    int cpu[CPU_SETSIZE];    /* [first[n]] one processor of each core */
};

/* mode: "auto" or NULL: all nodes, if there are several; "off"; "spread": all nodes; a number: that
 * node alone. E_INVALID: another text, or a node that does not exist; the message says what may be. */
int numa_find(struct numa *out, const char *mode, struct err *e);
/* numa_find for a machine that `synthetic` describes, in the notation of hwloc(7); NULL: this machine.
 * Only the processors in `mine` are used. */
int numa_read(struct numa *out, const char *mode, const char *synthetic, const cpu_set_t *mine,
              struct err *e);

/* The processor of thread t of n_threads, and the index of its node. Neighbours share a node. */
int numa_cpu_of(const struct numa *m, int t, int n_threads);
int numa_node_of(const struct numa *m, int t, int n_threads);

/* Moves the pages that begin inside [p, p + bytes) to node[k], and those that come later there too.
 * Pages of a file are moved where only this process has mapped them. false: the system refuses. */
bool numa_move(const struct numa *m, int k, const void *p, size_t bytes);
/* Tests: calls this instead of the system. NULL: the system again. */
void numa_set_move(bool (*move)(int node, const void *p, size_t bytes));
#endif
