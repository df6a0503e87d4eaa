/* attend_row_page.cuh - row attention: a warp's loop over its pages, directly from global memory or
 * (Q8_0) through shared memory. */
#ifndef TERN_KERNEL_CUDA_ATTEND_ROW_PAGE_CUH
#define TERN_KERNEL_CUDA_ATTEND_ROW_PAGE_CUH

#include "kernel/cuda/attend_row_rope.cuh"

#include <type_traits>

/* The ALiBi slopes of query heads 2t and 2t + 1, times log2(e). */
__device__ __forceinline__ void row_slopes(const attend_dev &a, const row_place &w, int t,
                                           float slope[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        slope[i] = a.slopes && 2 * t + i < w.n_heads ? a.slopes[w.head0 + 2 * t + i] * LOG2E : 0.f;
}

/* Does a page contain no key of this step? Without `early` the answer does not matter: the kernels
 * before have ended. */
__device__ __forceinline__ bool row_is_old(const attend_dev &a, const row_place &w, int page)
{
    return !a.early || (page + 1) * KV_BLOCK <= w.pos + 1 - a.n_tokens;
}

/* Prefetches a page into the L2 cache. */
__device__ __forceinline__ void row_prefetch(const attend_dev &a, const row_place &w, int block,
                                             int lane)
{
    const char *k = kv_head_at(a.kv.k, block, w.kv_head), *v = kv_head_at(a.kv.v, block, w.kv_head);

    for (int i = lane * 128; i < a.kv.k.head_bytes; i += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(k + i));
    for (int i = lane * 128; i < a.kv.v.head_bytes; i += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(v + i));
}

/* The pages of a warp, `page` and every step-th after it, directly from global memory; the next
 * page's loads are in flight while one is multiplied. rotated: this step's key and value; NULL:
 * they are in their block. stage_q writes the queries to qs while loads are in flight, and ends
 * with a barrier. */
template <int KD, int VD, class L, class Q>
__device__ __forceinline__ void row_pages_ahead(const attend_dev &a, const row_place &w,
                                                row_state<VD> &st, const uint4 *qs,
                                                const struct row_rotated *rotated, int page, int id,
                                                int end, int step, int lane, Q stage_q)
{
    int g = lane >> 2, t = lane & 3, id_next = 0;
    typename L::raw k[KD / 32][2], v[VD / 64][4];
    float slope[2];

    /* K of a page: rows g and g + 8, eight numbers of each 32 dimensions. */
    auto load_k = [&](int block) {
        const char *rows = kv_head_at(a.kv.k, block, w.kv_head) + (size_t)g * a.kv.k.row_bytes;
#pragma unroll
        for (int c = 0; c < KD / 32; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                k[c][i] = L::fetch(a, rows + i * 8 * a.kv.k.row_bytes, 32 * c + 8 * t, a.dk);
    };
    /* V of a page: four keys, eight numbers of each 64 dimensions. Keys outside the row's range
     * become zeros: 0 times a NaN in an unwritten row would be NaN. */
    auto load_v = [&](int block, int key) {
        const char *rows = kv_head_at(a.kv.v, block, w.kv_head);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int kk = v_key<L>(t, i), n = key + kk >= w.first && key + kk <= w.pos ? a.dv : 0;
#pragma unroll
            for (int p = 0; p < VD / 64; p++)
                v[p][i] = L::fetch(a, rows + kk * a.kv.v.row_bytes, w.dim0 + 64 * p + 8 * g, n);
        }
    };
    /* Replaces this step's key and value in the registers: what was loaded for them is not written
     * yet. */
    auto newest = [&]() {
        constexpr int size = sizeof(typename L::raw) / 8;
        const char *kr = (const char *)rotated->k, *vr = (const char *)rotated->v;
        int row = w.pos % KV_BLOCK;
#pragma unroll
        for (int c = 0; c < KD / 32; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (g + 8 * i == row && 32 * c + 8 * t < a.dk)
                    k[c][i] = *(const typename L::raw *)(kr + (32 * c + 8 * t) * size);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int p = 0; p < VD / 64; p++)
                if (v_key<L>(t, i) == row && 64 * p + 8 * g < a.dv)
                    v[p][i] = *(const typename L::raw *)(vr + (64 * p + 8 * g) * size);
    };
    /* Pages of earlier steps are requested before the kernels before this one have ended. */
    bool old = rotated || row_is_old(a, w, page);
    if (page < end) id_next = page + step < end ? w.blocks[page + step] : 0;
    if (page < end && old) {
        load_k(id);
        load_v(id, page * KV_BLOCK);
        if (page + step < end && row_is_old(a, w, page + step)) row_prefetch(a, w, id_next, lane);
    }
    if (a.early) cu_wait_previous();
    if (page < end && !old) {
        load_k(id);
        load_v(id, page * KV_BLOCK);
    }
    row_slopes(a, w, t, slope);
    stage_q();
    for (; page < end; page += step) {
        int after = page + 2 * step < end ? w.blocks[page + 2 * step] : 0;
        bool more = page + step < end;
        float s[4] = { 0.f, 0.f, 0.f, 0.f };
        uint32_t pt[2];
        if (rotated && page == end - 1) newest();
#pragma unroll
        for (int c = 0; c < KD / 32; c++) {
            uint4 x = L::half8(k[c][0]), y = L::half8(k[c][1]), q = qs[c * 32 + lane];
            mma_f16(s, x.x, y.x, x.y, y.y, q.x, q.y);
            mma_f16(s, x.z, y.z, x.w, y.w, q.z, q.w);
        }
        /* K of the next page replaces K of this one, whose scores are done; V follows after the
         * sums. */
        if (more) load_k(id_next);
        row_weights<VD, L>(a, w, st, s, page * KV_BLOCK, slope, g, pt);
#pragma unroll
        for (int p = 0; p < VD / 64; p++) {
            uint4 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = L::half8(v[p][i]);
            row_sum(st.o + 4 * p, x, pt);
        }
        if (more) load_v(id_next, (page + step) * KV_BLOCK);
        id_next = after;
    }
}

/* The same without loads ahead, where registers do not suffice. */
template <int KD, int VD, class L, class Q>
__device__ __forceinline__ void row_pages(const attend_dev &a, const row_place &w,
                                          row_state<VD> &st, const uint4 *qs, int page, int id,
                                          int end, int step, int lane, Q stage_q)
{
    int g = lane >> 2, t = lane & 3;
    float slope[2];

    if (a.early) cu_wait_previous();
    row_slopes(a, w, t, slope);
    stage_q();
    for (; page < end; page += step) {
        int id_next = page + step < end ? w.blocks[page + step] : 0;
        const char *rows = kv_head_at(a.kv.k, id, w.kv_head) + (size_t)g * a.kv.k.row_bytes;
        float s[4] = { 0.f, 0.f, 0.f, 0.f };
        uint32_t pt[2];
#pragma unroll(L::ahead ? 4 : 1)
        for (int c = 0; c < (a.dk + 31) / 32; c++) {
            uint4 x = L::half8(L::fetch(a, rows, 32 * c + 8 * t, a.dk)), q = qs[c * 32 + lane];
            uint4 y = L::half8(L::fetch(a, rows + 8 * a.kv.k.row_bytes, 32 * c + 8 * t, a.dk));
            mma_f16(s, x.x, y.x, x.y, y.y, q.x, q.y);
            mma_f16(s, x.z, y.z, x.w, y.w, q.z, q.w);
        }
        row_weights<VD, L>(a, w, st, s, page * KV_BLOCK, slope, g, pt);
        rows = kv_head_at(a.kv.v, id, w.kv_head);
#pragma unroll
        for (int p = 0; p < VD / 64; p++) {
            uint4 x[4];
#pragma unroll(L::ahead ? 4 : 1)
            for (int i = 0; i < 4; i++) {
                int kk = v_key<L>(t, i), key = page * KV_BLOCK + kk;
                x[i] = L::half8(L::fetch(a, rows + kk * a.kv.v.row_bytes, w.dim0 + 64 * p + 8 * g,
                                         key >= w.first && key <= row_last<L>(w) ? a.dv : 0));
            }
            row_sum(st.o + 4 * p, x, pt);
        }
        id = id_next;
    }
}

/* One page of Q8_0 in shared memory. */
template <int KD, int VD>
__device__ __forceinline__ void q8_page(const attend_dev &a, const row_place &w, row_state<VD> &st,
                                        const uint4 *qs, const char *k, const char *v, int key,
                                        const float slope[2], int lane)
{
    typedef row_q8 L;
    int g = lane >> 2, t = lane & 3;
    float s[4] = { 0.f, 0.f, 0.f, 0.f };
    uint32_t pt[2];

#pragma unroll 2
    for (int c = 0; c < (a.dk + 31) / 32; c++) {
        uint4 x = q8_k(k + row_key<L>(g, 0) * a.kv.k.row_bytes, c, t), q = qs[c * 32 + lane];
        uint4 y = q8_k(k + row_key<L>(g, 1) * a.kv.k.row_bytes, c, t);
        mma_f16(s, x.x, y.x, x.y, y.y, q.x, q.y);
        mma_f16(s, x.z, y.z, x.w, y.w, q.z, q.w);
    }
    row_weights<VD, L>(a, w, st, s, key, slope, g, pt);
#pragma unroll
    for (int p = 0; p < VD / 64; p++) {
        uint4 x[4];
        if (w.dim0 + 64 * p >= a.dv) break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int kk = v_key<L>(t, i);
            x[i] = q8_v(a, v + kk * a.kv.v.row_bytes, w.dim0 + 64 * p + 4 * g,
                        key + kk >= w.first && key + kk <= row_last<L>(w));
        }
        row_sum(st.o + 4 * p, x, pt);
    }
}

