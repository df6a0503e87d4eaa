/* record.cu - launching a record: operation by operation, or as the captured CUDA graph of an equal
 * step.
 *
 * A step of up to GRAPH_TOKENS tokens spends more time in launches than on the device. So when a
 * step comes for the second time its launches are captured in a graph, and every later step whose
 * record is equal replays it in one call (graphs.h decides what is equal).
 *
 * Copies: the source of an upload may change as soon as the call returns, so its bytes go to pinned
 * staging memory first. Downloads to memory that is not pinned arrive in staging memory and are
 * copied by the host after the wait. */
#include "kernel/cuda/record.cuh"

extern "C" {
#include "base/log.h"
#include "base/mem.h"
}

#include <stdlib.h>

static bool env_is_on(const char *name)
{
    const char *v = getenv(name);
    return !v || strcmp(v, "0") != 0;
}

/* The record has no room for the next operation. */
static void launch_full_record(void *device)
{
    struct cuda *c = (struct cuda *)device;

    cudaSetDevice(c->device);
    cu_record_run(c, RUN_FULL);
}

/* Everything that a step needs on the host: the record, the cache of captured steps, the jobs of a
 * launch, pinned staging memory. */
static int open_host_memory(struct cuda *c, struct cu_record *r, struct err *e)
{
    int rc;

    if ((rc = record_init(&r->rec, RECORD_OPS, e)) != OK) return rc;
    r->rec.share_tokens = r->graphs ? GRAPH_TOKENS : 0;
    r->rec.make_room = launch_full_record;
    r->rec.device = c;
    if (r->graphs && (rc = graphs_init(&r->cache, e)) != OK) return rc;
    r->jobs = (struct linear *)mem_array((size_t)r->rec.cap_jobs, sizeof *r->jobs);
    if (!r->jobs) return err_nomem(e, "the matrix products of a step");
    if (cudaMallocHost((void **)&r->upload_buf, STAGING_BYTES) == cudaSuccess &&
        cudaMallocHost((void **)&r->download_buf, STAGING_BYTES) == cudaSuccess)
        return OK;
    cudaGetLastError();
    return err_set(e, E_NOMEM, "%s: no %zu MiB of pinned memory", c->be.name,
                   2 * STAGING_BYTES >> 20);
}

#define TICKET_BYTES (ROUTER_TOKENS * sizeof(unsigned))

int cu_record_open(struct cuda *c, struct err *e)
{
    struct cu_record *r = mem_new(struct cu_record);
    int rc;

    if (!r) return err_nomem(e, "the record of a GPU");
    c->record = r;
    c->be.self = &r->rec;
    r->fuse = env_is_on("TERN_CUDA_FUSE");
    r->graphs = env_is_on("TERN_CUDA_GRAPHS");
    if ((rc = open_host_memory(c, r, e)) != OK) return rc;
    if ((rc = cu_mem_alloc(c, (void **)&r->tickets, TICKET_BYTES, MEM_SCRATCH, "counters of blocks",
                           e)) != OK)
        return rc;
    if (cudaMemsetAsync(r->tickets, 0, TICKET_BYTES, c->stream) != cudaSuccess) {
        cudaGetLastError();
        return err_set(e, E_DEVICE, "%s: memory could not be zeroed", c->be.name);
    }
    /* Timed events: count_busy measures with them. */
    for (int i = -1; i < MAX_AHEAD; i++)
        if (cudaEventCreate(i < 0 ? &r->started : &r->done[i]) != cudaSuccess) {
            cudaGetLastError();
            return err_set(e, E_DEVICE, "%s: no event could be made", c->be.name);
        }
    return OK;
}

/* Also of a record that cu_record_open left half open. */
void cu_record_close(struct cuda *c)
{
    struct cu_record *r = c->record;

    if (!r) return;
    cu_record_drop_graphs(c);
    if (r->tickets) cu_mem_free(c, r->tickets, TICKET_BYTES, MEM_SCRATCH);
    if (r->upload_buf) cudaFreeHost(r->upload_buf);
    if (r->download_buf) cudaFreeHost(r->download_buf);
    if (r->started) cudaEventDestroy(r->started);
    for (int i = 0; i < MAX_AHEAD; i++)
        if (r->done[i]) cudaEventDestroy(r->done[i]);
    for (int i = 0; i < r->n_pinned; i++) {
        log_warn("%s: %zu bytes of pinned memory were never freed", c->be.name, r->pinned[i].bytes);
        cudaFreeHost(r->pinned[i].p);
    }
    record_release(&r->rec);
    graphs_release(&r->cache);
    mem_free(r->jobs);
    mem_free(r);
    c->record = NULL;
    c->be.self = NULL;
}

