/* matvec_one_small.cu - matvec of one token for formats with blocks of 32 columns. */
#include "kernel/cuda/matvec_one.cuh"

#define ALONE(t) \
    case DT_##t: return mv_one_of<one_tiles<DT_##t>, one_tiles<DT_##t>>();

struct mv_kernel *mv_one_small(int a, int b)
{
    if (a != b) return NULL;
    switch (a) {
        ALONE(Q4_0)
        ALONE(Q4_1)
        ALONE(Q5_0)
        ALONE(Q5_1)
        ALONE(Q8_0)
        ALONE(IQ4_NL)
        ALONE(MXFP4)
    default: return NULL;
    }
}
