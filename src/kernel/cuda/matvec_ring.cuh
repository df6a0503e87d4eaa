/* matvec_ring.cuh - weights on their way: a warp's ring of stages in shared memory. */
#ifndef TERN_KERNEL_CUDA_MATVEC_RING_CUH
#define TERN_KERNEL_CUDA_MATVEC_RING_CUH

#include "kernel/cuda/bulk.cuh"
#include "kernel/cuda/matvec.cuh"

/* Stages of one warp, taken in turn. BULK: a stage is copied in pieces that end at a barrier; else
 * every lane copies pieces of its own. */
template <int STAGE, bool BULK> struct mv_ring {
    uint8_t *base;
    uint32_t bars;       /* of this warp, 8 bytes each */
    int stages, in, out; /* the stage to fill, the one to read */
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
        policy = bulk_policy();
        if (BULK) {
            if (lane == 0) {
                for (int i = 0; i < n; i++) bar_open(bars + 8 * i);
                bar_opened();
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
#if HAS_BULK
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncwarp();
    }
    /* The whole warp: bytes at src into the next stage. */
    __device__ __forceinline__ void put(const uint8_t *src, int bytes, int lane)
    {
        uint32_t to = smem_at(base) + in * STAGE;
#if HAS_BULK
        if (BULK) {
            bulk_whole(to, src, bytes, bars + 8 * in, policy);
        } else
#endif
        {
            for (int o = lane * 16; o < bytes; o += 512) copy16(to + o, src + o, 16);
        }
        put_next();
    }
    /* 16 lines of that many bytes, lane i < 16 knows where line i is; in a stage they stand `line`
     * apart. */
    __device__ __forceinline__ void put_lines(const uint8_t *src, int bytes, int line, int lane)
    {
#if HAS_BULK
        uint32_t bar = bars + 8 * in;
        if (lane == 0) bar_expect(bar, 16 * bytes);
        __syncwarp();
        if (lane < 16) bulk_copy(smem_at(base) + in * STAGE + lane * line, src, bytes, bar, policy);
        put_next();
#endif
        (void)src, (void)bytes, (void)line, (void)lane;
    }
    /* N lines of that many bytes, LINE apart here and `stride` at src; those after the first n are
     * the n-th again. */
    template <int N, int LINE>
    __device__ __forceinline__ void put_rows(const uint8_t *src, int n, size_t stride, int bytes,
                                             int lane)
    {
        uint32_t to = smem_at(base) + in * STAGE;
#if HAS_BULK
        bulk_rows<N, LINE>(to, src, n, stride, bytes, bars + 8 * in, policy);
#else
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane * 16 < bytes)
                copy16(to + i * LINE + lane * 16, src + min(i, n - 1) * stride + lane * 16, 16);
#endif
        put_next();
        (void)lane;
    }
    __device__ __forceinline__ void put_next(void) { in = in + 1 == stages ? 0 : in + 1; }
    /* Ends a put: also where there was nothing more to fill. */
    __device__ __forceinline__ void put_end(void)
    {
        if (!bulk) copy_commit();
    }
    /* The oldest stage, when it has come. */
    __device__ __forceinline__ const uint8_t *get(void)
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
