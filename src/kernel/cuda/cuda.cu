/* cuda.cu - the GPU's table, opened by backend_open through tern_cuda_open.
 *
 * Operations are written down; sync carries them out. For finding faults: TERN_CUDA_GRAPHS=0 and
 * TERN_CUDA_FUSE=0 launch everything by itself, TERN_CUDA_DEBUG=1 guards memory,
 * TERN_CUDA_PROFILE=1 times operations. */
#include "kernel/cuda/record.cuh"

extern "C" {
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
}

#include <stdio.h>
#include <stdlib.h>

struct gpu { /* struct cuda and the memory of its name */
    struct cuda c;
    char name[16];
    bool has_gemm;
};

static void on_device(struct cuda *c) { cudaSetDevice(c->device); }

/* Memory goes away: what was to use it is done first. */
static void settle(struct cuda *c)
{
    on_device(c);
    if (c->record->rec.n > 0 || c->record->n_parts > 0) cu_record_wait(c, RUN_ROOM);
}

/* ---- memory ---- */

static int t_alloc(struct backend *be, void **out, size_t bytes, enum mem_kind kind, struct err *e)
{
    static const char *const owner[MEM_KINDS] = { "vectors", "the block pool", "a decoder's step" };
    int rc;

    on_device(cu_of(be));
    if ((rc = cu_mem_get(cu_of(be), out, bytes, kind, owner[kind], e)) != OK || kind != MEM_KV)
        return rc;
    /* Keys are read in whole blocks, also those that nothing was put to yet; such scores count for
     * nothing. */
    if (cudaMemsetAsync(*out, 0, bytes, cu_of(be)->stream) == cudaSuccess) return OK;
    cu_mem_put(cu_of(be), *out, bytes, kind);
    return err_set(e, E_DEVICE, "%s: cannot clear keys and values", be->name);
}

static void t_free(struct backend *be, void *p, size_t bytes, enum mem_kind kind)
{
    settle(cu_of(be));
    cu_mem_put(cu_of(be), p, bytes, kind);
}

