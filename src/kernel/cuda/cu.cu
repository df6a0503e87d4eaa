/* cu.cu - the first failure of a step, the shared-memory carveout, and the hooks of a profile. */
#include "kernel/cuda/record.cuh"

#include <stdarg.h>
#include <stdio.h>

void cu_fail(struct cuda *c, int rc, const char *fmt, ...)
{
    va_list ap;

    if (c->rc != OK) return;
    c->rc = rc;
    va_start(ap, fmt);
    vsnprintf(c->msg, sizeof c->msg, fmt, ap);
    va_end(ap);
}

/* E_DEVICE_MEMORY is kept apart from E_DEVICE: the caller may retry with less. */
int cu_check(struct cuda *c, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess) return OK;
    int code = rc == cudaErrorMemoryAllocation ? E_DEVICE_MEMORY : E_DEVICE;
    cu_fail(c, code, "%s: %s: %s", c->be.name, what, cudaGetErrorString(rc));
    return code;
}

void cu_set_carveout(struct cuda *c, const void *kernel)
{
    const unsigned n = sizeof c->carveout_set / sizeof *c->carveout_set;
    unsigned i = (unsigned)((uintptr_t)kernel >> 4) % n;

    /* Open addressing. A full table only means that the attribute is set again. */
    for (unsigned tries = 0; c->carveout_set[i] && tries < n; tries++, i = (i + 1) % n)
        if (c->carveout_set[i] == kernel) return;
    c->carveout_set[i] = kernel;
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
}

/* Events of a profile stand before and after each launch. */
void cu_launch_begin(struct cuda *c, const char *name)
{
    if (c->profile) c->profile->begin(c, name);
}

void cu_launch_end(struct cuda *c)
{
    if (c->profile) c->profile->end(c);
}
