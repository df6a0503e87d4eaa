/* attend_tile.cuh - attention of consecutive tokens of one sequence, against 64 keys at a time
 * (FlashAttention-2), with mma.sync.
 *
 * A row of a tile is one query head of one token; all query heads of a KV head are in the same
 * tile, so K and V are loaded once for all of them. A block has 4 warps and 64 or 128 rows: each
 * warp has MT times 16 rows, all keys of a step and all dimensions. K and V pass through shared
 * memory in F16, double-buffered. The position of each 16-byte piece is XOR-ed with the row's low
 * bits, so that eight rows of one column are in different banks. */
#ifndef TERN_KERNEL_CUDA_ATTEND_TILE_CUH
#define TERN_KERNEL_CUDA_ATTEND_TILE_CUH

#include "kernel/cuda/cu_attend.cuh"

#define TILE_THREADS 128

/* The offset of a 16-byte piece in a swizzled matrix with rows of D F16 numbers. */
template <int D> __device__ __forceinline__ uint32_t piece_at(int row, int piece)
{
    return (uint32_t)(row * (D / 8) + (piece ^ (row & 7))) * 16;
}

/* Four 8 x 8 matrices of F16, as operands of mma. */
__device__ __forceinline__ void load_4x8x8(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
__device__ __forceinline__ void load_4x8x8_transposed(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

struct tile_place {
    /* Row r is token + r / heads, query head head0 + r % heads. */
    int token, n_rows, kv_head, head0, heads;
    /* Positions of the first and the last token; the last key; tokens of the sequence. */
    int pos, tail, last, end;
    const int32_t *blocks;
};

/* The last key that a token at pos sees. end: tokens of its sequence. */
__device__ __forceinline__ int tile_last(const attend_dev &a, int pos, int end)
{
    return !a.seq_end ? pos : a.window > 0 ? min(end - 1, pos + a.window - 1) : end - 1;
}

/* Loads 64 rows of keys or values from position key on into shared memory; rows after the last
 * position become zeros. ids: their four pages. */
template <int D, bool F16>
__device__ __forceinline__ void tile_load(const attend_dev &a, const kv_rows &r,
                                          const tile_place &w, uint32_t to, const int ids[4],
                                          int key)
{
    constexpr int per_pass = TILE_THREADS / (D / 8), passes = TILE_KEYS / per_pass,
                  at_once = F16 ? passes : 4;
    /* A thread has one piece of every per_pass-th row. */
    int piece = threadIdx.x % (D / 8), row0 = threadIdx.x / (D / 8);

    if (piece * 8 >= r.dim) return;
#pragma unroll(at_once)
    for (int i = 0; i < passes; i++) {
        int row = row0 + i * per_pass;
        bool valid = key + row <= w.last;
        const char *src = kv_head_at(r, ids[i * per_pass / KV_BLOCK], w.kv_head) +
                          (size_t)(row % KV_BLOCK) * r.row_bytes;
        if constexpr (F16) {
            copy16(to + piece_at<D>(row, piece), src + piece * 16, valid ? 16 : 0);
        } else {
            uint4 x = valid ? kv_eight(a.kv.type, a.kv.aligned, src, piece * 8, r.dim)
                            : make_uint4(0, 0, 0, 0);
            asm volatile(
                "st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + piece_at<D>(row, piece)),
                "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                : "memory");
        }
    }
}

/* The block ids of four pages from position key on. */
__device__ __forceinline__ void tile_ids(const tile_place &w, int key, int ids[4])
{
    int page = key / KV_BLOCK, end = w.last / KV_BLOCK;
#pragma unroll
    for (int i = 0; i < 4; i++) ids[i] = w.blocks[min(page + i, end)];
}

/* Queries as F16; rows and dimensions that do not exist become zeros. */
template <int KD, int ROWS, int THREADS = TILE_THREADS>
__device__ __forceinline__ void tile_queries(const attend_dev &a, const tile_place &w, uint32_t to)
{
    for (int i = threadIdx.x; i < ROWS * (KD / 8); i += THREADS) {
        int row = i / (KD / 8), piece = i % (KD / 8);
        const float *q = a.q + (size_t)(w.token + row / w.heads) * a.q_stride +
                         (size_t)(w.head0 + row % w.heads) * a.dk + piece * 8;
        uint32_t h[4] = { 0, 0, 0, 0 };
        if (row < w.n_rows && piece * 8 < a.dk) {
            if (a.q_aligned) {
                float4 x = ((const float4 *)q)[0], y = ((const float4 *)q)[1];
                h[0] = kv_half2(x.x, x.y), h[1] = kv_half2(x.z, x.w);
                h[2] = kv_half2(y.x, y.y), h[3] = kv_half2(y.z, y.w);
            } else {
                int n = a.dk - piece * 8;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    h[j] = kv_half2(2 * j < n ? q[2 * j] : 0.f, 2 * j + 1 < n ? q[2 * j + 1] : 0.f);
            }
        }
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + piece_at<KD>(row, piece)),
                     "r"(h[0]), "r"(h[1]), "r"(h[2]), "r"(h[3])
                     : "memory");
    }
}

/* [16 rows][8 keys][rows g and g + 8, keys 2t and 2t + 1] */
template <int MT, int KEYS = TILE_KEYS> struct tile_scores {
    float s[MT][KEYS / 8][4];
};

/* s = q k^T for the rows of a warp. */
template <int KD, int MT, int KEYS = TILE_KEYS>
__device__ __forceinline__ void tile_scores_of(tile_scores<MT, KEYS> &x, uint32_t q, uint32_t k,
                                               int row0, int lane, int dk)
{
    int r = lane & 7, mi = lane >> 3;

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) x.s[m][n][i] = 0.f;
#pragma unroll(KD <= 256 ? KD / 16 : 4)
    for (int ks = 0; ks < KD / 16; ks++) {
        uint32_t fa[MT][4], fb[4];
        if (ks * 16 >= dk) break;
#pragma unroll
        for (int m = 0; m < MT; m++)
            load_4x8x8(fa[m],
                       q + piece_at<KD>(row0 + m * 16 + (mi & 1) * 8 + r, ks * 2 + (mi >> 1)));
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            load_4x8x8(fb, k + piece_at<KD>(n * 16 + (mi >> 1) * 8 + r, ks * 2 + (mi & 1)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_f16(x.s[m][2 * n], fa[m][0], fa[m][1], fa[m][2], fa[m][3], fb[0], fb[1]);
                mma_f16(x.s[m][2 * n + 1], fa[m][0], fa[m][1], fa[m][2], fa[m][3], fb[2], fb[3]);
            }
        }
    }
}

