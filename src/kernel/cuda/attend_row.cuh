/* attend_row.cuh - attention of one token: its query heads against the keys of its sequence,
 * divided among warps and blocks (split-KV decoding).
 *
 * A warp takes pages (KV blocks) of 16 keys. It computes scores transposed, 16 keys by 8 query
 * heads, and sums transposed, dimensions by 8 heads. So the query heads of one KV head fill the N
 * of m16n8k16, K and V are the A operands, and both come from memory as they are stored: a thread's
 * 16 bytes of a row are its share of the fragment, because the order of the summed dimension is
 * free as long as q has the same order.
 *
 * Files: attend_row_type.cuh (types, scores, weights), attend_row_page.cuh (a warp's loop over
 * pages), attend_row_ring.cuh (the same through a ring), attend_row_rope.cuh (rotary embedding in
 * the kernel), attend_row_end.cuh (combining partial results).
 *
 * Measured on an H200, one layer of 32 query and 8 KV heads of 128: 5.5 us with few keys, mostly
 * latencies; with 16,384 keys 17 to 19 us for the loop over 67 MB and 7 us for the end. */
#ifndef TERN_KERNEL_CUDA_ATTEND_ROW_CUH
#define TERN_KERNEL_CUDA_ATTEND_ROW_CUH

#include "kernel/cuda/attend_row_ring.cuh"
#include "kernel/cuda/attend_row_end.cuh"

/* Grid: splits; (KV head, tile of 8 query heads, slice of values); rows. KD, VD: dimensions, at
 * least; L: the KV type; LONG: pages pass through a ring. */
template <int KD, int VD, class L, bool LONG>
__global__ void __launch_bounds__(ROW_WARPS * 32, VD <= 128 ? 2 : 1)
    attend_row(const __grid_constant__ attend_dev a)
{
    extern __shared__ __align__(16) char smem[];
    uint4 *qs = (uint4 *)smem;            /* [KD / 32][32] */
    float2 *q_sums = (float2 *)(qs + KD); /* [KD / 32][ROW_HEADS / 2] */
    char *work = (char *)(q_sums + KD / 32 * (ROW_HEADS / 2));
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    __shared__ uint64_t bars[ROW_WARPS][ROW_STAGES];
    struct row_rotated *rotated = a.rope.pad ? (struct row_rotated *)(smem + a.rotated_at) : NULL;

    cu_release_next();
    if (!a.early) cu_wait_previous();
    int n_rows = a.row_list ? *a.n_rows : a.n_tokens;
    for (int row = blockIdx.z; row < n_rows; row += gridDim.z) {
        /* Rows beyond the grid are not split: there is no memory for their partial results. */
        bool own = row < (int)gridDim.z;
        row_place w;
        row_state<VD> st = {};
        int slice = blockIdx.y % a.n_slices, tile = blockIdx.y / a.n_slices % a.head_tiles;
        if (!own && blockIdx.x > 0) return;
        w.token = a.row_list ? a.row_list[row] : row;
        w.kv_head = blockIdx.y / a.n_slices / a.head_tiles;
        w.head0 = w.kv_head * a.group + tile * ROW_HEADS;
        w.n_heads = min(ROW_HEADS, a.group - tile * ROW_HEADS);
        w.dim0 = slice * ROW_SLICE;
        int seq = a.one_seq ? 0 : a.kv.seq[w.token];
        w.blocks = a.kv.table + (size_t)seq * a.kv.table_stride;
        w.pos = a.kv.pos[w.token];
        w.first = attend_first(a, w.pos);
        if constexpr (!L::ahead) w.last = attend_last(a, w.pos, seq);
        int page0 = a.window > 0 ? w.first / KV_BLOCK : 0,
            pages = row_last<L>(w) / KV_BLOCK + 1 - page0;
        int n_splits = own ? a.n_splits : 1, split = blockIdx.x,
            page = page0 + split * n_warps + warp;
        /* May be a page that this warp does not have; loaded early so as not to wait for pos. */
        int id = page < a.kv.table_stride ? w.blocks[page] : 0;
        int n_active = min(n_splits, (pages + n_warps - 1) / n_warps);
        if (split >= n_active) {
            if (a.early) cu_wait_previous();
            continue;
        }

        int end = page0 + pages, step = n_active * n_warps;
        /* Queries as fragments in shared memory, rotated first if the kernel does that. Called once
         * the first pages are requested. */
        auto stage_q = [&]() {
            const float *q = a.q + (size_t)w.token * a.q_stride + (size_t)w.head0 * a.dk;
            int stride = a.dk;
            if constexpr (L::ahead && KD <= ROTATE_DIM) {
                if (rotated) {
                    row_rotate<L>(a, w, rotated, (pages - 1) % step / n_warps == split, warp,
                                  n_warps, lane);
                    __syncthreads();
                    q = rotated->q[0];
                    stride = ROTATE_DIM;
                }
            }
            for (int c = warp; c < KD / 32; c += n_warps) {
                uint4 f = q_fragment<KD, L>(a, w, q, stride, c, lane >> 2, lane & 3);
                qs[c * 32 + lane] = f;
                if constexpr (L::staged) {
                    float sum = quad_sum(f);
                    if ((lane & 3) == 0)
                        ((float *)q_sums)[c * ROW_HEADS + (lane >> 2)] = -1152.f * sum;
                }
            }
            __syncthreads();
        };
        st.m[0] = st.m[1] = -INFINITY;
        if constexpr (L::staged)
            row_pages_staged<KD, VD, L>(a, w, st, qs, q_sums,
                                        work + warp * 2 * (a.kv.k.head_bytes + a.kv.v.head_bytes),
                                        page, id, end, step, lane, stage_q);
        else if constexpr (LONG)
            row_pages_ring<KD, VD, L>(a, w, st, qs, rotated,
                                      work + warp * a.n_stages *
                                                 (a.kv.k.head_bytes + a.kv.v.head_bytes),
                                      bars[warp], page, end, step, lane, stage_q);
        else if constexpr (L::ahead && KD <= 128)
            row_pages_ahead<KD, VD, L>(a, w, st, qs, rotated, page, id, end, step, lane, stage_q);
        else row_pages<KD, VD, L>(a, w, st, qs, page, id, end, step, lane, stage_q);
        row_finish<VD, L>(a, w, st, (float *)work, row * gridDim.y + blockIdx.y, split, n_active);
        __syncthreads();
    }
}

