/* cu_recur.cu - operations of recurrent layers: causal convolution, selective scan (Mamba 1 and 2),
 * gated delta rule.
 *
 * A run is the tokens of one sequence in a batch. How many tokens each run has is read on the
 * device: launches are the same for every step with as many runs and tokens, so that one graph
 * serves them all. Tokens of a run depend on each other, so a long prompt alone does not fill the
 * GPU; runs, heads and columns are independent. */
#include "kernel/cuda/cu.cuh"

extern "C" {
#include "kernel/cuda/record.h"
}

/* What record_ops.c accepts is what the largest instances below hold: 4 threads of 64 rows, or of
 * 32 where every row has a decay of its own. */
static_assert(RECUR_MAX_ROWS == 4 * 64 && RECUR_MAX_ROWS_WIDE == 4 * 32, "rows of a state");

/* ---- convolution ---- */

#define CONV_THREADS 128
#define CONV_TOKENS 8 /* tokens of a block, if there are many */
#define CONV_FEW 64

struct conv_dev {
    const float *x, *w, *bias;
    float *out, *state;
    size_t x_stride, out_stride, state_floats;
    const struct state_run *runs;
    int n_runs, n_tokens, cols, k, per_block;
    int state_cols; /* of a row of the state, which several convolutions may share */
    bool silu;
};

/* The last run that starts at or before token t; the first run if there is none. */
static __device__ __forceinline__ int run_at(const struct state_run *runs, int n_runs, int t)
{
    int low = 0, high = n_runs;

    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (runs[mid].first <= t) low = mid;
        else high = mid;
    }
    return low;
}

/* Channel c of the input `from` tokens after the run's first; before that it comes from the
 * state. */
static __device__ __forceinline__ float conv_input(const conv_dev &a, const struct state_run &run,
                                                   const float *state, int from, int c)
{
    if (from >= 0) return a.x[(size_t)(run.first + from) * a.x_stride + c];
    return run.fresh ? 0.f : state[(size_t)(a.k - 1 + from) * a.state_cols + c];
}

/* Tokens [t, end) of a run. K: the number of taps, so that each input is read once; 0: any. */
template <int K>
static __device__ __forceinline__ void conv_tokens(const conv_dev &a, const struct state_run &run,
                                                   const float *state, int t, int end, int c)
{
    int keep = a.k - 1;
    float bias = a.bias ? a.bias[c] : 0.f, w[K ? K : 1], x[K ? K : 1];

#pragma unroll
    for (int j = 0; j < K; j++) {
        w[j] = a.w[(size_t)j * a.cols + c];
        x[j] = j > 0 && t < end ? conv_input(a, run, state, t - K + j, c) : 0.f;
    }
#pragma unroll(K ? 4 : 1)
    for (; t < end; t++) {
        float sum = bias;
        if constexpr (K > 0) {
#pragma unroll
            for (int j = 0; j < K - 1; j++) x[j] = x[j + 1];
            x[K - 1] = a.x[(size_t)(run.first + t) * a.x_stride + c];
#pragma unroll
            for (int j = 0; j < K; j++) sum = fmaf(w[j], x[j], sum);
        } else {
            for (int j = 0; j < a.k; j++)
                sum = fmaf(a.w[(size_t)j * a.cols + c], conv_input(a, run, state, t - keep + j, c),
                           sum);
        }
        a.out[(size_t)(run.first + t) * a.out_stride + c] = a.silu ? act_of(ACT_SILU, sum) : sum;
    }
}

/* A thread has a channel. The block in which a run starts also has all of its tokens that read the
 * state, and writes the new state after them. Grid: channels, tokens. */
template <int K>
static __global__ void __launch_bounds__(CONV_THREADS) conv(const __grid_constant__ conv_dev a)
{
    int c = blockIdx.x * CONV_THREADS + threadIdx.x, t0 = blockIdx.y * a.per_block, keep = a.k - 1;
    int t1 = min(t0 + a.per_block, a.n_tokens);

    cu_release_next();
    cu_wait_previous();
    if (c >= a.cols) return;
    for (int r = run_at(a.runs, a.n_runs, t0); r < a.n_runs && a.runs[r].first < t1; r++) {
        struct state_run run = a.runs[r];
        float *state = a.state + (size_t)run.slot * a.state_floats;
        bool owner = run.first >= t0;
        int t = owner ? 0 : max(t0 - run.first, keep), end = min(t1 - run.first, run.n);
        if (owner) end = max(end, min(keep, run.n));
        conv_tokens<K>(a, run, state, t, end, c);
        for (int i = 0; owner && i < keep; i++) /* rows still to be read are after row i */
            state[(size_t)i * a.state_cols + c] = conv_input(a, run, state, run.n - keep + i, c);
    }
}

