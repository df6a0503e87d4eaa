/* ops_embed.cu - rows of the embedding matrix as F32, in any layout of cu_layout.cuh. */
#include "kernel/cuda/tile_group.cuh"

#define THREADS 128

struct embed_dev {
    float *out;
    size_t out_stride;
    const void *w;
    const int32_t *ids;
    int rows, w_rows, cols, type;
    float scale;
};

/* Block formats. Thread t of four has columns 4t..4t + 3 and the same + 16 of each group of 32. */
template <int T>
static __device__ __forceinline__ void embed_tile(const embed_dev &e, float *out, int id)
{
    typedef tile<T> L;
    constexpr int loads = L::COLS / 32 / L::GROUP; /* loads of a tile */
    int work = layout_blocks(T, e.cols) * loads * 4, h = id % TILE_ROWS / 8;

    /* The tile has 16 rows; only row id is unpacked. Four threads share a load. */
    for (int i = threadIdx.x; i < work; i += THREADS) {
        int t = i & 3, j = (i >> 2) % loads, kb = (i >> 2) / loads, lane = 4 * (id % 8) + t;
        const uint8_t *p = layout_tile(T, e.w, e.cols, id / TILE_ROWS, kb);
        typename L::head head = L::open(p, lane);
        uint32_t a[L::GROUP][2][4];
        L::load(a, p, lane, j);
#pragma unroll
        for (int g = 0; g < L::GROUP; g++) {
            int b = j * L::GROUP + g;
            float v[8];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t pair = h ? a[g][1][k] : a[g][0][k];
                float2 f = __half22float2(*(__half2 *)&pair);
                float d = h ? head.d[1] * L::small(head, 1, b, k / 2)
                            : head.d[0] * L::small(head, 0, b, k / 2);
                float m = 0.f;
                if (L::MIN && h) m = head.m[1] * L::small_min(head, 1, b, k / 2);
                else if (L::MIN) m = head.m[0] * L::small_min(head, 0, b, k / 2);
                v[2 * k] = (d * (f.x - L::bias(k)) - m) * e.scale;
                v[2 * k + 1] = (d * (f.y - L::bias(k)) - m) * e.scale;
            }
            int to = kb * L::COLS + b * 32 + 4 * t;
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (T < LAYOUT_U4 || to + k % 4 + k / 4 * 16 < e.cols)
                    out[to + k % 4 + k / 4 * 16] = v[k];
        }
    }
}

/* F32, F16 and BF16 rows. */
template <typename N>
static __device__ __forceinline__ void embed_plain(const embed_dev &e, float *out, int id)
{
    const N *w = (const N *)e.w + (size_t)id * layout_stride(e.type, e.cols);

    for (int i = threadIdx.x; i < e.cols; i += THREADS) out[i] = (float)w[i] * e.scale;
}

/* A block has a token. An id outside the vocabulary gives zeros; callers check their ids. */
static __global__ void __launch_bounds__(THREADS) embed(const embed_dev e)
{
    cu_release_next();
    cu_wait_previous();
    float *out = e.out + (size_t)blockIdx.x * e.out_stride;
    int id = e.ids[blockIdx.x];

    if (id < 0 || id >= e.w_rows) {
        for (int i = threadIdx.x; i < e.cols; i += THREADS) out[i] = 0.f;
        return;
    }
    /* One kernel for all types: the branch is uniform, and a row is small. */
    switch (e.type) {
    case DT_F32: embed_plain<float>(e, out, id); break;
    case DT_F16: embed_plain<__half>(e, out, id); break;
    case DT_BF16: embed_plain<__nv_bfloat16>(e, out, id); break;
    case DT_Q4_0: embed_tile<DT_Q4_0>(e, out, id); break;
    case DT_Q4_1: embed_tile<DT_Q4_1>(e, out, id); break;
    case DT_Q5_0: embed_tile<DT_Q5_0>(e, out, id); break;
    case DT_Q5_1: embed_tile<DT_Q5_1>(e, out, id); break;
    case DT_Q8_0: embed_tile<DT_Q8_0>(e, out, id); break;
    case DT_IQ4_NL: embed_tile<DT_IQ4_NL>(e, out, id); break;
    case DT_MXFP4: embed_tile<DT_MXFP4>(e, out, id); break;
    case DT_Q2_K: embed_tile<DT_Q2_K>(e, out, id); break;
    case DT_Q3_K: embed_tile<DT_Q3_K>(e, out, id); break;
    case DT_Q4_K: embed_tile<DT_Q4_K>(e, out, id); break;
    case DT_Q5_K: embed_tile<DT_Q5_K>(e, out, id); break;
    case DT_Q6_K: embed_tile<DT_Q6_K>(e, out, id); break;
    case DT_IQ4_XS: embed_tile<DT_IQ4_XS>(e, out, id); break;
    case LAYOUT_U4: embed_tile<LAYOUT_U4>(e, out, id); break;
    case LAYOUT_U4_64: embed_tile<LAYOUT_U4_64>(e, out, id); break;
    case LAYOUT_U4_32: embed_tile<LAYOUT_U4_32>(e, out, id); break;
    case LAYOUT_U8: embed_tile<LAYOUT_U8>(e, out, id); break;
    case LAYOUT_U2: embed_tile<LAYOUT_U2>(e, out, id); break;
    case LAYOUT_U2_ONE: embed_tile<LAYOUT_U2_ONE>(e, out, id); break;
    case LAYOUT_E2M1_16: embed_tile<LAYOUT_E2M1_16>(e, out, id); break;
    case LAYOUT_E4M3: embed_tile<LAYOUT_E4M3>(e, out, id); break;
    case LAYOUT_E4M3_64: embed_tile<LAYOUT_E4M3_64>(e, out, id); break;
    }
}

void cu_embed(struct cuda *c, const struct tensor *out, const struct weight *w, const int32_t *ids,
              float scale)
{
    struct embed_dev e = {};

    e.out = (float *)out->data;
    e.out_stride = out->stride;
    e.w = w->packed;
    e.ids = ids;
    e.rows = out->rows;
    e.w_rows = w->rows;
    e.cols = w->cols;
    e.type = layout_type(cu_type(w));
    e.scale = scale;
    if (cu_order_id(w))
        cu_fail(c, E_UNSUPPORTED, "%s: an embedding whose columns are in another order",
                c->be.name);
    else if (e.rows) cu_launch(c, "embed", embed, dim3(e.rows), dim3(THREADS), 0, e);
}