/* What a thread keeps of its rows g and g + 8 of each 16. */
template <int VD, int MT> struct tile_state {
    float o[MT][VD / 8][4], m[MT][2], l[MT][2], slope[MT][2];
    int pos[MT][2];
};

/* Scores to weights, one step of the online softmax. masked: some row of the tile does not see all
 * of these keys. */
template <int VD, int MT, int KEYS = TILE_KEYS>
__device__ __forceinline__ void tile_weights(const attend_dev &a, tile_state<VD, MT> &st,
                                             tile_scores<MT, KEYS> &x, int key, int end,
                                             bool masked, int t)
{
    /* Without softcap and slopes the scale is folded into the exponent: one multiply-add for each
     * score. */
    bool plain = a.softcap <= 0.f && !a.slopes;

#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int pos = st.pos[m][h], first = attend_first(a, pos), last = tile_last(a, pos, end);
            float top = st.m[m][h], sum = 0.f, scale = plain ? a.scale : 1.f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &s = x.s[m][n][2 * h + i];
                    int k = key + n * 8 + 2 * t + i;
                    if (!plain) s = attend_score(a, s, st.slope[m][h], k - pos);
                    if (masked && (k > last || k < first)) s = -INFINITY;
                }
            float best = -INFINITY;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                best = fmaxf(best, fmaxf(x.s[m][n][2 * h], x.s[m][n][2 * h + 1]));
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
            top = fmaxf(top, best * scale); /* the scale is positive */
            /* A row that has seen no key yet has maximum -inf; base 0 avoids inf - inf. */
            float base = top == -INFINITY ? 0.f : top, f = exp2_approx(st.m[m][h] - base);
            st.m[m][h] = top;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &s = x.s[m][n][2 * h + i];
                    s = exp2_approx(fmaf(s, scale, -base));
                    sum += s;
                }
            st.l[m][h] = st.l[m][h] * f + sum;
#pragma unroll
            for (int n = 0; n < VD / 8; n++) {
                st.o[m][n][2 * h] *= f;
                st.o[m][n][2 * h + 1] *= f;
            }
        }
    }
}

