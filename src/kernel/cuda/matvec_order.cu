/* matvec_order.cu - x in the order of a weight's columns (GPTQ's act-order), for few tokens.
 *
 * The columns of such a weight are sorted by their group, so that neighbours share a scale. A norm
 * that comes before the matrix product is applied on the way. */
#include "kernel/cuda/matvec.cuh"

#define THREADS 256
#define EACH 2048 /* columns of a block */

struct order_args {
    float *out;
    const float *x;
    size_t x_stride;
    const int32_t *order;
    int cols;
    struct cu_norm norm;
};

/* The sum over the block, for all threads. */
static __device__ __forceinline__ float order_sum(float v, float *shared)
{
    float sum = 0.f;

    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) sum += shared[i];
    return sum;
}

/* Grid: tokens, parts of the columns. Every block of a token computes the norm's factor. */
static __global__ void __launch_bounds__(THREADS) order_kernel(const struct order_args a)
{
    __shared__ float shared[THREADS / 32];
    const float *x = a.x + (size_t)blockIdx.x * a.x_stride;
    float *out = a.out + (size_t)blockIdx.x * a.cols, mean = 0.f, by = 1.f, sum = 0.f;
    int c0 = blockIdx.y * EACH, c1 = min(a.cols, c0 + EACH);

    cu_release_next();
    cu_wait_previous();
    if (a.norm.kind == CU_NORM_LAYER) {
        for (int c = threadIdx.x; c < a.cols; c += THREADS) sum += x[c];
        mean = order_sum(sum, shared) / (float)a.cols;
    }
    if (a.norm.kind != CU_NORM_NONE) {
        sum = 0.f;
        for (int c = threadIdx.x; c < a.cols; c += THREADS) sum += (x[c] - mean) * (x[c] - mean);
        by = rsqrtf(order_sum(sum, shared) / (float)a.cols + a.norm.eps);
    }
    for (int c = c0 + threadIdx.x; c < c1; c += THREADS) {
        int from = __ldg(a.order + c);
        float v = (x[from] - mean) * by;
        if (a.norm.w) v *= __ldg(a.norm.w + from);
        if (a.norm.b) v += __ldg(a.norm.b + from);
        out[c] = v;
    }
}

void mv_order_x(struct cuda *c, float *out, const struct tensor *x, const struct cu_norm *n,
                const int32_t *order)
{
    struct order_args a = {};

    a.out = out;
    a.x = (const float *)x->data;
    a.x_stride = x->stride;
    a.order = order;
    a.cols = x->cols;
    a.norm.kind = n->kind;
    if (n->kind != CU_NORM_NONE) a.norm = *n;
    if (n->kind != CU_NORM_LAYER) a.norm.b = NULL;
    cu_launch(c, "order x", order_kernel,
              dim3((unsigned)x->rows, (unsigned)cu_div_up(x->cols, EACH)), dim3(THREADS), 0, a);
}
