/* cu_index.cu - the indexer of sparse attention: index keys into the KV cache, and the keys that
 * each token attends to.
 *
 * A row is one token, or one head of a token where heads select by themselves. One kernel writes the
 * scores of a row to scratch memory, a second one selects the best and sets their bits. Rows are
 * processed in as many launches as scratch memory needs. Selection is exact: a radix select finds
 * the least score that is kept, and of equal scores the first positions are kept, as on the CPU. */
#include "kernel/cuda/rope_kv.cuh"

extern "C" {
#include "kernel/cuda/record.h"
}

#define PUT_WARPS 4
#define THREADS 256
#define WARPS (THREADS / 32)
#define KEYS 32 /* keys of a block: one for each lane */
#define LINE (KEYS + 1)
#define BINS 256 /* of a radix select by 8 bits at a time */
#define MOST_SCORES ((size_t)16 << 20)

static_assert(THREADS == BINS, "a bin a thread");

/* ---- index keys ---- */

struct put_dev {
    const float *k;
    size_t stride;
    struct kv_rows rows;
    const int32_t *table, *seq, *pos;
    int table_stride, type, n_tokens;
};

/* A warp has a token. */
static __global__ void __launch_bounds__(PUT_WARPS * 32)
    index_put(const __grid_constant__ put_dev a)
{
    int lane = threadIdx.x & 31, token = blockIdx.x * PUT_WARPS + (threadIdx.x >> 5);

    cu_release_next();
    cu_wait_previous();
    if (token >= a.n_tokens) return;
    int pos = a.pos[token], block = a.table[(size_t)a.seq[token] * a.table_stride + pos / KV_BLOCK];
    char *to = kv_head_at(a.rows, block, 0) + (size_t)(pos % KV_BLOCK) * a.rows.row_bytes;
    store_row(a.type, false, to, a.k + (size_t)token * a.stride, a.rows.dim, lane);
}

void cu_index_put(struct cuda *c, const struct kvview *kv, int layer, const struct tensor *k)
{
    const struct kvlayer *l = &kv->layers[layer];
    struct put_dev a = {};

    if (!fill_kv_rows(c, &a.rows, kv->type, l->x, l->x_block_bytes, 1, l->index_dim)) return;
    a.k = (const float *)k->data;
    a.stride = k->stride;
    a.table = kv->table;
    a.seq = kv->seq;
    a.pos = kv->pos;
    a.table_stride = kv->table_stride;
    a.type = kv->type;
    a.n_tokens = kv->n_tokens;
    cu_launch(c, "index put", index_put, dim3(cu_div_up(kv->n_tokens, PUT_WARPS)),
              dim3(PUT_WARPS * 32), 0, a);
}

/* ---- scores ---- */

struct choose_dev {
    const float *q, *w; /* w NULL: every head is a row of its own */
    size_t q_stride, w_stride;
    struct kv_rows keys;
    const int32_t *table, *seq, *pos;
    int table_stride, type;
    int rows; /* of a token */
    struct index_opt o;
    int row0; /* the first row of this launch */
    float *scores;
    size_t scores_stride;
    uint32_t *bits;
    size_t bits_stride;
};

/* Keys that the token of a row can select from. */
static __device__ __forceinline__ int n_keys(const choose_dev &a, int pos)
{
    return a.o.rate ? (pos + 1) / a.o.rate : pos + 1;
}

/* Keys [key0, key0 + KEYS) as F32, [dim][LINE]; zeros after the last key. */
static __device__ __forceinline__ void load_keys(const choose_dev &a, float *to,
                                                 const int32_t *blocks, int key0, int n)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;

    for (int k = warp; k < KEYS; k += WARPS) {
        int key = key0 + k, pos = a.o.rate ? (key + 1) * a.o.rate - 1 : key;
        const char *row = NULL;
        if (key < n)
            row = kv_head_at(a.keys, blocks[pos / KV_BLOCK], 0) +
                  (size_t)(pos % KV_BLOCK) * a.keys.row_bytes;
        for (int d = lane; d < a.o.head_dim; d += 32)
            to[d * LINE + k] = row ? kv_number(a.type, row, d) : 0.f;
    }
}

/* A lane has a key. With weights the warps divide the heads, otherwise the dimensions. Grid: rows,
 * tiles of keys. */
