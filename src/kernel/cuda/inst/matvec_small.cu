/* matvec_small.cu - matvec for the most common formats with blocks of 32 columns. */
#include "kernel/cuda/matvec_run.cuh"

#define ALONE(t) \
    case DT_##t: return mv_kernel_of<mv_tiles<DT_##t>, mv_tiles<DT_##t>>();

struct mv_kernel *mv_kernel_small(int a, int b)
{
    if (a != b) return NULL;
    switch (a) {
        ALONE(Q4_0)
        ALONE(Q8_0)
        ALONE(IQ4_NL)
        ALONE(MXFP4)
    default: return NULL;
    }
}
