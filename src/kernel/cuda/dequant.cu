/* dequant.cu - rows of a weight as F16, for cuBLASLt, which multiplies F16 only.
 *
 * The result has cols numbers a row without gaps; of tiles, rows start at multiples of 8 numbers,
 * which differs for quantized folders only. cu_gemm.cu converts a slice of a weight at a
 * time, so that the slice is still in the L2 cache when cuBLASLt reads it. */
#include "kernel/cuda/tile_group.cuh"

/* Block formats. A warp has a tile, 8 warps a block; rows of the tile outside [r0, r1) are
 * skipped. */
template <int T>
static __global__ void dequant_tiles(__half *out, const uint8_t *w, int cols, int ld, int r0,
                                     int r1, int n_tiles)
{
    constexpr int GROUP = tile<T>::GROUP;
    cu_release_next();
    int lane = threadIdx.x & 31, i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int n_kb = layout_blocks(T, cols), first = r0 / TILE_ROWS, t = first + i / n_kb, kb = i % n_kb;
    cu_wait_previous();
    if (i >= n_tiles) return;
    const uint8_t *p = layout_tile(T, w, cols, t, kb);
    typename tile<T>::head head = tile<T>::open(p, lane);
#pragma unroll
    for (int j = 0; j < tile<T>::COLS / 32 / GROUP; j++) {
        uint32_t a[GROUP][2][4];
        tile_f16<T>(a, head, p, lane, j);
#pragma unroll
        for (int b = 0; b < GROUP; b++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int r = t * TILE_ROWS + (lane >> 2) + 8 * h;
                if (r < r0 || r >= r1) continue;
                int c = kb * tile<T>::COLS + (j * GROUP + b) * 32 + 4 * (lane & 3);
                __half *to = out + (size_t)(r - r0) * ld + c;
                /* Tiles of quantized folders may be wider than the matrix; a row has ld >= cols
                 * numbers, a multiple of 8. */
                if (T < LAYOUT_U4 || c < ld) *(uint2 *)to = make_uint2(a[b][h][0], a[b][h][1]);
                if (T < LAYOUT_U4 || c + 16 < ld)
                    *(uint2 *)(to + 16) = make_uint2(a[b][h][2], a[b][h][3]);
            }
        }
    }
}

/* Plain types: a block has a row, or a quarter of one (grid.y). */
template <typename E> static __device__ __forceinline__ __half to_half(E v);
template <> __device__ __forceinline__ __half to_half(__half v) { return v; }
template <> __device__ __forceinline__ __half to_half(__nv_bfloat16 v)
{
    return half_sat(__bfloat162float(v));
}
template <> __device__ __forceinline__ __half to_half(float v) { return half_sat(v); }

template <typename E>
static __global__ void dequant_rows(__half *out, const E *w, int cols, size_t stride)
{
    cu_release_next();
    cu_wait_previous();
    for (int c = blockIdx.y * blockDim.x + threadIdx.x; c < cols; c += gridDim.y * blockDim.x)
        out[(size_t)blockIdx.x * cols + c] = to_half<E>(w[(size_t)blockIdx.x * stride + c]);
}

/* n: tiles that contain rows [r0, r0 + n_rows). */
template <int T>
static void dequant_of(struct cuda *c, __half *out, const uint8_t *m, const struct weight *w,
                       int r0, int n_rows)
{
    int n = ((r0 + n_rows - 1) / TILE_ROWS - r0 / TILE_ROWS + 1) * layout_blocks(T, w->cols);
    cu_launch(c, "dequant", dequant_tiles<T>, dim3((n + 7) / 8), dim3(256), 0, out, m, w->cols,
              (int)layout_stride(DT_F16, w->cols), r0, r0 + n_rows, n);
}

void cu_dequant(struct cuda *c, __half *out, const struct weight *w, int i, int r0, int n_rows)
{
    const uint8_t *m =
        (const uint8_t *)w->packed + (size_t)i * layout_matrix_bytes(cu_type(w), w->rows, w->cols);
    size_t stride = layout_stride(cu_type(w), w->cols);
    dim3 grid((unsigned)n_rows, w->cols > 2048 ? 4 : 1), block(256);
    if (n_rows < 1) return;
    switch (layout_type(cu_type(w))) {
    case DT_Q4_0: dequant_of<DT_Q4_0>(c, out, m, w, r0, n_rows); break;
    case DT_Q4_1: dequant_of<DT_Q4_1>(c, out, m, w, r0, n_rows); break;
    case DT_Q5_0: dequant_of<DT_Q5_0>(c, out, m, w, r0, n_rows); break;
    case DT_Q5_1: dequant_of<DT_Q5_1>(c, out, m, w, r0, n_rows); break;
    case DT_Q8_0: dequant_of<DT_Q8_0>(c, out, m, w, r0, n_rows); break;
    case DT_IQ4_NL: dequant_of<DT_IQ4_NL>(c, out, m, w, r0, n_rows); break;
    case DT_MXFP4: dequant_of<DT_MXFP4>(c, out, m, w, r0, n_rows); break;
    case DT_Q2_K: dequant_of<DT_Q2_K>(c, out, m, w, r0, n_rows); break;
    case DT_Q3_K: dequant_of<DT_Q3_K>(c, out, m, w, r0, n_rows); break;
    case DT_Q4_K: dequant_of<DT_Q4_K>(c, out, m, w, r0, n_rows); break;
    case DT_Q5_K: dequant_of<DT_Q5_K>(c, out, m, w, r0, n_rows); break;
    case DT_Q6_K: dequant_of<DT_Q6_K>(c, out, m, w, r0, n_rows); break;
    case DT_IQ4_XS: dequant_of<DT_IQ4_XS>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_U4: dequant_of<LAYOUT_U4>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_U4_64: dequant_of<LAYOUT_U4_64>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_U4_32: dequant_of<LAYOUT_U4_32>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_U8: dequant_of<LAYOUT_U8>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_U2: dequant_of<LAYOUT_U2>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_U2_ONE: dequant_of<LAYOUT_U2_ONE>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_E2M1_16: dequant_of<LAYOUT_E2M1_16>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_E4M3: dequant_of<LAYOUT_E4M3>(c, out, m, w, r0, n_rows); break;
    case LAYOUT_E4M3_64: dequant_of<LAYOUT_E4M3_64>(c, out, m, w, r0, n_rows); break;
    case DT_BF16:
        cu_launch(c, "dequant", dequant_rows<__nv_bfloat16>, grid, block, 0, out,
                  (const __nv_bfloat16 *)m + (size_t)r0 * stride, w->cols, stride);
        break;
    case DT_F32:
        cu_launch(c, "dequant", dequant_rows<float>, grid, block, 0, out,
                  (const float *)m + (size_t)r0 * stride, w->cols, stride);
        break;
    default:
        cu_launch(c, "dequant", dequant_rows<__half>, grid, block, 0, out,
                  (const __half *)m + (size_t)r0 * stride, w->cols, stride);
    }
}