static __global__ void __launch_bounds__(THREADS) score_keys(const __grid_constant__ choose_dev a)
{
    extern __shared__ float keys[];
    __shared__ float part[WARPS][KEYS];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = a.row0 + (int)blockIdx.x;
    int token = row / a.rows, key0 = blockIdx.y * KEYS, dim = a.o.head_dim;
    float sum = 0.f;

    cu_release_next();
    cu_wait_previous();
    int n = n_keys(a, a.pos[token]);
    if (key0 >= n) return;
    load_keys(a, keys, a.table + (size_t)a.seq[token] * a.table_stride, key0, n);
    __syncthreads();
    const float *q = a.q + (size_t)token * a.q_stride;
    if (a.w) {
        const float *w = a.w + (size_t)token * a.w_stride;
        for (int h = warp; h < a.o.n_heads; h += WARPS) {
            float s = 0.f;
            for (int d = 0; d < dim; d++)
                s = fmaf(keys[d * LINE + lane], q[(size_t)h * dim + d], s);
            s *= a.o.scale;
            if (s > 0.f) sum = fmaf(s, w[h], sum);
        }
    } else {
        q += (size_t)(row % a.rows) * dim;
        for (int d = warp; d < dim; d += WARPS) sum = fmaf(keys[d * LINE + lane], q[d], sum);
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || key0 + lane >= n) return;
    sum = 0.f;
    for (int i = 0; i < WARPS; i++) sum += part[i][lane];
    a.scores[(size_t)blockIdx.x * a.scores_stride + key0 + lane] = a.w ? sum : sum * a.o.scale;
}

/* ---- selection ---- */

