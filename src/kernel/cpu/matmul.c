/* matmul.c - divides matrix products among threads and kernels.
 *
 * A call has one or more jobs (weights) with a common input x. Jobs whose type and number of tokens
 * suit a gemm are computed by it, one data type at a time; the others together by gemv kernels:
 *
 *     gemv   x is quantized to the form the kernels want, then threads take pieces of weight rows.
 *            Every thread starts in its own contiguous share of the pieces, because sequential
 *            reading is what memory does best, and then takes pieces that slower threads have left.
 *     gemm   x is packed into the gemm's layout, then threads take pieces of rows.
 *
 * Scale, bias and residual addition are applied to each piece while it is in the cache. */
#include "kernel/cpu/matmul.h"

#include "base/mem.h"
#include "base/numa.h"
#include "kernel/cpu/grown.h"
#include "kernel/iq_grid.h"

#include <stdatomic.h>
#include <stdio.h>

#ifndef __x86_64__
const struct gemm *gemm_amx(void) { return NULL; }
const struct gemm *gemm8_amx(void) { return NULL; }
#endif

enum {
    GEMMS = 3,
    JOBS = 32,               /* products that are divided among threads together */
    ROWS = 256,              /* weight rows per piece, at most */
    PIECE_BYTES = 256 << 10, /* weights per piece: long enough to stream, short enough that the
                              * threads finish together */
    OWN_TOKENS = 2 /* up to this many tokens every thread quantizes x for itself: a barrier
                    * would cost more */
};

struct matmul {
    const struct isa *isa;
    const struct gemm *gemms[GEMMS]; /* in order of preference; may be NULL */
    const struct numa *numa;         /* several nodes; NULL: one */
    int n_threads;
    char name[48];
    struct grown x[ISA_FORMS]; /* quantized activations: one copy, or one per thread */
    struct grown gx;           /* activations in the gemm's layout */
    struct grown scratch;      /* of the gemm, one part per thread */
    struct taken *taken;       /* [n_threads] */
    struct grown ordered;      /* activations in the order of a weight's columns */
    struct grown out;          /* [n_threads][ISA_TOKENS][ROWS] results before bias and addition */
};

/* Jobs that are computed together, cut into consecutively numbered pieces. With several memory nodes
 * each job has a section for each of them, the rows that lie there; the sections of a node are
 * numbered together, so that the shares of its threads are its own rows. */
struct section {
    const struct linear *job;
    int r0, r1; /* weight rows */
    int rows;   /* per piece */
    int first;  /* number of its first piece */
};
struct pass {
    const struct linear *job[JOBS];
    int n;
    struct section section[JOBS * NUMA_MAX];
    int n_sections, n_pieces;
};

/* How many pieces of a thread's share have been taken, by any thread. On its own cache line. */
struct taken {
    _Alignas(64) atomic_int n;
};

/* One call of cpu_linear, up to JOBS jobs. */
struct call {
    struct matmul *m;
    struct par *par;
    const struct tensor *x;
    struct pass gemv, gemm; /* gemm: jobs of one data type */
    const struct gemm *g;   /* the implementation that computes `gemm` */
    bool form[ISA_FORMS];   /* forms of x that the gemv kernels need */
    bool own;               /* every thread quantizes x for itself */
    size_t scratch_bytes;   /* of the gemm, per thread */
    struct taken *taken;    /* [n_threads] */
};

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static int reserve_bytes(struct grown *g, size_t n, struct err *e)
{
    if (grown_reserve(g, n)) return OK;
    return err_set(e, E_NOMEM, "cpu: out of memory: no room for %zu bytes of activations", n);
}

/* Gemm i, where it computes this type. The last one is for types that the one before cannot. */
static const struct gemm *gemm_at(const struct matmul *m, int i, enum dtype t)
{
    const struct gemm *g = m->gemms[i];

    if (i == GEMMS - 1 && m->gemms[i - 1] && m->gemms[i - 1]->can(t)) return NULL;
    return g && g->can(t) ? g : NULL;
}

/* The gemm for this type and number of tokens; NULL: gemv kernels are faster. */
static const struct gemm *find_gemm(const struct matmul *m, enum dtype t, int tokens)
{
    for (int i = 0; i < GEMMS; i++) {
        const struct gemm *g = gemm_at(m, i, t);
        if (g && tokens >= g->min_tokens(t) && (!g->max_tokens || tokens <= g->max_tokens(t)))
            return g;
    }
    return NULL;
}

