/* copy_bulk.cuh - bulk copies from global to shared memory by the copy engine (cp.async.bulk,
 * Hopper and later).
 *
 * One instruction copies up to a whole stage of a ring. Its completion is counted in bytes by an
 * mbarrier: one thread announces how many bytes will arrive (bar_expect), all readers wait for the
 * barrier's phase (bar_wait). Addresses and sizes are multiples of 16. HAS_BULK is 0 where the
 * architecture has no such copies; then these functions do not exist.
 *
 * l2_evict_first marks weights, which a step reads once, as the first to leave the L2 cache. */
#ifndef TERN_KERNEL_CUDA_COPY_BULK_CUH
#define TERN_KERNEL_CUDA_COPY_BULK_CUH

#include "kernel/cuda/copy.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_BULK 1
#else
#define HAS_BULK 0
#endif

#if HAS_BULK
__device__ __forceinline__ uint64_t l2_evict_first(void)
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
/* A barrier that completes with one arrival and its expected bytes. */
__device__ __forceinline__ void bar_init_one(uint32_t bar)
{
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar) : "memory");
}
/* Makes initialized barriers visible to the copy engine. */
__device__ __forceinline__ void bar_publish(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bar_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, int bytes, uint32_t bar,
                                          uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
/* bar_expect and bulk_copy by one elected lane. All lanes of the warp call it. */
__device__ __forceinline__ void bulk_copy_warp(uint32_t dst, const void *src, int bytes,
                                               uint32_t bar, uint64_t policy)
{
    asm volatile(
        "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
        "@p mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
        "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;\n}" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
}
/* A copy by one elected lane, of data that other blocks read too (no eviction hint). bar_expect was
 * called before for all copies together. All lanes of the warp call it. */
__device__ __forceinline__ void bulk_copy_expected(uint32_t dst, const void *src, int bytes,
                                                   uint32_t bar)
{
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
                 "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];\n}" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
}
/* As bulk_copy_warp, of N rows that are `stride` bytes apart in global and LINE in shared memory.
 * Rows after the first n are copies of row n - 1. */
template <int N, int LINE>
__device__ __forceinline__ void bulk_copy_rows(uint32_t dst, const uint8_t *src, int n,
                                               size_t stride, int bytes, uint32_t bar,
                                               uint64_t policy)
{
    static_assert(N == 4, "written for four");
    const uint8_t *s1 = src + (n > 1 ? stride : 0), *s2 = s1 + (n > 2 ? stride : 0),
                  *s3 = s2 + (n > 3 ? stride : 0);
#define LINE_COPY \
    "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
                 "@p mbarrier.arrive.expect_tx.shared.b64 _, [%9], %8;\n" LINE_COPY
                 "[%0], [%4], %10, [%9], %11;\n" LINE_COPY "[%1], [%5], %10, [%9], %11;\n" LINE_COPY
                 "[%2], [%6], %10, [%9], %11;\n" LINE_COPY
                 "[%3], [%7], %10, [%9], %11;\n}" ::"r"(dst),
                 "r"(dst + LINE), "r"(dst + 2 * LINE), "r"(dst + 3 * LINE), "l"(src), "l"(s1),
                 "l"(s2), "l"(s3), "r"(N * bytes), "r"(bar), "r"(bytes), "l"(policy)
                 : "memory");
#undef LINE_COPY
}
/* Waits for the phase with this parity to complete. */
__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
}
#endif
#endif
