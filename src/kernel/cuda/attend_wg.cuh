/* attend_wg.cuh - tiles of attention on Hopper, warp-specialized with wgmma (as FlashAttention-3).
 *
 * A block has three warpgroups. Two (consumers) have 64 rows of a tile each; the third (producer)
 * loads keys and values, 128 at a time, as F16 in the swizzled order that wgmma reads: rows of 128
 * bytes (64 dimensions), 16-byte pieces XOR-ed with the row's low bits, three stages. While the
 * weights of one step are computed, the value product of the step before is in flight.
 *
 * The kernel is persistent: as many blocks as SMs; each takes the next tile that no block has, and
 * the producer is a tile ahead of the consumers. Steps (of 128 keys) are counted over all tiles of
 * a block; the stage and the barrier's phase follow from that count. */
#ifndef TERN_KERNEL_CUDA_ATTEND_WG_CUH
#define TERN_KERNEL_CUDA_ATTEND_WG_CUH

#include "kernel/cuda/cu_attend.cuh"

#define WG_KEYS 128
#define WG_ROWS 128
#define WG_THREADS 384
#define WG_ANY (-1) /* any type and alignment */
#define WG_STAGES 3
#define WG_ITEMS 2 /* tiles that the producer has announced */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* ---- instructions ---- */