template <int KD, int VD, class L, bool LONG = false>
static void row_launch(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps,
                       const char *name)
{
    int pages = L::staged ? 2 : a->n_stages;
    size_t stage = (size_t)pages * (size_t)(a->kv.k.head_bytes + a->kv.v.head_bytes);
    size_t sums = (size_t)ROW_HEADS * (VD + 2) * sizeof(float), each = stage > sums ? stage : sums;
    size_t most = c->smem_max - 1024,
           smem = KD * sizeof(uint4) + KD / 32 * ROW_HEADS * sizeof(float);
    size_t rotated = a->rope.pad ? sizeof(struct row_rotated) : 0;
    struct attend_dev b = *a;
    static bool allowed;

    /* Wide heads leave room for fewer warps. */
    while (smem + each * (size_t)warps + rotated > most && warps > 1) warps--;
    smem += each * (size_t)warps;
    b.rotated_at = (int)smem;
    smem += rotated;
    if (smem > 48 * 1024 && !allowed) {
        if (cu_check(c,
                     cudaFuncSetAttribute(attend_row<KD, VD, L, LONG>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most),
                     name) != OK)
            return;
        allowed = true;
    }
    cu_launch(c, name, attend_row<KD, VD, L, LONG>, grid, dim3(warps * 32), smem, b);
}

/* Chooses the kernel for the head size. Rare types have two sizes only. */
template <class L>
static void row_dispatch(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps,
                         const char *name)
{
    int d = a->dk > a->dv ? a->dk : a->dv;

    if constexpr (L::ahead) {
        if (a->n_stages && d <= 64) return row_launch<64, 64, L, true>(c, a, grid, warps, name);
        if (a->n_stages && d <= 128) return row_launch<128, 128, L, true>(c, a, grid, warps, name);
        if (d <= 64) return row_launch<64, 64, L>(c, a, grid, warps, name);
        if (d <= 128) return row_launch<128, 128, L>(c, a, grid, warps, name);
    }
    if constexpr (L::staged) {
        if (a->dk == 64 && a->dv == 64)
            return row_launch<64, 64, row_q8_exact>(c, a, grid, warps, name);
        if (a->dk == 128 && a->dv == 128)
            return row_launch<128, 128, row_q8_exact>(c, a, grid, warps, name);
        if (a->dk == 256 && a->dv == 256)
            return row_launch<256, 256, row_q8_exact>(c, a, grid, warps, name);
    }
    if (a->dk <= 256) row_launch<256, 256, L>(c, a, grid, warps, name);
    else row_launch<1024, 256, L>(c, a, grid, warps, name);
}
#endif
