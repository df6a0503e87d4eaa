/* matmul.h - the CPU's `linear`: activations × weights, by whatever this machine has.
 *
 * Few tokens go through the matrix × vector kernels of isa.h, which read weights once for up
 * to 8 tokens; many tokens through a gemm.h implementation where there is one. The context
 * owns the buffers for quantized activations. One thread drives it. */
#ifndef TERN_KERNEL_CPU_MATMUL_H
#define TERN_KERNEL_CPU_MATMUL_H

#include "base/par.h"
#include "kernel/backend.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/isa.h"

struct matmul;

struct matmul_opt {
    const struct isa *isa;   /* NULL: the best of this machine; isa_ref is the definition */
    const struct gemm *gemm; /* NULL: none, the isa's kernels take all */
    const struct gemm *few;  /* asked before gemm; NULL: none */
};

/* The team must be the one cpu_linear is called with, and outlive the context. */
int matmul_open(struct matmul **out, struct par *par, struct matmul_opt opt, struct err *e);
void matmul_close(struct matmul *m); /* NULL is fine */

/* Buffers for products of up to this size, so that no call allocates. Larger calls still work:
 * the buffers grow then, once. */
int matmul_reserve(struct matmul *m, int max_tokens, int max_cols, struct err *e);
size_t matmul_bytes(const struct matmul *m); /* held at the moment */

bool matmul_can(const struct matmul *m, enum dtype t);
const char *matmul_name(const struct matmul *m); /* "avx512+vnni+amx" */
const struct isa *matmul_isa(const struct matmul *m);

/* Every job's out = scale * W x (+ bias) (+ out). x: F32 [tokens][cols]; outputs must not overlap
 * x. OK, or E_NOMEM where the buffers could not grow: outputs are not valid then. */
int cpu_linear(struct matmul *m, struct par *par, const struct tensor *x, const struct linear *jobs,
               int n_jobs);
#endif