__device__ __forceinline__ void bar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrives when this thread's cp.async copies so far have completed. */
__device__ __forceinline__ void bar_arrive_copied(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t bar, int parity)
{
    asm volatile("{\n\t.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n\tbra again;\n"
                 "done:\n\t}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
__device__ __forceinline__ void fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The descriptor of a matrix in shared memory, 128-byte swizzle. Rows along the summed dimension
 * (K): groups of eight rows are 1024 bytes apart. Rows across it (V): halves of 64 dimensions are
 * `apart` bytes apart. */
__device__ __forceinline__ uint64_t wg_matrix(uint32_t at, uint32_t apart)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ void wg_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wg_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wg_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from touching registers before wgmma is done with them. */
template <int N> __device__ __forceinline__ void wg_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
#define R32                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
    "25,%26,%27,%28,%29,"                                                                         \
    "%30,%31"
#define R64                                                                                      \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%" \
        "53,%54,%55,%56,%57,"                                                                    \
        "%58,%59,%60,%61,%62,%63"

/* d (64 x 128) = or += a b^T; both in shared memory with rows along the summed dimension. */
__device__ __forceinline__ void wg_scores(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R64
                 "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
                 : F16(0), F16(16), F16(32), F16(48)
                 : "l"(a), "l"(b), "r"(add));
}
/* d += a b; a in registers, b in shared memory with rows across the summed dimension. */
__device__ __forceinline__ void wg_sums(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R64
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : F16(0), F16(16), F16(32), F16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wg_sums(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" R32
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : F16(0), F16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef F4
#undef F16
#undef R32
#undef R64

/* ---- the work of a block ---- */

struct wg_place {
    /* Row r is token + r / heads, query head head0 + r % heads. */
    int token, n_rows, kv_head, head0, heads;
    int pos, last, key0, n_steps;
    const int32_t *blocks;
};

struct wg_smem { /* 32-bit addresses in shared memory */
    uint32_t q, k, v, full_k, full_v, empty_k, empty_v, item_full, item_empty;
    volatile int *item;
};

/* The tile, KV head and part of item i; KV heads and their parts vary fastest. */
__device__ __forceinline__ void wg_place_of(const attend_dev &a, wg_place &w, int item)
{
    int parts = (a.group + a.tile_heads - 1) / a.tile_heads, across = a.kv.n_kv_heads * parts;
    int2 tile = a.tile_list[item / across];
    int part = item % across % parts;

    w.kv_head = item % across / parts;
    w.token = tile.x;
    w.heads = min(a.tile_heads, a.group - part * a.tile_heads);
    w.head0 = w.kv_head * a.group + part * a.tile_heads;
    w.n_rows = tile.y * w.heads;
    w.pos = a.kv.pos[w.token];
    w.last = w.pos + tile.y - 1;
    w.blocks = a.kv.table + (size_t)(a.one_seq ? 0 : a.kv.seq[w.token]) * a.kv.table_stride;
    w.key0 = attend_first(a, w.pos) / KV_BLOCK * KV_BLOCK;
    w.n_steps = (w.last - w.key0) / WG_KEYS + 1;
}

/* The offset of a 16-byte piece: blocks of 64 dimensions, swizzled over 128 bytes. */
__device__ __forceinline__ uint32_t wg_piece(int row, int piece)
{
    return (uint32_t)(piece >> 3) * (WG_KEYS * 128) + row * 128 + (((piece & 7) ^ (row & 7)) << 4);
}

__device__ __forceinline__ void store_16(uint32_t to, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

/* ---- the producer: keys and values ---- */

/* Loads 128 rows from position key on; rows after the last position and dimensions after the last
 * become zeros. */
template <int D, int T>
__device__ __forceinline__ void wg_load(const attend_dev &a, const kv_rows &r, const wg_place &w,
                                        uint32_t to, int key, int thread)
{
    constexpr int pieces = D / 8, per_pass = 128 / pieces, passes = WG_KEYS / per_pass;
    constexpr int at_once = T == DT_F16 ? passes : T == WG_ANY ? 2 : 8;
    int piece = thread % pieces, row0 = thread / pieces, page = key / KV_BLOCK,
        end = w.last / KV_BLOCK;

#pragma unroll(at_once)
    for (int i = 0; i < passes; i++) {
        int row = row0 + i * per_pass;
        bool valid = key + row <= w.last && piece * 8 < r.dim;
        int block = w.blocks[min(page + i * per_pass / KV_BLOCK, end)];
        const char *src = kv_head_at(r, block, w.kv_head) + (size_t)(row % KV_BLOCK) * r.row_bytes;
        if constexpr (T == DT_F16)
            copy16(to + wg_piece(row, piece), valid ? src + piece * 16 : src, valid ? 16 : 0);
        else
            store_16(to + wg_piece(row, piece),
                     kv_eight(T == WG_ANY ? a.kv.type : T, T == WG_ANY ? a.kv.aligned : true, src,
                              piece * 8, valid ? r.dim : 0));
    }
}

/* Signals that K or V of a step has arrived, when it has. */
template <int T> __device__ __forceinline__ void wg_signal_loaded(uint32_t bar)
{
    if constexpr (T == DT_F16) {
        bar_arrive_copied(bar);
    } else {
        fence_async();
        bar_arrive(bar);
    }
}

/* The producer's loop over items. One thread takes an item and announces it to all; -1 ends. A
 * stage of K and one of V are filled separately, so that scores can start before V has arrived. */
template <int D, int T>
__device__ __forceinline__ void wg_producer(const attend_dev &a, const wg_smem &s, int thread)
{
    constexpr uint32_t bytes = WG_KEYS * D * 2;
    int parts = (a.group + a.tile_heads - 1) / a.tile_heads,
        n_items = *a.n_tiles * a.kv.n_kv_heads * parts;

    for (int i = 0, step = 0;; i++) {
        int slot = i % WG_ITEMS, item;
        wg_place w;
        if (i >= WG_ITEMS) bar_wait(s.item_empty + slot * 8, (i / WG_ITEMS & 1) ^ 1);
        if (thread == 0) {
            item = (int)atomicAdd(a.next_tile, 1u);
            s.item[slot] = item < n_items ? item : -1;
            bar_arrive(s.item_full + slot * 8);
        }
        bar_wait(s.item_full + slot * 8, i / WG_ITEMS & 1);
        item = s.item[slot];
        if (item < 0) break;
        wg_place_of(a, w, item);
        for (int j = 0; j < w.n_steps; j++, step++) {
            int stage = step % WG_STAGES, phase = step / WG_STAGES & 1;
            if (step >= WG_STAGES) bar_wait(s.empty_k + stage * 8, phase ^ 1);
            wg_load<D, T>(a, a.kv.k, w, s.k + stage * bytes, w.key0 + j * WG_KEYS, thread);
            wg_signal_loaded<T>(s.full_k + stage * 8);
            if (step >= WG_STAGES) bar_wait(s.empty_v + stage * 8, phase ^ 1);
            wg_load<D, T>(a, a.kv.v, w, s.v + stage * bytes, w.key0 + j * WG_KEYS, thread);
            wg_signal_loaded<T>(s.full_v + stage * 8);
        }
    }
    copy_wait_all();
}

/* ---- the consumers: rows ---- */

/* A warpgroup's 64 rows of queries as F16, swizzled. Rows and dimensions that do not exist are
 * zero. */
template <int D>
__device__ __forceinline__ void wg_queries(const attend_dev &a, const wg_place &w, uint32_t to,
                                           int group, int thread)
{
    for (int i = thread; i < 64 * (D / 8); i += 128) {
        int row = group * 64 + i / (D / 8), piece = i % (D / 8);
        const float *q = a.q + (size_t)(w.token + row / w.heads) * a.q_stride +
                         (size_t)(w.head0 + row % w.heads) * a.dk + piece * 8;
        uint32_t h[4] = { 0, 0, 0, 0 };
        if (row < w.n_rows && piece * 8 < a.dk) {
            float x[8];
            if (a.q_aligned) {
                *(float4 *)x = ((const float4 *)q)[0];
                *(float4 *)(x + 4) = ((const float4 *)q)[1];
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++) x[j] = piece * 8 + j < a.dk ? q[j] : 0.f;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) h[j] = kv_half2(x[2 * j], x[2 * j + 1]);
        }
        store_16(to + wg_piece(row, piece), make_uint4(h[0], h[1], h[2], h[3]));
    }
}

struct wg_rows { /* a thread's rows g and g + 8 of its warp's 16 */
    float m[2], l[2], slope[2];
    int pos[2];
};

/* Scores to weights in place, one step of the online softmax. factor: of the sums so far. */
__device__ __forceinline__ void wg_weights(const attend_dev &a, wg_rows &st, float (&s)[64],
                                           int key, bool masked, int t, float factor[2])
{
    bool plain = a.softcap <= 0.f && !a.slopes;
    float scale = plain ? a.scale : 1.f;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int pos = st.pos[h], first = attend_first(a, pos);
        float best = -INFINITY, sum = 0.f;
        if (!plain || masked) {
#pragma unroll
            for (int n = 0; n < 32; n++) {
                float &x = s[n / 2 * 4 + 2 * h + n % 2];
                int k = key + n / 2 * 8 + 2 * t + n % 2;
                if (!plain) x = attend_score(a, x, st.slope[h], k - pos);
                if (k > pos || k < first) x = -INFINITY;
            }
        }
#pragma unroll
        for (int n = 0; n < 32; n++) best = fmaxf(best, s[n / 2 * 4 + 2 * h + n % 2]);
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        float top = fmaxf(st.m[h], best * scale), base = top == -INFINITY ? 0.f : top;
        factor[h] = exp2_approx(st.m[h] - base);
        st.m[h] = top;
#pragma unroll
        for (int n = 0; n < 32; n++) {
            float &x = s[n / 2 * 4 + 2 * h + n % 2];
            x = exp2_approx(fmaf(x, scale, -base));
            sum += x;
        }
        st.l[h] = st.l[h] * factor[h] + sum;
    }
}

/* Weights as F16: the accumulator's registers are those of the next A operand. */
__device__ __forceinline__ void wg_pack(uint32_t (&p)[32], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        __half2 h = __floats2half2_rn(s[2 * i], s[2 * i + 1]);
        p[i] = *reinterpret_cast<uint32_t *>(&h);
    }
}

/* Divides by the sum of weights and writes a thread's two rows. */
template <int D>
__device__ __forceinline__ void wg_store(const attend_dev &a, const wg_place &w, const wg_rows &st,
                                         const float (&o)[D / 2], int row0, int lane)
{
    int g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = row0 + h * 8 + g, head = w.head0 + row % w.heads;
        float l = quad_sum(st.l[h]);
        if (row >= w.n_rows) continue;
        float *out = a.out + (size_t)(w.token + row / w.heads) * a.out_stride + (size_t)head * a.dv;
        float over = row_inverse_sum(a, head, st.m[h], l);
        bool pair = (((uintptr_t)out | (uintptr_t)(a.dv * 4)) & 7) == 0;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            store_pair(out, n * 8 + 2 * t, a.dv, pair, o[n * 4 + 2 * h] * over,
                       o[n * 4 + 2 * h + 1] * over);
    }
}

