/* cu_gemm.cu - host side of the GEMM: which way, in which pieces, and its scratch memory.
 *
 * Scratch memory (struct gemm_scratch), sized for the largest step: x as F16, act(gate) * up as
 * F16, up as F16, a slice of a weight as F16, partial sums, and cuBLASLt's workspace. */
#include "base/minmax.h"
#include "kernel/cuda/cu_gemm.cuh"
#include "kernel/cuda/gemm_types.cuh"
#include "kernel/cuda/cu_layout.cuh"

extern "C" {
#include "base/mem.h"
}

#define MIB ((size_t)1 << 20)
#define LT_WORK (32 * MIB)
#define SLOT_BYTES ((size_t)128 << 10) /* partial sums of the largest tile */

/* State between operations. */
struct gemm {
    struct lt *lt;
    enum gemm_way way;
    struct tuned tuned;
    /* The last operation also left act(gate) * up in F16 at act_x. The next one may read that
     * instead of converting its x. */
    const void *act_out;
    const __half *act_x;
    int act_rows, act_cols;
    size_t act_stride;
    int act_nt;
};

static struct gemm *gemm_of(struct cuda *c) { return (struct gemm *)c->gemm; }

int cu_gemm_open(struct cuda *c, struct err *e)
{
    struct gemm *g = mem_new(struct gemm);

    if (!g) return err_nomem(e, "the state of the GEMM");
    g->lt = lt_open();
    c->gemm = g;
    return OK;
}

void cu_gemm_close(struct cuda *c)
{
    if (!c->gemm) return;
    lt_close(gemm_of(c)->lt);
    mem_free(c->gemm);
    c->gemm = NULL;
}

/* Without the library there is nothing to compare. */
void cu_gemm_tune(struct cuda *c, uint64_t types)
{
    struct cu_profile *profile = c->profile;

    c->profile = NULL; /* tuning is not part of a profile */
    if (gemm_of(c)->lt) gemm_tune(c, &gemm_of(c)->tuned, types);
    c->profile = profile;
}

const char *gemm_library(struct cuda *c, char *buf, size_t n)
{
    return lt_version(gemm_of(c)->lt, buf, n);
}
void gemm_set_way(struct cuda *c, enum gemm_way way) { gemm_of(c)->way = way; }
void gemm_set_choice(struct cuda *c, int choice) { lt_choose(gemm_of(c)->lt, choice); }

/* ---- scratch memory ---- */

/* Offsets of the parts. */
struct gemm_scratch {
    size_t x, act, up, w, w_bytes, part, n_slots, work, end;
};

static size_t round_up(size_t n) { return (n + 1023) / 1024 * 1024; }

/* Parts are multiples of 1,024 bytes. The slice of weights is at most 192 MiB, but holds at least
 * 256 rows. Partial sums: one slot for each block, and one for each tile of a step, up to 640. */
static struct gemm_scratch scratch_layout(const struct cuda *c, const struct backend_limits *l)
{
    struct gemm_scratch s = {};
    size_t tokens = ((size_t)l->max_tokens + 255) / 256 * 256, cols = (size_t)gemm_pad(l->max_cols);
    size_t rows = (size_t)gemm_pad(l->max_rows > l->max_cols ? l->max_rows : l->max_cols);
    size_t most = (size_t)(l->max_rows > l->n_vocab ? l->max_rows : l->n_vocab);

    s.act = s.x + round_up(tokens * cols * 2);
    s.up = s.act + round_up(tokens * rows * 2);
    s.w = s.up + round_up(tokens * rows * 2);
    s.w_bytes = min_size(192 * MIB, (size_t)l->max_rows * cols * 2);
    if (s.w_bytes < 256 * cols * 2) s.w_bytes = 256 * cols * 2;
    s.part = s.w + round_up(s.w_bytes);
    s.n_slots = (size_t)c->n_sm + 2 * GEMM_JOBS +
                min_size(640, (2 * most / 128 + 8) * (size_t)cu_div_up(l->max_tokens, 256));
    s.work = s.part + s.n_slots * SLOT_BYTES;
    s.end = s.work + LT_WORK;
    return s;
}

size_t cu_gemm_bytes(const struct cuda *c, const struct backend_limits *lim)
{
    return scratch_layout(c, lim).end;
}

static void *scratch_at(struct cuda *c, size_t at) { return (char *)c->scratch[CU_GEMM] + at; }

/* ---- activations ---- */

