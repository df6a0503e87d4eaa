/* cu_ops.cu - element-wise operations and rotary embedding: act, add, scale, softcap, clamp,
 * gate_rows, gather, rope.
 *
 * Bound by memory bandwidth: each number is read and written once, 16 bytes at a time where rows
 * are aligned. */
#include "kernel/cuda/cu.cuh"

#define THREADS 256

/* Up to three tensors of the same shape, in units of 1 or 4 numbers. */
struct each {
    float *out;
    const float *x, *y; /* y NULL: none */
    size_t out_stride, x_stride, y_stride;
    int rows, cols;         /* cols: in units */
    const int32_t *row_ids; /* gather: rows of x; NULL: all rows in order */
    enum act act;
    float scale;
};

enum each_op { EACH_ACT, EACH_ADD, EACH_SCALE, EACH_SOFTCAP, EACH_CLAMP, EACH_GATE, EACH_GATHER };

/* One number. The operation is a template argument: no branch in the kernel. */
template <enum each_op OP>
static __device__ __forceinline__ float apply(const each &e, float x, float y)
{
    switch (OP) {
    case EACH_ACT: return e.y ? act_pair(e.act, x, y) : act_of(e.act, x);
    case EACH_ADD: return x + e.scale * y;
    case EACH_SCALE: return x * e.scale;
    case EACH_SOFTCAP: return e.scale * tanhf(x / e.scale);
    case EACH_CLAMP: return x > e.scale ? e.scale : x < -e.scale ? -e.scale : x;
    case EACH_GATE: return x * act_of(ACT_SIGMOID, y);
    default: return x;
    }
}

template <enum each_op OP>
static __device__ __forceinline__ float4 apply(const each &e, float4 x, float4 y)
{
    return make_float4(apply<OP>(e, x.x, y.x), apply<OP>(e, x.y, y.y), apply<OP>(e, x.z, y.z),
                       apply<OP>(e, x.w, y.w));
}

/* The same number in all of v. */
static __device__ __forceinline__ void splat(float &v, float s) { v = s; }
static __device__ __forceinline__ void splat(float4 &v, float s) { v = make_float4(s, s, s, s); }

/* V: float or float4. Grid: columns, rows. */
template <enum each_op OP, typename V>
static __global__ void __launch_bounds__(THREADS) op_each(const each e)
{
    int c = blockIdx.x * THREADS + threadIdx.x;

    cu_release_next();
    cu_wait_previous();
    if (c >= e.cols) return;
    for (int r = blockIdx.y; r < e.rows; r += gridDim.y) {
        size_t from = OP == EACH_GATHER ? (size_t)e.row_ids[r] : (size_t)r;
        V x = ((const V *)(e.x + from * e.x_stride))[c], y;
        splat(y, 1.f);
        if (OP == EACH_GATE) splat(y, e.y[(size_t)r * e.y_stride]);
        else if (e.y) y = ((const V *)(e.y + (size_t)r * e.y_stride))[c];
        ((V *)(e.out + (size_t)r * e.out_stride))[c] = apply<OP>(e, x, y);
    }
}

/* Groups of four if all tensors allow it. The grid has at most 32,768 rows; more are looped over. */
template <enum each_op OP> static void launch_each(struct cuda *c, struct each *e, const char *name)
{
    bool four = e->cols % 4 == 0 && cu_aligned16(e->out, e->out_stride) &&
                cu_aligned16(e->x, e->x_stride) &&
                (!e->y || OP == EACH_GATE || cu_aligned16(e->y, e->y_stride));

    if (e->rows == 0 || e->cols == 0) return;
    if (four) e->cols /= 4;
    dim3 grid((e->cols + THREADS - 1) / THREADS, e->rows < 32768 ? e->rows : 32768);
    if (four) cu_launch(c, name, op_each<OP, float4>, grid, dim3(THREADS), 0, *e);
    else cu_launch(c, name, op_each<OP, float>, grid, dim3(THREADS), 0, *e);
}

static struct each make_each(const struct tensor *out, const struct tensor *x,
                             const struct tensor *y, float scale)
{
    struct each e = {};

    e.out = (float *)out->data;
    e.out_stride = out->stride;
    e.rows = out->rows;
    e.cols = out->cols;
    e.x = (const float *)x->data;
    e.x_stride = x->stride;
    if (y) {
        e.y = (const float *)y->data;
        e.y_stride = y->stride;
    }
    e.scale = scale;
    return e;
}

void cu_act(struct cuda *c, const struct tensor *out, const struct tensor *gate,
            const struct tensor *up, enum act act)
{
    struct each e = make_each(out, gate, up, 1.f);

    e.act = act;
    launch_each<EACH_ACT>(c, &e, "act");
}

