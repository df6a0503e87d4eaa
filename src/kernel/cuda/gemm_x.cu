/* gemm_x.cu - activations to F16 for the GEMM, normalized and swizzled; plain weights to F16. */
#include "kernel/cuda/cu_gemm.cuh"
#include "kernel/cuda/cu_layout.cuh"

/* ---- eight numbers at a time ---- */

/* Eight floats from p, of which n exist; zeros after them. wide: 16-byte loads are possible. */
__device__ __forceinline__ void read8(float (&v)[8], const float *p, int n, bool wide)
{
    if (wide && n >= 8) {
        float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z,
        v[7] = b.w;
    } else
        for (int i = 0; i < 8; i++) v[i] = i < n ? p[i] : 0;
}

__device__ __forceinline__ __half2 pair(float a, float b)
{
    return __halves2half2(half_sat(a), half_sat(b));
}

/* Writes columns 8i .. 8i + 7 of token t; rows have ld numbers. nt: swizzled in blocks of nt
 * tokens; 0: plain rows. */
__device__ __forceinline__ void write8(__half *out, int t, int i, const float (&v)[8], int ld,
                                       int nt)
{
    if (nt) {
        __align__(16) __half2 h[4] = { pair(v[0], v[1]), pair(v[4], v[5]), pair(v[2], v[3]),
                                       pair(v[6], v[7]) };
        *(uint2 *)(out + swizzled_at(t, 8 * i, nt, ld / 64)) = *(uint2 *)h;
        *(uint2 *)(out + swizzled_at(t, 8 * i + 2, nt, ld / 64)) = *(uint2 *)(h + 2);
    } else {
        __align__(16) __half2 h[4] = { pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]),
                                       pair(v[6], v[7]) };
        *(uint4 *)(out + (size_t)t * ld + 8 * i) = *(uint4 *)h;
    }
}

/* The sum over the block, for all threads. */
__device__ float block_sum(float v, float *shared)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0;
    __syncthreads();
    return warp_sum(v);
}

/* ---- the input of a matrix product ---- */

struct x_args {
    const float *x;
    size_t stride;
    __half *out;
    int cols, ld, nt;
    bool wide;
    struct cu_norm norm;
    const int32_t *order; /* column c of out is column order[c] of x; NULL: c */
};

/* Columns 8i .. 8i + 7 of out, of which n exist, in the order of the weight's columns. */
__device__ __forceinline__ void read8_ordered(float (&v)[8], const struct x_args &p, const float *x,
                                              int i, int n, float mean, float scale)
{
    for (int e = 0; e < 8; e++) {
        v[e] = 0;
        if (e >= n) continue;
        int c = p.order[i * 8 + e];
        v[e] = (x[c] - mean) * scale;
        if (p.norm.w) v[e] *= p.norm.w[c];
        if (p.norm.b) v[e] += p.norm.b[c];
    }
}

