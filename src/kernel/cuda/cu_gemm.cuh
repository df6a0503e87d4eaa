/* cu_gemm.cuh - what the files of the gemm share.
 *
 * Two ways. Up to some hundred tokens: kernels of our own that read weights as they are stored
 * (gemm_mid.cuh). Each of them leaves sums of parts of the columns, which gemm_finish adds up,
 * scales and writes. Beyond that: cuBLASLt on weights as F16, where there is one (gemm_lt.cu).
 *
 * Both take activations as F16. For the first way they are "mixed": blocks of nt tokens by 64
 * columns, block after block along the columns, as they shall lie in shared memory. A token has 128
 * bytes of a block; in these, columns are exchanged within every 16 as layout_slot has it, and
 * pieces of 16 bytes by the token's last three bits. */
#ifndef TERN_KERNEL_CUDA_CU_GEMM_CUH
#define TERN_KERNEL_CUDA_CU_GEMM_CUH

#include "kernel/cuda/cu.cuh"

extern "C" {
#include "kernel/cuda/tuned.h"
}

#define GEMM_JOBS 4      /* of one launch */
#define GEMM_CHUNK 64    /* columns a block takes at once */
#define GEMM_THREADS 256 /* two warpgroups */

static inline int gemm_pad(int cols) { return (cols + GEMM_CHUNK - 1) / GEMM_CHUNK * GEMM_CHUNK; }

/* ---- which way (gemm_tune.cu) ---- */

/* For types by number, those of a model: what is not known yet is measured. The scratch is there
 * and nothing runs. */
void gemm_tune(struct cuda *c, struct tuned *t, uint64_t types);

/* ---- for tests and measurements (gemm.cu) ---- */

enum gemm_way { GEMM_AUTO, GEMM_MID, GEMM_LT };
void gemm_set_way(struct cuda *c, enum gemm_way way);
void gemm_set_choice(struct cuda *c, int choice);
const char *gemm_library(struct cuda *c, char *buf, size_t n);

/* ---- activations (gemm_x.cu) ---- */

/* xh [x.rows][gemm_pad(x.cols)] from x, normed where asked, zeros behind; nt: mixed, in blocks of
 * so many tokens. */
void gemm_x(struct cuda *c, __half *xh, const struct tensor *x, const struct cu_norm *n, int nt);
/* gate and up as F16 rows of ld: out = act(gate) * up (up NULL: act(gate)), and the same to xh. */
void gemm_act(struct cuda *c, const struct tensor *out, __half *xh, const __half *gate,
              const __half *up, int ld, enum act act);
/* F16 rows of ld from a weight's plain rows (F16, BF16, F32): zeros from cols to ld. */
void gemm_plain(struct cuda *c, __half *out, int ld, const struct weight *w, int r0, int n_rows);

/* Small kernels between products leave an SM's memory divided as the products want it. */
template <auto KERNEL, typename... A>
static void gemm_launch_small(struct cuda *c, const char *name, dim3 grid, dim3 block, A... args)
{
    static bool told[64]; /* by device */

    if (!told[c->device & 63]) {
        cudaFuncSetAttribute(KERNEL, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
        told[c->device & 63] = true;
    }
    cu_launch(c, name, KERNEL, grid, block, 0, args...);
}

#ifdef __CUDACC__
/* What ordinary stores wrote is read by the copy engine in the next kernel: both sides say so. */
__device__ __forceinline__ void gemm_publish(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
__device__ __forceinline__ void gemm_wait(void)
{
    cu_wait();
    gemm_publish();
}

/* Where column col of token t lies in mixed rows of n_chunks * 64 columns. */
__device__ __forceinline__ size_t mixed_at(int t, int col, int nt, int n_chunks)
{
    int c = col % 16, place = col % 64 - c + c / 4 * 2 + c % 2 + c % 4 / 2 * 8;
    size_t row = ((size_t)(t / nt) * n_chunks + col / 64) * nt + t % nt;
    return row * 64 + ((place / 8) ^ (t % nt & 7)) * 8 + place % 8;
}
#endif

/* ---- the first way (gemm_mid*.cu) ---- */

struct mid_job {
    const void *w; /* the matrix in its layout */
    int rows, cols;
    int tile0;   /* its first tile of rows */
    int r0;      /* that tile's first row */
    bool second; /* of the second type of the two */
};

struct mid_args {
    struct mid_job job[GEMM_JOBS];
    int n_jobs;
    const __half *x; /* mixed */
    int n_chunks;    /* of 64 columns */
    int row_tiles, token_tiles;
    int stages;
    bool made;   /* the weights were made by the kernel before: wait for it */
    float *part; /* a tile each for blocks + tiles */
};

/* How sums of a tile lie, by tokens of a tile (16, 32, 64, 128 or 256): each of `threads` threads
 * has ms times 16 rows of a warp. Hopper's kernel for weights in tiles has more threads. */
struct mid_shape {
    int threads, ms;
};
static inline struct mid_shape mid_shape_of(const struct cuda *c, enum dtype t, int nt)
{
    if (c->cc == 90 && t != DT_F16 && t != DT_BF16)
        return { nt <= 64 ? 512 : 256, nt == 128 ? 2 : 1 };
    return { GEMM_THREADS, nt <= 64 ? 2 : 1 };
}
static inline int mid_rows(struct mid_shape s) { return s.threads / 2 * s.ms; }

/* Launches it; t2: the second type, or t. p NULL: says into units of how many columns it would cut
 * the work; 0: it cannot. */
int mid_launch(struct cuda *c, enum dtype t, enum dtype t2, int nt, int blocks,
               const struct mid_args *p);

/* What becomes of the sums. */
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
    __half *xh; /* the result once more, mixed; NULL: not wanted */
    int act;    /* -1: none; else jobs are gate and up, or gate alone */
    int nt;
    struct mid_shape shape;
};
void gemm_finish(struct cuda *c, const struct finish_args *p);

/* ---- the second way (gemm_lt.cu) ---- */

struct lt;
/* NULL: there is no such library. */
struct lt *lt_open(void);
void lt_close(struct lt *l);
void lt_choose(struct lt *l, int choice); /* of the library's proposals; 0 is its best guess */
const char *lt_version(const struct lt *l, char *buf, size_t n);

struct lt_job {
    const __half *w, *x; /* [rows][ldw], [tokens][ldx] */
    void *out;           /* [tokens][ldo], F32 or F16 */
    const float *bias;
    int rows, cols, tokens;
    int ldw, ldx;
    size_t ldo;
    float scale;
    bool add, to_half;
};
/* false: it cannot, nothing was launched. */
bool lt_run(struct cuda *c, struct lt *l, const struct lt_job *j, void *work, size_t work_bytes);
#endif
