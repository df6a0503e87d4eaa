/* matvec_ring.cuh - weights on their way: a warp's ring of stages in shared memory. */
#ifndef TERN_KERNEL_CUDA_MATVEC_RING_CUH
#define TERN_KERNEL_CUDA_MATVEC_RING_CUH

#include "kernel/cuda/copy.cuh"
#include "kernel/cuda/matvec.cuh"

/* Hopper copies a stage with one instruction that ends at a barrier; before that, lanes copy 16 bytes each. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MV_HAS_BULK 1
#else
#define MV_HAS_BULK 0
#endif

#if MV_HAS_BULK
__device__ __forceinline__ uint64_t mv_policy(void)
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
__device__ __forceinline__ void mv_bar_open(uint32_t bar)
{
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mv_bar_opened(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mv_bar_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mv_bulk(uint32_t dst, const void *src, int bytes, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
/* Both, by one lane of a whole warp. */
__device__ __forceinline__ void mv_bulk_whole(uint32_t dst, const void *src, int bytes, uint32_t bar, uint64_t policy)
{
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
                 "@p mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
                 "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;\n}" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void mv_bar_wait(uint32_t bar, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}" ::"r"(bar), "r"(phase) : "memory");
}
#endif

/* Stages of one warp, taken in turn. BULK: a stage is copied in pieces that end at a barrier; else every lane
 * copies pieces of its own. */
template <int STAGE, bool BULK> struct mv_ring {
    uint8_t *base;
    uint32_t bars;                   /* of this warp, 8 bytes each */
    int stages, in, out;             /* the stage to fill, the one to read */
    uint32_t phase;
    uint64_t policy;

    static constexpr bool bulk = BULK && MV_HAS_BULK;

    __device__ __forceinline__ void open(uint8_t *mem, uint64_t *barriers, int n, int warp, int lane)
    {
        stages = n;
        base = mem + warp * STAGE * n;
        bars = smem_at(barriers + warp * MV_STAGES);
        in = out = 0;
        phase = 0;
        policy = 0;
#if MV_HAS_BULK
        policy = mv_policy();
        if (BULK) {
            if (lane == 0) {
                for (int i = 0; i < n; i++)
                    mv_bar_open(bars + 8 * i);
                mv_bar_opened();
            }
            __syncwarp();
        }
#endif
        (void)lane;
    }
    __device__ __forceinline__ void clear(int lane)
    {
        for (int o = lane * 16; o < STAGE * stages; o += 512)
            *(uint4 *)(base + o) = make_uint4(0, 0, 0, 0);
#if MV_HAS_BULK
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncwarp();
    }
    /* The whole warp: bytes at src into the next stage. */
    __device__ __forceinline__ void put(const uint8_t *src, int bytes, int lane)
    {
        uint32_t to = smem_at(base) + in * STAGE;
#if MV_HAS_BULK
        if (BULK) {
            mv_bulk_whole(to, src, bytes, bars + 8 * in, policy);
        } else
#endif
        {
            for (int o = lane * 16; o < bytes; o += 512)
                copy16(to + o, src + o, 16);
        }
        put_next();
    }
    /* 16 lines of that many bytes, lane i < 16 knows where line i is; in a stage they stand `line` apart. */
    __device__ __forceinline__ void put_lines(const uint8_t *src, int bytes, int line, int lane)
    {
#if MV_HAS_BULK
        uint32_t bar = bars + 8 * in;
        if (lane == 0) mv_bar_expect(bar, 16 * bytes);
        __syncwarp();
        if (lane < 16) mv_bulk(smem_at(base) + in * STAGE + lane * line, src, bytes, bar, policy);
        put_next();
#endif
        (void)src, (void)bytes, (void)line, (void)lane;
    }
    /* N lines of that many bytes, LINE apart; lane i < N knows where line i is. */
    template <int N, int LINE> __device__ __forceinline__ void put_rows(const uint8_t *src, int bytes, int lane)
    {
        uint32_t to = smem_at(base) + in * STAGE;
#if MV_HAS_BULK
        uint32_t bar = bars + 8 * in;
        if (lane == 0) mv_bar_expect(bar, N * bytes);
        __syncwarp();
        if (lane < N) mv_bulk(to + lane * LINE, src, bytes, bar, policy);
#else
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint8_t *line = (const uint8_t *)__shfl_sync(~0u, (unsigned long long)src, i);
            if (lane * 16 < bytes) copy16(to + i * LINE + lane * 16, line + lane * 16, 16);
        }
#endif
        put_next();
    }
    __device__ __forceinline__ void put_next(void) { in = in + 1 == stages ? 0 : in + 1; }
    /* Ends a put: also where there was nothing more to fill. */
    __device__ __forceinline__ void put_end(void) { if (!bulk) copy_commit(); }
    /* The oldest stage, when it has come. */
    __device__ __forceinline__ const uint8_t *get(void)
    {
#if MV_HAS_BULK
        if (BULK) {
            mv_bar_wait(bars + 8 * out, phase);
        } else
#endif
        {
            copy_wait(stages - 1);
            __syncwarp();
        }
        return base + out * STAGE;
    }
    /* Has been read by all lanes. */
    __device__ __forceinline__ void drop(void)
    {
        __syncwarp();
        if (++out == stages) {
            out = 0;
            phase ^= 1;
        }
    }
};
#endif
