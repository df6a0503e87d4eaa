/* cuda.cu - the GPU's backend table: memory, weights, sync, opening and closing a device.
 *
 * tern-cuda.so exports tern_cuda_open and tern_cuda_card alone; backend.c calls them.
 * The table's operations record
 * themselves (record_ops.c) and are launched by flush or sync (record.cu).
 *
 * To narrow down a fault: TERN_CUDA_GRAPHS=0 launches every step without graphs, TERN_CUDA_FUSE=0
 * launches every operation by itself, TERN_CUDA_EXACT=0 attends on tensor cores however small a model
 * is, TERN_CUDA_DEBUG=1 puts guards around device memory, TERN_CUDA_PROFILE=1 times kernels. */
#include "base/minmax.h"
#include "kernel/cuda/record.cuh"

extern "C" {
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu { /* struct cuda first, and the memory of its name */
    struct cuda c;
    char name[16];
    bool has_gemm;
};

/* The current device is a property of the thread; every entry that calls CUDA sets it. */
static void use_device(struct cuda *c) { cudaSetDevice(c->device); }

/* Before memory is freed: launches and waits for everything that may use it. */
static void finish_pending(struct cuda *c)
{
    use_device(c);
    if (c->record->rec.n > 0 || c->record->n_parts > 0) cu_record_wait(c, RUN_FULL);
}

/* ---- memory ---- */

static int t_alloc(struct backend *be, void **out, size_t bytes, enum mem_kind kind, struct err *e)
{
    static const char *const owner[MEM_KINDS] = { "vectors", "the block pool", "a decoder's step" };
    int rc;

    use_device(cu_of(be));
    if ((rc = cu_mem_alloc(cu_of(be), out, bytes, kind, owner[kind], e)) != OK || kind != MEM_KV)
        return rc;
    /* Attention reads whole KV blocks, also rows that were never written, and masks their
     * scores. Zeros make these reads defined. */
    if (cudaMemsetAsync(*out, 0, bytes, cu_of(be)->stream) == cudaSuccess) return OK;
    cu_mem_free(cu_of(be), *out, bytes, kind);
    return err_set(e, E_DEVICE, "%s: cannot clear KV blocks", be->name);
}

static void t_free(struct backend *be, void *p, size_t bytes, enum mem_kind kind)
{
    finish_pending(cu_of(be));
    cu_mem_free(cu_of(be), p, bytes, kind);
}

/* Pinned memory is listed, so that downloads to it need no staging. */
static int t_host_alloc(struct backend *be, void **out, size_t bytes, struct err *e)
{
    struct cuda *c = cu_of(be);
    struct cu_record *r = c->record;
    void *p = NULL;

    use_device(c);
    if (r->n_pinned == MAX_PINNED || cudaMallocHost(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return err_set(e, E_NOMEM, "%s: no memory for %zu bytes of pinned memory", be->name, bytes);
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
    finish_pending(c);
    for (int i = 0; i < r->n_pinned; i++) {
        if (r->pinned[i].p != p) continue;
        cudaFreeHost(p);
        r->pinned[i] = r->pinned[--r->n_pinned];
        return;
    }
}

/* Uploads and downloads are recorded like operations: their order among kernels is kept. */
static void t_put(struct backend *be, void *dst, const void *src, size_t bytes)
{
    use_device(cu_of(be));
    cu_record_upload(cu_of(be), dst, src, bytes);
}

static void t_get(struct backend *be, void *dst, const void *src, size_t bytes)
{
    use_device(cu_of(be));
    cu_record_download(cu_of(be), dst, src, bytes);
}

/* Returns and clears the first failure since the last sync. If the device still fails after its
 * error was cleared (a sticky error), it is lost to this process: neither cudaDeviceReset nor a new
 * context brings it back (seen with driver 580 on an H200, after an illegal access). */
static int take_error(struct cuda *c, struct err *e)
{
    int rc = c->rc;

    if (rc == OK) return OK;
    cudaGetLastError();
    if (!c->record->lost && cudaDeviceSynchronize() != cudaSuccess) {
        cudaGetLastError();
        c->record->lost = cudaDeviceSynchronize() != cudaSuccess;
    }
    err_set(e, rc, "%s%s", c->msg,
            c->record->lost ? "; the device is lost until the process is restarted" : "");
    if (!c->record->lost) c->rc = OK;
    c->be.lost = c->record->lost;
    return rc;
}

/* The end of a step: launches what is recorded, waits, and returns the first failure. */
static int t_sync(struct backend *be, struct err *e)
{
    struct cuda *c = cu_of(be);

    use_device(c);
    cu_record_wait(c, RUN_STEP);
    return take_error(c, e);
}

static void t_flush(struct backend *be, bool step_ends)
{
    use_device(cu_of(be));
    cu_record_run(cu_of(be), step_ends ? RUN_STEP : RUN_PART);
}

static void t_throttle(struct backend *be, int ahead)
{
    use_device(cu_of(be));
    cu_record_throttle(cu_of(be), ahead);
}

/* Any thread may call it: all members are 64-bit numbers that are read atomically. */
static void t_stats(const struct backend *be, struct backend_stats *out)
{
    const uint64_t *from = (const uint64_t *)&((const struct cuda *)be)->stats;
    uint64_t *to = (uint64_t *)out;

    for (size_t i = 0; i < sizeof *out / sizeof *to; i++)
        to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
}

/* The maximum of every limit. */
static void grow_limits(struct backend_limits *l, const struct backend_limits *by)
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
    l->index_rows = max_int(l->index_rows, by->index_rows);
    l->index_keys = max_int(l->index_keys, by->index_keys);
}

/* Scratch memory that a part needs for steps within lim. */
static size_t part_bytes(const struct cuda *c, int part, const struct backend_limits *lim)
{
    switch (part) {
    case CU_MATVEC: return cu_matvec_bytes(c, lim);
    case CU_GEMM: return cu_gemm_bytes(c, lim);
    case CU_ATTEND: return cu_attend_bytes(c, lim);
    case CU_SAMPLE: return cu_sample_bytes(c, lim);
    case CU_INDEX: return cu_index_bytes(c, lim);
    }
    return 0;
}

/* A tenth of the free memory is left to other programs and to what CUDA allocates itself. */
static uint64_t t_available_bytes(struct backend *be)
{
    size_t free_bytes = 0, total = 0;

    (void)be;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return 0;
    return free_bytes - free_bytes / 10;
}

/* Several decoders may share a backend: scratch memory grows to the largest of them. Graphs contain
 * its addresses and are dropped. */
static int t_reserve(struct backend *be, const struct backend_limits *lim, struct err *e)
{
    static const char *const owner[CU_PARTS] = { "matvec", "gemm", "attend", "sample", "index" };
    struct cuda *c = cu_of(be);
    int rc;

    finish_pending(c);
    cu_record_drop_graphs(c);
    grow_limits(&c->lim, lim);
    c->record->rec.max_tokens = c->lim.max_tokens;
    c->record->rec.index_keys = c->lim.index_keys;
    for (int i = 0; i < CU_PARTS; i++) {
        size_t bytes = part_bytes(c, i, &c->lim);
        if (bytes <= c->scratch_bytes[i]) continue;
        if (c->scratch[i]) cu_mem_free(c, c->scratch[i], c->scratch_bytes[i], MEM_SCRATCH);
        c->scratch[i] = NULL;
        c->scratch_bytes[i] = 0;
        if ((rc = cu_mem_alloc(c, &c->scratch[i], bytes, MEM_SCRATCH, owner[i], e)) != OK)
            return rc;
        c->scratch_bytes[i] = bytes;
        cudaMemset(c->scratch[i], 0, bytes);
    }
    if (cudaDeviceSynchronize() != cudaSuccess)
        return err_set(e, E_DEVICE, "%s: cannot clear scratch memory", be->name);
    cu_gemm_tune(c, c->types);
    cu_mem_query(c);
    return OK;
}

/* ---- weights ---- */

/* The type is remembered for the GEMM's tuning, which happens when memory is reserved. */
static int t_weight_put(struct backend *be, struct weight *w, struct err *e)
{
    cu_of(be)->types |= (uint64_t)1 << w->type;
    return upload_add(cu_of(be), w, e);
}

static int t_weights_finish(struct backend *be, struct err *e)
{
    use_device(cu_of(be));
    return upload_finish(cu_of(be), e);
}

static void t_weight_drop(struct backend *be, struct weight *w)
{
    finish_pending(cu_of(be));
    cu_record_drop_graphs(cu_of(be)); /* they contain addresses of weights */
    upload_drop(cu_of(be), w);
}

static bool t_weight_supported(struct backend *be, enum dtype t)
{
    (void)be;
    return cu_matvec_supports(t);
}

/* ---- groups ---- */

static int t_group_offer(struct backend *be, struct group_offer *out, const struct group_ask *ask,
                         struct err *e)
{
    use_device(cu_of(be));
    return cu_group_offer(cu_of(be), out, ask, e);
}

/* Graphs contain sums of the group before. */
static int t_group_join(struct backend *be, const struct sum_group *g, struct err *e)
{
    finish_pending(cu_of(be));
    cu_record_drop_graphs(cu_of(be));
    return cu_group_join(cu_of(be), g, e);
}

static void t_group_leave(struct backend *be)
{
    if (!cu_of(be)->comm) return;
    finish_pending(cu_of(be));
    cu_record_drop_graphs(cu_of(be));
    cu_group_leave(cu_of(be));
}

/* ---- open and close ---- */

/* Also of a backend that tern_cuda_open left half open: every part may be missing. */
static void t_close(struct backend *be)
{
    struct cuda *c = cu_of(be);

    use_device(c);
    if (c->stream) cudaStreamSynchronize(c->stream);
    if (c->record && (c->record->n_captures || c->record->n_replays))
        log_debug("%s: %llu steps, %llu captured, %llu replayed", be->name,
                  (unsigned long long)c->record->n_steps, (unsigned long long)c->record->n_captures,
                  (unsigned long long)c->record->n_replays);
    profile_close(c);
    if (c->record) t_group_leave(be);
    if (((struct gpu *)c)->has_gemm) cu_gemm_close(c);
    if (c->mem)
        for (int i = 0; i < CU_PARTS; i++)
            cu_mem_free(c, c->scratch[i], c->scratch_bytes[i], MEM_SCRATCH);
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
    be->group_offer = t_group_offer, be->group_join = t_group_join;
    be->group_leave = t_group_leave;
    record_fill_table(be);
}

/* "cuda" is the first device, "cuda:2" the third. */
static int choose_device(const char *name, int *device, struct err *e)
{
    int64_t want = 0;
    int n = 0;
    cudaError_t rc;

    if (name[4] == ':' && (!str_to_i64(str_c(name + 5), &want) || want < 0 || want > 1023))
        return err_set(e, E_INVALID,
                       "device \"%s\": \"cuda:\" must be followed by a number from 0 to 1023",
                       name);
    rc = cudaGetDeviceCount(&n);
    if (rc == cudaErrorInsufficientDriver || rc == cudaErrorInitializationError ||
        rc == cudaErrorSystemDriverMismatch)
        return err_set(e, E_DEVICE, "device \"%s\": the NVIDIA driver is missing or too old: %s",
                       name, cudaGetErrorString(rc));
    if (rc != cudaSuccess && rc != cudaErrorNoDevice)
        return err_set(e, E_DEVICE, "device \"%s\": %s", name, cudaGetErrorString(rc));
    if (want >= n)
        return err_set(e, E_NOTFOUND,
                       "device \"%s\" does not exist: this machine has %d CUDA device%s", name, n,
                       n == 1 ? "" : "s");
    *device = (int)want;
    return OK;
}

/* Creates the CUDA context and the stream, and reads the properties that kernels depend on. */
static int open_device(struct gpu *g, struct err *e)
{
    struct cuda *c = &g->c;
    struct cudaDeviceProp p;
    cudaError_t rc = cudaSetDevice(c->device);
    int version = 0;

    if (rc == cudaSuccess) rc = cudaGetDeviceProperties(&p, c->device);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (rc == cudaErrorMemoryAllocation)
        return err_set(e, E_DEVICE_MEMORY, "%s: the device has no memory left for a CUDA context",
                       g->name);
    if (rc != cudaSuccess) return err_set(e, E_DEVICE, "%s: %s", g->name, cudaGetErrorString(rc));
    c->cc = p.major * 10 + p.minor;
    if (c->cc < 80)
        return err_set(e, E_UNSUPPORTED,
                       "%s: %s has compute capability %d.%d; tern needs 8.0 or later", g->name,
                       p.name, p.major, p.minor);
    c->n_sm = p.multiProcessorCount;
    c->smem_max = p.sharedMemPerBlockOptin;
    c->l2_bytes = (size_t)p.l2CacheSize;
    cudaRuntimeGetVersion(&version);
    snprintf(c->be.detail, sizeof c->be.detail, "%.40s, %d SMs, %zu GiB, CUDA %d.%d", p.name,
             c->n_sm, p.totalGlobalMem >> 30, version / 1000, version % 1000 / 10);
    return OK;
}

/* The device is not opened: this takes no context and no memory on it. */
extern "C" __attribute__((visibility("default"))) int tern_cuda_card(struct device_card *out,
                                                                     const struct backend_opt *opt,
                                                                     uint64_t layout, struct err *e)
{
    struct cudaDeviceProp p;
    int rc, device = 0;
    cudaError_t got;

    if (layout != backend_layout())
        return err_set(e, E_UNSUPPORTED,
                       "tern-cuda.so belongs to another build of tern: run `make cuda` again");
    if ((rc = choose_device(opt->device, &device, e)) != OK) return rc;
    if ((got = cudaGetDeviceProperties(&p, device)) != cudaSuccess)
        return err_set(e, E_DEVICE, "cuda:%d: %s", device, cudaGetErrorString(got));
    snprintf(out->kind, sizeof out->kind, "cuda");
    snprintf(out->name, sizeof out->name, "%.60s", p.name);
    memcpy(out->card, &p.uuid, sizeof out->card);
    out->cc = p.major * 10 + p.minor;
    out->total_bytes = p.totalGlobalMem;
    for (int t = 0; t < DT_COUNT; t++)
        if (cu_matvec_supports((enum dtype)t)) out->types |= (uint64_t)1 << t;
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
                       "tern-cuda.so belongs to another build of tern: run `make cuda` again");
    if (opt->reference)
        return err_set(e, E_INVALID, "device \"%s\": the reference kernels run on the CPU only",
                       opt->device);
    if ((rc = choose_device(opt->device, &device, e)) != OK) return rc;

    if (!(g = mem_new(struct gpu))) return err_nomem(e, "the state of a GPU");
    c = &g->c;
    c->device = device;
    c->exact = !getenv("TERN_CUDA_EXACT") || strcmp(getenv("TERN_CUDA_EXACT"), "0") != 0;
    snprintf(g->name, sizeof g->name, "cuda:%d", device);
    c->be.name = g->name;
    fill_table(&c->be);
    if ((rc = open_device(g, e)) != OK) goto out;
    if ((rc = cu_mem_open(c, e)) != OK) goto out;
    if ((rc = cu_record_open(c, e)) != OK) goto out;
    free_bytes = cu_mem_query(c);
    if ((rc = cu_gemm_open(c, e)) != OK) goto out;
    g->has_gemm = true;
    left = cu_mem_query(c);
    if (left < free_bytes) cu_stat_set(&c->stats.library_bytes, free_bytes - left);
    profile_open(c, opt->profile);
    cu_stat_set(&c->stats.init_ns, clock_ns() - start);
    *out = &c->be;
    g = NULL;
out:
    if (g) t_close(&c->be);
    return rc;
}
