#include "base/cores.h"

#include "base/par.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Written once by find_cores, under pthread_once. */
static struct cores found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Two logical processors may share a core. CPUID answers in a microsecond, hwloc in milliseconds,
 * and most virtual machines have no SMT: this saves them the time at start-up. */
static bool may_have_smt(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 15 & 1)
        return true; /* hybrid: differs from core to core */
    if (__get_cpuid_count(11, 0, &a, &b, &c, &d) && (c >> 8 & 255) == 1) return (b & 0xffff) > 1;
#endif
    return true;
}

static void add_home(int cpu) { found.home[found.n_home++] = cpu; }

/* Adds one allowed processor of every physical core. false: hwloc cannot read the topology or has
 * no memory, and nothing was added. */
static bool add_homes_by_hwloc(const cpu_set_t *mine)
{
    hwloc_topology_t topo;
    hwloc_cpuset_t allowed;

    if (hwloc_topology_init(&topo) != 0) return false;
    hwloc_topology_set_all_types_filter(topo, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topo, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topo) != 0) {
        hwloc_topology_destroy(topo);
        return false;
    }
    allowed = hwloc_bitmap_alloc();
    if (!allowed ||
        hwloc_cpuset_from_glibc_sched_affinity(topo, allowed, mine, sizeof *mine) != 0) {
        hwloc_bitmap_free(allowed);
        hwloc_topology_destroy(topo);
        return false;
    }
    for (hwloc_obj_t core = NULL;
         (core = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, core)) != NULL;) {
        int cpu = -1;
        while ((cpu = hwloc_bitmap_next(core->cpuset, cpu)) >= 0)
            if (hwloc_bitmap_isset(allowed, (unsigned)cpu)) break;
        if (cpu >= 0 && cpu < CPU_SETSIZE && found.n_home < found.n_cpus) add_home(cpu);
    }
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topo);
    return found.n_home > 0;
}

/* The CPU quota of one cgroup in processors, rounded down, at least 1; 0: no quota. path holds
 * "QUOTA PERIOD" in microseconds (cgroup v2) or QUOTA alone, with PERIOD in period_path (v1). */
static int read_quota(const char *path, const char *period_path)
{
    long long quota = 0, period = 0;
    FILE *f = fopen(path, "re");
    int n;

    if (!f) return 0;
    n = fscanf(f, "%lld %lld", &quota, &period); /* "max 100000" (no quota) gives 0 */
    fclose(f);
    if (n == 1 && period_path && (f = fopen(period_path, "re"))) {
        if (fscanf(f, "%lld", &period) != 1) period = 0;
        fclose(f);
    }
    if (n < 1 || quota <= 0 || period <= 0) return 0;
    return quota < period ? 1 : quota / period > 1 << 20 ? 0 : (int)(quota / period);
}

/* The smallest quota of our cgroup and its ancestors; 0: none. Rounded down, because the other
 * threads of a step wait for one that is throttled in the middle of it. */
static int find_cgroup_quota(void)
{
    char line[1024], path[1200];
    int least =
        read_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (!f) return least;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) != 0) continue; /* v2 has one line: "0::/path/of/the/group" */
        line[strcspn(line, "\n")] = 0;
        for (char *group = line + 3, *slash;; *slash = 0) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
            int n = read_quota(path, NULL);
            if (n && (!least || n < least)) least = n;
            if (!(slash = strrchr(group, '/'))) break;
        }
    }
    fclose(f);
    return least;
}

/* Without hwloc every allowed logical processor counts as a core. */
static void find_cores(void)
{
    cpu_set_t mine;
    int quota;

    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0 || CPU_COUNT(&mine) == 0) CPU_SET(0, &mine);
    found.n_cpus = CPU_COUNT(&mine);
    if (found.n_cpus == 1 || !may_have_smt() || !add_homes_by_hwloc(&mine)) {
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((unsigned)cpu, &mine)) add_home(cpu);
    }
    quota = find_cgroup_quota();
    found.n = quota && quota < found.n_home ? quota : found.n_home;
}

const struct cores *cores_find(void)
{
    pthread_once(&once, find_cores);
    return &found;
}

int par_cores(void) { return cores_find()->n; }
