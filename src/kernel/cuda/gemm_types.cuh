/* gemm_types.cuh - the weight types that the packed GEMM reads, one launch function each
 * (packed_run_<type>).
 *
 * Instances are compiled in inst/gemm_packed_*.cu, several types a file, so that they build in
 * parallel. */
#ifndef TERN_KERNEL_CUDA_GEMM_TYPES_CUH
#define TERN_KERNEL_CUDA_GEMM_TYPES_CUH

#include "kernel/cuda/cu_gemm.cuh"

/* clang-format off */
#define PACKED_TYPES(X) \
    X(F16, f16) X(BF16, bf16) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) \
    X(Q8_0, q8_0) X(IQ4_NL, iq4_nl) X(MXFP4, mxfp4) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k)
/* clang-format on */

/* Layouts of quantized folders' matrices (enum group_layout). */
#define PACKED_GROUPS(X) \
    X(U4, u4) X(U4_64, u4_64) X(U4_32, u4_32) X(U8, u8) X(E2M1_16, e2m1_16) X(E4M3, e4m3)

#define PACKED_PAIRS(X) X(Q4_K, Q6_K, q46_k) X(Q5_K, Q6_K, q56_k)

/* As packed_launch. Pairs: two types in one launch, on Hopper only. */
#define PACKED_DECLARE(T, name) \
    int packed_run_##name(struct cuda *c, int nt, int blocks, const struct packed_args *p);
#define PACKED_DECLARE_PAIR(T, T2, name) PACKED_DECLARE(T, name)
PACKED_TYPES(PACKED_DECLARE)
PACKED_GROUPS(PACKED_DECLARE)
PACKED_PAIRS(PACKED_DECLARE_PAIR)
#undef PACKED_DECLARE
#undef PACKED_DECLARE_PAIR

#ifdef TERN_KERNEL_CUDA_GEMM_HOPPER_CUH
/* MMA: the type that gemm_packed.cuh reads the weight by; HOPPER, HOPPER2: those of
 * gemm_hopper.cuh. void: there is no such kernel. */
template <class MMA, class HOPPER, class HOPPER2, int NT>
static int packed_run_nt(struct cuda *c, const char *name, int blocks, const struct packed_args *p)
{
    if constexpr (!std::is_void<HOPPER>::value)
        if (c->cc == 90) return hopper_launch<HOPPER, HOPPER2, NT>(c, name, blocks, p);
    if constexpr (std::is_void<MMA>::value) return 0;
    else return packed_launch_mma<MMA, NT>(c, name, blocks, p);
}

template <class MMA, class HOPPER, class HOPPER2 = HOPPER>
static int packed_run(struct cuda *c, const char *name, int nt, int blocks,
                      const struct packed_args *p)
{
    switch (nt) {
    case 16: return packed_run_nt<MMA, HOPPER, HOPPER2, 16>(c, name, blocks, p);
    case 32: return packed_run_nt<MMA, HOPPER, HOPPER2, 32>(c, name, blocks, p);
    case 64: return packed_run_nt<MMA, HOPPER, HOPPER2, 64>(c, name, blocks, p);
    case 128: return packed_run_nt<MMA, HOPPER, HOPPER2, 128>(c, name, blocks, p);
    default: return packed_run_nt<MMA, HOPPER, HOPPER2, 256>(c, name, blocks, p);
    }
}

#define PACKED_TYPE(name, ...)                                                             \
    int packed_run_##name(struct cuda *c, int nt, int blocks, const struct packed_args *p) \
    {                                                                                      \
        return packed_run<__VA_ARGS__>(c, "gemm " #name, nt, blocks, p);                   \
    }
#endif
#endif
