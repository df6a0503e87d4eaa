/* attend_row_page.cuh - a warp's pages, straight from memory or through shared memory. */
#ifndef TERN_KERNEL_CUDA_ATTEND_ROW_PAGE_CUH
#define TERN_KERNEL_CUDA_ATTEND_ROW_PAGE_CUH

#include "kernel/cuda/attend_row_turn.cuh"

#include <type_traits>

__device__ __forceinline__ void row_slopes(const attend_dev &a, const row_place &w, int t,
                                           float slope[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        slope[i] = a.slopes && 2 * t + i < w.n_heads ? a.slopes[w.head0 + 2 * t + i] * LOG2E : 0.f;
}

/* Does a page hold no key of this step? Without `early` it does not matter: all kernels before are
 * done. */
__device__ __forceinline__ bool row_is_old(const attend_dev &a, const row_place &w, int page)
{
    return !a.early || (page + 1) * KV_BLOCK <= w.pos + 1 - a.n_tokens;
}

/* A page on its way to the L2 cache. */
__device__ __forceinline__ void row_prefetch(const attend_dev &a, const row_place &w, int block,
                                             int lane)
{
    const char *k = kv_head_at(a.kv.k, block, w.kv_head), *v = kv_head_at(a.kv.v, block, w.kv_head);

    for (int i = lane * 128; i < a.kv.k.head_bytes; i += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(k + i));
    for (int i = lane * 128; i < a.kv.v.head_bytes; i += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(v + i));
}

/* The pages of a warp, `page` and every step-th after it, straight from memory with the next one
 * under way. turned: this step's key and value, NULL: in their places. stage_q brings the queries
 * to qs while those are under way, and waits for all threads. */
template <int KD, int VD, class L, class Q>
__device__ __forceinline__ void row_pages_ahead(const attend_dev &a, const row_place &w,
                                                row_state<VD> &st, const uint4 *qs,
                                                const struct row_turned *turned, int page, int id,
                                                int end, int step, int lane, Q stage_q)
{
    int g = lane >> 2, t = lane & 3, id_next = 0;
    typename L::raw k[KD / 32][2], v[VD / 64][4];
    float slope[2];

    auto load_k = [&](int block) {
        const char *rows = kv_head_at(a.kv.k, block, w.kv_head) + (size_t)g * a.kv.k.row_bytes;
#pragma unroll
        for (int c = 0; c < KD / 32; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                k[c][i] = L::fetch(a, rows + i * 8 * a.kv.k.row_bytes, 32 * c + 8 * t, a.dk);
    };
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
    auto newest = [&]() {
        constexpr int size = sizeof(typename L::raw) / 8;
        const char *kr = (const char *)turned->k, *vr = (const char *)turned->v;
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
    bool old = turned || row_is_old(a, w, page);
    if (page < end) id_next = page + step < end ? w.blocks[page + step] : 0;
    if (page < end && old) {
        load_k(id);
        load_v(id, page * KV_BLOCK);
        if (page + step < end && row_is_old(a, w, page + step)) row_prefetch(a, w, id_next, lane);
    }
    if (a.early) cu_wait();
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
        if (turned && page == end - 1) newest();
#pragma unroll
        for (int c = 0; c < KD / 32; c++) {
            uint4 x = L::half8(k[c][0]), y = L::half8(k[c][1]), q = qs[c * 32 + lane];
            mma_f16(s, x.x, y.x, x.y, y.y, q.x, q.y);
            mma_f16(s, x.z, y.z, x.w, y.w, q.z, q.w);
        }
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

/* The same where registers do not suffice for that. */
template <int KD, int VD, class L, class Q>
__device__ __forceinline__ void row_pages(const attend_dev &a, const row_place &w,
                                          row_state<VD> &st, const uint4 *qs, int page, int id,
                                          int end, int step, int lane, Q stage_q)
{
    int g = lane >> 2, t = lane & 3;
    float slope[2];

    if (a.early) cu_wait();
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

/* A page of Q8_0 in shared memory. */
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

/* Four bytes at `at`, which lies on 2 (odd) or 4 bytes, with 128 added to each. */
template <bool ODD> __device__ __forceinline__ uint32_t q8_word(const char *at)
{
    const uint32_t *w = (const uint32_t *)(ODD ? at - 2 : at);
    return (ODD ? __funnelshift_r(w[0], w[1], 16) : w[0]) ^ 0x80808080u;
}

/* The same, its heads known exactly. Keys' numbers stay 1152 too large (1024 for the exponent, 128
 * for the sign): the first product begins at -1152 times q's sum instead, and scales come after it.
 */
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
#pragma unroll
    for (int b = 0; b < VD / 32;
         b++) {           /* w of row_sum, two at a time: 4g..4g + 3 of 32 dimensions */
        uint32_t n[2][4]; /* [pair of keys][dimension] */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t u[2], mixed[2];
            __half d[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int kk = v_key<L>(t, 2 * j + i);
                const char *block = v + kk * v_row + 34 * b;
                bool valid = key + kk >= w.first && key + kk <= row_last<L>(w);
                d[i] = valid ? *(const __half *)block : __ushort_as_half(0);
                u[i] = b % 2 ? q8_word<false>(block + 2 + 4 * g) : q8_word<true>(block + 2 + 4 * g);
            }
            mixed[0] = __byte_perm(u[0], u[1], 0x5140);
            mixed[1] = __byte_perm(u[0], u[1], 0x7362);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t x = __byte_perm(mixed[i >> 1], 0x64646464u, i & 1 ? 0x4342 : 0x4140);
                __half2 y = __hmul2(__hsub2(*reinterpret_cast<__half2 *>(&x), bias),
                                    __halves2half2(d[0], d[1]));
                n[j][i] = *reinterpret_cast<uint32_t *>(&y);
            }
        }
        mma_f16(st.o[2 * b], n[0][0], n[0][1], n[1][0], n[1][1], pt[0], pt[1]);
        mma_f16(st.o[2 * b + 1], n[0][2], n[0][3], n[1][2], n[1][3], pt[0], pt[1]);
    }
}

/* Pages that pass through shared memory: two of K and V each at buf, the next one under way. */
template <int KD, int VD, class L, class Q>
__device__ __forceinline__ void row_pages_staged(const attend_dev &a, const row_place &w,
                                                 row_state<VD> &st, const uint4 *qs,
                                                 const float2 *q_sums, char *buf, int page, int id,
                                                 int end, int step, int lane, Q stage_q)
{
    int t = lane & 3, stage = 0;
    int k_bytes = a.kv.k.head_bytes, v_bytes = a.kv.v.head_bytes;
    float slope[2];

    auto bring = [&](int at, int block) {
        const char *k = kv_head_at(a.kv.k, block, w.kv_head),
                   *v = kv_head_at(a.kv.v, block, w.kv_head);
        uint32_t to = smem_at(buf + at * (k_bytes + v_bytes));
        for (int i = lane * 16; i < k_bytes; i += 512) copy16(to + i, k + i, 16);
        for (int i = lane * 16; i < v_bytes; i += 512) copy16(to + k_bytes + i, v + i, 16);
    };
    int id_next = page + step < end ? w.blocks[page + step] : 0;
    bool old = row_is_old(a, w, page);
    if (page < end && old) bring(0, id);
    if (page + step < end && row_is_old(a, w, page + step)) row_prefetch(a, w, id_next, lane);
    if (a.early) cu_wait();
    if (page < end && !old) bring(0, id);
    copy_commit();
    row_slopes(a, w, t, slope);
    stage_q();
    for (; page < end; page += step, stage ^= 1) {
        int after = page + 2 * step < end ? w.blocks[page + 2 * step] : 0;
        if (page + step < end) bring(stage ^ 1, id_next);
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
