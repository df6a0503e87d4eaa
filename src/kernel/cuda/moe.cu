/* moe.cu - experts: choices sorted by expert, which products are launched, the sum of what they give.
 *
 * Nothing comes back to the host: launches are the same whatever was chosen, and blocks that have nothing to do
 * end at once. So a step with experts is captured like any other. */
#include "kernel/cuda/moe.cuh"

#define FEW_TOKENS 4                 /* up to these each choice is a product of its own */
#define SORT_THREADS 1024
#define SUM_THREADS 256

static_assert(MOE_MAX_EXPERTS <= SORT_THREADS, "an expert a thread");

/* ---- order ---- */

/* first [n + 1]: where each expert's choices begin; place [n_choices]: where each went; who: who stands where. */
struct sort_args {
    const int32_t *ids;
    int32_t *first, *place, *who;
    int n, n_choices;
};

/* The sum of v up to and with this thread. */
static __device__ __forceinline__ int scan(int v, int *part)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    for (int m = 1; m < 32; m *= 2) {
        int u = __shfl_up_sync(~0u, v, m);
        if (lane >= m) v += u;
    }
    if (lane == 31) part[warp] = v;
    __syncthreads();
    for (int i = 0; i < warp; i++) v += part[i];
    return v;
}

static __global__ void __launch_bounds__(SORT_THREADS) moe_sort(const sort_args a)
{
    __shared__ int next[SORT_THREADS], part[SORT_THREADS / 32];
    int i = threadIdx.x;

    cu_next();
    next[i] = 0;
    __syncthreads();
    cu_wait();
    for (int c = i; c < a.n_choices; c += SORT_THREADS) atomicAdd(&next[a.ids[c]], 1);
    __syncthreads();
    int mine = next[i], end = scan(mine, part);
    next[i] = end - mine;
    if (i == 0) a.first[0] = 0;
    if (i < a.n) a.first[i + 1] = end;
    __syncthreads();
    for (int c = i; c < a.n_choices; c += SORT_THREADS) {
        int p = atomicAdd(&next[a.ids[c]], 1);
        a.place[c] = p;
        a.who[p] = c;
    }
}

/* ---- x as F16 ---- */

struct half_args {
    __half *out;
    const float *x;
    size_t x_stride;
    int cols, pad;
    bool natural;
};

static __global__ void __launch_bounds__(SUM_THREADS) moe_half(const half_args a)
{
    cu_next();
    cu_wait();
    int c = blockIdx.y * SUM_THREADS + threadIdx.x, row = blockIdx.x;
    if (c >= a.pad) return;
    float v = c < a.cols ? a.x[row * a.x_stride + c] : 0.f;
    a.out[(size_t)row * a.pad + (a.natural ? c : moe_place(c))] = half_sat(v);
}

/* ---- the sum ---- */

struct sum_args {
    float *out;
    const float *y, *weights;
    const int32_t *place;            /* NULL: choices are where they were */
    size_t out_stride, y_stride;
    int cols, n_used;
    float scale;
    bool add;
};

static __global__ void __launch_bounds__(SUM_THREADS) moe_sum(const sum_args a)
{
    int c = blockIdx.y * SUM_THREADS + threadIdx.x, row = blockIdx.x;

    cu_next();
    cu_wait();
    if (c >= a.cols) return;
    float *out = a.out + row * a.out_stride + c, sum = a.add ? *out : 0.f;
    for (int k = 0; k < a.n_used; k++) {
        int i = row * a.n_used + k, at = a.place ? a.place[i] : i;
        sum += a.weights[i] * a.scale * a.y[at * a.y_stride + c];
    }
    *out = sum;
}

/* ---- products ---- */

/* One call: what all its launches share. */
struct moe {
    struct cuda *c;
    const struct experts_opt *o;
    const struct tensor *x;
    const int32_t *ids;
    int32_t *first, *place, *who;    /* NULL where choices are taken one by one */
    int n_choices;
    int xh;                          /* the order in which xs holds x as F16; -1: not yet */
};

/* Weights of one role for all experts, and a bias each. */
struct role {
    const struct weight *w;
    const float *bias;
};

static int over(int a, int b) { return (a + b - 1) / b; }
static bool is_few(const struct moe *m) { return m->first == NULL; }

