/* cu.cu - errors of the device, and what stands around a launch. */
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

int cu_check(struct cuda *c, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess) return OK;
    int code = rc == cudaErrorMemoryAllocation ? E_NOMEM : E_DEVICE;
    cu_fail(c, code, "%s: %s: %s", c->be.name, what, cudaGetErrorString(rc));
    return code;
}

void cu_shape(struct cuda *c, const void *kernel)
{
    const unsigned n = sizeof c->shaped / sizeof *c->shaped;
    unsigned i = (unsigned)((uintptr_t)kernel >> 4) % n;

    for (unsigned tries = 0; c->shaped[i] && tries < n; tries++, i = (i + 1) % n)
        if (c->shaped[i] == kernel) return;
    c->shaped[i] = kernel;
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
}

void cu_begin(struct cuda *c, const char *name)
{
    if (c->profile) c->profile->begin(c, name);
}

void cu_end(struct cuda *c)
{
    if (c->profile) c->profile->end(c);
}
