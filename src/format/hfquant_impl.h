/* hfquant_impl.h - shared by hfquant.c (finding) and hfquant_pack.c (packing). */
#ifndef TERN_FORMAT_HFQUANT_IMPL_H
#define TERN_FORMAT_HFQUANT_IMPL_H

#include "format/hfquant.h"

/* How codes are stored. */
enum hfq_store {
    HFQ_BYTES,   /* [out, in] bytes: F8_E4M3, F8_E5M2, or I8, whose codes get 128 added */
    HFQ_WORDS,   /* compressed-tensors: I32 [out, in * bits / 32], low bits first */
    HFQ_GPTQ,    /* I32 [in * bits / 32, out], low bits first; 3 bits cross words */
    HFQ_AWQ,     /* I32 [in, out / 8], nibbles in the order 0 4 1 5 2 6 3 7 */
    HFQ_NIBBLES, /* U8 [out, in / 2], low nibble first */
    HFQ_NVFP4,   /* GGUF: 64 columns in 36 bytes: 4 scales, then nibbles j and j + 8 of each 16 */
    HFQ_Q2_0,    /* GGUF: 64 columns in 18 bytes: a scale in F16, then 2 bits each */
    HFQ_I2_S,    /* GGUF: 128 columns in 32 bytes: j, j + 32, ... from the high bits down */
    HFQ_BITNET   /* U8 [out / 4, in]: rows r, r + out / 4, ... in bits 0-1, 2-3, ... */
};

/* How zero points are stored. */
enum hfq_zero {
    HFQ_NO_ZERO,
    HFQ_ZERO_GPTQ,  /* I32 [groups, out * bits / 32] */
    HFQ_ZERO_AWQ,   /* I32 [groups, out / 8] */
    HFQ_ZERO_WORDS, /* I32 [out * bits / 32, groups], packed along out */
    HFQ_ZERO_BYTES  /* I8 [out, groups]: 2^(bits - 1) is added */
};

struct hfquant_tensor {
    struct source_tensor t; /* what is presented */
    const struct source_tensor *codes, *scales, *zeros, *g_idx, *global;
    enum hfq_store store;
    enum hfq_zero zero;
    int bits;
    int64_t count, rows, cols; /* of matrices; rows of one */
    int64_t block_rows;        /* rows that share scales */
    bool by_group;             /* scales are [group, row] */
    bool invert;               /* the global scale divides */
    struct grouped form;
    const char *method; /* for messages */
    const char *why;    /* it cannot be read; NULL: it can */
    bool refused;       /* why: it is not supported, not malformed */
};
#endif
