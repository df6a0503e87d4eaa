/* cores.h - the processors this process may use: CPU affinity, SMT siblings and cgroup quota.
 *
 * Matrix kernels gain nothing from a second SMT thread on a core, and threads beyond the cgroup's
 * CPU quota are throttled in the middle of a step. Both are therefore left out of the default
 * number of threads. Found once, at the first call, and constant for the life of the process. */
#ifndef TERN_BASE_CORES_H
#define TERN_BASE_CORES_H

#include <sched.h>

struct cores {
    int n;                 /* threads worth starting: physical cores, at most the quota; >= 1 */
    int n_cpus;            /* logical processors the affinity mask allows */
    int n_home;            /* physical cores; >= 1 */
    int home[CPU_SETSIZE]; /* [n_home] the first allowed logical processor of each core */
};

/* Never NULL; any thread may call. */
const struct cores *cores_find(void);
#endif
