/* attend_row_ring.cuh - row attention over many pages (Hopper): through a ring in shared memory,
 * several pages in flight.
 *
 * The keys of a head in one page are contiguous, and so are its values: two bulk copies load a
 * page. */
#ifndef TERN_KERNEL_CUDA_ATTEND_ROW_RING_CUH
#define TERN_KERNEL_CUDA_ATTEND_ROW_RING_CUH

#include "kernel/cuda/attend_row_page.cuh"
#include "kernel/cuda/copy_bulk.cuh"

#if HAS_BULK
/* Copies one page of keys and one of values, by one elected lane. All lanes call it. */
__device__ __forceinline__ void bulk_copy_page(uint32_t dst, const char *k, int k_bytes,
                                               const char *v, int v_bytes, uint32_t bar)
{
#define PAGE_COPY "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
                 "@p mbarrier.arrive.expect_tx.shared.b64 _, [%6], %7;\n" PAGE_COPY
                 "[%0], [%1], %2, [%6];\n" PAGE_COPY "[%3], [%4], %5, [%6];\n}" ::"r"(dst),
                 "l"(k), "r"(k_bytes), "r"(dst + k_bytes), "l"(v), "r"(v_bytes), "r"(bar),
                 "r"(k_bytes + v_bytes)
                 : "memory");
#undef PAGE_COPY
}
#endif

/* Writes this step's row into a page in shared memory. */
__device__ __forceinline__ void row_patch(char *page, const uint4 *row, int bytes, int at, int lane)
{
    for (int i = lane * 8; i < bytes; i += 256)
        *(uint2 *)(page + at * bytes + i) = *(const uint2 *)((const char *)row + i);
}

/* One page in shared memory. */
template <int KD, int VD, class L>
__device__ __forceinline__ void row_page(const attend_dev &a, const row_place &w, row_state<VD> &st,
                                         const uint4 *qs, const char *kp, const char *vp, int key,
                                         const float slope[2], int lane)
{
    typedef typename L::raw raw;
    constexpr int size = sizeof(raw) / 8;
    int g = lane >> 2, t = lane & 3;
    float s[4] = { 0.f, 0.f, 0.f, 0.f }, more[4] = { 0.f, 0.f, 0.f, 0.f };
    uint32_t pt[2];

#pragma unroll
    for (int c = 0; c < KD / 32; c++) {
        int d = 32 * c + 8 * t;
        raw r0 = {}, r1 = {};
        if (d < a.dk) {
            r0 = *(const raw *)(kp + g * a.kv.k.row_bytes + d * size);
            r1 = *(const raw *)(kp + (g + 8) * a.kv.k.row_bytes + d * size);
        }
        uint4 x = L::half8(r0), y = L::half8(r1), q = qs[c * 32 + lane];
        mma_f16(s, x.x, y.x, x.y, y.y, q.x, q.y);
        mma_f16(more, x.z, y.z, x.w, y.w, q.z, q.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] += more[i];
    row_weights<VD, L>(a, w, st, s, key, slope, g, pt);
#pragma unroll
    for (int p = 0; p < VD / 64; p++) {
        int d = 64 * p + 8 * g;
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int kk = v_key<L>(t, i);
            raw r = {};
            if (d < a.dv && key + kk >= w.first && key + kk <= w.pos)
                r = *(const raw *)(vp + kk * a.kv.v.row_bytes + d * size);
            x[i] = L::half8(r);
        }
        row_sum(st.o + 4 * p, x, pt);
    }
}

/* As row_pages_ahead. bars: a.n_stages barriers of this warp; buf: as many pages. A block calls it
 * once. */
template <int KD, int VD, class L, class Q>
__device__ __forceinline__ void row_pages_ring(const attend_dev &a, const row_place &w,
                                               row_state<VD> &st, const uint4 *qs,
                                               const struct row_rotated *rotated, char *buf,
                                               uint64_t *bars, int page, int end, int step,
                                               int lane, Q stage_q)
{
#if HAS_BULK
    int k_bytes = a.kv.k.head_bytes, v_bytes = a.kv.v.head_bytes,
        n = page < end ? (end - page + step - 1) / step : 0;
    int ids = lane < n ? w.blocks[page + lane * step] : 0, in_flight = 0, stage = 0,
        first = min(n, a.n_stages);
    uint32_t bar = smem_at(bars), phase = 0;
    float slope[2];

    /* Page i of this warp into its stage. Block ids are loaded 32 at a time, one for each lane. */
    auto load_page = [&](int i) {
        if (i && i % 32 == 0) ids = i + lane < n ? w.blocks[page + (i + lane) * step] : 0;
        int id = __shfl_sync(~0u, ids, i % 32), at = i % a.n_stages;
        bulk_copy_page(smem_at(buf) + at * (k_bytes + v_bytes), kv_head_at(a.kv.k, id, w.kv_head),
                       k_bytes, kv_head_at(a.kv.v, id, w.kv_head), v_bytes, bar + 8 * at);
    };
    if (lane == 0) {
        for (int i = 0; i < a.n_stages; i++) bar_init_one(bar + 8 * i);
        bar_publish();
    }
    __syncwarp();
    for (; in_flight < first && (rotated || row_is_old(a, w, page + in_flight * step)); in_flight++)
        load_page(in_flight);
    if (a.early) cu_wait_previous();
    for (; in_flight < first; in_flight++) load_page(in_flight);
    row_slopes(a, w, lane & 3, slope);
    stage_q();
    for (int i = 0; i < n; i++) {
        char *k = buf + stage * (k_bytes + v_bytes), *v = k + k_bytes;
        int at = page + i * step;
        bar_wait(bar + 8 * stage, phase);
        /* The newest page was copied before this step's row was written. */
        if (rotated && at == end - 1) {
            row_patch(k, rotated->k, a.kv.k.row_bytes, w.pos % KV_BLOCK, lane);
            row_patch(v, rotated->v, a.kv.v.row_bytes, w.pos % KV_BLOCK, lane);
            __syncwarp();
        }
        row_page<KD, VD, L>(a, w, st, qs, k, v, at * KV_BLOCK, slope, lane);
        __syncwarp();
        if (i + a.n_stages < n) load_page(i + a.n_stages);
        if (++stage == a.n_stages) stage = 0, phase ^= 1;
    }
#endif
}
#endif