/* Buffers for x in the forms that the gemv kernels need. */
static int reserve_gemv(struct matmul *m, const bool form[ISA_FORMS], int tokens, int cols,
                        struct err *e)
{
    int copies = tokens <= OWN_TOKENS ? m->n_threads : 1, rc;

    for (int f = 1; f < ISA_FORMS; f++)
        if (form[f] &&
            (rc = reserve_bytes(&m->x[f], (size_t)(copies * tokens) * m->isa->form[f].bytes(cols),
                                e)) != OK)
            return rc;
    return OK;
}

/* Buffers for packed activations and the gemm's scratch. */
static int reserve_gemm(struct matmul *m, const struct gemm *g, enum dtype t, int tokens, int cols,
                        struct err *e)
{
    int rc = reserve_bytes(&m->gx, g->x_bytes(t, tokens, cols), e);
    if (rc != OK) return rc;
    return reserve_bytes(&m->scratch, align64(g->scratch_bytes(t, cols)) * (size_t)m->n_threads, e);
}

/* For every number of tokens up to this one, which may be the range of several gemms. */
static int reserve_gemms(struct matmul *m, enum dtype t, int tokens, int cols, struct err *e)
{
    int rc;

    for (int i = 0; i < GEMMS; i++) {
        const struct gemm *g = gemm_at(m, i, t);
        if (!g || tokens < g->min_tokens(t)) continue;
        int n = g->max_tokens && g->max_tokens(t) < tokens ? g->max_tokens(t) : tokens;
        if ((rc = reserve_gemm(m, g, t, n, cols, e)) != OK) return rc;
    }
    return OK;
}

int matmul_reserve(struct matmul *m, int max_tokens, int max_cols, struct err *e)
{
    bool all[ISA_FORMS];
    int rc;

    /* Rounded up to the largest block size, because any type of weights may come. */
    max_cols = (max_cols + 255) & ~255;
    for (int f = 0; f < ISA_FORMS; f++) all[f] = m->isa->form[f].bytes != NULL;
    if ((rc = reserve_gemv(m, all, OWN_TOKENS, max_cols, e)) != OK) return rc;
    if ((rc = reserve_gemv(m, all, max_tokens, max_cols, e)) != OK) return rc;
    for (int t = 0; t < DT_COUNT; t++)
        if (dtype_info(t) && (rc = reserve_gemms(m, (enum dtype)t, max_tokens, max_cols, e)) != OK)
            return rc;
    return OK;
}

int matmul_open(struct matmul **out, struct par *par, struct matmul_opt opt, struct err *e)
{
    struct matmul *m = mem_new(struct matmul);
    int rc;

    if (!m) return err_nomem(e, "matrix products");
    m->isa = opt.isa ? opt.isa : isa_best();
    m->gemms[0] = opt.few;
    m->gemms[1] = opt.gemm;
    m->gemms[2] = opt.rest;
    m->n_threads = par_n(par);
    m->numa = opt.numa && opt.numa->n > 1 ? opt.numa : NULL;
    m->taken = mem_aligned((size_t)m->n_threads * sizeof *m->taken);
    if (!m->taken) {
        rc = err_nomem(e, "matrix products");
        goto out;
    }
    snprintf(m->name, sizeof m->name, "%s%s%s", m->isa->name, opt.gemm ? "+" : "",
             opt.gemm ? opt.gemm->name : "");
    iq_grid(); /* builds its tables now, not inside the first product */
    if ((rc = reserve_bytes(&m->out, (size_t)m->n_threads * ISA_TOKENS * ROWS * sizeof(float),
                            e)) != OK)
        goto out;
    *out = m;
    m = NULL;
out:
    matmul_close(m);
    return rc;
}

void matmul_close(struct matmul *m)
{
    if (!m) return;
    for (int f = 0; f < ISA_FORMS; f++) grown_release(&m->x[f]);
    grown_release(&m->gx);
    grown_release(&m->ordered);
    grown_release(&m->scratch);
    grown_release(&m->out);
    if (m->taken) mem_free_aligned(m->taken, (size_t)m->n_threads * sizeof *m->taken);
    mem_free(m);
}

size_t matmul_bytes(const struct matmul *m)
{
    size_t n = m->gx.n + m->scratch.n + m->out.n + m->ordered.n;
    for (int f = 0; f < ISA_FORMS; f++) n += m->x[f].n;
    return n;
}

bool matmul_can(const struct matmul *m, enum dtype t)
{
    return dtype_info((int)t) && m->isa->gemv[t].fn;
}

const char *matmul_name(const struct matmul *m) { return m->name; }
const struct isa *matmul_isa(const struct matmul *m) { return m->isa; }

