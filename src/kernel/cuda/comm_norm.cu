/* comm_norm.cu - an RMS norm over columns that several members have divided: the sums of squares of
 * this member's columns, and after the sum over all members the norm itself. */
#include "kernel/cuda/cu.cuh"

#define THREADS 256

/* One block per row. */
static __global__ void __launch_bounds__(THREADS)
    square_kernel(float *sums, const float *x, size_t stride, int cols, bool counts)
{
    __shared__ float part[THREADS / 32];
    const float *row = x + (size_t)blockIdx.x * stride;
    float sum = 0.f;

    cu_wait_previous();
    cu_release_next();
    for (int i = (int)threadIdx.x; counts && i < cols; i += THREADS) sum += row[i] * row[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < THREADS / 32; i++) sum += part[i];
    sums[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    norm_kernel(float *out, size_t out_stride, const float *x, size_t stride, const float *sums,
                int cols, float n, const float *w, float eps)
{
    const float *from = x + (size_t)blockIdx.x * stride;
    float *to = out + (size_t)blockIdx.x * out_stride, by;

    cu_wait_previous();
    cu_release_next();
    by = 1.f / sqrtf(sums[blockIdx.x] / n + eps);
    for (int i = (int)threadIdx.x; i < cols; i += THREADS)
        to[i] = from[i] * (by * (w ? w[i] : 1.f));
}

void cu_square_sums(struct cuda *c, float *sums, const struct tensor *x, bool counts)
{
    cu_launch(c, "square sums", square_kernel, dim3((unsigned)x->rows), dim3(THREADS), 0, sums,
              (const float *)x->data, x->stride, x->cols, counts);
}

void cu_norm_by_sums(struct cuda *c, const struct tensor *out, const struct tensor *x,
                     const float *sums, int n, const float *w, float eps)
{
    cu_gemm_reset(c); /* out may be an x that it has in F16 */
    cu_launch(c, "norm by sums", norm_kernel, dim3((unsigned)x->rows), dim3(THREADS), 0,
              (float *)out->data, out->stride, (const float *)x->data, x->stride, sums, x->cols,
              (float)n, w, eps);
}