void cu_conv(struct cuda *c, const struct tensor *out, const struct tensor *x,
             const struct op_state *st, const struct conv_opt *opt)
{
    struct conv_dev a = {};

    a.x = (const float *)x->data;
    a.w = opt->w;
    a.bias = opt->bias;
    a.out = (float *)out->data;
    a.state = st->base + opt->at;
    a.state_cols = opt->of ? opt->of : x->cols;
    a.x_stride = x->stride;
    a.out_stride = out->stride;
    a.state_floats = st->floats;
    a.runs = st->runs;
    a.n_runs = st->n_runs;
    a.n_tokens = st->n_tokens;
    a.cols = x->cols;
    a.k = opt->k;
    a.silu = opt->silu;
    a.per_block = st->n_tokens <= CONV_FEW ? 1 : CONV_TOKENS; /* few: fill the GPU */
    dim3 grid((a.cols + CONV_THREADS - 1) / CONV_THREADS,
              (a.n_tokens + a.per_block - 1) / a.per_block);
    if (a.k == 4) cu_launch(c, "conv", conv<4>, grid, dim3(CONV_THREADS), 0, a);
    else if (a.k == 3) cu_launch(c, "conv", conv<3>, grid, dim3(CONV_THREADS), 0, a);
    else cu_launch(c, "conv", conv<0>, grid, dim3(CONV_THREADS), 0, a);
}

/* ---- what scan and delta rule share ----
 *
 * A state is [rows][columns], and columns are independent of each other. A block has COLUMNS
 * columns of one head of one run. Four threads share a column: thread `part` has rows 4 part .. 4
 * part + 3 of every 16, in registers, for all tokens of the run. What all columns read passes
 * through shared memory, a chunk of tokens at a time. */

#define COLUMNS 32
#define PARTS 4
#define THREADS (COLUMNS * PARTS)
#define STAGED 4096  /* numbers of each kind in shared memory */
#define MAX_CHUNK 32 /* tokens */

/* n rows of `cols` numbers to rows of `pad` numbers, padded with zeros. */
static __device__ __forceinline__ void load_padded(float *to, const float *from, size_t stride,
                                                   int n, int cols, int pad, float scale)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < n * pad; i += THREADS) {
        int row = i / pad, col = i % pad;
        to[i] = col < cols ? from[(size_t)row * stride + col] * scale : 0.f;
    }
}

/* log(1 + e^x); x itself where the difference is below F32's precision. */
static __device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

/* The sum over the four threads of a column, which have four partial sums each to shorten
 * dependency chains. */
static __device__ __forceinline__ float column_sum(const float (&s)[4])
{
    float v = (s[0] + s[1]) + (s[2] + s[3]);

    v += __shfl_xor_sync(~0u, v, 8);
    return v + __shfl_xor_sync(~0u, v, 16);
}

/* The row of the state that is number i of a thread. */
static __device__ __forceinline__ int state_row(int part, int i)
{
    return i / 4 * 16 + 4 * part + i % 4;
}

/* h: the thread's part of a column; rows are `stride` apart. none: the column does not exist. */
template <int S>
static __device__ __forceinline__ void state_load(float (&h)[S], const float *from, size_t stride,
                                                  int rows, int part, bool none)
{
#pragma unroll
    for (int i = 0; i < S; i++) {
        int row = state_row(part, i);
        h[i] = none || row >= rows ? 0.f : from[(size_t)row * stride];
    }
}
template <int S>
static __device__ __forceinline__ void state_store(float *to, const float (&h)[S], size_t stride,
                                                   int rows, int part)
{
#pragma unroll
    for (int i = 0; i < S; i++) {
        int row = state_row(part, i);
        if (row < rows) to[(size_t)row * stride] = h[i];
    }
}

/* S: rows of a thread. PAD: rows of a column; CHUNK: tokens that fit into shared memory. */
template <int S> struct shape {
    static constexpr int PAD = PARTS * S,
                         CHUNK = STAGED / PAD < MAX_CHUNK ? STAGED / PAD : MAX_CHUNK;
};

struct recur_dev {
    const float *x, *b, *c, *dt, *beta; /* delta: v, k, q, alpha, beta */
    size_t x_stride, b_stride, c_stride, dt_stride, beta_stride;
    float *out, *state;
    size_t out_stride, state_floats;
    const struct state_run *runs;
    int dim, rows;  /* columns and rows of a head's state */
    int heads_each; /* heads that share b and c */
    int tiled;      /* delta: key heads if heads have them in turn, else 0 */
    int n_heads;
    const float *a, *d, *dt_bias;
    float dt_min, dt_max, b_scale, c_scale, beta_scale;
};