static const void *weight_rows(const struct weight *w) { return w->packed ? w->packed : w->data; }

/* The pieces of rows [r0, r1) of a job, of about `target` bytes each. unit: rows per piece are a
 * multiple of it. */
static void add_section(struct pass *p, const struct linear *job, int r0, int r1, int unit,
                        size_t target)
{
    int rows = (int)(target / (weight_row_bytes(job->w) + 1)) / unit * unit;

    if (r0 >= r1) return;
    rows = rows < unit ? unit : rows > ROWS ? ROWS / unit * unit : rows;
    p->section[p->n_sections++] = (struct section){ job, r0, r1, rows, p->n_pieces };
    p->n_pieces += (r1 - r0 + rows - 1) / rows;
}

/* The rows of a weight that lie on node k: the shares of its threads (cpu.c moved them there). */
static void find_node_rows(const struct matmul *m, int k, int n_rows, int unit, int *r0, int *r1)
{
    int begin, end;

    *r0 = *r1 = n_rows;
    for (int t = 0; t < m->n_threads; t++) {
        if (numa_node_of(m->numa, t, m->n_threads) != k) continue;
        par_share(n_rows, unit, t, m->n_threads, &begin, &end);
        if (begin < *r0) *r0 = begin;
        *r1 = end;
    }
}

/* Several pieces per thread, so that the threads finish together. */
static void cut_pass(struct pass *p, const struct matmul *m, int unit, size_t piece_bytes)
{
    size_t total = 0, target;
    int n_nodes = m->numa ? m->numa->n : 1;

    for (int j = 0; j < p->n; j++)
        total += weight_row_bytes(p->job[j]->w) * (size_t)p->job[j]->w->rows;
    target = total / (size_t)(m->n_threads * 4);
    if (target > piece_bytes) target = piece_bytes;

    p->n_sections = p->n_pieces = 0;
    for (int k = 0; k < n_nodes; k++)
        for (int j = 0; j < p->n; j++) {
            int r0 = 0, r1 = p->job[j]->w->rows;
            if (n_nodes > 1) find_node_rows(m, k, r1, unit, &r0, &r1);
            add_section(p, p->job[j], r0, r1, unit, target);
        }
}

/* The job and the rows [*r0, *r1) of piece i. */
static const struct linear *find_piece(const struct pass *p, int i, int *r0, int *r1)
{
    const struct section *s = p->section, *last = s + p->n_sections - 1;

    while (s < last && i >= s[1].first) s++;
    *r0 = s->r0 + (i - s->first) * s->rows;
    *r1 = *r0 + s->rows < s->r1 ? *r0 + s->rows : s->r1;
    return s->job;
}

/* Converts tokens [t0, t1) of x to the needed forms; into the thread's own copy if c->own. */
static void make_forms(const struct call *c, int thread, int t0, int t1)
{
    const struct matmul *m = c->m;

    for (int f = 1; f < ISA_FORMS; f++) {
        if (!c->form[f]) continue;
        size_t bytes = m->isa->form[f].bytes(c->x->cols);
        char *dst = (char *)m->x[f].p + (c->own ? (size_t)(thread * c->x->rows) * bytes : 0);
        for (int t = t0; t < t1; t++)
            m->isa->form[f].make(dst + (size_t)t * bytes, tensor_row(c->x, t), c->x->cols);
    }
}

/* Threads convert one token at a time. */
static void run_forms(void *arg, int thread, int n_threads)
{
    const struct call *c = arg;
    int t0, t1;

    (void)n_threads;
    while (par_next(c->par, c->x->rows, 1, &t0, &t1)) make_forms(c, thread, t0, t1);
}

/* Scale, bias and residual addition: from y [n_tokens][ROWS] to the job's output. */
static void apply_epilogue(const struct linear *job, const float *y, int t0, int n_tokens, int r0,
                           int n_rows)
{
    float scale = job->scale != 0 ? job->scale : 1;

    for (int t = 0; t < n_tokens; t++) {
        float *out = tensor_row(&job->out, t0 + t) + r0;
        const float *p = y + t * ROWS;
        for (int r = 0; r < n_rows; r++) {
            float v = scale * p[r] + (job->bias ? job->bias[r0 + r] : 0);
            out[r] = job->add ? out[r] + v : v;
        }
    }
}

