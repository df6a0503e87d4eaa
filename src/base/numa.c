#include "base/numa.h"

#include <hwloc.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The system's interface (linux/mempolicy.h is not in every libc package). */
enum { MPOL_PREFERRED = 1, MPOL_MF_MOVE = 1 << 1, MPOL_F_MEMS_ALLOWED = 1 << 2 };
enum { MASK_WORDS = 16, WORD_BITS = 8 * sizeof(unsigned long) };

/* How many nodes this process may have memory on, without the milliseconds that hwloc takes; 2 where
 * that is not known. */
static int count_allowed(void)
{
    unsigned long mask[MASK_WORDS] = { 0 };
    int n = 0;

    if (getenv("HWLOC_SYNTHETIC") || getenv("HWLOC_XMLFILE")) return 2;
    if (syscall(SYS_get_mempolicy, NULL, mask, (unsigned long)MASK_WORDS * WORD_BITS, NULL,
                MPOL_F_MEMS_ALLOWED) != 0)
        return 1; /* a kernel without nodes, or one that does not tell */
    for (int i = 0; i < MASK_WORDS; i++) n += __builtin_popcountl(mask[i]);
    return n;
}

/* Adds one processor of each core of a node; none: the node is left out. */
static void add_node(struct numa *m, hwloc_topology_t topo, hwloc_obj_t node, const cpu_set_t *mine)
{
    int at = m->first[m->n];

    for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_inside_cpuset_by_type(
                                       topo, node->cpuset, HWLOC_OBJ_CORE, core)) != NULL;) {
        int cpu = -1;
        while ((cpu = hwloc_bitmap_next(core->cpuset, cpu)) >= 0)
            if (cpu < CPU_SETSIZE && CPU_ISSET((unsigned)cpu, mine)) break;
        if (cpu >= 0 && at < CPU_SETSIZE) m->cpu[at++] = cpu;
    }
    if (at == m->first[m->n]) return;
    m->node[m->n++] = (int)node->os_index;
    m->first[m->n] = at;
}

/* Too many: none. */
static void add_nodes(struct numa *m, hwloc_topology_t topo, int only, const cpu_set_t *mine)
{
    for (hwloc_obj_t node = NULL;
         (node = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_NUMANODE, node)) != NULL;) {
        if (only >= 0 && (int)node->os_index != only) continue;
        if (m->n == NUMA_MAX) {
            *m = (struct numa){ 0 };
            return;
        }
        add_node(m, topo, node, mine);
    }
}

/* The nodes of this machine, or of the one described, as text: "0, 1". */
static void list_nodes(hwloc_topology_t topo, char *out, size_t cap)
{
    size_t n = 0;

    out[0] = 0;
    for (hwloc_obj_t node = NULL;
         (node = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_NUMANODE, node)) != NULL && n < cap;)
        n += (size_t)snprintf(out + n, cap - n, "%s%u", n ? ", " : "", node->os_index);
}

static int load_topology(hwloc_topology_t *out, const char *synthetic, struct err *e)
{
    if (hwloc_topology_init(out) != 0) return err_nomem(e, "the topology of the machine");
    if ((!synthetic || hwloc_topology_set_synthetic(*out, synthetic) == 0) &&
        hwloc_topology_load(*out) == 0)
        return OK;
    hwloc_topology_destroy(*out);
    return err_set(e, E_INVALID, "the topology %s cannot be read",
                   synthetic ? synthetic : "of this machine");
}

/* *only: the number of a node, or -1 for all. false: not a mode. */
static bool parse_mode(const char *mode, bool *off, bool *always, int *only)
{
    char *end;
    long n;

    *off = *always = false;
    *only = -1;
    if (!mode || !strcmp(mode, "auto")) return true;
    if (!strcmp(mode, "off")) return *off = true;
    if (!strcmp(mode, "spread")) return *always = true;
    n = strtol(mode, &end, 10);
    if (mode[0] < '0' || mode[0] > '9' || *end || n > INT_MAX) return false;
    *only = (int)n;
    return *always = true;
}

int numa_read(struct numa *out, const char *mode, const char *synthetic, const cpu_set_t *mine,
              struct err *e)
{
    hwloc_topology_t topo;
    bool off, always;
    char nodes[100];
    int only, rc;

    *out = (struct numa){ 0 };
    if (!parse_mode(mode, &off, &always, &only))
        return err_set(e, E_INVALID,
                       "numa \"%s\": it must be auto, off, spread or the number of a node", mode);
    if (off) return OK;
    if ((rc = load_topology(&topo, synthetic, e)) != OK) return always ? rc : OK;
    add_nodes(out, topo, only, mine);
    list_nodes(topo, nodes, sizeof nodes);
    hwloc_topology_destroy(topo);
    if (only >= 0 && out->n == 0)
        return err_set(e, E_INVALID,
                       "numa %d: there is no such node with processors that this process may use; "
                       "this machine has %s",
                       only, nodes);
    if (out->n < 2 && only < 0) *out = (struct numa){ 0 }; /* nothing to spread over */
    return OK;
}

int numa_find(struct numa *out, const char *mode, struct err *e)
{
    bool off, always;
    int only;
    cpu_set_t mine;

    *out = (struct numa){ 0 };
    if (parse_mode(mode, &off, &always, &only) && only < 0 && count_allowed() < 2) return OK;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);
    return numa_read(out, mode, NULL, &mine, e);
}

/* The place of a thread among the processors: equal steps, so that each node has its part. */
static int place_of(const struct numa *m, int t, int n_threads)
{
    return (int)((long long)t * m->first[m->n] / n_threads);
}

int numa_cpu_of(const struct numa *m, int t, int n_threads)
{
    return m->n ? m->cpu[place_of(m, t, n_threads)] : -1;
}

int numa_node_of(const struct numa *m, int t, int n_threads)
{
    int at = place_of(m, t, n_threads), k = 0;

    while (k < m->n - 1 && at >= m->first[k + 1]) k++;
    return k;
}

static bool move_pages_to(int node, const void *p, size_t bytes)
{
    unsigned long mask[MASK_WORDS] = { 0 };

    if (node < 0 || node >= MASK_WORDS * (int)WORD_BITS) return false;
    mask[node / (int)WORD_BITS] = 1ul << (node % (int)WORD_BITS);
    return syscall(SYS_mbind, p, bytes, MPOL_PREFERRED, mask, (unsigned long)MASK_WORDS * WORD_BITS,
                   MPOL_MF_MOVE) == 0;
}

static bool (*move)(int node, const void *p, size_t bytes) = move_pages_to;

void numa_set_move(bool (*m)(int node, const void *p, size_t bytes))
{
    move = m ? m : move_pages_to;
}

bool numa_move(const struct numa *m, int k, const void *p, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)p, end = begin + bytes;

    begin = (begin + page - 1) & ~(page - 1);
    end = (end + page - 1) & ~(page - 1);
    return begin >= end || move(m->node[k], (const void *)begin, end - begin);
}
