/* matvec.cu - host side of the matrix-vector products: which jobs share a launch, which kernel, and
 * how its shared memory is divided.
 *
 * Jobs with the same x and one or two weight types go into one launch. The grid has one block for
 * each SM at most; each gets tiles of about equal cost.
 *
 * Preparing x: the kernel for one token needs x in a special form. The operation that computes x
 * can write it in that form too (mv_prepare_next), and the next one then only copies it
 * (mv_use_prepared). What was prepared is remembered between launches of one thread;
 * cu_matvec_reset forgets it at the start of every record. */
#include "kernel/cuda/cu_attend.cuh"
#include "kernel/cuda/matvec.cuh"

extern "C" {
#include "kernel/quant.h"
}

#include <string.h>

#define MV_ROUND 32    /* tiles whose sums a block keeps at a time */
#define MV_STATIC 3072 /* static shared memory of the kernels, an upper bound */

bool cu_matvec_supports(enum dtype t) { return t == DT_GROUPED || quant_can_decode(t); }

/* Bytes of a prepared x: units of at most PREPARED_UNIT bytes, and one sum of squares for each 16
 * columns. Two buffers alternate: one is read while the next is written. */
#define PREPARED_UNIT 1088
static size_t prepared_x_bytes(int cols) { return (size_t)cols / ONE_UNIT * PREPARED_UNIT; }
static size_t prepared_bytes(int cols)
{
    return prepared_x_bytes(cols) + (size_t)cols / TILE_ROWS * sizeof(float);
}

static size_t prepared_most(const struct backend_limits *lim)
{
    return prepared_bytes(cu_round_up(lim->max_cols, ONE_UNIT));
}

/* Behind them: x in the order of a weight's columns. */
static size_t ordered_bytes(const struct backend_limits *lim)
{
    return (size_t)CU_FEW * (size_t)lim->max_cols * sizeof(float);
}

size_t cu_matvec_bytes(const struct cuda *, const struct backend_limits *lim)
{
    return 2 * prepared_most(lim) + ordered_bytes(lim);
}

/* The name in a profile. */
static const char *mv_name(int t)
{
    switch (t) {
    case DT_Q4_0: return "matvec q4_0";
    case DT_Q4_1: return "matvec q4_1";
    case DT_Q5_0: return "matvec q5_0";
    case DT_Q5_1: return "matvec q5_1";
    case DT_Q8_0: return "matvec q8_0";
    case DT_IQ4_NL: return "matvec iq4_nl";
    case DT_MXFP4: return "matvec mxfp4";
    case DT_Q2_K: return "matvec q2_k";
    case DT_Q3_K: return "matvec q3_k";
    case DT_Q4_K: return "matvec q4_k";
    case DT_Q5_K: return "matvec q5_k";
    case DT_Q6_K: return "matvec q6_k";
    case DT_IQ4_XS: return "matvec iq4_xs";
    case DT_BF16: return "matvec bf16";
    case LAYOUT_U4: return "matvec u4";
    case LAYOUT_U4_64: return "matvec u4/64";
    case LAYOUT_U4_32: return "matvec u4/32";
    case LAYOUT_U8: return "matvec u8";
    case LAYOUT_U2: return "matvec u2";
    case LAYOUT_U2_ONE: return "matvec u2/all";
    case LAYOUT_E2M1_16: return "matvec e2m1/16";
    case LAYOUT_E4M3: return "matvec e4m3";
    case LAYOUT_E4M3_64: return "matvec e4m3/64";
    default: return "matvec f16";
    }
}

/* The kernel for two types. NULL: they cannot share a launch. */
static struct mv_kernel *mv_kernel_for(int a, int b)
{
    struct mv_kernel *k = mv_kernel_k(a, b);
    if (!k) k = mv_kernel_k2(a, b);
    if (!k) k = mv_kernel_small(a, b);
    if (!k) k = mv_kernel_small2(a, b);
    if (!k) k = mv_kernel_group(a, b);
    if (!k && a == b) k = mv_kernel_plain(a);
    return k;
}

/* The kernel for one token. */
static struct mv_kernel *mv_one_kernel_for(int a, int b)
{
    struct mv_kernel *k = mv_one_k(a, b);
    if (!k) k = mv_one_small(a, b);
    if (!k) k = mv_one_group(a, b);
    return k ? k : mv_one_plain(a, b);
}

/* Lays out shared memory after the ring for x in `pieces` pieces; returns its bytes. Offsets count
 * from the end of the ring. */