/* A block has a token. A thread keeps KEEP times 8 columns in registers, so x is read once. */
template <int KEEP> static __global__ void __launch_bounds__(1024) x_kernel(const struct x_args p)
{
    __shared__ float shared[32];
    const float *x = p.x + (size_t)blockIdx.x * p.stride;
    float v[KEEP][8], mean = 0, scale = 1, sum = 0;

    cu_release_next();
    cu_wait_previous();
#pragma unroll
    for (int k = 0; k < KEEP; k++) {
        int i = k * blockDim.x + threadIdx.x;
        read8(v[k], x + i * 8, p.cols - i * 8, p.wide);
        for (int e = 0; e < 8; e++) sum += v[k][e];
    }
    /* Squares are summed around the mean, from registers: no cancellation, and x is read once. */
    if (p.norm.kind == CU_NORM_LAYER) mean = block_sum(sum, shared) / (float)p.cols;
    if (p.norm.kind != CU_NORM_NONE) {
        sum = 0;
#pragma unroll
        for (int k = 0; k < KEEP; k++)
            for (int e = 0; e < 8; e++)
                if ((k * blockDim.x + threadIdx.x) * 8 + e < p.cols)
                    sum += (v[k][e] - mean) * (v[k][e] - mean);
        scale = rsqrtf(block_sum(sum, shared) / (float)p.cols + p.norm.eps);
    }
#pragma unroll
    for (int k = 0; k < KEEP; k++) {
        int i = k * blockDim.x + threadIdx.x, n = p.cols - i * 8;
        if (i * 8 >= p.ld) break;
        if (p.order) {
            read8_ordered(v[k], p, x, i, n, mean, scale);
        } else if (p.norm.kind != CU_NORM_NONE) {
            float w[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, b[8] = {};
            if (p.norm.w) read8(w, p.norm.w + i * 8, n, p.wide);
            if (p.norm.b) read8(b, p.norm.b + i * 8, n, p.wide);
            for (int e = 0; e < 8; e++)
                v[k][e] = e < n ? (v[k][e] - mean) * scale * w[e] + b[e] : 0;
        }
        write8(p.out, blockIdx.x, i, v[k], p.ld, p.nt);
    }
    gemm_fence_async();
}

static bool is_wide(const void *p) { return (uintptr_t)p % 16 == 0; }

/* Up to 1,024 threads with 1, 2 or 8 groups of 8 columns each: rows of up to 65,536 numbers. */
void gemm_x(struct cuda *c, __half *xh, const struct tensor *x, const struct cu_norm *n, int nt,
            const int32_t *order)
{
    int ld = gemm_pad(x->cols), keep = ld <= 8192 ? 1 : ld <= 16384 ? 2 : 8;
    struct x_args p = { (const float *)x->data, x->stride, xh, x->cols, ld, nt, false, *n, order };
    dim3 grid(x->rows), block((ld / 8 + keep * 32 - 1) / (keep * 32) * 32);

    p.wide = is_wide(x->data) && x->stride % 4 == 0 && is_wide(n->w) && is_wide(n->b);
    if (order && n->kind == CU_NORM_NONE) p.norm.w = p.norm.b = NULL;
    if (keep == 1) gemm_launch_small<x_kernel<1>>(c, "gemm x", grid, block, p);
    else if (keep == 2) gemm_launch_small<x_kernel<2>>(c, "gemm x", grid, block, p);
    else if (ld <= 65536) gemm_launch_small<x_kernel<8>>(c, "gemm x", grid, block, p);
    else
        cu_fail(c, E_UNSUPPORTED, "%s: a matrix product of %d columns; at most 65536 are supported",
                c->be.name, x->cols);
}

/* ---- act(gate) * up ---- */

struct act_args {
    float *out;
    size_t stride;
    __half *xh;
    const __half *gate, *up;
    int cols, ld;
    bool wide;
    enum act act;
};

/* Eight numbers for each thread. cuBLASLt may have produced infinities: they are clamped. */
static __global__ void act_kernel(const struct act_args p)
{
    int i = blockIdx.y * blockDim.x + threadIdx.x, n = p.cols - i * 8;
    size_t at = (size_t)blockIdx.x * p.ld + i * 8;
    float v[8];

    cu_release_next();
    cu_wait_previous();
    if (n <= 0) return;
    uint4 g4 = *(const uint4 *)(p.gate + at),
          u4 = p.up ? *(const uint4 *)(p.up + at) : make_uint4(0, 0, 0, 0);
    const __half *g = (const __half *)&g4, *u = (const __half *)&u4;
    for (int k = 0; k < 8; k++) {
        float a = act_of(p.act, fminf(fmaxf(__half2float(g[k]), -65504.f), 65504.f));
        v[k] = k < n ? (p.up ? a * fminf(fmaxf(__half2float(u[k]), -65504.f), 65504.f) : a) : 0;
    }
    write8(p.xh, blockIdx.x, i, v, p.ld, 0);
    float *out = p.out + (size_t)blockIdx.x * p.stride + i * 8;
    if (p.wide && n >= 8) {
        *(float4 *)out = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(out + 4) = make_float4(v[4], v[5], v[6], v[7]);
    } else
        for (int k = 0; k < min(n, 8); k++) out[k] = v[k];
}

void gemm_act(struct cuda *c, const struct tensor *out, __half *xh, const __half *gate,
              const __half *up, int ld, enum act act)
{
    struct act_args p = {
        (float *)out->data, out->stride, xh, gate, up, out->cols, ld, false, act
    };

    p.wide = is_wide(out->data) && out->stride % 4 == 0;
    gemm_launch_small<act_kernel>(c, "gemm act", dim3(out->rows, (out->cols + 2047) / 2048),
                                  dim3(256), p);
}

/* ---- plain weights ---- */

/* Rows of F16, BF16 or F32 to F16 rows of ld numbers. Grid: rows, groups of 2,048 columns. */
static __global__ void plain_kernel(__half *out, int ld, const void *w, int type, int cols,
                                    int stride)
{
    size_t row = (size_t)blockIdx.x * stride;
    int i = blockIdx.y * blockDim.x + threadIdx.x, n = cols - i * 8;
    __align__(16) uint16_t two[8] = {};
    float v[8] = {};

    cu_release_next();
    cu_wait_previous();
    if (i * 8 >= ld) return;
    if (type == DT_F32) read8(v, (const float *)w + row + i * 8, n, true);
    else if (n > 0) *(uint4 *)two = *(const uint4 *)((const uint16_t *)w + row + i * 8);
    for (int k = 0; k < 8 && type != DT_F32; k++)
        v[k] = k >= n           ? 0
               : type == DT_F16 ? __half2float(__ushort_as_half(two[k]))
                                : __uint_as_float(two[k] << 16);
    write8(out, blockIdx.x, i, v, ld, 0);
}

void gemm_plain(struct cuda *c, __half *out, int ld, const struct weight *w, int r0, int n_rows)
{
    int type = layout_type(cu_type(w));
    size_t stride = layout_stride(cu_type(w), w->cols);
    const char *from = (const char *)w->packed + (size_t)r0 * stride * (type == DT_F32 ? 4 : 2);

    cu_launch(c, "gemm plain", plain_kernel, dim3(n_rows, (ld / 8 + 255) / 256), dim3(256), 0, out,
              ld, (const void *)from, type, w->cols, (int)stride);
}