void cu_record_drop_graphs(struct cuda *c)
{
    struct cu_record *r = c->record;

    for (int i = 0; i < MAX_GRAPHS; i++)
        if (r->cache.slot[i].exec) cudaGraphExecDestroy((cudaGraphExec_t)r->cache.slot[i].exec);
    graphs_clear(&r->cache);
    cu_stat_set(&c->stats.graph_bytes, 0);
}

/* ---- graphs ---- */

/* Launches the record into a graph instead of the device. false: this step cannot be captured, and
 * nothing was launched. */
static bool capture_record(struct cuda *c, struct graph *to)
{
    struct cu_record *r = c->record;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    /* Capture is thread-local: other threads may call CUDA meanwhile (uploads of another model).
     * What the graph takes of the device's memory is measured, because CUDA does not say. */
    size_t free_bytes = cu_mem_query(c), left;
    cudaError_t rc = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);

    if (rc == cudaSuccess) {
        cu_launch_all(c);
        rc = cudaStreamEndCapture(c->stream, &graph);
    }
    if (rc == cudaSuccess && c->rc == OK) rc = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (rc == cudaSuccess && c->rc == OK && exec) {
        left = cu_mem_query(c);
        if (left < free_bytes) cu_stat_add(&c->stats.graph_bytes, free_bytes - left);
        cu_stat_add(&c->stats.n_graphs, 1);
        r->n_captures++;
        to->exec = exec;
        return true;
    }
    cudaGetLastError();
    if (r->n_capture_failures++ == 0)
        log_warn("%s: a step was not captured as a graph: %s", c->be.name,
                 c->rc != OK ? c->msg : cudaGetErrorString(rc));
    if (r->n_capture_failures == 3) r->graphs = false; /* this device or driver cannot capture */
    c->rc = OK;
    return false;
}

/* Captures the record as a new graph of the cache. NULL: the record is to be launched instead; it
 * may be fused already. The slot keeps the record as it is before fusion, because the next step is
 * compared before it is fused. */
static struct graph *capture_new(struct cuda *c, uint64_t hash)
{
    struct cu_record *r = c->record;
    struct graph *g;
    void *replaced;

    if (!graphs_note_seen(&r->cache, hash) || !(g = graphs_choose(&r->cache, r->n_steps)))
        return NULL;
    replaced = g->exec;
    if (!graphs_keep(g, &r->rec, hash)) return NULL;
    if (replaced) cudaGraphExecDestroy((cudaGraphExec_t)replaced);
    if (r->fuse) record_fuse(&r->rec, true);
    return capture_record(c, g) ? g : NULL;
}

/* Replays or captures. false: the record is to be launched; it may be fused already. */
static bool run_as_graph(struct cuda *c)
{
    struct cu_record *r = c->record;
    uint64_t hash = record_hash(&r->rec);
    struct graph *g = graphs_find(&r->cache, &r->rec, hash);

    if (g) {
        r->n_replays++;
        cu_stat_add(&c->stats.n_replays, 1);
    } else if (!(g = capture_new(c, hash))) {
        return false;
    }
    g->used = r->n_steps;
    cu_check(c, cudaGraphLaunch((cudaGraphExec_t)g->exec, c->stream), "graph");
    return true;
}

/* An operation that was refused fails the step as a failed launch does. */
static void take_refusal(struct cuda *c)
{
    struct record *r = &c->record->rec;

    if (r->rc == OK) return;
    cu_fail(c, r->rc, "%s", r->msg);
    r->rc = OK;
}

/* A step is a graph only if all of it is in one record, it is small, and no profile wants to time
 * its kernels. After a failure, or on a lost device, the record is only cleared. */
void cu_record_run(struct cuda *c, enum cu_run how)
{
    struct cu_record *r = c->record;

    take_refusal(c);
    if (r->rec.n > 0 && c->rc == OK && !r->lost) {
        bool one_part = how == RUN_STEP && !r->partial && r->rec.n >= GRAPH_OPS &&
                        r->rec.n_tokens <= GRAPH_TOKENS;
        if (how == RUN_STEP) {
            r->n_steps++;
            cu_stat_set(&c->stats.n_steps, r->n_steps);
        }
        if (r->n_parts == 0) cudaEventRecord(r->started, c->stream);
        cu_gemm_reset(c);
        if (!(one_part && r->graphs && !c->profile && run_as_graph(c))) {
            if (r->fuse) record_fuse(&r->rec, how != RUN_FULL);
            cu_launch_all(c);
        }
        cudaEventRecord(r->done[r->n_parts++ % MAX_AHEAD], c->stream);
    }
    r->partial = how != RUN_STEP;
    record_clear(&r->rec);
}

