/* cu_moe.cu - mixture of experts, host side: sorts choices by expert, launches the matrix products,
 * sums their results.
 *
 * Nothing is read back to the host: launches are the same whatever was chosen, and blocks without
 * work end at once. So a step with experts can be captured as a graph.
 *
 *     few tokens:  hidden = act(gate x) * up x; out = sum of weight * down hidden
 *     more:        sort choices; x to F16; the same products on sorted choices; sum in token order */
#include "kernel/cuda/moe_rows.cuh"

#include <math.h>

#define FEW_TOKENS 2   /* up to so many tokens every choice is multiplied by itself */
#define SOME_EACH 4    /* average choices of an expert up to which the kernel `some` is faster */
#define SOME_COLS 5120 /* columns up to which 8 rows of x fit into its shared memory */
/* Average choices of an expert with which `tiles` is faster than `wide`; measured at 32. */
#define TILES_FROM 24
#define TILES_TO 64

/* The x that cu_router has left as integers for the next cu_experts. thread_local: one thread drives
 * a backend. */
static thread_local struct {
    const float *of; /* NULL: none */
    const void *at;
    int rows;
} ready_x;

void cu_experts_reset(void) { ready_x.of = NULL; }

/* ---- matrix products ---- */

/* What all launches of one operation share. */
struct moe {
    struct cuda *c;
    const struct experts_opt *o;
    const struct tensor *x;
    const int32_t *ids;
    const float *weights;
    int32_t *first, *place, *sorted; /* NULL: choices are not sorted */
    int32_t *tiles;                  /* NULL: the kernel `tiles` does not do it */
    int tile;                        /* choices that it takes at once */
    int n_choices;
    bool one;          /* choices are multiplied as integers */
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

