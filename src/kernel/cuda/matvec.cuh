/* matvec.cuh - matrix-vector products of up to CU_FEW tokens: the kernels' arguments and how the
 * host chooses one.
 *
 * Files:
 *
 *     matvec.cu                      host: jobs grouped into launches, shared memory divided
 *     matvec_run.cuh                 the kernel for 2 to 8 tokens
 *     matvec_unit.cuh, matvec_x.cuh  its products, and x in its shared memory
 *     matvec_one.cuh                 the kernel for one token
 *     matvec_bytes.cuh, _one_x.cuh   its weights as bytes, and x in its shared memory
 *     matvec_bytes_group.cuh         the same for quantized folders
 *     matvec_order.cu                x in the order of a weight's columns
 *     matvec_ring.cuh                the ring in shared memory that weights stream through
 *     matvec_plain.cu, inst/matvec*  instances by weight type
 *
 * Decoding reads every weight once for each step, so these kernels are bound by memory bandwidth:
 * weights stream through rings in shared memory, and everything else overlaps with that.
 *
 * Measured on an H200 (bench/cuda/matvec chain), all matrix products of a decoding step of a 7.2 B
 * model: F16 reads 91 % of 4.47 TB/s, Q8_0 81 %, Q4_K_M 69 % (1,395 us). Q4_K_M is bound by
 * instructions: about 300 for each warp and 2.3 KB of weights. */
#ifndef TERN_KERNEL_CUDA_MATVEC_CUH
#define TERN_KERNEL_CUDA_MATVEC_CUH

#include "kernel/cuda/cu_layout.cuh"

#define MV_JOBS 4
#define MV_STAGES 8  /* stages of a warp's ring, at most */
#define MV_WARPS 16  /* warps of a block, at most */
#define ONE_WARPS 8  /* warps of the kernel for one token */
#define ONE_UNIT 256 /* columns of a unit of the kernel for one token */

struct mv_job {
    const uint8_t *w;
    const float *bias;
    float *out;
    size_t out_stride;
    int rows, tiles, first; /* first: index of its first tile among the tiles of all jobs */
    float scale;
    bool add, second; /* second: the weight has the second of the kernel's two types */
};

/* The form in which the kernel for one token needs x (matvec_one_x.cuh): 16-bit integers, F16 or
 * F32. */
enum mv_x { MV_X_NONE, MV_X_INT16, MV_X_F16, MV_X_F32 };

/* The x of the next linear operation, in the form that it needs. Written beside out. */
struct mv_next_x {
    enum mv_x kind; /* MV_X_NONE: not wanted */
    uint8_t *x;
    /* For each 16 numbers of out the sum of their squares, for an RMS norm; NULL: not wanted. */
    float *sq;
    const float *norm_w; /* weight of the next norm; NULL: all ones */
};

/* A tile is 16 rows. A block has a range of tiles (or of pairs of a gate and an up tile). Its warps
 * divide them in units of some columns. At a time it takes at most `round` tiles and `piece`
 * columns. */
struct mv_args {
    const float *x;
    size_t x_stride;
    int tokens, cols;
    int norm;
    const float *norm_w, *norm_b;
    float eps;
    int n_jobs, n_tiles;
    /* bytes of a row's block, by type: the cost of a tile; of all tiles */
    unsigned cost[2], cost_all;
    bool pairs, active, vec; /* active: out = act(gate) [* up]; vec: x is read 16 bytes at a time */
    bool next_early;         /* the next kernel may start at once (cu_release_next at the top) */
    enum act act;
    int piece, n_pieces, round, stages;
    int x_row; /* numbers from one token's x to the next in shared memory */
    int at_x, at_low, at_init[2], at_min[2], at_part,
        at_carry; /* byte offsets in shared memory, after the ring */
    /* One token: x in the form that the kernel needs, written by the operation before, and its sums
     * of squares. NULL: the kernel makes it from x. */
    const uint8_t *x_ready;
    const float *x_ready_sq;
    struct mv_next_x next;
    struct mv_job jobs[MV_JOBS];
};

/* What the host needs to know about a kernel. */
struct mv_kernel {
    void (*run)(const struct mv_args);
    int warps, unit, stage; /* unit: columns; stage: bytes */
    int x_bytes;            /* of a number of x in shared memory; 4: a high and a low part */
    int pad;                /* columns of x are padded to a multiple of this */
    /* For both types: columns that share a scale (0: no starting sums); bytes of minima for one
     * token and 32 columns. */
    int sub[2];
    int min_bytes[2];
    int x_unit;                     /* one token: bytes of a unit of x */
    enum mv_x x_kind;               /* one token: the form of x */
    unsigned long long smem_raised; /* bit set of devices on which it may use all shared memory */
};

/* The kernel for types a and b (b = a: one type). NULL: there is none in this file. */
struct mv_kernel *mv_kernel_small(int a, int b);
struct mv_kernel *mv_kernel_small2(int a, int b);
struct mv_kernel *mv_kernel_k(int a, int b);
struct mv_kernel *mv_kernel_k2(int a, int b);
struct mv_kernel *mv_kernel_group(int a, int b);
struct mv_kernel *mv_kernel_plain(int a);
struct mv_kernel *mv_one_small(int a, int b); /* for one token */
struct mv_kernel *mv_one_k(int a, int b);
struct mv_kernel *mv_one_group(int a, int b);
struct mv_kernel *mv_one_plain(int a, int b);
/* out [x.rows][x.cols]: column c is column order[c] of x, normalized as n says. */
void mv_order_x(struct cuda *c, float *out, const struct tensor *x, const struct cu_norm *n,
                const int32_t *order);
/* F32 weights: one job, multiplied in F32 without tensor cores. */
void mv_f32(struct cuda *c, const struct mv_args *a);
#endif