/* Rows [r0, r1) of a job for all tokens, ISA_TOKENS at a time. */
static void run_gemv_piece(const struct call *c, const struct linear *job, int r0, int r1,
                           int thread)
{
    struct matmul *m = c->m;
    const struct weight *w = job->w;
    int f = m->isa->gemv[w->type].form;
    bool plain = /* no epilogue: the kernel writes to the output directly */
        !job->bias && !job->add && (job->scale == 0 || job->scale == 1);
    float *y = (float *)m->out.p + (size_t)thread * ISA_TOKENS * ROWS;
    struct gemv g = { .type = w->type,
                      .group = w->group,
                      .cols = w->cols,
                      .n_rows = r1 - r0,
                      .w_stride = weight_row_bytes(w) };

    g.w = (const char *)weight_rows(w) + (size_t)r0 * g.w_stride;
    g.x_stride = f ? m->isa->form[f].bytes(w->cols) : c->x->stride * sizeof(float);
    const char *x = f ? m->x[f].p : c->x->data;
    if (f && c->own) x += (size_t)(thread * c->x->rows) * g.x_stride;

    for (int t = 0; t < c->x->rows; t += ISA_TOKENS) {
        g.n_tokens = c->x->rows - t < ISA_TOKENS ? c->x->rows - t : ISA_TOKENS;
        g.x = x + (size_t)t * g.x_stride;
        g.out = plain ? tensor_row(&job->out, t) + r0 : y;
        g.out_stride = plain ? job->out.stride : ROWS;
        m->isa->gemv[w->type].fn(&g);
        if (!plain) apply_epilogue(job, y, t, g.n_tokens, r0, g.n_rows);
    }
}

/* The next piece of this thread's share, which is contiguous in memory; after its end, pieces of
 * the other threads' shares. false: nothing is left. */
static bool take_piece(struct call *c, int n, int thread, int n_threads, int *piece)
{
    for (int i = 0; i < n_threads; i++) {
        int t = (thread + i) % n_threads, begin, end, at;
        par_share(n, 1, t, n_threads, &begin, &end);
        at = begin + atomic_fetch_add_explicit(&c->taken[t].n, 1, memory_order_relaxed);
        if (at < end) {
            *piece = at;
            return true;
        }
    }
    return false;
}

/* Threads take pieces of weight rows until none are left. */
static void run_gemv(void *arg, int thread, int n_threads)
{
    struct call *c = arg;
    int i, r0, r1;

    if (c->own) make_forms(c, thread, 0, c->x->rows);
    while (take_piece(c, c->gemv.n_pieces, thread, n_threads, &i)) {
        const struct linear *job = find_piece(&c->gemv, i, &r0, &r1);
        run_gemv_piece(c, job, r0, r1, thread);
    }
}

/* Threads pack token_unit tokens at a time. */
static void run_pack(void *arg, int thread, int n_threads)
{
    const struct call *c = arg;
    int a, b;

    (void)thread;
    (void)n_threads;
    while (par_next(c->par, c->x->rows, c->g->token_unit, &a, &b))
        c->g->pack(c->gemm.job[0]->w->type, c->m->gx.p, c->x, a, b);
}

/* Threads take pieces of rows; the tile configuration is set once per thread and run. */
static void run_gemm(void *arg, int thread, int n_threads)
{
    const struct call *c = arg;
    struct matmul *m = c->m;
    const struct gemm *gemm = c->g;
    char *scratch = (char *)m->scratch.p + (size_t)thread * c->scratch_bytes;
    int a, b, i, end;

    (void)n_threads;
    if (gemm->enter) gemm->enter();
    while (par_next(c->par, c->gemm.n_pieces, 1, &i, &end)) {
        const struct linear *job = find_piece(&c->gemm, i, &a, &b);
        struct gemm_job g = {
            .type = job->w->type,
            .group = job->w->group,
            .data = weight_rows(job->w),
            .rows = job->w->rows,
            .cols = job->w->cols,
            .tokens = c->x->rows,
            .out = &job->out,
            .bias = job->bias,
            .add = job->add,
            .scale = job->scale != 0 ? job->scale : 1,
        };
        gemm->rows(&g, m->gx.p, a, b, scratch);
    }
}

/* Collects jobs into p: those of data type `type` that a gemm computes, or for DT_NONE those that
 * gemv kernels compute. */
static void fill_pass(struct pass *p, const struct matmul *m, const struct linear *jobs, int n,
                      int tokens, enum dtype type)
{
    p->n = 0;
    for (int j = 0; j < n; j++) {
        enum dtype t = jobs[j].w->type;
        if (find_gemm(m, t, tokens) ? t == type : type == DT_NONE) p->job[p->n++] = &jobs[j];
    }
}

