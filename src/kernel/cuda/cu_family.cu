/* cu_family.cu - row operations that single model families need: xIELU, clipped gated activations,
 * factors by position, several residual streams (AltUp, hyper-connections), sparse activations.
 *
 * A block has one row and reads it once or a few times; it is short, so the later reads come from
 * the cache. Formulas are those of kernel/cpu/act.c, streams.c and hyper.c, in F32. */
#include "kernel/cuda/cu.cuh"

extern "C" {
#include "kernel/cuda/record.h"
}

#define THREADS 256
#define HYPER_THREADS 64 /* a thread has a row or a column of the matrix that mixes streams */
#define OUT_THREADS 128  /* of hyper_out, with a number of every stream in shared memory */

static_assert(HYPER_MAX_STREAMS <= HYPER_THREADS, "a stream a thread");
static_assert(HYPER_MAX_STREAMS * OUT_THREADS * sizeof(float) <= 48 * 1024, "shared memory");

/* Rows of up to three tensors; each operation says which is which. */
struct rows {
    float *x;
    const float *y, *z;
    size_t x_stride, y_stride, z_stride;
    int cols, n; /* cols: of x; n: streams, or a column of z */
    float scale; /* a number of the operation */
};

/* y and z may be NULL. */
static struct rows make_rows(const struct tensor *x, const struct tensor *y, const struct tensor *z)
{
    struct rows a = {};

    a.x = (float *)x->data;
    a.x_stride = x->stride;
    a.cols = x->cols;
    if (y) {
        a.y = (const float *)y->data;
        a.y_stride = y->stride;
    }
    if (z) {
        a.z = (const float *)z->data;
        a.z_stride = z->stride;
    }
    return a;
}

static __device__ __forceinline__ float *row_x(const rows &a)
{
    return a.x + (size_t)blockIdx.x * a.x_stride;
}
static __device__ __forceinline__ const float *row_y(const rows &a)
{
    return a.y + (size_t)blockIdx.x * a.y_stride;
}
static __device__ __forceinline__ const float *row_z(const rows &a)
{
    return a.z + (size_t)blockIdx.x * a.z_stride;
}

/* ---- activations and factors ---- */

static __global__ void __launch_bounds__(THREADS) xielu_rows(const rows a, const xielu_opt o)
{
    cu_release_next();
    cu_wait_previous();
    float *x = row_x(a);
    for (int i = threadIdx.x; i < a.cols; i += THREADS) {
        float v = x[i];
        x[i] = v > 0.f ? o.a_p * v * v + o.b * v
                       : (expm1f(v < o.eps ? v : o.eps) - v) * o.a_n + o.b * v;
    }
}

void cu_xielu(struct cuda *c, const struct tensor *x, const struct xielu_opt *opt)
{
    cu_launch(c, "xielu", xielu_rows, dim3(x->rows), dim3(THREADS), 0, make_rows(x, NULL, NULL),
              *opt);
}

/* x may be y or z. */
static __global__ void __launch_bounds__(THREADS) clipped_rows(const rows a, const glu_clip o)
{
    cu_release_next();
    cu_wait_previous();
    float *x = row_x(a);
    const float *gate = row_y(a), *up = row_z(a);
    for (int i = threadIdx.x; i < a.cols; i += THREADS) x[i] = clip_pair(o, gate[i], up[i]);
}

void cu_clipped_glu(struct cuda *c, const struct tensor *out, const struct tensor *gate,
                    const struct tensor *up, const struct glu_clip *opt)
{
    cu_launch(c, "clipped glu", clipped_rows, dim3(out->rows), dim3(THREADS), 0,
              make_rows(out, gate, up), *opt);
}

/* The factor is computed in double: in F32 the quotient could round up to the next step. */
static __global__ void __launch_bounds__(THREADS)
    scale_rows_by_pos(const rows a, const int32_t *pos, const pos_scale_opt o)
{
    __shared__ float factor;

    cu_release_next();
    cu_wait_previous();
    if (threadIdx.x == 0) {
        double step = floor(((double)pos[blockIdx.x] + (double)o.first) / (double)o.step);
        factor = (float)(1.0 + (double)o.beta * log1p(step));
    }
    __syncthreads();
    float *x = row_x(a);
    for (int i = threadIdx.x; i < a.cols; i += THREADS) x[i] *= factor;
}

void cu_scale_by_pos(struct cuda *c, const struct tensor *x, const int32_t *pos,
                     const struct pos_scale_opt *opt)
{
    cu_launch(c, "scale by pos", scale_rows_by_pos, dim3(x->rows), dim3(THREADS), 0,
              make_rows(x, NULL, NULL), pos, *opt);
}