/* Four bytes at `at`, plus 128 each. ODD: `at` is aligned to 2 bytes only. */
template <bool ODD> __device__ __forceinline__ uint32_t q8_word(const char *at)
{
    const uint32_t *w = (const uint32_t *)(ODD ? at - 2 : at);
    return (ODD ? __funnelshift_r(w[0], w[1], 16) : w[0]) ^ 0x80808080u;
}

/* The same for exact head sizes. Keys are multiplied 1152 too large (1024 from the exponent, 128
 * from the sign); the score product starts at -1152 times the sum of q instead, and is scaled
 * afterwards. */
template <int KD, int VD>
__device__ __forceinline__ void q8_page_exact(const attend_dev &a, const row_place &w,
                                              row_state<VD> &st, const uint4 *qs,
                                              const float2 *q_sums, const char *k, const char *v,
                                              int key, const float slope[2], int lane)
{
    typedef row_q8_exact L;
    constexpr int k_row = KD / 32 * 34, v_row = VD / 32 * 34;
    const __half2 bias = __half2half2(__ushort_as_half(0x6480));
    int g = lane >> 2, t = lane & 3;
    float s[4] = { 0.f, 0.f, 0.f, 0.f };
    uint32_t pt[2];

#pragma unroll
    for (int c = 0; c < KD / 32; c++) {
        uint4 q = qs[c * 32 + lane];
        float2 from = q_sums[c * 4 + t];
        float part[4] = { from.x, from.y, from.x, from.y };
        uint32_t x[2][4];
        float d[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const char *block = k + row_key<L>(g, h) * k_row + 34 * c;
            d[h] = __half2float(*(const __half *)block);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const char *at = block + 2 + 4 * t + 16 * i;
                uint32_t u = c % 2 ? q8_word<false>(at) : q8_word<true>(at);
                x[h][2 * i] = __byte_perm(u, 0x64646464u, 0x4140);
                x[h][2 * i + 1] = __byte_perm(u, 0x64646464u, 0x4342);
            }
        }
        mma_f16(part, x[0][0], x[1][0], x[0][1], x[1][1], q.x, q.y);
        mma_f16(part, x[0][2], x[1][2], x[0][3], x[1][3], q.z, q.w);
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += d[i >> 1] * part[i];
    }
    row_weights<VD, L>(a, w, st, s, key, slope, g, pt);
    /* Two of row_sum's words at a time: dimensions 4g..4g + 3 of 32. */
