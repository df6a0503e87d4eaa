/* cu_compress.cu - compressed attention (DeepSeek V4): entries that stand for several positions each.
 *
 * Rows of the cache, and what an entry is: struct compress_opt. A block has a token; it has work if a
 * window ends there. Each element of an entry is a weighted mean of its own, so a thread has an
 * element; the norm and the rotary embedding follow in shared memory. */
#include "kernel/cuda/rope_kv.cuh"

#define THREADS 128

struct compress_dev {
    struct kv_rows rows;
    int type, part_bytes; /* part_bytes: of the dim elements that an entry has */
    const int32_t *table, *seq, *pos;
    int table_stride;
    struct compress_opt o;
};

/* The weighted mean of one element so far: the greatest gate, the sum of weights, the weighted sum. */
struct mean {
    float top, weights, sum;
};

/* Adds element i of the window that starts at `first`: raw numbers and gates of half `half`. */
static __device__ __forceinline__ void add_window(const compress_dev &a, const int32_t *blocks,
                                                  int first, int half, int i, mean &m)
{
    int halves = a.o.overlap ? 2 : 1;

    for (int k = 0; k < a.o.rate; k++) {
        int pos = first + k;
        const char *row = kv_head_at(a.rows, blocks[pos / KV_BLOCK], 0) +
                          (size_t)(pos % KV_BLOCK) * a.rows.row_bytes;
        float x = kv_number(a.type, row + (1 + half) * a.part_bytes, i);
        float g = kv_number(a.type, row + (1 + halves + half) * a.part_bytes, i) +
                  a.o.bias[(size_t)(k * halves + half) * a.o.dim + i];
        float top = fmaxf(m.top, g), less = expf(m.top - top), weight = expf(g - top);
        m.top = top;
        m.weights = fmaf(m.weights, less, weight);
        m.sum = fmaf(m.sum, less, weight * x);
    }
}

/* Rotary embedding of the last n_rot elements, which are pairs of neighbours. */
static __device__ __forceinline__ void rotate_tail(const compress_opt &o, int pos, float *x)
{
    x += o.dim - o.n_rot;
    for (int i = threadIdx.x; i < o.n_rot / 2; i += THREADS) {
        float u = x[2 * i], v = x[2 * i + 1], s, c;
        sincosf(__fmul_rn((float)pos, o.freq[i]), &s, &c);
        s *= o.mscale;
        c *= o.mscale;
        x[2 * i] = u * c - v * s;
        x[2 * i + 1] = v * c + u * s;
    }
}

static __global__ void __launch_bounds__(THREADS) compress(const __grid_constant__ compress_dev a)
{
    extern __shared__ float entry[];
    const compress_opt &o = a.o;
    int token = blockIdx.x;
    float square = 0.f;

    cu_release_next();
    cu_wait_previous();
    int pos = a.pos[token], first = pos + 1 - o.rate;
    if ((pos + 1) % o.rate != 0) return;
    const int32_t *blocks = a.table + (size_t)a.seq[token] * a.table_stride;
    for (int i = threadIdx.x; i < o.dim; i += THREADS) {
        mean m = { -INFINITY, 0.f, 0.f };
        if (o.overlap && first > 0) add_window(a, blocks, first - o.rate, 0, i, m);
        add_window(a, blocks, first, o.overlap, i, m);
        entry[i] = m.sum / m.weights;
        square = fmaf(entry[i], entry[i], square);
    }
    float scale = 1.f / sqrtf(block_sum<THREADS>(square) / (float)o.dim + o.eps);
    for (int i = threadIdx.x; i < o.dim; i += THREADS) entry[i] *= scale * o.norm[i];
    __syncthreads();
    rotate_tail(o, first, entry);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    char *to =
        kv_head_at(a.rows, blocks[pos / KV_BLOCK], 0) + (size_t)(pos % KV_BLOCK) * a.rows.row_bytes;
    store_row(a.type, false, to, entry, o.dim, threadIdx.x);
}

void cu_compress(struct cuda *c, const struct kvview *kv, int layer, const struct compress_opt *opt)
{
    const struct kvlayer *l = &kv->layers[layer];
    int dim = opt->dim * (opt->overlap ? 5 : 3);
    struct compress_dev a = {};
    uint64_t part = 0;

    if (!fill_kv_rows(c, &a.rows, kv->type, opt->index ? l->x : l->v,
                      opt->index ? l->x_block_bytes : l->v_block_bytes, 1, dim))
        return;
    if (!dtype_row_bytes(kv->type, (uint64_t)opt->dim, &part)) {
        cu_fail(c, E_UNSUPPORTED, "KV type %s with entries of %d dimensions is not supported",
                dtype_name(kv->type), opt->dim);
        return;
    }
    a.type = kv->type;
    a.part_bytes = (int)part;
    a.table = kv->table;
    a.seq = kv->seq;
    a.pos = kv->pos;
    a.table_stride = kv->table_stride;
    a.o = *opt;
    cu_launch(c, "compress", compress, dim3(kv->n_tokens), dim3(THREADS),
              (size_t)opt->dim * sizeof(float), a);
}
