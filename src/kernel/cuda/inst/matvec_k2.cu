/* matvec_k2.cu - matvec for the other formats with blocks of 256 columns. */
#include "kernel/cuda/matvec_run.cuh"

#define PAIR(t, u) \
    if (a == DT_##t && b == DT_##u) return mv_kernel_of<mv_tiles<DT_##t>, mv_tiles<DT_##u>>();

struct mv_kernel *mv_kernel_k2(int a, int b)
{
    PAIR(Q2_K, Q2_K)
    PAIR(Q3_K, Q3_K)
    PAIR(Q5_K, Q5_K)
    PAIR(Q5_K, Q6_K)
    PAIR(IQ4_XS, IQ4_XS)
    return NULL;
}
