/* cu_attend.cuh - attention on the device: what the host hands to its kernels.
 *
 * A token is looked up in one of two ways. As a row: blocks of warps share a sequence's keys out
 * among them, for each KV head, and weigh their parts together at the end (attend_row.cuh). As one
 * of a tile: consecutive tokens of a sequence with all query heads of a KV head, against 64 keys at
 * a time (attend_tile.cuh). Which tokens go where is found on the device by attend_cut, as the host
 * does not know the sequences' bounds. */
#ifndef TERN_KERNEL_CUDA_CU_ATTEND_CUH
#define TERN_KERNEL_CUDA_CU_ATTEND_CUH

#include "kernel/cuda/rope_kv.cuh"

#define ROW_HEADS 8   /* query heads of a block of rows: the narrow side of the matrix units */
#define ROW_WARPS 8   /* of a block at most: it fills half of a multiprocessor */
#define ROW_STAGES 3  /* pages of a warp under way at most, */
#define ROW_LONG 256  /* if there are more than these */
#define ROW_SLICE 256 /* dimensions of values of a block at most */
/* Floats of one part in memory: fragments as threads hold them, then maxima and weights. */
#define ROW_PART (ROW_SLICE / 16 * 128 + 2 * ROW_HEADS)
#define TILE_KEYS 64
#define TILE_LEAST 8      /* consecutive tokens that are worth a tile */
#define PLAN_TOKENS 65536 /* at most in a step */

struct attend_dev {
    struct kv_dev kv;
    const float *q;
    float *out;
    size_t q_stride, out_stride;
    int n_tokens, group, dk, dv;
    float scale, softcap;   /* scale times log2(e); with a softcap the scale of its argument */
    float cap_log2;         /* softcap times log2(e) */
    int window;             /* keys that a token sees of those before it, itself included; 0: all */
    const int32_t *seq_end; /* NULL: a token sees none after it; else as many as before it */
    const float *sinks, *slopes;
    bool q_whole; /* q in 16 bytes */
    /* rows */
    int n_splits, head_tiles, n_slices;
    bool one_seq; /* its row of the table is 0 */
    bool early;   /* keys of former steps may be fetched while kernels before this one still run */
    int n_stages; /* pages that a warp has under way, where it has many; 0: one ahead */
    float *part;  /* [unit][split] */
    unsigned *done;               /* [unit] splits that are through; 0 between launches */
    const int *row_list, *n_rows; /* NULL: every token */
    struct rope_dev rope; /* pad 0: q, key and value are done. Else this has to, for one token */
    int turned_at;        /* bytes into shared memory */
    /* tiles */
    const int2 *tile_list;
    const int *n_tiles;
    unsigned *next_tile; /* counts those that blocks have taken; attend_cut sets it to 0 */
    int tile_heads;      /* query heads of a tile at most */
};

#ifdef __CUDACC__
#define LOG2E 1.4426950408889634f

__device__ __forceinline__ float power2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Of the four lanes that hold a row. */
__device__ __forceinline__ float quad_sum(float l)
{
    l += __shfl_xor_sync(~0u, l, 1);
    return l + __shfl_xor_sync(~0u, l, 2);
}
/* What a row is to be multiplied by at its end: one over its weights l and the sink's, whose
 * largest score is m. */
__device__ __forceinline__ float row_over(const attend_dev &a, int head, float m, float l)
{
    if (a.sinks) {
        float sink = a.sinks[head] * LOG2E, top = fmaxf(sink, m), f = power2(m - top);
        l = (l * f + power2(sink - top)) / f;
    }
    return 1.f / l;
}
/* Numbers d and d + 1 of a row of dv. */
__device__ __forceinline__ void put_pair(float *out, int d, int dv, bool pair, float x, float y)
{
    if (pair && d < dv) *(float2 *)(out + d) = make_float2(x, y);
    else if (d < dv) {
        out[d] = x;
        if (d + 1 < dv) out[d + 1] = y;
    }
}
/* A product of query and key as a power of two's exponent. */
__device__ __forceinline__ float attend_score(const struct attend_dev &a, float s, float slope,
                                              int distance)
{
    s *= a.scale;
    if (a.softcap > 0.f) s = a.cap_log2 * tanhf(s);
    return a.slopes ? s + slope * (float)distance : s;
}
__device__ __forceinline__ int attend_first(const struct attend_dev &a, int pos)
{
    return a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
}
/* The last key that a token of sequence seq sees. */
__device__ __forceinline__ int attend_last(const struct attend_dev &a, int pos, int seq)
{
    int last = a.seq_end ? a.seq_end[seq] - 1 : pos;
    return a.seq_end && a.window > 0 ? min(last, pos + a.window - 1) : last;
}
#endif

/* Did rows' last launch write to x? Then memory had little to do meanwhile. */
bool attend_made(const float *x);

/* One launch each. Rows: by the type of keys and values; any: also of rows that do not lie on 16
 * bytes. */
void attend_rows_f16(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_bf16(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_f8(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_q8(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_rows_any(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps);
void attend_tiles_f16(struct cuda *c, const struct attend_dev *a, dim3 grid);
void attend_tiles_any(struct cuda *c, const struct attend_dev *a, dim3 grid);
#define LATENT_DIM 576 /* latents in tiles: keys and values at most */
#define LATENT_DIM_V 512
#define LATENT_ROWS 64
bool attend_latent_can(const struct cuda *c, const struct attend_dev *a);
void attend_latents(struct cuda *c, const struct attend_dev *a, dim3 grid);
void attend_wgs(struct cuda *c, const struct attend_dev *a); /* heads of 128 at most, on Hopper */
void attend_wgs_turned(struct cuda *c, const struct attend_dev *a);
#endif