void cu_add(struct cuda *c, const struct tensor *x, const struct tensor *y, float scale)
{
    struct each e = make_each(x, x, y, scale);

    launch_each<EACH_ADD>(c, &e, "add");
}

void cu_scale(struct cuda *c, const struct tensor *x, float scale)
{
    struct each e = make_each(x, x, NULL, scale);

    launch_each<EACH_SCALE>(c, &e, "scale");
}

void cu_softcap(struct cuda *c, const struct tensor *x, float cap)
{
    struct each e = make_each(x, x, NULL, cap);

    launch_each<EACH_SOFTCAP>(c, &e, "softcap");
}

void cu_clamp(struct cuda *c, const struct tensor *x, float limit)
{
    struct each e = make_each(x, x, NULL, limit);

    launch_each<EACH_CLAMP>(c, &e, "clamp");
}

void cu_gate_rows(struct cuda *c, const struct tensor *x, const struct tensor *s)
{
    struct each e = make_each(x, x, s, 1.f);

    launch_each<EACH_GATE>(c, &e, "gate rows");
}

void cu_gather(struct cuda *c, const struct tensor *out, const struct tensor *x,
               const int32_t *rows)
{
    struct each e = make_each(out, x, NULL, 1.f);

    e.row_ids = rows;
    launch_each<EACH_GATHER>(c, &e, "gather");
}

/* ---- rotary embedding ---- */

/* rope_table writes x = table; rope rotates x in place. half: pairs of a head. */
struct rope_args {
    float *x;
    size_t stride;
    int rows, n_heads, head_dim, half;
    const float *table;
    size_t table_stride;
    const int32_t *pos;
    const float *freq;
    float mscale;
    enum rope_style style;
};

/* The angle is rounded to float as in the reference; sine and cosine are those of the rounded
 * angle. */
static __global__ void __launch_bounds__(THREADS) rope_table(const rope_args a)
{
    int i = blockIdx.x * THREADS + threadIdx.x, row = i / a.half, j = i % a.half;

    cu_release_next();
    cu_wait_previous();
    if (row >= a.rows) return;
    float angle = __fmul_rn((float)a.pos[row], a.freq[j]), s, c;
    sincosf(angle, &s, &c);
    a.x[(size_t)row * a.stride + 2 * j] = c * a.mscale;
    a.x[(size_t)row * a.stride + 2 * j + 1] = s * a.mscale;
}

/* A thread has a pair. Grid: pairs of a row, rows. */
static __global__ void __launch_bounds__(THREADS) rope_rotate(const rope_args a)
{
    int i = blockIdx.x * THREADS + threadIdx.x, head = i / a.half, j = i % a.half;

    cu_release_next();
    cu_wait_previous();
    if (head >= a.n_heads) return;
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float *x = a.x + (size_t)row * a.stride + (size_t)head * a.head_dim;
        const float *cs = a.table + (size_t)row * a.table_stride + 2 * j;
        float *p = a.style == ROPE_HALF ? x + j : x + 2 * j,
              *q = a.style == ROPE_HALF ? p + a.half : p + 1;
        float u = *p, v = *q, c = cs[0], s = cs[1];
        *p = u * c - v * s;
        *q = u * s + v * c;
    }
}

void cu_rope_table(struct cuda *c, const struct tensor *table, const int32_t *pos,
                   const float *freq, int n_rot, float mscale)
{
    struct rope_args a = {};
    long long n = (long long)table->rows * (n_rot / 2);

    a.x = (float *)table->data;
    a.stride = table->stride;
    a.rows = table->rows;
    a.half = n_rot / 2;
    a.pos = pos;
    a.freq = freq;
    a.mscale = mscale;
    if (n)
        cu_launch(c, "rope table", rope_table, dim3((unsigned)((n + THREADS - 1) / THREADS)),
                  dim3(THREADS), 0, a);
}

void cu_rope(struct cuda *c, const struct tensor *x, int n_heads, int head_dim, int n_rot,
             const struct tensor *table, enum rope_style style)
{
    struct rope_args a = {};
    int pairs = n_heads * (n_rot / 2);

    a.x = (float *)x->data;
    a.stride = x->stride;
    a.rows = x->rows;
    a.n_heads = n_heads;
    a.head_dim = head_dim;
    a.half = n_rot / 2;
    a.table = (const float *)table->data;
    a.table_stride = table->stride;
    a.style = style;
    if (!pairs || !a.rows) return;
    dim3 grid((pairs + THREADS - 1) / THREADS, a.rows < 32768 ? a.rows : 32768);
    cu_launch(c, "rope", rope_rotate, grid, dim3(THREADS), 0, a);
}