/* x in F16, swizzled for tiles of nt tokens. If the last operation left it in F16 in the same form,
 * no kernel is needed. */
static const __half *find_or_make_x(struct cuda *c, const struct gemm_scratch *s,
                                    const struct cu_linear *p, int nt)
{
    struct gemm *g = gemm_of(c);
    __half *xh = (__half *)scratch_at(c, s->x);
    const int32_t *order = cu_order(p->jobs[0].w); /* all jobs have the same */

    if (!order && g->act_out && g->act_out == p->x.data && g->act_rows == p->x.rows &&
        g->act_cols == p->x.cols && g->act_stride == p->x.stride && g->act_nt == nt &&
        p->norm.kind == CU_NORM_NONE)
        return g->act_x;
    gemm_x(c, xh, &p->x, &p->norm, nt, order);
    return xh;
}

void cu_gemm_reset(struct cuda *c) { gemm_of(c)->act_out = NULL; }

static void remember_act_x(struct cuda *c, const struct cu_linear *p, const __half *xh, int nt)
{
    struct gemm *g = gemm_of(c);
    const struct tensor *out = &p->jobs[0].out;

    g->act_out = out->data;
    g->act_x = xh;
    g->act_rows = out->rows;
    g->act_cols = out->cols;
    g->act_stride = out->stride;
    g->act_nt = nt;
}

static float scale_of(const struct linear *j) { return j->scale != 0 ? j->scale : 1; }

/* ---- weights as F16 ---- */

static int f16_stride(const struct weight *w) { return (int)layout_stride(DT_F16, w->cols); }

/* Rows [r0, r0 + *n) as F16 rows of f16_stride numbers: in place, or converted in scratch memory,
 * where *n may be reduced to what fits. */
static const __half *weights_as_f16(struct cuda *c, const struct gemm_scratch *s,
                                    const struct weight *w, int r0, int *n)
{
    int ld = f16_stride(w), most = (int)min_size((size_t)w->rows, s->w_bytes / ((size_t)ld * 2));
    __half *to = (__half *)scratch_at(c, s->w);

    if (layout_type(cu_type(w)) == DT_F16)
        return (const __half *)w->packed + (size_t)r0 * (size_t)ld;
    if (*n > most) *n = most >= 256 ? most / 256 * 256 : most;
    if (layout_of(cu_type(w)).cols) cu_dequant(c, to, w, 0, r0, *n);
    else gemm_plain(c, to, ld, w, r0, *n);
    return to;
}

/* ---- the packed GEMM ---- */

