/* cu_moe.cuh - matrix products of experts: the kernels' arguments, and which kernel reads a type.
 *
 * A choice is one (token, expert) pair. There are six kernels for the products of choices:
 *
 * - one: each choice by itself. A block has 16 rows of gate and of up, or 32 rows of one weight;
 * its warps divide the columns; products of integers, x is 16-bit integers (moe_one.cuh).
 *
 * - few: the same in F16, for types that one cannot read; x is F32 (moe_run.cuh).
 *
 * - some: choices sorted by expert, up to 8 at a time, x is F32; weights through rings in shared
 * memory, for experts with few choices each (moe_some.cuh).
 *
 * - wide: choices sorted by expert, 16 or 64 at a time, x as F16, weights and x through shared
 * memory (moe_wide.cuh).
 *
 * - tiles: choices sorted by expert, 32, 64 or 128 at a time, on Hopper; x as F16, sorted too
 * (moe_hopper.cuh).
 *
 * - many: choices sorted by expert, up to 64 at a time, weights directly into registers, for types
 * that wide cannot read (moe_run.cuh).
 *
 * All of them find out on the device which experts were chosen; only the weights of chosen experts
 * are read. */
#ifndef TERN_KERNEL_CUDA_CU_MOE_CUH
#define TERN_KERNEL_CUDA_CU_MOE_CUH

#include "kernel/cuda/cu_layout.cuh"

#define MOE_WARPS 8      /* warps of a block of few, at most */
#define MOE_SUM_WARPS 24 /* warps of a block of few_sum */
#define MOE_TOKENS 64    /* tokens that a block of many or wide takes at once */
#define MOE_BLOCK 4      /* warps of a block of many */

/* The order of rows of x: F32; F16 in the order of columns; F16 in the order of lanes (many); F16
 * in the order of mma steps (wide); units of 16-bit integers (one), whose strides count bytes; F16,
 * sorted by expert and swizzled (tiles). */
enum moe_order { MOE_F32, MOE_ROWS, MOE_LANES, MOE_STEPS, MOE_INT16, MOE_TILES };

#define MOE_UNIT 256 /* MOE_INT16: columns of a unit, and its bytes */
#define MOE_UNIT_BYTES 640

struct moe_args {
    const uint8_t *w[2];  /* of expert e0. pair: gate and up; otherwise one weight */
    size_t step[2];       /* bytes from one expert to the next */
    const float *bias[2]; /* [experts][rows], or NULL */
    int rows, cols;
    int e0, e1; /* the experts of this launch; others belong to another launch */
    bool pair;
    const void *x;
    size_t x_stride;
    int x_each;         /* choices that share a row of x */
    bool vec;           /* F32 x is read 16 bytes at a time */
    const int32_t *ids; /* few: the expert of each choice */
    /* many, wide: [expert + 1] first sorted choice of each; [choice] the sorted choices */
    const int32_t *first, *sorted;
    const int32_t *tiles; /* tiles: [expert + 1] first tile of each */
    int splits;           /* many, wide: blocks that share the choices of an expert */
    bool active;
    enum act act;
    struct glu_clip clip; /* instead of act, if its limit is not 0 */
    const float *weights; /* [choice] of the inputs; NULL: all 1 */
    const float *gate;    /* active, not pair: [choices][gate_stride], or NULL */
    size_t gate_stride;
    void *out;
    size_t out_stride;
    int out_pad; /* numbers of a row of out, zeros from `rows` on */
    enum moe_order kind;
    /* one: the weights of the next product, of expert 0, which may be fetched early; NULL: none */
    const uint8_t *ahead;
    size_t ahead_step, ahead_bytes;
};

/* The sum over a token's choices: out = [out +] sum of weights * scale * y. */
struct moe_total {
    const float *weights;
    float *out;
    size_t out_stride;
    int n_used;
    float scale;
    bool add;
};