#pragma unroll
    for (int b = 0; b < VD / 32; b++) {
        uint32_t n[2][4]; /* [pair of keys][dimension] */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t u[2], paired[2];
            __half d[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int kk = v_key<L>(t, 2 * j + i);
                const char *block = v + kk * v_row + 34 * b;
                bool valid = key + kk >= w.first && key + kk <= row_last<L>(w);
                d[i] = valid ? *(const __half *)block : __ushort_as_half(0);
                u[i] = b % 2 ? q8_word<false>(block + 2 + 4 * g) : q8_word<true>(block + 2 + 4 * g);
            }
            paired[0] = __byte_perm(u[0], u[1], 0x5140);
            paired[1] = __byte_perm(u[0], u[1], 0x7362);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t x = __byte_perm(paired[i >> 1], 0x64646464u, i & 1 ? 0x4342 : 0x4140);
                __half2 y = __hmul2(__hsub2(*reinterpret_cast<__half2 *>(&x), bias),
                                    __halves2half2(d[0], d[1]));
                n[j][i] = *reinterpret_cast<uint32_t *>(&y);
            }
        }
        mma_f16(st.o[2 * b], n[0][0], n[0][1], n[1][0], n[1][1], pt[0], pt[1]);
        mma_f16(st.o[2 * b + 1], n[0][2], n[0][3], n[1][2], n[1][3], pt[0], pt[1]);
    }
}