static const struct moe_kernel *kernel_of(const struct weight *w)
{
    int t = layout_type(w->type);
    const struct moe_kernel *k = moe_kernel_small(t);
    if (!k) k = moe_kernel_k(t);
    if (!k) k = moe_kernel_plain(t);
    return k;
}

static size_t step_of(const struct weight *w, int n, int e)
{
    return e + 1 < n ? (size_t)((const char *)w[e + 1].packed - (const char *)w[e].packed) : 0;
}

static bool fits(const struct weight *w, int n, int e0, int e)
{
    return layout_type(w[e].type) == layout_type(w[e0].type) &&
           (const char *)w[e].packed == (const char *)w[e0].packed + (size_t)(e - e0) * step_of(w, n, e0);
}

/* Where the run of experts ends that have one type, lie at one distance, and hand on in one order: nearly always
 * all. next: who reads what they make, or NULL. */
static int run_end(const struct role *r, int n_roles, const struct weight *next, int n, int e0)
{
    int e = e0 + 1;

    while (e < n && fits(r[0].w, n, e0, e) && (n_roles == 1 || fits(r[1].w, n, e0, e)) &&
           (!next || kernel_of(&next[e])->natural == kernel_of(&next[e0])->natural))
        e++;
    return e;
}

static void launch(const struct moe *m, const struct moe_kernel *k, const struct moe_args *a)
{
    int tiles = over(a->kind == MOE_F32 ? a->rows : moe_pad(a->rows), TILE_ROWS), items = a->pair ? tiles : over(tiles, 2);
    int units = over(a->cols, k->unit), warps = units < MOE_WARPS ? units : MOE_WARPS;

    if (is_few(m))
        cu_launch(m->c, k->name, k->few, dim3(items, m->n_choices), dim3(32 * warps), 0, *a);
    else
        cu_launch(m->c, k->name, k->many, dim3(over(items, MOE_BLOCK) * a->splits, a->e1 - a->e0), dim3(32 * MOE_BLOCK), 0,
                  *a);
}

/* x in the order that a kernel takes, in xs. */
static void make_half(struct moe *m, bool natural)
{
    struct half_args a = {};
    int rows = m->x->rows;

    if (m->xh == (int)natural) return;
    m->xh = (int)natural;
    a.out = (__half *)m->o->xs.data;
    a.x = (const float *)m->x->data;
    a.x_stride = m->x->stride;
    a.cols = m->x->cols;
    a.pad = moe_pad(a.cols);
    a.natural = natural;
    cu_launch(m->c, "experts x", moe_half, dim3(rows, over(a.pad, SUM_THREADS)), dim3(SUM_THREADS), 0, a);
}

static bool by_four(const void *p, size_t stride) { return (uintptr_t)p % 16 == 0 && stride % 4 == 0; }

/* What goes in: the tokens, or what became of them. */
static void take_x(struct moe *m, struct moe_args *a, bool natural, const struct tensor *h)
{
    if (h) {
        a->x = h->data;
        a->x_stride = is_few(m) ? h->stride : (size_t)moe_pad(a->cols);
        a->x_each = 1;
    } else if (is_few(m)) {
        a->x = m->x->data;
        a->x_stride = m->x->stride;
        a->x_each = m->o->n_used;
    } else {
        make_half(m, natural);
        a->x = m->o->xs.data;
        a->x_stride = (size_t)moe_pad(a->cols);
        a->x_each = m->o->n_used;
        a->who = m->who;
    }
    a->vec = by_four(a->x, a->x_stride);
}

/* The products of one role, or of gate and up at once; a has what becomes of them. h: what goes in, NULL: x.
 * next: who reads the result as F16, NULL: nobody. */
static void product(struct moe *m, const struct role *r, int n_roles, const struct tensor *h,
                    const struct weight *next, struct moe_args a)
{
    int n = m->o->n, each = m->n_choices / n * 2;

    a.rows = r[0].w->rows;
    a.cols = r[0].w->cols;
    a.pair = n_roles == 2;
    a.ids = m->ids;
    a.first = m->first;
    a.splits = each > 8 * MOE_TOKENS ? 8 : over(each > 0 ? each : 1, MOE_TOKENS);
    for (int e1; a.e0 < n; a.e0 = e1) {
        const struct moe_kernel *k = kernel_of(&r[0].w[a.e0]);
        a.e1 = e1 = run_end(r, n_roles, next, n, a.e0);
        if (next) a.kind = kernel_of(&next[a.e0])->natural ? MOE_ROWS : MOE_LANES;
        for (int i = 0; i < n_roles; i++) {
            a.w[i] = (const uint8_t *)r[i].w[a.e0].packed;
            a.step[i] = step_of(r[i].w, n, a.e0);
            a.bias[i] = r[i].bias;
        }
        take_x(m, &a, k->natural, h);
        launch(m, k, &a);
    }
}

