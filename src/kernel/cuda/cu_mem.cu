/* cu_mem.cu - device memory: one owner for each allocation, and a ledger of all of them.
 *
 * With TERN_CUDA_DEBUG=1 guards stand before and behind every block and are looked at when it is
 * freed. */
#include "kernel/cuda/cu.cuh"

extern "C" {
#include "base/log.h"
#include "base/mem.h"
}

#include <stdlib.h>

#define GUARD_BYTES 256 /* a multiple of what kernels want blocks aligned to */
#define GUARD 0xa5

struct block {
    void *p; /* what the owner has */
    size_t bytes;
    enum mem_kind kind;
    const char *owner;
    uint64_t serial;
};

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

    (void)e;
    c->mem = mem_new(struct cu_mem);
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
        log_warn("%s: %llu frees of memory that was not taken, or of another size", c->be.name,
                 (unsigned long long)m->bad_frees);
    mem_free(m->blocks);
    mem_free(m);
    c->mem = NULL;
}

uint64_t cu_mem_calls(const struct cuda *c) { return c->mem->calls; }

size_t cu_mem_look(struct cuda *c)
{
    size_t free_bytes = 0, total = 0;

    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) cudaGetLastError();
    cu_note(&c->stats.free_bytes, free_bytes);
    cu_note(&c->stats.total_bytes, total);
    return free_bytes;
}

static int no_room(struct cuda *c, size_t bytes, enum mem_kind kind, const char *owner,
                   struct err *e)
{
    const size_t *used = c->be.used_bytes;
    size_t free_bytes, total;

    cudaGetLastError(); /* not to be seen by the next launch */
    free_bytes = cu_mem_look(c);
    total = (size_t)c->stats.total_bytes;
    return err_set(
        e, E_NOMEM,
        "%s: no room for %zu MiB of %s (%s): %zu of %zu MiB are free; in use here: weights %zu, "
        "keys and values %zu, scratch %zu MiB",
        c->be.name, (bytes + 0xfffff) >> 20, kind_name[kind], owner, free_bytes >> 20, total >> 20,
        used[MEM_WEIGHTS] >> 20, used[MEM_KV] >> 20, used[MEM_SCRATCH] >> 20);
}

static void note(struct cu_mem *m, struct block b)
{
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 64;
        m->blocks = (struct block *)mem_grow(m->blocks, m->cap * sizeof *m->blocks);
    }
    m->blocks[m->n++] = b;
}

int cu_mem_get(struct cuda *c, void **out, size_t bytes, enum mem_kind kind, const char *owner,
               struct err *e)
{
    struct cu_mem *m = c->mem;
    size_t guard = m->guarded ? GUARD_BYTES : 0, all = (bytes ? bytes : 1) + 2 * guard;
    void *p = NULL;
    cudaError_t rc = all < bytes ? cudaErrorMemoryAllocation : cudaMalloc(&p, all);

    if (rc == cudaErrorMemoryAllocation) return no_room(c, bytes, kind, owner, e);
    if (rc != cudaSuccess)
        return err_set(e, E_DEVICE, "%s: cannot take %zu bytes of %s: %s", c->be.name, bytes,
                       kind_name[kind], cudaGetErrorString(rc));
    if (guard) {
        cudaMemset(p, GUARD, guard);
        cudaMemset((char *)p + guard + bytes, GUARD, guard);
    }
    p = (char *)p + guard;
    c->be.n_allocs = ++m->calls;
    note(m, (struct block){ p, bytes, kind, owner, m->calls });
    c->be.used_bytes[kind] += bytes;
    cu_note(&c->stats.bytes[kind], c->be.used_bytes[kind]);
    *out = p;
    return OK;
}

static bool guard_is_whole(const void *at)
{
    unsigned char g[GUARD_BYTES];

    if (cudaMemcpy(g, at, sizeof g, cudaMemcpyDeviceToHost) != cudaSuccess)
        return true; /* told elsewhere */
    for (size_t i = 0; i < sizeof g; i++)
        if (g[i] != GUARD) return false;
    return true;
}

static void look_at_guards(struct cuda *c, const struct block *b)
{
    if (!guard_is_whole((const char *)b->p - GUARD_BYTES))
        log_error("%s: something wrote before %s of %s, %zu bytes", c->be.name, b->owner,
                  kind_name[b->kind], b->bytes);
    if (!guard_is_whole((const char *)b->p + b->bytes))
        log_error("%s: something wrote behind %s of %s, %zu bytes", c->be.name, b->owner,
                  kind_name[b->kind], b->bytes);
}

void cu_mem_put(struct cuda *c, void *p, size_t bytes, enum mem_kind kind)
{
    struct cu_mem *m = c->mem;
    size_t i = m->n;

    if (!p) return;
    while (i > 0 && m->blocks[i - 1].p != p) i--;
    if (i == 0 || m->blocks[i - 1].bytes != bytes || m->blocks[i - 1].kind != kind) {
        m->bad_frees++;
        log_error("%s: %zu bytes of %s freed twice, or never taken", c->be.name, bytes,
                  kind_name[kind]);
        return;
    }
    if (m->guarded) look_at_guards(c, &m->blocks[i - 1]);
    cu_check(c, cudaFree((char *)p - (m->guarded ? GUARD_BYTES : 0)), "free");
    m->blocks[i - 1] = m->blocks[--m->n];
    c->be.used_bytes[kind] -= bytes;
    cu_note(&c->stats.bytes[kind], c->be.used_bytes[kind]);
}
