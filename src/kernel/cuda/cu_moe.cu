/* cu_moe.cu - mixture of experts, host side: sorts choices by expert, launches the matrix products,
 * sums their results.
 *
 * Nothing is read back to the host: launches are the same whatever was chosen, and blocks without
 * work end at once. So a step with experts can be captured as a graph.
 *
 *     few tokens:  hidden = act(gate x) * up x; out = sum of weight * down hidden
 *     more:        sort choices; x to F16; the same products on sorted choices; sum in token order */
#include "kernel/cuda/cu_moe.cuh"

#include <math.h>

#define FEW_TOKENS 2   /* up to so many tokens every choice is multiplied by itself */
#define SOME_EACH 4    /* average choices of an expert up to which the kernel `some` is faster */
#define SOME_COLS 5120 /* columns up to which 8 rows of x fit into its shared memory */
#define SORT_THREADS 1024
#define SUM_THREADS 256

static_assert(MOE_MAX_EXPERTS <= SORT_THREADS, "an expert a thread");

/* ---- sorting choices ---- */

/* first [n + 1]: the first sorted choice of each expert; place [n_choices]: the position of each
 * choice; sorted [n_choices]: the choice at each position. */
struct sort_args {
    const int32_t *ids;
    int32_t *first, *place, *sorted;
    int n, n_choices;
};

/* The inclusive prefix sum of v over the block. */
static __device__ __forceinline__ int prefix_sum(int v, int *part)
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

/* A counting sort by one block: counts of each expert, their prefix sums, then positions. Experts
 * that return their input come last, and no kernel looks at their choices. The order
 * within an expert varies; every choice has its own row of results, and the sum goes by token. */
static __global__ void __launch_bounds__(SORT_THREADS) moe_sort(const sort_args a)
{
    __shared__ int next[SORT_THREADS], part[SORT_THREADS / 32];
    int i = threadIdx.x;

    cu_release_next();
    next[i] = 0;
    __syncthreads();
    cu_wait_previous();
    for (int c = i; c < a.n_choices; c += SORT_THREADS) atomicAdd(&next[a.ids[c]], 1);
    __syncthreads();
    int mine = next[i], end = prefix_sum(mine, part);
    next[i] = end - mine;
    if (i == 0) a.first[0] = 0;
    if (i < a.n) a.first[i + 1] = end;
    __syncthreads();
    for (int c = i; c < a.n_choices; c += SORT_THREADS) {
        int p = atomicAdd(&next[a.ids[c]], 1);
        a.place[c] = p;
        a.sorted[p] = c;
    }
}

/* ---- x as F16 ---- */

struct half_args {
    __half *out;
    const float *x;
    size_t x_stride;
    int cols, pad;
    enum moe_order order;
};

/* Grid: tokens, columns. */
static __global__ void __launch_bounds__(SUM_THREADS) moe_half(const half_args a)
{
    cu_release_next();
    cu_wait_previous();
    int c = blockIdx.y * SUM_THREADS + threadIdx.x, row = blockIdx.x;
    if (c >= a.pad) return;
    float v = c < a.cols ? a.x[row * a.x_stride + c] : 0.f;
    a.out[(size_t)row * a.pad + moe_place(a.order, c)] = half_sat(v);
}

/* ---- the sum over a token's choices ---- */

struct sum_args {
    float *out;
    const float *y, *weights; /* weights NULL: all 1 */
    const int32_t *place;     /* position of each choice; NULL: not sorted */
    const float *x;           /* experts from n on return their input */
    const int32_t *ids;
    size_t out_stride, y_stride, x_stride;
    int cols, n_used, n;
    float scale;
    bool add;
};

/* In the order of a token's choices, so results do not vary. Grid: tokens, columns. */
static __global__ void __launch_bounds__(SUM_THREADS) moe_sum(const sum_args a)
{
    int c = blockIdx.y * SUM_THREADS + threadIdx.x, row = blockIdx.x;

    cu_release_next();
    cu_wait_previous();
    if (c >= a.cols) return;
    float *out = a.out + row * a.out_stride + c, sum = a.add ? *out : 0.f;
    for (int k = 0; k < a.n_used; k++) {
        int i = row * a.n_used + k, at = a.place ? a.place[i] : i;
        float by = a.weights ? a.weights[i] * a.scale : a.scale;
        bool zero = a.x && a.ids[i] >= a.n;
        sum += by * (zero ? a.x[row * a.x_stride + c] : a.y[at * a.y_stride + c]);
    }
    *out = sum;
}

/* ---- matrix products ---- */