/* ---- AltUp ---- */

/* x_i = y_i + sum over j of z[i * n + j] y_j; a row has n streams. */
static __global__ void __launch_bounds__(THREADS) mix_rows(const rows a)
{
    int wide = a.cols / a.n;

    cu_release_next();
    cu_wait_previous();
    float *out = row_x(a);
    const float *x = row_y(a), *coefs = row_z(a);
    for (int i = threadIdx.x; i < wide * a.n; i += THREADS) {
        const float *c = coefs + i / wide * a.n, *from = x + i % wide;
        float sum = x[i];
        for (int j = 0; j < a.n; j++) sum = fmaf(c[j], from[(size_t)j * wide], sum);
        out[i] = sum;
    }
}

void cu_mix_streams(struct cuda *c, const struct tensor *out, const struct tensor *x,
                    const struct tensor *coefs, int n)
{
    struct rows a = make_rows(out, x, coefs);

    a.n = n;
    cu_launch(c, "mix streams", mix_rows, dim3(x->rows), dim3(THREADS), 0, a);
}

/* x += (z[n] + scale) y */
static __global__ void __launch_bounds__(THREADS) add_weighted_rows(const rows a)
{
    cu_release_next();
    cu_wait_previous();
    float *x = row_x(a), by = row_z(a)[a.n] + a.scale;
    const float *y = row_y(a);
    for (int i = threadIdx.x; i < a.cols; i += THREADS) x[i] = fmaf(by, y[i], x[i]);
}

void cu_add_weighted(struct cuda *c, const struct tensor *x, const struct tensor *y,
                     const struct tensor *coefs, int col, float plus)
{
    struct rows a = make_rows(x, y, coefs);

    a.n = col;
    a.scale = plus;
    cu_launch(c, "add weighted", add_weighted_rows, dim3(x->rows), dim3(THREADS), 0, a);
}

static __device__ __forceinline__ float mean_square(const float *x, int n)
{
    float sum = 0.f;

    for (int i = threadIdx.x; i < n; i += THREADS) sum = fmaf(x[i], x[i], sum);
    return block_sum<THREADS>(sum) / (float)n;
}

/* n: numbers of a row of y; scale: the least mean square. */
static __global__ void __launch_bounds__(THREADS) match_rows(const rows a)
{
    cu_release_next();
    cu_wait_previous();
    float *x = row_x(a), own = mean_square(x, a.cols), want = mean_square(row_y(a), a.n);
    float by = sqrtf(want) / sqrtf(fmaxf(own, a.scale));
    for (int i = threadIdx.x; i < a.cols; i += THREADS) x[i] *= by;
}

void cu_match_rms(struct cuda *c, const struct tensor *x, const struct tensor *like, float eps)
{
    struct rows a = make_rows(x, like, NULL);

    a.n = like->cols;
    a.scale = eps;
    cu_launch(c, "match rms", match_rows, dim3(x->rows), dim3(THREADS), 0, a);
}

/* scale: standard deviations above the mean. */
static __global__ void __launch_bounds__(THREADS) sparsify_rows(const rows a)
{
    cu_release_next();
    cu_wait_previous();
    float *x = row_x(a), sum = 0.f, square = 0.f;
    for (int i = threadIdx.x; i < a.cols; i += THREADS) sum += x[i];
    float mean = block_sum<THREADS>(sum) / (float)a.cols;
    for (int i = threadIdx.x; i < a.cols; i += THREADS)
        square = fmaf(x[i] - mean, x[i] - mean, square);
    float cut = mean + sqrtf(block_sum<THREADS>(square) / (float)a.cols) * a.scale;
    for (int i = threadIdx.x; i < a.cols; i += THREADS) x[i] = x[i] > cut ? x[i] - cut : 0.f;
}

void cu_sparsify(struct cuda *c, const struct tensor *x, float deviations)
{
    struct rows a = make_rows(x, NULL, NULL);

    a.scale = deviations;
    cu_launch(c, "sparsify", sparsify_rows, dim3(x->rows), dim3(THREADS), 0, a);
}

/* ---- hyper-connections ---- */

/* Divides each row, or each column, by its sum; a thread has one. */
static __device__ __forceinline__ void normalize(float *m, int n, bool columns, float eps)
{
    int t = threadIdx.x, from = columns ? t : t * n, step = columns ? n : 1;

    if (t < n) {
        float sum = eps;
        for (int k = 0; k < n; k++) sum += m[from + k * step];
        for (int k = 0; k < n; k++) m[from + k * step] /= sum;
    }
    __syncthreads();
}

