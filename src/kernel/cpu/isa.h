/* isa.h - dot products of each dtype, chosen at start-up: one table an instruction set.
 *
 * A kernel multiplies rows of weights, read in their file's format, with up to ISA_TOKENS
 * activations in the form it wants them: as F32, or quantized to 8 bits with a scale for every
 * 32 numbers. How those bytes lie is the instruction set's own affair. */
#ifndef TERN_KERNEL_CPU_ISA_H
#define TERN_KERNEL_CPU_ISA_H

#include "base/dtype.h"

#define ISA_TOKENS 8 /* a kernel takes so many activations at once */
#define ISA_FORMS 3  /* forms of activations an instruction set may have, F32 included */

struct gemv {
    enum dtype type;
    int cols, n_rows, n_tokens; /* n_tokens: 1 to ISA_TOKENS */
    const void *w;
    size_t w_stride; /* bytes from one row to the next */
    const void *x;
    size_t x_stride; /* bytes from one token to the next */
    float *out;      /* [n_tokens][out_stride], n_rows of each written */
    size_t out_stride;
};

typedef void gemv_fn(const struct gemv *g);

/* Of a type that has no kernel: its numbers are made F32, some at a time, for this one. */
void gemv_decoded(const struct gemv *g, gemv_fn *f32);

struct isa_form {
    size_t (*bytes)(int cols);                         /* of one token, a multiple of 64 */
    void (*make)(void *dst, const float *x, int cols); /* dst aligned to 64 bytes */
};

struct isa {
    const char *name;
    struct isa_form form[ISA_FORMS]; /* form 0 is F32 as it comes: no functions */
    struct {
        gemv_fn *fn; /* NULL: not a type this machine multiplies with */
        int form;
    } gemv[DT_COUNT];
};

extern const struct isa isa_ref; /* F32 activations, sums in double: the definition */
const struct isa *isa_best(void);
const struct isa *isa_by_name(const char *name); /* NULL: unknown, or not on this machine */
const struct isa *isa_at(int i); /* those of this machine, ref first; NULL past the last */
#endif