/* One function for each type (gemm_types.cuh). */
int packed_launch(struct cuda *c, enum dtype t, enum dtype t2, int nt, int blocks,
                  const struct packed_args *p)
{
#define LAUNCH(T, T2, name) \
    if (t == DT_##T && t2 == DT_##T2) return packed_run_##name(c, nt, blocks, p);
    PACKED_PAIRS(LAUNCH)
#undef LAUNCH
    if (t != t2) return 0;
    switch ((int)t) {
#define LAUNCH(T, name) \
    case DT_##T: return packed_run_##name(c, nt, blocks, p);
        PACKED_TYPES(LAUNCH)
#undef LAUNCH
#define LAUNCH(T, name) \
    case LAYOUT_##T: return packed_run_##name(c, nt, blocks, p);
        PACKED_GROUPS(LAUNCH)
#undef LAUNCH
    default: return 0;
    }
}

/* The type in which the packed GEMM reads w: its own, or F16 after a conversion. The activations
 * have whole chunks of columns; a tile must not have more. */
static enum dtype packed_type(struct cuda *c, const struct weight *w)
{
    enum dtype t = (enum dtype)layout_type(cu_type(w));
    int cols = layout_of(t).cols;
    if (cols && layout_blocks(t, w->cols) * cols > gemm_pad(w->cols)) return DT_F16;
    return packed_launch(c, t, t, 128, 0, NULL) ? t : DT_F16;
}

/* Tokens of a tile: as many as there are, or 128 where a larger tile does not fit into shared
 * memory for some type. */
static int packed_tile_tokens(struct cuda *c, const struct cu_linear *p)
{
    int n = p->x.rows, nt = n <= 16 ? 16 : n <= 32 ? 32 : n <= 64 ? 64 : n <= 128 ? 128 : 256;

    for (int i = 0; i < p->n_jobs; i++) {
        enum dtype t = packed_type(c, p->jobs[i].w);
        if (!packed_launch(c, t, t, nt, 0, NULL)) return 128;
    }
    return nt;
}

/* A launch under construction: matrix products whose weights have one or two types. */
struct packed_run {
    enum dtype type, type2; /* type2: the second type, or type */
    int nt, rows;           /* rows: of a tile */
    struct packed_args a;
    struct finish_args f;
};

/* w_rows, w_r0: rows of the stored matrix, and its first row for this job; r0, r1: rows of the
 * output. */
static void add_job(struct packed_run *r, const struct linear *j, const void *w, int w_rows,
                    int w_r0, int r0, int r1)
{
    int k = r->a.n_jobs++;

    r->f.n_jobs++;
    r->a.job[k] = { w,          w_rows,
                    j->w->cols, r->a.row_tiles,
                    w_r0,       r->type != r->type2 && cu_type(j->w) == (int)r->type2 };
    r->f.job[k] = { (float *)j->out.data, j->bias, j->out.stride, r1,
                    r->a.row_tiles,       r0,      scale_of(j),   j->add };
    r->a.row_tiles += cu_div_up(r1 - r0, r->rows);
}

/* One block for each SM at most, and at least four chunks for each block. */
static void launch_run(struct cuda *c, struct packed_run *r)
{
    int cols = packed_launch(c, r->type, r->type2, r->nt, 0, NULL);
    int64_t chunks = (int64_t)r->a.row_tiles * r->a.token_tiles * r->a.n_chunks;
    int blocks = (int)min_size((size_t)c->n_sm, (size_t)(chunks > 4 ? chunks / 4 : 1));

    if (!r->a.n_jobs) return;
    r->f.row_tiles = r->a.row_tiles;
    r->f.units = cu_div_up(r->a.n_chunks * GEMM_CHUNK, cols);
    r->f.blocks = blocks;
    if (!packed_launch(c, r->type, r->type2, r->nt, blocks, &r->a))
        cu_fail(c, E_INTERNAL, "%s: there is no GEMM kernel for type %s", c->be.name,
                dtype_name(r->type));
    gemm_finish(c, &r->f);
    r->a.n_jobs = r->a.row_tiles = r->f.n_jobs = 0;
}

/* The members that do not depend on the jobs. */
static struct packed_run make_run(struct cuda *c, const struct gemm_scratch *s,
                                  const struct cu_linear *p, const __half *xh, int nt,
                                  enum dtype type)
{
    struct packed_run r = {};

    r.type = r.type2 = type;
    r.nt = r.f.nt = nt;
    r.f.shape = packed_shape_of(c, type, r.nt);
    r.rows = packed_rows(r.f.shape);
    r.a.x = xh;
    r.a.n_chunks = gemm_pad(p->x.cols) / GEMM_CHUNK;
    r.a.token_tiles = r.f.token_tiles = cu_div_up(p->x.rows, r.nt);
    r.a.part = (float *)scratch_at(c, s->part);
    r.f.tokens = p->x.rows;
    r.f.part = r.a.part;
    r.f.act = -1;
    return r;
}

/* Rows that each of n products may have, given the memory for partial sums. */
static int rows_at_once(struct cuda *c, const struct gemm_scratch *s, const struct packed_run *r,
                        int n)
{
    size_t slot = (size_t)r->rows * (size_t)r->nt * 4;
    size_t tiles = (s->n_slots * SLOT_BYTES / slot - (size_t)c->n_sm) / (size_t)r->a.token_tiles;
    int rows = (int)min_size(tiles / (size_t)n, 1 << 20) * r->rows;
    return rows > 0 ? rows : r->rows;
}

/* One product in pieces, as many rows at a time as there is memory for. */
static void launch_packed_pieces(struct cuda *c, const struct gemm_scratch *s, struct packed_run *r,
                                 const struct linear *j)
{
    const struct weight *w = j->w;
    int most = rows_at_once(c, s, r, 1);
    bool as_is = (int)r->type == layout_type(cu_type(w));

    r->a.w_converted = !as_is;
    for (int r0 = 0, n; r0 < w->rows; r0 += n) {
        n = (int)min_size((size_t)most, (size_t)(w->rows - r0));
        if (as_is) add_job(r, j, w->packed, w->rows, r0, r0, r0 + n);
        else {
            const __half *wh = weights_as_f16(c, s, w, r0, &n);
            add_job(r, j, wh, n, 0, r0, r0 + n);
        }
        launch_run(c, r);
    }
}

/* Is there a kernel that reads the weight without converting it first? */
static bool is_read_packed(struct cuda *c, const struct weight *w)
{
    return (int)packed_type(c, w) == layout_type(cu_type(w));
}

/* May a product of type t join the launch? A second type may, if there is a kernel for both. */
static bool accept_type(struct cuda *c, struct packed_run *r, enum dtype t)
{
    if (t == r->type || t == r->type2) return true;
    if (r->type != r->type2 || !packed_launch(c, r->type, t, r->nt, 0, NULL)) return false;
    r->type2 = t;
    return true;
}

/* Neighbours share a launch if there is a kernel for their types and memory for all their sums. */
static void launch_packed_jobs(struct cuda *c, const struct gemm_scratch *s,
                               const struct cu_linear *p, const __half *xh, int nt)
{
    for (int i = 0, n; i < p->n_jobs; i += n) {
        struct packed_run r = make_run(c, s, p, xh, nt, packed_type(c, p->jobs[i].w));
        int rows = 0, most = rows_at_once(c, s, &r, 1);
        for (n = 0; i + n < p->n_jobs && n < GEMM_JOBS; n++) {
            const struct linear *j = &p->jobs[i + n];
            int tall = cu_div_up(j->w->rows, r.rows) * r.rows;
            if (!is_read_packed(c, j->w) || rows + tall > most ||
                !accept_type(c, &r, packed_type(c, j->w)))
                break;
            rows += tall;
        }
        for (int k = 0; k < n; k++)
            add_job(&r, &p->jobs[i + k], p->jobs[i + k].w->packed, p->jobs[i + k].w->rows, 0, 0,
                    p->jobs[i + k].w->rows);
        if (n) launch_run(c, &r);
        else n = 1, launch_packed_pieces(c, s, &r, &p->jobs[i]);
    }
}

/* gate, up and the activation in one launch. false: types or sizes do not allow it. */
static bool launch_packed_act(struct cuda *c, const struct gemm_scratch *s,
                              const struct cu_linear *p, const __half *xh, int nt)
{
    struct packed_run r = make_run(c, s, p, xh, nt, packed_type(c, p->jobs[0].w));
    int rows = p->jobs[0].w->rows;

    for (int i = 0; i < p->n_jobs; i++) {
        const struct weight *w = p->jobs[i].w;
        if (p->n_jobs > 2 || !is_read_packed(c, w) || packed_type(c, w) != r.type ||
            w->rows != rows)
            return false;
        if (p->jobs[i].add) return false;
    }
    if (rows > rows_at_once(c, s, &r, p->n_jobs)) return false;
    for (int i = 0; i < p->n_jobs; i++)
        add_job(&r, &p->jobs[i], p->jobs[i].w->packed, rows, 0, 0, rows);
    r.f.act = (int)p->act;
    r.f.xh = (__half *)scratch_at(c, s->act);
    launch_run(c, &r);
    remember_act_x(c, p, r.f.xh, r.nt);
    return true;
}

/* first: jobs before it are done already, by cuBLASLt, which could not do this one. */
static void linear_packed(struct cuda *c, const struct gemm_scratch *s, const struct cu_linear *p,
                          int first)
{
    struct cu_linear rest = *p;
    int nt = packed_tile_tokens(c, p);
    const __half *xh = find_or_make_x(c, s, p, nt);

    cu_gemm_reset(c);
    if (p->fuse_act && launch_packed_act(c, s, p, xh, nt)) return;
    rest.jobs += first;
    rest.n_jobs -= first;
    launch_packed_jobs(c, s, &rest, xh, nt);
    if (p->fuse_act)
        cu_act(c, &p->jobs[0].out, &p->jobs[0].out, p->n_jobs == 2 ? &p->jobs[1].out : NULL,
               p->act);
}

/* ---- cuBLASLt ---- */

/* The most tokens that the packed GEMM takes where x has so many products. */
static int max_tokens_packed(struct cuda *c, const struct weight *w, int n_jobs)
{
    int t = layout_type(cu_type(w)), most = 0;

    if (t < DT_COUNT) most = gemm_of(c)->tuned.max_tokens_packed[t][n_jobs > 2];
    if (most) return most;
    return t == DT_F16 ? (n_jobs > 2 ? 64 : 40) : t == DT_BF16 ? 256 : 768; /* of an H200 */
}

/* A weight is converted and multiplied slice by slice: a slice stays in the L2 cache between the
 * two. to_half: the result as F16 rows, for act(gate) * up. */
static bool launch_lt_job(struct cuda *c, const struct gemm_scratch *s, const struct linear *j,
                          const __half *xh, int tokens, __half *to_half)
{
    const struct weight *w = j->w;

    for (int r0 = 0, n; r0 < w->rows; r0 += n) {
        n = w->rows - r0;
        struct lt_job l = {};
        l.w = weights_as_f16(c, s, w, r0, &n);
        l.x = xh;
        l.out = to_half ? (void *)(to_half + r0) : (void *)((float *)j->out.data + r0);
        l.bias = j->bias ? j->bias + r0 : NULL;
        l.rows = n;
        l.cols = w->cols;
        l.tokens = tokens;
        l.least = max_tokens_packed(c, w, 1) + 1;
        l.ldw = f16_stride(w);
        l.ldx = gemm_pad(w->cols);
        l.ldo = to_half ? (size_t)gemm_pad(w->rows) : j->out.stride;
        l.scale = scale_of(j);
        l.add = j->add;
        l.to_half = to_half != NULL;
        if (!lt_run(c, gemm_of(c)->lt, &l, scratch_at(c, s->work), LT_WORK)) return false;
    }
    return true;
}

/* gate and up in F16, then one kernel for act(gate) * up. false: with biases or additions the jobs
 * are multiplied one by one. */
static bool launch_lt_act(struct cuda *c, const struct gemm_scratch *s, const struct cu_linear *p,
                          const __half *xh)
{
    __half *gate = (__half *)scratch_at(c, s->act), *up = (__half *)scratch_at(c, s->up);
    const struct linear *j = p->jobs;

    if (p->n_jobs > 2 || j[0].bias || j[0].add || j[0].w->rows > gemm_pad(c->lim.max_rows))
        return false;
    if (p->n_jobs == 2 && (j[1].bias || j[1].add || j[1].w->rows != j[0].w->rows)) return false;
    if (!launch_lt_job(c, s, &j[0], xh, p->x.rows, gate)) return false;
    if (p->n_jobs == 2 && !launch_lt_job(c, s, &j[1], xh, p->x.rows, up)) return false;
    gemm_act(c, &j[0].out, gate, gate, p->n_jobs == 2 ? up : NULL, gemm_pad(j[0].w->rows), p->act);
    remember_act_x(c, p, gate, 0);
    return true;
}

/* If the library cannot do a job, the packed GEMM does it and the rest. */
static void linear_lt(struct cuda *c, const struct gemm_scratch *s, const struct cu_linear *p)
{
    const __half *xh = find_or_make_x(c, s, p, 0);

    cu_gemm_reset(c);
    if (p->fuse_act && launch_lt_act(c, s, p, xh)) return;
    for (int i = 0; i < p->n_jobs; i++)
        if (!launch_lt_job(c, s, &p->jobs[i], xh, p->x.rows, NULL)) {
            linear_packed(c, s, p, i);
            return;
        }
    if (p->fuse_act)
        cu_act(c, &p->jobs[0].out, &p->jobs[0].out, p->n_jobs == 2 ? &p->jobs[1].out : NULL,
               p->act);
}

/* ---- which way ---- */

/* Few tokens: the packed GEMM. Weights that no kernel reads packed are left to the library. */
static bool uses_packed(struct cuda *c, const struct cu_linear *p)
{
    struct gemm *g = gemm_of(c);

    if (!g->lt || g->way == GEMM_PACKED) return true;
    if (g->way == GEMM_LT || p->x.rows > max_tokens_packed(c, p->jobs[0].w, p->n_jobs))
        return false;
    for (int i = 0; i < p->n_jobs; i++)
        if (!is_read_packed(c, p->jobs[i].w)) return false;
    return true;
}

void cu_gemm(struct cuda *c, const struct cu_linear *p)
{
    struct gemm_scratch s = scratch_layout(c, &c->lim);

    if (p->x.rows < 1 || p->n_jobs < 1) return;
    if (p->x.rows > c->lim.max_tokens || p->x.cols > c->lim.max_cols ||
        s.end > c->scratch_bytes[CU_GEMM]) {
        cu_fail(c, E_INTERNAL,
                "%s: a matrix product of %d tokens and %d columns is larger than the reserved "
                "scratch memory",
                c->be.name, p->x.rows, p->x.cols);
        return;
    }
    if (!cu_same_order(p)) cu_linear_each(c, p, cu_gemm);
    else if (uses_packed(c, p)) linear_packed(c, &s, p, 0);
    else linear_lt(c, &s, p);
}
