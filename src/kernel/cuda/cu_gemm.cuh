/* cu_gemm.cuh - matrix products of many tokens (GEMM): what its files share.
 *
 * There are two ways. cu_gemm.cu chooses one for each operation.
 *
 * - The packed GEMM, up to some hundred tokens: kernels of our own that read weights as they are
 * stored and dequantize them on the way to the tensor cores (gemm_packed.cuh; on Hopper
 * gemm_hopper.cuh). Each block leaves partial sums, which gemm_finish.cu adds, scales and writes.
 *
 * - cuBLASLt for more tokens: a slice of the weight becomes F16 in scratch memory, and the library
 * multiplies it (gemm_lt.cu). Without the library the packed GEMM does all.
 *
 * Both take activations as F16. For the packed GEMM they are swizzled, in the order of shared
 * memory: blocks of nt tokens by 64 columns, block after block along the columns. A token has 128
 * bytes of a block. Within every 16 columns the order is that of layout_slot, and the position of
 * each 16-byte piece is XOR-ed with the token's last three bits, which avoids bank conflicts. */
#ifndef TERN_KERNEL_CUDA_CU_GEMM_CUH
#define TERN_KERNEL_CUDA_CU_GEMM_CUH

#include "kernel/cuda/cu.cuh"

extern "C" {
#include "kernel/cuda/tuned.h"
}

#define GEMM_JOBS 4      /* jobs of one launch */
#define GEMM_CHUNK 64    /* columns that a block takes at once */
#define GEMM_THREADS 256 /* two warpgroups */

static inline int gemm_pad(int cols) { return (cols + GEMM_CHUNK - 1) / GEMM_CHUNK * GEMM_CHUNK; }

/* ---- where the two ways meet (gemm_tune.cu) ---- */

/* Measures, for the dtypes in the bit set, what t does not know yet. Scratch memory is reserved and
 * nothing runs. */
void gemm_tune(struct cuda *c, struct tuned *t, uint64_t types);

/* ---- for tests and measurements (cu_gemm.cu) ---- */

enum gemm_way { GEMM_AUTO, GEMM_PACKED, GEMM_LT };
void gemm_set_way(struct cuda *c, enum gemm_way way);
void gemm_set_choice(struct cuda *c, int choice);
const char *gemm_library(struct cuda *c, char *buf, size_t n);

/* ---- activations (gemm_x.cu) ---- */

/* xh [x.rows][gemm_pad(x.cols)] from x, normalized if n says so, zero-padded. nt: tokens of a block
 * if xh is swizzled; 0: plain rows. order: of the weight's columns (cu_order), or NULL. */
void gemm_x(struct cuda *c, __half *xh, const struct tensor *x, const struct cu_norm *n, int nt,
            const int32_t *order);
/* gate and up are F16 rows of ld numbers: out = act(gate) * up (up NULL: act(gate)), and the same
 * in F16 to xh. */
void gemm_act(struct cuda *c, const struct tensor *out, __half *xh, const __half *gate,
              const __half *up, int ld, enum act act);
/* Rows of a plain weight (F16, BF16, F32) as F16 rows of ld numbers, zeros from cols to ld. */
void gemm_plain(struct cuda *c, __half *out, int ld, const struct weight *w, int r0, int n_rows);

/* Launches a small kernel between matrix products with their shared-memory carveout (see
 * cu_set_carveout). */
