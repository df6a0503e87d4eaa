/* copy.cuh - asynchronous copies from global to shared memory, by each thread (cp.async, sm_80 and
 * later).
 *
 * Copies are committed in groups; a wait lets a number of the latest groups stay in flight. Shared
 * memory is addressed by its 32-bit address (smem_at). */
#ifndef TERN_KERNEL_CUDA_COPY_CUH
#define TERN_KERNEL_CUDA_COPY_CUH

#include "kernel/cuda/cu.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes, of which those from n on become zero. Bypasses L1. */
__device__ __forceinline__ void copy16(uint32_t dst, const void *src, int n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n)
                 : "memory");
}
__device__ __forceinline__ void copy8(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(dst), "l"(src) : "memory");
}
__device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of the latest groups are in flight. */
template <int N> __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* The same for a number known at run time: 1 to 7, anything else waits for all groups. */
__device__ __forceinline__ void copy_wait(int n)
{
    switch (n) {
    case 1: copy_wait<1>(); break;
    case 2: copy_wait<2>(); break;
    case 3: copy_wait<3>(); break;
    case 4: copy_wait<4>(); break;
    case 5: copy_wait<5>(); break;
    case 6: copy_wait<6>(); break;
    case 7: copy_wait<7>(); break;
    default: copy_wait<0>();
    }
}
__device__ __forceinline__ void copy_wait_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}
#endif
#endif
