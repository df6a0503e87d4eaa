/* comm.cu - a GPU's part in sums over the members of a group: offers, joining, launching, waiting.
 *
 * Sums are operations of a record like others: each is launched on the stream, and a captured graph
 * of a step contains it. GROUP_HOST is a copy to page-locked memory, a call of the host on the stream
 * (cudaLaunchHostFunc) that sums with the communicator, and a copy back. */
#include "kernel/cuda/comm.cuh"

extern "C" {
#include "base/log.h"
#include "base/mem.h"
}

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* ---- calls of the host on the stream ---- */

/* A captured graph keeps the argument of such a call for ever, so that it is no address: the number
 * of the group, the wire and how many numbers. */
#define SLOTS 64
#define SLOT_SHIFT 56
#define WIRE_SHIFT 54

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cu_comm *slots[SLOTS];

static int take_slot(struct cu_comm *m)
{
    int i = 0;

    pthread_mutex_lock(&slots_lock);
    while (i < SLOTS && slots[i]) i++;
    if (i < SLOTS) slots[i] = m;
    pthread_mutex_unlock(&slots_lock);
    return i < SLOTS ? i : -1;
}

static void drop_slot(int i)
{
    if (i < 0) return;
    pthread_mutex_lock(&slots_lock);
    slots[i] = NULL;
    pthread_mutex_unlock(&slots_lock);
}

/* A thread of CUDA's; it must not call CUDA. The numbers are in page-locked memory. */
static void CUDART_CB sum_on_host(void *arg)
{
    uint64_t v = (uint64_t)(uintptr_t)arg;
    struct cu_comm *m;

    pthread_mutex_lock(&slots_lock);
    m = slots[v >> SLOT_SHIFT];
    pthread_mutex_unlock(&slots_lock);
    if (m)
        m->g.sum(m->g.arg, m->host, (size_t)(v & (((uint64_t)1 << WIRE_SHIFT) - 1)),
                 (int)(v >> WIRE_SHIFT & 3));
}

static void sum_by_host(struct cuda *c, float *x, size_t n, int wire)
{
    struct cu_comm *m = c->comm;
    uint64_t arg = (uint64_t)m->slot << SLOT_SHIFT | (uint64_t)wire << WIRE_SHIFT | n;

    if (n > m->host_n) {
        cu_fail(c, E_INTERNAL, "a sum of %zu numbers, but the group was made for %zu", n,
                m->host_n);
        return;
    }
    cu_launch_begin(c, "sum host");
    cu_check(c, cudaMemcpyAsync(m->host, x, n * sizeof *x, cudaMemcpyDeviceToHost, c->stream),
             "sum host");
    cu_check(c, cudaLaunchHostFunc(c->stream, sum_on_host, (void *)(uintptr_t)arg), "sum host");
    cu_check(c, cudaMemcpyAsync(x, m->host, n * sizeof *x, cudaMemcpyHostToDevice, c->stream),
             "sum host");
    cu_launch_end(c);
}

/* ---- one sum ---- */

static void sum_by_ipc(struct cuda *c, float *x, size_t n)
{
    const struct ipc_args *a = &c->comm->ipc;

    for (size_t at = 0; at < n; at += a->cap)
        ipc_sum(c, a, x + at, n - at < a->cap ? n - at : a->cap);
}

static void sum_by_nccl(struct cuda *c, float *x, size_t n)
{
    struct err e = {};

    cu_launch_begin(c, "sum nccl");
    if (c->comm->nccl.sum(c->comm->nccl_comm, x, n, c->stream, &e) != OK)
        cu_fail(c, e.code, "%s", e.msg);
    cu_launch_end(c);
}

void cu_all_reduce(struct cuda *c, const struct tensor *x, int wire)
{
    size_t n = (size_t)x->rows * (size_t)x->cols;
    struct cu_comm *m = c->comm;

    if (!m || m->g.size < 1) {
        cu_fail(c, E_INTERNAL, "a sum over a group, but the device is in none");
        return;
    }
    cu_gemm_reset(c); /* x may be one that it has in F16 */
    switch (m->g.way) {
    case GROUP_HOST: sum_by_host(c, (float *)x->data, n, wire); break;
    case GROUP_IPC: sum_by_ipc(c, (float *)x->data, n); break;
    case GROUP_NCCL: sum_by_nccl(c, (float *)x->data, n); break;
    case GROUP_WAYS: break;
    }
}

