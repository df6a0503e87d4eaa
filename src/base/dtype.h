/* dtype.h - data types of tensor elements: names, block sizes and bytes.
 *
 * Numbers below 48 are ggml's type numbers, as GGUF files store them; others get theirs from
 * dtype_by_ggml. Quantized types store
 * elements in blocks: `block` consecutive elements of a row share scales and take `bytes` bytes.
 * This header has sizes only, for the file formats; the layout inside a block and its arithmetic
 * are in kernel/quantblocks.h and kernel/quant.h. */
#ifndef TERN_BASE_DTYPE_H
#define TERN_BASE_DTYPE_H

#include "base/str.h"

enum dtype {
    DT_F32 = 0,
    DT_F16 = 1,
    DT_Q4_0 = 2,
    DT_Q4_1 = 3,
    DT_Q5_0 = 6,
    DT_Q5_1 = 7,
    DT_Q8_0 = 8,
    DT_Q8_1 = 9,
    DT_Q2_K = 10,
    DT_Q3_K = 11,
    DT_Q4_K = 12,
    DT_Q5_K = 13,
    DT_Q6_K = 14,
    DT_Q8_K = 15,
    DT_IQ2_XXS = 16,
    DT_IQ2_XS = 17,
    DT_IQ3_XXS = 18,
    DT_IQ1_S = 19,
    DT_IQ4_NL = 20,
    DT_IQ3_S = 21,
    DT_IQ2_S = 22,
    DT_IQ4_XS = 23,
    DT_I8 = 24,
    DT_I16 = 25,
    DT_I32 = 26,
    DT_I64 = 27,
    DT_F64 = 28,
    DT_IQ1_M = 29,
    DT_BF16 = 30,
    DT_TQ1_0 = 34,
    DT_TQ2_0 = 35,
    DT_I2_S = 36, /* of bitnet.cpp; its scale is behind the last row */
    DT_MXFP4 = 39,
    DT_NVFP4 = 40,
    DT_Q1_0 = 41,
    DT_Q2_0 = 42,
    /* Types that only safetensors has; the numbers are tern's. */
    DT_F8_E4M3 = 48,
    DT_F8_E5M2 = 49,
    DT_U8 = 50,
    DT_U16 = 51,
    DT_U32 = 52,
    DT_U64 = 53,
    DT_BOOL = 54,
    DT_F8_E8M0 = 55,
    /* Matrices of quantized folders in memory: their layout is in a struct grouped
     * (base/grouped.h), not in the type. */
    DT_GROUPED = 56,
    /* Types of ik_llama.cpp; the numbers are tern's. */
    DT_IQ4_K = 57,
    DT_IQ4_KS = 58,
    DT_IQ5_KS = 59,
    DT_IQ3_KS = 60,
    DT_IQ2_KL = 61,
    DT_COUNT = 62, /* at most 64: sets of types are words */
    DT_NONE = -1
};

struct dtype_info {
    const char *name; /* "Q4_K"; NULL: the number is not in use */
    int block;        /* elements per block; 1 for plain types */
    int bytes;        /* bytes per block */
    bool quantized;   /* elements share scales in blocks */
};

#define I2_S_TAIL 32u /* bytes behind the rows of an I2_S tensor: its scale, an F32, and padding */

/* NULL: no type has this number. */
const struct dtype_info *dtype_info(int type);
const char *dtype_name(int type);          /* "unknown" where no type has this number */
enum dtype dtype_by_name(struct str name); /* any case; "F8" and "FP8" are F8_E4M3; or DT_NONE */

/* The type with this number in GGUF files; DT_NONE: none that is known. */
enum dtype dtype_by_ggml(uint32_t number);
/* Bytes in front of the first block of a row: the scale of the row (IQ4_KS and the like). */
int dtype_head(enum dtype t);

/* Bytes of one row of n elements, its head included. false: n is not a multiple of the block,
 * the result overflows, or the type alone does not tell (DT_GROUPED). */
bool dtype_row_bytes(enum dtype t, uint64_t n, uint64_t *bytes);
#endif