__device__ __forceinline__ uint32_t tile_half2(float a, float b)
{
    __half2 h = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&h);
}

/* o += weights v, for dimensions from dim0 on of rows of D. */
template <int VD, int MT, int KEYS = TILE_KEYS, int D = VD>
__device__ __forceinline__ void tile_sum(tile_state<VD, MT> &st, const tile_scores<MT, KEYS> &x,
                                         uint32_t v, int lane, int dv, int dim0 = 0)
{
    int r = lane & 7, mi = lane >> 3;

#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t p[MT][4], fb[4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            p[m][0] = tile_half2(x.s[m][2 * kk][0], x.s[m][2 * kk][1]);
            p[m][1] = tile_half2(x.s[m][2 * kk][2], x.s[m][2 * kk][3]);
            p[m][2] = tile_half2(x.s[m][2 * kk + 1][0], x.s[m][2 * kk + 1][1]);
            p[m][3] = tile_half2(x.s[m][2 * kk + 1][2], x.s[m][2 * kk + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < VD / 16; n++) {
            if (dim0 + n * 16 >= dv) break;
            load_4x8x8_transposed(
                fb, v + piece_at<D>(kk * 16 + (mi & 1) * 8 + r, dim0 / 8 + n * 2 + (mi >> 1)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_f16(st.o[m][2 * n], p[m][0], p[m][1], p[m][2], p[m][3], fb[0], fb[1]);
                mma_f16(st.o[m][2 * n + 1], p[m][0], p[m][1], p[m][2], p[m][3], fb[2], fb[3]);
            }
        }
    }
}

/* Divides by the sum of weights and writes a warp's rows, dimensions from dim0 on. */
template <int VD, int MT>
__device__ __forceinline__ void tile_store(const attend_dev &a, const tile_place &w,
                                           tile_state<VD, MT> &st, int row0, int lane, int dim0 = 0)
{
    int g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row0 + m * 16 + h * 8 + g, head = w.head0 + row % w.heads;
            float l = quad_sum(st.l[m][h]);
            if (row >= w.n_rows) continue;
            float *out =
                a.out + (size_t)(w.token + row / w.heads) * a.out_stride + (size_t)head * a.dv;
            float over = row_inverse_sum(a, head, st.m[m][h], l);
            bool pair = (((uintptr_t)out | (uintptr_t)(a.dv * 4)) & 7) == 0;
#pragma unroll
            for (int n = 0; n < VD / 8; n++)
                store_pair(out, dim0 + n * 8 + 2 * t, a.dv, pair, st.o[m][n][2 * h] * over,
                           st.o[m][n][2 * h + 1] * over);
        }
}

/* The tile of this block. */
__device__ __forceinline__ void tile_fill_place(const attend_dev &a, tile_place &w)
{
    int2 tile = a.tile_list[blockIdx.y];
    int parts = (a.group + a.tile_heads - 1) / a.tile_heads, part = blockIdx.x % parts;

    w.kv_head = blockIdx.x / parts;
    w.token = tile.x;
    w.heads = min(a.tile_heads, a.group - part * a.tile_heads);
    w.head0 = w.kv_head * a.group + part * a.tile_heads;
    w.n_rows = tile.y * w.heads;
    w.pos = a.kv.pos[w.token];
    w.tail = w.pos + tile.y - 1;
    w.end = a.seq_end ? a.seq_end[a.kv.seq[w.token]] : 0;
    w.last = tile_last(a, w.tail, w.end);
    w.blocks = a.kv.table + (size_t)a.kv.seq[w.token] * a.kv.table_stride;
}

/* Positions, maxima and slopes of a thread's rows. Rows that do not exist are copies of the last. */
template <int VD, int MT>
__device__ __forceinline__ void tile_begin(const attend_dev &a, const tile_place &w,
                                           tile_state<VD, MT> &st, int row0, int g)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = min(row0 + m * 16 + h * 8 + g, w.n_rows - 1);
            st.pos[m][h] = w.pos + row / w.heads;
            st.m[m][h] = -INFINITY;
            st.slope[m][h] = a.slopes ? a.slopes[w.head0 + row % w.heads] * LOG2E : 0.f;
        }
}