/* One tile; its first step is number `step` of the block. */
template <int D>
__device__ __forceinline__ void wg_tile(const attend_dev &a, const wg_place &w, const wg_smem &sm,
                                        int group, int step)
{
    constexpr uint32_t bytes = WG_KEYS * D * 2, half = WG_KEYS * 128;
    int thread = threadIdx.x & 127, lane = thread & 31, g = lane >> 2, t = lane & 3;
    int row0 = group * 64 + (thread >> 5) * 16;
    float s[64], o[D / 2], factor[2];
    uint32_t p[32];
    wg_rows st;

    /* All threads of the warpgroup are done with the queries of the tile before. */
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    wg_queries<D>(a, w, sm.q, group, thread);
    fence_async();
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = min(row0 + h * 8 + g, w.n_rows - 1);
        st.pos[h] = w.pos + row / w.heads;
        st.m[h] = -INFINITY;
        st.l[h] = 0.f;
        st.slope[h] = a.slopes ? a.slopes[w.head0 + row % w.heads] * LOG2E : 0.f;
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0.f;

    /* Starts s = q k^T of step i. */
    auto scores = [&](int i) {
        bar_wait(sm.full_k + i % WG_STAGES * 8, i / WG_STAGES & 1);
        fence_async();
        wg_begin();
#pragma unroll
        for (int ks = 0; ks < D / 16; ks++) {
            uint32_t at = (uint32_t)(ks / 4) * half + ks % 4 * 32;
            wg_scores(s, wg_matrix(sm.q + group * 64 * 128 + at, 0),
                      wg_matrix(sm.k + i % WG_STAGES * bytes + at, 0), ks > 0);
        }
        wg_commit();
    };
    /* Starts o += p v of step i. */
    auto sums = [&](int i) {
        bar_wait(sm.full_v + i % WG_STAGES * 8, i / WG_STAGES & 1);
        fence_async();
        wg_begin();
#pragma unroll
        for (int ks = 0; ks < WG_KEYS / 16; ks++)
            wg_sums(o, p + 4 * ks, wg_matrix(sm.v + i % WG_STAGES * bytes + ks * 2048, half));
        wg_commit();
    };
    /* Does some row of the tile not see all keys of this step? */
    auto masked = [&](int key) {
        return key + WG_KEYS - 1 > w.pos || (a.window > 0 && key < attend_first(a, w.last));
    };
    scores(step);
    wg_wait<0>();
    wg_hold(s);
    if (lane == 0) bar_arrive(sm.empty_k + step % WG_STAGES * 8);
    wg_weights(a, st, s, w.key0, masked(w.key0), t, factor);
    wg_pack(p, s);
    for (int i = 1; i < w.n_steps; i++) {
        int key = w.key0 + i * WG_KEYS;
        /* Scores of this step and sums of the one before are in flight together; the softmax of
         * this step overlaps with the sums. */
        scores(step + i);
        sums(step + i - 1);
        wg_wait<1>();
        wg_hold(s);
        if (lane == 0) bar_arrive(sm.empty_k + (step + i) % WG_STAGES * 8);
        wg_weights(a, st, s, key, masked(key), t, factor);
        wg_wait<0>();
        wg_hold(o);
        if (lane == 0) bar_arrive(sm.empty_v + (step + i - 1) % WG_STAGES * 8);
#pragma unroll
        for (int n = 0; n < D / 2; n++) o[n] *= factor[n >> 1 & 1];
        wg_pack(p, s);
    }
    sums(step + w.n_steps - 1);
    wg_wait<0>();
    wg_hold(o);
    if (lane == 0) bar_arrive(sm.empty_v + (step + w.n_steps - 1) % WG_STAGES * 8);
    wg_store<D>(a, w, st, o, row0, lane);
}