/* ---- selective scan ---- */

/* The inputs of a chunk. WIDE: every column is a head of its own. */
template <int S, bool WIDE> struct scan_shared {
    __align__(16) float b[shape<S>::CHUNK * shape<S>::PAD], c[shape<S>::CHUNK * shape<S>::PAD];
    float x[shape<S>::CHUNK][COLUMNS];
    float dt[shape<S>::CHUNK][WIDE ? COLUMNS : 1], decay[shape<S>::CHUNK];
};

/* x is 0 after the last column. head: the first of the block. */
template <int S, bool WIDE>
static __device__ __forceinline__ void scan_load(scan_shared<S, WIDE> &sh, const recur_dev &p,
                                                 int token, int n, int head, int column0)
{
    constexpr int W = WIDE ? COLUMNS : 1;
    int group = head / p.heads_each, columns = p.dim - column0;
    const float *x = p.x + (size_t)token * p.x_stride + (size_t)(WIDE ? 0 : head) * p.dim + column0;

    load_padded(sh.b, p.b + (size_t)token * p.b_stride + (size_t)group * p.rows, p.b_stride, n,
                p.rows, shape<S>::PAD, 1.f);
    load_padded(sh.c, p.c + (size_t)token * p.c_stride + (size_t)group * p.rows, p.c_stride, n,
                p.rows, shape<S>::PAD, 1.f);
    load_padded(sh.x[0], x, p.x_stride, n, columns, COLUMNS, 1.f);
    for (int i = threadIdx.x; i < n * W; i += THREADS) {
        int row = i / W, of = (WIDE ? column0 : head) + i % W;
        float dt = 0.f;
        if (i % W < columns)
            dt = softplus(p.dt[(size_t)(token + row) * p.dt_stride + of] + p.dt_bias[of]);
        dt = fminf(fmaxf(dt, p.dt_min), p.dt_max);
        sh.dt[row][i % W] = dt;
        if (!WIDE) sh.decay[row] = expf(dt * p.a[of]);
    }
}

/* h = e^(dt a) h + dt b x; y = c h + d x. Grid: columns, heads (1 where wide), runs. */
template <int S, bool WIDE>
static __global__ void __launch_bounds__(THREADS) scan(const __grid_constant__ recur_dev p)
{
    __shared__ scan_shared<S, WIDE> sh;
    int lane = threadIdx.x & 31, column = (threadIdx.x >> 5) * 8 + (lane & 7), part = lane >> 3;
    int head = blockIdx.y, column0 = blockIdx.x * COLUMNS, at = column0 + column;
    bool none = at >= p.dim;
    float h[S], a[WIDE ? S : 1];

    cu_release_next();
    cu_wait_previous();
    struct state_run run = p.runs[blockIdx.z];
    float *state = p.state + (size_t)run.slot * p.state_floats + (size_t)head * p.rows * p.dim + at;
    float d = none ? 0.f : p.d[WIDE ? at : head];
    state_load<S>(h, state, p.dim, p.rows, part, none || run.fresh);
    if constexpr (WIDE) state_load<S>(a, p.a + at, p.dim, p.rows, part, none);

    /* Chunk by chunk: inputs to shared memory, then token by token with the state in registers. */
    for (int t0 = 0; t0 < run.n; t0 += shape<S>::CHUNK) {
        int n = min(shape<S>::CHUNK, run.n - t0);
        __syncthreads();
        scan_load<S, WIDE>(sh, p, run.first + t0, n, head, column0);
        __syncthreads();
#pragma unroll(WIDE ? 1 : 2)
        for (int t = 0; t < n; t++) {
            float x = sh.x[t][column], dt = sh.dt[t][WIDE ? column : 0],
                  decay = WIDE ? 0.f : sh.decay[t];
            float y[4] = { 0.f, 0.f, 0.f, 0.f }, dtx = dt * x;
#pragma unroll
            for (int i = 0; i < S; i += 4) {
                float4 b = *(const float4 *)(sh.b + t * shape<S>::PAD + state_row(part, i));
                float4 c = *(const float4 *)(sh.c + t * shape<S>::PAD + state_row(part, i));
                const float *bs = &b.x, *cs = &c.x;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float f = decay;
                    if constexpr (WIDE) f = __expf(dt * a[i + e]);
                    h[i + e] = fmaf(h[i + e], f, dtx * bs[e]);
                    y[e] = fmaf(h[i + e], cs[e], y[e]);
                }
            }
            float sum = column_sum(y);
            if (part == 0 && !none)
                p.out[(size_t)(run.first + t0 + t) * p.out_stride + (size_t)head * p.dim + at] =
                    fmaf(d, x, sum);
        }
    }
    if (!none) state_store<S>(state, h, p.dim, p.rows, part);
}