/* What all launches of one operation share. */
struct moe {
    struct cuda *c;
    const struct experts_opt *o;
    const struct tensor *x;
    const int32_t *ids;
    const float *weights;
    int32_t *first, *place, *sorted; /* NULL: choices are not sorted */
    int n_choices;
    bool wide;         /* rows are long enough for the kernel `wide` */
    int some;          /* the kernel `some` does it: how many experts are chosen, about; 0: no */
    enum moe_order xh; /* the order of the F16 x in xs; MOE_F32: not converted yet */
};

/* One weight (gate, up or down) of all experts, and its biases. */
struct role {
    const struct weight *w;
    const float *bias;
};

static bool is_few(const struct moe *m) { return m->first == NULL; }

static const struct moe_kernel *kernel_of(const struct weight *w)
{
    int t = layout_type(cu_type(w));
    const struct moe_kernel *k = moe_kernel_small(t);
    if (!k) k = moe_kernel_k(t);
    if (!k) k = moe_kernel_k2(t);
    if (!k) k = moe_kernel_group(t);
    if (!k) k = moe_kernel_plain(t);
    return k;
}

/* The order of x that the kernel for w needs. */
static enum moe_order order_of(const struct moe *m, const struct weight *w)
{
    const struct moe_kernel *k = kernel_of(w);

    if (is_few(m) || m->some) return MOE_F32;
    return k->wide && (m->wide || !k->many) ? MOE_STEPS : k->order;
}

static size_t step_of(const struct weight *w, int n, int e)
{
    return e + 1 < n ? (size_t)((const char *)w[e + 1].packed - (const char *)w[e].packed) : 0;
}

/* Does expert e have the type of e0, at the distance of the run? */
static bool continues_run(const struct weight *w, int n, int e0, int e)
{
    return layout_type(cu_type(&w[e])) == layout_type(cu_type(&w[e0])) &&
           (const char *)w[e].packed ==
               (const char *)w[e0].packed + (size_t)(e - e0) * step_of(w, n, e0);
}

/* The end of the run of experts from e0 on whose weights have one type and are equally spaced, and
 * whose results are needed in one order. Nearly always all experts. next: the weight that reads the
 * results, or NULL. */
static int run_end(const struct moe *m, const struct role *r, int n_roles,
                   const struct weight *next, int e0)
{
    int n = m->o->n, e = e0 + 1;

    while (e < n && continues_run(r[0].w, n, e0, e) &&
           (n_roles == 1 || continues_run(r[1].w, n, e0, e)) &&
           (!next || order_of(m, &next[e]) == order_of(m, &next[e0])))
        e++;
    return e;
}

/* Choices that a block of `wide` takes at once: most experts shall need one round, or full ones. */
static int wide_tokens(const struct moe *m)
{
    int each = m->n_choices / m->o->n;

    return each <= 8 ? 16 : each <= 24 ? 32 : each <= 96 ? 64 : 128;
}

static void refuse_smem(const struct moe *m)
{
    cu_fail(m->c, E_UNSUPPORTED,
            "%s: the device has too little shared memory for the experts' kernels", m->c->be.name);
}

/* Few: a block for each (tiles, choice). Otherwise blocks for each (tiles, split, expert). */
static void launch_kernel(const struct moe *m, const struct moe_kernel *k, const struct moe_args *a,
                          bool wide)
{
    int tiles = cu_div_up(a->out_pad, TILE_ROWS), items = a->pair ? tiles : cu_div_up(tiles, 2);
    int units = cu_div_up(a->cols, k->unit), warps = units < MOE_WARPS ? units : MOE_WARPS;

    if (m->some) {
        if (!k->some(m->c, k->name, a, m->some)) refuse_smem(m);
    } else if (is_few(m)) {
        cu_launch(m->c, k->name, k->few, dim3(items, m->n_choices), dim3(32 * warps), 0, *a);
    } else if (!wide) {
        dim3 grid(cu_div_up(items, MOE_BLOCK) * a->splits, a->e1 - a->e0);
        cu_launch(m->c, k->name, k->many, grid, dim3(32 * MOE_BLOCK), 0, *a);
    } else if (!k->wide(m->c, k->name, a, wide_tokens(m))) {
        refuse_smem(m);
    }
}

/* Converts x to F16 in xs, in the given order. */
static void convert_x(struct moe *m, enum moe_order order)
{
    struct half_args a = {};
    int rows = m->x->rows;

    if (m->xh == order) return;
    m->xh = order;
    a.out = (__half *)m->o->xs.data;
    a.x = (const float *)m->x->data;
    a.x_stride = m->x->stride;
    a.cols = m->x->cols;
    a.pad = moe_pad(order, a.cols);
    a.order = order;
    cu_launch(m->c, "experts x", moe_half, dim3(rows, cu_div_up(a.pad, SUM_THREADS)),
              dim3(SUM_THREADS), 0, a);
}