/* ---- waiting ---- */

/* The device may wait for members that are gone: it is told so. */
static void stop_waiting(struct cuda *c)
{
    struct cu_comm *m = c->comm;

    if (m->status) __atomic_store_n(&m->status->stop, 1, __ATOMIC_RELEASE);
    if (m->g.way == GROUP_NCCL && m->nccl_comm) {
        m->nccl.abort(m->nccl_comm);
        m->nccl_comm = NULL;
        m->g.size = 0;
        cu_fail(c, E_WORKER, "the gang has ended while its members were adding up");
    }
}

static void note_status(struct cuda *c, const struct ipc_status *s)
{
    int late = __atomic_load_n(&s->late, __ATOMIC_ACQUIRE);

    cu_stat_set(&c->stats.sum_ns, __atomic_load_n(&s->ns, __ATOMIC_RELAXED));
    if (late)
        cu_fail(c, E_DEADLINE, "member %d of the stage added nothing before the deadline",
                late - 1);
    if (__atomic_load_n(&s->stop, __ATOMIC_RELAXED))
        cu_fail(c, E_WORKER, "the gang has ended while its members were adding up");
}

/* For the stream, or for an event. Where members wait for each other on their devices, the host looks
 * whether the gang still is. */
cudaError_t cu_comm_wait(struct cuda *c, cudaEvent_t event)
{
    struct cu_comm *m = c->comm;
    cudaError_t rc = cudaErrorNotReady;
    bool polls = m && m->g.size > 1 && m->g.way != GROUP_HOST && m->g.is_lost;

    for (unsigned i = 1; polls; i++) {
        rc = event ? cudaEventQuery(event) : cudaStreamQuery(c->stream);
        if (rc != cudaErrorNotReady) break;
        if (i % 64) continue;
        sched_yield();
        if (!m->g.is_lost(m->g.arg)) continue;
        stop_waiting(c);
        break;
    }
    if (polls) cudaGetLastError(); /* "not ready" is kept as an error, too */
    if (rc == cudaErrorNotReady)
        rc = event ? cudaEventSynchronize(event) : cudaStreamSynchronize(c->stream);
    if (m && m->status) note_status(c, m->status);
    return rc;
}

/* ---- memory ---- */

static void unmap_peers(struct cu_comm *m)
{
    for (int i = 0; i < GROUP_IPC_MAX; i++) {
        if (m->peers[i]) cudaIpcCloseMemHandle(m->peers[i]);
        m->peers[i] = NULL;
    }
}

static void free_ipc(struct cuda *c, struct cu_comm *m)
{
    unmap_peers(m);
    if (m->shared) cu_mem_free(c, m->shared, m->shared_bytes, MEM_SCRATCH);
    if (m->words) cu_mem_free(c, m->words, m->words_bytes, MEM_SCRATCH);
    if (m->status) cudaFreeHost(m->status);
    m->shared = m->words = NULL;
    m->status = NULL;
    cudaGetLastError();
}

static void free_host(struct cu_comm *m)
{
    if (m->host) cudaFreeHost(m->host);
    m->host = NULL;
    m->host_n = 0;
}

/* Largest sum over IPC in one launch; larger ones are several. */
#define IPC_NUMBERS ((size_t)4 << 20)
#define SHARED_PAGE ((size_t)2 << 20)

static size_t ipc_cap(size_t max)
{
    size_t n = max < IPC_NUMBERS ? max : IPC_NUMBERS;

    return (n + 1023) / 1024 * 1024;
}

