/* matvec.cuh - between the files of matvec: what a launch is told, and how one is chosen. */
#ifndef TERN_KERNEL_CUDA_MATVEC_CUH
#define TERN_KERNEL_CUDA_MATVEC_CUH

#include "kernel/cuda/cu_layout.cuh"

#define MV_JOBS 4
#define MV_STAGES 8  /* of a warp's ring, at most */
#define MV_WARPS 16  /* of a block, at most */
#define ONE_WARPS 8  /* of the kernel for one token, */
#define ONE_UNIT 256 /* and its columns of a unit */

struct mv_job {
    const uint8_t *w;
    const float *bias;
    float *out;
    size_t out_stride;
    int rows, tiles, first; /* first: of its tiles among all jobs' */
    float scale;
    bool add, second; /* second: of a kernel's two types */
};

/* How the kernel for one token wants x (matvec_one_x.cuh): in whole numbers of 16 bits, as F16, as
 * F32. */
enum mv_x { MV_X_NONE, MV_X_WHOLE, MV_X_HALF, MV_X_FLOAT };

/* The next product's x, as that wants it: written beside out. */
struct mv_then {
    enum mv_x kind; /* NONE: nobody waits for it */
    uint8_t *x;
    float *sq; /* for each 16 numbers of out the sum of their squares; NULL: of no interest */
    const float *norm_w; /* NULL: 1 */
};

/* Tiles are 16 rows. A block has a run of tiles, or of pairs gate and up; its warps share them out
 * in units of some columns. It takes at most `round` tiles and `piece` columns at a time. */
struct mv_args {
    const float *x;
    size_t x_stride;
    int tokens, cols;
    int norm;
    const float *norm_w, *norm_b;
    float eps;
    int n_jobs, n_tiles;
    unsigned cost[2], cost_all; /* of a tile of either type, of all tiles */
    bool pairs, active, vec; /* active: out = act(gate) * up; vec: x is read 16 bytes at a time */
    bool hasty;              /* the next kernel may begin at once */
    enum act act;
    int piece, n_pieces, round, stages;
    int x_row; /* numbers from one token to the next in shared memory */
    int at_x, at_low, at_init[2], at_min[2], at_part,
        at_kept;           /* bytes in shared memory, behind the ring */
    const uint8_t *ready;  /* for one token: x as it is wanted, NULL: it has to be made; */
    const float *ready_sq; /* its sums of squares */
    struct mv_then then;
    struct mv_job jobs[MV_JOBS];
};

/* What the host needs to know of a kernel. */
struct mv_kernel {
    void (*run)(const struct mv_args);
    int warps, unit, stage;   /* columns of a unit, bytes of a stage */
    int x_bytes;              /* of a number of x in shared memory: 4 with a low part */
    int pad;                  /* columns of x are filled up to a multiple of this */
    int sub[2];               /* of either type: columns that share a scale, 0: none are needed */
    int min_bytes[2];         /* of one token and 32 columns */
    int x_unit;               /* for one token: bytes of a unit of x, */
    enum mv_x x_kind;         /* and what it holds */
    unsigned long long ready; /* devices on which it may use all shared memory */
};

/* NULL: no such kernel. b is a or the second type of the jobs. */
struct mv_kernel *mv_kernel_small(int a, int b);
struct mv_kernel *mv_kernel_small2(int a, int b);
struct mv_kernel *mv_kernel_k(int a, int b);
struct mv_kernel *mv_kernel_k2(int a, int b);
struct mv_kernel *mv_kernel_plain(int a);
struct mv_kernel *mv_one_small(int a, int b); /* one token */
struct mv_kernel *mv_one_k(int a, int b);
struct mv_kernel *mv_one_plain(int a, int b);
/* F32 weights: plain multiplications, one job. */
void mv_f32(struct cuda *c, const struct mv_args *a);
#endif
