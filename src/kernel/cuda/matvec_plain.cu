/* matvec_plain.cu - matvec instances for F16 and BF16 weights, and the kernel for F32 weights. */
#include "kernel/cuda/matvec_one.cuh"

struct mv_kernel *mv_kernel_plain(int a)
{
    if (a == DT_F16) return mv_kernel_of<mv_rows<DT_F16>, mv_rows<DT_F16>>();
    if (a == DT_BF16) return mv_kernel_of<mv_rows<DT_BF16>, mv_rows<DT_BF16>>();
    return NULL;
}

struct mv_kernel *mv_one_plain(int a, int b)
{
    if (a != b) return NULL;
    if (a == DT_F16) return mv_one_of<one_rows<DT_F16>, one_rows<DT_F16>>();
    if (a == DT_BF16) return mv_one_of<one_rows<DT_BF16>, one_rows<DT_BF16>>();
    return NULL;
}

/* F32 weights: a warp has a row, 8 warps a block, all tokens at once, in F32 throughout. */
static __global__ void __launch_bounds__(256) mv_run_f32(const __grid_constant__ struct mv_args a)
{
    __shared__ struct mv_state st;
    const struct mv_job &job = a.jobs[0];
    int lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5);
    float sum[CU_FEW] = {};
    cu_release_next();
    cu_wait_previous();
    if (a.norm != CU_NORM_NONE) mv_measure_x(a, st, true);
    if (row >= job.rows) return;
    const float *w = (const float *)job.w + (size_t)row * layout_stride(DT_F32, a.cols);
    for (int c = 4 * lane; c < a.cols; c += 128) {
        float4 f = __ldcs((const float4 *)(w + c));
#pragma unroll
        for (int tok = 0; tok < CU_FEW; tok++) {
            if (tok >= a.tokens) break;
            float4 v = mv_load4(a.x + tok * a.x_stride, c, a.cols, a.vec);
            if (a.norm != CU_NORM_NONE) {
                float4 one = make_float4(1.f, 1.f, 1.f, 1.f);
                v = mv_normed(a, st, v, a.norm_w ? mv_load4(a.norm_w, c, a.cols, a.vec) : one, c,
                              tok, true);
            }
            sum[tok] += f.x * v.x + f.y * v.y + f.z * v.z + f.w * v.w;
        }
    }
#pragma unroll
    for (int tok = 0; tok < CU_FEW; tok++) {
        if (tok >= a.tokens) break;
        float y = warp_sum(sum[tok]) * job.scale + (job.bias ? job.bias[row] : 0.f);
        float *out = job.out + tok * job.out_stride + row;
        if (lane) continue;
        if (a.active) y = act_of(a.act, y);
        else if (job.add) y += *out;
        *out = y;
    }
}

void mv_f32(struct cuda *c, const struct mv_args *a)
{
    cu_launch(c, "matvec f32", mv_run_f32, dim3((unsigned)(a->jobs[0].rows + 7) / 8), dim3(256), 0,
              *a);
}