static int t_host_alloc(struct backend *be, void **out, size_t bytes, struct err *e)
{
    struct cuda *c = cu_of(be);
    struct cu_record *r = c->record;
    void *p = NULL;

    on_device(c);
    if (r->n_pinned == MAX_PINNED || cudaMallocHost(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return err_set(e, E_NOMEM, "%s: no %zu bytes of pinned memory", be->name, bytes);
    }
    r->pinned[r->n_pinned++] = (struct cu_pinned){ (char *)p, bytes };
    *out = p;
    return OK;
}

static void t_host_free(struct backend *be, void *p, size_t bytes)
{
    struct cuda *c = cu_of(be);
    struct cu_record *r = c->record;

    (void)bytes;
    settle(c);
    for (int i = 0; i < r->n_pinned; i++) {
        if (r->pinned[i].p != p) continue;
        cudaFreeHost(p);
        r->pinned[i] = r->pinned[--r->n_pinned];
        return;
    }
}

static void t_put(struct backend *be, void *dst, const void *src, size_t bytes)
{
    on_device(cu_of(be));
    cu_record_put(cu_of(be), dst, src, bytes);
}

static void t_get(struct backend *be, void *dst, const void *src, size_t bytes)
{
    on_device(cu_of(be));
    cu_record_get(cu_of(be), dst, src, bytes);
}

/* An error that stays after it was told means that this process has lost the device. */
static int tell(struct cuda *c, struct err *e)
{
    int rc = c->rc;

    if (rc == OK) return OK;
    cudaGetLastError();
    if (!c->record->dead && cudaDeviceSynchronize() != cudaSuccess) {
        cudaGetLastError();
        c->record->dead = cudaDeviceSynchronize() != cudaSuccess;
    }
    err_set(e, rc, "%s%s", c->msg, c->record->dead ? "; the device needs a new process" : "");
    if (!c->record->dead) c->rc = OK;
    return rc;
}

static int t_sync(struct backend *be, struct err *e)
{
    struct cuda *c = cu_of(be);

    on_device(c);
    cu_record_wait(c, RUN_STEP);
    return tell(c, e);
}

static void t_flush(struct backend *be, bool whole)
{
    on_device(cu_of(be));
    cu_record_run(cu_of(be), whole ? RUN_STEP : RUN_PART);
}

static void t_throttle(struct backend *be, int ahead)
{
    on_device(cu_of(be));
    cu_record_pace(cu_of(be), ahead);
}

static void t_stats(const struct backend *be, struct backend_stats *out)
{
    const uint64_t *from = (const uint64_t *)&((const struct cuda *)be)->stats;
    uint64_t *to = (uint64_t *)out;

    for (size_t i = 0; i < sizeof *out / sizeof *to; i++)
        to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
}

static int max_int(int a, int b) { return a > b ? a : b; }

static void widen(struct backend_limits *l, const struct backend_limits *by)
{
    l->max_tokens = max_int(l->max_tokens, by->max_tokens);
    l->max_seqs = max_int(l->max_seqs, by->max_seqs);
    l->max_out = max_int(l->max_out, by->max_out);
    l->max_cols = max_int(l->max_cols, by->max_cols);
    l->max_rows = max_int(l->max_rows, by->max_rows);
    l->n_vocab = max_int(l->n_vocab, by->n_vocab);
    l->n_heads = max_int(l->n_heads, by->n_heads);
    l->head_dim = max_int(l->head_dim, by->head_dim);
    l->max_adjust = max_int(l->max_adjust, by->max_adjust);
}

static size_t part_bytes(const struct cuda *c, int part, const struct backend_limits *lim)
{
    switch (part) {
    case CU_MATVEC: return cu_matvec_bytes(c, lim);
    case CU_GEMM: return cu_gemm_bytes(c, lim);
    case CU_ATTEND: return cu_attend_bytes(c, lim);
    case CU_SAMPLE: return cu_sample_bytes(c, lim);
    }
    return 0;
}

/* A tenth of what is free stays so: other programs, and what CUDA takes for itself. */
static uint64_t t_available_bytes(struct backend *be)
{
    size_t free_bytes = 0, total = 0;

    (void)be;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return 0;
    return free_bytes - free_bytes / 10;
}

/* A second decoder may be larger: the parts' memory grows to the larger of both. */
static int t_reserve(struct backend *be, const struct backend_limits *lim, struct err *e)
{
    static const char *const owner[CU_PARTS] = { "matvec", "gemm", "attend", "sample" };
    struct cuda *c = cu_of(be);
    int rc;

    settle(c);
    cu_record_forget(c);
    widen(&c->lim, lim);
    c->record->rec.max_tokens = c->lim.max_tokens;
    for (int i = 0; i < CU_PARTS; i++) {
        size_t bytes = part_bytes(c, i, &c->lim);
        if (bytes <= c->scratch_bytes[i]) continue;
        if (c->scratch[i]) cu_mem_put(c, c->scratch[i], c->scratch_bytes[i], MEM_SCRATCH);
        c->scratch[i] = NULL;
        c->scratch_bytes[i] = 0;
        if ((rc = cu_mem_get(c, &c->scratch[i], bytes, MEM_SCRATCH, owner[i], e)) != OK) return rc;
        c->scratch_bytes[i] = bytes;
        cudaMemset(c->scratch[i], 0, bytes);
    }
    if (cudaDeviceSynchronize() != cudaSuccess)
        return err_set(e, E_DEVICE, "%s: cannot clear scratch", be->name);
    cu_gemm_tune(c, c->types);
    cu_mem_look(c);
    return OK;
}

/* ---- weights ---- */

static int t_weight_put(struct backend *be, struct weight *w, struct err *e)
{
    cu_of(be)->types |= (uint64_t)1 << w->type;
    return upload_put(cu_of(be), w, e);
}

static int t_weights_finish(struct backend *be, struct err *e)
{
    on_device(cu_of(be));
    return upload_ready(cu_of(be), e);
}

static void t_weight_drop(struct backend *be, struct weight *w)
{
    settle(cu_of(be));
    cu_record_forget(cu_of(be));
    upload_drop(cu_of(be), w);
}

static bool t_weight_supported(struct backend *be, enum dtype t)
{
    (void)be;
    return cu_matvec_can(t);
}

/* ---- open and close ---- */

static void t_close(struct backend *be)
{
    struct cuda *c = cu_of(be);

    on_device(c);
    if (c->stream) cudaStreamSynchronize(c->stream);
    if (c->record && (c->record->n_captures || c->record->n_replays))
        log_debug("%s: %llu steps, %llu captured, %llu replayed", be->name,
                  (unsigned long long)c->record->n_steps, (unsigned long long)c->record->n_captures,
                  (unsigned long long)c->record->n_replays);
    profile_close(c);
    if (((struct gpu *)c)->has_gemm) cu_gemm_close(c);
    if (c->mem)
        for (int i = 0; i < CU_PARTS; i++)
            cu_mem_put(c, c->scratch[i], c->scratch_bytes[i], MEM_SCRATCH);
    upload_close(c);
    cu_record_close(c);
    cu_mem_close(c);
    if (c->stream) cudaStreamDestroy(c->stream);
    mem_free(c);
}

static void fill_table(struct backend *be)
{
    be->alloc = t_alloc, be->free = t_free, be->put = t_put, be->get = t_get, be->sync = t_sync;
    be->flush = t_flush, be->throttle = t_throttle, be->whole_tokens = GRAPH_TOKENS;
    be->stats = t_stats;
    be->host_alloc = t_host_alloc, be->host_free = t_host_free;
    be->reserve = t_reserve, be->available_bytes = t_available_bytes, be->close = t_close;
    be->weight_put = t_weight_put, be->weights_finish = t_weights_finish;
    be->weight_drop = t_weight_drop, be->weight_supported = t_weight_supported;
    record_fill_table(be);
}

/* "cuda" is the first; "cuda:2" the third. */
static int pick_device(const char *name, int *device, struct err *e)
{
    int64_t want = 0;
    int n = 0;
    cudaError_t rc;

    if (name[4] == ':' && (!str_to_i64(str_c(name + 5), &want) || want < 0 || want > 1023))
        return err_set(e, E_INVALID, "device \"%s\": a number comes behind \"cuda:\"", name);
    rc = cudaGetDeviceCount(&n);
    if (rc == cudaErrorInsufficientDriver || rc == cudaErrorInitializationError ||
        rc == cudaErrorSystemDriverMismatch)
        return err_set(e, E_DEVICE,
                       "device \"%s\": there is no NVIDIA driver here, or it is too old: %s", name,
                       cudaGetErrorString(rc));
    if (rc != cudaSuccess && rc != cudaErrorNoDevice)
        return err_set(e, E_DEVICE, "device \"%s\": %s", name, cudaGetErrorString(rc));
    if (want >= n)
        return err_set(e, E_NOTFOUND,
                       "device \"%s\" is not there: this machine has %d CUDA device%s", name, n,
                       n == 1 ? "" : "s");
    *device = (int)want;
    return OK;
}

static int read_device(struct gpu *g, struct err *e)
{
    struct cuda *c = &g->c;
    struct cudaDeviceProp p;
    cudaError_t rc = cudaSetDevice(c->device);
    int version = 0;

    if (rc == cudaSuccess) rc = cudaGetDeviceProperties(&p, c->device);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (rc == cudaErrorMemoryAllocation)
        return err_set(e, E_NOMEM, "%s: no memory left on the device to begin with", g->name);
    if (rc != cudaSuccess) return err_set(e, E_DEVICE, "%s: %s", g->name, cudaGetErrorString(rc));
    c->cc = p.major * 10 + p.minor;
    if (c->cc < 80)
        return err_set(e, E_UNSUPPORTED, "%s: %s has compute capability %d.%d, tern needs 8.0",
                       g->name, p.name, p.major, p.minor);
    c->n_sm = p.multiProcessorCount;
    c->smem_max = p.sharedMemPerBlockOptin;
    c->l2_bytes = (size_t)p.l2CacheSize;
    cudaRuntimeGetVersion(&version);
    snprintf(c->be.detail, sizeof c->be.detail, "%.40s, %d SMs, %zu GiB, CUDA %d.%d", p.name,
             c->n_sm, p.totalGlobalMem >> 30, version / 1000, version % 1000 / 10);
    return OK;
}

extern "C" __attribute__((visibility("default"))) int tern_cuda_open(struct backend **out,
                                                                     const struct backend_opt *opt,
                                                                     uint64_t layout, struct err *e)
{
    uint64_t start = clock_ns();
    struct gpu *g;
    struct cuda *c;
    size_t free_bytes, left;
    int rc, device = 0;

    if (layout != backend_layout())
        return err_set(e, E_UNSUPPORTED,
                       "tern-cuda.so is of another version of tern: `make cuda` again");
    if (opt->reference)
        return err_set(e, E_INVALID, "device \"%s\": the reference kernels are the CPU's",
                       opt->device);
    if ((rc = pick_device(opt->device, &device, e)) != OK) return rc;

    if (!(g = mem_new(struct gpu))) return err_nomem(e, "the state of a GPU");
    c = &g->c;
    c->device = device;
    snprintf(g->name, sizeof g->name, "cuda:%d", device);
    c->be.name = g->name;
    fill_table(&c->be);
    if ((rc = read_device(g, e)) != OK) goto out;
    if ((rc = cu_mem_open(c, e)) != OK) goto out;
    if ((rc = cu_record_open(c, e)) != OK) goto out;
    free_bytes = cu_mem_look(c);
    if ((rc = cu_gemm_open(c, e)) != OK) goto out;
    g->has_gemm = true;
    left = cu_mem_look(c);
    if (left < free_bytes) cu_note(&c->stats.library_bytes, free_bytes - left);
    profile_open(c, opt->profile);
    cu_note(&c->stats.init_ns, clock_ns() - start);
    *out = &c->be;
    g = NULL;
out:
    if (g) t_close(&c->be);
    return rc;
}
