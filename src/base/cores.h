/* cores.h - the processors this process may use: affinity, SMT siblings and cgroup quota. */
#ifndef TERN_BASE_CORES_H
#define TERN_BASE_CORES_H

#include <sched.h>

struct cores {
    int n;      /* threads worth starting: physical cores, at most the quota; at least 1 */
    int n_cpus; /* logical processors we may run on */
    int n_home;
    cpu_set_t *home; /* [n_home] the first logical processor of each physical core */
};

/* Looked up once; stays for the life of the process. Any thread may call. */
const struct cores *cores_find(void);
#endif
