/* gemm.h - matrix × matrix on the CPU: many tokens at once.
 *
 * An implementation first brings the tokens into its own layout (pack, shared out by tokens),
 * then computes blocks of weight rows for all tokens (rows, shared out by rows). Both are called
 * by every thread of the team with its part; the caller puts a barrier between them. */
#ifndef TERN_KERNEL_CPU_GEMM_H
#define TERN_KERNEL_CPU_GEMM_H

#include "kernel/tensor.h"

struct gemm_job {
    enum dtype type;
    const void *data; /* rows of dtype_row_bytes(type, cols) */
    int rows, cols, tokens;
    const struct tensor *out; /* F32 [tokens][rows] */
    const float *bias;
    float scale; /* never 0 here */
    bool add;
};

struct gemm {
    const char *name;
    int token_unit, row_unit;        /* parts begin at multiples of these */
    bool (*can)(enum dtype w);       /* weights of this type? */
    int (*min_tokens)(enum dtype w); /* below this the matrix × vector kernels are faster */
    int (*max_tokens)(
        enum dtype w); /* beyond it another one is, or it takes no more; NULL: any number */
    /* Bytes of packed x for this many tokens; of scratch a thread needs for weights of this type.
     */
    size_t (*x_bytes)(enum dtype w, int tokens, int cols);
    size_t (*scratch_bytes)(enum dtype w, int cols);
    /* xp (64-byte aligned) holds all x->rows tokens, which are the job's; this call fills in its
     * part. */
    void (*pack)(enum dtype w, void *xp, const struct tensor *x, int token0, int token1);
    /* out[t][r] (+)= scale * sum_k W[r][k] x[t][k] + bias[r] for all tokens and rows [row0, row1).
     * data: W's first row. out->data is row 0 of token 0. With many tokens pieces of 256 rows or
     * more are faster than smaller ones: each reads all of xp. */
    void (*rows)(const struct gemm_job *job, const void *xp, int row0, int row1, void *scratch);
    /* Once on every thread before its first use (tile configuration); may be NULL. */
    void (*enter)(void);
};

/* NULL where this machine (CPU, kernel, permission) does not have it. */
const struct gemm *gemm_amx(void);  /* tiles of bf16: any type, dequantized on the way */
const struct gemm *gemm8_amx(void); /* tiles of 8 bits: most block formats, few tokens */
#endif
