/* rtn.h - round-to-nearest quantization of rows of floats to block formats, with a scale search.
 *
 * Like the encoders of kernel/quant.h, but with a longer search for scales, error weights from an
 * importance matrix, and vectorized: a candidate scale is tried on as many sub-blocks at once as a
 * vector has lanes. One table per instruction set; rtn_any runs on every machine. The tables are
 * constant: any number of threads may use one. */
#ifndef TERN_QUANT_RTN_H
#define TERN_QUANT_RTN_H

#include "base/dtype.h"

struct rtn {
    const char *name;
    /* Encodes n finite floats, a multiple of the block size, to t. w: [n] weights of the squared
     * errors (imatrix_weights), or NULL: errors of large elements weigh more. */
    void (*encode)(enum dtype t, const float *x, const float *w, void *dst, int64_t n);
    /* Decodes n elements of any type that quant_decode supports; src needs no alignment. */
    void (*decode)(enum dtype t, const void *src, float *dst, int64_t n);
    bool (*is_finite)(const float *x, int64_t n);
};

bool rtn_can(enum dtype t);                      /* encode supports this type */
const struct rtn *rtn_best(void);                /* the fastest one this machine has */
const struct rtn *rtn_by_name(const char *name); /* NULL: unknown, or not on this machine */

extern const struct rtn rtn_any;
#if defined(__x86_64__)
extern const struct rtn rtn_avx2, rtn_avx512;
#elif defined(__aarch64__)
extern const struct rtn rtn_neon;
#endif
#endif