/* Unsigned numbers in the order of floats; both zeros are equal. */
static __device__ __forceinline__ uint32_t order_of(float x)
{
    uint32_t u = __float_as_uint(x);

    if (u == 0x80000000u) u = 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Sets bits [first, end), end > first. */
static __device__ __forceinline__ void set_bits(uint32_t *bits, int first, int end)
{
    for (int w = first >> 5; w <= (end - 1) >> 5; w++) {
        uint32_t from = w == first >> 5 ? ~0u << (first & 31) : ~0u,
                 to = end - w * 32 < 32 ? (1u << (end - w * 32)) - 1 : ~0u;
        atomicOr(bits + w, from & to);
    }
}

/* Scores of blocks of keys take the place of the first keys' scores: the best key counts, and the
 * last blocks are always kept. Returns how many there are. In groups of a thread a block: a group
 * reads keys that the groups before have not overwritten. */
static __device__ __forceinline__ int join_blocks(const index_opt &o, int pos, float *scores)
{
    int n = pos / o.block + 1;

    for (int b0 = 0; b0 < n; b0 += THREADS) {
        int b = b0 + threadIdx.x, end = min(pos + 1, (b + 1) * o.block);
        float best = b > n - 1 - o.local ? INFINITY : -INFINITY;
        for (int k = b * o.block; b < n && k < end; k++) best = fmaxf(best, scores[k]);
        __syncthreads();
        if (b < n) scores[b] = best;
        __syncthreads();
    }
    return n;
}

/* The place in order of the least score that is kept, by 8 bits at a time from the highest. *left:
 * how many scores equal to it are kept. n > *left: the scores to keep. */
static __device__ uint32_t find_least(const float *scores, int n, int *left)
{
    __shared__ int bins[BINS], bin, rest;
    uint32_t found = 0, known = 0;
    int want = *left;

    for (int shift = 24; shift >= 0; shift -= 8) {
        bins[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            uint32_t u = order_of(scores[i]);
            if ((u & known) == found) atomicAdd(&bins[u >> shift & (BINS - 1)], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int b = BINS - 1;
            while (b > 0 && bins[b] < want) want -= bins[b--];
            bin = b;
            rest = want;
        }
        __syncthreads();
        found |= (uint32_t)bin << shift;
        known |= (uint32_t)(BINS - 1) << shift;
        want = rest;
    }
    *left = want;
    return found;
}

/* Sets the bits of the scores above `least`, and of the first `left` equal to it, in order: 256 at a
 * time. size: bits of a score. */
static __device__ void mark_kept(const float *scores, int n, uint32_t least, int left, int size,
                                 uint32_t *bits)
{
    __shared__ int equals[WARPS];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, seen = 0;

    for (int i0 = 0; i0 < n; i0 += THREADS) {
        int i = i0 + threadIdx.x;
        uint32_t u = i < n ? order_of(scores[i]) : 0;
        bool equal = i < n && u == least;
        uint32_t e = __ballot_sync(~0u, equal);
        if (lane == 0) equals[warp] = __popc(e);
        __syncthreads();
        int before = seen + __popc(e & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) before += equals[w];
            seen += equals[w];
        }
        bool keep = i < n && (u > least || (equal && before < left));
        if (keep) set_bits(bits, i * size, (i + 1) * size);
        __syncthreads();
    }
}

/* A block has a row. */
static __global__ void __launch_bounds__(THREADS) keep_best(const __grid_constant__ choose_dev a)
{
    int row = a.row0 + (int)blockIdx.x, size = a.o.block ? a.o.block : 1, left = a.o.top;
    float *scores = a.scores + (size_t)blockIdx.x * a.scores_stride;
    uint32_t *bits = a.bits + (size_t)row * a.bits_stride;

    cu_release_next();
    cu_wait_previous();
    int pos = a.pos[row / a.rows], n = n_keys(a, pos);
    for (size_t i = threadIdx.x; i < a.bits_stride; i += THREADS) bits[i] = 0;
    if (a.o.block) n = join_blocks(a.o, pos, scores);
    __syncthreads();
    if (n > left) {
        uint32_t least = find_least(scores, n, &left);
        mark_kept(scores, n, least, left, size, bits);
        return;
    }
    for (int i = threadIdx.x; i < n; i += THREADS) set_bits(bits, i * size, (i + 1) * size);
}

/* ---- host ---- */

/* Scores of as many rows as a step has, up to 64 MiB; of one row in any case. */
size_t cu_index_bytes(const struct cuda *c, const struct backend_limits *lim)
{
    size_t keys = (size_t)lim->index_keys,
           all = (size_t)lim->max_tokens * (size_t)lim->index_rows * keys;
    size_t most = keys > MOST_SCORES ? keys : MOST_SCORES;

    (void)c;
    return (all < most ? all : most) * sizeof(float);
}

/* Keys are staged in shared memory, more than 48 KiB of it if they have many dimensions. */
static bool allow_smem(struct cuda *c, size_t bytes)
{
    static bool raised[64]; /* by device */

    if (bytes <= 47 * 1024 || raised[c->device & 63]) return true;
    if (cu_check(c,
                 cudaFuncSetAttribute(score_keys, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      INDEX_MAX_DIM * LINE * (int)sizeof(float)),
                 "index scores") != OK)
        return false;
    raised[c->device & 63] = true;
    return true;
}

static void launch_choice(struct cuda *c, struct choose_dev *a, int n_rows, int n_most)
{
    size_t room = c->scratch_bytes[CU_INDEX] / sizeof(float) / a->scores_stride;
    size_t smem = (size_t)a->o.head_dim * LINE * sizeof(float);

    if (room == 0) {
        cu_fail(c, E_INTERNAL, "%s: no scratch memory for an indexer of %d positions", c->be.name,
                n_most);
        return;
    }
    if (!allow_smem(c, smem)) return;
    for (int n; a->row0 < n_rows; a->row0 += n) {
        n = (size_t)(n_rows - a->row0) < room ? n_rows - a->row0 : (int)room;
        cu_launch(c, "index scores", score_keys, dim3(n, cu_div_up(n_most, KEYS)), dim3(THREADS),
                  smem, *a);
        cu_launch(c, "index choose", keep_best, dim3(n), dim3(THREADS), 0, *a);
    }
}

/* max_pos may be rounded up beyond what memory was reserved for; positions of tokens are not. */
void cu_index_choose(struct cuda *c, const struct key_choice *out, const struct tensor *q,
                     const struct tensor *weights, const struct kvview *kv, int layer,
                     const struct index_opt *opt)
{
    const struct kvlayer *l = &kv->layers[layer];
    int keys = kv->max_pos + 1 < c->lim.index_keys ? kv->max_pos + 1 : c->lim.index_keys;
    struct choose_dev a = {};

    if (keys < 1 || !fill_kv_rows(c, &a.keys, kv->type, l->x, l->x_block_bytes, 1, l->index_dim))
        return;
    a.q = (const float *)q->data;
    a.q_stride = q->stride;
    if (weights) {
        a.w = (const float *)weights->data;
        a.w_stride = weights->stride;
    }
    a.table = kv->table;
    a.seq = kv->seq;
    a.pos = kv->pos;
    a.table_stride = kv->table_stride;
    a.type = kv->type;
    a.rows = out->n_heads;
    a.o = *opt;
    a.scores = (float *)c->scratch[CU_INDEX];
    a.scores_stride = (size_t)keys;
    a.bits = out->bits;
    a.bits_stride = out->stride;
    launch_choice(c, &a, kv->n_tokens * out->n_heads, keys);
}