/* ---- gated delta rule ---- */

template <int S> struct delta_shared {
    __align__(16) float k[shape<S>::CHUNK * shape<S>::PAD], q[shape<S>::CHUNK * shape<S>::PAD];
    float v[shape<S>::CHUNK][COLUMNS], decay[shape<S>::CHUNK], beta[shape<S>::CHUNK];
};

/* q and k of the head's group, v of the block's columns, and the two gates of each token. */
template <int S>
static __device__ __forceinline__ void delta_load(delta_shared<S> &sh, const recur_dev &p,
                                                  int token, int n, int head, int column0)
{
    size_t group = (size_t)(p.tiled ? head % p.tiled : head / p.heads_each) * p.rows;

    load_padded(sh.k, p.b + (size_t)token * p.b_stride + group, p.b_stride, n, p.rows,
                shape<S>::PAD, p.b_scale);
    load_padded(sh.q, p.c + (size_t)token * p.c_stride + group, p.c_stride, n, p.rows,
                shape<S>::PAD, p.c_scale);
    load_padded(sh.v[0], p.x + (size_t)token * p.x_stride + (size_t)head * p.dim + column0,
                p.x_stride, n, p.dim - column0, COLUMNS, 1.f);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float alpha = p.dt[(size_t)(token + i) * p.dt_stride + head] + p.dt_bias[head];
        sh.decay[i] = expf(p.a[head] * softplus(alpha));
        sh.beta[i] =
            p.beta_scale / (1.f + expf(-p.beta[(size_t)(token + i) * p.beta_stride + head]));
    }
}

/* h = e^g h; h += k beta (v - k h); y = q h. Grid: columns, heads, runs. */
template <int S>
static __global__ void __launch_bounds__(THREADS) delta(const __grid_constant__ recur_dev p)
{
    __shared__ delta_shared<S> sh;
    int lane = threadIdx.x & 31, column = (threadIdx.x >> 5) * 8 + (lane & 7), part = lane >> 3;
    int head = blockIdx.y, column0 = blockIdx.x * COLUMNS, at = column0 + column;
    bool none = at >= p.dim;
    float h[S];

    cu_release_next();
    cu_wait_previous();
    struct state_run run = p.runs[blockIdx.z];
    float *state = p.state + (size_t)run.slot * p.state_floats + (size_t)head * p.rows * p.dim + at;
    state_load<S>(h, state, p.dim, p.rows, part, none || run.fresh);

    for (int t0 = 0; t0 < run.n; t0 += shape<S>::CHUNK) {
        int n = min(shape<S>::CHUNK, run.n - t0);
        __syncthreads();
        delta_load<S>(sh, p, run.first + t0, n, head, column0);
        __syncthreads();
        for (int t = 0; t < n; t++) {
            const float *k = sh.k + t * shape<S>::PAD, *q = sh.q + t * shape<S>::PAD;
            float decay = sh.decay[t], known[4] = { 0.f, 0.f, 0.f, 0.f },
                  y[4] = { 0.f, 0.f, 0.f, 0.f };
#pragma unroll
            for (int i = 0; i < S; i += 4) {
                float4 f = *(const float4 *)(k + state_row(part, i));
                known[0] = fmaf(h[i], f.x, known[0]);
                known[1] = fmaf(h[i + 1], f.y, known[1]);
                known[2] = fmaf(h[i + 2], f.z, known[2]);
                known[3] = fmaf(h[i + 3], f.w, known[3]);
            }
            /* v - k h with the decay applied: k (decay h) = decay (k h). */
            float add = (sh.v[t][column] - decay * column_sum(known)) * sh.beta[t];
#pragma unroll
            for (int i = 0; i < S; i += 4) {
                float4 f = *(const float4 *)(k + state_row(part, i)),
                       g = *(const float4 *)(q + state_row(part, i));
                h[i] = fmaf(h[i], decay, f.x * add);
                h[i + 1] = fmaf(h[i + 1], decay, f.y * add);
                h[i + 2] = fmaf(h[i + 2], decay, f.z * add);
                h[i + 3] = fmaf(h[i + 3], decay, f.w * add);
                y[0] = fmaf(h[i], g.x, y[0]);
                y[1] = fmaf(h[i + 1], g.y, y[1]);
                y[2] = fmaf(h[i + 2], g.z, y[2]);
                y[3] = fmaf(h[i + 3], g.w, y[3]);
            }
            float sum = column_sum(y);
            if (part == 0 && !none)
                p.out[(size_t)(run.first + t0 + t) * p.out_stride + (size_t)head * p.dim + at] =
                    sum;
        }
    }
    if (!none) state_store<S>(state, h, p.dim, p.rows, part);
}

