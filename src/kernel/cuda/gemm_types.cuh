/* gemm_types.cuh - the types of weights that are read as they are, one function each. */
#ifndef TERN_KERNEL_CUDA_GEMM_TYPES_CUH
#define TERN_KERNEL_CUDA_GEMM_TYPES_CUH

#include "kernel/cuda/cu_gemm.cuh"

/* clang-format off */
#define MID_TYPES(X) \
    X(F16, f16) X(BF16, bf16) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) \
    X(Q8_0, q8_0) X(IQ4_NL, iq4_nl) X(MXFP4, mxfp4) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k)
/* clang-format on */

#define MID_PAIRS(X) X(Q4_K, Q6_K, q46_k) X(Q5_K, Q6_K, q56_k)

/* As mid_launch; pairs: two types in one launch, on Hopper. */
#define MID_DECLARE(T, name) \
    int mid_run_##name(struct cuda *c, int nt, int blocks, const struct mid_args *p);
#define MID_DECLARE_PAIR(T, T2, name) MID_DECLARE(T, name)
MID_TYPES(MID_DECLARE)
MID_PAIRS(MID_DECLARE_PAIR)
#undef MID_DECLARE
#undef MID_DECLARE_PAIR

#ifdef TERN_KERNEL_CUDA_GEMM_HOP_CUH
/* OLD: how gemm_mid.cuh reads it; HOP: how Hopper's kernel does, void where that has no way. */
template <class OLD, class HOP, class HOP2, int NT>
static int mid_run_nt(struct cuda *c, const char *name, int blocks, const struct mid_args *p)
{
    if constexpr (!std::is_void<HOP>::value)
        if (c->cc == 90) return hop_launch<HOP, HOP2, NT>(c, name, blocks, p);
    if constexpr (std::is_void<OLD>::value) return 0;
    else return mid_launch_old<OLD, NT>(c, name, blocks, p);
}

template <class OLD, class HOP, class HOP2 = HOP>
static int mid_run(struct cuda *c, const char *name, int nt, int blocks, const struct mid_args *p)
{
    switch (nt) {
    case 16: return mid_run_nt<OLD, HOP, HOP2, 16>(c, name, blocks, p);
    case 32: return mid_run_nt<OLD, HOP, HOP2, 32>(c, name, blocks, p);
    case 64: return mid_run_nt<OLD, HOP, HOP2, 64>(c, name, blocks, p);
    case 128: return mid_run_nt<OLD, HOP, HOP2, 128>(c, name, blocks, p);
    default: return mid_run_nt<OLD, HOP, HOP2, 256>(c, name, blocks, p);
    }
}

#define MID_TYPE(name, ...)                                                          \
    int mid_run_##name(struct cuda *c, int nt, int blocks, const struct mid_args *p) \
    {                                                                                \
        return mid_run<__VA_ARGS__>(c, "gemm " #name, nt, blocks, p);                \
    }
#endif
#endif