static bool same_types(const struct weight *a, const struct weight *b, int n)
{
    for (int e = 0; e < n; e++)
        if (layout_type(a[e].type) != layout_type(b[e].type)) return false;
    return true;
}

/* hs = act(gate x) * up x, in the order that down takes. */
static void widen(struct moe *m)
{
    const struct experts_opt *o = m->o;
    struct role r[2] = { { o->gate, o->b_gate }, { o->up, o->b_up } };
    const struct weight *next = is_few(m) ? NULL : o->down;
    struct moe_args a = {};

    a.out = o->hs.data;
    a.out_stride = is_few(m) ? o->hs.stride : (size_t)moe_pad(o->up->rows);
    a.active = true;
    a.act = o->act;
    if (o->gate && same_types(o->gate, o->up, o->n)) {
        product(m, r, 2, NULL, next, a);
        return;
    }
    if (o->gate) {
        struct moe_args g = {};
        g.out = o->us.data;
        g.out_stride = a.gate_stride = o->us.stride;
        a.gate = (const float *)o->us.data;
        product(m, r, 1, NULL, NULL, g);
    }
    product(m, r + 1, 1, NULL, next, a);
}

static void narrow(struct moe *m)
{
    struct role r = { m->o->down, m->o->b_down };
    struct moe_args a = {};

    a.out = m->o->ys.data;
    a.out_stride = m->o->ys.stride;
    product(m, &r, 1, &m->o->hs, NULL, a);
}

static void add_up(const struct moe *m, const struct tensor *out, const float *weights)
{
    struct sum_args a = {};

    a.out = (float *)out->data;
    a.y = (const float *)m->o->ys.data;
    a.weights = weights;
    a.place = m->place;
    a.out_stride = out->stride;
    a.y_stride = m->o->ys.stride;
    a.cols = out->cols;
    a.n_used = m->o->n_used;
    a.scale = m->o->scale;
    a.add = m->o->add;
    cu_launch(m->c, "experts sum", moe_sum, dim3(out->rows, over(a.cols, SUM_THREADS)), dim3(SUM_THREADS), 0, a);
}

static void sort(struct moe *m)
{
    struct sort_args a = {};

    a.ids = m->ids;
    a.n = m->o->n;
    a.n_choices = m->n_choices;
    a.first = m->first = m->o->order;
    a.place = m->place = a.first + a.n + 1;
    a.who = m->who = a.place + a.n_choices;
    cu_launch(m->c, "experts sort", moe_sort, dim3(1), dim3(SORT_THREADS), 0, a);
}

/* The caller's rows are F32: they hold F16 ones of 32 columns more, unless they are very short. */
static bool has_room(const struct tensor *t, int rows, int cols)
{
    return (size_t)rows * (size_t)moe_pad(cols) * sizeof(__half) <= (size_t)t->rows * t->stride * sizeof(float);
}

void cu_experts(struct cuda *c, const struct tensor *out, const struct tensor *x, const int32_t *ids,
                const float *weights, const struct experts_opt *o)
{
    struct moe m = {};

    m.c = c;
    m.o = o;
    m.x = x;
    m.ids = ids;
    m.n_choices = x->rows * o->n_used;
    m.xh = -1;
    if (o->n > MOE_MAX_EXPERTS || (o->gate && o->gate->rows != o->up->rows)) {
        cu_fail(c, E_UNSUPPORTED, "%s: %d experts, at most %d, and gate and up of one size", c->be.name, o->n,
                MOE_MAX_EXPERTS);
        return;
    }
    if (x->rows > FEW_TOKENS) {
        if (!has_room(&o->xs, x->rows, x->cols) || !has_room(&o->hs, m.n_choices, o->up->rows)) {
            cu_fail(c, E_INVALID, "%s: experts of %d by %d numbers are too small", c->be.name, o->up->rows, x->cols);
            return;
        }
        sort(&m);
    }
    widen(&m);
    narrow(&m);
    add_up(&m, out, weights);
}
