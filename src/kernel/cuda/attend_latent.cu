/* attend_latent.cu - attention over latents (multi-head latent attention, MLA), consecutive tokens
 * of one sequence against 32 latents at a time.
 *
 * As attend_tile.cuh, for rows so wide (576 dimensions) that a warp can hold the sums of half of
 * them only. A tile has 64 rows and 8 warps, two for every 16 rows. Both compute all scores of
 * their rows, and each sums its half of the values. Values are the first 512 numbers of the keys,
 * so one load serves both products. */
#include "kernel/cuda/attend_tile.cuh"

#define DIM LATENT_DIM
#define HALF 256
#define KEYS 32
#define ROWS LATENT_ROWS
#define THREADS 256
#define STAGE (KEYS * DIM * 2)

static_assert(2 * HALF >= LATENT_DIM_V && DIM % 64 == 0, "two warps have all values");

/* Pieces of 8 numbers that no row has, and rows after the last position, become zeros. */
template <bool F16>
static __device__ __forceinline__ void latent_load(const attend_dev &a, const tile_place &w,
                                                   uint32_t to, int key)
{
    constexpr int pieces = DIM / 8;
    const kv_rows &r = a.kv.k;

#pragma unroll(F16 ? 3 : 1)
    for (int i = threadIdx.x; i < KEYS * pieces; i += THREADS) {
        int row = i / pieces, piece = i % pieces, pos = key + row;
        bool valid = pos <= w.last && piece * 8 < r.dim;
        const char *src = kv_head_at(r, w.blocks[min(pos, w.last) / KV_BLOCK], w.kv_head) +
                          (size_t)(pos % KV_BLOCK) * r.row_bytes;
        if constexpr (F16) {
            copy16(to + piece_at<DIM>(row, piece), src + (valid ? piece * 16 : 0), valid ? 16 : 0);
        } else {
            uint4 x = valid ? kv_eight(a.kv.type, a.kv.aligned, src, piece * 8, r.dim)
                            : make_uint4(0, 0, 0, 0);
            asm volatile(
                "st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + piece_at<DIM>(row, piece)),
                "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                : "memory");
        }
    }
}

/* Grid: (KV head, part of its query heads), tiles. */
template <bool F16>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_latent(const __grid_constant__ attend_dev a)
{
    extern __shared__ __align__(128) char smem[];
    uint32_t q = smem_at(smem), k = q + ROWS * DIM * 2;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row0 = (warp & 3) * 16,
        dim0 = (warp >> 2) * HALF;
    int g = lane >> 2, t = lane & 3, stage = 0;
    tile_place w;
    tile_state<HALF, 1> st = {};

    cu_release_next();
    cu_wait_previous();
    if ((int)blockIdx.y >= *a.n_tiles) return;
    tile_fill_place(a, w);
    int key = attend_first(a, w.pos) / KEYS * KEYS;
    latent_load<F16>(a, w, k, key);
    copy_commit();
    tile_queries<DIM, ROWS, THREADS>(a, w, q);
    tile_begin<HALF, 1>(a, w, st, row0, g);
    /* As attend_tile: double-buffered, one barrier for each step. */
    for (; key <= w.last; key += KEYS, stage ^= 1) {
        tile_scores<1, KEYS> x;
        bool masked = key + KEYS - 1 > w.pos || (a.window > 0 && key < attend_first(a, w.tail));
        copy_wait<0>();
        __syncthreads();
        if (key + KEYS <= w.last) {
            latent_load<F16>(a, w, k + (stage ^ 1) * STAGE, key + KEYS);
            copy_commit();
        }
        tile_scores_of<DIM, 1, KEYS>(x, q, k + stage * STAGE, row0, lane, a.dk);
        tile_weights<HALF, 1, KEYS>(a, st, x, key, w.end, masked, t);
        tile_sum<HALF, 1, KEYS, DIM>(st, x, k + stage * STAGE, lane, a.dv, dim0);
    }
    tile_store<HALF, 1>(a, w, st, row0, lane, dim0);
}

/* Queries, and two stages of latents. */
static size_t latent_smem(void) { return ROWS * DIM * 2 + 2 * STAGE; }

bool attend_latent_can(const struct cuda *c, const struct attend_dev *a)
{
    return a->kv.v_in_k && a->dk <= DIM && a->dv <= LATENT_DIM_V && !a->seq_end &&
           c->smem_max >= latent_smem();
}

template <bool F16>
static void latent_launch(struct cuda *c, const struct attend_dev *a, dim3 grid, const char *name)
{
    static bool allowed;

    if (!allowed && cu_check(c,
                             cudaFuncSetAttribute(attend_latent<F16>,
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  (int)latent_smem()),
                             name) != OK)
        return;
    allowed = true;
    cu_launch(c, name, attend_latent<F16>, grid, dim3(THREADS), latent_smem(), *a);
}

void attend_latents(struct cuda *c, const struct attend_dev *a, dim3 grid)
{
    if (a->kv.type == DT_F16 && a->kv.aligned)
        latent_launch<true>(c, a, grid, "attend latents f16");
    else latent_launch<false>(c, a, grid, "attend latents any");
}
