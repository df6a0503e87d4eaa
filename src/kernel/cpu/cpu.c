/* cpu.c - the CPU backend: its table of operations, memory, and how it opens. */
#include "kernel/cpu/cpu.h"

#include "base/mem.h"
#include "kernel/cpu/attend.h"
#include "kernel/cpu/kernels.h"
#include "kernel/quant.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

/* Elements an operation must touch before it is worth the microseconds that waking the team takes. */
#define WORTH_SHARING 16384

void cpu_fail(struct cpu *c, int code, const char *fmt, ...)
{
    char msg[sizeof c->err.msg];
    va_list ap;

    if (c->err.code != OK) return;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    c->err.code = err_set(&c->err, code, "%s", msg);
}

struct shared_rows { /* argument of run_rows */
    struct par *par;
    int rows, chunk;
    cpu_rows_fn *fn;
    const void *arg;
};

/* Threads take chunks of rows until none are left. */
static void run_rows(void *arg, int thread, int n_threads)
{
    struct shared_rows *s = arg;
    int begin, end;

    (void)thread;
    (void)n_threads;
    while (par_next(s->par, s->rows, s->chunk, &begin, &end)) s->fn(s->arg, begin, end);
}

void cpu_rows(struct cpu *c, int rows, long long work, cpu_rows_fn *fn, const void *arg)
{
    int n = par_n(c->par);

    if (rows > 1 && work >= WORTH_SHARING && n > 1) {
        int chunk = (rows + 4 * n - 1) / (4 * n); /* four pieces per thread: they finish together */
        par_run_any(c->par, run_rows, &(struct shared_rows){ c->par, rows, chunk, fn, arg });
    } else if (rows > 0) {
        fn(arg, 0, rows);
    }
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define PIECE ((size_t)32 << 20)

struct filled { /* argument of fill_pieces */
    char *p;
    size_t n;
    atomic_int *failed;
};

/* On a kernel that does not know the advice, a page is taken by writing to it. */
static void fill_pieces(const void *arg, int begin, int end)
{
    const struct filled *f = arg;

    for (int i = begin; i < end; i++) {
        size_t at = (size_t)i * PIECE, n = f->n - at < PIECE ? f->n - at : PIECE;
        int rc = madvise(f->p + at, n, MADV_POPULATE_WRITE);
        if (rc == 0) continue;
        if (errno != EINVAL) atomic_store(f->failed, 1);
        else
            for (volatile char *q = f->p + at; q < f->p + at + n; q += 4096) *q = 0;
    }
}

/* Takes all pages now, on the threads that will use them: on machines with several memories each
 * page lies near one of them. false: the system has not so much. */
static bool fill_pages(struct cpu *c, void *p, size_t bytes)
{
    atomic_int failed = 0;
    struct filled f = { p, bytes, &failed };

    if (bytes < PIECE) return true;
    cpu_rows(c, (int)((bytes + PIECE - 1) / PIECE), (long long)bytes, fill_pieces, &f);
    return !failed;
}

/* Host memory; aligned to 64 bytes, on huge pages if large. KV memory whose pages are taken when
 * blocks are first used is on small pages if its arrays are small: a single block would otherwise take
 * a huge page, which the system clears, in every array, which is all of the cache. */
static int cpu_alloc(struct backend *be, void **out, size_t bytes, enum mem_kind kind,
                     struct err *e)
{
    static const char *const what[MEM_KINDS] = { "weights", "KV cache", "scratch memory" };
    bool thin = kind == MEM_KV && be->thin_kv && !be->fill_kv;
    void *p = thin ? mem_aligned_thin(bytes) : mem_aligned(bytes);

    if (!p)
        return err_set(e, E_NOMEM, "cpu: cannot allocate %zu MiB for the %s (%zu MiB are in use)",
                       bytes >> 20, what[kind],
                       (be->used_bytes[0] + be->used_bytes[1] + be->used_bytes[2]) >> 20);
    if (kind == MEM_KV && be->fill_kv && !fill_pages(cpu_of(be), p, bytes)) {
        mem_free_aligned(p, bytes);
        return err_set(e, E_MEMORY, "cpu: the system has not the %zu MiB of the KV cache",
                       bytes >> 20);
    }
    be->used_bytes[kind] += bytes;
    be->n_allocs++;
    *out = p;
    return OK;
}

static void cpu_free(struct backend *be, void *p, size_t bytes, enum mem_kind kind)
{
    if (!p) return;
    be->used_bytes[kind] -= bytes;
    mem_free_aligned(p, bytes);
}

/* put and get: device memory is host memory. */
static void cpu_copy(struct backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    if (bytes) memcpy(dst, src, bytes);
}

/* Everything is executed already; reports and clears the recorded failure. */
static int cpu_sync(struct backend *be, struct err *e)
{
    struct cpu *c = cpu_of(be);
    int rc = c->err.code;

    if (rc == OK) return OK;
    err_set(e, rc, "%s", c->err.msg);
    c->err.code = OK;
    return rc;
}

static bool cpu_weight_supported(struct backend *be, enum dtype t)
{
    return (t == DT_GROUPED || quant_can_decode(t)) && matmul_can(cpu_of(be)->matmul, t);
}

/* ---- memory nodes ---- */

struct placed { /* argument of place_rows: a matrix */
    const struct numa *numa;
    const char *data;
    int rows;
    size_t row_bytes;
};

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

/* Reads the pages of the thread's rows, so that they are there, and moves them to its node. Matrix
 * products give the thread the same rows first (matmul.c). */
static void place_rows(void *arg, int thread, int n_threads)
{
    const struct placed *w = arg;
    int begin, end;

    par_share(w->rows, 1, thread, n_threads, &begin, &end);
    const char *p = w->data + (size_t)begin * w->row_bytes;
    size_t n = (size_t)(end - begin) * w->row_bytes;
    uintptr_t page = (uintptr_t)p & ~(uintptr_t)4095;
    madvise((void *)page, n + ((uintptr_t)p - page), MADV_POPULATE_READ); /* may be unknown */
    numa_move(w->numa, numa_node_of(w->numa, thread, n_threads), p, n);
}

static void place_weight(struct cpu *c, const struct weight *w, size_t row_bytes)
{
    struct placed p = { &c->numa, w->data, w->rows, row_bytes };

    if (!c->numa.n || !w->data) return;
    for (int i = 0; i < (w->n > 1 ? w->n : 1); i++) { /* each matrix by itself */
        par_run(c->par, place_rows, &p);
        p.data += (size_t)w->rows * row_bytes;
    }
}

static void cpu_drive(struct backend *be) { par_drive(cpu_of(be)->par); }

/* The kernels read every format as it is in the file, so nothing is copied or repacked. */
static int cpu_weight_put(struct backend *be, struct weight *w, struct err *e)
{
    size_t row_bytes = weight_row_bytes(w);

    if (!cpu_weight_supported(be, w->type))
        return err_set(e, E_UNSUPPORTED, "cpu: weights of type %s are not supported",
                       dtype_name(w->type));
    if (w->rows <= 0 || !row_bytes)
        return err_set(e, E_FORMAT, "cpu: a matrix of %d rows and %d columns cannot have type %s",
                       w->rows, w->cols, dtype_name(w->type));
    place_weight(cpu_of(be), w, row_bytes);
    return OK;
}

static int cpu_weights_finish(struct backend *be, struct err *e)
{
    (void)be;
    (void)e;
    return OK;
}

static void cpu_weight_drop(struct backend *be, struct weight *w)
{
    (void)be;
    (void)w;
}

static void cpu_linear_entry(struct backend *be, const struct tensor *x, const struct linear *jobs,
                             int n_jobs)
{
    struct cpu *c = cpu_of(be);
    int rc = cpu_linear(c->matmul, c->par, x, jobs, n_jobs);

    if (rc != OK)
        cpu_fail(c, rc, "linear: out of memory for %d tokens of %d columns", x->rows, x->cols);
}

static void cpu_close(struct backend *be)
{
    struct cpu *c = cpu_of(be);

    attn_close(c->attn);
    matmul_close(c->matmul);
    par_close(c->par);
    mem_free(c);
}

/* The table; cpu_open copies it and fills in the rest. Entries that do not apply to the CPU are
 * NULL: copy, flush, throttle, stats, host_alloc, reserve, available_bytes, sample, group_*,
 * all_reduce. */
static const struct backend table = {
    .name = "cpu",
    .features = ~0u, /* it defines the results of every option */
    .drive = cpu_drive,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .put = cpu_copy,
    .get = cpu_copy,
    .sync = cpu_sync,
    .close = cpu_close,
    .weight_put = cpu_weight_put,
    .weights_finish = cpu_weights_finish,
    .weight_drop = cpu_weight_drop,
    .weight_supported = cpu_weight_supported,
    .embed = cpu_embed,
    .gather = cpu_gather,
    .rmsnorm = cpu_rmsnorm,
    .layernorm = cpu_layernorm,
    .headnorm = cpu_headnorm,
    .linear = cpu_linear_entry,
    .rope_table = cpu_rope_table,
    .rope = cpu_rope,
    .kv_put = cpu_kv_put,
    .attend = cpu_attend,
    .act = cpu_act,
    .add = cpu_add,
    .scale = cpu_scale,
    .softcap = cpu_softcap,
    .headnorm_layer = cpu_headnorm_layer,
    .clamp = cpu_clamp,
    .gate_rows = cpu_gate_rows,
    .xielu = cpu_xielu,
    .clipped_glu = cpu_clipped_glu,
    .scale_by_pos = cpu_scale_by_pos,
    .mix_streams = cpu_mix_streams,
    .add_weighted = cpu_add_weighted,
    .match_rms = cpu_match_rms,
    .sparsify = cpu_sparsify,
    .hyper_weights = cpu_hyper_weights,
    .hyper_in = cpu_hyper_in,
    .hyper_out = cpu_hyper_out,
    .compress = cpu_compress,
    .attend_compressed = cpu_attend_compressed,
    .index_put = cpu_index_put,
    .index_choose = cpu_index_choose,
    .route = cpu_route,
    .experts = cpu_experts,
    .linear_heads = cpu_linear_heads,
    .conv = cpu_conv,
    .scan = cpu_scan,
    .delta = cpu_delta,
    .square_sums = cpu_square_sums,
    .norm_by_sums = cpu_norm_by_sums,
};

int cpu_check_isa(const char *name, struct err *e)
{
    struct kernels k;
    return kernels_find(&k, name, e);
}

const char *cpu_isa_name(const struct backend_opt *opt)
{
    struct kernels k;
    return kernels_find(&k, opt->reference ? "ref" : opt->isa, NULL) == OK ? k.name : NULL;
}

void cpu_card(struct device_card *out, const struct backend_opt *opt)
{
    const char *isa = cpu_isa_name(opt);

    snprintf(out->kind, sizeof out->kind, "cpu");
    snprintf(out->name, sizeof out->name, "%s", isa ? isa : "");
    for (int t = 0; t < DT_COUNT; t++)
        if (quant_can_decode((enum dtype)t)) out->types |= (uint64_t)1 << t;
}

int cpu_check_numa(const char *mode, struct err *e)
{
    struct numa m;
    return numa_find(&m, mode, e);
}

int cpu_open(struct backend **out, const struct backend_opt *opt, struct err *e)
{
    struct cpu *c;
    struct kernels k;
    int rc = kernels_find(&k, opt->reference ? "ref" : opt->isa, e);

    if (rc != OK) return rc;
    if (!(c = mem_new(struct cpu))) return err_nomem(e, "the CPU backend");
    c->be = table;
    c->be.self = c;
    c->reference = k.matmul.isa == &isa_ref;
    c->vec = k.vec;
    c->recur = k.recur;
    if ((rc = numa_find(&c->numa, opt->numa, e)) != OK) goto out;
    if ((rc = par_open(&c->par, (struct par_opt){ .n_threads = opt->n_threads, .numa = &c->numa },
                       e)) != OK)
        goto out;
    k.matmul.numa = &c->numa;
    if ((rc = matmul_open(&c->matmul, c->par, k.matmul, e)) != OK) goto out;
    if ((rc = attn_open(&c->attn, c->par, k.flash, e)) != OK) goto out;
    snprintf(c->be.detail, sizeof c->be.detail, "%s, %d thread%s", k.name, par_n(c->par),
             par_n(c->par) == 1 ? "" : "s");
    if (c->numa.n)
        snprintf(c->be.detail + strlen(c->be.detail), sizeof c->be.detail - strlen(c->be.detail),
                 ", %d NUMA node%s", c->numa.n, c->numa.n == 1 ? "" : "s");
    *out = &c->be;
    c = NULL;
out:
    if (c) cpu_close(&c->be);
    return rc;
}
