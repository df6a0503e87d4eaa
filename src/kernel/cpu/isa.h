/* isa.h - matrix-vector kernels (gemv) of each data type: one table per instruction set, chosen at
 * start-up.
 *
 * A kernel multiplies rows of weights, read in their file format, with up to ISA_TOKENS vectors of
 * activations in a form it prescribes: F32, or quantized to 8 bits with a scale per block. The
 * layout of a quantized form is private to the instruction set; matmul.c only knows its size.
 *
 * To add an instruction set: a file isa_NAME.c with the table, kernels in *_NAME.c, flags for the
 * suffix in the Makefile, and its detection in isa.c. tests/ops/test_linear.c compares every table
 * with isa_ref. */
#ifndef TERN_KERNEL_CPU_ISA_H
#define TERN_KERNEL_CPU_ISA_H

#include "base/dtype.h"
#include "base/grouped.h"

#define ISA_TOKENS 8 /* vectors of activations a kernel takes at most */
#define ISA_FORMS 4  /* forms of activations an instruction set may have, including F32 */

/* out[t][r] = sum over c of W[r][c] * x[t][c]. */
struct gemv {
    enum dtype type;
    int cols, n_rows, n_tokens; /* n_tokens: 1 to ISA_TOKENS */
    const void *w;              /* the first row */
    size_t w_stride;            /* bytes from one row to the next */
    const void *x;              /* the first token, in the kernel's form */
    size_t x_stride;            /* bytes from one token to the next */
    float *out;                 /* [n_tokens][out_stride floats]; n_rows of each are written */
    size_t out_stride;
    const struct grouped *group; /* of DT_GROUPED; else NULL */
};

static inline const char *gemv_row(const struct gemv *g, int r)
{
    return (const char *)g->w + (size_t)r * g->w_stride;
}
static inline const void *gemv_x(const struct gemv *g, int t)
{
    return (const char *)g->x + (size_t)t * g->x_stride;
}

typedef void gemv_fn(const struct gemv *g);

/* For types without a kernel of their own: decodes a piece of a row at a time to F32 and calls the
 * instruction set's F32 kernel. */
void gemv_decoded(const struct gemv *g, gemv_fn *f32);

struct isa_form {
    size_t (*bytes)(int cols);                         /* size of one token; a multiple of 64 */
    void (*make)(void *dst, const float *x, int cols); /* dst aligned to 64 bytes */
};

struct isa {
    const char *name;
    struct isa_form form[ISA_FORMS]; /* form 0 is F32, unconverted: no functions */
    struct {
        gemv_fn *fn; /* NULL: weights of this type are not supported */
        int form;    /* index into `form`: what the kernel expects as x */
    } gemv[DT_COUNT];
};

extern const struct isa
    isa_ref; /* F32 activations, sums in double: the definition of the results */
const struct isa *isa_best(void);                /* the fastest one this machine has */
const struct isa *isa_by_name(const char *name); /* NULL: unknown, or not on this machine */
const struct isa *isa_at(int i); /* all of this machine, isa_ref first; NULL after the last */
#endif