static int mv_layout_smem(struct mv_args *a, const struct mv_kernel *k, int pieces)
{
    int at = 0;
    a->piece = cu_round_up((a->cols + pieces - 1) / pieces, k->unit);
    a->n_pieces = (a->cols + a->piece - 1) / a->piece;
    int pad = cu_round_up(a->n_pieces > 1 ? a->piece : a->cols, k->pad);
    /* an odd number of half lines: tokens fall into different banks */
    a->x_row = cu_round_up(pad - 32, 64) + 32;
    a->at_x = at;
    a->at_low = at += a->x_row * 2 * a->tokens;
    if (k->x_bytes == 4) at += a->x_row * 2 * a->tokens;
    for (int i = 0; i < 2; i++) {
        a->at_init[i] = at = cu_round_up(at, 16);
        if (k->sub[i]) at += pad / k->sub[i] * 64;
        a->at_min[i] = at;
        at += pad / 32 * CU_FEW * k->min_bytes[i];
    }
    a->at_part = at = cu_round_up(at, 16);
    at += (k->warps + a->round) * a->tokens * TILE_ROWS * 4;
    a->at_carry = at;
    if (a->n_pieces > 1) at += a->round * a->tokens * TILE_ROWS * 4;
    return at;
}

/* As few pieces of x as leave two stages to every warp, then as many stages as fit. Returns the
 * bytes of shared memory. */
static size_t mv_fit_smem(struct mv_args *a, const struct mv_kernel *k, int most)
{
    int stage = k->warps * k->stage, rest, pieces = 1;
    while ((rest = most - 128 - mv_layout_smem(a, k, pieces)) < 2 * stage && a->piece > k->unit)
        pieces++;
    a->stages = rest / stage;
    if (a->stages > MV_STAGES) a->stages = MV_STAGES;
    if (a->stages < 1) a->stages = 1;
    int ring = cu_round_up(a->stages * stage, 128);
    for (int *at : { &a->at_x, &a->at_low, &a->at_init[0], &a->at_init[1], &a->at_min[0],
                     &a->at_min[1], &a->at_part })
        *at += ring;
    a->at_carry += ring;
    return (size_t)(most - 128 - rest + ring);
}

/* The same for one token. 0: it does not fit. On Hopper a block of this kernel and one of the next
 * kernel shall fit on an SM together, so that the next one's ring fills early. But two blocks of
 * one kernel must not, or some SMs would get two of its blocks and others none. So every second
 * kernel asks for a little more than half of the shared memory. */
static size_t mv_fit_smem_one(const struct cuda *c, struct mv_args *a, const struct mv_kernel *k,
                              int tiles)
{
    static thread_local bool second;
    int most = (int)c->smem_max - MV_STATIC,
        half = ((int)c->smem_max + 1024) / 2 - 1024 - MV_STATIC, at = 0;
    int units = (a->cols + ONE_UNIT - 1) / ONE_UNIT + 1, stage = ONE_WARPS * k->stage;
    a->at_x = at;
    a->at_part = at += units * k->x_unit;
    at += (ONE_WARPS + tiles) * TILE_ROWS * 4;
    bool shared = c->cc >= 90 && at + 2 * stage + 128 <= half;
    if (shared) most = half;
    a->stages = (most - at - 128) / stage;
    if (a->stages < 2) return 0;
    if (a->stages > MV_STAGES) a->stages = MV_STAGES;
    int ring = cu_round_up(a->stages * stage, 128);
    a->at_x += ring;
    a->at_part += ring;
    second = !second;
    return (size_t)(shared && second ? half + 1024 : ring + at);
}

/* What the launch before has prepared for this one. thread_local: one thread drives a backend. */
static thread_local struct mv_prepared {
    const float *of; /* the x that was prepared; NULL: none */
    int cols;
    bool normed;
    struct mv_next_x x;
} prepared;

void cu_matvec_reset(void) { prepared.of = NULL; }

/* Uses the prepared x if it is this launch's x in the form that kernel k needs. */
static void mv_use_prepared(struct mv_args *a, const struct mv_kernel *k)
{
    if (prepared.of != a->x || prepared.cols != a->cols || prepared.x.kind != k->x_kind) return;
    if (a->norm == CU_NORM_LAYER || prepared.normed != (a->norm == CU_NORM_RMS) ||
        prepared.x.norm_w != a->norm_w)
        return;
    a->x_ready = prepared.x.x;
    a->x_ready_sq = prepared.x.sq;
}

