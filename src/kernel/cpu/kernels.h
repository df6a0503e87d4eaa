/* kernels.h - the kernels of one instruction set, and which of the sets this machine has.
 *
 * A set is complete: what an instruction set has no kernels for is taken from the next lower one.
 * The best set of the machine is used unless --isa or TERN_ISA names another, so that every path can
 * be tested and measured on one good machine. */
#ifndef TERN_KERNEL_CPU_KERNELS_H
#define TERN_KERNEL_CPU_KERNELS_H

#include "base/err.h"
#include "kernel/cpu/flash.h"
#include "kernel/cpu/matmul.h"
#include "kernel/cpu/recur.h"
#include "kernel/cpu/vec.h"

struct kernels {
    const char *name; /* "ref", "avx2", "avxvnni", "avx512", "amx", "neon" */
    struct matmul_opt matmul;
    const struct vec *vec;
    const struct recur *recur;
    const struct flash *flash; /* NULL: attend_ref */
};

/* The set of that name; NULL: that of TERN_ISA, and where it is not set the best of this machine.
 * E_INVALID: there is no such set. E_UNSUPPORTED: this CPU lacks it. Both list those it has. */
int kernels_find(struct kernels *out, const char *name, struct err *e);
/* The names of the sets of this machine, the best first; NULL after the last. */
const char *kernels_at(int i);
#endif
