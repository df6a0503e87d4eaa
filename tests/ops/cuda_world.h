/* cuda_world.h - opens the GPU backend and the reference backend for tests; a test is skipped
 * without a GPU. */
#ifndef TERN_TESTS_OPS_CUDA_WORLD_H
#define TERN_TESTS_OPS_CUDA_WORLD_H

#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* True for every TERN_THIN-th call (default: for every call). Slow tools such as compute-
 * sanitizer set TERN_THIN=11 to run only every eleventh of many similar cases. */
static inline bool is_selected(void)
{
    static int n, step;
    const char *s = step ? NULL : getenv("TERN_THIN");

    if (!step) step = s && atoi(s) > 1 ? atoi(s) : 1;
    return n++ % step == 0;
}

/* Opens the GPU backend from the library beside the tests, unless TERN_CUDA_LIB names another. */
static inline int cuda_try(struct backend **be, struct err *e)
{
    const char *build = getenv("TERN_BUILD");
    char path[1024];

    snprintf(path, sizeof path, "%s/tern-cuda.so", build ? build : "build");
    if (!getenv("TERN_CUDA_LIB")) setenv("TERN_CUDA_LIB", path, 1);
    return backend_open(be, &(struct backend_opt){ .device = "cuda" }, e);
}

/* Opens the GPU backend, or skips the running test if there is no library or no device. */
static inline struct backend *cuda_open(void)
{
    struct backend *be = NULL;
    struct err e = { 0 };

    if (cuda_try(&be, &e) == OK) return be;
    print_message("skipped: %s\n", e.msg);
    skip();
    return NULL;
}

static inline struct backend *reference_open(void)
{
    struct backend *be = NULL;
    struct err e = { 0 };

    if (backend_open(&be, &(struct backend_opt){ .reference = true }, &e) != OK)
        fail_msg("%s", e.msg);
    return be;
}

/* Waits for all operations of the backend and fails the test if one of them failed. */
static inline void sync_backend(struct backend *be)
{
    struct err e = { 0 };
    if (be->sync(be, &e) != OK) fail_msg("%s", e.msg);
}

static inline void *device_copy(struct backend *be, const void *src, size_t bytes)
{
    struct err e = { 0 };
    void *p = NULL;

    if (be->alloc(be, &p, bytes, MEM_SCRATCH, &e) != OK) fail_msg("%s", e.msg);
    be->put(be, p, src, bytes);
    sync_backend(be);
    return p;
}

/* Relative error of a vector: the largest absolute difference divided by the size of the wanted
 * values, where that size is taken as at least `least`. Infinite if a value is NaN or infinite. */
static inline double error_of(const float *got, const float *want, size_t n, double least)
{
    double d = 0, w = (double)n * least * least;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) return INFINITY;
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += (double)want[i] * want[i];
    }
    return w > 0 ? sqrt(d / w) : d > 0 ? INFINITY : 0;
}
#endif