/* Grid: (KV head, part of its query heads), tiles. */
template <int KD, int VD, int MT, bool F16>
__global__ void __launch_bounds__(TILE_THREADS, KD <= 128 ? 2 : 1)
    attend_tile(const __grid_constant__ attend_dev a)
{
    constexpr int rows = 64 * MT;
    constexpr uint32_t k_bytes = TILE_KEYS * KD * 2, v_bytes = TILE_KEYS * VD * 2,
                       q_bytes = rows * KD * 2;
    extern __shared__ __align__(128) char smem[];
    uint32_t q = smem_at(smem), kv = q + q_bytes;
    int lane = threadIdx.x & 31, row0 = (threadIdx.x >> 5) * MT * 16, g = lane >> 2, t = lane & 3;
    tile_place w;
    tile_state<VD, MT> st = {};
    int ids[4], stage = 0;

    cu_release_next();
    cu_wait_previous();
    if ((int)blockIdx.y >= *a.n_tiles) return;
    tile_fill_place(a, w);
    int key =
        attend_first(a, w.pos) / TILE_KEYS * TILE_KEYS; /* keys before the window are skipped */
    tile_ids(w, key, ids);
    if (a.dk < KD || a.dv < VD) { /* dimensions that no row fills must be zero */
        for (uint32_t i = threadIdx.x * 16; i < 2 * (k_bytes + v_bytes); i += TILE_THREADS * 16)
            asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(kv + i), "r"(0) : "memory");
        __syncthreads();
    }
    tile_load<KD, F16>(a, a.kv.k, w, kv, ids, key);
    tile_load<VD, F16>(a, a.kv.v, w, kv + k_bytes, ids, key);
    copy_commit();
    if (key + TILE_KEYS <= w.last) tile_ids(w, key + TILE_KEYS, ids);
    tile_queries<KD, rows>(a, w, q);
    tile_begin<VD, MT>(a, w, st, row0, g);
    for (; key <= w.last; key += TILE_KEYS, stage ^= 1) {
        tile_scores<MT> x;
        uint32_t at = kv + stage * (k_bytes + v_bytes),
                 other = kv + (stage ^ 1) * (k_bytes + v_bytes);
        bool masked = key + TILE_KEYS - 1 > tile_last(a, w.pos, w.end) ||
                      (a.window > 0 && key < attend_first(a, w.tail));
        /* One barrier for each step: this stage has arrived, and all warps are done with the other. */
        copy_wait<0>();
        __syncthreads();
        if (key + TILE_KEYS <= w.last) {
            tile_load<KD, F16>(a, a.kv.k, w, other, ids, key + TILE_KEYS);
            tile_load<VD, F16>(a, a.kv.v, w, other + k_bytes, ids, key + TILE_KEYS);
            copy_commit();
            if (key + 2 * TILE_KEYS <= w.last) tile_ids(w, key + 2 * TILE_KEYS, ids);
        }
        tile_scores_of<KD, MT>(x, q, at, row0, lane, a.dk);
        tile_weights<VD, MT>(a, st, x, key, w.end, masked, t);
        tile_sum<VD, MT>(st, x, at + k_bytes, lane, a.dv);
    }
    tile_store<VD, MT>(a, w, st, row0, lane);
}

template <int KD, int VD, int MT, bool F16>
static void tile_launch(struct cuda *c, const struct attend_dev *a, dim3 grid, const char *name)
{
    const size_t smem = 64 * MT * KD * 2 + 2 * TILE_KEYS * (KD + VD) * 2;
    static bool allowed;

    if (!allowed && smem > 48 * 1024) {
        if (cu_check(c,
                     cudaFuncSetAttribute(attend_tile<KD, VD, MT, F16>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
                     name) != OK)
            return;
        allowed = true;
    }
    cu_launch(c, name, attend_tile<KD, VD, MT, F16>, grid, dim3(TILE_THREADS), smem, *a);
}

/* Heads are padded to 64, 128 or 256 dimensions. */
template <bool F16>
static void tile_dispatch(struct cuda *c, const struct attend_dev *a, dim3 grid, const char *name)
{
    int d = a->dk > a->dv ? a->dk : a->dv;

    if (d <= 64) tile_launch<64, 64, 2, F16>(c, a, grid, name);
    else if (d <= 128) tile_launch<128, 128, 2, F16>(c, a, grid, name);
    else tile_launch<256, 256, 1, F16>(c, a, grid, name);
}
#endif