/* Chooses the input: x as it is, x in F16, or h. */
static void choose_x(struct moe *m, struct moe_args *a, enum moe_order order,
                     const struct tensor *h)
{
    const struct tensor *x = h ? h : order == MOE_F32 ? m->x : &m->o->xs;

    if (!h && order != MOE_F32) convert_x(m, order);
    if (!h) a->sorted = m->sorted;
    a->x = x->data;
    a->x_stride = order == MOE_F32 ? x->stride : (size_t)moe_pad(order, a->cols);
    a->x_each = h ? 1 : m->o->n_used;
    a->vec = cu_aligned16(a->x, a->x_stride);
}

/* The products of one weight, or of gate and up in one. a: the output. h: the input; NULL: x. next:
 * the weight that reads the result in F16; NULL: none. */
static void multiply_choices(struct moe *m, const struct role *r, int n_roles,
                             const struct tensor *h, const struct weight *next, struct moe_args a)
{
    int n = m->o->n, each = 2 * m->n_choices / n, at_once = m->wide ? wide_tokens(m) : MOE_TOKENS;

    a.rows = r[0].w->rows;
    a.cols = r[0].w->cols;
    a.pair = n_roles == 2;
    a.ids = m->ids;
    a.first = m->first;
    a.splits = each > 8 * at_once ? 8 : cu_div_up(each > 0 ? each : 1, at_once);
    for (int e1; a.e0 < n; a.e0 = e1) {
        const struct moe_kernel *k = kernel_of(&r[0].w[a.e0]);
        a.e1 = e1 = run_end(m, r, n_roles, next, a.e0);
        if (next) a.kind = order_of(m, &next[a.e0]);
        a.out_pad = moe_pad(a.kind, a.rows);
        if (a.kind != MOE_F32) a.out_stride = (size_t)a.out_pad;
        for (int i = 0; i < n_roles; i++) {
            a.w[i] = (const uint8_t *)r[i].w[a.e0].packed;
            a.step[i] = step_of(r[i].w, n, a.e0);
            a.bias[i] = r[i].bias;
        }
        choose_x(m, &a, order_of(m, &r[0].w[a.e0]), h);
        launch_kernel(m, k, &a, order_of(m, &r[0].w[a.e0]) == MOE_STEPS);
    }
}

static bool same_types(const struct weight *a, const struct weight *b, int n)
{
    for (int e = 0; e < n; e++)
        if (layout_type(cu_type(&a[e])) != layout_type(cu_type(&b[e]))) return false;
    return true;
}

/* hs = act(gate x) * up x, in the order that down needs. */
static void compute_hidden(struct moe *m)
{
    const struct experts_opt *o = m->o;
    struct role r[2] = { { o->gate, o->b_gate }, { o->up, o->b_up } };
    struct moe_args a = {};

    a.out = o->hs.data;
    a.out_stride = o->hs.stride;
    a.active = true;
    a.act = o->act;
    a.clip = o->clip;
    a.weights = o->weigh_inputs ? m->weights : NULL;
    if (o->gate && same_types(o->gate, o->up, o->n)) {
        multiply_choices(m, r, 2, NULL, o->down, a);
        return;
    }
    if (o->gate) {
        struct moe_args g = {};
        g.out = o->us.data;
        g.out_stride = a.gate_stride = o->us.stride;
        g.weights = a.weights;
        a.gate = (const float *)o->us.data;
        multiply_choices(m, r, 1, NULL, NULL, g);
    }
    multiply_choices(m, r + 1, 1, NULL, o->down, a);
}

static void compute_out(struct moe *m)
{
    struct role r = { m->o->down, m->o->b_down };
    struct moe_args a = {};

    a.out = m->o->ys.data;
    a.out_stride = m->o->ys.stride;
    multiply_choices(m, &r, 1, &m->o->hs, NULL, a);
}

static void sum_choices(const struct moe *m, const struct tensor *out)
{
    struct sum_args a = {};

    a.out = (float *)out->data;
    a.y = (const float *)m->o->ys.data;
    a.weights = m->o->weigh_inputs ? NULL : m->weights;
    a.place = m->place;
    a.x = m->o->n_zero ? (const float *)m->x->data : NULL;
    a.x_stride = m->x->stride;
    a.ids = m->ids;
    a.n = m->o->n;
    a.out_stride = out->stride;
    a.y_stride = m->o->ys.stride;
    a.cols = out->cols;
    a.n_used = m->o->n_used;
    a.scale = m->o->scale;
    a.add = m->o->add;
    cu_launch(m->c, "experts sum", moe_sum, dim3(out->rows, cu_div_up(a.cols, SUM_THREADS)),
              dim3(SUM_THREADS), 0, a);
}

/* down and the sum over choices in one kernel. false: the choices are sorted, or the experts' weights
 * need several launches. */