/* ---- host ---- */

/* The arguments that scan and delta rule share. */
static struct recur_dev recur_of(const struct tensor *out, const struct tensor *x,
                                 const struct tensor *b, const struct tensor *c,
                                 const struct tensor *dt, const struct op_state *st)
{
    struct recur_dev p = {};

    p.x = (const float *)x->data;
    p.b = (const float *)b->data;
    p.c = (const float *)c->data;
    p.dt = (const float *)dt->data;
    p.x_stride = x->stride;
    p.b_stride = b->stride;
    p.c_stride = c->stride;
    p.dt_stride = dt->stride;
    p.out = (float *)out->data;
    p.out_stride = out->stride;
    p.state = st->base;
    p.state_floats = st->floats;
    p.runs = st->runs;
    return p;
}

/* Columns, heads, runs. */
static dim3 recur_grid(const struct recur_dev *p, const struct op_state *st)
{
    return dim3((p->dim + COLUMNS - 1) / COLUMNS, p->n_heads, st->n_runs);
}

/* wide (Mamba 1): all channels are columns of one head, and every row has a decay of its own. */
void cu_scan(struct cuda *c, const struct tensor *out, const struct scan_in *in,
             const struct op_state *st, const struct scan_opt *opt)
{
    struct recur_dev p = recur_of(out, &in->x, &in->b, &in->c, &in->dt, st);

    p.dim = opt->wide ? opt->n_heads : opt->head_dim;
    p.rows = opt->n_state;
    p.n_heads = opt->wide ? 1 : opt->n_heads;
    p.heads_each = opt->wide ? 1 : opt->n_heads / opt->n_groups;
    p.a = opt->a;
    p.d = opt->d;
    p.dt_bias = opt->dt_bias;
    p.dt_min = opt->dt_min;
    p.dt_max = opt->dt_max;
    dim3 grid = recur_grid(&p, st), block(THREADS);
    if (opt->wide && p.rows <= 16) cu_launch(c, "scan wide", scan<4, true>, grid, block, 0, p);
    else if (opt->wide && p.rows <= 64)
        cu_launch(c, "scan wide", scan<16, true>, grid, block, 0, p);
    else if (opt->wide) cu_launch(c, "scan wide", scan<32, true>, grid, block, 0, p);
    else if (p.rows <= 16) cu_launch(c, "scan", scan<4, false>, grid, block, 0, p);
    else if (p.rows <= 64) cu_launch(c, "scan", scan<16, false>, grid, block, 0, p);
    else if (p.rows <= 128) cu_launch(c, "scan", scan<32, false>, grid, block, 0, p);
    else cu_launch(c, "scan", scan<64, false>, grid, block, 0, p);
}

void cu_delta(struct cuda *c, const struct tensor *out, const struct delta_in *in,
              const struct op_state *st, const struct delta_opt *opt)
{
    struct recur_dev p = recur_of(out, &in->v, &in->k, &in->q, &in->alpha, st);

    p.beta = (const float *)in->beta.data;
    p.beta_stride = in->beta.stride;
    p.dim = opt->dim_v;
    p.rows = opt->dim_k;
    p.n_heads = opt->n_heads;
    p.heads_each = opt->n_heads / opt->n_k_heads;
    p.tiled = opt->tiled ? opt->n_k_heads : 0;
    p.a = opt->a;
    p.dt_bias = opt->dt_bias;
    p.b_scale = opt->k_scale;
    p.c_scale = opt->q_scale;
    p.beta_scale = opt->beta_scale != 0 ? opt->beta_scale : 1.f;
    dim3 grid = recur_grid(&p, st), block(THREADS);
    if (p.rows <= 16) cu_launch(c, "delta", delta<4>, grid, block, 0, p);
    else if (p.rows <= 64) cu_launch(c, "delta", delta<16>, grid, block, 0, p);
    else if (p.rows <= 128) cu_launch(c, "delta", delta<32>, grid, block, 0, p);
    else cu_launch(c, "delta", delta<64>, grid, block, 0, p);
}