/* A consumer warpgroup's loop over the announced items. */
template <int D>
__device__ __forceinline__ void wg_consumer(const attend_dev &a, const wg_smem &sm, int group)
{
    for (int i = 0, step = 0;; i++) {
        int slot = i % WG_ITEMS;
        wg_place w;
        bar_wait(sm.item_full + slot * 8, i / WG_ITEMS & 1);
        int item = sm.item[slot];
        __syncwarp();
        if ((threadIdx.x & 31) == 0) bar_arrive(sm.item_empty + slot * 8);
        if (item < 0) break;
        wg_place_of(a, w, item);
        wg_tile<D>(a, w, sm, group, step);
        step += w.n_steps;
    }
}
#endif

/* T: the KV type, with aligned rows, or WG_ANY. F16 is copied as it is; other types are converted
 * by the producer. */
template <int D, int T>
__global__ void __launch_bounds__(WG_THREADS, 1) attend_wg(const __grid_constant__ attend_dev a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char smem[];
    constexpr uint32_t bytes = WG_KEYS * D * 2;
    uint32_t base = (smem_at(smem) + 1023) & ~1023u;
    wg_smem s;
    int group = threadIdx.x >> 7;

    s.q = base;
    s.k = s.q + WG_ROWS * D * 2;
    s.v = s.k + WG_STAGES * bytes;
    s.full_k = s.v + WG_STAGES * bytes;
    s.full_v = s.full_k + WG_STAGES * 8;
    s.empty_k = s.full_v + WG_STAGES * 8;
    s.empty_v = s.empty_k + WG_STAGES * 8;
    s.item_full = s.empty_v + WG_STAGES * 8;
    s.item_empty = s.item_full + WG_ITEMS * 8;
    s.item = (volatile int *)(smem + (s.item_empty + WG_ITEMS * 8 - smem_at(smem)));
    if (threadIdx.x == 0) {
        for (int i = 0; i < WG_STAGES; i++) {
            bar_init(s.full_k + i * 8, 128);
            bar_init(s.full_v + i * 8, 128);
            bar_init(s.empty_k + i * 8, 8);
            bar_init(s.empty_v + i * 8, 8);
        }
        for (int i = 0; i < WG_ITEMS; i++) {
            bar_init(s.item_full + i * 8, 1);
            bar_init(s.item_empty + i * 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cu_release_next();
    cu_wait_previous();
    __syncthreads();
    /* The producer gives registers to the consumers: 72 and 216 for each thread instead of 168. */
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        wg_producer<D, T>(a, s, threadIdx.x & 127);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        wg_consumer<D>(a, s, group);
    }
#endif
}

template <int D, int T>
static void wg_launch(struct cuda *c, const struct attend_dev *a, const char *name)
{
    const size_t smem = 1024 + WG_ROWS * D * 2 + 2 * WG_STAGES * WG_KEYS * D * 2 +
                        4 * WG_STAGES * 8 + WG_ITEMS * 20;
    static bool allowed;

    if (!allowed) {
        if (cu_check(c,
                     cudaFuncSetAttribute(attend_wg<D, T>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
                     name) != OK)
            return;
        allowed = true;
    }
    cu_launch(c, name, attend_wg<D, T>, dim3(c->n_sm), dim3(WG_THREADS), smem, *a);
}
#endif
