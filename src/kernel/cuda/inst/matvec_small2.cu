/* matvec_small2.cu - matvec for the other formats with blocks of 32 columns. */
#include "kernel/cuda/matvec_run.cuh"

#define ALONE(t) \
    case DT_##t: return mv_kernel_of<mv_tiles<DT_##t>, mv_tiles<DT_##t>>();

struct mv_kernel *mv_kernel_small2(int a, int b)
{
    if (a != b) return NULL;
    switch (a) {
        ALONE(Q4_1)
        ALONE(Q5_0)
        ALONE(Q5_1)
    default: return NULL;
    }
}