static bool needs_forms(const struct call *c)
{
    for (int f = 1; f < ISA_FORMS; f++)
        if (c->form[f]) return true;
    return false;
}

/* All jobs that no gemm computes, in one run of the team (two if x is quantized in common). */
static int linear_gemv(struct call *c, const struct linear *jobs, int n_jobs)
{
    struct matmul *m = c->m;
    int rc;

    fill_pass(&c->gemv, m, jobs, n_jobs, c->x->rows, DT_NONE);
    if (!c->gemv.n) return OK;
    for (int j = 0; j < c->gemv.n; j++) c->form[m->isa->gemv[c->gemv.job[j]->w->type].form] = true;
    c->form[0] = false;
    c->own = c->x->rows <= OWN_TOKENS;
    if ((rc = reserve_gemv(m, c->form, c->x->rows, c->x->cols, NULL)) != OK) return rc;
    cut_pass(&c->gemv, m, 4, PIECE_BYTES);
    for (int t = 0; t < m->n_threads; t++)
        atomic_store_explicit(&m->taken[t].n, 0, memory_order_relaxed);
    if (!c->own && needs_forms(c)) par_run_any(c->par, run_forms, c);
    par_run_any(c->par, run_gemv, c);
    return OK;
}

/* All jobs that a gemm computes, one data type after the other. */
static int linear_gemm(struct call *c, const struct linear *jobs, int n_jobs)
{
    struct matmul *m = c->m;
    bool done[DT_COUNT] = { false };
    int rc;

    for (int j = 0; j < n_jobs; j++) {
        enum dtype t = jobs[j].w->type;
        c->g = find_gemm(m, t, c->x->rows);
        if (done[t] || !c->g) continue;
        done[t] = true;
        if ((rc = reserve_gemm(m, c->g, t, c->x->rows, c->x->cols, NULL)) != OK) return rc;
        c->scratch_bytes = align64(c->g->scratch_bytes(t, c->x->cols));
        fill_pass(&c->gemm, m, jobs, n_jobs, c->x->rows, t);
        cut_pass(&c->gemm, m, c->g->row_unit, SIZE_MAX);
        par_run_any(c->par, run_pack, c);
        par_run_any(c->par, run_gemm, c);
    }
    return OK;
}

static int linear_jobs(struct matmul *m, struct par *par, const struct tensor *x,
                       const struct linear *jobs, int n_jobs)
{
    struct call c = { .m = m, .par = par, .x = x, .taken = m->taken };
    int rc = linear_gemv(&c, jobs, n_jobs);

    return rc == OK ? linear_gemm(&c, jobs, n_jobs) : rc;
}

/* ---- weights whose columns are in another order than the activations ---- */

struct ordering {
    struct par *par;
    const struct tensor *x, *out;
    const int32_t *order;
};

static void run_ordering(void *arg, int thread, int n_threads)
{
    const struct ordering *o = arg;
    int a, b;

    (void)thread, (void)n_threads;
    while (par_next(o->par, o->x->rows, 1, &a, &b)) {
        const float *x = tensor_row(o->x, a);
        float *out = tensor_row(o->out, a);
        for (int c = 0; c < o->x->cols; c++) out[c] = x[o->order[c]];
    }
}

static bool is_ordered(const struct linear *job) { return job->w->group && job->w->group->order; }

/* One job: its activations in the order of its columns. */
static int linear_ordered(struct matmul *m, struct par *par, const struct tensor *x,
                          const struct linear *job)
{
    int rc = reserve_bytes(&m->ordered, (size_t)x->rows * (size_t)x->cols * sizeof(float), NULL);
    struct tensor out;
    struct ordering o = { par, x, &out, job->w->group->order };

    if (rc != OK) return rc;
    out = tensor_f32(m->ordered.p, x->rows, x->cols);
    par_run_any(par, run_ordering, &o);
    return linear_jobs(m, par, &out, job, 1);
}

int cpu_linear(struct matmul *m, struct par *par, const struct tensor *x, const struct linear *jobs,
               int n_jobs)
{
    int rc = OK;

    if (x->rows == 0) return OK;
    for (int j = 0, n; j < n_jobs && rc == OK; j += n) {
        n = 1;
        if (is_ordered(&jobs[j])) {
            rc = linear_ordered(m, par, x, &jobs[j]);
            continue;
        }
        while (n < JOBS && j + n < n_jobs && !is_ordered(&jobs[j + n])) n++;
        rc = linear_jobs(m, par, x, jobs + j, n);
    }
    return rc;
}