template <auto KERNEL, typename... A>
static void gemm_launch_small(struct cuda *c, const char *name, dim3 grid, dim3 block, A... args)
{
    static bool carveout_is_set[64]; /* by device */

    if (!carveout_is_set[c->device & 63]) {
        cudaFuncSetAttribute(KERNEL, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
        carveout_is_set[c->device & 63] = true;
    }
    cu_launch(c, name, KERNEL, grid, block, 0, args...);
}

#ifdef __CUDACC__
/* The next kernel reads by the copy engine (async proxy) what ordinary stores wrote: a proxy fence
 * on both sides. */
__device__ __forceinline__ void gemm_fence_async(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
__device__ __forceinline__ void gemm_wait_previous(void)
{
    cu_wait_previous();
    gemm_fence_async();
}

/* The index of column col of token t in swizzled activations of n_chunks * 64 columns. */
__device__ __forceinline__ size_t swizzled_at(int t, int col, int nt, int n_chunks)
{
    int c = col % 16, place = col % 64 - c + c / 4 * 2 + c % 2 + c % 4 / 2 * 8;
    size_t row = ((size_t)(t / nt) * n_chunks + col / 64) * nt + t % nt;
    return row * 64 + ((place / 8) ^ (t % nt & 7)) * 8 + place % 8;
}
#endif

/* ---- the packed GEMM (gemm_packed.cuh, gemm_hopper.cuh) ---- */

struct packed_job {
    const void *w; /* the matrix in its layout (cu_layout.cuh) */
    int rows, cols;
    int tile0;   /* its first row tile */
    int r0;      /* the first row of that tile */
    bool second; /* the weight has the second of the launch's two types */
};

struct packed_args {
    struct packed_job job[GEMM_JOBS];
    int n_jobs;
    const __half *x; /* swizzled */
    int n_chunks;    /* chunks of 64 columns */
    int row_tiles, token_tiles;
    int stages;
    bool w_converted; /* w is scratch that the kernel before has written: wait for it */
    float *part;      /* partial sums: [blocks + tiles] tiles */
};

/* How the partial sums of a tile are stored: each of `threads` threads has its registers for ms
 * times 16 rows of its warp. nt: tokens of a tile, 16 to 256. Hopper's kernel for block formats has
 * more threads. */
struct packed_shape {
    int threads, ms;
};
static inline struct packed_shape packed_shape_of(const struct cuda *c, enum dtype t, int nt)
{
    if (c->cc == 90 && t != DT_F16 && t != DT_BF16)
        return { nt <= 64 ? 512 : 256, nt == 128 ? 2 : 1 };
    return { GEMM_THREADS, nt <= 64 ? 2 : 1 };
}
static inline int packed_rows(struct packed_shape s) { return s.threads / 2 * s.ms; }

/* Launches the kernel for types t and t2 (t2 = t: one type). p NULL: launches nothing. Returns the
 * columns of a unit of work; 0: there is no such kernel. */
int packed_launch(struct cuda *c, enum dtype t, enum dtype t2, int nt, int blocks,
                  const struct packed_args *p);

/* Adds the partial sums and writes the results. */
struct finish_job {
    float *out;
    const float *bias;
    size_t stride;
    int rows, tile0, r0;
    float scale;
    bool add;
};
struct finish_args {
    struct finish_job job[GEMM_JOBS];
    int n_jobs;
    int tokens, units, row_tiles, token_tiles, blocks; /* units: of a tile */
    const float *part;
    __half *xh; /* the result in F16, swizzled, for the next operation; NULL: not wanted */
    int act;    /* -1: none; otherwise the jobs are gate and up, or gate alone */
    int nt;
    struct packed_shape shape;
};
void gemm_finish(struct cuda *c, const struct finish_args *p);

/* ---- cuBLASLt (gemm_lt.cu) ---- */

struct lt;
/* NULL: the library is not installed. */
struct lt *lt_open(void);
void lt_close(struct lt *l);
void lt_choose(struct lt *l, int choice); /* which of the library's proposals; 0: its best */
const char *lt_version(const struct lt *l, char *buf, size_t n);

struct lt_job {
    const __half *w, *x; /* [rows][ldw], [tokens][ldx] */
    void *out;           /* [tokens][ldo], F32 or F16 */
    const float *bias;
    int rows, cols, tokens;
    int least; /* tokens from which products of this weight come here */
    int ldw, ldx;
    size_t ldo;
    float scale;
    bool add, to_half;
};
/* false: the library cannot do it, and nothing was launched. Loads the kernels of all smaller steps as
 * well, the first time that a shape comes with so many tokens. */
bool lt_run(struct cuda *c, struct lt *l, const struct lt_job *j, void *work, size_t work_bytes);
#endif
