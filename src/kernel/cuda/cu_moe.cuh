/* cu_moe.cuh - between the files of the experts' products: what a launch is told, and which kernel
 * reads a type.
 *
 * An expert's product is W x of the tokens that chose it. `few` takes each choice by itself: a
 * block has 16 rows of gate and of up, or 32 of one weight, its warps share out the columns, x is
 * F32. The others take choices sorted by expert, up to 64 at a time, and x as F16 rows in an order
 * of their own: `wide` through shared memory (moe_wide.cuh), `many` from registers, for what wide
 * cannot read. All ask the device which expert it is: only weights of experts that somebody chose
 * are read. */
#ifndef TERN_KERNEL_CUDA_CU_MOE_CUH
#define TERN_KERNEL_CUDA_CU_MOE_CUH

#include "kernel/cuda/cu_layout.cuh"

#define MOE_WARPS 8   /* of a block of few, at most */
#define MOE_TOKENS 64 /* that a block of many takes at once */
#define MOE_BLOCK 4   /* warps of a block of many */

/* How rows lie: F32; F16 in order of columns, as lanes take them (many), or as a product's steps do
 * (wide). */
enum moe_order { MOE_F32, MOE_ROWS, MOE_LANES, MOE_STEPS };

struct moe_args {
    const uint8_t *w[2];  /* of expert e0. pair: gate and up; else the first */
    size_t step[2];       /* bytes from one expert's to the next's */
    const float *bias[2]; /* [experts][rows], or NULL */
    int rows, cols;
    int e0, e1; /* experts whose weights these are; the others are another launch's */
    bool pair;
    const void *x;
    size_t x_stride;
    int x_each;                 /* choices that share a row of x */
    bool vec;                   /* F32 x is read 16 bytes at a time */
    const int32_t *ids;         /* few: of each choice */
    const int32_t *first, *who; /* many: where each expert's choices begin; sorted choices */
    int splits;                 /* many: blocks that share an expert's choices */
    bool active;
    enum act act;
    const float *gate; /* active, not pair: [choices][gate_stride], or NULL */
    size_t gate_stride;
    void *out;
    size_t out_stride;
    int out_pad; /* numbers of a row, zeros from rows on */
    enum moe_order kind;
};

struct moe_kernel {
    void (*few)(const struct moe_args);
    void (*many)(const struct moe_args); /* NULL: wide does it */
    /* Launches it for nt tokens at a time; false: this card has too little shared memory. NULL:
     * there is none. */
    bool (*wide)(struct cuda *c, const char *name, const struct moe_args *a, int nt);
    int unit;             /* columns of a step of a warp of few */
    enum moe_order order; /* in which many takes x */
    const char *name;
};

/* NULL: not one of its types. t is what layout_type says. */
const struct moe_kernel *moe_kernel_small(int t);
const struct moe_kernel *moe_kernel_k(int t);
const struct moe_kernel *moe_kernel_k2(int t);
const struct moe_kernel *moe_kernel_plain(int t);

/* Numbers of a row of F16 x. */
static inline int moe_pad(enum moe_order o, int cols)
{
    return o == MOE_F32 ? cols : o == MOE_STEPS ? (cols + 63) / 64 * 64 : (cols + 31) / 32 * 32;
}

/* Where column c of a row stands. Lane t of four has 16 bytes of every 32 columns; steps are of 16.
 */
__host__ __device__ constexpr int moe_place(enum moe_order o, int c)
{
    return o == MOE_LANES   ? c / 32 * 32 + c % 16 / 4 * 8 + c % 32 / 16 * 4 + c % 4
           : o == MOE_STEPS ? c / 16 * 16 + layout_slot(c % 16)
                            : c;
}
#endif