/* Lets this launch prepare x for p, the next operation, if p reads all of this launch's result. */
static void mv_prepare_next(const struct cuda *c, struct mv_args *a, const struct cu_linear *p)
{
    static thread_local unsigned n_prepared;
    const struct mv_job *j = &a->jobs[0];
    int t = p ? layout_type(cu_type(p->jobs[0].w)) : 0, cols = j->rows;
    struct mv_kernel *k;

    prepared.of = NULL;
    if (c->cc < 90 || !p || p->x.rows != 1 || p->x.data != j->out || p->x.cols != cols ||
        cols % ONE_UNIT)
        return;
    if ((a->n_jobs > 1 && !a->pairs) || p->norm.kind == CU_NORM_LAYER ||
        cu_order_id(p->jobs[0].w) || !(k = mv_one_kernel_for(t, t)))
        return;
    if (!c->scratch[CU_MATVEC] || prepared_bytes(cols) > prepared_most(&c->lim)) return;
    uint8_t *at = (uint8_t *)c->scratch[CU_MATVEC] + n_prepared++ % 2 * prepared_most(&c->lim);
    bool normed = p->norm.kind == CU_NORM_RMS;
    a->next = { k->x_kind, at, normed ? (float *)(at + prepared_x_bytes(cols)) : NULL,
                normed ? p->norm.w : NULL };
    prepared = { j->out, cols, normed, a->next };
}

