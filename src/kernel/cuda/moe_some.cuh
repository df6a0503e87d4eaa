/* moe_some.cuh - experts' matrix products for sorted choices, up to 8 at a time, weights streamed
 * through rings (some).
 *
 * With few choices for each expert the time is that of reading the chosen experts' weights once. So
 * this is matvec_run.cuh's kernel with another x for each expert: a block has a part of the tiles
 * of one expert, its warps divide them in units of columns, every warp streams its units through a
 * ring of its own and multiplies them with up to 8 tokens, whose x is in shared memory as F16. An
 * expert with more choices is read again for every 8 of them. */
#ifndef TERN_KERNEL_CUDA_MOE_SOME_CUH
#define TERN_KERNEL_CUDA_MOE_SOME_CUH

#include "kernel/cuda/matvec_run.cuh"
#include "kernel/cuda/moe_run.cuh"

#define SOME_WARPS 8
#define SOME_STATIC 1024 /* shared memory beside the dynamic part: the rings' barriers */
#define SOME_TILES 64    /* tiles of a block, at most: its sums are in shared memory */

/* How the blocks of a launch divide an expert's rows, and their shared memory. */
struct some_plan {
    int parts;                          /* blocks of an expert */
    int stages;                         /* of a warp's ring */
    int x_row;                          /* numbers from one token's x to the next */
    int at_x, at_init, at_min, at_part; /* bytes, after the ring */
};

/* The tiles of a block: pairs of a gate and an up tile, or tiles of one weight. */
template <class M> struct some_tiles {
    const uint8_t *w, *up;
    int first, n, blocks, units; /* blocks, units: of a row */
    bool pair;

    /* Unit i of all units of the block, and how many of the format's blocks it has. */
    __device__ __forceinline__ const uint8_t *at(int i, int *count) const
    {
        int k = i / units, u = i - k * units, tile = first + (pair ? k >> 1 : k);

        *count = M::TILES == 1 ? 1 : min(M::TILES, blocks - u * M::TILES);
        return (pair && k & 1 ? up : w) + ((size_t)tile * blocks + u * M::TILES) * M::BYTES;
    }
};

/* x of m choices from `from` on as F16 in shared memory, with the sums that the format needs. A
 * warp has a token, or a part of one. */
template <class M>
__device__ __forceinline__ void some_fill_x(const struct moe_args &a, const struct some_plan &p,
                                            uint8_t *mem, int from, int m)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, parts = SOME_WARPS / m,
        tok = warp / parts, part = warp - tok * parts;
    struct mv_args v;

    if (tok >= m) return;
    v.at_x = p.at_x;
    v.at_low = p.at_x;
    v.x_row = p.x_row;
    v.at_init[0] = v.at_init[1] = p.at_init;
    v.at_min[0] = v.at_min[1] = p.at_min;
    int row = a.sorted ? a.sorted[from + tok] / a.x_each : from + tok;
    const float *x = (const float *)a.x + (size_t)row * a.x_stride;
#pragma unroll 4
    for (int c = 128 * part + 4 * lane; c < a.cols; c += 128 * parts) {
        float4 f = moe_load4(x, c, a.cols, a.vec);
        f.x = fminf(fmaxf(f.x, -65504.f), 65504.f), f.y = fminf(fmaxf(f.y, -65504.f), 65504.f);
        f.z = fminf(fmaxf(f.z, -65504.f), 65504.f), f.w = fminf(fmaxf(f.w, -65504.f), 65504.f);
        mv_store4<M, M>(v, mem, f, c, tok);
    }
}

/* Adds the warps' sums in order and writes the results of m choices from `at` on. */
template <class M>
__device__ __forceinline__ void some_write(const struct moe_args &a, const float *part,
                                           const struct some_tiles<M> &w, int e, int at, int m)
{
    int items = w.pair ? w.n / 2 : w.n;

    for (int i = threadIdx.x; i < items * TILE_ROWS * m; i += 32 * SOME_WARPS) {
        int row = i % TILE_ROWS, tok = i / TILE_ROWS % m, item = i / TILE_ROWS / m;
        int k = w.pair ? 2 * item : item, r = (w.first + item) * TILE_ROWS + row;
        float y = mv_total<SOME_WARPS>(part, k, w.n, w.units, row, tok, m);
        if (r >= a.rows) continue;
        if (w.pair)
            moe_pair(a, e, at + tok, r, y,
                     mv_total<SOME_WARPS>(part, k + 1, w.n, w.units, row, tok, m));
        else moe_single(a, e, at + tok, r, y);
    }
}

/* The products of this warp's units with m tokens; its sums of every tile go to part. */
template <class M, class R>
__device__ __forceinline__ void some_multiply(R &ring, const struct some_plan &p, uint8_t *mem,
                                              const struct some_tiles<M> &w, float *part, int next,
                                              int end, int m)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, count;
    int i = w.n * w.units * warp / SOME_WARPS, tile = i / w.units, u = i - tile * w.units;
    float acc[4] = { 0.f, 0.f, 0.f, 0.f };
    struct mv_view v;

    v.x = v.low = mem + p.at_x + min(g, m - 1) * p.x_row * 2 + t * 16;
    v.init = mem + p.at_init + t * 16;
    v.min = mem + p.at_min + (M::UNIT_K ? (t * 2 + g * 8) * M::MIN_BYTES : t * 8);
    for (; i < end; i++) {
        int n = M::TILES == 1 ? 1 : min(M::TILES, w.blocks - u * M::TILES);
        M::template unit<R::bulk>(acc, ring.front(), n, v, u * M::UNIT, lane);
        ring.pop();
        if (next < end) {
            const uint8_t *src = w.at(next++, &count);
            ring.push(src, count * M::BYTES, lane);
        }
        ring.commit();
        if (++u < w.units && i + 1 < end) continue;
        float *to = part + (warp + tile) * m * TILE_ROWS + g;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int tok = 2 * t + k;
            if (tok >= m) break;
            to[tok * TILE_ROWS] = acc[k];
            to[tok * TILE_ROWS + 8] = acc[k + 2];
        }
        acc[0] = acc[1] = acc[2] = acc[3] = 0.f;
        tile++;
        u = 0;
    }
}