/* The ring of `done` events has the last MAX_AHEAD parts. */
void cu_record_throttle(struct cuda *c, int ahead)
{
    struct cu_record *r = c->record;

    if (r->n_parts <= ahead || ahead >= MAX_AHEAD || r->lost) return;
    cu_check(c, cu_comm_wait(c, r->done[(r->n_parts - 1 - ahead) % MAX_AHEAD]), "step");
}

/* After a wait: adds the time that the stream was busy since the wait before. */
static void count_busy(struct cuda *c)
{
    struct cu_record *r = c->record;
    float ms = 0;

    if (r->n_parts == 0) return;
    if (cudaEventElapsedTime(&ms, r->started, r->done[(r->n_parts - 1) % MAX_AHEAD]) ==
            cudaSuccess &&
        ms > 0)
        cu_stat_add(&c->stats.busy_ns, (uint64_t)((double)ms * 1e6));
    else cudaGetLastError();
    r->n_parts = 0;
}

/* ---- copies ---- */

/* Memory of t_host_alloc, which a copy can write without staging. */
static bool is_pinned(const struct cu_record *r, const void *p, size_t bytes)
{
    const char *at = (const char *)p;

    for (int i = 0; i < r->n_pinned; i++)
        if (at >= r->pinned[i].p && at + bytes <= r->pinned[i].p + r->pinned[i].bytes) return true;
    return false;
}

/* Staging memory is free again after the wait; downloads to pageable memory are finished here. */
void cu_record_wait(struct cuda *c, enum cu_run how)
{
    struct cu_record *r = c->record;

    cu_record_run(c, how);
    if (!r->lost) cu_check(c, cu_comm_wait(c, NULL), "step");
    if (!r->lost) count_busy(c);
    if (c->rc == OK)
        for (int i = 0; i < r->n_pending; i++)
            memcpy(r->pending[i].dst, r->pending[i].from, r->pending[i].bytes);
    r->n_pending = 0;
    r->upload_used = r->download_used = 0;
    if (c->profile && !r->lost) profile_collect(c);
}

/* Staging offsets are multiples of 256, so that copies are aligned. */
static size_t pad_bytes(size_t bytes) { return (bytes + 255) / 256 * 256; }

static void make_room(struct cuda *c)
{
    if (!record_has_room(&c->record->rec, 0)) cu_record_run(c, RUN_FULL);
}

/* Bytes are copied to staging memory. Equal sequences of calls find the same staging addresses, so
 * a replayed graph reads the new bytes. */
void cu_record_upload(struct cuda *c, void *dst, const void *src, size_t bytes)
{
    struct cu_record *r = c->record;

    while (bytes > 0) {
        if (r->upload_used == STAGING_BYTES) cu_record_wait(c, RUN_FULL);
        make_room(c);
        size_t left = STAGING_BYTES - r->upload_used, n = bytes < left ? bytes : left;
        memcpy(r->upload_buf + r->upload_used, src, n);
        record_upload(&r->rec, dst, r->upload_buf + r->upload_used, n);
        r->upload_used += pad_bytes(n);
        dst = (char *)dst + n;
        src = (const char *)src + n;
        bytes -= n;
    }
}

/* A download larger than the staging memory is split, and waits in between. */
void cu_record_download(struct cuda *c, void *dst, const void *src, size_t bytes)
{
    struct cu_record *r = c->record;

    make_room(c);
    if (bytes == 0) return;
    if (is_pinned(r, dst, bytes)) {
        record_download(&r->rec, dst, src, bytes);
        return;
    }
    for (size_t n; bytes > 0; dst = (char *)dst + n, src = (const char *)src + n, bytes -= n) {
        if (r->download_used == STAGING_BYTES || r->n_pending == MAX_PENDING)
            cu_record_wait(c, RUN_FULL);
        make_room(c);
        n = bytes < STAGING_BYTES - r->download_used ? bytes : STAGING_BYTES - r->download_used;
        record_download(&r->rec, r->download_buf + r->download_used, src, n);
        r->pending[r->n_pending++] =
            (struct cu_pending_copy){ dst, r->download_buf + r->download_used, n };
        r->download_used += pad_bytes(n);
    }
}