struct moe_kernel {
    void (*few)(const struct moe_args);
    void (*few_sum)(const struct moe_args, const struct moe_total); /* of all experts */
    void (*many)(const struct moe_args);                            /* NULL: wide reads the type */
    /* Launches for nt tokens at a time. false: too little shared memory. NULL: it cannot read the
     * type. */
    bool (*wide)(struct cuda *c, const char *name, const struct moe_args *a, int nt);
    /* Launches for about `used` chosen experts. false and NULL likewise. */
    bool (*some)(struct cuda *c, const char *name, const struct moe_args *a, int used);
    /* Each choice by itself, and with the sum, of integers. NULL: few does it. */
    void (*one)(const struct moe_args);
    void (*one_sum)(const struct moe_args, const struct moe_total);
    int unit;             /* few, one: columns that a warp takes at once */
    enum moe_order order; /* the order of x for many */
    const char *name;
};

/* The norm of x, the product that makes the logits, and the choice of experts, for few tokens. */
#define CU_ROUTER_TOKENS 8
struct cu_router {
    struct tensor x, xn; /* xn: the normalized x */
    struct cu_norm norm;
    const struct linear *job;
    int32_t *ids;
    float *weights;
    const struct route_opt *opt;
    void *x16; /* xn as 16-bit integers, too (MOE_INT16); NULL: not wanted */
    /* [CU_ROUTER_TOKENS] zeros, before and after: blocks of a token that have ended. NULL: none. */
    unsigned *tickets;
};
/* false: the device, the weight's type or a shape does not allow it, and nothing was launched. */
bool cu_router(struct cuda *c, const struct cu_router *r);
/* Where cu_experts, if it is the next call, reads x as 16-bit integers; NULL: it does not. What is
 * there then is taken for x. */
void *cu_experts_x16(struct cuda *c, const struct tensor *x, const struct experts_opt *o);
void cu_experts_reset(void); /* the next cu_experts finds no x */

/* The kernels for type t (a result of layout_type). NULL: none in this file. */
const struct moe_kernel *moe_kernel_small(int t);
const struct moe_kernel *moe_kernel_k(int t);
const struct moe_kernel *moe_kernel_k2(int t);
const struct moe_kernel *moe_kernel_group(int t);
const struct moe_kernel *moe_kernel_plain(int t);
/* Launches the kernel `tiles` for nt choices at a time, 32, 64 or 128; a NULL: only says whether it
 * could. NULL: it cannot read type t. */
typedef bool moe_tiles_run(struct cuda *c, const char *name, const struct moe_args *a, int cols,
                           int nt);
moe_tiles_run *moe_tiles_of(int t);

/* Numbers of a row of x in this order. */
static inline int moe_pad(enum moe_order o, int cols)
{
    int to = o == MOE_F32                       ? 1
             : o == MOE_STEPS || o == MOE_TILES ? 64
             : o == MOE_INT16                   ? MOE_UNIT
                                                : 32;

    return (cols + to - 1) / to * to;
}
/* From one row to the next, as strides count. */
static inline size_t moe_row(enum moe_order o, int cols)
{
    size_t n = (size_t)moe_pad(o, cols);

    return o == MOE_INT16 ? n / MOE_UNIT * MOE_UNIT_BYTES : n;
}
/* Bytes of a row. */
static inline size_t moe_row_bytes(enum moe_order o, int cols)
{
    return moe_row(o, cols) * (o == MOE_INT16 ? 1 : o == MOE_F32 ? 4 : 2);
}

/* The position of column c in a row. MOE_LANES: lane t of four has 16 bytes of every 32 columns.
 * MOE_STEPS: steps of 16 columns. */
__host__ __device__ constexpr int moe_place(enum moe_order o, int c)
{
    return o == MOE_LANES   ? c / 32 * 32 + c % 16 / 4 * 8 + c % 32 / 16 * 4 + c % 4
           : o == MOE_STEPS ? c / 16 * 16 + layout_slot(c % 16)
                            : c;
}
#endif