/* Memory for others to read, with its flags down. false: this device has none to share. */
static bool alloc_ipc(struct cuda *c, struct cu_comm *m, size_t max)
{
    struct err e = {};

    /* whole pages: a handle is that of an allocation of its own */
    m->shared_bytes = ipc_head_bytes() + 2 * ipc_cap(max) * sizeof(float);
    m->shared_bytes = (m->shared_bytes + SHARED_PAGE - 1) / SHARED_PAGE * SHARED_PAGE;
    m->words_bytes = 1024;
    if (cu_mem_alloc(c, &m->shared, m->shared_bytes, MEM_SCRATCH, "shared sums", &e) != OK ||
        cudaHostAlloc((void **)&m->status, sizeof *m->status, cudaHostAllocMapped) != cudaSuccess ||
        cu_mem_alloc(c, &m->words, m->words_bytes, MEM_SCRATCH, "sums", &e) != OK ||
        cudaMemset(m->shared, 0, m->shared_bytes) != cudaSuccess ||
        cudaMemset(m->words, 0, m->words_bytes) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
        free_ipc(c, m);
        return false;
    }
    memset(m->status, 0, sizeof *m->status);
    return true;
}

/* ---- the table's entries ---- */

static bool offer_ipc(struct cuda *c, struct cu_comm *m, struct group_offer *out, size_t max)
{
    cudaIpcMemHandle_t h;
    int can = 0;

    static_assert(sizeof h == sizeof out->memory, "a handle fits the offer");
    if (!m->shared && !alloc_ipc(c, m, max)) return false;
    if (cudaDeviceGetAttribute(&can, cudaDevAttrUnifiedAddressing, c->device) != cudaSuccess ||
        !can || cudaIpcGetMemHandle(&h, m->shared) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    memcpy(out->memory, &h, sizeof h);
    out->memory_at = cu_mem_offset(c);
    out->memory_bytes = m->shared_bytes;
    return true;
}

/* Only the first member's id is used. */
static bool offer_nccl(struct cu_comm *m, struct group_offer *out, int rank, struct err *e)
{
    if (!m->has_nccl) m->has_nccl = cu_nccl_open(&m->nccl, e) == OK;
    return m->has_nccl && (rank > 0 || m->nccl.make_id(out->nccl_id, e) == OK);
}

static struct cu_comm *comm_of(struct cuda *c)
{
    if (!c->comm && (c->comm = mem_new(struct cu_comm))) c->comm->slot = -1;
    return c->comm;
}

int cu_group_offer(struct cuda *c, struct group_offer *out, const struct group_ask *ask,
                   struct err *e)
{
    struct cu_comm *m = comm_of(c);
    struct cudaDeviceProp p;
    struct err why = {};

    if (!m) return err_nomem(e, "a group of devices");
    if (cudaGetDeviceProperties(&p, c->device) != cudaSuccess) {
        cudaGetLastError();
        return err_set(e, E_DEVICE, "%s: cannot be asked for its properties", c->be.name);
    }
    static_assert(sizeof p.uuid == sizeof out->card, "an id fits the offer");
    memcpy(out->card, &p.uuid, sizeof p.uuid);
    snprintf(out->device, sizeof out->device, "%s", c->be.name);
    out->ways = 1u << GROUP_HOST;
    if (ask->ways >> GROUP_IPC & 1 && offer_ipc(c, m, out, ask->max)) out->ways |= 1u << GROUP_IPC;
    if (ask->ways >> GROUP_NCCL & 1) {
        if (offer_nccl(m, out, ask->rank, &why)) out->ways |= 1u << GROUP_NCCL;
        else log_warn("%s: %s", c->be.name, why.msg);
    }
    return OK;
}

static int join_host(struct cuda *c, struct cu_comm *m, const struct sum_group *g, struct err *e)
{
    if (m->host_n < g->max) {
        free_host(m);
        if (cudaMallocHost((void **)&m->host, g->max * sizeof *m->host) != cudaSuccess) {
            cudaGetLastError();
            m->host = NULL;
            return err_set(e, E_NOMEM, "%s: no %zu bytes of page-locked memory for sums",
                           c->be.name, g->max * sizeof *m->host);
        }
        m->host_n = g->max;
    }
    if (m->status) memset(m->status, 0, sizeof *m->status); /* of a trial of another way */
    if (m->slot < 0 && (m->slot = take_slot(m)) < 0)
        return err_set(e, E_UNSUPPORTED, "%s: more than %d groups in one process", c->be.name,
                       SLOTS);
    return OK;
}

/* Maps the memory of the others. Fails where devices do not reach each other: peer access is enabled
 * by opening the handle. */
static int map_peers(struct cuda *c, struct cu_comm *m, const struct sum_group *g, struct err *e)
{
    for (int r = 0; r < g->size; r++) {
        cudaIpcMemHandle_t h;
        cudaError_t rc;
        if (r == g->rank || m->peers[r]) continue;
        if (g->offers[r].memory_bytes != m->shared_bytes || g->offers[r].memory_at > SHARED_PAGE ||
            g->offers[r].memory_at % 256)
            return err_set(e, E_FORMAT, "member %d of the stage shares %llu bytes, expected %zu", r,
                           (unsigned long long)g->offers[r].memory_bytes, m->shared_bytes);
        memcpy(&h, g->offers[r].memory, sizeof h);
        if ((rc = cudaIpcOpenMemHandle(&m->peers[r], h, cudaIpcMemLazyEnablePeerAccess)) ==
            cudaSuccess)
            continue;
        cudaGetLastError();
        m->peers[r] = NULL;
        return err_set(e, E_UNSUPPORTED, "%s: the memory of member %d (%s) is out of reach: %s",
                       c->be.name, r, g->offers[r].device, cudaGetErrorString(rc));
    }
    return OK;
}

static int join_ipc(struct cuda *c, struct cu_comm *m, const struct sum_group *g, struct err *e)
{
    struct ipc_args *a = &m->ipc;
    char *words = (char *)m->words;
    void *status = NULL;
    int rc;

    if (!m->shared || g->size > GROUP_IPC_MAX)
        return err_set(e, E_UNSUPPORTED, "%s: no memory to share with other processes", c->be.name);
    if ((rc = map_peers(c, m, g, e)) != OK) return rc;
    if (cudaHostGetDevicePointer(&status, m->status, 0) != cudaSuccess) {
        cudaGetLastError();
        return err_set(e, E_UNSUPPORTED, "%s: cannot map host memory", c->be.name);
    }
    *a = {};
    for (int r = 0; r < g->size; r++) {
        char *p = r == g->rank ? (char *)m->shared : (char *)m->peers[r] + g->offers[r].memory_at;
        a->flags[r] = (unsigned *)p;
        a->data[r] = (float *)(p + ipc_head_bytes());
    }
    a->epochs = (unsigned *)words;
    a->ns = (uint64_t *)(words + IPC_BLOCKS * sizeof(unsigned));
    a->dead = (int *)(a->ns + 1);
    a->status = (struct ipc_status *)status;
    a->cap = ipc_cap(g->max);
    a->timeout_ns = g->timeout_ns;
    a->rank = g->rank;
    a->size = g->size;
    return OK;
}

static int join_nccl(struct cuda *c, struct cu_comm *m, const struct sum_group *g, struct err *e)
{
    if (!m->has_nccl) return err_set(e, E_UNSUPPORTED, "%s: NCCL is not here", c->be.name);
    if (m->nccl_comm) return OK;
    return m->nccl.join(&m->nccl_comm, g->rank, g->size, g->offers[0].nccl_id, e);
}

int cu_group_join(struct cuda *c, const struct sum_group *g, struct err *e)
{
    struct cu_comm *m = c->comm;
    int rc = OK;

    if (!m) return err_set(e, E_INTERNAL, "%s: a group without an offer", c->be.name);
    switch (g->way) {
    case GROUP_HOST: rc = join_host(c, m, g, e); break;
    case GROUP_IPC: rc = join_ipc(c, m, g, e); break;
    case GROUP_NCCL: rc = join_nccl(c, m, g, e); break;
    case GROUP_WAYS: rc = E_INTERNAL; break;
    }
    if (rc != OK) return rc;
    m->g = *g;
    m->g.offers = NULL;
    return OK;
}

void cu_group_leave(struct cuda *c)
{
    struct cu_comm *m = c->comm;

    if (!m) return;
    if (m->nccl_comm) {
        if (m->g.is_lost && m->g.is_lost(m->g.arg)) m->nccl.abort(m->nccl_comm);
        else m->nccl.leave(m->nccl_comm);
    }
    drop_slot(m->slot);
    /* CUDA wants memory to be unmapped everywhere before its owner frees it. */
    unmap_peers(m);
    if (m->g.way == GROUP_IPC && m->g.size > 1 && m->g.meet) m->g.meet(m->g.arg);
    free_ipc(c, m);
    free_host(m);
    mem_free(m);
    c->comm = NULL;
}
