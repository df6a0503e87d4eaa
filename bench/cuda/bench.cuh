/* bench.cuh - what these programs share: a device without a backend, failures, random numbers. */
#ifndef TERN_BENCH_CUDA_BENCH_CUH
#define TERN_BENCH_CUDA_BENCH_CUH

#include "kernel/cuda/cu.cuh"

extern "C" {
#include "base/rng.h"
}

#include <stdio.h>

static struct cuda cu;
static int n_failed;

static inline bool ok(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess) return true;
    printf("%s: %s\n", what, cudaGetErrorString(rc));
    n_failed++;
    return false;
}

/* The first device as the backend sees it, with a stream; prints its name. */
static inline bool open_device(void)
{
    cudaDeviceProp p;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!ok(cudaSetDevice(0), "device") || !ok(cudaGetDeviceProperties(&p, 0), "properties"))
        return false;
    cu.be.name = "cuda:0";
    cu.cc = p.major * 10 + p.minor;
    cu.n_sm = p.multiProcessorCount;
    cu.smem_max = p.sharedMemPerBlockOptin;
    cu.l2_bytes = (size_t)p.l2CacheSize;
    printf("%s, %d multiprocessors, %zu KB of shared memory\n", p.name, cu.n_sm, cu.smem_max >> 10);
    return ok(cudaStreamCreateWithFlags(&cu.stream, cudaStreamNonBlocking), "stream");
}

/* Waits for everything launched. false: something failed. */
static inline bool wait_all(const char *what)
{
    cudaError_t rc = cudaStreamSynchronize(cu.stream);

    if (rc == cudaSuccess && cu.rc == OK) return true;
    printf("%s: %s %s\n", what, cudaGetErrorString(rc), cu.rc != OK ? cu.msg : "");
    cu.rc = OK;
    n_failed++;
    return false;
}

static inline struct rng *dice(void)
{
    static struct rng r;
    static bool seeded;

    if (!seeded) rng_seed(&r, 11), seeded = true;
    return &r;
}
static inline float unit(void) { return (float)rng_unit(dice()); }
static inline float normal(void) { return rng_normal(dice()); }
static inline int below(int n) { return (int)(rng_u64(dice()) % (uint64_t)n); }
#endif
