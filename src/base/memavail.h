/* memavail.h - how much memory this process can still take: what the machine has, what its control
 * groups allow, what its limits allow. */
#ifndef TERN_BASE_MEMAVAIL_H
#define TERN_BASE_MEMAVAIL_H

#include <stdint.h>

struct memavail {
    uint64_t free;        /* bytes that can be taken now; UINT64_MAX: not known */
    uint64_t total;       /* the most that there could ever be: the machine's, or a group's limit */
    uint64_t address;     /* bytes of address space left, also for mapped files (RLIMIT_AS) */
    uint64_t own;         /* anonymous memory that this process has taken; 0: not known */
    const char *limit_by; /* what makes `free` so: "MemAvailable", "the cgroup's memory.max" */
};

/* root: a folder that stands for "/"; "": the real one. What cannot be read, or makes no sense, does
 * not limit. Any thread. */
void memavail_read(struct memavail *out, const char *root);
/* `own` of another process; 0: not known. Any thread. */
uint64_t memavail_own(int pid, const char *root);
/* Bytes that nothing uses now, not even the page cache: taking them makes nobody give something up.
 * UINT64_MAX: not known. Any thread. */
uint64_t memavail_unused(const char *root);
#endif
