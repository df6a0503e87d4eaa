/* attend_pick.cu - attention over keys that were selected one by one: by an indexer (sparse
 * attention), or entries that stand for several positions (compressed attention).
 *
 * A block has one query head of one token. Its warps divide the words of the selection, and each
 * reads the keys of its bits one after the other; the lanes divide the dimensions. Products are in
 * F32: few keys are left, and which ones is known only on the device. Very small models are attended in
 * this way too, with all keys (cu_attend). The online softmax and its
 * combination over warps are those of the other attention kernels (cu_attend.cuh). */
#include "kernel/cuda/cu_attend.cuh"

extern "C" {
#include "kernel/cuda/record.h"
}

#define WARPS 8
#define THREADS (WARPS * 32)

struct pick_dev {
    struct attend_dev a;
    /* [token][bits_rows][bits_stride]: of keys or, with a rate, of entries; NULL: all of them */
    const uint32_t *bits;
    size_t bits_stride;
    int bits_rows, heads_each; /* query heads that share a row of bits */
    int rate; /* positions of an entry, which is in a row of values; 0: no entries */
};

/* The part of an online softmax that a warp has; a lane has numbers lane, lane + 32, ... of the sum. */
template <int N> struct pick_state {
    float top, sum, o[N];
};

/* Adds one key and its value. distance: of the key's position from the token's. */
template <int N>
static __device__ __forceinline__ void add_key(const attend_dev &a, pick_state<N> &st,
                                               const float *q, const char *k, const char *v,
                                               float slope, int distance)
{
    int lane = threadIdx.x & 31;
    float s = 0.f;

    for (int i = lane; i < a.dk; i += 32) s = fmaf(q[i], kv_number(a.kv.type, k, i), s);
    s = attend_score(a, warp_sum(s), slope, distance);
    float top = fmaxf(st.top, s), less = exp2f(st.top - top), weight = exp2f(s - top);
    st.top = top;
    st.sum = fmaf(st.sum, less, weight);
#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = lane + 32 * j;
        float x = i < a.dv ? kv_number(a.kv.type, v, i) : 0.f;
        st.o[j] = fmaf(st.o[j], less, weight * x);
    }
}

/* Calls add for every set bit in [first, last] that belongs to this warp. */
template <class F>
static __device__ __forceinline__ void each_bit(const uint32_t *bits, int first, int last, F add)
{
    for (int w = (first >> 5) + (int)(threadIdx.x >> 5); w <= last >> 5; w += WARPS) {
        uint32_t set = bits ? bits[w] : ~0u;
        if (w == first >> 5) set &= ~0u << (first & 31);
        if (last - w * 32 < 31) set &= (2u << (last - w * 32)) - 1;
        for (; set; set &= set - 1) add(w * 32 + __ffs((int)set) - 1);
    }
}

static __device__ __forceinline__ const char *row_at(const kv_rows &r, const int32_t *blocks,
                                                     int head, int pos)
{
    return kv_head_at(r, blocks[pos / KV_BLOCK], head) + (size_t)(pos % KV_BLOCK) * r.row_bytes;
}

/* The warps' parts become the result. sums: [WARPS][dv] in shared memory. */
template <int N>
static __device__ __forceinline__ void combine_warps(const attend_dev &a, const pick_state<N> &st,
                                                     float *sums, int token, int head)
{
    __shared__ float tops[WARPS], totals[WARPS];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sink = a.sinks ? a.sinks[head] * LOG2E : -INFINITY, top = sink;

    if (lane == 0) {
        tops[warp] = st.top;
        totals[warp] = st.sum;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        if (lane + 32 * j < a.dv) sums[warp * a.dv + lane + 32 * j] = st.o[j];
    __syncthreads();
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);
    float total = a.sinks ? exp2f(sink - top) : 0.f;
    for (int w = 0; w < WARPS; w++) total += exp2f(tops[w] - top) * totals[w];
    float *out = a.out + (size_t)token * a.out_stride + (size_t)head * a.dv;
    for (int i = threadIdx.x; i < a.dv; i += THREADS) {
        float sum = 0.f;
        for (int w = 0; w < WARPS; w++) sum = fmaf(exp2f(tops[w] - top), sums[w * a.dv + i], sum);
        out[i] = sum / total;
    }
}