/* Softmax of each row, then columns and rows in turn (Sinkhorn, Knopp). */
static __device__ __forceinline__ void make_stochastic(float *m, const hyper_opt &o)
{
    int n = o.n;
    float *row = m + threadIdx.x * n;

    if ((int)threadIdx.x < n) {
        float max = row[0], sum = 0.f;
        for (int k = 1; k < n; k++) max = fmaxf(max, row[k]);
        for (int k = 0; k < n; k++) sum += row[k] = expf(row[k] - max);
        for (int k = 0; k < n; k++) row[k] = row[k] / sum + o.eps;
    }
    __syncthreads();
    normalize(m, n, true, o.eps);
    for (int i = 1; i < o.iters; i++) {
        normalize(m, n, false, o.eps);
        normalize(m, n, true, o.eps);
    }
}

/* y: a number for each column; z: one for each of the three parts. Shared memory: the row. */
static __global__ void __launch_bounds__(HYPER_THREADS) hyper_rows(const rows a, const hyper_opt o)
{
    extern __shared__ float w[];
    int n = o.n;

    cu_release_next();
    cu_wait_previous();
    float *x = row_x(a);
    for (int i = threadIdx.x; i < a.cols; i += HYPER_THREADS) {
        float v = fmaf(x[i], a.z[i < n ? 0 : i < 2 * n ? 1 : 2], a.y[i]);
        if (i < 2 * n) v = 1.f / (1.f + expf(-v));
        w[i] = i < n ? v + o.eps : i < 2 * n ? 2.f * v : v;
    }
    __syncthreads();
    if (a.cols > n) make_stochastic(w + 2 * n, o);
    for (int i = threadIdx.x; i < a.cols; i += HYPER_THREADS) x[i] = w[i];
}

void cu_hyper_weights(struct cuda *c, const struct tensor *x, const float *base, const float *scale,
                      const struct hyper_opt *opt)
{
    struct rows a = make_rows(x, NULL, NULL);

    a.y = base;
    a.z = scale;
    cu_launch(c, "hyper weights", hyper_rows, dim3(x->rows), dim3(HYPER_THREADS),
              (size_t)x->cols * sizeof(float), a, *opt);
}

/* x = sum over i of z[i] y_i */
static __global__ void __launch_bounds__(THREADS) hyper_in_rows(const rows a)
{
    cu_release_next();
    cu_wait_previous();
    float *out = row_x(a);
    const float *s = row_y(a), *w = row_z(a);
    for (int c = threadIdx.x; c < a.cols; c += THREADS) {
        float sum = 0.f;
        for (int i = 0; i < a.n; i++) sum = fmaf(w[i], s[(size_t)i * a.cols + c], sum);
        out[c] = sum;
    }
}

void cu_hyper_in(struct cuda *c, const struct tensor *out, const struct tensor *s,
                 const struct tensor *w, int n)
{
    struct rows a = make_rows(out, s, w);

    a.n = n;
    cu_launch(c, "hyper in", hyper_in_rows, dim3(s->rows), dim3(THREADS), 0, a);
}

/* x_k = z[n + k] y + sum over i of z[2n + i n + k] x_i. A thread has a column of all streams, whose
 * old numbers it keeps in shared memory. cols: of y. */
static __global__ void __launch_bounds__(OUT_THREADS) hyper_out_rows(const rows a)
{
    extern __shared__ float mem[];
    float *old = mem + threadIdx.x;
    int n = a.n;

    cu_release_next();
    cu_wait_previous();
    float *s = row_x(a);
    const float *y = row_y(a), *w = row_z(a);
    for (int c = threadIdx.x; c < a.cols; c += OUT_THREADS) {
        for (int i = 0; i < n; i++) old[i * OUT_THREADS] = s[(size_t)i * a.cols + c];
        for (int k = 0; k < n; k++) {
            float sum = w[n + k] * y[c];
            for (int i = 0; i < n; i++) sum = fmaf(w[2 * n + i * n + k], old[i * OUT_THREADS], sum);
            s[(size_t)k * a.cols + c] = sum;
        }
    }
}

void cu_hyper_out(struct cuda *c, const struct tensor *s, const struct tensor *y,
                  const struct tensor *w, int n)
{
    struct rows a = make_rows(s, y, w);

    a.cols = y->cols;
    a.n = n;
    cu_launch(c, "hyper out", hyper_out_rows, dim3(s->rows), dim3(OUT_THREADS),
              (size_t)n * OUT_THREADS * sizeof(float), a);
}
