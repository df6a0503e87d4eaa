/* cu_linear_heads.cu - one matrix for each head (cu_linear_heads): the absorbed projections of
 * latent attention (MLA).
 *
 * Weights are the A operand of the tensor cores, as in moe_run.cuh. A warp has 32 rows of a head
 * and up to 8 GROUPS tokens, whose x goes from F32 in global memory directly to registers. */
#include "kernel/cuda/tile_group.cuh"
#include "kernel/cuda/moe_run.cuh"

#define WARPS 4

struct heads_dev {
    const uint8_t *w;
    size_t step; /* bytes from one head's matrix to the next */
    int rows, cols, n_tokens;
    const float *x;
    float *out;
    size_t x_stride, out_stride;
    int x_step, out_step, tail;
    bool vec; /* x is read 16 bytes at a time */
};

/* Writes a tile's sums: rows g and g + 8 of tokens 2t and 2t + 1. */
static __device__ __forceinline__ void heads_store(const heads_dev &a, float *out,
                                                   const float (&s)[4], int row, int token)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = row + i / 2 * 8, t = token + i % 2;
        if (r < a.rows && t < a.n_tokens) out[(size_t)t * a.out_stride + r] = s[i];
    }
}

/* Copies the `tail` numbers after each head's input, for the block's tokens. */
static __device__ __forceinline__ void heads_tail(const heads_dev &a, const float *x, float *out,
                                                  int token0, int n)
{
    for (int i = threadIdx.x; i < n * a.tail; i += blockDim.x) {
        int t = token0 + i / a.tail, c = i % a.tail;
        out[(size_t)t * a.out_stride + a.rows + c] = x[(size_t)t * a.x_stride + a.cols + c];
    }
}

/* Adds the sums of all warps to those of the first. */
static __device__ __forceinline__ void heads_join(float (&s0)[4], float (&s1)[4], int warp,
                                                  int lane)
{
    __shared__ float part[WARPS - 1][8][32];

#pragma unroll
    for (int i = 0; i < 8; i++)
        if (warp > 0) part[warp - 1][i][lane] = i < 4 ? s0[i & 3] : s1[i & 3];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++)
        for (int w = 0; w < WARPS - 1 && warp == 0; w++)
            (i < 4 ? s0[i & 3] : s1[i & 3]) += part[w][i][lane];
}

/* Grid: rows, heads, tokens. SPLIT: the warps of a block divide the columns of the same rows, for
 * few tokens. */
template <class W, int GROUPS, bool SPLIT>
static __global__ void __launch_bounds__(32 * WARPS) heads_run(const __grid_constant__ heads_dev a)
{
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, head = blockIdx.y,
        token0 = blockIdx.z * 8 * GROUPS;
    int warp = threadIdx.x >> 5, t0 = 2 * (SPLIT ? blockIdx.x : blockIdx.x * WARPS + warp);
    int units = (a.cols + W::UNIT - 1) / W::UNIT, end = SPLIT ? units * (warp + 1) / WARPS : units;
    int n = min(8 * GROUPS, a.n_tokens - token0);
    const uint8_t *w = a.w + (size_t)head * a.step;
    const float *x = a.x + (size_t)head * a.x_step;
    float *out = a.out + (size_t)head * a.out_step;
    float s0[GROUPS][4] = {}, s1[GROUPS][4] = {};
    W w0, w1;

    cu_release_next();
    cu_wait_previous();
    if (a.tail && blockIdx.x == 0) heads_tail(a, x, out, token0, n);
    if (t0 * TILE_ROWS >= a.rows) return;
    w0.open(w, a.rows, a.cols, t0, lane);
    w1.open(w, a.rows, a.cols, t0 + 1, lane);
#pragma unroll(W::UNIT == 32 && GROUPS == 1 ? 4 : 1)
    for (int u = SPLIT ? units * warp / WARPS : 0; u < end; u++)
        W::unit(w0, w1, u, lane, [&](int c, const uint32_t(&a0)[2][4], const uint32_t(&a1)[2][4]) {
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                if (8 * j >= n) break;
                const float *row = x + (size_t)(token0 + min(8 * j + g, n - 1)) * a.x_stride;
                float4 lo = moe_load4(row, c + (W::NATURAL ? 8 * t : 4 * t), a.cols, a.vec);
                float4 hi =
                    moe_load4(row, c + (W::NATURAL ? 8 * t + 4 : 4 * t + 16), a.cols, a.vec);
                uint32_t b[4] = { moe_half2(lo.x, lo.y), moe_half2(lo.z, lo.w),
                                  moe_half2(hi.x, hi.y), moe_half2(hi.z, hi.w) };
                moe_mma(s0[j], a0[0], b[0], b[1]);
                moe_mma(s1[j], a1[0], b[0], b[1]);
                moe_mma(s0[j], a0[1], b[2], b[3]);
                moe_mma(s1[j], a1[1], b[2], b[3]);
            }
        });
    if constexpr (SPLIT) {
        heads_join(s0[0], s1[0], warp, lane);
        if (warp > 0) return;
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        heads_store(a, out, s0[j], t0 * TILE_ROWS + g, token0 + 8 * j + 2 * t);
        heads_store(a, out, s1[j], (t0 + 1) * TILE_ROWS + g, token0 + 8 * j + 2 * t);
    }
}

