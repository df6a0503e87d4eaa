/* matvec_k.cu - matvec for the most common K formats, alone and mixed as files mix them. */
#include "kernel/cuda/matvec_run.cuh"

#define PAIR(t, u) \
    if (a == DT_##t && b == DT_##u) return mv_kernel_of<mv_tiles<DT_##t>, mv_tiles<DT_##u>>();

struct mv_kernel *mv_kernel_k(int a, int b)
{
    PAIR(Q4_K, Q4_K)
    PAIR(Q6_K, Q6_K)
    PAIR(Q4_K, Q6_K)
    return NULL;
}
