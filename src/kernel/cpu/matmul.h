/* matmul.h - matrix products of the CPU backend: activations times weights.
 *
 * Few tokens go through the matrix-vector kernels of isa.h (gemv), which read the weights once for
 * up to ISA_TOKENS tokens; this is bound by memory bandwidth. Many tokens go through a
 * matrix-matrix implementation of gemm.h, where the machine has one. struct matmul owns the buffers
 * for quantized and packed activations. One thread drives it, on its team. */
#ifndef TERN_KERNEL_CPU_MATMUL_H
#define TERN_KERNEL_CPU_MATMUL_H

#include "base/par.h"
#include "kernel/backend.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/isa.h"

struct matmul;

struct matmul_opt {
    const struct isa *isa;   /* gemv kernels; NULL: the best of this machine */
    const struct gemm *gemm; /* for many tokens; NULL: gemv kernels only */
    const struct gemm *few;  /* for a few tokens, tried before gemm; NULL: none */
    const struct gemm *rest; /* for types that gemm cannot compute; NULL: none */
    const struct numa *numa; /* on which the weights lie: threads begin with the rows of their node;
                              * NULL: none. Outlives the struct matmul */
};

/* par must be the team that cpu_linear is called with, and must outlive the struct matmul. */
int matmul_open(struct matmul **out, struct par *par, struct matmul_opt opt, struct err *e);
void matmul_close(struct matmul *m); /* NULL is allowed */

/* Allocates buffers for products of up to this size, so that no call allocates. Larger calls still
 * work: they grow the buffers once. */
int matmul_reserve(struct matmul *m, int max_tokens, int max_cols, struct err *e);
size_t matmul_bytes(const struct matmul *m); /* size of all buffers */

bool matmul_can(const struct matmul *m, enum dtype t); /* weights of this type */
const char *matmul_name(const struct matmul *m);       /* "avx512+vnni+amx" */
const struct isa *matmul_isa(const struct matmul *m);

/* For every job: out = scale * W x (+ bias) (+ out). x is F32 [tokens][cols]; outputs must not
 * overlap x. E_NOMEM: the buffers could not grow, and the outputs are not valid. */
int cpu_linear(struct matmul *m, struct par *par, const struct tensor *x, const struct linear *jobs,
               int n_jobs);
#endif