/* Grid: tokens, query heads. N: numbers of a value that a lane has. With a rate keys are values,
 * too, and the selection is among the entries. */
template <int N>
static __global__ void __launch_bounds__(THREADS) attend_pick(const __grid_constant__ pick_dev p)
{
    extern __shared__ float mem[]; /* the query, then sums */
    const attend_dev &a = p.a;
    int token = blockIdx.x, head = blockIdx.y, kv_head = head / a.group;
    pick_state<N> st = {};

    cu_release_next();
    cu_wait_previous();
    const float *q = a.q + (size_t)token * a.q_stride + (size_t)head * a.dk;
    for (int i = threadIdx.x; i < a.dk; i += THREADS) mem[i] = q[i];
    __syncthreads();
    int seq = a.kv.seq[token], pos = a.kv.pos[token];
    const int32_t *blocks = a.kv.table + (size_t)seq * a.kv.table_stride;
    const uint32_t *bits =
        p.bits ? p.bits + ((size_t)token * p.bits_rows + head / p.heads_each) * p.bits_stride
               : NULL;
    float slope = a.slopes ? a.slopes[head] * LOG2E : 0.f;
    st.top = -INFINITY;
    each_bit(p.rate ? NULL : bits, attend_first(a, pos), attend_last(a, pos, seq), [&](int key) {
        const char *k = row_at(a.kv.k, blocks, kv_head, key);
        add_key<N>(a, st, mem, k, p.rate ? k : row_at(a.kv.v, blocks, kv_head, key), slope,
                   key - pos);
    });
    if (p.rate && pos + 1 >= p.rate)
        each_bit(bits, 0, (pos + 1) / p.rate - 1, [&](int entry) {
            const char *k = row_at(a.kv.v, blocks, kv_head, (entry + 1) * p.rate - 1);
            add_key<N>(a, st, mem, k, k, 0.f, 0);
        });
    combine_warps<N>(a, st, mem + a.dk, token, head);
}

static void launch_pick(struct cuda *c, const struct pick_dev *p, int n_heads, const char *name)
{
    dim3 grid(p->a.n_tokens, n_heads), block(THREADS);
    size_t smem = (size_t)(p->a.dk + WARPS * p->a.dv) * sizeof(float);

    static_assert((PICK_MAX_DIM + WARPS * PICK_MAX_DIM) * sizeof(float) < 47 * 1024,
                  "shared memory");
    if (p->a.dv <= 128) cu_launch(c, name, attend_pick<4>, grid, block, smem, *p);
    else if (p->a.dv <= 256) cu_launch(c, name, attend_pick<8>, grid, block, smem, *p);
    else if (p->a.dv <= 512) cu_launch(c, name, attend_pick<16>, grid, block, smem, *p);
    else cu_launch(c, name, attend_pick<32>, grid, block, smem, *p);
}

void attend_picked(struct cuda *c, const struct attend_dev *a, int n_heads,
                   const struct key_choice *keys)
{
    struct pick_dev p = {};

    p.a = *a;
    p.heads_each = n_heads;
    if (keys) {
        p.bits = keys->bits;
        p.bits_stride = keys->stride;
        p.bits_rows = keys->n_heads;
        p.heads_each = n_heads / keys->n_heads;
    }
    launch_pick(c, &p, n_heads, keys ? "attend picked" : "attend f32");
}

/* Entries are at the beginning of rows of values. */
void attend_entries(struct cuda *c, const struct attend_dev *a, int n_heads, int rate,
                    const struct key_choice *keys)
{
    struct pick_dev p = {};

    p.a = *a;
    p.rate = rate;
    p.heads_each = n_heads;
    if (keys) {
        p.bits = keys->bits;
        p.bits_stride = keys->stride;
        p.bits_rows = 1;
    }
    launch_pick(c, &p, n_heads, "attend entries");
}
