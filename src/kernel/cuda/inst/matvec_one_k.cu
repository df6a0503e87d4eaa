/* matvec_one_k.cu - matvec of one token for formats with blocks of 256 columns, alone and mixed. */
#include "kernel/cuda/matvec_one.cuh"

#define PAIR(t, u) \
    if (a == DT_##t && b == DT_##u) return mv_one_of<one_tiles<DT_##t>, one_tiles<DT_##u>>();

struct mv_kernel *mv_one_k(int a, int b)
{
    PAIR(Q4_K, Q4_K)
    PAIR(Q6_K, Q6_K)
    PAIR(Q4_K, Q6_K)
    PAIR(Q2_K, Q2_K)
    PAIR(Q3_K, Q3_K)
    PAIR(Q5_K, Q5_K)
    PAIR(Q5_K, Q6_K)
    PAIR(IQ4_XS, IQ4_XS)
    return NULL;
}