/* Pages that pass through shared memory: two buffers of K and V at buf, the next page in flight. */
template <int KD, int VD, class L, class Q>
__device__ __forceinline__ void row_pages_staged(const attend_dev &a, const row_place &w,
                                                 row_state<VD> &st, const uint4 *qs,
                                                 const float2 *q_sums, char *buf, int page, int id,
                                                 int end, int step, int lane, Q stage_q)
{
    int t = lane & 3, stage = 0;
    int k_bytes = a.kv.k.head_bytes, v_bytes = a.kv.v.head_bytes;
    float slope[2];

    auto load_page = [&](int at, int block) {
        const char *k = kv_head_at(a.kv.k, block, w.kv_head),
                   *v = kv_head_at(a.kv.v, block, w.kv_head);
        uint32_t to = smem_at(buf + at * (k_bytes + v_bytes));
        for (int i = lane * 16; i < k_bytes; i += 512) copy16(to + i, k + i, 16);
        for (int i = lane * 16; i < v_bytes; i += 512) copy16(to + k_bytes + i, v + i, 16);
    };
    int id_next = page + step < end ? w.blocks[page + step] : 0;
    bool old = row_is_old(a, w, page);
    if (page < end && old) load_page(0, id);
    if (page + step < end && row_is_old(a, w, page + step)) row_prefetch(a, w, id_next, lane);
    if (a.early) cu_wait_previous();
    if (page < end && !old) load_page(0, id);
    copy_commit();
    row_slopes(a, w, t, slope);
    stage_q();
    for (; page < end; page += step, stage ^= 1) {
        int after = page + 2 * step < end ? w.blocks[page + 2 * step] : 0;
        if (page + step < end) load_page(stage ^ 1, id_next);
        copy_commit();
        copy_wait<1>();
        __syncwarp();
        const char *k = buf + stage * (k_bytes + v_bytes), *v = k + k_bytes;
        if constexpr (std::is_same<L, row_q8_exact>::value)
            q8_page_exact<KD, VD>(a, w, st, qs, q_sums, k, v, page * KV_BLOCK, slope, lane);
        else q8_page<KD, VD>(a, w, st, qs, k, v, page * KV_BLOCK, slope, lane);
        __syncwarp();
        id_next = after;
    }
    copy_wait<0>();
}
#endif