    if (m->one) return MOE_INT16;
    if (m->tiles) return MOE_TILES;
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

static bool same_types(const struct weight *a, const struct weight *b, int n)
{
    for (int e = 0; e < n; e++)
        if (layout_type(cu_type(&a[e])) != layout_type(cu_type(&b[e]))) return false;
    return true;
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
                          int t, bool wide)
{
    int tiles = cu_div_up(a->out_pad, TILE_ROWS), items = a->pair ? tiles : cu_div_up(tiles, 2);
    int units = cu_div_up(a->cols, m->one ? MOE_UNIT : k->unit),
        warps = units < MOE_WARPS ? units : MOE_WARPS;

    if (m->tiles) {
        if (!moe_tiles_of(t)(m->c, k->name, a, a->cols, m->tile)) refuse_smem(m);
    } else if (m->some) {
        if (!k->some(m->c, k->name, a, m->some)) refuse_smem(m);
    } else if (is_few(m)) {
        cu_launch(m->c, k->name, m->one ? k->one : k->few, dim3(items, m->n_choices),
                  dim3(32 * warps), 0, *a);
    } else if (!wide) {
        dim3 grid(cu_div_up(items, MOE_BLOCK) * a->splits, a->e1 - a->e0);
        cu_launch(m->c, k->name, k->many, grid, dim3(32 * MOE_BLOCK), 0, *a);
    } else if (!k->wide(m->c, k->name, a, wide_tokens(m))) {
        refuse_smem(m);
    }
}

/* x to xs, sorted by expert. */
static void gather_x(const struct moe *m)
{
    struct gather_args a = {};

    a.out = (__half *)m->o->xs.data;
    a.x = (const float *)m->x->data;
    a.x_stride = m->x->stride;
    a.ids = m->ids;
    a.place = m->place;
    a.first = m->first;
    a.cols = m->x->cols;
    a.n_used = m->o->n_used;
    a.n = m->o->n;
    cu_launch(m->c, "experts x", moe_gather, dim3(m->x->rows), dim3(SUM_THREADS), 0, a);
}

/* Converts x to F16 or integers in xs, in the given order. */
static void convert_x(struct moe *m, enum moe_order order)
{
    struct half_args a = {};
    int rows = m->x->rows;

    if (m->xh == order) return;
    m->xh = order;
    if (order == MOE_INT16 && ready_x.of == m->x->data && ready_x.at == m->o->xs.data &&
        ready_x.rows == rows)
        return;
    if (order == MOE_TILES) {
        gather_x(m);
        return;
    }
    a.out = (__half *)m->o->xs.data;
    a.x = (const float *)m->x->data;
    a.x_stride = m->x->stride;
    a.cols = m->x->cols;
    a.pad = moe_pad(order, a.cols);
    a.order = order;
    if (order == MOE_INT16)
        cu_launch(m->c, "experts x", moe_int16, dim3(rows, a.pad / MOE_UNIT), dim3(32), 0, a);
    else
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
    a->x_stride = order == MOE_F32 ? x->stride : moe_row(order, a->cols);
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
    a.tiles = m->tiles;
    a.splits = each > 8 * at_once ? 8 : cu_div_up(each > 0 ? each : 1, at_once);
    for (int e1; a.e0 < n; a.e0 = e1) {
        const struct moe_kernel *k = kernel_of(&r[0].w[a.e0]);
        a.e1 = e1 = run_end(m, r, n_roles, next, a.e0);
        if (next) a.kind = order_of(m, &next[a.e0]);
        a.out_pad = moe_pad(a.kind, a.rows);
        if (a.kind != MOE_F32) a.out_stride = moe_row(a.kind, a.rows);
        for (int i = 0; i < n_roles; i++) {
            a.w[i] = (const uint8_t *)r[i].w[a.e0].packed;
            a.step[i] = step_of(r[i].w, n, a.e0);
            a.bias[i] = r[i].bias;
        }
        choose_x(m, &a, order_of(m, &r[0].w[a.e0]), h);
        launch_kernel(m, k, &a, layout_type(cu_type(&r[0].w[a.e0])),
                      order_of(m, &r[0].w[a.e0]) == MOE_STEPS);
    }
}

/* Lets the product before down ask for down's weights, if the cache takes those of all choices. */
static void fetch_down_early(const struct moe *m, struct moe_args *a)
{
    const struct weight *w = m->o->down;
    struct role r = { w, NULL };
    size_t bytes = layout_matrix_bytes(layout_type(cu_type(w)), w->rows, w->cols);

    if (!m->one || (size_t)m->n_choices * bytes > m->c->l2_bytes / 2 ||
        run_end(m, &r, 1, NULL, 0) < m->o->n)
        return;
    a->ahead = (const uint8_t *)w->packed;
    a->ahead_step = step_of(w, m->o->n, 0);
    a->ahead_bytes = bytes / 16 * 16;
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
    fetch_down_early(m, &a);
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
    if (a.cols % 4 == 0 && cu_aligned16(a.out, a.out_stride) && cu_aligned16(a.y, a.y_stride) &&
        (!a.x || cu_aligned16(a.x, a.x_stride)))
        cu_launch(m->c, "experts sum", moe_sum<float4>,
                  dim3(out->rows, cu_div_up(a.cols, 4 * SUM_THREADS)), dim3(SUM_THREADS), 0, a);
    else
        cu_launch(m->c, "experts sum", moe_sum<float>,
                  dim3(out->rows, cu_div_up(a.cols, SUM_THREADS)), dim3(SUM_THREADS), 0, a);
}

/* down and the sum over choices in one kernel. false: the choices are sorted, or the experts' weights
 * need several launches. */
static bool sum_few(struct moe *m, const struct tensor *out, const float *weights)
{
    const struct experts_opt *o = m->o;
    const struct moe_kernel *k = kernel_of(o->down);
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
    choose_x(m, &a, order_of(m, o->down), &o->hs);
    s.weights = weights;
    s.out = (float *)out->data;
    s.out_stride = out->stride;
    s.n_used = o->n_used;
    s.scale = o->scale;
    s.add = o->add;
    cu_launch(m->c, k->name, m->one ? k->one_sum : k->few_sum,
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
    a.tiles = m->tiles;
    a.tile = m->tile;
    cu_launch(m->c, "experts sort", moe_sort, dim3(1), dim3(SORT_THREADS), 0, a);
}

/* Do the padded rows of this order fit into the caller's F32 rows? They do unless rows are very short. */
static bool has_room(const struct moe *m, enum moe_order order)
{
    const struct experts_opt *o = m->o;
    size_t x = (size_t)m->x->rows * moe_row_bytes(order, m->x->cols),
           h = (size_t)m->n_choices * moe_row_bytes(order, o->up->rows);

    return x <= (size_t)o->xs.rows * o->xs.stride * sizeof(float) &&
           h <= (size_t)o->hs.rows * o->hs.stride * sizeof(float);
}

/* Do all experts' weights have the kernel `one`? */
static bool has_one(const struct weight *w, int n)
{
    for (int e = 0; w && e < n; e++)
        if (!kernel_of(&w[e])->one) return false;
    return true;
}

/* Are the choices of m, each multiplied by itself, multiplied as integers? */
static bool uses_one(const struct moe *m)
{
    const struct experts_opt *o = m->o;

    return has_one(o->gate, o->n) && has_one(o->up, o->n) && has_one(o->down, o->n) &&
           has_room(m, MOE_INT16) && cu_aligned16(o->xs.data, 0) && cu_aligned16(o->hs.data, 0);
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

static bool has_tiles(struct cuda *c, const struct weight *w, int tile)
{
    moe_tiles_run *run = moe_tiles_of(layout_type(cu_type(w)));

    return run && run(c, kernel_of(w)->name, NULL, w->cols, tile);
}

/* Can the kernel `tiles` do it with m->tile? Each role's weights are one run, and rows fit into
 * scratch memory. Where the tiles begin goes to us, which is free if gate and up are multiplied
 * together. */
static int32_t *choose_tiles(const struct moe *m)
{
    const struct experts_opt *o = m->o;
    struct role up = { o->up, NULL }, gate = { o->gate, NULL }, down = { o->down, NULL };

    if (o->act != ACT_SILU || o->clip.limit != 0.f || o->weigh_inputs || o->b_gate || o->b_up ||
        o->b_down || !o->gate || !same_types(o->gate, o->up, o->n) || o->up->rows % 64)
        return NULL;
    if (!has_tiles(m->c, o->up, m->tile) || !has_tiles(m->c, o->down, m->tile) ||
        run_end(m, &up, 1, NULL, 0) < o->n || run_end(m, &gate, 1, NULL, 0) < o->n ||
        run_end(m, &down, 1, NULL, 0) < o->n || !cu_aligned16(m->x->data, m->x->stride) ||
        !cu_aligned16(o->xs.data, 0) || !cu_aligned16(o->hs.data, 0))
        return NULL;
    if (!has_room(m, MOE_TILES) || (size_t)m->n_choices > (size_t)o->xs.rows ||
        (size_t)(o->n + 1) > (size_t)o->us.rows * o->us.stride)
        return NULL;
    return (int32_t *)o->us.data;
}

/* Is every choice multiplied by itself? Plain types are faster through shared memory once that
 * fills the GPU. */
static bool uses_few(const struct moe *m)
{
    const struct moe_kernel *k = kernel_of(m->o->up);
    bool fills = (long long)m->n_choices * m->o->up->rows >= 128ll * m->c->n_sm;

    return m->x->rows <= FEW_TOKENS && !(k->wide && k->many && fills);
}

void *cu_experts_x16(struct cuda *c, const struct tensor *x, const struct experts_opt *o)
{
    struct moe m = {};

    m.c = c;
    m.o = o;
    m.x = x;
    m.n_choices = x->rows * o->n_used;
    if (!uses_few(&m) || !uses_one(&m)) return NULL;
    ready_x = { (const float *)x->data, o->xs.data, x->rows };
    return o->xs.data;
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
        int each = m.n_choices / o->n;

        m.tile = 64;
        if (each >= TILES_FROM && each <= TILES_TO) m.tiles = choose_tiles(&m);
        if (!m.tiles) m.some = choose_some(&m);
        m.wide = has_room(&m, MOE_STEPS);
        if (!m.some && !has_room(&m, MOE_LANES)) {
            cu_fail(c, E_INVALID,
                    "%s: experts of %d rows and %d columns are too small for F16 rows in their "
                    "scratch memory",
                    c->be.name, o->up->rows, x->cols);
            return;
        }
        sort_choices(&m);
    } else {
        m.one = uses_one(&m);
    }
    compute_hidden(&m);
    ready_x.of = NULL;
    if (sum_few(&m, out, weights)) return;
    compute_out(&m);
    sum_choices(&m, out);
}
