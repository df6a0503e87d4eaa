/* rtn.h - rows of floats rounded to every block format that is worth writing.
 *
 * What kernel/quant does in plain C one block at a time, searched further and many blocks at
 * once: a candidate scale is tried on as many sub-blocks as a vector has lanes. One table an
 * instruction set; `any` runs everywhere. Tables are constant: any number of threads may use one.
 */
#ifndef TERN_QUANT_RTN_H
#define TERN_QUANT_RTN_H

#include "base/dtype.h"

struct rtn {
    const char *name;
    /* n floats, whole blocks and finite, to t. w: how much an error in each of them counts (what an
     * importance matrix says of the columns), or NULL: large numbers count more than small ones. */
    void (*encode)(enum dtype t, const float *x, const float *w, void *dst, int64_t n);
    /* n elements of any type that kernel/quant decodes; src may lie anywhere. */
    void (*decode)(enum dtype t, const void *src, float *dst, int64_t n);
    bool (*is_finite)(const float *x, int64_t n);
};

bool rtn_can(enum dtype t);
const struct rtn *rtn_best(void);
const struct rtn *rtn_by_name(const char *name); /* NULL: unknown, or not on this machine */

extern const struct rtn rtn_any;
#if defined(__x86_64__)
extern const struct rtn rtn_avx2, rtn_avx512;
#elif defined(__aarch64__)
extern const struct rtn rtn_neon;
#endif
#endif