/* Grid: parts, experts. */
template <class M>
static __global__ void __launch_bounds__(32 * SOME_WARPS, 2)
    moe_some(const __grid_constant__ struct moe_args a, const __grid_constant__ struct some_plan p)
{
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ uint64_t bars[SOME_WARPS * MV_STAGES];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, e = a.e0 + (int)blockIdx.y, count;
    int tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
    float *part = (float *)(mem + p.at_part);
    mv_ring<M::STAGE, M::BULK> ring;
    struct some_tiles<M> w;

    cu_release_next();
    w.first = tiles * (int)blockIdx.x / p.parts;
    w.n = tiles * ((int)blockIdx.x + 1) / p.parts - w.first;
    w.pair = a.pair;
    if (w.pair) w.n *= 2;
    w.blocks = a.cols / M::Q::COLS;
    w.units = (a.cols + M::UNIT - 1) / M::UNIT;
    w.w = a.w[0] + (size_t)blockIdx.y * a.step[0];
    w.up = a.w[1] + (size_t)blockIdx.y * a.step[1];
    ring.open(mem, bars, p.stages, warp, lane);
    __syncthreads();
    cu_wait_previous();
    int begin = a.first[e], n = a.first[e + 1] - begin,
        end = w.n * w.units * (warp + 1) / SOME_WARPS;
    for (int at = 0; at < n; at += 8) {
        int m = min(8, n - at), next = w.n * w.units * warp / SOME_WARPS;
        for (int i = 0; i < p.stages; i++) {
            if (next < end) {
                const uint8_t *src = w.at(next++, &count);
                ring.push(src, count * M::BYTES, lane);
            }
            ring.commit();
        }
        some_fill_x<M>(a, p, mem, begin + at, m);
        __syncthreads();
        some_multiply<M>(ring, p, mem, w, part, next, end, m);
        __syncthreads();
        some_write<M>(a, part, w, e, begin + at, m);
        __syncthreads();
    }
}

/* Divides the rows of an expert so that the blocks of `used` experts are on the GPU all at once, two
 * on an SM: a few blocks more would take as long again. If nearly all experts are chosen, some have
 * many more choices than others, and two rounds of shorter blocks even that out. false: x does not fit
 * into shared memory. */
template <class M>
static bool some_plan_of(const struct cuda *c, const struct moe_args *a, int used,
                         struct some_plan *p, size_t *bytes)
{
    int tiles = cu_div_up(a->rows, TILE_ROWS), most = a->pair ? SOME_TILES / 2 : SOME_TILES;
    int rounds = 5 * used > 4 * (a->e1 - a->e0) ? 2 : 1;
    int room = (int)c->smem_max / 2 - SOME_STATIC - 1024, at;

    p->parts = max(1, min(rounds * 2 * c->n_sm / max(used, 1), tiles));
    p->parts = max(p->parts, cu_div_up(tiles, most));
    int each = cu_div_up(tiles, p->parts) * (a->pair ? 2 : 1);
    p->x_row = cu_round_up(a->cols - 32, 64) + 32;
    int x = 8 * p->x_row * 2, init = cu_div_up(a->cols, M::SUB) * 64,
        mins = cu_div_up(a->cols, 32) * 8 * M::MIN_BYTES,
        part = (SOME_WARPS + each) * 8 * TILE_ROWS * 4;
    int ring = SOME_WARPS * M::STAGE, rest = x + init + mins + part;
    p->stages = min((room - rest) / ring, MV_STAGES);
    if (p->stages < 2) p->stages = min(((int)c->smem_max - SOME_STATIC - rest) / ring, MV_STAGES);
    if (p->stages < 2) return false;
    p->at_x = at = p->stages * ring;
    p->at_init = at += x;
    p->at_min = at += init;
    p->at_part = at += mins;
    *bytes = (size_t)(at + part);
    return true;
}

/* used: how many experts are at work, about. false: too little shared memory. */
template <class M>
static bool moe_some_run(struct cuda *c, const char *name, const struct moe_args *a, int used)
{
    static bool raised[64]; /* by device */
    struct some_plan p;
    size_t bytes;

    if (!some_plan_of<M>(c, a, used, &p, &bytes)) return false;
    if (!raised[c->device & 63]) {
        if (cu_check(c,
                     cudaFuncSetAttribute(moe_some<M>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)c->smem_max - SOME_STATIC),
                     name) != OK)
            return true;
        raised[c->device & 63] = true;
    }
    cu_launch(c, name, moe_some<M>, dim3(p.parts, a->e1 - a->e0), dim3(32 * SOME_WARPS), bytes, *a,
              p);
    return true;
}
#endif
