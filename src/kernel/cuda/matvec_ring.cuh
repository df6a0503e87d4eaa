/* matvec_ring.cuh - a warp's ring of stages in shared memory, a FIFO that weights stream through.
 *
 * push asks for the next stage's bytes, front waits for the oldest stage, pop frees it after all
 * lanes have read it. The warp alone uses its ring: no block-wide barrier is needed. */
#ifndef TERN_KERNEL_CUDA_MATVEC_RING_CUH
#define TERN_KERNEL_CUDA_MATVEC_RING_CUH

#include "kernel/cuda/copy_bulk.cuh"
#include "kernel/cuda/matvec.cuh"

/* BULK: a stage is filled by bulk copies and has an mbarrier (Hopper). Otherwise every lane copies
 * 16 bytes at a time (cp.async), and commit closes a group for every stage. */
template <int STAGE, bool BULK> struct mv_ring {
    uint8_t *base;
    uint32_t bars;       /* the mbarriers of this warp, 8 bytes each */
    int stages, in, out; /* in: the stage to fill; out: the one to read */
    uint32_t phase;
    uint64_t policy;

    static constexpr bool bulk = BULK && HAS_BULK;

    __device__ __forceinline__ void open(uint8_t *mem, uint64_t *barriers, int n, int warp,
                                         int lane)
    {
        stages = n;
        base = mem + warp * STAGE * n;
        bars = smem_at(barriers + warp * MV_STAGES);
        in = out = 0;
        phase = 0;
        policy = 0;
#if HAS_BULK
        policy = l2_evict_first();
        if (BULK) {
            if (lane == 0) {
                for (int i = 0; i < n; i++) bar_init_one(bars + 8 * i);
                bar_publish();
            }
            __syncwarp();
        }
#endif
        (void)lane;
    }
    /* Zeros all stages: bytes that no copy fills must be finite. */
    __device__ __forceinline__ void clear(int lane)
    {
        for (int o = lane * 16; o < STAGE * stages; o += 512)
            *(uint4 *)(base + o) = make_uint4(0, 0, 0, 0);
#if HAS_BULK
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncwarp();
    }
    /* Fills the next stage with `bytes` bytes at src. All lanes call it. */
    __device__ __forceinline__ void push(const uint8_t *src, int bytes, int lane)
    {
        uint32_t to = smem_at(base) + in * STAGE;
#if HAS_BULK
        if (BULK) {
            bulk_copy_warp(to, src, bytes, bars + 8 * in, policy);
        } else
#endif
        {
            for (int o = lane * 16; o < bytes; o += 512) copy16(to + o, src + o, 16);
        }
        advance();
    }
    /* Fills the next stage with 16 rows of `bytes` bytes; lane i < 16 has the address of row i.
     * Rows are `line` bytes apart in the stage. BULK only. */
    __device__ __forceinline__ void push_lines(const uint8_t *src, int bytes, int line, int lane)
    {
#if HAS_BULK
        uint32_t bar = bars + 8 * in;
        if (lane == 0) bar_expect(bar, 16 * bytes);
        __syncwarp();
        if (lane < 16) bulk_copy(smem_at(base) + in * STAGE + lane * line, src, bytes, bar, policy);
        advance();
#endif
        (void)src, (void)bytes, (void)line, (void)lane;
    }
    /* Fills the next stage with N rows of `bytes` bytes, LINE apart in the stage and `stride` apart
     * at src. Rows after the first n are copies of row n - 1. */
    template <int N, int LINE>
    __device__ __forceinline__ void push_rows(const uint8_t *src, int n, size_t stride, int bytes,
                                              int lane)
    {
        uint32_t to = smem_at(base) + in * STAGE;
#if HAS_BULK
        bulk_copy_rows<N, LINE>(to, src, n, stride, bytes, bars + 8 * in, policy);
#else
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane * 16 < bytes)
                copy16(to + i * LINE + lane * 16, src + min(i, n - 1) * stride + lane * 16, 16);
#endif
        advance();
        (void)lane;
    }
    __device__ __forceinline__ void advance(void) { in = in + 1 == stages ? 0 : in + 1; }
    /* Called after every push, and in its place where there is nothing left to push. */
    __device__ __forceinline__ void commit(void)
    {
        if (!bulk) copy_commit();
    }
    /* The oldest stage, once its bytes have arrived. */
    __device__ __forceinline__ const uint8_t *front(void)
    {
#if HAS_BULK
        if (BULK) {
            bar_wait(bars + 8 * out, phase);
        } else
#endif
        {
            copy_wait(stages - 1);
            __syncwarp();
        }
        return base + out * STAGE;
    }
    /* All lanes have read the oldest stage. */
    __device__ __forceinline__ void pop(void)
    {
        __syncwarp();
        if (++out == stages) {
            out = 0;
            phase ^= 1;
        }
    }
};
#endif
