/* profile.cu - time on the device by kernel name, if TERN_CUDA_PROFILE or --profile asks for it.
 *
 * Two CUDA events stand around every launch; after a sync their times are added up by name, and the
 * sums are logged when the backend closes. Events keep kernels from overlapping, and steps are not
 * captured as graphs while a profile runs: the sum is larger than the time of an ordinary step. */
#include "kernel/cuda/record.cuh"

extern "C" {
#include "base/log.h"
#include "base/mem.h"
}

#include <stdio.h>
#include <stdlib.h>

#define MAX_NAMES 256
#define MAX_PAIRS 8192 /* launches between two syncs that are timed; further ones are counted */

struct timed {
    char name[48];
    uint64_t n;
    double ms;
};

struct profile {
    struct cu_profile hooks;
    struct timed by[MAX_NAMES];
    int n_by;
    cudaEvent_t start[MAX_PAIRS], end[MAX_PAIRS];
    int which[MAX_PAIRS]; /* index in by */
    int n_events, n;
    bool open; /* between the begin and the end of a timed launch */
    uint64_t n_untimed;
};

static struct profile *profile_of(struct cuda *c) { return (struct profile *)c->profile; }

/* Further names than MAX_NAMES share the last entry. */
static int find_or_add_name(struct profile *p, const char *name)
{
    for (int i = 0; i < p->n_by; i++)
        if (strncmp(p->by[i].name, name, sizeof p->by[i].name - 1) == 0) return i;
    if (p->n_by == MAX_NAMES) return MAX_NAMES - 1;
    snprintf(p->by[p->n_by].name, sizeof p->by[0].name, "%s", name);
    return p->n_by++;
}

/* Events are created as needed and reused after the next sync. */
static void begin_timing(struct cuda *c, const char *name)
{
    struct profile *p = profile_of(c);

    p->open = false;
    if (p->n == MAX_PAIRS) {
        p->n_untimed++;
        return;
    }
    if (p->n == p->n_events) {
        if (cudaEventCreate(&p->start[p->n]) != cudaSuccess ||
            cudaEventCreate(&p->end[p->n]) != cudaSuccess)
            return;
        p->n_events++;
    }
    p->which[p->n] = find_or_add_name(p, name);
    p->open = cudaEventRecord(p->start[p->n], c->stream) == cudaSuccess;
}

static void end_timing(struct cuda *c)
{
    struct profile *p = profile_of(c);

    if (!p->open) return;
    if (cudaEventRecord(p->end[p->n], c->stream) == cudaSuccess) p->n++;
    p->open = false;
}

void profile_open(struct cuda *c, bool wanted)
{
    const char *env = getenv("TERN_CUDA_PROFILE");
    struct profile *p;

    if (!wanted && (!env || env[0] == 0 || env[0] == '0')) return;
    if (!(p = mem_new(struct profile))) {
        log_warn("%s: no memory for a profile; the model runs without one", c->be.name);
        return;
    }
    p->hooks.begin = begin_timing;
    p->hooks.end = end_timing;
    c->profile = &p->hooks;
}

/* The device is idle: all events have completed. */
void profile_collect(struct cuda *c)
{
    struct profile *p = profile_of(c);

    if (!p) return;
    for (int i = 0; i < p->n; i++) {
        float ms = 0;
        if (cudaEventElapsedTime(&ms, p->start[i], p->end[i]) != cudaSuccess) continue;
        p->by[p->which[i]].ms += (double)ms;
        p->by[p->which[i]].n++;
    }
    p->n = 0;
}

/* The longest first. */
static int by_time(const void *a, const void *b)
{
    double x = ((const struct timed *)a)->ms, y = ((const struct timed *)b)->ms;
    return x < y ? 1 : x > y ? -1 : 0;
}

void profile_close(struct cuda *c)
{
    struct profile *p = profile_of(c);
    double sum = 0;

    if (!p) return;
    for (int i = 0; i < p->n_by; i++) sum += p->by[i].ms;
    qsort(p->by, (size_t)p->n_by, sizeof p->by[0], by_time);
    log_warn("%s: %.3f ms in kernels, by name (launches, ms, share, us each):", c->be.name, sum);
    for (int i = 0; i < p->n_by; i++)
        log_warn("  %-36s %8llu %10.3f %5.1f%% %9.2f", p->by[i].name,
                 (unsigned long long)p->by[i].n, p->by[i].ms, sum > 0 ? 100 * p->by[i].ms / sum : 0,
                 p->by[i].n ? 1e3 * p->by[i].ms / (double)p->by[i].n : 0);
    if (p->n_untimed) log_warn("  %llu launches were not timed", (unsigned long long)p->n_untimed);
    for (int i = 0; i < p->n_events; i++)
        cudaEventDestroy(p->start[i]), cudaEventDestroy(p->end[i]);
    mem_free(p);
    c->profile = NULL;
}
