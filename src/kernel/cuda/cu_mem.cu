/* cu_mem.cu - device memory: every allocation has an owner and a kind, and is in one list.
 *
 * The list finds double frees and frees of another size, and says at close what was never freed.
 * With TERN_CUDA_DEBUG=1 every block has guard bytes before and after it, which are checked when it
 * is freed. All of this happens when a model opens or closes: a step allocates nothing, and the
 * backend's n_allocs counts to prove it. */
#include "kernel/cuda/cu.cuh"

extern "C" {
#include "base/log.h"
#include "base/mem.h"
}

#include <stdlib.h>

#define GUARD_BYTES 256 /* a multiple of every alignment that kernels need */
#define GUARD 0xa5

struct block {
    void *p; /* the owner's address, after the guard */
    size_t bytes;
    enum mem_kind kind;
    const char *owner;
    /* number of the allocation, for the message about leaks */
    uint64_t serial;
};

/* The list. Unordered: a freed entry is replaced by the last one. */
struct cu_mem {
    struct block *blocks;
    size_t n, cap;
    uint64_t calls, bad_frees;
    bool guarded;
};

static const char *const kind_name[MEM_KINDS] = { "weights", "keys and values", "scratch" };

int cu_mem_open(struct cuda *c, struct err *e)
{
    const char *debug = getenv("TERN_CUDA_DEBUG");

    if (!(c->mem = mem_new(struct cu_mem))) return err_nomem(e, "the list of device memory");
    c->mem->guarded = debug && debug[0] != 0 && debug[0] != '0';
    return OK;
}

void cu_mem_close(struct cuda *c)
{
    struct cu_mem *m = c->mem;

    if (!m) return;
    for (size_t i = 0; i < m->n; i++) {
        struct block *b = &m->blocks[i];
        log_warn("%s: %zu bytes of %s (%s, allocation %llu) were never freed", c->be.name, b->bytes,
                 kind_name[b->kind], b->owner, (unsigned long long)b->serial);
        cudaFree((char *)b->p - (m->guarded ? GUARD_BYTES : 0));
    }
    if (m->bad_frees)
        log_warn("%s: %llu frees of memory that was not allocated, or of another size", c->be.name,
                 (unsigned long long)m->bad_frees);
    mem_free(m->blocks);
    mem_free(m);
    c->mem = NULL;
}

size_t cu_mem_offset(const struct cuda *c) { return c->mem->guarded ? GUARD_BYTES : 0; }

size_t cu_mem_query(struct cuda *c)
{
    size_t free_bytes = 0, total = 0;

    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) cudaGetLastError();
    cu_stat_set(&c->stats.free_bytes, free_bytes);
    cu_stat_set(&c->stats.total_bytes, total);
    return free_bytes;
}

/* Names the owner and the present use: enough to decide between a smaller model, a smaller context
 * and another GPU. */
static int report_no_room(struct cuda *c, size_t bytes, enum mem_kind kind, const char *owner,
                          struct err *e)
{
    const size_t *used = c->be.used_bytes;
    size_t free_bytes, total;

    cudaGetLastError(); /* otherwise the next launch would report it */
    free_bytes = cu_mem_query(c);
    total = (size_t)c->stats.total_bytes;
    return err_set(
        e, E_DEVICE_MEMORY,
        "%s: no memory for %zu MiB of %s (%s): %zu of %zu MiB are free; in use here: weights %zu, "
        "keys and values %zu, scratch %zu MiB",
        c->be.name, (bytes + 0xfffff) >> 20, kind_name[kind], owner, free_bytes >> 20, total >> 20,
        used[MEM_WEIGHTS] >> 20, used[MEM_KV] >> 20, used[MEM_SCRATCH] >> 20);
}

int cu_mem_alloc(struct cuda *c, void **out, size_t bytes, enum mem_kind kind, const char *owner,
                 struct err *e)
{
    struct cu_mem *m = c->mem;
    size_t guard = m->guarded ? GUARD_BYTES : 0, all = (bytes ? bytes : 1) + 2 * guard;
    void *p = NULL;
    cudaError_t rc;

    if (!mem_ensure_size(&m->blocks, &m->cap, m->n + 1, sizeof *m->blocks))
        return err_nomem(e, "the list of device memory");
    rc = all < bytes ? cudaErrorMemoryAllocation : cudaMalloc(&p, all);

    if (rc == cudaErrorMemoryAllocation) return report_no_room(c, bytes, kind, owner, e);
    if (rc != cudaSuccess)
        return err_set(e, E_DEVICE, "%s: cannot allocate %zu bytes of %s: %s", c->be.name, bytes,
                       kind_name[kind], cudaGetErrorString(rc));
    if (guard) {
        cudaMemset(p, GUARD, guard);
        cudaMemset((char *)p + guard + bytes, GUARD, guard);
    }
    p = (char *)p + guard;
    c->be.n_allocs = ++m->calls;
    m->blocks[m->n++] = (struct block){ p, bytes, kind, owner, m->calls };
    c->be.used_bytes[kind] += bytes;
    cu_stat_set(&c->stats.bytes[kind], c->be.used_bytes[kind]);
    *out = p;
    return OK;
}

static bool guard_is_intact(const void *at)
{
    unsigned char g[GUARD_BYTES];

    if (cudaMemcpy(g, at, sizeof g, cudaMemcpyDeviceToHost) != cudaSuccess)
        return true; /* reported by the next call */
    for (size_t i = 0; i < sizeof g; i++)
        if (g[i] != GUARD) return false;
    return true;
}

static void check_guards(struct cuda *c, const struct block *b)
{
    if (!guard_is_intact((const char *)b->p - GUARD_BYTES))
        log_error("%s: memory before %s (%s, %zu bytes) was overwritten", c->be.name, b->owner,
                  kind_name[b->kind], b->bytes);
    if (!guard_is_intact((const char *)b->p + b->bytes))
        log_error("%s: memory after %s (%s, %zu bytes) was overwritten", c->be.name, b->owner,
                  kind_name[b->kind], b->bytes);
}

/* Searches from the end: scratch memory and KV blocks are freed in about the reverse order. A wrong
 * size or kind is a mistake of the caller; nothing is freed then. */
void cu_mem_free(struct cuda *c, void *p, size_t bytes, enum mem_kind kind)
{
    struct cu_mem *m = c->mem;
    size_t i = m->n;

    if (!p) return;
    while (i > 0 && m->blocks[i - 1].p != p) i--;
    if (i == 0 || m->blocks[i - 1].bytes != bytes || m->blocks[i - 1].kind != kind) {
        m->bad_frees++;
        log_error("%s: %zu bytes of %s are freed twice, or were never allocated", c->be.name, bytes,
                  kind_name[kind]);
        return;
    }
    if (m->guarded) check_guards(c, &m->blocks[i - 1]);
    cu_check(c, cudaFree((char *)p - (m->guarded ? GUARD_BYTES : 0)), "free");
    m->blocks[i - 1] = m->blocks[--m->n];
    c->be.used_bytes[kind] -= bytes;
    cu_stat_set(&c->stats.bytes[kind], c->be.used_bytes[kind]);
}
