/* cu_attend.cuh - attention: the arguments of its kernels, and what they share.
 *
 * All kernels use the online softmax (FlashAttention): scores are exponents of two, a running
 * maximum and a running sum of weights are kept, and sums are rescaled when the maximum grows. A
 * token is processed in one of two ways:
 *
 * - As a row (attend_row.cuh), for decoding: for each KV head the keys of its sequence are divided
 * among warps and blocks (split-KV, FlashDecoding), and their partial results are combined at the
 * end.
 *
 * - As part of a tile (attend_tile.cuh, on Hopper attend_wg.cuh, latents attend_latent.cu), for
 * prompts: consecutive tokens of a sequence, with all query heads of a KV head, against 64 or 128
 * keys at a time.
 *
 * The host does not know where sequences start in a batch, so a kernel (attend_plan) decides on the
 * device which tokens are rows and which are tiles. Launches are therefore the same for all steps
 * of one shape, and a graph can replay them. */
#ifndef TERN_KERNEL_CUDA_CU_ATTEND_CUH
#define TERN_KERNEL_CUDA_CU_ATTEND_CUH

#include "kernel/cuda/rope_kv.cuh"

#define ROW_HEADS 8   /* query heads of a block of rows: the N of m16n8k16 */
#define ROW_WARPS 8   /* warps of a block, at most: it fills half of an SM */
#define ROW_STAGES 3  /* pages that a warp has in flight, at most */
#define ROW_LONG 256  /* pages of a row from which on they pass through a ring */
#define ROW_SLICE 256 /* dimensions of values that a block has, at most */
/* Floats of one partial result in memory: fragments as threads hold them, then maxima and sums of
 * weights. */
#define ROW_PART (ROW_SLICE / 16 * 128 + 2 * ROW_HEADS)
#define TILE_KEYS 64
#define TILE_LEAST 8      /* consecutive tokens that are worth a tile */
#define PLAN_TOKENS 65536 /* tokens of a step, at most, for attend_plan */

struct attend_dev {
    struct kv_dev kv;
    const float *q;
    float *out;
    size_t q_stride, out_stride;
    int n_tokens, group, dk, dv;
    float scale, softcap; /* scale times log2(e); with a softcap, the scale of its argument */
    float cap_log2;       /* softcap times log2(e) */
    int window;           /* keys that a token sees up to itself, itself included; 0: all */
    int chunk; /* positions of a chunk: a token sees its own only, and window is the same; 0: none */
    /* NULL: causal; otherwise tokens of each sequence, and the window applies to later keys too */
    const int32_t *seq_end;
    const float *sinks, *slopes;
    bool q_aligned; /* rows of q can be read 16 bytes at a time */
    /* rows: */
    int n_splits, head_tiles, n_slices;
    bool one_seq;   /* the batch has one sequence: row 0 of the table */
    bool early;     /* keys of earlier steps may be fetched before cu_wait_previous */
    int n_stages;   /* pages in flight of a warp, through a ring; 0: one page ahead, in registers */
    float *part;    /* [unit][split] */
    unsigned *done; /* [unit] splits that have finished; 0 between launches */
    const int *row_list, *n_rows; /* tokens that are rows; NULL: every token */
    /* pad 0: q, k and v are final. Otherwise the kernel also does this rope_kv, for one token. */
    struct rope_dev rope;
    int rotated_at; /* offset of struct row_rotated in shared memory */
    /* tiles: */
    const int2 *tile_list;
    const int *n_tiles;
    unsigned *next_tile; /* the next tile that no block has taken; attend_plan sets it to 0 */
    int tile_heads;      /* query heads of a tile, at most */
};

#ifdef __CUDACC__
#define LOG2E 1.4426950408889634f

/* 2^x by the special function unit; denormals become 0. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Sum over the four lanes that hold a row. */
__device__ __forceinline__ float quad_sum(float l)
{
    l += __shfl_xor_sync(~0u, l, 1);
    return l + __shfl_xor_sync(~0u, l, 2);
}
/* The factor of a row at its end: 1 / (sum of weights l, plus the sink's weight). m: the row's
 * maximum. */
__device__ __forceinline__ float row_inverse_sum(const attend_dev &a, int head, float m, float l)
{
    if (a.sinks) {
        float sink = a.sinks[head] * LOG2E, top = fmaxf(sink, m), f = exp2_approx(m - top);
        l = (l * f + exp2_approx(sink - top)) / f;
    }
    return 1.f / l;
}
/* Numbers d and d + 1 of a row of dv numbers. */
__device__ __forceinline__ void store_pair(float *out, int d, int dv, bool pair, float x, float y)
{
    if (pair && d < dv) *(float2 *)(out + d) = make_float2(x, y);
    else if (d < dv) {
        out[d] = x;
        if (d + 1 < dv) out[d + 1] = y;
    }
}
/* A query-key product as a score: an exponent of two. */
__device__ __forceinline__ float attend_score(const struct attend_dev &a, float s, float slope,
                                              int distance)
{
    s *= a.scale;
    if (a.softcap > 0.f) s = a.cap_log2 * tanhf(s);
    return a.slopes ? s + slope * (float)distance : s;
}
/* The first key that a token at pos sees. */
__device__ __forceinline__ int attend_first(const struct attend_dev &a, int pos)
{
    if (a.chunk > 0) return pos / a.chunk * a.chunk;
    return a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
}
/* The last key that a token of sequence seq sees. */
__device__ __forceinline__ int attend_last(const struct attend_dev &a, int pos, int seq)
{
    int last = a.seq_end ? a.seq_end[seq] - 1 : pos;
    return a.seq_end && a.window > 0 ? min(last, pos + a.window - 1) : last;
}
#endif

/* Did the last launch of row attention write x? Then memory bandwidth was mostly idle meanwhile. */
bool attend_wrote(const float *x);

/* One launch each. Rows: by the type of keys and values; any: also rows that are not aligned to 16
 * bytes. */
void attend_rows_f16(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_bf16(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_f8(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_q8(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_any(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_tiles_f16(struct cuda *c, const struct attend_dev *a, dim3 grid);
void attend_tiles_any(struct cuda *c, const struct attend_dev *a, dim3 grid);
/* Keys one by one, in F32 (attend_pick.cu). keys NULL: all keys, or all entries. */
void attend_picked(struct cuda *c, const struct attend_dev *a, int n_heads,
                   const struct key_choice *keys);
void attend_entries(struct cuda *c, const struct attend_dev *a, int n_heads, int rate,
                    const struct key_choice *keys);
#define LATENT_DIM 576 /* latents in tiles: dimensions of keys, at most */
#define LATENT_DIM_V 512
#define LATENT_ROWS 64
bool attend_latent_can(const struct cuda *c, const struct attend_dev *a);
void attend_latents(struct cuda *c, const struct attend_dev *a, dim3 grid);
/* heads of up to 128 dimensions, on Hopper */
void attend_wgs(struct cuda *c, const struct attend_dev *a);
void attend_wgs_converted(struct cuda *c, const struct attend_dev *a);
#endif