/* t, u: the types of the jobs. next: the operation that follows; NULL: not known. */
static void mv_launch(struct cuda *c, struct mv_args *a, int t, int u, const struct cu_linear *next)
{
    const char *name = mv_name(t);
    int most = (int)c->smem_max - MV_STATIC, items = a->pairs ? a->n_tiles / 2 : a->n_tiles;
    int grid = items < c->n_sm ? items : c->n_sm, tiles = (items + grid - 1) / grid + 1;
    struct mv_kernel *k = NULL;
    size_t smem = 0;
    if (!a->cost[0] || !a->cost[1]) a->cost[0] = a->cost[1] = 1;
    for (int i = 0; i < a->n_jobs; i++)
        a->cost_all += (unsigned)a->jobs[i].tiles * a->cost[a->jobs[i].second];
    tiles = cu_round_up(a->pairs ? 2 * tiles : tiles, 2);
    a->round = tiles < MV_ROUND ? tiles : MV_ROUND;
    if (a->tokens == 1 && a->vec && a->cols % 32 == 0) k = mv_one_kernel_for(t, u);
    if (k) smem = mv_fit_smem_one(c, a, k, tiles);
    if (smem) {
        mv_use_prepared(a, k);
        mv_prepare_next(c, a, next);
    } else {
        prepared.of = NULL;
        k = mv_kernel_for(t, u);
        smem = mv_fit_smem(a, k, most);
    }
    if (!(k->smem_raised >> c->device & 1)) {
        if (cu_check(
                c, cudaFuncSetAttribute(k->run, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                name))
            return;
        k->smem_raised |= 1ull << c->device;
    }
    cu_launch(c, name, k->run, dim3((unsigned)grid), dim3(32 * (unsigned)k->warps), smem, *a);
}

/* The members that all jobs share. After attention the next kernel does not start early. */
static void mv_fill_args(struct mv_args *a, const struct cu_linear *p)
{
    const struct cu_norm *n = &p->norm;
    uintptr_t bits = (uintptr_t)p->x.data | (uintptr_t)n->w | (uintptr_t)n->b;
    *a = {};
    a->x = (const float *)p->x.data;
    a->x_stride = p->x.stride;
    a->tokens = p->x.rows;
    a->cols = p->x.cols;
    a->norm = n->kind;
    a->norm_w = n->kind ? n->w : NULL;
    a->norm_b = n->kind == CU_NORM_LAYER ? n->b : NULL;
    a->eps = n->eps;
    a->vec = bits % 16 == 0 && (p->x.rows == 1 || p->x.stride % 4 == 0);
    a->act = p->act;
    a->next_early = !attend_wrote(a->x);
}

/* second: of the launch's second type. */
static void mv_add_job(struct mv_args *a, const struct linear *l, bool second)
{
    struct mv_job *j = &a->jobs[a->n_jobs++];
    j->w = (const uint8_t *)l->w->packed;
    j->bias = l->bias;
    j->out = (float *)l->out.data;
    j->out_stride = l->out.stride;
    j->rows = l->w->rows;
    j->tiles = (l->w->rows + TILE_ROWS - 1) / TILE_ROWS;
    j->first = a->n_tiles;
    j->scale = l->scale == 0.f ? 1.f : l->scale;
    j->add = l->add;
    j->second = second;
    a->n_tiles += j->tiles;
    a->cost[second] = (unsigned)layout_of(cu_type(l->w)).bytes / TILE_ROWS;
}

static int type_of(const struct linear *l) { return layout_type(cu_type(l->w)); }

/* Launches the jobs that one kernel can do, starting with the first that is not done, and marks
 * them. */
static void mv_launch_some(struct cuda *c, const struct cu_linear *p, bool *done)
{
    struct mv_args a;
    int first = -1, other = -1;
    mv_fill_args(&a, p);
    a.active = p->fuse_act && p->n_jobs == 1;
    for (int i = 0; i < p->n_jobs && a.n_jobs < MV_JOBS; i++) {
        int t = type_of(&p->jobs[i]);
        if (done[i]) continue;
        if (first < 0) {
            first = t;
        } else if (t != first && t != other) {
            if (first == DT_F32 || other >= 0 || !mv_kernel_for(first, t)) continue;
            other = t;
        } else if (first == DT_F32) {
            continue;
        }
        mv_add_job(&a, &p->jobs[i], t != first);
        done[i] = true;
    }
    if (first == DT_F32) mv_f32(c, &a);
    else mv_launch(c, &a, first, other < 0 ? first : other, p->n_jobs == 1 ? p->next : NULL);
}

/* gate and up in one kernel. false: their sizes or types do not allow it. */
static bool mv_launch_gate_up(struct cuda *c, const struct cu_linear *p)
{
    const struct linear *gate = &p->jobs[0], *up = &p->jobs[1];
    int tg = type_of(gate), tu = type_of(up);
    struct mv_args a;
    if (gate->w->rows != up->w->rows || !mv_kernel_for(tg, tu)) return false;
    mv_fill_args(&a, p);
    mv_add_job(&a, gate, false);
    mv_add_job(&a, up, tu != tg);
    a.pairs = a.active = true;
    mv_launch(c, &a, tg, tu, p->next);
    return true;
}

/* gate and up of different sizes or types are multiplied one by one, and act is a launch of its
 * own. */
static void mv_launch_jobs(struct cuda *c, const struct cu_linear *p)
{
    struct cu_linear rest = *p;
    bool done[64] = {};
    if (p->fuse_act && p->n_jobs == 2) {
        if (mv_launch_gate_up(c, p)) return;
        rest.fuse_act = false;
    }
    for (int base = 0; base < p->n_jobs; base += 64) {
        rest.jobs = p->jobs + base;
        rest.n_jobs = p->n_jobs - base < 64 ? p->n_jobs - base : 64;
        memset(done, 0, sizeof done);
        for (int i = 0; i < rest.n_jobs; i++)
            if (!done[i]) mv_launch_some(c, &rest, done);
    }
    if (p->fuse_act && p->n_jobs == 2)
        cu_act(c, &p->jobs[0].out, &p->jobs[0].out, &p->jobs[1].out, p->act);
}

/* The jobs want x in one order of columns: it is put into that order first. */
static void mv_launch_ordered(struct cuda *c, const struct cu_linear *p)
{
    struct cu_linear in = *p;
    float *x = (float *)((char *)c->scratch[CU_MATVEC] + 2 * prepared_most(&c->lim));
    if (!c->scratch[CU_MATVEC] || p->x.cols > c->lim.max_cols) {
        cu_fail(c, E_INTERNAL,
                "%s: a matrix product of %d columns is larger than the reserved scratch memory",
                c->be.name, p->x.cols);
        return;
    }
    mv_order_x(c, x, &p->x, &p->norm, cu_order(p->jobs[0].w));
    in.x = tensor_f32(x, p->x.rows, p->x.cols);
    in.norm = {};
    mv_launch_jobs(c, &in);
}

void cu_linear_each(struct cuda *c, const struct cu_linear *p,
                    void (*run)(struct cuda *c, const struct cu_linear *p))
{
    struct cu_linear one = *p;
    one.n_jobs = 1;
    one.fuse_act = false;
    one.next = NULL;
    for (int i = 0; i < p->n_jobs; i++) {
        one.jobs = p->jobs + i;
        run(c, &one);
    }
    if (p->fuse_act)
        cu_act(c, &p->jobs[0].out, &p->jobs[0].out, p->n_jobs == 2 ? &p->jobs[1].out : NULL,
               p->act);
}

bool cu_same_order(const struct cu_linear *p)
{
    for (int i = 1; i < p->n_jobs; i++)
        if (cu_order_id(p->jobs[i].w) != cu_order_id(p->jobs[0].w)) return false;
    return true;
}

void cu_matvec(struct cuda *c, const struct cu_linear *p)
{
    if (p->x.rows < 1 || p->n_jobs < 1) return;
    if (!cu_same_order(p)) cu_linear_each(c, p, cu_matvec);
    else if (cu_order_id(p->jobs[0].w)) mv_launch_ordered(c, p);
    else mv_launch_jobs(c, p);
}
