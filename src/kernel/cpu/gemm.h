/* gemm.h - interface of a matrix-matrix product on the CPU: many tokens at once.
 *
 * An implementation first converts the tokens to its own layout (pack, divided by tokens), then
 * computes blocks of weight rows for all tokens (rows, divided by rows). Every thread of the team
 * calls both with its part; all packing ends before the first call of rows. */
#ifndef TERN_KERNEL_CPU_GEMM_H
#define TERN_KERNEL_CPU_GEMM_H

#include "kernel/tensor.h"

/* One product, as matmul.c passes it on. */
struct gemm_job {
    enum dtype type;
    const void *data; /* the weights: rows of weight_row_bytes */
    int rows, cols, tokens;
    const struct tensor *out;    /* F32 [tokens][rows] */
    const float *bias;           /* [rows] or NULL */
    float scale;                 /* of the product; never 0 here */
    bool add;                    /* out += */
    const struct grouped *group; /* of DT_GROUPED; else NULL */
};

struct gemm {
    const char *name;
    int token_unit, row_unit;        /* parts passed to pack and rows begin at multiples of these */
    bool (*can)(enum dtype w);       /* weights of this type are supported */
    int (*min_tokens)(enum dtype w); /* below this number the gemv kernels are faster */
    /* Above this number another gemm is faster, or this one is at its limit. NULL: no limit. */
    int (*max_tokens)(enum dtype w);
    /* Bytes of packed x for this many tokens; bytes of scratch memory per thread. */
    size_t (*x_bytes)(enum dtype w, int tokens, int cols);
    size_t (*scratch_bytes)(enum dtype w, int cols);
    /* Packs tokens [token0, token1) of x into xp (64-byte aligned), which has room for all. */
    void (*pack)(enum dtype w, void *xp, const struct tensor *x, int token0, int token1);
    /* out[t][r] (+)= scale * sum_k W[r][k] x[t][k] + bias[r] for all tokens and rows [row0, row1).
     * With many tokens, pieces of 256 rows or more are faster than smaller ones, because each reads
     * all of xp. */
    void (*rows)(const struct gemm_job *job, const void *xp, int row0, int row1, void *scratch);
    /* Called on every thread before rows (sets the tile configuration); may be NULL. */
    void (*enter)(void);
};

/* Products without tiles: in integers for the block formats that people use (gemm_rows.h). */
extern const struct gemm gemm_avx2, gemm_avxvnni, gemm_avx512; /* on x86 */
extern const struct gemm gemm_neon, gemm_i8mm;                 /* on ARM (gemm_neon.h) */
/* Products in F32 for floats, which the above call (gemm_f_rows.h). */
extern const struct gemm gemm_f_avx2, gemm_f_avx512; /* on x86 */
extern const struct gemm gemm_f_neon;                /* on ARM */
/* NULL if the CPU or the operating system does not support AMX, or denies this process its use. */
const struct gemm *gemm_amx(void);  /* bf16 tiles: any type, dequantized on the fly */
const struct gemm *gemm8_amx(void); /* int8 tiles: most block formats, 9 to 32 tokens */
#endif
