/* cu_ops.cu - operations that touch each number once: activations, sums, scales, rows picked by
 * number, rotation. */
#include "kernel/cuda/cu.cuh"

#define THREADS 256

/* Up to three tensors of one shape, in units of 1 or 4 numbers. */
struct each {
    float *out;
    const float *x, *y; /* y NULL: none */
    size_t out_stride, x_stride, y_stride;
    int rows, cols;      /* cols in units */
    const int32_t *pick; /* rows of x by number; NULL: as they come */
    enum act act;
    float scale;
};

enum op { OP_ACT, OP_ADD, OP_SCALE, OP_SOFTCAP, OP_CLAMP, OP_GATE, OP_GATHER };

template <enum op OP> static __device__ __forceinline__ float one(const each &e, float x, float y)
{
    switch (OP) {
    case OP_ACT: return e.y ? act_pair(e.act, x, y) : act_of(e.act, x);
    case OP_ADD: return x + e.scale * y;
    case OP_SCALE: return x * e.scale;
    case OP_SOFTCAP: return e.scale * tanhf(x / e.scale);
    case OP_CLAMP: return x > e.scale ? e.scale : x < -e.scale ? -e.scale : x;
    case OP_GATE: return x * act_of(ACT_SIGMOID, y);
    default: return x;
    }
}

template <enum op OP>
static __device__ __forceinline__ float4 one(const each &e, float4 x, float4 y)
{
    return make_float4(one<OP>(e, x.x, y.x), one<OP>(e, x.y, y.y), one<OP>(e, x.z, y.z),
                       one<OP>(e, x.w, y.w));
}

static __device__ __forceinline__ void all(float &v, float s) { v = s; }
static __device__ __forceinline__ void all(float4 &v, float s) { v = make_float4(s, s, s, s); }

/* V: float or float4. Grid: columns, rows. */
template <enum op OP, typename V>
static __global__ void __launch_bounds__(THREADS) op_each(const each e)
{
    int c = blockIdx.x * THREADS + threadIdx.x;

    cu_next();
    cu_wait();
    if (c >= e.cols) return;
    for (int r = blockIdx.y; r < e.rows; r += gridDim.y) {
        size_t from = OP == OP_GATHER ? (size_t)e.pick[r] : (size_t)r;
        V x = ((const V *)(e.x + from * e.x_stride))[c], y;
        all(y, 1.f);
        if (OP == OP_GATE) all(y, e.y[(size_t)r * e.y_stride]);
        else if (e.y) y = ((const V *)(e.y + (size_t)r * e.y_stride))[c];
        ((V *)(e.out + (size_t)r * e.out_stride))[c] = one<OP>(e, x, y);
    }
}

static bool by_four(const void *p, size_t stride)
{
    return (uintptr_t)p % 16 == 0 && stride % 4 == 0;
}

template <enum op OP> static void each_run(struct cuda *c, struct each *e, const char *name)
{
    bool four = e->cols % 4 == 0 && by_four(e->out, e->out_stride) && by_four(e->x, e->x_stride) &&
                (!e->y || OP == OP_GATE || by_four(e->y, e->y_stride));

    if (e->rows == 0 || e->cols == 0) return;
    if (four) e->cols /= 4;
    dim3 grid((e->cols + THREADS - 1) / THREADS, e->rows < 32768 ? e->rows : 32768);
    if (four) cu_launch(c, name, op_each<OP, float4>, grid, dim3(THREADS), 0, *e);
    else cu_launch(c, name, op_each<OP, float>, grid, dim3(THREADS), 0, *e);
}

static struct each each_of(const struct tensor *out, const struct tensor *x, const struct tensor *y,
                           float scale)
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
    struct each e = each_of(out, gate, up, 1.f);

    e.act = act;
    each_run<OP_ACT>(c, &e, "act");
}

void cu_add(struct cuda *c, const struct tensor *x, const struct tensor *y, float scale)
{
    struct each e = each_of(x, x, y, scale);

    each_run<OP_ADD>(c, &e, "add");
}

void cu_scale(struct cuda *c, const struct tensor *x, float scale)
{
    struct each e = each_of(x, x, NULL, scale);

    each_run<OP_SCALE>(c, &e, "scale");
}

void cu_softcap(struct cuda *c, const struct tensor *x, float cap)
{
    struct each e = each_of(x, x, NULL, cap);

    each_run<OP_SOFTCAP>(c, &e, "softcap");
}

void cu_clamp(struct cuda *c, const struct tensor *x, float limit)
{
    struct each e = each_of(x, x, NULL, limit);

    each_run<OP_CLAMP>(c, &e, "clamp");
}

void cu_gate_rows(struct cuda *c, const struct tensor *x, const struct tensor *s)
{
    struct each e = each_of(x, x, s, 1.f);

    each_run<OP_GATE>(c, &e, "gate rows");
}

void cu_gather(struct cuda *c, const struct tensor *out, const struct tensor *x,
               const int32_t *rows)
{
    struct each e = each_of(out, x, NULL, 1.f);

    e.pick = rows;
    each_run<OP_GATHER>(c, &e, "gather");
}

/* ---- rotation ---- */

struct turn {
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

/* The angle is rounded to a float, as the definition has it; its sine and cosine are those of that
 * float. */
static __global__ void __launch_bounds__(THREADS) rope_table(const turn a)
{
    int i = blockIdx.x * THREADS + threadIdx.x, row = i / a.half, j = i % a.half;

    cu_next();
    cu_wait();
    if (row >= a.rows) return;
    float angle = __fmul_rn((float)a.pos[row], a.freq[j]), s, c;
    sincosf(angle, &s, &c);
    a.x[(size_t)row * a.stride + 2 * j] = c * a.mscale;
    a.x[(size_t)row * a.stride + 2 * j + 1] = s * a.mscale;
}

/* A thread has a pair. Grid: pairs of a row, rows. */
static __global__ void __launch_bounds__(THREADS) rope_turn(const turn a)
{
    int i = blockIdx.x * THREADS + threadIdx.x, head = i / a.half, j = i % a.half;

    cu_next();
    cu_wait();
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
    struct turn a = {};
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
    struct turn a = {};
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
    cu_launch(c, "rope", rope_turn, grid, dim3(THREADS), 0, a);
}