/* More than 8 tokens: 32 at a time. Few tokens and many columns: the warps divide the columns. */
template <class W> static void heads_launch(struct cuda *c, const struct heads_dev *a, int n_heads)
{
    int tiles = (a->rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    dim3 grid((tiles + WARPS - 1) / WARPS, n_heads), block(32 * WARPS);

    if (a->n_tokens > 8) {
        grid.z = (a->n_tokens + 31) / 32;
        cu_launch(c, "heads", heads_run<W, 4, false>, grid, block, 0, *a);
    } else if (a->cols > a->rows && a->cols >= WARPS * W::UNIT) {
        grid.x = tiles;
        cu_launch(c, "heads", heads_run<W, 1, true>, grid, block, 0, *a);
    } else {
        cu_launch(c, "heads", heads_run<W, 1, false>, grid, block, 0, *a);
    }
}

/* w->n matrices of the same shape, one for each head, contiguous on the device. */
void cu_linear_heads(struct cuda *c, const struct tensor *out, const struct tensor *x,
                     const struct linear_heads_opt *opt)
{
    const struct weight *w = opt->w;
    struct heads_dev a = {};
    int n = w->n ? w->n : 1;

    if (cu_order_id(w)) {
        cu_fail(c, E_UNSUPPORTED, "%s: matrices of heads whose columns are in another order",
                c->be.name);
        return;
    }
    a.w = (const uint8_t *)w->packed;
    a.step = layout_matrix_bytes(cu_type(w), w->rows, w->cols);
    a.rows = w->rows;
    a.cols = w->cols;
    a.n_tokens = x->rows;
    a.x = (const float *)x->data;
    a.out = (float *)out->data;
    a.x_stride = x->stride;
    a.out_stride = out->stride;
    a.x_step = opt->x_step;
    a.out_step = opt->out_step;
    a.tail = opt->tail;
    a.vec = (uintptr_t)x->data % 16 == 0 && x->stride % 4 == 0 && opt->x_step % 4 == 0;
    switch (layout_type(cu_type(w))) {
    case DT_F32: heads_launch<moe_rows<DT_F32>>(c, &a, n); break;
    case DT_BF16: heads_launch<moe_rows<DT_BF16>>(c, &a, n); break;
    case DT_Q4_0: heads_launch<moe_tiles<DT_Q4_0>>(c, &a, n); break;
    case DT_Q4_1: heads_launch<moe_tiles<DT_Q4_1>>(c, &a, n); break;
    case DT_Q5_0: heads_launch<moe_tiles<DT_Q5_0>>(c, &a, n); break;
    case DT_Q5_1: heads_launch<moe_tiles<DT_Q5_1>>(c, &a, n); break;
    case DT_Q8_0: heads_launch<moe_tiles<DT_Q8_0>>(c, &a, n); break;
    case DT_IQ4_NL: heads_launch<moe_tiles<DT_IQ4_NL>>(c, &a, n); break;
    case DT_MXFP4: heads_launch<moe_tiles<DT_MXFP4>>(c, &a, n); break;
    case DT_Q2_K: heads_launch<moe_tiles<DT_Q2_K>>(c, &a, n); break;
    case DT_Q3_K: heads_launch<moe_tiles<DT_Q3_K>>(c, &a, n); break;
    case DT_Q4_K: heads_launch<moe_tiles<DT_Q4_K>>(c, &a, n); break;
    case DT_Q5_K: heads_launch<moe_tiles<DT_Q5_K>>(c, &a, n); break;
    case DT_Q6_K: heads_launch<moe_tiles<DT_Q6_K>>(c, &a, n); break;
    case DT_IQ4_XS: heads_launch<moe_tiles<DT_IQ4_XS>>(c, &a, n); break;
    case LAYOUT_U4: heads_launch<moe_tiles<LAYOUT_U4>>(c, &a, n); break;
    case LAYOUT_U4_64: heads_launch<moe_tiles<LAYOUT_U4_64>>(c, &a, n); break;
    case LAYOUT_U4_32: heads_launch<moe_tiles<LAYOUT_U4_32>>(c, &a, n); break;
    case LAYOUT_U8: heads_launch<moe_tiles<LAYOUT_U8>>(c, &a, n); break;
    case LAYOUT_U2: heads_launch<moe_tiles<LAYOUT_U2>>(c, &a, n); break;
    case LAYOUT_U2_ONE: heads_launch<moe_tiles<LAYOUT_U2_ONE>>(c, &a, n); break;
    case LAYOUT_E2M1_16: heads_launch<moe_tiles<LAYOUT_E2M1_16>>(c, &a, n); break;
    case LAYOUT_E4M3: heads_launch<moe_tiles<LAYOUT_E4M3>>(c, &a, n); break;
    case LAYOUT_E4M3_64: heads_launch<moe_tiles<LAYOUT_E4M3_64>>(c, &a, n); break;
    default: heads_launch<moe_rows<DT_F16>>(c, &a, n);
    }
}