static bool sum_few(struct moe *m, const struct tensor *out, const float *weights)
{
    const struct experts_opt *o = m->o;
    struct role r = { o->down, o->b_down };
    struct moe_args a = {};
    struct moe_total s = {};

    if (!is_few(m) || o->weigh_inputs || o->n_zero || run_end(m, &r, 1, NULL, 0) < o->n)
        return false;
    a.rows = o->down->rows;
    a.cols = o->down->cols;
    a.ids = m->ids;
    a.w[0] = (const uint8_t *)o->down->packed;
    a.step[0] = step_of(o->down, o->n, 0);
    a.bias[0] = o->b_down;
    choose_x(m, &a, MOE_F32, &o->hs);
    s.weights = weights;
    s.out = (float *)out->data;
    s.out_stride = out->stride;
    s.n_used = o->n_used;
    s.scale = o->scale;
    s.add = o->add;
    cu_launch(m->c, kernel_of(o->down)->name, kernel_of(o->down)->few_sum,
              dim3(cu_div_up(a.rows, TILE_ROWS), out->rows), dim3(32 * MOE_SUM_WARPS), 0, a, s);
    return true;
}

static void sort_choices(struct moe *m)
{
    struct sort_args a = {};

    a.ids = m->ids;
    a.n = m->o->n;
    a.n_choices = m->n_choices;
    a.first = m->first = m->o->order;
    a.place = m->place = a.first + a.n + 1;
    a.sorted = m->sorted = a.place + a.n_choices;
    cu_launch(m->c, "experts sort", moe_sort, dim3(1), dim3(SORT_THREADS), 0, a);
}

/* Do the padded F16 rows fit into the caller's F32 rows? They do unless rows are very short. */
static bool has_room(const struct moe *m, enum moe_order order)
{
    const struct experts_opt *o = m->o;
    size_t x = (size_t)m->x->rows * (size_t)moe_pad(order, m->x->cols),
           wide = (size_t)moe_pad(order, o->up->rows);

    return x * sizeof(__half) <= (size_t)o->xs.rows * o->xs.stride * sizeof(float) &&
           (size_t)m->n_choices * wide * sizeof(__half) <=
               (size_t)o->hs.rows * o->hs.stride * sizeof(float);
}

/* Do all experts' weights have the kernel `some`? */
static bool has_some(const struct weight *w, int n)
{
    if (!w) return true;
    for (int e = 0; e < n; e++)
        if (!kernel_of(&w[e])->some) return false;
    return w->cols <= SOME_COLS;
}

/* How many experts are chosen by n_choices independent choices, about; 0: the kernel `some` cannot
 * do it, or each expert has so many choices that others are faster. */
static int choose_some(const struct moe *m)
{
    const struct experts_opt *o = m->o;
    double missed = pow(1 - 1.0 / o->n, m->n_choices);

    if (m->n_choices > SOME_EACH * o->n || !has_some(o->gate, o->n) || !has_some(o->up, o->n) ||
        !has_some(o->down, o->n))
        return 0;
    return (int)((1 - missed) * o->n + 0.5) + 1;
}

/* Is every choice multiplied by itself? Plain types are faster through shared memory once that
 * fills the GPU. */
static bool uses_few(const struct moe *m)
{
    const struct moe_kernel *k = kernel_of(m->o->up);
    bool fills = (long long)m->n_choices * m->o->up->rows >= 128ll * m->c->n_sm;

    return m->x->rows <= FEW_TOKENS && !(k->wide && k->many && fills);
}

void cu_experts(struct cuda *c, const struct tensor *out, const struct tensor *x,
                const int32_t *ids, const float *weights, const struct experts_opt *o)
{
    struct moe m = {};

    m.c = c;
    m.o = o;
    m.x = x;
    m.ids = ids;
    m.weights = weights;
    m.n_choices = x->rows * o->n_used;
    if (o->n + o->n_zero > MOE_MAX_EXPERTS || (o->gate && o->gate->rows != o->up->rows)) {
        cu_fail(c, E_UNSUPPORTED,
                "%s: %d experts; at most %d are supported, with gate and up of the same size",
                c->be.name, o->n + o->n_zero, MOE_MAX_EXPERTS);
        return;
    }
    if (!uses_few(&m)) {
        m.some = choose_some(&m);
        m.wide = has_room(&m, MOE_STEPS);
        if (!m.some && !has_room(&m, MOE_LANES)) {
            cu_fail(c, E_INVALID,
                    "%s: experts of %d rows and %d columns are too small for F16 rows in their "
                    "scratch memory",
                    c->be.name, o->up->rows, x->cols);
            return;
        }
        sort_choices(&m);
    }
    compute_hidden(&m);
    if (sum_few(&m, out, weights)) return;
    compute_out(&m);
    sum_choices(&m, out);
}
